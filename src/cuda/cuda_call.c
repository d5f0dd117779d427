/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call. Whether it replays the plan's graph, is enqueued, becomes a part of the caller's
 * capture or is NCCL's own allreduce follows from the calls so far and from settings that all ranks
 * share: never from pointers, and so it is the same on all ranks.
 */
#include "cuda/cuda.h"

#include <stdio.h>
#include <string.h>

#include "cuda/ranges.h"

static dscomm_status_t is_capturing(cudaStream_t stream, bool *out)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

    CUDA_TRY(cudaStreamIsCapturing(stream, &status));
    if (status == cudaStreamCaptureStatusInvalidated)
        return dsc_fail(DSCOMM_ERR_BAD_STATE, "the capture of the stream was invalidated before");
    *out = status == cudaStreamCaptureStatusActive;
    return DSCOMM_OK;
}

/* ---- order of calls ---- */

/* An event that comes from outside of a graph, or goes there, is a node of it. */
static dscomm_status_t enter(struct dsc_cuda_comm *cc, cudaStream_t stream, bool capturing)
{
    CUDA_TRY(cudaStreamWaitEvent(stream, cc->order, capturing ? cudaEventWaitExternal : 0));
    return capturing ? DSCOMM_OK : dsc_watch_begin(cc, stream);
}

static dscomm_status_t leave(struct dsc_cuda_comm *cc, cudaStream_t stream, bool capturing)
{
    CUDA_TRY(cudaEventRecordWithFlags(cc->order, stream, capturing ? cudaEventRecordExternal : 0));
    return capturing ? DSCOMM_OK : dsc_watch_end(cc, stream);
}

/* ---- ncclAllReduce ---- */

static bool is_plain(const struct dsc_cuda_comm *cc, const struct dsc_call_args *a, bool capturing)
{
    const struct dsc_shape *const s = &a->shape;

    if (!s->codec->by_dtype || s->collective != DSC_ALLREDUCE || cc->base.config.exact_order ||
        cc->base.config.preserve_input || dsc_shape_is_tiered(&cc->base, s) ||
        (s->op != DSCOMM_SUM && s->op != DSCOMM_AVG))
        return false;
    return a->feedback == NULL || (!capturing && dsc_feedback_parts(a->feedback).known_zero);
}

static ncclDataType_t nccl_type(dscomm_dtype_t dtype)
{
    return dtype == DSCOMM_FLOAT32   ? ncclFloat32
           : dtype == DSCOMM_FLOAT16 ? ncclFloat16
                                     : ncclBfloat16;
}

/* What a rank of a ring sends. */
static uint64_t ring_bytes(const struct dsc_cuda_comm *cc, const struct dsc_shape *s)
{
    const uint64_t n = (uint64_t)cc->base.n_ranks;

    return 2 * (n - 1) * (s->count * dsc_dtype_bytes(s->dtype) / n);
}

static dscomm_status_t run_plain(struct dsc_cuda_comm *cc, const struct dsc_call_args *a,
                                 cudaStream_t stream)
{
    const struct dsc_shape *const s = &a->shape;

    if (s->count == 0)
        return DSCOMM_OK;
    dsc_range_push("dscomm ncclAllReduce");
    const ncclResult_t result =
        cc->nccl->AllReduce(a->send, a->recv, s->count, nccl_type(s->dtype),
                            s->op == DSCOMM_AVG ? ncclAvg : ncclSum, cc->handle, stream);
    dsc_range_pop();
    NCCL_TRY(cc, result);
    atomic_fetch_add(&cc->plain_calls, 1);
    atomic_fetch_add(&cc->plain_tx_bytes, ring_bytes(cc, s));
    return DSCOMM_OK;
}

/* ---- our own ---- */

/* Where the input goes that the call overwrites. */
static void keep_input(const struct dsc_cuda_run *run, const struct dsc_call_args *a,
                       struct dsc_gpu_call *call)
{
    const struct dsc_overlap input = dsc_call_overlap(&run->comm->base, a);

    if (run->saved == NULL || input.bytes == 0)
        return;
    call->input = input.memory;
    call->saved = run->saved + (uintptr_t)input.memory % 16;
    call->input_bytes = input.bytes;
}

static struct dsc_gpu_call make_call(const struct dsc_cuda_run *run, const struct dsc_call_args *a,
                                     struct dsc_gpu_notes *notes)
{
    const struct dsc_cuda_comm *const cc = run->comm;
    struct dsc_gpu_call call;

    memset(&call, 0, sizeof(call)); /* calls are compared with what is between members, too */
    call.send = a->send;
    call.recv = a->recv;
    call.state = cc->state;
    call.notes = notes;
    call.seed = cc->base.config.seed;
    call.rank = (uint32_t)cc->base.rank;
    call.n_ranks = (uint32_t)cc->base.n_ranks;
    call.dtype = a->shape.dtype;
    call.op = a->shape.op;
    if (a->feedback != NULL) {
        const struct dsc_feedback_parts parts = dsc_feedback_parts(a->feedback);

        call.residual[0] = parts.vectors[0];
        call.residual[1] = parts.vectors[1];
        call.velocity[0] = parts.velocity[0];
        call.velocity[1] = parts.velocity[1];
        call.feedback = parts.state;
        call.beta = parts.beta;
        call.momentum = parts.momentum;
        call.residual_type = parts.type;
    }
    keep_input(run, a, &call);
    return call;
}

static dscomm_status_t update_copies(struct dsc_cuda_run *run, const struct dsc_gpu_call *call)
{
    for (int i = 0; run->saved != NULL && i < 2; i++) {
        struct cudaKernelNodeParams params;
        void *args[1];

        run->copies[i].args.call = *call;
        params = dsc_gpu_node_params(&run->copies[i], args);
        CUDA_TRY(cudaGraphExecKernelNodeSetParams(run->graph, run->copy_nodes[i], &params));
    }
    return DSCOMM_OK;
}

/* Gives the graph's kernels the call; NCCL's nodes know nothing of it. */
static dscomm_status_t update(struct dsc_cuda_run *run, const struct dsc_gpu_call *call)
{
    DSC_TRY(update_copies(run, call));
    for (uint32_t i = 0; i < run->schedule.n_nodes; i++) {
        struct cudaKernelNodeParams params;
        void *args[1];

        if (run->schedule.nodes[i].is_group)
            continue;
        params = dsc_cuda_node_params(run, i, call, args);
        CUDA_TRY(cudaGraphExecKernelNodeSetParams(run->graph, run->nodes[i], &params));
    }
    run->call = *call;
    return DSCOMM_OK;
}

static dscomm_status_t replay(struct dsc_cuda_run *run, const struct dsc_gpu_call *call,
                              cudaStream_t stream)
{
    const bool is_new = memcmp(call, &run->call, sizeof(*call)) != 0;

    if (is_new)
        DSC_TRY(update(run, call));
    atomic_fetch_add(is_new ? &run->comm->graph_updates : &run->comm->graph_hits, 1);
    CUDA_TRY(cudaGraphLaunch(run->graph, stream));
    return DSCOMM_OK;
}

static dscomm_status_t run_call(struct dsc_cuda_run *run, const struct dsc_gpu_call *call,
                                cudaStream_t stream, bool capturing)
{
    if (capturing) {
        DSC_TRY(dsc_cuda_retain(run, stream));
        return dsc_cuda_enqueue(run, call, stream, run->comm->side, NULL);
    }
    if (run->graph != NULL)
        return replay(run, call, stream);
    return dsc_cuda_enqueue(run, call, stream, run->comm->side, NULL);
}

/* ---- a call ---- */

/* How the caller asks for it. */
struct way {
    cudaStream_t stream;
    bool capturing, is_auto;
};

static dscomm_status_t find_plan(struct dsc_cuda_comm *cc, const struct dsc_call_args *a,
                                 const struct way *way, struct dsc_plan_entry **entry_out)
{
    struct dsc_plan_entry *entry = dsc_comm_find_plan(&cc->base, &a->shape);

    if (entry == NULL && way->capturing)
        return dsc_fail(DSCOMM_ERR_BAD_STATE,
                        "the stream is being captured and there is no plan of %zu %s with codec %s "
                        "yet; make the call once before, or dscomm_plan_create()",
                        a->shape.count, dsc_dtype_name(a->shape.dtype), a->shape.codec->spec);
    if (entry == NULL && way->is_auto)
        DSC_TRY(dsc_cuda_settle(cc, way->stream));
    return dsc_comm_plan(&cc->base, &a->shape, entry_out);
}

static dscomm_status_t run_in_order(struct dsc_cuda_comm *cc, struct dsc_cuda_run *run,
                                    const struct dsc_call_args *a, const struct way *way)
{
    const cudaStream_t stream = way->stream;
    const bool capturing = way->capturing;
    struct dsc_gpu_notes *const notes =
        way->is_auto && !capturing && run != NULL ? dsc_cuda_notes_device(cc) : NULL;
    struct dsc_gpu_call call;
    dscomm_status_t st;

    DSC_TRY(dsc_cuda_hold(cc));
    if (run != NULL)
        call = make_call(run, a, notes);
    st = enter(cc, stream, capturing);
    if (st == DSCOMM_OK)
        st = run == NULL ? run_plain(cc, a, stream) : run_call(run, &call, stream, capturing);
    if (st == DSCOMM_OK && !capturing && a->shape.collective == DSC_ALLREDUCE)
        st = dsc_cuda_notes_end(cc, notes != NULL, stream);
    if (st == DSCOMM_OK)
        st = leave(cc, stream, capturing);
    dsc_cuda_let_go(cc);
    /* A capture that fails has run nothing; else the peers wait for what will not come. */
    if (st == DSCOMM_OK || st == DSCOMM_ERR_BAD_STATE || capturing)
        return st;
    st = dsc_comm_fail(&cc->base, NULL, st, -1);
    if (run != NULL)
        dsc_cuda_undo(run, &call, stream);
    return st;
}

/* For whoever asks what was chosen: nothing is known yet of how it went. */
static void publish(struct dsc_cuda_comm *cc, const struct dsc_call_args *a,
                    const struct dscomm_plan *plan)
{
    dscomm_call_stats_t stats = { .struct_bytes = sizeof(stats), .calls = cc->base.sequence };

    stats.payload_tx_bytes = plan == NULL ? ring_bytes(cc, &a->shape) : plan->payload_tx_bytes;
    snprintf(stats.codec, sizeof(stats.codec), "%s", a->shape.codec->spec);
    dsc_notes_publish(&cc->base, &stats);
}

dscomm_status_t dsc_cuda_issue(struct dscomm_comm *comm, dscomm_stream_t *stream,
                               const struct dsc_call_args *args)
{
    struct dsc_cuda_comm *const cc = (struct dsc_cuda_comm *)comm;
    struct way way = { .stream = (cudaStream_t)(void *)stream,
                       .is_auto = args->shape.codec->is_auto };
    struct dsc_call_args chosen = *args;
    struct dsc_plan_entry *entry = NULL;
    struct dsc_cuda_run *run = NULL;
    const uint64_t start = dsc_now_ns();

    dsc_log_set_rank(comm->rank, comm->n_ranks);
    DSC_TRY(dsc_comm_check(comm));
    DSC_TRY(is_capturing(way.stream, &way.capturing));
    DSC_TRY(dsc_cuda_choose(cc, &chosen.shape, way.stream, way.capturing));
    if (!is_plain(cc, &chosen, way.capturing))
        DSC_TRY(find_plan(cc, &chosen, &way, &entry));
    run = entry == NULL ? NULL : entry->run;
    DSC_TRY(run_in_order(cc, run, &chosen, &way));
    if (args->feedback != NULL)
        dsc_feedback_issued(args->feedback, run != NULL && !way.capturing,
                            run != NULL && !run->all_none);
    comm->sequence++;
    publish(cc, &chosen, entry == NULL ? NULL : entry->plan);
    atomic_fetch_add(&comm->call_ns, dsc_now_ns() - start);
    return DSCOMM_OK;
}
