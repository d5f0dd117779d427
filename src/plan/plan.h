/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan is a collective compiled once for one shape and one rank: an array of operations over
 * fixed spans, each of which receives some messages of a known size, computes, and sends one
 * message to some peers. Executors only walk the array. Everything here is a pure function of plan
 * parameters that are equal on all ranks, so all ranks build matching plans without talking.
 *
 *   collective_traits.c      what the collectives are, what their vectors hold
 *   choice.c                 what a caller may choose about a plan, by name
 *   pieces.c tier_groups.c   who owns which span at which tier (the tree of groups), or one share
 *                            per rank
 *   two_shot.c               reduce-scatter up the tiers, one final encode, the same bytes forwarded
 *   two_shot_walk.c          down; or one of these halves
 *   one_shot.c               every rank's codes to every rank; Bruck's pattern above 8 ranks
 *   direct.c                 broadcast and all-to-all
 *   builder.c assemble.c     operations as an algorithm adds them; message order, window staging
 *   plan.c plan_text.c       all of it together; descriptor and explain
 */
#ifndef DSC_PLAN_H
#define DSC_PLAN_H

#include "codec/codec.h"

#define DSC_MAX_TIERS 8
#define DSC_LARGEST_UNIT 65536 /* of all codecs: no tile_align is larger */
#define DSC_PIECE_ALIGN 256    /* cuts are multiples of this from the piece's start */
#define DSC_VIRTUAL_TIER 32    /* more members than this become rows and columns */
#define DSC_MAX_CHUNKS 65535   /* per stage: the header counts chunks in 16 bits */
#define DSC_BRUCK_RANKS 8      /* one-shot with more ranks forwards messages */
#define DSC_MARK_ELEMS 256     /* reduce-scatter: elements that share a bit "not finite" */

enum dsc_collective {
    DSC_ALLREDUCE,
    DSC_REDUCE_SCATTER,
    DSC_ALL_GATHER,
    DSC_BROADCAST,
    DSC_ALL_TO_ALL,
};

/* What a collective is. A vector has a share per rank, or is the same on all ranks. */
struct dsc_collective_traits {
    const char *name;
    bool sends_shares; /* `send` holds a share for every rank, else only what is the rank's own */
    bool recvs_shares; /* `recv` likewise */
    bool is_of_sums;   /* an allreduce or a half of one: what a rank does not send counts as 0 */
};

DSC_SHARED const struct dsc_collective_traits *
dsc_collective_traits(enum dsc_collective collective);

/* AUTO and TIERED, a two-shot over all tiers of the communicator, are wishes, never a plan's. */
enum dsc_algorithm {
    DSC_ALG_AUTO,
    DSC_ALG_TIERED,
    DSC_ALG_LOCAL,
    DSC_ALG_ONE_SHOT,
    DSC_ALG_TWO_SHOT,
    DSC_ALG_DIRECT,
};

/* What may be chosen about an allreduce; all zero: the communicator's rules. Equal on all ranks. */
struct dsc_choice {
    enum dsc_algorithm algorithm; /* AUTO: by the communicator's rules */
    size_t chunk_elems;           /* 0: likewise */
    int n_tiers; /* of a two-shot; 0: likewise; 1: flat; else all tiers of the communicator */
    /*
     * Per tier, fastest first. NULL: the call's for the last tier, fp32 for those before it.
     * One-shot has one codec, that of the last tier.
     */
    const struct dsc_codec *codecs[DSC_MAX_TIERS];
};

struct dsc_plan_params {
    enum dsc_collective collective;
    int n_ranks, rank;
    int root;     /* of a broadcast, else 0 */
    size_t count; /* of the vector that spans lie in: with shares, those of all ranks */
    dscomm_dtype_t dtype;
    dscomm_op_t op;
    bool feedback;
    int n_tensors;  /* fused in the vector, 0: none; for the descriptor alone, as is */
    uint64_t sizes; /* the hash of their counts */
    enum dsc_algorithm algorithm;
    size_t chunk_elems; /* wanted; rounded up to the codec's unit and enlarged if chunks are many */
    int n_tiers;        /* 1: flat, as collectives with shares always are */
    /*
     * [n_tiers][n_ranks] group of each rank, fastest tier first; tier t joins the groups of tier
     * t - 1 (ranks, for t = 0) that have the same number. The last tier has one group. NULL: flat.
     */
    const int *groups;
    const struct dsc_codec *codecs[DSC_MAX_TIERS]; /* per tier, as the caller named them */
};

/* ---- collective_traits.c ---- */

/* Elements of the caller's vectors. A share is `count` as callers give it. */
size_t dsc_plan_share(const struct dsc_plan_params *params);
size_t dsc_plan_send_elems(const struct dsc_plan_params *params);
size_t dsc_plan_recv_elems(const struct dsc_plan_params *params);
/*
 * Index in the plan's vector of the first element of `send`, whose indices the residual has, and of
 * `recv`: not 0 where these hold only the rank's own share.
 */
size_t dsc_plan_send_base(const struct dsc_plan_params *params);
size_t dsc_plan_recv_base(const struct dsc_plan_params *params);

/* ---- the plan ---- */

/* ceil(log2(n)), 0 for n <= 1: the exponent E of fp16 messages. */
int dsc_log2_up(int n);

enum dsc_op_kind {
    DSC_OP_RESULT,  /* sum to the output, unencoded; send marks of what is not finite */
    DSC_OP_RESTORE, /* receive marks: there r is as it was before the call */
    DSC_OP_SEND,    /* encode own value, send */
    DSC_OP_REDUCE,  /* sum received messages and own value into the partial buffer */
    DSC_OP_FINAL,   /* sum, encode once, decode to the output, send */
    DSC_OP_DECODE,  /* decode a final message to the output, forward it */
    DSC_OP_GATHER,  /* one-shot: keep a message, forward it */
    DSC_OP_ENCODE,  /* one-shot: encode own value, keep it, send */
    DSC_OP_SUM,     /* one-shot: sum all messages in rank order, to the output */
};

/*
 * One message of this rank within a call. `index` counts per connection and direction from 0.
 * (position, stage) is the same at both ends: executors that move messages in groups group by it.
 */
struct dsc_plan_msg {
    uint32_t conn; /* index in plan->peers */
    uint32_t index;
    uint32_t position; /* in the pipeline */
    uint32_t bytes;    /* payload; of a variable codec the most it can be, like all bytes below */
    uint16_t stage, chunk;
    struct dsc_place place; /* of who encoded it */
    int8_t exponent;
    uint8_t pad[3];
};

#define DSC_NO_BUFFER SIZE_MAX

struct dsc_op {
    enum dsc_op_kind kind;
    int tier;                 /* codec */
    int exponent;             /* of the message it encodes or decodes */
    struct dsc_place place;   /* of who encodes that */
    uint32_t first_threshold; /* of those that its message reuses, see n_thresholds */
    int own_at; /* RESULT, REDUCE, FINAL, SUM: place of the own value in the order of summing */
    size_t own_start, own_end; /* SUM: part of the span whose output rounding this rank keeps */
    size_t start;              /* span in the vector */
    uint32_t n;                /* elements */
    uint32_t msg_bytes;        /* of the message it sends or keeps */
    size_t own_partial; /* offset of the own value in the partial buffer; DSC_NO_BUFFER: input */
    size_t out_partial; /* REDUCE: offset of the result */
    size_t keep;        /* ENCODE, GATHER: offset in the gather buffer */
    uint32_t first_recv, n_recvs; /* in plan->recvs, in the order of summing */
    uint32_t first_send, n_sends; /* in plan->sends */
    uint32_t first_dep, n_deps;   /* in plan->deps: ops that must be done, sends included */
};

struct dscomm_plan {
    struct dsc_plan_params params;                 /* groups is not kept */
    const struct dsc_codec *codecs[DSC_MAX_TIERS]; /* resolved for the data type */
    char *descriptor;            /* "count=1000 dtype=fp32 ...": what all ranks must agree on */
    uint64_t hash;               /* of the descriptor */
    char *explain;               /* one line for people */
    size_t chunk_elems;          /* used */
    size_t send_base, recv_base; /* dsc_plan_send_base(), dsc_plan_recv_base() */
    int n_peers;
    int *peers;            /* ranks this plan has connections to, ascending */
    uint32_t *n_tx, *n_rx; /* [n_peers] messages per call */
    struct dsc_op *ops;    /* in the order that never deadlocks */
    uint32_t n_ops;
    struct dsc_plan_msg *recvs, *sends;
    uint32_t n_recvs, n_sends;
    uint32_t *deps;
    uint32_t n_deps;
    size_t max_msg_bytes;
    size_t partial_elems;      /* float32 partial sums */
    size_t gather_bytes;       /* one-shot: messages kept for a few chunks, [chunk][rank] */
    size_t gather_stride;      /* bytes of one kept message's place */
    uint32_t n_thresholds;     /* that executors keep from call to call, 0 at first */
    uint32_t n_staging;        /* buffers of max_msg_bytes that make any window free of deadlock */
    uint64_t payload_tx_bytes; /* per call; variable codecs: at most */
};

/*
 * Marks of n elements: bit k of byte j stands for the elements from 256*(8j + k) on, 1 if one of
 * them is not finite. The bytes of their message:
 */
static inline size_t dsc_mark_bytes(size_t n)
{
    return dsc_round_up(dsc_ceil_div(n, 8 * DSC_MARK_ELEMS), 16);
}

/* Bytes of n elements, from whoever's message is longest. */
static inline size_t dsc_longest_message(const struct dsc_codec *codec, size_t n)
{
    struct dsc_codec made;

    return dsc_codec_message_bytes(dsc_codec_at(codec, DSC_LAST_PLACE, &made), n);
}

/* Might hold received messages while it waits for a slot; GATHER keeps them elsewhere anyway. */
static inline bool dsc_op_may_stage(const struct dsc_op *op)
{
    return op->n_recvs > 0 && op->n_sends > 0 && op->kind != DSC_OP_GATHER;
}

/**
 * @param plan_out Owned by the caller.
 * @return DSCOMM_OK, DSCOMM_ERR_INVALID (groups that do not nest), DSCOMM_ERR_NO_MEMORY
 */
dscomm_status_t dsc_plan_build(const struct dsc_plan_params *params, struct dscomm_plan **plan_out);
void dsc_plan_destroy(struct dscomm_plan *plan); /* NULL allowed */

/* ---- choice.c ---- */

/* What connections on CPUs carry at most, with that setting of chunk_bytes. */
size_t dsc_slot_bytes(size_t chunk_bytes);

bool dsc_choice_equal(const struct dsc_choice *a, const struct dsc_choice *b);
DSC_SHARED const char *dsc_algorithm_name(enum dsc_algorithm algorithm);
/* The other way; false: no such name. */
bool dsc_algorithm_find(const char *name, enum dsc_algorithm *algorithm_out);

#endif
