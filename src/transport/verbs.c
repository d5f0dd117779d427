/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA between hosts: messages are written into the peer's slots by the device. What completes is
 * polled for by progress; before the endpoint sleeps it asks for an event. Errors, goodbyes and the
 * peer's death are the control link's, a queue pair that gives up is told with device and reason.
 */
#include "transport/verbs_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

#include "transport/bytes.h"
#include "transport/header.h"
#include "transport/verbs_qp.h"

#define POLLED 16

/* ---- errors ---- */

static void give_up(struct verbs_conn *conn, dscomm_status_t status, const char *what,
                    const char *reason)
{
    struct dsc_conn *const base = &conn->base;
    const struct dsc_verbs_port *const port = &conn->device->port;
    char peer[DSC_PEER_TEXT_BYTES];

    conn->is_broken = true;
    if (base->peer_left) /* what it left unread does not matter; who needs it is told so */
        return;
    dsc_net_set_error(base->net, status, base->peer, "lost %s: %s on %s port %u: %s%s",
                      dsc_net_peer_text(base->net, base->peer, "verbs", peer), what, port->name,
                      port->number, reason, port->is_down ? "; the port is down" : "");
}

/* The first one says why; the others are flushed because of it. */
static void take_failure(struct verbs_conn *conn, const struct ibv_wc *wc)
{
    char reason[96];

    if (conn->is_broken)
        return;
    snprintf(reason, sizeof(reason), "%s (%d)", conn->verbs->wc_status_str(wc->status),
             (int)wc->status);
    give_up(conn, dsc_verbs_status(wc->status),
            wc->wr_id == DSC_VERBS_RECEIVE ? "receiving" : "sending", reason);
}

static void refuse(struct verbs_conn *conn, uint64_t index, const char *wrong)
{
    struct dsc_conn *const base = &conn->base;
    char peer[DSC_PEER_TEXT_BYTES];

    conn->is_broken = true;
    dsc_net_set_error(base->net, DSCOMM_ERR_CORRUPT, base->peer,
                      "message %llu from %s is damaged: %s", (unsigned long long)index,
                      dsc_net_peer_text(base->net, base->peer, "verbs", peer), wrong);
}

/* ---- requests ---- */

int dsc_verbs_post_receives(struct verbs_conn *conn, uint32_t n)
{
    struct ibv_recv_wr requests[POLLED], *bad;

    while (n > 0) {
        const uint32_t part = n < POLLED ? n : POLLED;

        for (uint32_t i = 0; i < part; i++)
            requests[i] = (struct ibv_recv_wr){
                .wr_id = DSC_VERBS_RECEIVE,
                .next = i + 1 < part ? &requests[i + 1] : NULL,
            };
        const int error = ibv_post_recv(conn->qp, requests, &bad);

        if (error != 0)
            return error;
        n -= part;
    }
    return 0;
}

/* Writes n bytes into the peer's memory and tells it with what. */
static void post_write(struct verbs_conn *conn, uint64_t id, const uint8_t *from, size_t n,
                       size_t to, uint32_t immediate)
{
    struct ibv_sge piece = {
        .addr = (uint64_t)(uintptr_t)from,
        .length = (uint32_t)n,
        .lkey = conn->tx_mr->lkey,
    };
    struct ibv_send_wr request = {
        .wr_id = id,
        .sg_list = &piece,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .send_flags = IBV_SEND_SIGNALED | (n <= conn->max_inline ? IBV_SEND_INLINE : 0),
        .imm_data = htonl(immediate),
        .wr = { .rdma = { .remote_addr = conn->peer_address + to, .rkey = conn->peer_key } },
    };
    struct ibv_send_wr *bad;
    const int error = ibv_post_send(conn->qp, &request, &bad);

    if (error != 0 && !conn->is_broken)
        give_up(conn, DSCOMM_ERR_SYSTEM, "posting", strerror(error));
}

/* Credit by itself, unless one is on its way: the next one says what this one would have. */
static void tell_credit(struct verbs_conn *conn)
{
    const uint32_t cell = conn->n_credits % conn->base.n_slots;

    if (conn->n_untold == 0 || conn->credit_in_flight || conn->is_broken || conn->base.peer_left)
        return;
    if (conn->device->port.is_down) /* it can wait; rxe fails at once what is sent now */
        return;
    dsc_put_u64(conn->cell, conn->released);
    conn->n_untold = 0;
    conn->n_credits++;
    conn->credit_in_flight = true;
    post_write(conn, DSC_VERBS_CREDIT, conn->cell, 8, 8 * (size_t)cell, DSC_VERBS_CREDIT | cell);
}

/* ---- completions ---- */

static void take_sent(struct verbs_conn *conn, uint64_t id)
{
    if (id == DSC_VERBS_CREDIT) {
        conn->credit_in_flight = false;
        return;
    }
    conn->tx_slots[id].in_flight = false;
    conn->n_in_flight--;
}

static const char *take_message(struct verbs_conn *conn, struct verbs_rx_slot *slot,
                                const uint8_t *memory, uint32_t n_written)
{
    struct dsc_header *const h = &slot->header;

    dsc_header_decode(memory + DSC_VERBS_HEADER_AT, h);
    const char *const wrong = dsc_header_check(h, conn->base.slot_bytes);

    if (wrong != NULL)
        return wrong;
    if (h->kind != DSC_MSG_DATA)
        return "no data message";
    if (n_written != DSC_VERBS_PAYLOAD_AT - DSC_VERBS_RELEASED_AT + h->payload_bytes)
        return "other size than its header says";
    conn->peer_released = dsc_get_u64(memory + DSC_VERBS_RELEASED_AT);
    slot->full = true;
    dsc_net_count(&conn->base.net->wire_rx_bytes, DSC_HEADER_BYTES + h->payload_bytes);
    return NULL;
}

static void take_received(struct verbs_conn *conn, const struct ibv_wc *wc)
{
    const uint32_t immediate = ntohl(wc->imm_data);
    const uint32_t at = immediate & ~DSC_VERBS_CREDIT;

    conn->n_taken++;
    if (wc->opcode != IBV_WC_RECV_RDMA_WITH_IMM || at >= conn->base.n_slots) {
        refuse(conn, 0, "it is for no slot");
        return;
    }
    if ((immediate & DSC_VERBS_CREDIT) != 0) {
        conn->peer_released = dsc_get_u64(conn->rx + 8 * (size_t)at);
        return;
    }
    struct verbs_rx_slot *const slot = &conn->rx_slots[at];
    const char *wrong = "its slot is taken";

    if (!slot->full)
        wrong = take_message(conn, slot,
                             conn->rx + dsc_verbs_cells_bytes(&conn->base) + at * conn->stride,
                             wc->byte_len);
    if (wrong != NULL)
        refuse(conn, slot->next, wrong);
}

/* True: something completed. */
static bool poll_queue(struct verbs_conn *conn)
{
    struct ibv_wc done[POLLED];
    bool any = false;
    int n;

    if (conn->is_broken)
        return false;
    do {
        n = ibv_poll_cq(conn->cq, POLLED, done);
        for (int i = 0; i < n; i++) {
            if (done[i].wr_id != DSC_VERBS_RECEIVE)
                take_sent(conn, done[i].wr_id);
            if (done[i].status != IBV_WC_SUCCESS)
                take_failure(conn, &done[i]);
            else if (done[i].wr_id == DSC_VERBS_RECEIVE && !conn->is_broken)
                take_received(conn, &done[i]);
        }
        any = any || n > 0;
    } while (n == POLLED);
    if (n < 0 && !conn->is_broken)
        give_up(conn, DSCOMM_ERR_SYSTEM, "polling", "the completion queue cannot be read");
    if (any)
        conn->base.net->n_completions++;
    if (conn->n_taken >= conn->base.n_slots && !conn->is_broken) {
        const int error = dsc_verbs_post_receives(conn, conn->n_taken);

        conn->n_taken = 0;
        if (error != 0)
            give_up(conn, DSCOMM_ERR_SYSTEM, "posting a receive", strerror(error));
    }
    return any;
}

/* ---- messages ---- */

static uint64_t bit_of(const struct dsc_conn *conn, uint64_t index)
{
    return (uint64_t)1 << (index % conn->n_slots);
}

static uint8_t *verbs_tx_slot(struct dsc_conn *base, uint64_t index)
{
    struct verbs_conn *const conn = dsc_verbs_of(base);
    const struct verbs_tx_slot *const slot = &conn->tx_slots[index % base->n_slots];

    if (slot->next == index && !slot->in_flight && !conn->is_broken &&
        ((conn->posted ^ conn->peer_released) & bit_of(base, index)) == 0)
        return conn->tx + index % base->n_slots * conn->stride + DSC_VERBS_PAYLOAD_AT;
    if (base->peer_left)
        dsc_net_left(base);
    return NULL;
}

static void verbs_tx_post(struct dsc_conn *base, uint64_t index, const struct dsc_header *header)
{
    struct verbs_conn *const conn = dsc_verbs_of(base);
    const uint32_t at = (uint32_t)(index % base->n_slots);
    struct verbs_tx_slot *const slot = &conn->tx_slots[at];
    uint8_t *const memory = conn->tx + at * conn->stride;
    struct dsc_header h = *header;

    h.magic = DSC_HEADER_MAGIC;
    h.version = DSC_HEADER_VERSION;
    h.kind = DSC_MSG_DATA;
    h.crc = 0;
    dsc_put_u64(memory + DSC_VERBS_RELEASED_AT, conn->released);
    dsc_header_encode(&h, memory + DSC_VERBS_HEADER_AT);
    conn->n_untold = 0;
    slot->next = index + base->n_slots;
    slot->in_flight = true;
    conn->posted ^= bit_of(base, index);
    conn->n_in_flight++;
    dsc_net_count(&base->net->wire_tx_bytes, DSC_HEADER_BYTES + h.payload_bytes);
    post_write(conn, at, memory + DSC_VERBS_RELEASED_AT,
               DSC_VERBS_PAYLOAD_AT - DSC_VERBS_RELEASED_AT + h.payload_bytes,
               dsc_verbs_cells_bytes(base) + at * conn->stride + DSC_VERBS_RELEASED_AT, at);
}

static const struct dsc_header *verbs_rx_msg(struct dsc_conn *base, uint64_t index,
                                             const uint8_t **payload_out)
{
    struct verbs_conn *const conn = dsc_verbs_of(base);
    const uint32_t at = (uint32_t)(index % base->n_slots);
    const struct verbs_rx_slot *const slot = &conn->rx_slots[at];

    if (slot->next != index || !slot->full)
        return NULL;
    *payload_out =
        conn->rx + dsc_verbs_cells_bytes(base) + at * conn->stride + DSC_VERBS_PAYLOAD_AT;
    return &slot->header;
}

static void verbs_rx_release(struct dsc_conn *base, uint64_t index)
{
    struct verbs_conn *const conn = dsc_verbs_of(base);
    struct verbs_rx_slot *const slot = &conn->rx_slots[index % base->n_slots];

    DSC_ASSERT(slot->next == index && slot->full);
    slot->next = index + base->n_slots;
    slot->full = false;
    conn->released ^= bit_of(base, index);
    /* half a window goes at once; less may go along with a message, else in progress */
    if (2 * ++conn->n_untold >= base->n_slots && base->n_slots > 1)
        tell_credit(conn);
}

static void verbs_rx_expect(struct dsc_conn *base, uint64_t end)
{
    base->rx_end = end;
}

/* ---- life cycle ---- */

static bool lacks_expected(const struct verbs_conn *conn)
{
    for (uint32_t i = 0; i < conn->base.n_slots; i++)
        if (conn->rx_slots[i].next < conn->base.rx_end && !conn->rx_slots[i].full)
            return true;
    return false;
}

static void verbs_progress(struct dsc_conn *base)
{
    struct verbs_conn *const conn = dsc_verbs_of(base);

    (void)poll_queue(conn);
    tell_credit(conn);
    if (base->peer_left && lacks_expected(conn))
        dsc_net_left(base);
}

static bool verbs_arm(struct dsc_conn *base)
{
    struct verbs_conn *const conn = dsc_verbs_of(base);

    tell_credit(conn);
    if (conn->is_broken)
        return true;
    if (!conn->is_armed && ibv_req_notify_cq(conn->cq, 0) == 0)
        conn->is_armed = true;
    return !poll_queue(conn) && conn->is_armed;
}

static void on_event(struct dsc_source *source, uint32_t events)
{
    struct verbs_conn *const conn =
        (struct verbs_conn *)((char *)source - offsetof(struct verbs_conn, events));
    struct ibv_cq *cq;
    void *context;

    (void)events;
    while (conn->verbs->get_cq_event(conn->channel, &cq, &context) == 0) {
        conn->verbs->ack_cq_events(cq, 1);
        conn->is_armed = false;
    }
}

static bool verbs_flushed(const struct dsc_conn *base)
{
    const struct verbs_conn *const conn = (const struct verbs_conn *)base;

    return conn->n_in_flight == 0 || conn->is_broken || base->peer_left;
}

static void verbs_notify(struct dsc_conn *base, dscomm_status_t status, int rank, const char *text)
{
    dsc_control_notify(&dsc_verbs_of(base)->control, status, rank, text);
}

static void verbs_shut(struct dsc_conn *base)
{
    dsc_control_shut(&dsc_verbs_of(base)->control);
}

static void verbs_destroy(struct dsc_conn *base)
{
    struct verbs_conn *const conn = dsc_verbs_of(base);

    base->net->n_polled--;
    dsc_control_close(&conn->control);
    dsc_verbs_discard(conn);
}

dscomm_status_t dsc_verbs_open(struct dsc_net *net, int peer, struct dsc_conn **conn_out)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    struct verbs_conn *const conn = setup->verbs;
    const int control_fd = setup->control_fd;
    const int fd = fcntl(conn->channel->fd, F_DUPFD_CLOEXEC, 0); /* its own is closed with it */

    setup->verbs = NULL;
    net->n_polled++;
    conn->events.on_event = on_event;
    dscomm_status_t st;

    if (fd < 0)
        st = dsc_fail_errno(DSCOMM_ERR_LIMIT, "no descriptor for a completion channel");
    else
        st = dsc_source_open(net, &conn->events, fd, EPOLLIN);
    if (st >= 0) {
        setup->control_fd = -1;
        st = dsc_control_open(&conn->control, &conn->base, control_fd);
    }
    if (st < 0) {
        verbs_destroy(&conn->base);
        return st;
    }
    *conn_out = &conn->base;
    return DSCOMM_OK;
}

static bool verbs_reaches(const struct dsc_peer_info *self, const struct dsc_peer_info *peer)
{
    return self->rdma_key != 0 && self->rdma_key == peer->rdma_key;
}

const struct dsc_transport_ops dsc_transport_verbs = {
    .name = "verbs",
    .wants_crc = false, /* every packet has one */
    .preference = 15,
    .reaches = verbs_reaches,
    .tx_slot = verbs_tx_slot,
    .tx_post = verbs_tx_post,
    .tx_post_from = dsc_transport_copy_post_from,
    .settle = dsc_transport_no_settle,
    .rx_msg = verbs_rx_msg,
    .rx_release = verbs_rx_release,
    .rx_expect = verbs_rx_expect,
    .progress = verbs_progress,
    .arm = verbs_arm,
    .flushed = verbs_flushed,
    .notify = verbs_notify,
    .shut = verbs_shut,
    .destroy = verbs_destroy,
};
