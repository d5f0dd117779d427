/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of comm/comm.h: a call, as it is checked (arguments.c), kept for the end of a group (group.c),
 * fused with others (batch.c), queued on a stream (stream.c).
 */
#ifndef DSC_COMM_CALLS_H
#define DSC_COMM_CALLS_H

#include "plan/plan.h"

struct dscomm_comm;

/* What a plan is looked up by. */
struct dsc_shape {
    enum dsc_collective collective;
    int root;     /* of a broadcast, else 0 */
    size_t count; /* as the caller gives it: of a share, where there are shares */
    dscomm_dtype_t dtype;
    dscomm_op_t op;
    const struct dsc_codec *codec;
    bool feedback;
    int n_tensors;            /* fused in it; 0: a call by itself */
    uint64_t sizes;           /* hash of their counts */
    struct dsc_choice choice; /* of an allreduce */
};

/* A collective's arguments. */
struct dsc_call_args {
    const void *send;
    void *recv;
    struct dsc_shape shape;
    dscomm_feedback_t *feedback;
    struct dsc_batch *batch; /* calls that run as one, in place of send, recv and feedback */
    bool is_taken;           /* in a group: is in a batch */
};

struct dsc_calls {
    struct dsc_call_args *args;
    size_t n, capacity;
};

/* Calls that were fused. Taken by who issues calls; the call that runs it gives it back. */
struct dsc_batch {
    struct dsc_batch *next;
    struct dsc_calls calls;
    _Atomic bool is_busy;
};

/* Calls of an open group on one communicator. */
struct dsc_group {
    struct dsc_calls calls;
    dscomm_stream_t *stream; /* of all of them */
    struct dscomm_comm *next;
};

/* Where fused vectors are packed: one batch at a time. */
struct dsc_pack {
    uint8_t *data;
    float *residual; /* [2][residual_elems]: read, written */
    size_t data_bytes, residual_elems;
};

/* ---- arguments.c ---- */

/* The shape with codec NULL replaced by `none`. */
struct dsc_shape dsc_shape_make(enum dsc_collective collective, size_t count, dscomm_dtype_t dtype,
                                dscomm_op_t op, const dscomm_codec_t *codec, bool feedback);
dscomm_status_t dsc_shape_check(const struct dscomm_comm *comm, const struct dsc_shape *shape);
/* Pointers and the feedback object; the shape was checked. */
dscomm_status_t dsc_call_check(const struct dscomm_comm *comm, const struct dsc_call_args *args);
/* What an in-place call overwrites of its input; 0 bytes if it is not in place. */
struct dsc_overlap {
    void *memory;
    size_t bytes;
};
DSC_SHARED struct dsc_overlap dsc_call_overlap(const struct dscomm_comm *comm,
                                               const struct dsc_call_args *args);

/* ---- group.c ---- */

/* True if calls of this thread are to be kept for the end of its group. */
bool dsc_group_is_open(void);
/* The arguments were checked. */
dscomm_status_t dsc_group_add(struct dscomm_comm *comm, dscomm_stream_t *stream,
                              const struct dsc_call_args *args);
/* Drops the communicator's kept calls. */
void dsc_group_forget(struct dscomm_comm *comm);

/* ---- batch.c ---- */

/* Whether calls with such an object can be fused, and with each other. NULL allowed. */
bool dsc_batch_takes(const dscomm_feedback_t *feedback);
bool dsc_batch_agrees(const dscomm_feedback_t *a, const dscomm_feedback_t *b);
/* An empty batch; NULL: out of memory. */
struct dsc_batch *dsc_batch_take(struct dscomm_comm *comm);
void dsc_batch_give(struct dsc_batch *batch);
/* The call that a filled batch is. */
struct dsc_call_args dsc_batch_args(struct dsc_batch *batch);
/* In the call's turn. */
dscomm_status_t dsc_batch_run(struct dscomm_comm *comm, const struct dsc_call_args *args);
void dsc_batches_destroy(struct dscomm_comm *comm);

/* ---- stream.c ---- */

/* Queues the call; waits while the queue is full. */
dscomm_status_t dsc_stream_add(struct dscomm_stream *stream, struct dscomm_comm *comm,
                               uint32_t ticket, const struct dsc_call_args *args);

#endif
