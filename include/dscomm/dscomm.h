/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DSComm: compressed AllReduce. A communicator joins ranks (processes or threads) over shared
 * memory or TCP; dscomm_allreduce_compressed() reduces a vector over them in the precision of a
 * codec, with error feedback, and leaves identical bits on every rank. Needs no CUDA.
 *
 * Every wait has a deadline (timeout_ms). After an error that reaches other ranks the communicator
 * has failed: further calls return DSCOMM_ERR_BAD_STATE with the first error's text; destroy it.
 * Argument errors are found before anything is touched and leave the communicator usable.
 */
#ifndef DSCOMM_H
#define DSCOMM_H

#include <stddef.h>
#include <stdint.h>

#include "dscomm/codec.h"
#include "dscomm/feedback.h"
#include "dscomm/status.h"

#define DSCOMM_VERSION_MAJOR 0
#define DSCOMM_VERSION_MINOR 1
#define DSCOMM_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dscomm_comm dscomm_comm_t;
typedef struct dscomm_stream dscomm_stream_t;
typedef struct dscomm_plan dscomm_plan_t;

typedef enum {
    DSCOMM_FLOAT32 = 0,
    DSCOMM_FLOAT16 = 1,
    DSCOMM_BFLOAT16 = 2,
} dscomm_dtype_t;

typedef enum {
    DSCOMM_SUM = 0,
    DSCOMM_AVG = 1,
    DSCOMM_MAX = 2, /* max and min: no feedback; NaN wins; +0 > -0 */
    DSCOMM_MIN = 3,
} dscomm_op_t;

typedef enum {
    DSCOMM_LOG_ERROR = 0,
    DSCOMM_LOG_WARN = 1,
    DSCOMM_LOG_INFO = 2,
    DSCOMM_LOG_DEBUG = 3,
} dscomm_log_level_t;

/** Version as "0.1.0". */
DSCOMM_API const char *dscomm_version(void);

/**
 * Route log lines to a function instead of stderr (NULL: back to stderr).
 *
 * @param fn   Called with one line without newline, from any thread; must not call the library.
 * @param user Passed through; must outlive the last call.
 *
 * Threads: call before the first communicator exists.
 */
typedef void dscomm_log_fn(void *user, dscomm_log_level_t level, const char *line);
DSCOMM_API void dscomm_set_log(dscomm_log_fn *fn, void *user);

/** ------------------------------------------------------------------ communicator ---------- */

/* Opaque bytes that one rank makes and hands to all; holds an address and a secret. */
typedef struct {
    unsigned char bytes[128];
} dscomm_unique_id_t;

typedef struct {
    size_t struct_bytes; /* sizeof(dscomm_comm_config_t) */
    int timeout_ms;      /* deadline of every wait; 0: DSCOMM_TIMEOUT_MS */
    int n_threads; /* threads that compute in a call, the caller included; 0: DSCOMM_THREADS */
    /* The next three must be equal on all ranks. */
    size_t chunk_bytes;    /* float32 bytes per message; 0: DSCOMM_CHUNK_BYTES */
    const char *transport; /* "auto", "loopback", "shm", "verbs", "tcp", "nccl_net"; NULL:
                              DSCOMM_TRANSPORT */
    const char *algorithm; /* "auto", "oneshot", "twoshot", "tiered"; NULL: DSCOMM_ALGORITHM */
    int preserve_input;    /* 1: an in-place call that fails restores its input; costs a copy */
    unsigned seed;         /* of stochastic rounding, equal on all ranks; 0: DSCOMM_SEED */
    /* In groups, smaller allreduces use "none"; equal on all ranks; 0: none is too small. */
    size_t min_bytes;
    /*
     * CUDA: 1: "none" too is summed in the order of ranks, with the bits of a host communicator,
     * and not by NCCL. Equal on all ranks; 0: DSCOMM_EXACT_ORDER.
     */
    int exact_order;
} dscomm_comm_config_t;

#define DSCOMM_COMM_CONFIG_INIT                                       \
    {                                                                 \
        sizeof(dscomm_comm_config_t), 0, 0, 0, NULL, NULL, 0, 0, 0, 0 \
    }

/**
 * Make the id of a new communicator and start its rendezvous in a thread of this process, which
 * ends when all ranks have come or at the deadline. Any process may call it.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_ENV     DSCOMM_SOCKET_IFNAME names no interface
 *         DSCOMM_ERR_SYSTEM  no port or thread to be had
 */
DSCOMM_API dscomm_status_t dscomm_unique_id_create(dscomm_unique_id_t *id_out);

/**
 * Join a communicator; returns when all ranks have joined.
 *
 * @param n_ranks  World size, 1 to 65535.
 * @param rank     0 to n_ranks - 1, each used once.
 * @param id       Borrowed for the call.
 * @param config   Borrowed for the call; NULL for defaults.
 * @param comm_out Owned by the caller; untouched on error.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_INVALID   bad argument
 *         DSCOMM_ERR_ENV       a DSCOMM_* variable is bad: named with its value and the range
 *         DSCOMM_ERR_TIMEOUT   the text names the ranks that never came
 *         DSCOMM_ERR_MISMATCH  ranks differ in version, world size or a shared setting
 *
 * Threads: different ranks may join from different threads of one process.
 */
DSCOMM_API dscomm_status_t dscomm_comm_create(int n_ranks, int rank, const dscomm_unique_id_t *id,
                                              const dscomm_comm_config_t *config,
                                              dscomm_comm_t **comm_out);

/**
 * Join from the launcher's variables: RANK and WORLD_SIZE (torchrun), OMPI_COMM_WORLD_* or PMI_*
 * (mpirun), SLURM_PROCID and SLURM_NTASKS (srun). The rendezvous is at MASTER_ADDR, port
 * DSCOMM_PORT, else MASTER_PORT + 1. The key is DSCOMM_SECRET, else derived from the job id, which
 * keeps accidents out but not attackers.
 *
 * @return as dscomm_comm_create(); DSCOMM_ERR_ENV names the missing variables
 */
DSCOMM_API dscomm_status_t dscomm_comm_create_from_env(const dscomm_comm_config_t *config,
                                                       dscomm_comm_t **comm_out);

/**
 * Split a communicator: ranks that pass the same color join a new one, ordered by key, then by
 * rank. Collective on comm, in the order of its calls. The new one is independent: it has
 * connections of its own, a failure of either leaves the other alone, and each is destroyed by
 * itself.
 *
 * @param color    0 or more; negative: this rank joins none and gets NULL.
 * @param key      Any.
 * @param config   Borrowed for the call; NULL: the settings of comm.
 * @param comm_out Owned by the caller; untouched on error.
 *
 * @return as dscomm_comm_create(), and as dscomm_allreduce_compressed() on comm
 *         DSCOMM_ERR_BAD_STATE  comm failed before, or the thread has a group open
 */
DSCOMM_API dscomm_status_t dscomm_comm_split(dscomm_comm_t *comm, int color, int key,
                                             const dscomm_comm_config_t *config,
                                             dscomm_comm_t **comm_out);

/**
 * Leaves and frees. Waits for queued calls. NULL is allowed. Not while a call runs on it.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_BAD_STATE  a CUDA communicator whose calls are in CUDA graphs that still
 *                               exist: nothing was done; destroy the graphs first
 */
DSCOMM_API dscomm_status_t dscomm_comm_destroy(dscomm_comm_t *comm);

/**
 * Makes the running call, on this and on all other ranks, end with DSCOMM_ERR_ABORTED soon.
 * Threads: any, that is its purpose.
 */
DSCOMM_API dscomm_status_t dscomm_comm_abort(dscomm_comm_t *comm);

/**
 * First error of the communicator, DSCOMM_OK while it works. text_out (may be NULL) is borrowed
 * until the communicator is destroyed.
 * Threads: any.
 */
DSCOMM_API dscomm_status_t dscomm_comm_async_error(const dscomm_comm_t *comm,
                                                   const char **text_out);

DSCOMM_API int dscomm_comm_rank(const dscomm_comm_t *comm);
DSCOMM_API int dscomm_comm_n_ranks(const dscomm_comm_t *comm);

/**
 * Which ranks are near each other, in the form of DSCOMM_TIERS: "0-2|3-6/0-6" are two groups,
 * joined by slower links. "" for NULL. Borrowed until the communicator is destroyed.
 */
DSCOMM_API const char *dscomm_comm_tiers(const dscomm_comm_t *comm);

typedef struct {
    size_t struct_bytes;       /* in: sizeof(dscomm_stats_t) */
    uint64_t calls;            /* finished collectives */
    uint64_t wire_tx_bytes;    /* sent, headers included */
    uint64_t wire_rx_bytes;    /* received, headers included */
    uint64_t payload_tx_bytes; /* sent, without headers */
    uint64_t nonfinite_elems;  /* output elements that were not finite */
    uint64_t wait_ns;          /* time in calls with nothing to do but wait */
    uint64_t call_ns;          /* time in calls */
    uint64_t plans;            /* plans created */
    /* Of CUDA graphs that the library replays; 0 on CPUs. */
    uint64_t graph_hits;    /* replayed as it was */
    uint64_t graph_updates; /* replayed with other pointers */
    uint64_t graph_misses;  /* captured first */
} dscomm_stats_t;

/** Totals since creation. Threads: any; a running call may be half counted. */
DSCOMM_API dscomm_status_t dscomm_comm_stats(const dscomm_comm_t *comm, dscomm_stats_t *stats_out);

typedef struct {
    size_t struct_bytes; /* in: sizeof(dscomm_call_stats_t) */
    uint64_t calls;      /* finished collectives, this one included: its number */
    char codec[64];      /* what was really used; with tiers, on the slowest */
    uint64_t call_ns;    /* from when its plan was there */
    uint64_t wait_ns;    /* with nothing to do but wait */
    uint64_t payload_tx_bytes;
    uint64_t nonfinite_elems; /* output elements that were not finite: of all */
    /*
     * Seen in samples: in 256 of every 32768 elements of a message (its first ones). Not bit-exact,
     * and sampled outputs are those of this rank.
     */
    double relative_error; /* ||x - D|| / ||x|| of what this rank encoded; 0: nothing lossy, or with
                              momentum, or a codec of large segments without feedback: not known */
    double residual_ratio; /* ||r'|| / ||v||: what error feedback keeps back, over the input */
    double output_sum_of_squares; /* of the sampled outputs, scaled up to the number of outputs */
    double output_zero_share;     /* 0 to 1 */
    uint64_t sampled_outputs;
    uint32_t note; /* of an allreduce: what ranks told each other of the one before, all together;
                      docs/wire_format.md */
} dscomm_call_stats_t;

/**
 * About the last finished collective; on a CUDA communicator about the last one that was issued or
 * captured: its number, codec and payload_tx_bytes, all else is 0. Threads: any.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_INVALID      bad argument
 *         DSCOMM_ERR_BAD_STATE    there was no call yet
 */
DSCOMM_API dscomm_status_t dscomm_comm_last_call(const dscomm_comm_t *comm,
                                                 dscomm_call_stats_t *stats_out);

/** ------------------------------------------------------------------ streams --------------- */

/**
 * An ordered queue of calls with a thread of its own. One thread at a time may add to it.
 */
DSCOMM_API dscomm_status_t dscomm_stream_create(dscomm_stream_t **stream_out);
/** Waits for queued calls, then frees. NULL is allowed. */
DSCOMM_API void dscomm_stream_destroy(dscomm_stream_t *stream);
/** Waits for all queued calls; returns the first error among them since the last synchronize. */
DSCOMM_API dscomm_status_t dscomm_stream_synchronize(dscomm_stream_t *stream);
/** DSCOMM_OK when idle, DSCOMM_IN_PROGRESS else. */
DSCOMM_API dscomm_status_t dscomm_stream_query(dscomm_stream_t *stream);

/** ------------------------------------------------------------------ collectives ----------- */

/**
 * AllReduce with compressed messages.
 *
 * @param send     [count] elements of dtype, any alignment of the element; may equal recv, may not
 *                 overlap it otherwise.
 * @param recv     [count] elements of dtype. Undefined if the call fails.
 * @param count    Elements; any, also 0 and beyond 2^31.
 * @param codec    From dscomm_codec_parse(); NULL means "none".
 * @param feedback Of the same count, used by one call at a time; NULL for none. Not with MAX, MIN,
 *                 nor with a codec that rounds stochastically (",sr").
 * @param stream   NULL: blocking call. Else the call is queued, send, recv and feedback stay the
 *                 call's until the stream is synchronized.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_INVALID    bad argument; nothing was touched
 *         DSCOMM_ERR_BAD_STATE  the communicator failed before
 *         DSCOMM_ERR_MISMATCH   ranks called with different arguments; names the field and values
 *         DSCOMM_ERR_LIMIT      count needs larger DSCOMM_CHUNK_BYTES; the communicator has failed
 *         DSCOMM_ERR_TIMEOUT, DSCOMM_ERR_PEER_LOST, DSCOMM_ERR_CORRUPT, DSCOMM_ERR_ABORTED
 *
 * Numerics: all ranks get identical bits, the same on every run, for any chunk size, thread count
 *           and transport. An element with a NaN or Inf input is not finite on any rank.
 * Threads:  calls on one communicator run in issue order; one thread at a time may issue.
 * Memory:   the first call of a shape (count, dtype, op, codec, feedback or not) makes a plan;
 *           later calls allocate nothing.
 */
DSCOMM_API dscomm_status_t dscomm_allreduce_compressed(const void *send, void *recv, size_t count,
                                                       dscomm_dtype_t dtype, dscomm_op_t op,
                                                       const dscomm_codec_t *codec,
                                                       dscomm_feedback_t *feedback,
                                                       dscomm_comm_t *comm,
                                                       dscomm_stream_t *stream);

/**
 * Reduce-scatter: the first half of an allreduce. Rank k gets elements [k*recv_count,
 * (k+1)*recv_count) of the sum. The others' values of them are compressed, its own is not, nor is
 * the result. An all-gather with the same codec completes it: for float32 and DSCOMM_SUM, and a
 * recv_count that is a multiple of 256, both give the bits of a two-shot allreduce of recv_count x
 * n_ranks elements on up to 32 ranks (fp16 scales sums to keep them in range, so it may differ at
 * the ends of that).
 *
 * @param send       [n_ranks * recv_count] elements of dtype.
 * @param recv       [recv_count] elements of dtype; in place it is send + rank * recv_count.
 * @param recv_count Elements per rank; any, also 0.
 * @param op         As in dscomm_allreduce_compressed().
 * @param feedback   Of n_ranks * recv_count elements, used by this collective alone; NULL for none.
 *
 * @return as dscomm_allreduce_compressed()
 *
 * Numerics: the same on every run, for any chunk size, thread count and transport. nonfinite_elems
 *           counts the rank's own share. Where an output is not finite its run of 256 elements
 * (from the share's start) keeps the residual it had, on every rank. Threads, memory: as
 * dscomm_allreduce_compressed().
 */
DSCOMM_API dscomm_status_t dscomm_reduce_scatter_compressed(
    const void *send, void *recv, size_t recv_count, dscomm_dtype_t dtype, dscomm_op_t op,
    const dscomm_codec_t *codec, dscomm_feedback_t *feedback, dscomm_comm_t *comm,
    dscomm_stream_t *stream);

/**
 * All-gather: every rank's vector, one behind the other, on every rank. Each is encoded once; its
 * sender decodes it too, so all ranks get identical bits. With a top-k codec all but what a rank
 * sends is 0, as in an allreduce.
 *
 * @param send       [send_count] elements of dtype; in place it is recv + rank * send_count.
 * @param recv       [n_ranks * send_count] elements of dtype.
 * @param send_count Elements per rank; any, also 0.
 * @param feedback   Of send_count elements, used by this collective alone; NULL for none.
 *
 * @return as dscomm_allreduce_compressed()
 *
 * Numerics, threads, memory: as dscomm_allreduce_compressed().
 */
DSCOMM_API dscomm_status_t dscomm_all_gather_compressed(const void *send, void *recv,
                                                        size_t send_count, dscomm_dtype_t dtype,
                                                        const dscomm_codec_t *codec,
                                                        dscomm_feedback_t *feedback,
                                                        dscomm_comm_t *comm,
                                                        dscomm_stream_t *stream);

/**
 * Broadcast of the root's vector. The root encodes it once, the bytes are forwarded unchanged, and
 * the root decodes them too: all ranks get identical bits. There is no feedback.
 *
 * @param send [count] elements of dtype on the root, may equal recv; elsewhere ignored.
 * @param recv [count] elements of dtype.
 * @param root  Rank, the same on all ranks.
 * @param codec As in dscomm_allreduce_compressed(), but for top-k, which leaves values out and is
 *              refused with DSCOMM_ERR_INVALID.
 *
 * @return as dscomm_allreduce_compressed()
 *
 * Numerics, threads, memory: as dscomm_allreduce_compressed().
 */
DSCOMM_API dscomm_status_t dscomm_broadcast(const void *send, void *recv, size_t count,
                                            dscomm_dtype_t dtype, int root,
                                            const dscomm_codec_t *codec, dscomm_comm_t *comm,
                                            dscomm_stream_t *stream);

/**
 * All-to-all with equal counts: rank r gets elements [r*count, (r+1)*count) of every rank's vector,
 * in rank order. Its own share is rounded to the data type and not encoded.
 *
 * @param send     [n_ranks * count] elements of dtype.
 * @param recv     [n_ranks * count] elements of dtype; may equal send.
 * @param count    Elements for each rank; any, also 0.
 * @param codec    As in dscomm_allreduce_compressed(), but for top-k, which leaves values out and
 * is refused with DSCOMM_ERR_INVALID.
 * @param feedback Of n_ranks * count elements: what was lost on the way to a rank is added to what
 *                 it is sent next. NULL for none.
 *
 * @return as dscomm_allreduce_compressed()
 *
 * Numerics: the same on every run. An element whose decoded value is not finite keeps the residual
 *           it had. nonfinite_elems counts what a rank got.
 * Threads, memory: as dscomm_allreduce_compressed().
 */
DSCOMM_API dscomm_status_t dscomm_all_to_all_compressed(
    const void *send, void *recv, size_t count, dscomm_dtype_t dtype, const dscomm_codec_t *codec,
    dscomm_feedback_t *feedback, dscomm_comm_t *comm, dscomm_stream_t *stream);

/**
 * Between start and end, collectives of this thread are checked and kept; end runs them. Allreduces
 * of at most 1 MiB that agree in dtype, op, codec, feedback or not, and its beta, are packed and
 * run as one call: many small vectors cost one message per peer in place of many. The others run by
 * themselves, as do those of codecs that round stochastically (",sr") or work on segments of 65536
 * elements (nvfp4, topk). Each vector begins a block of the codec of its own. A vector is exempt
 * from the codec when its call passes "none", or when it is smaller than the config's min_bytes.
 *
 * Vectors of a group must be different ones, and feedback objects (DSCOMM_ERR_INVALID); all stay
 * the calls' until end (with a stream, until that is synchronized), and all calls of a communicator
 * use the same stream. Groups nest: the outermost end counts. Communicators run one after the
 * other, in the order of first use.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_BAD_STATE  end without start
 *         the first error of the calls, as dscomm_allreduce_compressed(): those after it on the
 * same communicator did not run. Of packed calls, inputs and residuals are as they were.
 *
 * Numerics: as of one call on the packed vector; the same on all ranks. Ranks must make the same
 *           calls in the same order.
 * Threads:  a group is the thread's own.
 * Memory:   of packed calls the communicator keeps a copy, at most 16 MiB at a time and twice that
 * in float32 for residuals.
 */
DSCOMM_API dscomm_status_t dscomm_group_start(void);
DSCOMM_API dscomm_status_t dscomm_group_end(void);

/**
 * Make (or find) the plan of an allreduce before its first call. Collective: all ranks, same order.
 *
 * @param with_feedback 1 if calls will pass a feedback object.
 * @param plan_out      Borrowed until the communicator is destroyed.
 *
 * @return as dscomm_allreduce_compressed()
 *         DSCOMM_ERR_LIMIT  256 plans were made this way; the communicator stays usable
 */
DSCOMM_API dscomm_status_t dscomm_plan_create(dscomm_comm_t *comm, size_t count,
                                              dscomm_dtype_t dtype, dscomm_op_t op,
                                              const dscomm_codec_t *codec, int with_feedback,
                                              const dscomm_plan_t **plan_out);

/** One line about a plan: algorithm, codec, chunks, bytes, ratio. Borrowed with the plan. */
DSCOMM_API const char *dscomm_plan_explain(const dscomm_plan_t *plan);

#ifdef __cplusplus
}
#endif
#endif
