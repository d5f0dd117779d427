/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to nccl_net.c and nccl_pair.c. A connection has one sending and one receiving connection
 * of the plugin's, each with its own memory:
 *
 *   slot    | 32 unused | header 32 | payload, to a multiple of 64 |
 *                        ^ one message of the plugin's ......... ^
 *
 * The plugin is FIFO: message i is the i-th that is handed to it, and fills the i-th receive.
 */
#ifndef DSC_NCCL_NET_INTERNAL_H
#define DSC_NCCL_NET_INTERNAL_H

#include "transport/nccl_pair.h"

/* Behind a handle; a plugin that writes there writes behind its 128 bytes. */
#define DSC_NCCL_GUARD_BYTES 64
#define DSC_NCCL_GUARD 0xa5

struct nccl_slot {
    uint64_t next;            /* message that it is for */
    bool full;                /* posted, or received and not released */
    size_t bytes;             /* sending: header and payload */
    void *request;            /* in the plugin's hands; NULL: not */
    struct dsc_header header; /* of what was received */
};

/* One direction. */
struct nccl_side {
    void *comm; /* the plugin's; NULL until it is connected */
    void *mr;
    uint8_t *memory;         /* [n_slots] of `stride` bytes */
    struct nccl_slot *slots; /* [n_slots] */
    uint64_t at;             /* message to hand to the plugin next */
    uint64_t oldest;         /* all before it are done */
    const char *failed_call; /* NULL: none has failed; else nothing more is asked of `comm` */
    dscomm_status_t failure;
    uint64_t failed_ns;
    char failure_text[DSC_NCCL_RESULT_BYTES];
};

struct nccl_conn {
    struct dsc_conn base;
    struct dsc_control control;
    const struct dsc_nccl_plugin *plugin; /* the endpoint's */
    void *listener;                       /* the plugin's; NULL: none any more */
    struct nccl_side tx, rx;
    uint8_t *memory; /* of both sides */
    size_t bytes, stride;
    bool crc;
    uint32_t n_unsent; /* posted, not done */
    uint64_t left_ns;  /* since when nothing more came of a peer that left; 0: it has not */
    uint8_t handle[NCCL_HANDLE_BYTES + DSC_NCCL_GUARD_BYTES]; /* own, then the peer's */
};

static inline struct nccl_conn *dsc_nccl_of(struct dsc_conn *conn)
{
    return (struct nccl_conn *)conn; /* its first member */
}

static inline struct nccl_slot *dsc_nccl_slot(const struct nccl_side *side,
                                              const struct nccl_conn *conn, uint64_t index)
{
    return &side->slots[index % conn->base.n_slots];
}

/* Header of message `index`, payload behind it. */
static inline uint8_t *dsc_nccl_wire(const struct nccl_side *side, const struct nccl_conn *conn,
                                     uint64_t index)
{
    return side->memory + index % conn->base.n_slots * conn->stride + 64 - DSC_HEADER_BYTES;
}

/* Notes a failed call of one side; the other one goes on, as a peer that leaves may have closed its
 * receiving end and have sent all the same. */
void dsc_nccl_failed(struct nccl_side *side, const char *call, nccl_result_t result);
/* One step towards both connections; when they stand, is_joining ends. */
void dsc_nccl_connect(struct nccl_conn *conn);

#endif
