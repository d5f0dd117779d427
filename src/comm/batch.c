/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fused allreduces: vectors and residuals are packed one behind the other, reduced as one vector,
 * and unpacked when that has succeeded, so a call that fails leaves all inputs and residuals alone.
 * Each vector starts on a block of the codec: none shares a scale with another.
 */
#include "comm/comm.h"

#include <string.h>

bool dsc_batch_takes(const dscomm_feedback_t *feedback)
{
    struct dsc_residual r;

    if (feedback == NULL)
        return true;
    dsc_feedback_begin(feedback, &r);
    return r.type == DSCOMM_RESIDUAL_FP32 && !dsc_feedback_has_momentum(feedback);
}

bool dsc_batch_agrees(const dscomm_feedback_t *a, const dscomm_feedback_t *b)
{
    struct dsc_residual x, y;

    if (a == NULL || b == NULL)
        return a == b;
    dsc_feedback_begin(a, &x);
    dsc_feedback_begin(b, &y);
    return x.beta == y.beta;
}

/* ---- batches: kept with the communicator and used again ---- */

struct dsc_batch *dsc_batch_take(struct dscomm_comm *comm)
{
    struct dsc_batch *batch = comm->batches;

    while (batch != NULL && atomic_load_explicit(&batch->is_busy, memory_order_acquire))
        batch = batch->next;
    if (batch == NULL) {
        batch = dsc_calloc(DSC_MEM_COMM, 1, sizeof(*batch));
        if (batch == NULL)
            return NULL;
        batch->next = comm->batches;
        comm->batches = batch;
    }
    atomic_store_explicit(&batch->is_busy, true, memory_order_relaxed);
    batch->calls.n = 0;
    return batch;
}

void dsc_batch_give(struct dsc_batch *batch)
{
    atomic_store_explicit(&batch->is_busy, false, memory_order_release);
}

/* Where the vector behind one of `count` elements at `at` starts. */
static size_t next_place(const struct dsc_shape *shape, size_t at, size_t count)
{
    return dsc_round_up(at + count, shape->codec->block);
}

struct dsc_call_args dsc_batch_args(struct dsc_batch *batch)
{
    const struct dsc_call_args *const first = &batch->calls.args[0];
    struct dsc_call_args args = { .shape = first->shape, .batch = batch };
    uint64_t sizes = 0;

    args.shape.count = 0;
    args.shape.n_tensors = (int)batch->calls.n;
    for (size_t i = 0; i < batch->calls.n; i++) {
        const size_t count = batch->calls.args[i].shape.count;

        args.shape.count = next_place(&first->shape, args.shape.count, count);
        sizes = (sizes ^ count) * 0x100000001b3u + 1;
    }
    args.shape.sizes = sizes;
    return args;
}

void dsc_batches_destroy(struct dscomm_comm *comm)
{
    while (comm->batches != NULL) {
        struct dsc_batch *const next = comm->batches->next;

        dsc_free(comm->batches->calls.args);
        dsc_free(comm->batches);
        comm->batches = next;
    }
    dsc_free(comm->pack.data);
    dsc_free(comm->pack.residual);
}

/* ---- packing ---- */

static bool grow_pack(struct dsc_pack *pack, const struct dsc_shape *shape)
{
    const size_t bytes = shape->count * dsc_dtype_bytes(shape->dtype);

    if (pack->data_bytes < bytes) {
        dsc_free(pack->data);
        pack->data = dsc_calloc(DSC_MEM_COMM, 1, bytes);
        pack->data_bytes = pack->data == NULL ? 0 : bytes;
    }
    if (shape->feedback && pack->residual_elems < shape->count) {
        dsc_free(pack->residual);
        pack->residual = dsc_calloc(DSC_MEM_COMM, 2 * shape->count, sizeof(float));
        pack->residual_elems = pack->residual == NULL ? 0 : shape->count;
    }
    return pack->data_bytes >= bytes && (!shape->feedback || pack->residual_elems >= shape->count);
}

/* n elements, then zeros up to element `end` of dst. */
static void put(void *dst, size_t at, size_t end, const void *src, size_t n, size_t elem)
{
    uint8_t *place;

    if (end == at) /* there may be no memory at all */
        return;
    place = (uint8_t *)dst + at * elem;
    if (n > 0)
        memcpy(place, src, n * elem);
    memset(place + n * elem, 0, (end - at - n) * elem);
}

/* Sets the packed call's residual too. */
static void pack_members(const struct dsc_pack *pack, const struct dsc_call_args *args,
                         struct dsc_call *call)
{
    const size_t elem = dsc_dtype_bytes(args->shape.dtype);
    float *const r_in = pack->residual;
    size_t at = 0;

    call->residual = (struct dsc_residual){ .in = r_in,
                                            .out = r_in + pack->residual_elems,
                                            .type = DSCOMM_RESIDUAL_FP32,
                                            .known_zero = true };
    for (size_t i = 0; i < args->batch->calls.n; i++) {
        const struct dsc_call_args *const a = &args->batch->calls.args[i];
        const size_t end = next_place(&args->shape, at, a->shape.count);
        struct dsc_residual r;

        put(pack->data, at, end, a->send, a->shape.count, elem);
        if (a->feedback != NULL) {
            dsc_feedback_begin(a->feedback, &r);
            put(r_in, at, end, r.in, a->shape.count, sizeof(float));
            call->residual.beta = r.beta;
            call->residual.known_zero = call->residual.known_zero && r.known_zero;
        }
        at = end;
    }
}

static void unpack_members(const struct dsc_pack *pack, const struct dsc_call_args *args,
                           bool wrote_residual)
{
    const size_t elem = dsc_dtype_bytes(args->shape.dtype);
    size_t at = 0;

    for (size_t i = 0; i < args->batch->calls.n; i++) {
        const struct dsc_call_args *const a = &args->batch->calls.args[i];
        const size_t n = a->shape.count;
        struct dsc_residual r;

        if (n > 0)
            memcpy(a->recv, pack->data + at * elem, n * elem);
        if (a->feedback != NULL) {
            dsc_feedback_begin(a->feedback, &r);
            if (wrote_residual && n > 0)
                memcpy(r.out, pack->residual + pack->residual_elems + at, n * sizeof(float));
            dsc_feedback_finish(a->feedback, wrote_residual);
        }
        at = next_place(&args->shape, at, n);
    }
}

dscomm_status_t dsc_batch_run(struct dscomm_comm *comm, const struct dsc_call_args *args)
{
    struct dsc_call call = { .feedback = args->shape.feedback };
    struct dsc_plan_entry *entry = NULL;

    DSC_TRY(dsc_comm_plan(comm, &args->shape, &entry));
    if (!grow_pack(&comm->pack, &args->shape))
        return dsc_comm_fail(
            comm, entry,
            dsc_fail(DSCOMM_ERR_NO_MEMORY, "%zu elements of fused calls", args->shape.count), -1);
    call.send = call.recv = comm->pack.data;
    pack_members(&comm->pack, args, &call);
    DSC_TRY(dsc_comm_execute(comm, entry, &call));
    unpack_members(&comm->pack, args, dsc_exec_wrote_residual(entry->run));
    return DSCOMM_OK;
}
