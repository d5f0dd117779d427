/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TCP between hosts, or where shared memory does not reach. A post sends at once as much as the
 * socket takes, the rest when epoll says so, several messages per call when they have piled up.
 * Buffer sizes are left to the kernel: setting them turns its tuning off. A slot is free again as
 * soon as the kernel has its bytes; the receiver's window works through TCP's own.
 */
#include "transport/tcp_internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "transport/header.h"

#define IOV_MAX_USED 8
/* Data and control sockets end together; when the control link stays silent longer, it is stuck. */
#define VERDICT_NS 500000000u

void dsc_tcp_want(struct tcp_link *link, uint32_t events)
{
    struct dsc_net *const net = link->tcp->base.net;

    net->n_blocked -= (link->source.events & EPOLLOUT) != 0;
    dsc_source_want(net, &link->source, events);
    net->n_blocked += (link->source.events & EPOLLOUT) != 0;
}

void dsc_tcp_broken(struct tcp_link *link, int error)
{
    if (link->broken_errno != 0)
        return;
    link->broken_errno = error;
    link->broken_ns = dsc_now_ns();
    dsc_tcp_want(link, 0);
}

/* ---- sending ---- */

static bool is_posted(const struct tcp_conn *tcp, uint64_t index)
{
    const struct tcp_slot *const slot = dsc_tcp_slot(&tcp->tx, index);

    return slot->next == index && slot->full;
}

static size_t wire_bytes(const struct tcp_conn *tcp, uint64_t index)
{
    return DSC_HEADER_BYTES + dsc_tcp_header(&tcp->tx, index)->payload_bytes;
}

/* What is left of a message after its first `done` bytes, in one part or two; their number. */
static int split_message(const struct tcp_conn *tcp, uint64_t index, size_t done,
                         struct iovec iov[2])
{
    const uint8_t *const payload = dsc_tcp_slot(&tcp->tx, index)->payload;
    uint8_t *const wire = dsc_tcp_wire(&tcp->tx, index);
    const size_t n_header = done < DSC_HEADER_BYTES ? DSC_HEADER_BYTES - done : 0;
    const size_t n_rest = wire_bytes(tcp, index) - done;

    if (payload == NULL || n_rest == n_header) {
        iov[0] = (struct iovec){ wire + done, n_rest };
        return 1;
    }
    iov[0] = (struct iovec){ wire + done, n_header };
    /* sendmsg() only reads: its vectors are those of readers too */
    iov[n_header > 0] =
        (struct iovec){ (void *)(uintptr_t)(payload + done + n_header - DSC_HEADER_BYTES),
                        n_rest - n_header };
    return n_header > 0 ? 2 : 1;
}

static int gather(const struct tcp_link *link, struct iovec iov[IOV_MAX_USED])
{
    const struct tcp_conn *const tcp = link->tcp;
    uint64_t index = link->tx_at;
    size_t done = link->tx_done;
    int n = 0;

    for (; n + 2 <= IOV_MAX_USED && is_posted(tcp, index); index += tcp->n_links, done = 0)
        n += split_message(tcp, index, done, iov + n);
    return n;
}

static void sent_bytes(struct tcp_link *link, size_t n)
{
    struct tcp_conn *const tcp = link->tcp;

    dsc_net_count(&tcp->base.net->wire_tx_bytes, n);
    link->tx_done += n;
    while (is_posted(tcp, link->tx_at) && link->tx_done >= wire_bytes(tcp, link->tx_at)) {
        link->tx_done -= wire_bytes(tcp, link->tx_at);
        dsc_tcp_finish(&tcp->tx, dsc_tcp_slot(&tcp->tx, link->tx_at));
        tcp->n_unsent--;
        link->tx_at += tcp->n_links;
    }
}

static void send_posted(struct tcp_link *link)
{
    struct iovec iov[IOV_MAX_USED];

    while (link->broken_errno == 0) {
        const int n_iov = gather(link, iov);
        const struct msghdr msg = { .msg_iov = iov, .msg_iovlen = (size_t)n_iov };

        if (n_iov == 0) {
            dsc_tcp_want(link, link->source.events & ~(uint32_t)EPOLLOUT);
            return;
        }
        const ssize_t n = sendmsg(link->source.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n >= 0) {
            sent_bytes(link, (size_t)n);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            dsc_tcp_want(link, link->source.events | EPOLLOUT);
            return;
        } else if (errno != EINTR) {
            dsc_tcp_broken(link, errno);
        }
    }
}

static uint8_t *tcp_tx_slot(struct dsc_conn *conn, uint64_t index)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);
    struct tcp_slot *const slot = dsc_tcp_slot(&tcp->tx, index);

    if (slot->next != index || slot->full)
        return NULL;
    dsc_tcp_lend(&tcp->tx, slot);
    return dsc_tcp_wire(&tcp->tx, index) + DSC_HEADER_BYTES;
}

/* payload: NULL, or where it is if not in the slot. */
static void post(struct dsc_conn *conn, uint64_t index, const struct dsc_header *header,
                 const uint8_t *payload)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);
    struct dsc_header *const h = dsc_tcp_header(&tcp->tx, index);
    struct tcp_slot *const slot = dsc_tcp_slot(&tcp->tx, index);
    uint8_t *const wire = dsc_tcp_wire(&tcp->tx, index);
    struct tcp_link *const link = dsc_tcp_link_of(tcp, index);

    *h = *header;
    h->magic = DSC_HEADER_MAGIC;
    h->version = DSC_HEADER_VERSION;
    h->kind = DSC_MSG_DATA;
    h->crc = 0;
    if (tcp->crc)
        h->crc = dsc_header_crc(h, payload != NULL ? payload : wire + DSC_HEADER_BYTES);
    dsc_header_encode(h, wire);
    slot->payload = payload;
    slot->full = true;
    tcp->n_unsent++;
    if ((link->source.events & EPOLLOUT) == 0) /* else the socket is full */
        send_posted(link);
}

static void tcp_tx_post(struct dsc_conn *conn, uint64_t index, const struct dsc_header *header)
{
    post(conn, index, header, NULL);
}

static void tcp_tx_post_from(struct dsc_conn *conn, uint64_t index, const struct dsc_header *header,
                             const uint8_t *payload)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);

    dsc_tcp_lend(&tcp->tx, dsc_tcp_slot(&tcp->tx, index)); /* for the header */
    post(conn, index, header, payload);
}

static void tcp_settle(struct dsc_conn *conn)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);

    for (uint32_t i = 0; i < conn->n_slots; i++) {
        struct tcp_slot *const slot = &tcp->tx.slots[i];

        if (!slot->full || slot->payload == NULL)
            continue;
        memcpy(dsc_tcp_wire(&tcp->tx, slot->next) + DSC_HEADER_BYTES, slot->payload,
               dsc_tcp_header(&tcp->tx, slot->next)->payload_bytes);
        slot->payload = NULL;
    }
}

/* ---- life cycle ---- */

static void on_data(struct dsc_source *source, uint32_t events)
{
    struct tcp_link *const link = (struct tcp_link *)source; /* its first member */

    if ((events & EPOLLOUT) != 0)
        send_posted(link);
    if ((events & ~(uint32_t)EPOLLOUT) != 0 && link->broken_errno == 0)
        dsc_tcp_receive(link, true);
}

/* A broken socket matters only if something should still go through it. */
static void judge_broken(struct tcp_link *link)
{
    struct dsc_conn *const conn = &link->tcp->base;
    const bool is_needed = link->rx_at < conn->rx_end || is_posted(link->tcp, link->tx_at);

    if (link->broken_errno == 0 || !is_needed || conn->net->error != DSCOMM_OK)
        return;
    if (conn->peer_left)
        dsc_net_left(conn);
    else if (dsc_now_ns() - link->broken_ns > VERDICT_NS)
        dsc_net_lost(conn, link->broken_errno > 0 ? strerror(link->broken_errno)
                                                  : "data connection closed");
}

static void tcp_progress(struct dsc_conn *conn)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);
    const bool direct = dsc_net_is_direct(conn->net);

    for (uint32_t i = 0; i < tcp->n_links; i++) {
        if (tcp->links[i].rx_ready || (direct && !tcp->links[i].rx_muted))
            dsc_tcp_receive(&tcp->links[i], false);
        if (tcp->links[i].broken_errno != 0)
            judge_broken(&tcp->links[i]);
    }
}

static bool tcp_flushed(const struct dsc_conn *conn)
{
    const struct tcp_conn *const tcp = (const struct tcp_conn *)conn;

    return tcp->n_unsent == 0;
}

static void tcp_notify(struct dsc_conn *conn, dscomm_status_t status, int rank, const char *text)
{
    dsc_control_notify(&dsc_tcp_of(conn)->control, status, rank, text);
}

static void tcp_shut(struct dsc_conn *conn)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);

    for (uint32_t i = 0; i < tcp->n_links; i++)
        if (tcp->links[i].source.fd >= 0)
            (void)shutdown(tcp->links[i].source.fd, SHUT_WR);
    dsc_control_shut(&tcp->control);
}

static void free_side(struct tcp_side *side)
{
    dsc_free(side->memory);
    dsc_free(side->slots);
    dsc_free(side->headers);
    dsc_free(side->places);
}

static void tcp_destroy(struct dsc_conn *conn)
{
    struct tcp_conn *const tcp = dsc_tcp_of(conn);

    for (uint32_t i = 0; i < tcp->n_links; i++) {
        if (tcp->links[i].source.fd >= 0)
            conn->net->n_streams--;
        if ((tcp->links[i].source.events & EPOLLOUT) != 0)
            conn->net->n_blocked--;
        dsc_source_close(conn->net, &tcp->links[i].source);
        dsc_free(tcp->links[i].stash);
    }
    dsc_control_close(&tcp->control);
    free_side(&tcp->tx);
    free_side(&tcp->rx);
    dsc_free(tcp);
}

static dscomm_status_t alloc_side(struct tcp_side *side, const struct dsc_conn *conn)
{
    const uint32_t n = conn->n_slots;

    side->stride = 64 + dsc_round_up(conn->slot_bytes, 64);
    side->memory = dsc_calloc(DSC_MEM_TRANSPORT, n, side->stride);
    side->slots = dsc_calloc(DSC_MEM_TRANSPORT, n, sizeof(*side->slots));
    side->headers = dsc_calloc(DSC_MEM_TRANSPORT, n, sizeof(*side->headers));
    side->places = dsc_calloc(DSC_MEM_TRANSPORT, n, sizeof(*side->places));
    if (side->memory == NULL || side->slots == NULL || side->headers == NULL ||
        side->places == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for %u slots of %zu bytes", n,
                        conn->slot_bytes);
    side->n_slots = side->n_places = n;
    for (uint32_t i = 0; i < n; i++) {
        side->slots[i] = (struct tcp_slot){ .next = i, .place = DSC_TCP_NO_PLACE };
        side->places[i] = n - 1 - i;
    }
    return DSCOMM_OK;
}

static dscomm_status_t open_link(struct tcp_conn *tcp, uint32_t at, struct dsc_setup *setup)
{
    struct tcp_link *const link = &tcp->links[at];
    const int fd = setup->data_fds[at];
    const int one = 1;

    link->tcp = tcp;
    link->tx_at = link->rx_at = at;
    link->source.on_event = on_data;
    link->stash = dsc_calloc(DSC_MEM_TRANSPORT, 1, DSC_TCP_HINT_MAX);
    if (link->stash == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for a receive buffer");
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setup->has_data &= ~(1u << at);
    tcp->base.net->n_streams++;
    return dsc_source_open(tcp->base.net, &link->source, fd, EPOLLIN);
}

dscomm_status_t dsc_tcp_open(struct dsc_net *net, int peer, struct dsc_conn **conn_out)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    struct tcp_conn *const tcp = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*tcp));
    dscomm_status_t st;

    if (tcp == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for a tcp connection");
    tcp->base = (struct dsc_conn){
        .ops = &dsc_transport_tcp,
        .net = net,
        .peer = peer,
        .slot_bytes = net->params.slot_bytes,
        .n_slots = net->params.n_slots,
    };
    tcp->n_links = net->params.n_socks;
    tcp->crc = net->params.crc;
    tcp->control.conn = &tcp->base;
    tcp->control.source.fd = -1;
    for (uint32_t i = 0; i < tcp->n_links; i++)
        tcp->links[i].source.fd = -1;

    DSC_TRY_GOTO(err, alloc_side(&tcp->tx, &tcp->base));
    DSC_TRY_GOTO(err, alloc_side(&tcp->rx, &tcp->base));
    for (uint32_t i = 0; i < tcp->n_links; i++)
        DSC_TRY_GOTO(err, open_link(tcp, i, setup));
    const int fd = setup->control_fd;

    setup->control_fd = -1;
    DSC_TRY_GOTO(err, dsc_control_open(&tcp->control, &tcp->base, fd));
    *conn_out = &tcp->base;
    return DSCOMM_OK;

err:
    tcp_destroy(&tcp->base);
    return st;
}

static bool tcp_reaches(const struct dsc_peer_info *self, const struct dsc_peer_info *peer)
{
    (void)self, (void)peer;
    return true;
}

const struct dsc_transport_ops dsc_transport_tcp = {
    .name = "tcp",
    .wants_crc = true,
    .reads_once = true,
    .preference = 10,
    .reaches = tcp_reaches,
    .tx_slot = tcp_tx_slot,
    .tx_post = tcp_tx_post,
    .tx_post_from = tcp_tx_post_from,
    .settle = tcp_settle,
    .rx_msg = dsc_tcp_rx_msg,
    .rx_release = dsc_tcp_rx_release,
    .rx_expect = dsc_tcp_rx_expect,
    .progress = tcp_progress,
    .flushed = tcp_flushed,
    .notify = tcp_notify,
    .shut = tcp_shut,
    .destroy = tcp_destroy,
};
