/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic of one plan operation, on memory that the host executor hands in. Walks the span
 * in tiles that stay in L1, so sum, residual, encode, decode and rounding are one pass over memory.
 */
#ifndef DSC_COMPUTE_H
#define DSC_COMPUTE_H

#include "codec/kernels.h"
#include "feedback/feedback.h"
#include "plan/plan.h"

/* One collective call. */
struct dsc_call {
    const void *send;
    void *recv;
    bool feedback;
    struct dsc_residual residual; /* valid with feedback */
    struct dsc_draw draw;         /* whence stochastic codecs draw; first: not used */
    uint32_t note;                /* of this rank, see dsc_note_pack() */
};

/*
 * What is seen of a call's numbers while they are in the caches: DSC_SAMPLE_ELEMS of every
 * DSC_SAMPLE_STRIDE elements of an operation. For people and the tuner, not bit-exact.
 */
struct dsc_sample {
    double error_sq, encoded_sq; /* of lossy messages that a rank encodes: ||x - D||^2, ||x||^2 */
    double input_sq; /* with feedback, where ||r'|| is the error: ||v||^2 of the same elements */
    double output_sq;
    uint64_t n_outputs, n_zeros; /* output elements seen, and how many were 0 */
    uint64_t n_nonfinite;        /* output elements that are not finite: of all, not sampled */
};

#define DSC_SAMPLE_ELEMS 256
#define DSC_SAMPLE_STRIDE 32768

/* What all operations of a call share. */
struct dsc_compute {
    const struct dsc_kernels *k; /* chosen once */
    const struct dscomm_plan *plan;
    const struct dsc_call *call;
    float *partial;
    uint8_t *gather;
    uint32_t *thresholds;     /* [n_thresholds] from the call before, for the next one */
    float ranks;              /* A: number of ranks for AVG, else 1 */
    unsigned stream;          /* DSC_STREAM for vectors that caches do not hold, else 0 */
    unsigned residual_flags;  /* how senders write the residual: stream, and DSC_KEEP_OLD */
    bool idle[DSC_MAX_TIERS]; /* residual neither read nor written at this tier */
};

#define DSC_SCRATCH_TILES 5

/* Floats of scratch memory that one thread needs for a plan. */
size_t dsc_compute_scratch_floats(const struct dscomm_plan *plan);

void dsc_compute_begin(struct dsc_compute *ctx, const struct dscomm_plan *plan,
                       const struct dsc_call *call, float *partial, uint8_t *gather,
                       uint32_t *thresholds);

/* True if a call writes every element of the residual's `out`. */
bool dsc_compute_writes_residual(const struct dsc_compute *ctx);

/**
 * @param msgs    [op->n_recvs] payloads in the order of op's recvs.
 * @param out     [op->msg_bytes] message that the op encodes; NULL for ops that encode none. What
 *                an op forwards the caller copies.
 * @param scratch [dsc_compute_scratch_floats()] 64-byte aligned, overwritten.
 * @param flaw   Untouched unless bytes of a peer were no message, which variable codecs alone have.
 * @return        Output elements of the span that are not finite.
 *
 * Threads: different operations at the same time, each with its scratch. The caller's
 * floating-point environment must be the default one (dsc_fp_enter()).
 */
size_t dsc_compute_op(const struct dsc_compute *ctx, const struct dsc_op *op,
                      const uint8_t *const *msgs, uint8_t *out, float *scratch,
                      struct dsc_flaw *flaw);

/*
 * Adds what is seen of an operation that has just been computed, before its messages are sent:
 * arguments as above. Threads: each with its own sample.
 */
void dsc_sample_op(const struct dsc_compute *ctx, const struct dsc_op *op, uint8_t *out,
                   float *scratch, struct dsc_sample *sample);

/* Sum of what threads have seen. */
void dsc_sample_add(struct dsc_sample *into, const struct dsc_sample *other);

#endif
