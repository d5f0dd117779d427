/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections of the rendezvous service. Each is first a stranger, who must prove the key within
 * seconds and is dropped with one warning otherwise; then a rank that owes its record; then one
 * that waits for the answer. None ever waits for another.
 */
#include "transport/bootstrap_root.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <unistd.h>

#include "transport/bytes.h"

#define PROOF_NS 5000000000u /* how long a stranger may take to prove the key */
#define SWEEP_NS 100000000u  /* how often strangers' deadlines are looked at */
#define STRANGERS_MAX 512    /* connections without proof; beyond, the oldest goes */
#define WARNINGS_MAX 16      /* strangers that are warned about, one line each */
#define SPARE_DESCRIPTORS 16 /* of the process, besides one per rank */

void dsc_root_watch(struct dsc_root *root, struct dsc_root_conn *conn, int fd, uint32_t events,
                    int op)
{
    struct epoll_event event = { .events = events, .data = { .ptr = conn } };

    if (epoll_ctl(root->epoll_fd, op, fd, &event) != 0)
        dsc_roster_fail(&root->roster, DSCOMM_ERR_SYSTEM, "rendezvous cannot watch a socket: %s",
                        strerror(errno));
}

/*
 * A child of fork() may hold a copy, which keeps a closed descriptor in the epoll set: it is taken
 * out first.
 */
static void forget(struct dsc_root *root, int fd)
{
    epoll_ctl(root->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

void dsc_root_conn_destroy(struct dsc_root *root, struct dsc_root_conn *conn)
{
    conn->prev->next = conn->next;
    conn->next->prev = conn->prev;
    if (conn->hs != NULL)
        root->n_strangers--;
    if (conn->has_record)
        root->n_ranks_open--;
    forget(root, conn->hs != NULL ? dsc_handshake_fd(conn->hs) : conn->fd);
    dsc_handshake_destroy(conn->hs);
    if (conn->fd >= 0)
        close(conn->fd);
    dsc_free(conn);
}

static void warn_dropped(struct dsc_root *root, const char *reason)
{
    root->n_warnings++;
    if (root->n_warnings <= WARNINGS_MAX)
        dsc_log_warn(BOOT, "rendezvous dropped a connection: %s", reason);
    if (root->n_warnings == WARNINGS_MAX)
        dsc_log_warn(BOOT, "rendezvous dropped %d connections, further ones are not shown",
                     WARNINGS_MAX);
}

void dsc_root_close_listener(struct dsc_root *root)
{
    if (root->listen_fd < 0)
        return;
    forget(root, root->listen_fd);
    shutdown(root->listen_fd, SHUT_RDWR); /* frees the port even if a child of fork() has a copy */
    close(root->listen_fd);
    root->listen_fd = -1;
}

static void add_stranger(struct dsc_root *root, int fd)
{
    static const struct dsc_hello nothing; /* said only after the proof */
    struct dsc_root_conn *const conn = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*conn));

    if (conn == NULL || dsc_handshake_create(fd, true, root->key, &nothing, dsc_now_ns() + PROOF_NS,
                                             &conn->hs) != DSCOMM_OK) {
        dsc_free(conn);
        close(fd);
        return;
    }
    conn->fd = -1;
    conn->next = &root->conns;
    conn->prev = root->conns.prev;
    conn->prev->next = conn;
    conn->next->prev = conn;
    root->n_strangers++;
    dsc_root_watch(root, conn, fd, EPOLLOUT, EPOLL_CTL_ADD);
}

static bool drop_oldest_stranger(struct dsc_root *root)
{
    for (struct dsc_root_conn *conn = root->conns.next; conn != &root->conns; conn = conn->next) {
        if (conn->hs == NULL)
            continue;
        warn_dropped(root, "too many that have not proved their key, this is the oldest");
        dsc_root_conn_destroy(root, conn);
        return true;
    }
    return false;
}

/*
 * Out of descriptors: strangers give theirs back. If ranks alone need more, the job cannot be; the
 * spare descriptor, and those of ranks that were told so, serve to tell the rest.
 */
static bool make_room(struct dsc_root *root)
{
    struct rlimit limit = { 0, 0 };

    if (drop_oldest_stranger(root))
        return true;
    getrlimit(RLIMIT_NOFILE, &limit);
    dsc_roster_fail(
        &root->roster, DSCOMM_ERR_LIMIT,
        "the rendezvous needs one descriptor per rank and %d more in its process, where "
        "the limit is %llu; raise RLIMIT_NOFILE (ulimit -n)",
        SPARE_DESCRIPTORS, (unsigned long long)limit.rlim_cur);
    if (root->spare_fd < 0)
        return false;
    close(root->spare_fd);
    root->spare_fd = -1;
    return true;
}

void dsc_root_accept(struct dsc_root *root)
{
    root->is_full = false;
    while (root->listen_fd >= 0) {
        const int fd = accept4(root->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            if (root->n_strangers >= STRANGERS_MAX)
                drop_oldest_stranger(root);
            add_stranger(root, fd);
        } else if (errno == EMFILE || errno == ENFILE) {
            root->is_full = !make_room(root);
            if (root->is_full)
                return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return; /* EAGAIN; errors of the network that accept() passes on are the peer's */
        }
    }
}

/* The key is proved: from here on a rank of the job speaks. */
static void begin_record(struct dsc_root *root, struct dsc_root_conn *conn)
{
    conn->fd = dsc_handshake_take_fd(conn->hs);
    dsc_handshake_destroy(conn->hs);
    conn->hs = NULL;
    root->n_strangers--;
    dsc_root_watch(root, conn, conn->fd, EPOLLIN, EPOLL_CTL_MOD);
}

static void step_handshake(struct dsc_root *root, struct dsc_root_conn *conn)
{
    static const struct dsc_hello mine = { .purpose = DSC_LINK_RENDEZVOUS, .rank = -1 };
    dscomm_status_t st = dsc_handshake_step(conn->hs);

    if (st == DSCOMM_IN_PROGRESS && dsc_handshake_wants_reply(conn->hs)) {
        if (dsc_handshake_peer(conn->hs)->purpose != DSC_LINK_RENDEZVOUS) {
            warn_dropped(root, "a rank took the rendezvous for another rank's listener");
            dsc_root_conn_destroy(root, conn);
            return;
        }
        dsc_handshake_reply(conn->hs, &mine);
        st = dsc_handshake_step(conn->hs);
    }
    if (st < 0) {
        warn_dropped(root, dsc_handshake_error(conn->hs));
        dsc_root_conn_destroy(root, conn);
    } else if (st == DSCOMM_OK) {
        begin_record(root, conn);
    } else {
        dsc_root_watch(root, conn, dsc_handshake_fd(conn->hs),
                       (uint32_t)dsc_handshake_events(conn->hs), EPOLL_CTL_MOD);
    }
}

static void take_record(struct dsc_root *root, struct dsc_root_conn *conn)
{
    struct dsc_record record = { 0 };
    const char *const wrong =
        dsc_record_decode(conn->rx + DSC_FRAME_BYTES, conn->rx_bytes - DSC_FRAME_BYTES, &record);

    conn->has_record = true;
    conn->rank = record.rank;
    root->n_ranks_open++;
    if (wrong != NULL) {
        char addr[DSC_ADDR_TEXT_BYTES];

        dsc_roster_fail(&root->roster, DSCOMM_ERR_CORRUPT,
                        "the record of a rank at %s is wrong: %s", dsc_addr_of_peer(conn->fd, addr),
                        wrong);
        return;
    }
    dsc_log_debug(BOOT, "rank %u of %u has come", record.rank, record.n_ranks);
    dsc_roster_admit(&root->roster, &record);
    /* After an error: this rank is told like all others, whose answer is on its way already. */
    if (root->answer != NULL)
        dsc_root_watch(root, conn, conn->fd, EPOLLOUT, EPOLL_CTL_MOD);
}

/* Bytes that the record lacks, or 0; more than fits is no record. */
static size_t record_lacks(const struct dsc_root_conn *conn)
{
    if (conn->rx_bytes < DSC_FRAME_BYTES)
        return DSC_FRAME_BYTES - conn->rx_bytes;
    return DSC_FRAME_BYTES + dsc_get_u32(conn->rx) - conn->rx_bytes;
}

static void lose_conn(struct dsc_root *root, struct dsc_root_conn *conn)
{
    if (conn->has_record)
        dsc_roster_fail(&root->roster, DSCOMM_ERR_PEER_LOST,
                        "rank %u left before all ranks had come", conn->rank);
    else
        warn_dropped(root, "a rank proved its key and left");
    dsc_root_conn_destroy(root, conn);
}

static void read_record(struct dsc_root *root, struct dsc_root_conn *conn)
{
    for (size_t n = record_lacks(conn); n > 0; n = record_lacks(conn)) {
        const ssize_t got = recv(conn->fd, conn->rx + conn->rx_bytes, n, MSG_DONTWAIT);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (got <= 0) {
            lose_conn(root, conn);
            return;
        }
        conn->rx_bytes += (size_t)got;
        if (conn->rx_bytes >= DSC_FRAME_BYTES && dsc_get_u32(conn->rx) > DSC_RECORD_MAX) {
            dsc_roster_fail(&root->roster, DSCOMM_ERR_CORRUPT,
                            "the record of a rank says it has %u bytes, the limit is %d",
                            dsc_get_u32(conn->rx), DSC_RECORD_MAX);
            dsc_root_conn_destroy(root, conn);
            return;
        }
    }
    take_record(root, conn);
}

/* A rank that waits for its answer says nothing: bytes or an end mean that it is gone. */
static void notice_end(struct dsc_root *root, struct dsc_root_conn *conn)
{
    uint8_t byte;
    const ssize_t got = recv(conn->fd, &byte, 1, MSG_DONTWAIT);

    if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK))
        return;
    lose_conn(root, conn);
}

static void write_answer(struct dsc_root *root, struct dsc_root_conn *conn)
{
    while (conn->tx_bytes < root->answer_bytes) {
        const ssize_t sent = send(conn->fd, root->answer + conn->tx_bytes,
                                  root->answer_bytes - conn->tx_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (sent < 0)
            break; /* the rank died; its peers will notice */
        conn->tx_bytes += (size_t)sent;
    }
    dsc_root_conn_destroy(root, conn);
}

void dsc_root_serve(struct dsc_root *root, struct dsc_root_conn *conn)
{
    if (conn->hs != NULL)
        step_handshake(root, conn);
    else if (!conn->has_record)
        read_record(root, conn);
    else if (root->answer != NULL)
        write_answer(root, conn);
    else
        notice_end(root, conn);
}

void dsc_root_sweep(struct dsc_root *root)
{
    const uint64_t now = dsc_now_ns();

    if (now < root->next_sweep_ns)
        return;
    root->next_sweep_ns = now + SWEEP_NS;
    for (struct dsc_root_conn *conn = root->conns.next; conn != &root->conns;) {
        struct dsc_root_conn *const next = conn->next;

        if (conn->hs != NULL && now >= dsc_handshake_deadline(conn->hs))
            step_handshake(root, conn);
        conn = next;
    }
}

void dsc_root_close_for_others(struct dsc_root *root)
{
    dsc_root_close_listener(root);
    for (struct dsc_root_conn *conn = root->conns.next; conn != &root->conns;) {
        struct dsc_root_conn *const next = conn->next;

        if (!conn->has_record)
            dsc_root_conn_destroy(root, conn);
        conn = next;
    }
}
