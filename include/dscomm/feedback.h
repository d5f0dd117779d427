/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error feedback: the residual of a span of gradient elements, one float32 per element and rank.
 * Every lossy step keeps what it lost in r and adds it to the next call's input, so that over calls
 *     A * sum of outputs + sum over ranks of r == sum over ranks of inputs     (A: ranks for AVG,
 * else 1) docs/wire_format.md derives it. r is indexed by element, so it moves with its parameters
 * when buckets are rebuilt (read/write spans) and survives checkpoints (export/import).
 *
 * The object holds two vectors: a call reads one and writes the other, and only a call that
 * finishes swaps them. So a failed or aborted call leaves r as it was.
 *
 * With momentum m the object also does the optimizer's momentum, before compression (Deep Gradient
 * Compression's momentum correction): a call with input g forms u = m*u + g and reduces u in place
 * of g; where a rank's top-k message sends an element, its u becomes 0. Other codecs send all and
 * leave u. It is for allreduce and reduce-scatter. The optimizer then steps by the output alone,
 * with no momentum of its own.
 */
#ifndef DSCOMM_FEEDBACK_H
#define DSCOMM_FEEDBACK_H

#include <stddef.h>

#include "dscomm/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dscomm_feedback dscomm_feedback_t;

typedef enum {
    DSCOMM_RESIDUAL_FP32 = 0,
    DSCOMM_RESIDUAL_BF16 = 1, /* half the memory; r is rounded to bf16 when stored */
} dscomm_residual_type_t;

typedef struct {
    size_t struct_bytes;         /* sizeof(dscomm_feedback_config_t) */
    float beta;                  /* decay of r per call, 0 < beta <= 1; 1 conserves the sum */
    dscomm_residual_type_t type; /* how r is stored */
    int shadow;     /* 0: one vector, half the memory, no rollback, r lost if a call fails */
    float momentum; /* m, 0 <= m < 1; 0: none. Else 8 bytes more per element; needs shadow 1 */
} dscomm_feedback_config_t;

#define DSCOMM_FEEDBACK_CONFIG_INIT                                           \
    {                                                                         \
        sizeof(dscomm_feedback_config_t), 1.0f, DSCOMM_RESIDUAL_FP32, 1, 0.0f \
    }

/**
 * Create a residual of zeros.
 *
 * @param count  Elements of the vectors that will be reduced with it.
 * @param config Borrowed for the call; NULL for the defaults (beta 1, fp32, shadow 1, momentum 0).
 * @param fb_out Owned by the caller; untouched on error.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_INVALID    beta outside (0, 1], unknown type, momentum outside [0, 1), bf16 or
 *                               momentum with shadow 0
 *         DSCOMM_ERR_NO_MEMORY
 *
 * Threads: one call at a time per object, here and below; not while a collective that uses it runs.
 */
DSCOMM_API dscomm_status_t dscomm_feedback_create(size_t count,
                                                  const dscomm_feedback_config_t *config,
                                                  dscomm_feedback_t **fb_out);

/** Frees the object. NULL is allowed. */
DSCOMM_API void dscomm_feedback_destroy(dscomm_feedback_t *fb);

/** Elements. */
DSCOMM_API size_t dscomm_feedback_count(const dscomm_feedback_t *fb);

/** Sets r and u to zero everywhere; nothing is left to roll back. */
DSCOMM_API dscomm_status_t dscomm_feedback_reset(dscomm_feedback_t *fb);

/**
 * Multiplies r and u by a factor, for example new/old loss scale.
 *
 * @param factor Finite. Elements that would overflow are set to zero and counted in the log.
 *
 * @return DSCOMM_OK, DSCOMM_ERR_INVALID
 */
DSCOMM_API dscomm_status_t dscomm_feedback_scale(dscomm_feedback_t *fb, float factor);

/** Accepts the last call for good: it can no longer be rolled back. */
DSCOMM_API dscomm_status_t dscomm_feedback_commit(dscomm_feedback_t *fb);

/**
 * Undoes the last finished call's change of r and u (a skipped optimizer step). Works once per
 * call.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_BAD_STATE  nothing to undo (no call since creation, commit, reset, write,
 * import or rollback), or the object has shadow 0
 */
DSCOMM_API dscomm_status_t dscomm_feedback_rollback(dscomm_feedback_t *fb);

/**
 * Copy a span of r out or in, as float32.
 *
 * @param first First element; first + n must not exceed the count.
 * @param dst   [n] float32.
 * @param src   [n] float32, finite (else DSCOMM_ERR_INVALID names the first bad index).
 */
DSCOMM_API dscomm_status_t dscomm_feedback_read(const dscomm_feedback_t *fb, size_t first, size_t n,
                                                float *dst);
DSCOMM_API dscomm_status_t dscomm_feedback_write(dscomm_feedback_t *fb, size_t first, size_t n,
                                                 const float *src);

/** The same with u. DSCOMM_ERR_BAD_STATE: the object has momentum 0. */
DSCOMM_API dscomm_status_t dscomm_feedback_read_momentum(const dscomm_feedback_t *fb, size_t first,
                                                         size_t n, float *dst);
DSCOMM_API dscomm_status_t dscomm_feedback_write_momentum(dscomm_feedback_t *fb, size_t first,
                                                          size_t n, const float *src);

/**
 * Serialize the object (little endian, with a checksum) for a checkpoint, or restore r and u from
 * it.
 *
 * @param dst         [dst_bytes] bytes, at least dscomm_feedback_export_bytes().
 * @param written_out Bytes used; untouched on error.
 * @param src         [src_bytes] bytes, untrusted.
 *
 * Import wants the same count, and momentum in both or neither; beta, storage and the value of m
 * stay the object's own.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_INVALID  dst too small, another count, or momentum in one of the two (both are
 *                             named)
 *         DSCOMM_ERR_CORRUPT  not an export, truncated, bad checksum, or a value is not finite
 */
DSCOMM_API size_t dscomm_feedback_export_bytes(const dscomm_feedback_t *fb);
DSCOMM_API dscomm_status_t dscomm_feedback_export(const dscomm_feedback_t *fb, void *dst,
                                                  size_t dst_bytes, size_t *written_out);
DSCOMM_API dscomm_status_t dscomm_feedback_import(dscomm_feedback_t *fb, const void *src,
                                                  size_t src_bytes);

#ifdef __cplusplus
}
#endif
#endif
