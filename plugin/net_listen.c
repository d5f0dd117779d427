/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening, and accepting: sockets that come, until all of a connection have proved their key.
 * Whoever reaches the port can open sockets and say nothing, so there is an end to how many wait
 * and for how long.
 */
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "net_meet.h"
#include "transport/bytes.h"

#define ACCEPTING_MAX 256
/* A socket that says nothing is a stranger's, */
#define STRANGER_MS 30000u
/* and where others need its place or its descriptor, much sooner. */
#define GRACE_MS 1000
#define STRANGER_WARNINGS 8

struct accepting {
    struct dsc_handshake *hs; /* NULL: free */
    uint64_t grace_ns;        /* not driven out before */
    uint64_t deadline_ns;     /* of the other sockets of its connection */
    bool proved;
};

struct listener {
    const struct net_kind *kind;
    int dev;
    int fd;
    int traffic_class;
    uint8_t key[NET_KEY_BYTES];
    uint64_t deadline_ns; /* of the connection that is waited for; 0: no accept() since the last */
    int n_strangers;      /* that failed */
    bool lacked_descriptors;
    char text[DSC_ADDR_TEXT_BYTES];
    struct accepting accepting[ACCEPTING_MAX];
    void *comm; /* proved, not settled */
};

static void put_handle(uint8_t *handle, const struct net_kind *kind, const union dsc_addr *addr,
                       const uint8_t key[NET_KEY_BYTES])
{
    memset(handle, 0, NCCL_HANDLE_BYTES);
    dsc_put_u64(handle, NET_HANDLE_MAGIC);
    dsc_put_u32(handle + NET_HANDLE_VERSION_AT, kind->version);
    dsc_put_u32(handle + NET_HANDLE_KIND_AT, kind->id);
    dsc_addr_encode(addr, handle + NET_HANDLE_ADDR_AT);
    memcpy(handle + NET_HANDLE_KEY_AT, key, NET_KEY_BYTES);
}

nccl_result_t net_listen(const struct net_kind *kind, void *ctx, int dev, void *handle,
                         void **listen_comm)
{
    const struct net_ctx *const context = ctx;
    const struct net_device *const device = kind->device(dev);
    uint8_t key[NET_KEY_BYTES];
    union dsc_addr addr;
    struct listener *listener;
    const struct dsc_env *env;

    *listen_comm = NULL;
    if (device == NULL) {
        net_warn("DSComm: there is no device %d, only %d", dev, kind->n_devices());
        return NCCL_INVALID_ARGUMENT;
    }
    if (dsc_env_get(&env) < 0)
        return NCCL_INVALID_USAGE;
    listener = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*listener));
    if (listener == NULL)
        return NCCL_SYSTEM_ERROR;
    addr = device->addr;
    if (dsc_netif_listen(&addr, &listener->fd) < 0) {
        dsc_free(listener);
        return NCCL_SYSTEM_ERROR;
    }
    listener->kind = kind;
    listener->dev = dev;
    listener->traffic_class = context != NULL ? context->traffic_class : NCCL_UNDEFINED;
    dsc_addr_text(&addr, listener->text);
    randombytes_buf(key, sizeof(key));
    put_handle(handle, kind, &addr, key);
    net_mix_secret(key, env->secret, listener->key);
    *listen_comm = listener;
    return NCCL_SUCCESS;
}

nccl_result_t net_close_listen(void *listen_comm)
{
    struct listener *const listener = listen_comm;

    if (listener == NULL)
        return NCCL_SUCCESS;
    for (int i = 0; i < ACCEPTING_MAX; i++)
        dsc_handshake_destroy(listener->accepting[i].hs);
    if (listener->comm != NULL)
        (void)listener->kind->close(listener->comm);
    close(listener->fd);
    sodium_memzero(listener->key, sizeof(listener->key));
    dsc_free(listener);
    return NCCL_SUCCESS;
}

/* ---- accepting: places ---- */

static void forget(struct accepting *a)
{
    dsc_handshake_destroy(a->hs);
    *a = (struct accepting){ 0 };
}

static struct accepting *free_place(struct listener *listener)
{
    for (int i = 0; i < ACCEPTING_MAX; i++) {
        if (listener->accepting[i].hs == NULL)
            return &listener->accepting[i];
    }
    return NULL;
}

static bool somebody_waits(const struct listener *listener)
{
    struct pollfd fd = { .fd = listener->fd, .events = POLLIN };

    return poll(&fd, 1, 0) == 1;
}

/* The one that has been silent for longest goes, if others wait and it had its time. */
static struct accepting *drive_out(struct listener *listener)
{
    struct accepting *oldest = NULL;

    for (int i = 0; i < ACCEPTING_MAX; i++) {
        struct accepting *const a = &listener->accepting[i];

        if (a->hs != NULL && !a->proved && (oldest == NULL || a->grace_ns < oldest->grace_ns))
            oldest = a;
    }
    if (oldest == NULL || dsc_now_ns() < oldest->grace_ns || !somebody_waits(listener))
        return NULL;
    forget(oldest);
    return oldest;
}

/* ---- accepting: sockets that come ---- */

/* True: there may be more. */
static bool accept_failed(struct listener *listener, int error)
{
    if (error == EAGAIN || error == EWOULDBLOCK)
        return false;
    if (error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM)
        return true; /* it was gone again */
    if (!listener->lacked_descriptors)
        net_warn("DSComm: at %s: cannot accept: %s; connections wait until descriptors or memory "
                 "are free (ulimit -n)",
                 listener->text, strerror(error));
    listener->lacked_descriptors = true;
    return drive_out(listener) != NULL;
}

static void accept_one(struct listener *listener, struct accepting *place, int fd,
                       uint64_t timeout_ms)
{
    const int one = 1, stranger_ms = (int)dsc_min_u64(timeout_ms, STRANGER_MS);

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (dsc_handshake_create(fd, true, listener->key, NULL, dsc_deadline_ns(stranger_ms),
                             &place->hs) < 0) {
        close(fd);
        return;
    }
    place->grace_ns = dsc_deadline_ns(GRACE_MS);
    place->deadline_ns = dsc_deadline_ns((int)timeout_ms);
}

/* Not without end: somebody may connect as fast as this accepts. */
static void accept_new(struct listener *listener, uint64_t timeout_ms)
{
    for (int i = 0; i < ACCEPTING_MAX; i++) {
        struct accepting *place = free_place(listener);
        int fd;

        if (place == NULL)
            place = drive_out(listener);
        if (place == NULL)
            return;
        fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            accept_one(listener, place, fd, timeout_ms);
        else if (!accept_failed(listener, errno))
            return;
    }
}

/* ---- accepting: their proofs ---- */

static void warn_of_stranger(struct listener *listener, const char *error)
{
    if (listener->n_strangers++ < STRANGER_WARNINGS)
        net_warn("DSComm: at %s: %s%s", listener->text, error,
                 listener->n_strangers == STRANGER_WARNINGS ? "; more of these are not reported"
                                                            : "");
}

/* One socket's handshake. */
static nccl_result_t accept_step(struct listener *listener, struct accepting *a)
{
    dscomm_status_t st = dsc_handshake_step(a->hs);
    nccl_result_t result = NCCL_SUCCESS;

    if (st == DSCOMM_IN_PROGRESS && dsc_handshake_wants_reply(a->hs)) {
        const struct dsc_hello *const peer = dsc_handshake_peer(a->hs);
        const struct dsc_hello mine = net_own_hello(
            listener->kind, peer->job, (int)(peer->index & 0xff), (int)(peer->n_socks & 0xff));
        char text[DSC_ADDR_TEXT_BYTES];

        result =
            net_check_hello(listener->kind, peer, dsc_addr_of_peer(dsc_handshake_fd(a->hs), text));
        dsc_handshake_reply(a->hs, &mine);
        st = dsc_handshake_step(a->hs);
    }
    if (st < 0)
        warn_of_stranger(listener, dsc_handshake_error(a->hs));
    if (st < 0 || result != NCCL_SUCCESS)
        forget(a);
    else
        a->proved = st == DSCOMM_OK;
    return result;
}

/* A connection that the peer has given up before all of its sockets were here. */
static bool is_given_up(const struct accepting *a)
{
    char byte;

    return dsc_now_ns() >= a->deadline_ns ||
           recv(dsc_handshake_fd(a->hs), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

/* All sockets of the connection that socket a belongs to, if they are there. */
static bool collect(struct listener *listener, const struct accepting *a,
                    struct accepting *places[NET_SOCKS_MAX])
{
    const struct dsc_hello *const first = dsc_handshake_peer(a->hs);
    uint32_t found = 0;

    for (int k = 0; k < ACCEPTING_MAX; k++) {
        struct accepting *const other = &listener->accepting[k];
        const struct dsc_hello *peer;

        if (!other->proved)
            continue;
        peer = dsc_handshake_peer(other->hs);
        if (peer->job != first->job || peer->n_socks != first->n_socks)
            continue;
        places[peer->index] = other;
        found |= 1u << peer->index;
    }
    return found == (1u << first->n_socks) - 1;
}

static nccl_result_t accept_collected(struct listener *listener,
                                      struct accepting *const places[NET_SOCKS_MAX],
                                      uint64_t timeout_ms, void **recv_comm)
{
    const int n = (int)dsc_handshake_peer(places[0]->hs)->n_socks;
    struct dsc_handshake *socks[NET_SOCKS_MAX];

    for (int i = 0; i < n; i++) {
        socks[i] = places[i]->hs;
        *places[i] = (struct accepting){ 0 };
    }
    listener->deadline_ns = 0;
    listener->comm = net_open_comm(listener->kind, listener->dev, false, socks, n,
                                   listener->traffic_class, timeout_ms);
    return listener->comm != NULL ? net_settle(listener->kind, &listener->comm, recv_comm)
                                  : (nccl_result_t)NCCL_SYSTEM_ERROR;
}

nccl_result_t net_accept(void *listen_comm, void **recv_comm, struct nccl_device_handle **device)
{
    struct listener *const listener = listen_comm;
    struct accepting *places[NET_SOCKS_MAX];
    const struct dsc_env *env;

    (void)device;
    *recv_comm = NULL;
    if (dsc_env_get(&env) < 0)
        return NCCL_INVALID_USAGE;
    if (listener->comm != NULL)
        return net_settle(listener->kind, &listener->comm, recv_comm);
    if (listener->deadline_ns == 0)
        listener->deadline_ns = dsc_deadline_ns((int)env->timeout_ms);
    accept_new(listener, env->timeout_ms);
    for (int i = 0; i < ACCEPTING_MAX; i++) {
        struct accepting *const a = &listener->accepting[i];

        if (a->hs != NULL && !a->proved) {
            const nccl_result_t result = accept_step(listener, a);

            if (result != NCCL_SUCCESS)
                return result;
        }
        if (a->proved && collect(listener, a, places))
            return accept_collected(listener, places, env->timeout_ms, recv_comm);
        if (a->proved && is_given_up(a))
            forget(a);
    }
    if (dsc_now_ns() < listener->deadline_ns)
        return NCCL_SUCCESS;
    net_warn("DSComm: nobody connected to %s in %llu ms; does every host run this plugin?%s",
             listener->text, (unsigned long long)env->timeout_ms,
             listener->lacked_descriptors ? " There were no descriptors (ulimit -n)" : "");
    return NCCL_REMOTE_ERROR;
}
