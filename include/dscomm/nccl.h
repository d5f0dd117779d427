/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DSComm on GPUs: a communicator over an ncclComm_t, feedback objects in device memory. In
 * libdscomm_cuda, which needs libcudart and libnccl; what is declared in dscomm.h is in libdscomm.
 * Tested on an emulator alone: nothing of this has run on a GPU yet.
 *
 * On such a communicator
 *   - send, recv and feedback objects are in device memory of its device, which is the calling
 *     thread's current one;
 *   - `stream` is a cudaStream_t, see dscomm_cuda_stream(); NULL is the default stream. A call
 *     returns when it is enqueued. Calls run in issue order, whatever their streams;
 *   - the first call of a shape, or dscomm_plan_create(), talks to all ranks and waits for them;
 *   - calls may be captured into CUDA graphs of the caller, if the plan exists: nothing is
 *     allocated, connected or waited for then, nor when the graph is launched. All ranks capture
 *     the same calls and launch their graphs as often. Graphs with calls of a communicator end
 *     before it does;
 *   - with the config's preserve_input an in-place call that fails has its input back when its
 *     stream, or the graph it is in, has come to its end;
 *   - "none" without feedback, for sums and averages, is ncclAllReduce(), unless the config's
 *     exact_order or preserve_input is 1; so it is, outside of captures, with a feedback object
 *     that is known to be zero, which therefore must be so on all ranks;
 *   - with DSCOMM_CUDA_DIRECT calls may run over memory of peers instead of NCCL. Then ranks
 *     destroy their communicators at about the same time: dscomm_comm_destroy() waits up to 10 s
 *     for the others, and memory that they still use stays until the process ends, as it does if
 *     the communicator has failed;
 *   - dscomm_comm_split() is ncclCommSplit(), and the new communicator ends its own ncclComm_t. Not
 *     while the thread captures a stream;
 *   - codecs whose messages vary in length are not there: lossless ones;
 *   - the first call with codec "auto" talks to all ranks, and measures where no profile fits. In a
 *     capture such a call has the choice of the last one that was not captured, and keeps it;
 *     before there was one it is refused.
 */
#ifndef DSCOMM_NCCL_H
#define DSCOMM_NCCL_H

#include "dscomm/dscomm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As in nccl.h and cuda_runtime_api.h, which need not be there. */
typedef struct ncclComm *ncclComm_t;
typedef struct CUstream_st *cudaStream_t;

/** The stream argument of collectives on such a communicator. */
static inline dscomm_stream_t *dscomm_cuda_stream(cudaStream_t stream)
{
    return (dscomm_stream_t *)(void *)stream;
}

/**
 * Make a communicator of the ranks of an ncclComm_t. Collective.
 *
 * @param nccl     Borrowed until the communicator is destroyed; the device is its device. If a call
 *                 fails or its deadline passes the library calls ncclCommAbort() on it: then it is
 *                 gone, and must not be destroyed. Until dscomm_comm_destroy() nobody else uses it
 *                 while calls are in flight.
 * @param config   Borrowed for the call; NULL for defaults. n_threads and transport mean nothing
 *                 here; chunk_bytes 0 is DSCOMM_CUDA_CHUNK_BYTES. preserve_input, equal on all
 *                 ranks, is memory for the largest input per plan, and two kernels per call.
 * @param comm_out Owned by the caller; untouched on error.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_INVALID      bad argument, or another device is current
 *         DSCOMM_ERR_UNSUPPORTED  no libnccl.so.2
 *         DSCOMM_ERR_MISMATCH     ranks differ in a shared setting, which is named
 *         DSCOMM_ERR_TIMEOUT      a rank never came
 *         DSCOMM_ERR_NO_MEMORY, DSCOMM_ERR_SYSTEM
 *
 * Threads: different ranks may join from different threads of one process.
 */
DSCOMM_API dscomm_status_t dscomm_comm_create_nccl(ncclComm_t nccl,
                                                   const dscomm_comm_config_t *config,
                                                   dscomm_comm_t **comm_out);

/**
 * A residual of zeros on the current device. All functions of feedback.h work on it; they wait for
 * the device, and no call that uses the object may be in flight. A call that failed leaves the
 * residual as it was, and it cannot be rolled back, as on hosts.
 *
 * @return as dscomm_feedback_create()
 */
DSCOMM_API dscomm_status_t dscomm_feedback_create_cuda(size_t count,
                                                       const dscomm_feedback_config_t *config,
                                                       dscomm_feedback_t **fb_out);

#ifdef __cplusplus
}
#endif
#endif
