/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any net plugin of NCCL's as a transport. Receives of all messages that the call expects are
 * posted into the free slots; sends are handed over in the order of messages. Nothing of a plugin
 * wakes a sleeper, so progress asks for all requests, and the endpoint sleeps for moments only.
 * Errors, goodbyes and the peer's death are the control link's; what the plugin says of its
 * connection is judged beside that.
 */
#include <stdio.h>
#include <string.h>

#include "transport/header.h"
#include "transport/nccl_net_internal.h"

/* A peer's end breaks the plugin's connection too; when the control link stays silent longer, it is
 * the plugin's own failure. */
#define VERDICT_NS 500000000u
/* For what a peer that left has sent, without an end of it that the plugin would tell. */
#define LEFT_NS 5000000000u
/* Plugins fill in as many sizes as receives, one; NCCL's array has room for these. */
#define SIZES 64

/* ---- errors ---- */

void dsc_nccl_failed(struct nccl_side *side, const char *call, nccl_result_t result)
{
    if (side->failed_call != NULL)
        return;
    side->failed_call = call;
    side->failure = dsc_nccl_status(result);
    (void)dsc_nccl_result_text(result, side->failure_text);
    side->failed_ns = dsc_now_ns();
}

static void refuse(struct nccl_conn *conn, uint64_t index, const char *wrong)
{
    struct dsc_conn *const base = &conn->base;
    char peer[DSC_PEER_TEXT_BYTES];

    dsc_net_set_error(base->net, DSCOMM_ERR_CORRUPT, base->peer,
                      "message %llu from %s is damaged: %s; over %s", (unsigned long long)index,
                      dsc_net_peer_text(base->net, base->peer, base->ops->name, peer), wrong,
                      conn->plugin->text);
}

static bool lacks_expected(const struct nccl_conn *conn)
{
    for (uint32_t i = 0; i < conn->base.n_slots; i++)
        if (conn->rx.slots[i].next < conn->base.rx_end && !conn->rx.slots[i].full)
            return true;
    return false;
}

/* Was a call of it refused, and is there nothing that was accepted before? */
static bool is_dead(const struct nccl_side *side)
{
    return side->failed_call != NULL && side->oldest == side->at;
}

/* A failure matters only if something should still go through that side. */
static void judge_failure(struct nccl_conn *conn, const struct nccl_side *side, bool is_needed)
{
    struct dsc_conn *const base = &conn->base;
    char peer[DSC_PEER_TEXT_BYTES];

    if (!is_dead(side) || !is_needed || dsc_now_ns() - side->failed_ns < VERDICT_NS)
        return;
    dsc_net_set_error(base->net, side->failure, base->peer, "lost %s: %s of %s: %s",
                      dsc_net_peer_text(base->net, base->peer, base->ops->name, peer),
                      side->failed_call, conn->plugin->text, side->failure_text);
}

static void judge_absence(struct nccl_conn *conn)
{
    const uint64_t now_ns = dsc_now_ns();

    if (conn->left_ns == 0)
        conn->left_ns = now_ns;
    if (conn->base.is_joining ||
        (lacks_expected(conn) && (is_dead(&conn->rx) || now_ns - conn->left_ns > LEFT_NS)))
        dsc_net_left(&conn->base);
}

/* ---- sending ---- */

static void hand_over_sends(struct nccl_conn *conn)
{
    struct nccl_side *const tx = &conn->tx;

    while (tx->failed_call == NULL && tx->at - tx->oldest < NCCL_REQUESTS_MAX) {
        struct nccl_slot *const slot = dsc_nccl_slot(tx, conn, tx->at);

        if (slot->next != tx->at || !slot->full)
            return;
        const nccl_result_t result =
            conn->plugin->net->isend(tx->comm, dsc_nccl_wire(tx, conn, tx->at), slot->bytes,
                                     conn->base.net->rank, tx->mr, NULL, &slot->request);

        if (result != NCCL_SUCCESS)
            dsc_nccl_failed(tx, "isend", result);
        if (result != NCCL_SUCCESS || slot->request == NULL)
            return; /* NULL: later */
        dsc_net_count(&conn->base.net->wire_tx_bytes, slot->bytes);
        tx->at++;
    }
}

/*
 * True: done, with so many bytes. After an error no request of this side is asked for any more;
 * those before it were.
 */
static bool is_done(struct nccl_conn *conn, struct nccl_side *side, struct nccl_slot *slot,
                    int *bytes_out)
{
    int sizes[SIZES] = { 0 };
    int done = 0;
    const nccl_result_t result = conn->plugin->net->test(slot->request, &done, sizes);

    if (result != NCCL_SUCCESS) {
        dsc_nccl_failed(side, "test", result);
        side->oldest = side->at;
        return false;
    }
    if (done == 0)
        return false;
    slot->request = NULL;
    *bytes_out = sizes[0];
    conn->base.net->n_completions++;
    return true;
}

static void test_sends(struct nccl_conn *conn)
{
    struct nccl_side *const tx = &conn->tx;
    int unused;

    for (uint64_t i = tx->oldest; i < tx->at && i >= tx->oldest; i++) {
        struct nccl_slot *const slot = dsc_nccl_slot(tx, conn, i);

        if (slot->next == i && is_done(conn, tx, slot, &unused)) {
            *slot = (struct nccl_slot){ .next = i + conn->base.n_slots };
            conn->n_unsent--;
        }
        if (i == tx->oldest && slot->next != i)
            tx->oldest++;
    }
}

static uint8_t *nccl_tx_slot(struct dsc_conn *base, uint64_t index)
{
    struct nccl_conn *const conn = dsc_nccl_of(base);
    const struct nccl_slot *const slot = dsc_nccl_slot(&conn->tx, conn, index);

    if (slot->next != index || slot->full)
        return NULL;
    return dsc_nccl_wire(&conn->tx, conn, index) + DSC_HEADER_BYTES;
}

static void nccl_tx_post(struct dsc_conn *base, uint64_t index, const struct dsc_header *header)
{
    struct nccl_conn *const conn = dsc_nccl_of(base);
    struct nccl_slot *const slot = dsc_nccl_slot(&conn->tx, conn, index);
    uint8_t *const wire = dsc_nccl_wire(&conn->tx, conn, index);
    struct dsc_header h = *header;

    DSC_ASSERT(slot->next == index && !slot->full && h.payload_bytes <= base->slot_bytes);
    h.magic = DSC_HEADER_MAGIC;
    h.version = DSC_HEADER_VERSION;
    h.kind = DSC_MSG_DATA;
    h.crc = conn->crc ? dsc_header_crc(&h, wire + DSC_HEADER_BYTES) : 0;
    dsc_header_encode(&h, wire);
    slot->bytes = DSC_HEADER_BYTES + h.payload_bytes;
    slot->full = true;
    conn->n_unsent++;
    dsc_nccl_hush(true);
    if (!base->is_joining)
        hand_over_sends(conn);
    dsc_nccl_hush(false);
}

/* ---- receiving ---- */

/* Only what will come: a receive that is still posted when the peer leaves is an error. */
static void post_receives(struct nccl_conn *conn)
{
    struct nccl_side *const rx = &conn->rx;

    while (rx->failed_call == NULL && rx->at < conn->base.rx_end &&
           rx->at - rx->oldest < NCCL_REQUESTS_MAX) {
        struct nccl_slot *const slot = dsc_nccl_slot(rx, conn, rx->at);
        void *data = dsc_nccl_wire(rx, conn, rx->at), *profiler = NULL;
        size_t bytes = DSC_HEADER_BYTES + conn->base.slot_bytes;
        int tag = conn->base.peer; /* what the peer sends with */

        if (slot->next != rx->at || slot->full)
            return;
        const nccl_result_t result = conn->plugin->net->irecv(rx->comm, 1, &data, &bytes, &tag,
                                                              &rx->mr, &profiler, &slot->request);

        if (result != NCCL_SUCCESS)
            dsc_nccl_failed(rx, "irecv", result);
        if (result != NCCL_SUCCESS || slot->request == NULL)
            return; /* NULL: later */
        rx->at++;
    }
}

/* What came is whatever the peer, and the plugin, say it is. */
static void take_message(struct nccl_conn *conn, uint64_t index, int bytes)
{
    struct nccl_slot *const slot = dsc_nccl_slot(&conn->rx, conn, index);
    const uint8_t *const wire = dsc_nccl_wire(&conn->rx, conn, index);
    struct dsc_header *const h = &slot->header;
    const char *wrong;

    if (bytes < DSC_HEADER_BYTES || (size_t)bytes > DSC_HEADER_BYTES + conn->base.slot_bytes) {
        refuse(conn, index, "its size, as the plugin tells it, is not one of a message");
        return;
    }
    dsc_header_decode(wire, h);
    wrong = dsc_header_check(h, conn->base.slot_bytes);
    if (wrong == NULL && h->kind != DSC_MSG_DATA)
        wrong = "no data message";
    if (wrong == NULL && DSC_HEADER_BYTES + (size_t)h->payload_bytes != (size_t)bytes)
        wrong = "its size, as the plugin tells it, is not that of its header";
    if (wrong == NULL && conn->crc && h->crc != dsc_header_crc(h, wire + DSC_HEADER_BYTES))
        wrong = "checksum";
    if (wrong != NULL) {
        refuse(conn, index, wrong);
        return;
    }
    slot->full = true;
    dsc_net_count(&conn->base.net->wire_rx_bytes, (uint64_t)bytes);
}

static void test_receives(struct nccl_conn *conn)
{
    struct nccl_side *const rx = &conn->rx;
    int bytes;

    for (uint64_t i = rx->oldest; i < rx->at && i >= rx->oldest; i++) {
        struct nccl_slot *const slot = dsc_nccl_slot(rx, conn, i);

        if (slot->next == i && slot->request != NULL && is_done(conn, rx, slot, &bytes)) {
            conn->left_ns = 0;
            take_message(conn, i, bytes);
        }
        if (i == rx->oldest && slot->request == NULL)
            rx->oldest++;
    }
}

static const struct dsc_header *nccl_rx_msg(struct dsc_conn *base, uint64_t index,
                                            const uint8_t **payload_out)
{
    struct nccl_conn *const conn = dsc_nccl_of(base);
    const struct nccl_slot *const slot = dsc_nccl_slot(&conn->rx, conn, index);

    if (slot->next != index || !slot->full)
        return NULL;
    *payload_out = dsc_nccl_wire(&conn->rx, conn, index) + DSC_HEADER_BYTES;
    return &slot->header;
}

static void nccl_rx_release(struct dsc_conn *base, uint64_t index)
{
    struct nccl_conn *const conn = dsc_nccl_of(base);
    struct nccl_slot *const slot = dsc_nccl_slot(&conn->rx, conn, index);

    DSC_ASSERT(slot->next == index && slot->full);
    *slot = (struct nccl_slot){ .next = index + base->n_slots };
}

static void nccl_rx_expect(struct dsc_conn *base, uint64_t end)
{
    if (base->rx_end != end)
        base->net->n_completions++; /* a call begins: it does not nap at once */
    base->rx_end = end;
    dsc_nccl_of(base)->left_ns = 0;
    dsc_nccl_hush(true);
    if (!base->is_joining)
        post_receives(dsc_nccl_of(base));
    dsc_nccl_hush(false);
}

/* ---- life cycle ---- */

static void move_messages(struct nccl_conn *conn)
{
    test_sends(conn);
    hand_over_sends(conn);
    test_receives(conn);
    post_receives(conn);
}

static void nccl_progress(struct dsc_conn *base)
{
    struct nccl_conn *const conn = dsc_nccl_of(base);

    if (base->net->error != DSCOMM_OK)
        return; /* what was begun is closed with the endpoint */
    dsc_nccl_hush(true);
    if (!base->is_joining)
        move_messages(conn);
    else if (conn->tx.failed_call == NULL && conn->rx.failed_call == NULL)
        dsc_nccl_connect(conn);
    dsc_nccl_hush(false);
    if (base->peer_left) {
        judge_absence(conn);
        return;
    }
    judge_failure(conn, &conn->tx, base->is_joining || conn->n_unsent > 0);
    judge_failure(conn, &conn->rx, base->is_joining || lacks_expected(conn));
}

static bool nccl_flushed(const struct dsc_conn *base)
{
    const struct nccl_conn *const conn = (const struct nccl_conn *)base;

    return conn->n_unsent == 0 || base->peer_left;
}

static void nccl_notify(struct dsc_conn *base, dscomm_status_t status, int rank, const char *text)
{
    dsc_control_notify(&dsc_nccl_of(base)->control, status, rank, text);
}

static void nccl_shut(struct dsc_conn *base)
{
    dsc_control_shut(&dsc_nccl_of(base)->control);
}

static void nccl_destroy(struct dsc_conn *base)
{
    struct nccl_conn *const conn = dsc_nccl_of(base);

    base->net->n_polled--;
    base->net->n_silent--;
    dsc_control_close(&conn->control);
    dsc_nccl_discard(conn);
}

dscomm_status_t dsc_nccl_net_open(struct dsc_net *net, int peer, struct dsc_conn **conn_out)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    struct nccl_conn *const conn = setup->nccl;
    const int fd = setup->control_fd;

    setup->nccl = NULL;
    net->n_polled++;
    net->n_silent++;
    setup->control_fd = -1;
    const dscomm_status_t st = dsc_control_open(&conn->control, &conn->base, fd);

    if (st < 0) {
        nccl_destroy(&conn->base);
        return st;
    }
    *conn_out = &conn->base;
    return DSCOMM_OK;
}

/* Anybody, as far as is known before it is tried; but only where it is asked for. */
static bool nccl_reaches(const struct dsc_peer_info *self, const struct dsc_peer_info *peer)
{
    (void)self, (void)peer;
    return true;
}

const struct dsc_transport_ops dsc_transport_nccl_net = {
    .name = "nccl_net",
    .wants_crc = true,
    .preference = 5,
    .reaches = nccl_reaches,
    .tx_slot = nccl_tx_slot,
    .tx_post = nccl_tx_post,
    .tx_post_from = dsc_transport_copy_post_from,
    .settle = dsc_transport_no_settle,
    .rx_msg = nccl_rx_msg,
    .rx_release = nccl_rx_release,
    .rx_expect = nccl_rx_expect,
    .progress = nccl_progress,
    .arm = dsc_transport_no_arm,
    .flushed = nccl_flushed,
    .notify = nccl_notify,
    .shut = nccl_shut,
    .destroy = nccl_destroy,
};
