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

/* ---- life cycle ---- */

static void on_data(struct dsc_source *source, uint32_t events)
{
    struct tcp_link *const link = (struct tcp_link *)source; /* its first member */

    if ((events & EPOLLOUT) != 0)
        dsc_tcp_send(link);
    if ((events & ~(uint32_t)EPOLLOUT) != 0 && link->broken_errno == 0)
        dsc_tcp_receive(link, true);
}

/* A broken socket matters only if something should still go through it. */
static void judge_broken(struct tcp_link *link)
{
    struct dsc_conn *const conn = &link->tcp->base;
    const bool is_needed = link->rx_at < conn->rx_end || dsc_tcp_is_posted(link->tcp, link->tx_at);

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
    .tx_slot = dsc_tcp_tx_slot,
    .tx_post = dsc_tcp_tx_post,
    .tx_post_from = dsc_tcp_tx_post_from,
    .settle = dsc_tcp_settle,
    .rx_msg = dsc_tcp_rx_msg,
    .rx_release = dsc_tcp_rx_release,
    .rx_expect = dsc_tcp_rx_expect,
    .progress = tcp_progress,
    .arm = dsc_transport_no_arm,
    .flushed = tcp_flushed,
    .notify = tcp_notify,
    .shut = tcp_shut,
    .destroy = tcp_destroy,
};
