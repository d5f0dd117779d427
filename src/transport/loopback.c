/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that are threads of one process. The two sides of a pair meet in a list of this process,
 * keyed by job and ranks; whoever comes second makes the memory. After that they share nothing but
 * the pair: rings, bells, and boxes and a notice per side for what is not data.
 */
#include "transport/net_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "transport/header.h"
#include "transport/loopback_fault.h"

enum box_state { BOX_EMPTY, BOX_ERROR, BOX_GOODBYE, BOX_DEAD };

/*
 * Each written once by one side, in order, and read by the other; out of band, so a full window
 * hides nothing. Every rank's report, then a goodbye or the end: no more can come.
 */
#define N_BOXES (DSC_MAX_REPORTS + 2)
struct box {
    _Atomic uint32_t state; /* enum box_state */
    dscomm_status_t status;
    int rank;
    char text[DSC_ERROR_TEXT_MAX];
};

/* What call a side is in; may be written again before it is read. */
struct notice {
    _Atomic uint32_t version;
    char text[DSC_ERROR_TEXT_MAX]; /* guarded by the mutex */
};

struct dsc_loop_pair {
    struct dsc_loop_pair *next; /* while one side waits for the other */
    uint64_t job;
    int ranks[2]; /* ascending; sides are numbered alike */
    size_t slot_bytes;
    uint32_t n_slots;
    int n_refs;
    struct dsc_local_bell *bells[2];
    uint8_t *memory; /* ring 0 to 1, ring 1 to 0; NULL until both are there */
    struct box boxes[2][N_BOXES];
    struct notice notices[2];
};

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

/* Guards waiting, the pairs in it and all notices. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct dsc_loop_pair *waiting;

static struct loop_conn *loop_of(struct dsc_conn *conn)
{
    return (struct loop_conn *)conn;
}

/* ---- meeting ---- */

static void pair_unref(struct dsc_loop_pair *pair)
{
    pthread_mutex_lock(&mutex);
    const int left = --pair->n_refs;
    pthread_mutex_unlock(&mutex);
    if (left > 0)
        return;
    dsc_local_bell_release(pair->bells[0]);
    dsc_local_bell_release(pair->bells[1]);
    dsc_free(pair->memory);
    dsc_free(pair);
}

/* Where the list has this job's pair of these ranks, with the other side in it; else its end. */
static struct dsc_loop_pair **find_waiting(uint64_t job, int lo, int hi)
{
    struct dsc_loop_pair **at = &waiting;

    while (*at != NULL && ((*at)->job != job || (*at)->ranks[0] != lo || (*at)->ranks[1] != hi))
        at = &(*at)->next;
    return at;
}

static void attach(struct dsc_loop_pair *pair, struct dsc_net *net, int side)
{
    dsc_local_bell_acquire(net->bell);
    pair->bells[side] = net->bell;
    pair->n_refs++;
}

static dscomm_status_t make_memory(struct dsc_loop_pair *pair)
{
    const size_t bytes = dsc_ring_bytes(pair->n_slots, pair->slot_bytes);
    struct dsc_ring ring;

    pair->memory = dsc_calloc(DSC_MEM_TRANSPORT, 2, bytes);
    if (pair->memory == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for 2 rings of %zu bytes", bytes);
    for (int i = 0; i < 2; i++) {
        dsc_ring_init(&ring, pair->memory + (size_t)i * bytes, pair->n_slots, pair->slot_bytes);
        dsc_ring_format(&ring);
    }
    return DSCOMM_OK;
}

/* With the mutex held. */
static dscomm_status_t offer_locked(struct dsc_net *net, int peer)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    const int side = net->rank > peer;
    const int lo = side ? peer : net->rank;
    const int hi = side ? net->rank : peer;
    struct dsc_loop_pair **const at = find_waiting(net->job, lo, hi);
    struct dsc_loop_pair *pair = *at;

    if (pair != NULL) {
        if (!dsc_setup_check_slots(net, peer, pair->slot_bytes))
            return net->error; /* the pair stays in the list: the other side is told there */
        *at = pair->next;
        attach(pair, net, side);
        setup->pair = pair;
        DSC_TRY(make_memory(pair));
        dsc_local_bell_ring(pair->bells[!side]);
        return DSCOMM_OK;
    }
    pair = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*pair));
    if (pair == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for a loopback pair");
    pair->job = net->job;
    pair->ranks[0] = lo;
    pair->ranks[1] = hi;
    pair->slot_bytes = net->params.slot_bytes;
    pair->n_slots = net->params.n_slots;
    attach(pair, net, side);
    setup->pair = pair;
    pair->next = waiting;
    waiting = pair;
    return DSCOMM_OK;
}

dscomm_status_t dsc_loopback_offer(struct dsc_net *net, int peer)
{
    pthread_mutex_lock(&mutex);
    const dscomm_status_t st = offer_locked(net, peer);
    pthread_mutex_unlock(&mutex);
    return st;
}

bool dsc_loopback_met(const struct dsc_net *net, int peer)
{
    const struct dsc_loop_pair *const pair = net->peers[peer].setup.pair;

    pthread_mutex_lock(&mutex);
    const bool met = pair->memory != NULL;
    pthread_mutex_unlock(&mutex);
    return met;
}

void dsc_loopback_withdraw(struct dsc_setup *setup)
{
    if (setup->pair == NULL)
        return;
    pthread_mutex_lock(&mutex);
    for (struct dsc_loop_pair **at = &waiting; *at != NULL; at = &(*at)->next) {
        if (*at == setup->pair) {
            *at = setup->pair->next;
            break;
        }
    }
    pthread_mutex_unlock(&mutex);
    pair_unref(setup->pair);
    setup->pair = NULL;
}

/* Into the first empty box of the side, by that side only. */
static void fill_pair_box(struct dsc_loop_pair *pair, int side, enum box_state state,
                          dscomm_status_t status, int rank, const char *text)
{
    for (int i = 0; i < N_BOXES; i++) {
        struct box *const box = &pair->boxes[side][i];

        if (atomic_load_explicit(&box->state, memory_order_relaxed) != BOX_EMPTY)
            continue;
        box->status = status;
        box->rank = rank;
        snprintf(box->text, sizeof(box->text), "%s", text);
        atomic_store_explicit(&box->state, state, memory_order_release);
        break;
    }
    if (pair->bells[!side] != NULL)
        dsc_local_bell_ring(pair->bells[!side]);
}

void dsc_loopback_tell(struct dsc_net *net, dscomm_status_t status, int rank, const char *text)
{
    pthread_mutex_lock(&mutex);
    for (struct dsc_loop_pair *pair = waiting; pair != NULL; pair = pair->next)
        for (int side = 0; side < 2; side++)
            if (pair->job == net->job && pair->ranks[side] == net->rank)
                fill_pair_box(pair, side, BOX_ERROR, status, rank, text);
    pthread_mutex_unlock(&mutex);
}

void dsc_loopback_look(struct dsc_net *net, int peer)
{
    const struct dsc_loop_pair *const pair = net->peers[peer].setup.pair;
    const struct box *const boxes = pair->boxes[net->rank < peer];

    if (dsc_loopback_met(net, peer))
        return;
    for (int i = 0; i < N_BOXES && atomic_load(&boxes[i].state) == BOX_ERROR; i++)
        dsc_net_heard(net, NULL, boxes[i].status, boxes[i].rank, boxes[i].text);
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

static void fill_box(struct loop_conn *loop, enum box_state state, dscomm_status_t status, int rank,
                     const char *text)
{
    fill_pair_box(loop->pair, loop->side, state, status, rank, text);
    loop->is_dead = loop->is_dead || state == BOX_DEAD;
}

/* As when the process of this rank dies: all its connections end without a word. */
static void die(struct dsc_net *net)
{
    for (int i = 0; i < net->n_conns; i++)
        if (net->conns[i]->ops == &dsc_transport_loopback)
            fill_box(loop_of(net->conns[i]), BOX_DEAD, DSCOMM_ERR_PEER_LOST, net->rank, "");
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
    while (loop->boxes_read < N_BOXES) {
        struct box *const box = &loop->pair->boxes[!loop->side][loop->boxes_read];
        const uint32_t state = atomic_load_explicit(&box->state, memory_order_acquire);

        if (state == BOX_EMPTY)
            return;
        loop->boxes_read++;
        if (state == BOX_DEAD && !loop->base.peer_left)
            dsc_net_lost(&loop->base, "connection closed");
        else if (state != BOX_DEAD)
            dsc_net_told(&loop->base, state == BOX_GOODBYE ? DSCOMM_OK : box->status, box->rank,
                         box->text);
    }
}

static void read_notice(struct loop_conn *loop)
{
    struct notice *const notice = &loop->pair->notices[!loop->side];
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
    struct notice *const notice = &loop->pair->notices[loop->side];

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
        fill_box(loop_of(conn), status == DSCOMM_OK ? BOX_GOODBYE : BOX_ERROR, status, rank, text);
}

static void loop_shut(struct dsc_conn *conn)
{
    (void)conn; /* nothing is in flight outside of the rings */
}

static void loop_destroy(struct dsc_conn *conn)
{
    struct loop_conn *const loop = loop_of(conn);

    /* Without a word before: it counts as lost. */
    fill_box(loop, BOX_DEAD, DSCOMM_ERR_PEER_LOST, conn->net->rank, "");
    pair_unref(loop->pair);
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
