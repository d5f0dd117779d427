/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to verbs.c and verbs_pair.c. A connection is one reliable queue pair. A message is an
 * RDMA write into the peer's slot with the slot's number as immediate data, which the peer's
 * completion queue shows; so nothing is matched, copied or sized by the receiver.
 *
 *   memory that the peer writes    | credit cell 8 x n_slots | slot 0 | ... | slot n_slots - 1 |
 *   slot, on both sides            | - 24 | released 8 | header 32 | payload, to a multiple of 64 |
 *                                         ^ written in one piece ............ ^
 *
 * A slot is free again when its write has completed here and the peer has released it. `released`
 * tells the latter of all slots at once: bit s is how often slot s was released, modulo 2. It goes
 * along with every message, and by itself, into the next credit cell, where there is none to send.
 */
#ifndef DSC_VERBS_INTERNAL_H
#define DSC_VERBS_INTERNAL_H

#include "transport/verbs_device.h"

#define DSC_VERBS_WINDOW_MAX 64  /* bits of `released` */
#define DSC_VERBS_RELEASED_AT 24 /* in a slot */
#define DSC_VERBS_HEADER_AT 32
#define DSC_VERBS_PAYLOAD_AT 64
/* Immediate data and ids of requests: a slot, or one of these; a credit cell is or-ed to the first.
 */
#define DSC_VERBS_CREDIT 0x80000000u
#define DSC_VERBS_RECEIVE 0xffffffffu

struct verbs_tx_slot {
    uint64_t next; /* message that it is for */
    bool in_flight;
};

struct verbs_rx_slot {
    uint64_t next;
    bool full;
    struct dsc_header header; /* a copy: the peer may write the slot at any time */
};

struct verbs_conn {
    struct dsc_conn base;
    struct dsc_control control;
    const struct dsc_verbs_device *device;
    const struct dsc_verbs *verbs;
    struct dsc_source events; /* a duplicate of the channel's descriptor */
    struct dsc_held channel_held;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *tx_mr, *rx_mr;
    uint8_t *memory; /* tx: slots and one cell to send from; rx: as above */
    uint8_t *tx, *rx, *cell;
    size_t bytes, stride;
    struct verbs_tx_slot *tx_slots;
    struct verbs_rx_slot *rx_slots;
    uint64_t peer_address; /* of its cells */
    uint32_t peer_key;
    uint32_t psn;
    uint32_t max_inline;
    uint32_t n_in_flight;   /* messages posted, not completed */
    uint32_t n_taken;       /* receive requests that completions used up */
    uint32_t n_untold;      /* releases that the peer has not been told */
    uint32_t n_credits;     /* credit cells written so far */
    uint64_t released;      /* own releases, as above */
    uint64_t peer_released; /* as the peer told */
    uint64_t posted;        /* bit s: messages posted to slot s, modulo 2 */
    bool credit_in_flight;
    bool is_armed;  /* the next completion is an event */
    bool is_broken; /* the queue pair gave an error, which is told or does not matter */
};

static inline struct verbs_conn *dsc_verbs_of(struct dsc_conn *conn)
{
    return (struct verbs_conn *)conn; /* its first member */
}

static inline size_t dsc_verbs_cells_bytes(const struct dsc_conn *conn)
{
    return dsc_round_up(8 * (size_t)conn->n_slots, 64);
}

/* Receive requests: as many messages as the window holds, and a credit for each of ours. Used up
 * ones are posted again by the window, so that this is not in the way of each message. */
static inline uint32_t dsc_verbs_n_receives(const struct dsc_conn *conn)
{
    return 3 * conn->n_slots;
}

/* Posts so many receive requests, which have no memory: messages say where they go. */
int dsc_verbs_post_receives(struct verbs_conn *conn, uint32_t n);

#endif
