/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the device executes: the tables that an executor makes of a plan, and the launch of one
 * stage of it. A stage is all operations of one kind at one position of the pipeline; it reads and
 * writes messages in the plan's buffers and is one kernel. What it computes is, bit for bit, what
 * src/exec/compute*.c computes.
 *
 *   ENCODE   DSC_OP_SEND, DSC_OP_ENCODE
 *   REDUCE   DSC_OP_REDUCE
 *   FINAL    DSC_OP_FINAL
 *   DECODE   DSC_OP_DECODE
 *   SUM      DSC_OP_SUM: recvs are the messages of all ranks, the own one among them
 *   RESULT   DSC_OP_RESULT
 *   RESTORE  DSC_OP_RESTORE: recvs are messages of marks
 *   SAVE     before a call: copies away the input that it overwrites
 *   UNDO     after it: copies the input back, if the call was given up
 *
 * DSC_OP_GATHER computes nothing: its message is copied.
 *
 * Everything that differs between calls of a plan is in struct dsc_gpu_call and, for what replays
 * of a CUDA graph must see anew, in device memory: struct dsc_gpu_state, struct dsc_gpu_feedback.
 */
#ifndef DSC_KERNELS_STAGE_H
#define DSC_KERNELS_STAGE_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dscomm/codec.h"
#include "dscomm/dscomm.h"
#include "dscomm/feedback.h"

#ifdef __cplusplus
extern "C" {
#endif

enum dsc_gpu_stage {
    DSC_GPU_ENCODE,
    DSC_GPU_REDUCE,
    DSC_GPU_FINAL,
    DSC_GPU_DECODE,
    DSC_GPU_SUM,
    DSC_GPU_RESULT,
    DSC_GPU_RESTORE,
    DSC_GPU_SAVE,
    DSC_GPU_UNDO,
    DSC_GPU_N_STAGES
};

/* ---- tables: written once per plan, read by kernels ---- */

#define DSC_GPU_NONE UINT64_MAX /* no such buffer */

/* What both ends know of a message without asking: its exponent, and the sender's place. */
struct dsc_gpu_facts {
    int32_t exponent;
    uint16_t position, members; /* struct dsc_place */
};

/* A received, or kept, message. */
struct dsc_gpu_recv {
    uint64_t at; /* bytes in `messages`, a multiple of 16 */
    struct dsc_gpu_facts facts;
};

/* One operation of the plan. */
struct dsc_gpu_op {
    uint64_t start;              /* element of the plan's vector */
    uint64_t send_at, recv_at;   /* element of the caller's `send` and of the residual; of `recv` */
    uint64_t out_at;             /* bytes in `messages`: what it encodes; RESULT: marks, or NONE */
    uint64_t own_partial;        /* element in `partial` of the own value; DSC_GPU_NONE: `send` */
    uint64_t out_partial;        /* REDUCE: element in `partial` of the sum */
    uint64_t own_start, own_end; /* SUM: elements of the vector whose output rounding is kept */
    struct dsc_gpu_facts facts;  /* of the message it encodes */
    uint32_t n;                  /* elements */
    uint32_t own_at;             /* REDUCE, FINAL, RESULT: place of the own value in the sum */
    uint32_t first_recv, n_recvs;
    uint32_t flags; /* DSC_GPU_OP_* */
};

/* DECODE: what is not finite gives the residual back what it was; wanted in an allreduce alone. */
#define DSC_GPU_OP_RESTORES 1u
/* ENCODE: where D is not finite r stays, since nobody says later what was not: an all-to-all. */
#define DSC_GPU_OP_KEEPS_OLD 2u

/* The work of one thread block: elements from `first` of operation `op`. */
struct dsc_gpu_tile {
    uint32_t op, first;
};

/* One stage: device pointers, all but the numbers. */
struct dsc_gpu_work {
    const struct dsc_gpu_op *ops;
    const struct dsc_gpu_recv *recvs;
    const struct dsc_gpu_tile *tiles;
    uint8_t *messages; /* 16-byte aligned */
    float *partial;    /* 16-byte aligned */
    uint32_t n_tiles;  /* 0: nothing is done, except that the call may end; SAVE, UNDO: blocks */
    uint32_t flags;    /* DSC_GPU_WORK_* */
    uint64_t step;     /* below 2^40; shown in the progress word while the kernel runs */
    uint64_t tx_bytes, rx_bytes; /* LAST: of the whole call, for its statistics */
};

#define DSC_GPU_WORK_LAST 1u /* the last kernel of a call, which ends it */
/* With LAST: all tiers have the codec `none`, so a residual known to be zero stays that. */
#define DSC_GPU_WORK_ALL_NONE 2u
#define DSC_GPU_WORK_FIRST 4u /* the first kernel of a call */

/* ---- state in device memory ---- */

/* Of one call, in host memory that the device sees. */
struct dsc_gpu_stats {
    uint64_t number;      /* calls ended up to here, this one included; 0: being written */
    uint64_t n_nonfinite; /* elements of the output that are not finite */
    uint64_t tx_bytes, rx_bytes;
};

/* Of a communicator. All zero but the ring to begin with. */
struct dsc_gpu_state {
    uint64_t sequence;          /* calls ended: what stochastic rounding draws from */
    uint64_t n_nonfinite;       /* of this call */
    uint32_t blocks_done;       /* of its last kernel */
    uint32_t ring_mask;         /* entries - 1, a power of two of them */
    struct dsc_gpu_stats *ring; /* the call numbered i is at i & ring_mask, from 1 on; NULL: none */
    struct dsc_gpu_board *board; /* NULL: none */
    uint64_t saved_at;           /* `sequence` at the last SAVE */
};

/* In host memory that the device sees. */
struct dsc_gpu_board {
    uint64_t progress; /* (sequence + 1) << 40 | step of the kernel that was begun last */
    uint64_t aborted;  /* not 0: what runs is rubbish, and no call ends any more */
    uint64_t stuck;    /* not 0: a wait of two_shot.h reached its deadline; DSC_STUCK() of it */
};

/* Of a feedback object; struct dsc_feedback_state of feedback/feedback.h. */
struct dsc_gpu_feedback {
    uint32_t parity; /* calls read residual[parity], write the other, and flip it when they end */
    uint32_t known_zero; /* 1: `none` neither reads nor writes it */
    uint32_t n_calls;    /* ended, or given up */
    uint32_t last_wrote; /* the last call flipped the parity; DSC_GPU_GIVEN_UP: it did not end */
};

#define DSC_GPU_GIVEN_UP 2u

/* What a rank has seen of a call, for its note. Integers: ranks decide by them. */
struct dsc_gpu_noted {
    uint64_t ns;           /* from its first kernel to its end */
    uint32_t error_ppm;    /* ||x - D|| / ||x|| of what was encoded, in samples; 0: nothing was */
    uint32_t residual_ppm; /* ||x - D|| / ||v||: what feedback keeps back; 0: there is none */
    uint32_t has_overflow; /* not 0: some of the output is not finite */
    uint32_t pad;
};

#define DSC_GPU_NOTED_CALLS 32

/* Device memory; all zero to begin with. */
struct dsc_gpu_notes {
    double error_sq, encoded_sq, input_sq; /* of the running call's samples */
    uint64_t began_ns;
    uint64_t n_calls;                                /* that have ended and were noted */
    struct dsc_gpu_noted calls[DSC_GPU_NOTED_CALLS]; /* call i, from 0 on, at i % that */
};

/* ---- a call ---- */

/* All that differs between calls of a plan. */
struct dsc_gpu_call {
    const void *send;                  /* aligned to its elements */
    void *recv;                        /* may be send */
    void *residual[2];                 /* the same twice: one vector. Not read without feedback */
    float *velocity[2];                /* u of momentum, likewise by parity; NULL: none */
    struct dsc_gpu_feedback *feedback; /* device memory; NULL: no residual */
    struct dsc_gpu_state *state;       /* device memory */
    struct dsc_gpu_notes *notes;       /* device memory; NULL: nobody asks for its note */
    void *input;                       /* SAVE, UNDO: what an in-place call overwrites; */
    void *saved;                       /* a copy of it, as far from 16-byte alignment */
    uint64_t input_bytes;              /* 0: the call is not in place */
    float beta, momentum;
    uint32_t seed, rank; /* of stochastic rounding */
    uint32_t n_ranks;
    dscomm_dtype_t dtype;
    dscomm_op_t op;
    dscomm_residual_type_t residual_type;
};

/* What a kernel knows of a codec; made by dsc_gpu_format_of(). */
struct dsc_gpu_format {
    uint32_t kind;                 /* DSC_GPU_KIND_*: which kernel */
    uint32_t block_log2;           /* elements of a block */
    uint32_t values;               /* topk: DSC_GPU_KIND_* of the kept values */
    uint32_t kept_count, kept_ppb; /* topk: see struct dsc_codec */
    uint32_t flags;                /* DSC_GPU_FORMAT_* */
};

enum dsc_gpu_kind {
    DSC_GPU_KIND_FP32,
    DSC_GPU_KIND_FP16,
    DSC_GPU_KIND_BF16,
    DSC_GPU_KIND_INT8,
    DSC_GPU_KIND_INT4,
    DSC_GPU_KIND_E4M3,
    DSC_GPU_KIND_E5M2,
    DSC_GPU_KIND_MXFP8,
    DSC_GPU_KIND_MXFP8_E5M2,
    DSC_GPU_KIND_MXFP4,
    DSC_GPU_KIND_MXINT8,
    DSC_GPU_KIND_NVFP4,
    DSC_GPU_KIND_TOPK,
    DSC_GPU_N_KINDS
};

#define DSC_GPU_FORMAT_NONE 1u      /* the caller's codec is `none` */
#define DSC_GPU_FORMAT_SIGNED 2u    /* int4:signed */
#define DSC_GPU_FORMAT_CEIL 4u      /* scales of MX formats are rounded up */
#define DSC_GPU_FORMAT_DRAWS 8u     /* ,sr */
#define DSC_GPU_FORMAT_ROTATES 16u  /* ,hadamard */
#define DSC_GPU_FORMAT_BY_PLACE 32u /* topk: ,position */

/* The one argument of every kernel: to update a kernel node of a graph, give it a new one. */
struct dsc_gpu_args {
    struct dsc_gpu_work work;
    struct dsc_gpu_call call;
    struct dsc_gpu_format format;
};

/* A launch, for a stream or for a node of a graph. */
struct dsc_gpu_prepared {
    const void *function;
    unsigned n_blocks, n_threads;
    struct dsc_gpu_args args;
};

/* ---- functions ---- */

/**
 * Whether kernels know a codec. To be asked before anything of a call is touched.
 *
 * @param codec As the caller named it, `none` included.
 * @return DSCOMM_OK
 *         DSCOMM_ERR_UNSUPPORTED  the text names the codec and those that there are
 */
dscomm_status_t dsc_gpu_supports(const dscomm_codec_t *codec);

/* The same, where it is no error if there are none. */
bool dsc_gpu_knows(const dscomm_codec_t *codec);

/* Of a codec that is supported; `none` is resolved. */
struct dsc_gpu_format dsc_gpu_format_of(const dscomm_codec_t *codec, dscomm_dtype_t dtype);

/*
 * Elements of a tile: an operation of n elements has tiles that start at multiples of this. At
 * most 65536 and a divisor of every chunk's size.
 */
uint32_t dsc_gpu_tile_elems(enum dsc_gpu_stage stage, const dscomm_codec_t *codec,
                            dscomm_dtype_t dtype);

/**
 * What to launch for a stage.
 *
 * @param codec Supported; as the caller named it.
 * @param work  Copied; what it points to must live as long as the launch.
 * @param call  Copied likewise.
 */
struct dsc_gpu_prepared dsc_gpu_prepare(enum dsc_gpu_stage stage, const dscomm_codec_t *codec,
                                        const struct dsc_gpu_work *work,
                                        const struct dsc_gpu_call *call);

/* Enqueues it. Stages of a call, and calls with the same state, go to one stream in their order. */
cudaError_t dsc_gpu_launch(const struct dsc_gpu_prepared *launch, cudaStream_t stream);

/* The node parameters of a launch; they point into `launch` and `args_out`, [1]. */
struct cudaKernelNodeParams dsc_gpu_node_params(struct dsc_gpu_prepared *launch, void **args_out);

#ifdef __cplusplus
}
#endif

#endif
