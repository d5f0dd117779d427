/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's way to the rendezvous. Launchers start ranks in any order, so the service may not be
 * there yet: until the key is proved every loss is tried again until the deadline, from then on it
 * means that the service is gone and is an error at once.
 */
#include "transport/bootstrap_joiner.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "transport/handshake.h"

#define RETRY_MIN_NS 5000000u
#define RETRY_MAX_NS 200000000u

/* Sleeps until the socket is ready, DSCOMM_OK, or the deadline, DSCOMM_ERR_TIMEOUT. */
static dscomm_status_t wait_ready(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd pfd = { .fd = fd, .events = events };

    for (;;) {
        const uint64_t now = dsc_now_ns();

        if (now >= deadline_ns)
            return DSCOMM_ERR_TIMEOUT;

        const uint64_t ms = dsc_min_u64((deadline_ns - now + 999999u) / 1000000u, 60000);
        const int n = poll(&pfd, 1, (int)ms);

        if (n > 0)
            return DSCOMM_OK;
        if (n < 0 && errno != EINTR)
            return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "cannot wait for a socket");
    }
}

dscomm_status_t dsc_joiner_move(struct dsc_joiner *j, bool sending, void *buf, size_t n)
{
    for (size_t done = 0; done < n;) {
        uint8_t *const p = (uint8_t *)buf + done;
        const ssize_t moved = sending ? send(j->fd, p, n - done, MSG_NOSIGNAL | MSG_DONTWAIT)
                                      : recv(j->fd, p, n - done, MSG_DONTWAIT);

        if (moved > 0) {
            done += (size_t)moved;
            continue;
        }
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
            return DSCOMM_ERR_PEER_LOST;
        DSC_TRY(wait_ready(j->fd, sending ? POLLOUT : POLLIN, j->deadline_ns));
    }
    return DSCOMM_OK;
}

/* A loss that may end once the service, or the network, is up. */
static dscomm_status_t try_again(struct dsc_joiner *j, const char *text)
{
    snprintf(j->trouble, sizeof(j->trouble), "%s", text);
    if (j->fd >= 0)
        close(j->fd);
    j->fd = -1;
    return DSCOMM_IN_PROGRESS;
}

static bool is_passing(int err)
{
    static const int passing[] = { ECONNREFUSED,  ENETUNREACH,  EHOSTUNREACH, ETIMEDOUT,
                                   ECONNRESET,    ECONNABORTED, ENETDOWN,     EHOSTDOWN,
                                   EADDRNOTAVAIL, EAGAIN };

    for (size_t i = 0; i < DSC_ARRAY_LEN(passing); i++) {
        if (err == passing[i])
            return true;
    }
    return false;
}

/* With nobody listening, a connect to a port of the ephemeral range may meet itself. */
static bool is_self_connected(int fd)
{
    union dsc_addr own = { 0 }, other = { 0 };
    socklen_t own_len = sizeof(own), other_len = sizeof(other);

    return getsockname(fd, &own.any, &own_len) == 0 &&
           getpeername(fd, &other.any, &other_len) == 0 && own_len == other_len &&
           memcmp(&own, &other, own_len) == 0;
}

static dscomm_status_t connect_once(struct dsc_joiner *j)
{
    int err = 0;
    socklen_t len = sizeof(err);

    DSC_TRY(dsc_socket_create(j->root.any.sa_family, &j->fd));
    if (connect(j->fd, &j->root.any, dsc_addr_len(&j->root)) != 0)
        err = errno;
    if (err == EINPROGRESS || err == EINTR) { /* interrupted: it goes on by itself */
        const dscomm_status_t st = wait_ready(j->fd, POLLOUT, j->deadline_ns);

        if (st == DSCOMM_ERR_TIMEOUT)
            return try_again(j, "no answer to the connection request");
        DSC_TRY(st);
        getsockopt(j->fd, SOL_SOCKET, SO_ERROR, &err, &len);
    }
    if (err == 0)
        return is_self_connected(j->fd) ? try_again(j, strerror(ECONNREFUSED)) : DSCOMM_OK;
    if (is_passing(err))
        return try_again(j, strerror(err));
    errno = err;
    return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "cannot connect to the rendezvous at %s",
                          j->root_text);
}

static dscomm_status_t finish_handshake(struct dsc_joiner *j, struct dsc_handshake *hs)
{
    dscomm_status_t st = dsc_handshake_step(hs);

    while (st == DSCOMM_IN_PROGRESS) {
        /* At the deadline the step says so. */
        st = wait_ready(dsc_handshake_fd(hs), dsc_handshake_events(hs), j->deadline_ns);
        if (st == DSCOMM_OK || st == DSCOMM_ERR_TIMEOUT)
            st = dsc_handshake_step(hs);
    }
    if (st == DSCOMM_ERR_PEER_LOST || st == DSCOMM_ERR_TIMEOUT)
        return try_again(j, dsc_handshake_error(hs));
    if (st < 0)
        return dsc_fail(st, "rendezvous: %s", dsc_handshake_error(hs));
    if (dsc_handshake_peer(hs)->purpose != DSC_LINK_RENDEZVOUS)
        return dsc_fail(DSCOMM_ERR_MISMATCH, "%s is a rank's listener, not a rendezvous",
                        j->root_text);
    j->fd = dsc_handshake_take_fd(hs);
    return DSCOMM_OK;
}

static dscomm_status_t prove_once(struct dsc_joiner *j)
{
    const struct dsc_hello mine = {
        .purpose = DSC_LINK_RENDEZVOUS,
        .rank = j->params->rank,
        .n_ranks = (uint32_t)j->params->n_ranks,
    };
    struct dsc_handshake *hs;

    DSC_TRY(dsc_handshake_create(j->fd, false, j->key, &mine, j->deadline_ns, &hs));
    j->fd = -1;
    const dscomm_status_t st = finish_handshake(j, hs);

    dsc_handshake_destroy(hs);
    return st;
}

/* A signal ends it early: the next attempt comes sooner. */
static void sleep_until(uint64_t wake_ns)
{
    const uint64_t now = dsc_now_ns();

    if (wake_ns > now)
        poll(NULL, 0, (int)((wake_ns - now + 999999u) / 1000000u));
}

dscomm_status_t dsc_joiner_reach(struct dsc_joiner *j)
{
    uint64_t pause_ns = RETRY_MIN_NS;

    do {
        dscomm_status_t st = connect_once(j);

        if (st == DSCOMM_OK)
            st = prove_once(j);
        if (st != DSCOMM_IN_PROGRESS)
            return st;
        sleep_until(dsc_min_u64(dsc_now_ns() + pause_ns, j->deadline_ns));
        pause_ns = dsc_min_u64(pause_ns * 2, RETRY_MAX_NS);
    } while (dsc_now_ns() < j->deadline_ns);
    if (j->is_rank0s)
        return dsc_fail(DSCOMM_ERR_TIMEOUT,
                        "rank 0's rendezvous at %s was not reached by rank %d, waited %.1f s: %s",
                        j->root_text, j->params->rank, j->params->timeout_ms * 1e-3, j->trouble);
    return dsc_fail(DSCOMM_ERR_TIMEOUT,
                    "rank %d did not reach the rendezvous at %s, waited %.1f s: %s",
                    j->params->rank, j->root_text, j->params->timeout_ms * 1e-3, j->trouble);
}
