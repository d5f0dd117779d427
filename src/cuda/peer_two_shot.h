/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Setting up and running the single-kernel two-shot of kernels/two_shot.h: memory, tables and the
 * addresses of peers. Who uses it carries cards between ranks, and sees to these orders:
 *
 *   create, wait for the stream, exchange cards, connect, meet, run ..., leave, destroy when all
 *   ranks have left
 *
 * since peers write into an arena as soon as they are connected, and read it after its own rank's
 * last kernel has ended. If not all ranks can connect: disconnect, meet, destroy.
 *
 *   peer_two_shot.c   memory, tables, launches     peer_connect.c   peers
 */
#ifndef DSC_CUDA_PEER_TWO_SHOT_H
#define DSC_CUDA_PEER_TWO_SHOT_H

#include "kernels/two_shot.h"
#include "plan/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a rank tells its peers. From a peer, and so not trusted. */
struct dsc_two_shot_card {
    uint64_t host;    /* hash of the host's identity */
    uint64_t process; /* equal: the same address space */
    uint64_t address; /* of the arena, for ranks of the process */
    uint64_t arena_bytes;
    uint32_t n_blocks; /* that its device holds at a time */
    int32_t device;    /* in the process */
    cudaIpcMemHandle_t handle;
};

struct dsc_gpu_two_shot {
    int n_ranks, n_local;
    int local[DSC_TWO_SHOT_RANKS];    /* ranks of this launch */
    uint8_t *own[DSC_TWO_SHOT_RANKS]; /* [n_local] arenas */
    void *opened[DSC_TWO_SHOT_RANKS]; /* [n_ranks] arenas of other processes */
    size_t arena_bytes;
    void *tables, *host_tables;
    const void *function;
    uint32_t n_blocks; /* of each rank; equal on all ranks once connected */
    struct dsc_two_shot_args args;
};

/**
 * Whether a plan can run as one kernel.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_UNSUPPORTED  the text says why
 */
dscomm_status_t dsc_gpu_two_shot_supports(const struct dscomm_plan *plan);

/**
 * Memory and tables of ranks that share the current device: one, or several virtual ones.
 *
 * @param plans      [n_local] supported plans of one call, of different ranks; not kept.
 * @param timeout_ns Of a kernel's waits.
 * @param stream     Fills the memory; to be waited for before cards are exchanged.
 */
dscomm_status_t dsc_gpu_two_shot_create(const struct dscomm_plan *const *plans, int n_local,
                                        uint64_t timeout_ns, cudaStream_t stream,
                                        struct dsc_gpu_two_shot **out);

/* What peers must know of local rank i. host, process: see struct dsc_two_shot_card. */
dscomm_status_t dsc_gpu_two_shot_card(const struct dsc_gpu_two_shot *ts, int i, uint64_t host,
                                      uint64_t process, struct dsc_two_shot_card *card_out);

/**
 * Makes the arenas of all ranks reachable.
 *
 * @param cards [n_ranks], of all ranks, by rank; those of local ranks are the own ones.
 * @return DSCOMM_OK
 *         DSCOMM_ERR_UNSUPPORTED  a peer's memory cannot be reached; the text says whose
 */
dscomm_status_t dsc_gpu_two_shot_connect(struct dsc_gpu_two_shot *ts,
                                         const struct dsc_two_shot_card *cards);

/* Enqueues a call. calls: [n_local]; each has a state of its own. */
cudaError_t dsc_gpu_two_shot_run(struct dsc_gpu_two_shot *ts, const struct dsc_gpu_call *calls,
                                 cudaStream_t stream);

/* The kernel node's parameters with other calls, as dsc_gpu_node_params() has them. */
struct cudaKernelNodeParams dsc_gpu_two_shot_node_params(struct dsc_gpu_two_shot *ts,
                                                         const struct dsc_gpu_call *calls,
                                                         void **args_out);

/*
 * Enqueues words that end the waits of all peers, now and later. Errors are nobody's concern: a
 * peer that is not told has its deadline.
 */
void dsc_gpu_two_shot_tell(const struct dsc_gpu_two_shot *ts, cudaStream_t stream);

/* Lets go of peers' memory; all launches have ended. */
void dsc_gpu_two_shot_disconnect(struct dsc_gpu_two_shot *ts);
/*
 * Tells all peers so, and disconnects. Connected on all ranks; all launches have ended. Waits for
 * the stream, on which nothing else is.
 */
dscomm_status_t dsc_gpu_two_shot_leave(struct dsc_gpu_two_shot *ts, cudaStream_t stream);
/* What ranks, this one too, have written into the arena of local rank i. Waits likewise. */
dscomm_status_t dsc_gpu_two_shot_read_notes(const struct dsc_gpu_two_shot *ts, int i,
                                            cudaStream_t stream, struct dsc_two_shot_notes *out);
/* Frees the own memory, which all peers have let go of. NULL allowed. */
void dsc_gpu_two_shot_destroy(struct dsc_gpu_two_shot *ts);
/* The same, but for the arenas: peers may still write there, so they stay until the process ends.
 */
void dsc_gpu_two_shot_abandon(struct dsc_gpu_two_shot *ts);

#ifdef __cplusplus
}
#endif

#endif
