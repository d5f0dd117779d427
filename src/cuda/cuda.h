/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of libdscomm_cuda: communicators over NCCL.
 *
 *   cuda_comm.c      life of a communicator, the backend's table, checks of pointers
 *   cuda_call.c      one call: order, own graph or eager or the caller's capture, ncclAllReduce
 *   cuda_run.c       what a plan needs: memory, tables, first exchange, captured graph
 *   cuda_steps.c     enqueues a schedule on two streams
 *   cuda_agree.c     what ranks must agree on when a communicator or a plan is made
 *   cuda_tiers.c     which ranks are near each other
 *   cuda_auto.c      codec auto: what it needs of this backend
 *   cuda_measure*.c  links and kernels, for it
 *   cuda_notes.c     what calls show, for it
 *   cuda_watch.c     the watchdog; statistics out of the device's ring
 *   cuda_split.c     a communicator of some of the ranks
 *   cuda_feedback.c  residuals in device memory
 *   schedule*.c places.c  a plan as kernels and groups     kernels/  device code
 *   nccl_table.c     NCCL's functions
 *   cuda_direct.c    which plans are one kernel over peer memory, from making to leaving one
 *   peer_two_shot.c peer_connect.c   that kernel's memory and tables; its peers
 */
#ifndef DSC_CUDA_H
#define DSC_CUDA_H

#include "comm/comm.h"
#include "cuda/cuda_error.h"
#include "cuda/nccl_table.h"
#include "cuda/peer_two_shot.h"
#include "cuda/schedule.h"

#define DSC_RING_ENTRIES 4096 /* calls that may end between two looks of the watchdog */

/* What the device writes and the host reads, in mapped host memory. */
struct dsc_mapped {
    struct dsc_gpu_stats ring[DSC_RING_ENTRIES];
    struct dsc_gpu_board board;
};

/* A plan on the device. Lives until it was dropped and no graph of the caller holds it. */
struct dsc_cuda_run {
    struct dsc_cuda_comm *comm;
    struct dsc_cuda_run *next;       /* of comm->runs */
    struct dsc_schedule schedule;    /* direct: the one kernel */
    struct dsc_gpu_two_shot *direct; /* NULL: messages go over NCCL */
    uint16_t id;                     /* in the progress word */
    void *tables;
    uint8_t *messages;
    float *partial;
    uint8_t *saved; /* preserve_input: room for what a call overwrites; else NULL */
    struct dsc_gpu_prepared copies[2]; /* SAVE and UNDO, if there is room */
    cudaGraphNode_t copy_nodes[2];     /* of the graph */
    struct dsc_gpu_prepared *launches; /* [n_nodes], of kernels */
    cudaEvent_t *events;               /* [n_nodes], of nodes that are waited for */
    cudaEvent_t fork, join;
    cudaGraphExec_t graph;  /* NULL: calls are enqueued */
    cudaGraphNode_t *nodes; /* [n_nodes] of the graph, of kernels */
    cudaGraph_t template;
    struct dsc_gpu_call call; /* of the graph's last launch */
    bool all_none;            /* every tier's codec is `none` */
    bool dropped;
    _Atomic int n_graphs; /* of the caller */
};

/* Plans as one kernel over peer memory. */
struct dsc_direct {
    bool is_wanted;               /* by the settings */
    bool is_possible;             /* between these ranks; equal on all of them */
    size_t max_bytes;             /* of a vector, as float32 */
    uint64_t host, process;       /* of this rank, as in struct dsc_two_shot_card */
    struct dsc_cuda_run *leaving; /* dropped ones; peers may still use their memory */
};

struct dsc_watch;
struct dsc_cuda_notes;

struct dsc_cuda_comm {
    struct dscomm_comm base;
    const struct dsc_nccl *nccl;
    ncclComm_t handle;           /* borrowed, or owned: */
    bool is_owner;               /* it was made by a split */
    pthread_mutex_t handle_lock; /* see dsc_cuda_hold() */
    _Atomic bool aborted;        /* the handle is gone */
    int device;
    bool use_graphs;
    cudaStream_t side; /* groups of eager calls */
    cudaStream_t own;  /* for what happens between calls: agreeing, capture */
    cudaStream_t tell; /* for words to peers when this rank gives up */
    cudaEvent_t order; /* end of the last call */
    struct dsc_gpu_state *state;
    struct dsc_mapped *mapped, *mapped_device;
    uint8_t *agree, *agree_device; /* [n_ranks + 1] records */
    struct dsc_cuda_run *runs;     /* dropped ones that graphs hold among them */
    pthread_mutex_t runs_lock;     /* the watchdog looks for names of steps */
    uint16_t next_run;
    struct dsc_tier_facts facts; /* of this rank, if has_facts */
    bool has_facts;
    struct dsc_direct direct;
    struct dsc_watch *watch;
    struct dsc_cuda_notes *notes; /* NULL before the first call with codec auto */
    _Atomic uint64_t graph_hits, graph_updates, graph_misses;
    _Atomic uint64_t plain_calls, plain_tx_bytes; /* ncclAllReduce */
};

/* ---- errors ---- */

dscomm_status_t dsc_nccl_fail(const struct dsc_cuda_comm *cc, ncclResult_t result, const char *what,
                              const char *file, int line);

/* Returns from a function with dscomm_status_t. */
#define NCCL_TRY(cc, expr)                                                  \
    do {                                                                    \
        const ncclResult_t result_ = (expr);                                \
        if (result_ != ncclSuccess && result_ != ncclInProgress)            \
            return dsc_nccl_fail((cc), result_, #expr, __FILE__, __LINE__); \
    } while (0)

/* ---- cuda_comm.c ---- */

/*
 * is_owner: the handle is the new communicator's, and gone if there is none. tiers go before
 * DSCOMM_TIERS, NULL: that.
 */
dscomm_status_t dsc_cuda_create(ncclComm_t handle, bool is_owner,
                                const dscomm_comm_config_t *config, const char *tiers,
                                dscomm_comm_t **comm_out);
/* The device of the communicator is the thread's. */
dscomm_status_t dsc_cuda_check_device(const struct dsc_cuda_comm *cc);

/* ---- cuda_split.c ---- */

dscomm_status_t dsc_cuda_split(struct dscomm_comm *comm, int color, int key,
                               const dscomm_comm_config_t *config, dscomm_comm_t **comm_out);

/* ---- cuda_call.c ---- */

dscomm_status_t dsc_cuda_issue(struct dscomm_comm *comm, dscomm_stream_t *stream,
                               const struct dsc_call_args *args);

/* ---- cuda_run.c ---- */

dscomm_status_t dsc_cuda_prepare(struct dscomm_comm *comm, struct dsc_plan_entry *entry);
void dsc_cuda_drop(struct dsc_plan_entry *entry);
void dsc_cuda_destroy_run(struct dsc_cuda_run *run);
/* Frees dropped runs that no graph holds any more. */
void dsc_cuda_sweep(struct dsc_cuda_comm *cc);
/* Graphs of the caller that hold runs of the communicator. */
int dsc_cuda_live_graphs(struct dsc_cuda_comm *cc);
/* The caller's graph that `stream` is captured into holds the run. */
dscomm_status_t dsc_cuda_retain(struct dsc_cuda_run *run, cudaStream_t stream);

/* ---- cuda_steps.c ---- */

/* For a call that failed while it was enqueued; the communicator has failed. */
void dsc_cuda_undo(struct dsc_cuda_run *run, const struct dsc_gpu_call *call, cudaStream_t stream);

/*
 * Enqueues a call, or adds it to what is being captured. nodes: NULL, or where the graph's nodes of
 * kernels go.
 */
dscomm_status_t dsc_cuda_enqueue(struct dsc_cuda_run *run, const struct dsc_gpu_call *call,
                                 cudaStream_t stream, cudaStream_t side, cudaGraphNode_t *nodes);

/* Of a kernel node with this call; they point into the run and args_out, [1]. */
struct cudaKernelNodeParams dsc_cuda_node_params(struct dsc_cuda_run *run, uint32_t index,
                                                 const struct dsc_gpu_call *call, void **args_out);

/* ---- cuda_agree.c ---- */

#define DSC_AGREE_BYTES 1024 /* of a record */

/*
 * Collective: every rank says how it fared and what must be equal, "key=value key=value". Returns
 * `st` of the lowest rank that failed, DSCOMM_ERR_MISMATCH naming field and values, or DSCOMM_OK:
 * the same on all ranks.
 */
dscomm_status_t dsc_cuda_agree(struct dsc_cuda_comm *cc, dscomm_status_t st, const char *text);
/* The same for what is no error if not all ranks can do it: the thread's last error says why not.
 */
dscomm_status_t dsc_cuda_all_can(struct dsc_cuda_comm *cc, dscomm_status_t st, bool *out);
/*
 * Collective: every rank's record of n bytes, DSC_AGREE_BYTES at most. The own one is at cc->agree,
 * all of them are at cc->agree + n afterwards.
 */
dscomm_status_t dsc_cuda_gather(struct dsc_cuda_comm *cc, size_t n);

/* ---- cuda_tiers.c ---- */

/* What this rank knows of its host and its device's links: looked for once. */
const struct dsc_tier_facts *dsc_cuda_facts(struct dsc_cuda_comm *cc, const struct dsc_env *env);
/* Makes the communicator's tiers. given: "" or them. Collective; the settings were compared. */
dscomm_status_t dsc_cuda_find_tiers(struct dsc_cuda_comm *cc, const struct dsc_env *env,
                                    const char *given);
/* Waits, with the communicator's deadline, for all that `own` has. what: for the error. */
dscomm_status_t dsc_cuda_wait_own(struct dsc_cuda_comm *cc, const char *what);
/*
 * Waits for an event of the caller's stream, which may have much to do besides: without a deadline,
 * but that of the watchdog for calls.
 */
dscomm_status_t dsc_cuda_wait_event(struct dsc_cuda_comm *cc, cudaEvent_t event);

/* ---- cuda_auto.c, cuda_measure.c: see struct dsc_backend ---- */

dscomm_status_t dsc_cuda_gather_bytes(struct dscomm_comm *comm, const void *own, size_t n,
                                      uint8_t *all);
dscomm_status_t dsc_cuda_measure(struct dscomm_comm *comm, const struct dsc_measure *what,
                                 int budget_ms, struct dsc_rates *rates_out);
void dsc_cuda_describe(const struct dscomm_comm *comm, struct dsc_fingerprint *machine);
/*
 * Waits for the caller's stream: ranks will talk, when the caller does not expect it, and NCCL does
 * not know the order of that and of graphs with calls in them that are under way.
 */
dscomm_status_t dsc_cuda_settle(struct dsc_cuda_comm *cc, cudaStream_t stream);
/*
 * A call's shape with what is chosen for it, if its codec is auto; of a call that is captured with
 * what was chosen before.
 */
dscomm_status_t dsc_cuda_choose(struct dsc_cuda_comm *cc, struct dsc_shape *shape,
                                cudaStream_t stream, bool capturing);

/* ---- cuda_notes.c: of allreduces that are not captured ---- */

/* Before the choice: tells the guard what is due by now. Equal on all ranks. */
dscomm_status_t dsc_cuda_notes_begin(struct dsc_cuda_comm *cc);
/* After it: keeps what was chosen; the first call with codec auto makes room. An error has been
 * told to the peers. */
dscomm_status_t dsc_cuda_notes_chosen(struct dsc_cuda_comm *cc);
/* Where kernels write; NULL: nobody asks. */
struct dsc_gpu_notes *dsc_cuda_notes_device(const struct dsc_cuda_comm *cc);
/* The call is enqueued; kernels note it, or not. The handle is held. */
dscomm_status_t dsc_cuda_notes_end(struct dsc_cuda_comm *cc, bool is_noted, cudaStream_t stream);
void dsc_cuda_notes_destroy(struct dsc_cuda_comm *cc);

/* ---- cuda_direct.c ---- */

/* Collective, when a communicator is made: finds out what is possible. */
dscomm_status_t dsc_direct_init(struct dsc_cuda_comm *cc, const struct dsc_env *env);
/*
 * Collective, on ranks that have agreed on the plan: makes run->direct and its schedule, or leaves
 * the plan to NCCL and logs why. An error is one of agreeing.
 */
dscomm_status_t dsc_direct_prepare(struct dsc_cuda_run *run, const struct dscomm_plan *plan);
/* Of a run->direct whose calls have ended and that is in no list: leaves, and frees in time. */
void dsc_direct_leave(struct dsc_cuda_run *run);
/* Frees what all peers have left by now. */
void dsc_direct_sweep(struct dsc_cuda_comm *cc);
/* Waits for peers to leave; what they do not leave in time stays until the process ends. */
void dsc_direct_close(struct dsc_cuda_comm *cc);
/* Ends the waits of all peers in calls of these runs. Threads: any, with runs_lock held. */
void dsc_direct_tell(struct dsc_cuda_comm *cc);

/* ---- cuda_watch.c ---- */

/*
 * Whoever gives NCCL work holds the handle meanwhile, so that no abort takes it away.
 * DSCOMM_ERR_BAD_STATE, and it is not held: the communicator has failed.
 */
dscomm_status_t dsc_cuda_hold(struct dsc_cuda_comm *cc);
void dsc_cuda_let_go(struct dsc_cuda_comm *cc);

dscomm_status_t dsc_watch_start(struct dsc_cuda_comm *cc);
void dsc_watch_stop(struct dsc_cuda_comm *cc);
/* A call of the host begins, or has been enqueued, on a stream that is not captured. */
dscomm_status_t dsc_watch_begin(struct dsc_cuda_comm *cc, cudaStream_t stream);
dscomm_status_t dsc_watch_end(struct dsc_cuda_comm *cc, cudaStream_t stream);
/* Aborts NCCL's communicator and fails this one. Threads: any. */
void dsc_watch_fail(struct dsc_cuda_comm *cc, dscomm_status_t st, const char *text);
/* This thread is in a function of NCCL that waits for other ranks: the watchdog's deadline runs. */
void dsc_watch_blocking(struct dsc_cuda_comm *cc, bool is_blocking);
/* The watchdog fails the communicator soon. Threads: any. */
void dsc_watch_abort(struct dsc_cuda_comm *cc);
void dsc_watch_stats(const struct dsc_cuda_comm *cc, dscomm_stats_t *stats);

/* ---- cuda_feedback.c ---- */

extern const struct dsc_feedback_memory dsc_cuda_memory;

#endif
