/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule on two streams: kernels on the caller's, groups beside it. The same calls enqueue work
 * and, where the caller's stream is captured, make a graph: the second stream joins the capture
 * with the first event it waits for and leaves it with the last one.
 */
#include "cuda/cuda.h"

#include "cuda/ranges.h"

/* The node that was added last to what the stream captures: the one a next node would depend on. */
static dscomm_status_t last_captured(cudaStream_t stream, cudaGraphNode_t *node_out)
{
    enum cudaStreamCaptureStatus status;
    const cudaGraphNode_t *nodes = NULL;
    size_t n = 0;

    CUDA_TRY(cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, &nodes, NULL, &n));
    if (status != cudaStreamCaptureStatusActive || n != 1)
        return dsc_fail(DSCOMM_ERR_SYSTEM, "a captured kernel is %zu nodes, must be 1", n);
    *node_out = nodes[0];
    return DSCOMM_OK;
}

static dscomm_status_t launch(struct dsc_cuda_run *run, uint32_t index,
                              const struct dsc_gpu_call *call, cudaStream_t stream,
                              cudaGraphNode_t *nodes)
{
    if (run->direct != NULL) {
        CUDA_TRY(dsc_gpu_two_shot_run(run->direct, call, stream));
    } else {
        run->launches[index].args.call = *call;
        CUDA_TRY(dsc_gpu_launch(&run->launches[index], stream));
    }
    return nodes == NULL ? DSCOMM_OK : last_captured(stream, &nodes[index]);
}

enum { SAVE, UNDO };

/* SAVE or UNDO, if the run has them. */
static dscomm_status_t copy_input(struct dsc_cuda_run *run, int which,
                                  const struct dsc_gpu_call *call, cudaStream_t stream,
                                  cudaGraphNode_t *nodes)
{
    if (run->saved == NULL)
        return DSCOMM_OK;
    run->copies[which].args.call = *call;
    CUDA_TRY(dsc_gpu_launch(&run->copies[which], stream));
    return nodes == NULL ? DSCOMM_OK : last_captured(stream, &run->copy_nodes[which]);
}

void dsc_cuda_undo(struct dsc_cuda_run *run, const struct dsc_gpu_call *call, cudaStream_t stream)
{
    if (copy_input(run, UNDO, call, stream, NULL) < 0)
        dsc_log_warn(CUDA, "the input of the call cannot be restored");
}

static dscomm_status_t transfer(struct dsc_cuda_run *run, const struct dsc_node *node,
                                cudaStream_t side)
{
    const struct dsc_nccl *const nccl = run->comm->nccl;
    ncclResult_t first = ncclSuccess, end;

    NCCL_TRY(run->comm, nccl->GroupStart());
    for (uint32_t i = node->first; i < node->first + node->n && first == ncclSuccess; i++) {
        const struct dsc_transfer *const t = &run->schedule.transfers[i];
        uint8_t *const at = run->messages + t->at;

        first = t->is_send ? nccl->Send(at, t->bytes, ncclUint8, t->peer, run->comm->handle, side)
                           : nccl->Recv(at, t->bytes, ncclUint8, t->peer, run->comm->handle, side);
        first = first == ncclInProgress ? ncclSuccess : first;
    }
    end = nccl->GroupEnd(); /* in any case: the thread's group must not stay open */
    NCCL_TRY(run->comm, first);
    NCCL_TRY(run->comm, end);
    return DSCOMM_OK;
}

static const char *range_name(const struct dsc_cuda_run *run, const struct dsc_node *node)
{
    return run->direct != NULL ? "dscomm TWO_SHOT"
           : node->is_group    ? "dscomm EXCHANGE"
                               : dsc_gpu_stage_name(node->stage);
}

static dscomm_status_t enqueue_node(struct dsc_cuda_run *run, uint32_t index,
                                    const struct dsc_gpu_call *call, cudaStream_t stream,
                                    cudaStream_t side, cudaGraphNode_t *nodes)
{
    const struct dsc_node *const node = &run->schedule.nodes[index];
    const cudaStream_t mine = node->is_group ? side : stream;
    dscomm_status_t st;

    if (node->waits != DSC_NO_NODE)
        CUDA_TRY(cudaStreamWaitEvent(mine, run->events[node->waits], 0));
    dsc_range_push(range_name(run, node));
    st = node->is_group ? transfer(run, node, side) : launch(run, index, call, stream, nodes);
    dsc_range_pop();
    if (st == DSCOMM_OK && node->is_waited)
        CUDA_TRY(cudaEventRecord(run->events[index], mine));
    return st;
}

struct cudaKernelNodeParams dsc_cuda_node_params(struct dsc_cuda_run *run, uint32_t index,
                                                 const struct dsc_gpu_call *call, void **args_out)
{
    if (run->direct != NULL)
        return dsc_gpu_two_shot_node_params(run->direct, call, args_out);
    run->launches[index].args.call = *call;
    return dsc_gpu_node_params(&run->launches[index], args_out);
}

dscomm_status_t dsc_cuda_enqueue(struct dsc_cuda_run *run, const struct dsc_gpu_call *call,
                                 cudaStream_t stream, cudaStream_t side, cudaGraphNode_t *nodes)
{
    const bool forks = run->schedule.n_groups > 0;

    DSC_TRY(copy_input(run, SAVE, call, stream, nodes));
    if (forks) {
        CUDA_TRY(cudaEventRecord(run->fork, stream));
        CUDA_TRY(cudaStreamWaitEvent(side, run->fork, 0));
    }
    for (uint32_t i = 0; i < run->schedule.n_nodes; i++)
        DSC_TRY(enqueue_node(run, i, call, stream, side, nodes));
    if (forks) {
        CUDA_TRY(cudaEventRecord(run->join, side));
        CUDA_TRY(cudaStreamWaitEvent(stream, run->join, 0));
    }
    return copy_input(run, UNDO, call, stream, nodes);
}
