/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are threads of one process. Two that have met share nothing but the pair: rings, bells,
 * and boxes and a notice per side for what is not data.
 */
#include "transport/loopback_pair.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "transport/header.h"
#include "transport/loopback_fault.h"

struct loop_conn {
    struct dsc_conn base;
    struct dsc_loop_pair *pair;
    int side;
    bool is_dead; /* this side's last box says so */
    uint32_t boxes_read;
    uint32_t notice_read; /* its version */
    struct dsc_ring tx, rx;
    struct dsc_header *rx_headers; /* [n_slots] private copies */
};

/* Guards all notices. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct loop_conn *loop_of(struct dsc_conn *conn)
{
    return (struct loop_conn *)conn;
}

dscomm_status_t dsc_loopback_open(struct dsc_net *net, int peer, struct dsc_conn **conn_out)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    struct dsc_loop_pair *const pair = setup->pair;
    const size_t bytes = dsc_ring_bytes(pair->n_slots, pair->slot_bytes);
    struct loop_conn *const loop = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*loop));

    if (loop == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for a loopback connection");
    loop->rx_headers = dsc_calloc(DSC_MEM_TRANSPORT, pair->n_slots, sizeof(*loop->rx_headers));
    if (loop->rx_headers == NULL) {
        dsc_free(loop);
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for %u headers", pair->n_slots);
    }
    loop->base = (struct dsc_conn){
        .ops = &dsc_transport_loopback,
        .net = net,
        .peer = peer,
        .slot_bytes = pair->slot_bytes,
        .n_slots = pair->n_slots,
    };
    loop->side = net->rank > peer;
    dsc_ring_init(loop->side ? &loop->rx : &loop->tx, pair->memory, pair->n_slots,
                  pair->slot_bytes);
    dsc_ring_init(loop->side ? &loop->tx : &loop->rx, pair->memory + bytes, pair->n_slots,
                  pair->slot_bytes);
    loop->pair = pair;
    setup->pair = NULL;
    *conn_out = &loop->base;
    return DSCOMM_OK;
}

/* ---- messages ---- */

static void ring_peer(struct loop_conn *loop)
{
    dsc_local_bell_ring(loop->pair->bells[!loop->side]);
}

static uint8_t *loop_tx_slot(struct dsc_conn *conn, uint64_t index)
{
    uint8_t *const payload = dsc_ring_tx_slot(&loop_of(conn)->tx, index);

    if (payload == NULL && conn->peer_left)
        dsc_net_left(conn);
    return payload;
}

static void fill_box(struct loop_conn *loop, enum dsc_loop_box_state state, dscomm_status_t status,
                     int rank, const char *text)
{
    dsc_loop_fill_box(loop->pair, loop->side, state, status, rank, text);
    loop->is_dead = loop->is_dead || state == DSC_BOX_DEAD;
}

/* As when the process of this rank dies: all its connections end without a word. */
static void die(struct dsc_net *net)
{
    for (int i = 0; i < net->n_conns; i++)
        if (net->conns[i]->ops == &dsc_transport_loopback)
            fill_box(loop_of(net->conns[i]), DSC_BOX_DEAD, DSCOMM_ERR_PEER_LOST, net->rank, "");
}

static void loop_tx_post(struct dsc_conn *conn, uint64_t index, const struct dsc_header *header)
{
    struct loop_conn *const loop = loop_of(conn);
    struct dsc_header sent = *header;
    int delay_ms = 0;

    sent.magic = DSC_HEADER_MAGIC;
    sent.version = DSC_HEADER_VERSION;
    sent.kind = DSC_MSG_DATA;
    sent.crc = 0;
    switch (dsc_loopback_take_fault(conn->net->rank, &delay_ms)) {
    case DSC_FAULT_DROP:
        return;
    case DSC_FAULT_KILL:
        die(conn->net);
        return;
    case DSC_FAULT_CORRUPT:
        sent.magic ^= 1; /* what a checksum would find: the receiver refuses the message */
        break;
    case DSC_FAULT_DELAY:
    case DSC_FAULT_NONE:
        break;
    }
    if (loop->is_dead)
        return;
    dsc_ring_post(&loop->tx, index, &sent, delay_ms > 0 ? dsc_deadline_ns(delay_ms) : 0);
    dsc_net_count(&conn->net->wire_tx_bytes, DSC_HEADER_BYTES + sent.payload_bytes);
    ring_peer(loop);
}

static const struct dsc_header *loop_rx_msg(struct dsc_conn *conn, uint64_t index,
                                            const uint8_t **payload_out)
{
    struct loop_conn *const loop = loop_of(conn);
    struct dsc_header *const header = &loop->rx_headers[index % conn->n_slots];
    const uint8_t *const payload = dsc_ring_rx_msg(&loop->rx, index, header);

    if (payload == NULL)
        return NULL;

    const char *const wrong = dsc_header_check(header, conn->slot_bytes);

    if (wrong != NULL) {
        dsc_net_set_error(conn->net, DSCOMM_ERR_CORRUPT, conn->peer,
                          "message %llu from rank %d (loopback) is damaged: %s",
                          (unsigned long long)index, conn->peer, wrong);
        return NULL;
    }
    *payload_out = payload;
    return header;
}

static void loop_rx_release(struct dsc_conn *conn, uint64_t index)
{
    struct loop_conn *const loop = loop_of(conn);

    dsc_net_count(&conn->net->wire_rx_bytes,
                  DSC_HEADER_BYTES + loop->rx_headers[index % conn->n_slots].payload_bytes);
    if (loop->is_dead)
        return;
    dsc_ring_release(&loop->rx, index);
    ring_peer(loop);
}

static void loop_rx_expect(struct dsc_conn *conn, uint64_t end)
{
    conn->rx_end = end;
}

/* ---- life cycle ---- */

static void read_boxes(struct loop_conn *loop)
{
    while (loop->boxes_read < DSC_N_BOXES) {
        struct dsc_loop_box *const box = &loop->pair->boxes[!loop->side][loop->boxes_read];
        const uint32_t state = atomic_load_explicit(&box->state, memory_order_acquire);

        if (state == DSC_BOX_EMPTY)
            return;
        loop->boxes_read++;
        if (state == DSC_BOX_DEAD && !loop->base.peer_left)
            dsc_net_lost(&loop->base, "connection closed");
        else if (state != DSC_BOX_DEAD)
            dsc_net_told(&loop->base, state == DSC_BOX_GOODBYE ? DSCOMM_OK : box->status, box->rank,
                         box->text);
    }
}

static void read_notice(struct loop_conn *loop)
{
    struct dsc_loop_notice *const notice = &loop->pair->notices[!loop->side];
    const uint32_t version = atomic_load_explicit(&notice->version, memory_order_relaxed);
    char text[DSC_ERROR_TEXT_MAX];

    if (version == loop->notice_read)
        return;
    loop->notice_read = version;
    pthread_mutex_lock(&mutex);
    memcpy(text, notice->text, sizeof(text));
    pthread_mutex_unlock(&mutex);
    dsc_net_told(&loop->base, DSCOMM_IN_PROGRESS, loop->base.peer, text);
}

static void write_notice(struct loop_conn *loop, const char *text)
{
    struct dsc_loop_notice *const notice = &loop->pair->notices[loop->side];

    pthread_mutex_lock(&mutex);
    snprintf(notice->text, sizeof(notice->text), "%s", text);
    atomic_fetch_add_explicit(&notice->version, 1, memory_order_relaxed);
    pthread_mutex_unlock(&mutex);
    ring_peer(loop);
}

static void loop_progress(struct dsc_conn *conn)
{
    struct loop_conn *const loop = loop_of(conn);

    read_boxes(loop);
    read_notice(loop);
    if (conn->peer_left && dsc_ring_lacks(&loop->rx, conn->rx_end))
        dsc_net_left(conn);
}

static bool loop_flushed(const struct dsc_conn *conn)
{
    (void)conn;
    return true; /* a posted message is in memory that outlives this side */
}

static void loop_notify(struct dsc_conn *conn, dscomm_status_t status, int rank, const char *text)
{
    if (status == DSCOMM_IN_PROGRESS)
        write_notice(loop_of(conn), text);
    else
        fill_box(loop_of(conn), status == DSCOMM_OK ? DSC_BOX_GOODBYE : DSC_BOX_ERROR, status, rank,
                 text);
}

static void loop_shut(struct dsc_conn *conn)
{
    (void)conn; /* nothing is in flight outside of the rings */
}

static void loop_destroy(struct dsc_conn *conn)
{
    struct loop_conn *const loop = loop_of(conn);

    /* Without a word before: it counts as lost. */
    fill_box(loop, DSC_BOX_DEAD, DSCOMM_ERR_PEER_LOST, conn->net->rank, "");
    dsc_loop_unref(loop->pair);
    dsc_free(loop->rx_headers);
    dsc_free(loop);
}

static bool loop_reaches(const struct dsc_peer_info *self, const struct dsc_peer_info *peer)
{
    return self->process_id == peer->process_id;
}

const struct dsc_transport_ops dsc_transport_loopback = {
    .name = "loopback",
    .wants_crc = false,
    .preference = 30,
    .reaches = loop_reaches,
    .tx_slot = loop_tx_slot,
    .tx_post = loop_tx_post,
    .tx_post_from = dsc_transport_copy_post_from,
    .settle = dsc_transport_no_settle,
    .rx_msg = loop_rx_msg,
    .rx_release = loop_rx_release,
    .rx_expect = loop_rx_expect,
    .progress = loop_progress,
    .arm = dsc_transport_no_arm,
    .flushed = loop_flushed,
    .notify = loop_notify,
    .shut = loop_shut,
    .destroy = loop_destroy,
};
