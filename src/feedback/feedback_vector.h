/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/feedback: r and u as float32, whatever they are stored as and in whatever memory.
 */
#ifndef DSC_FEEDBACK_VECTOR_H
#define DSC_FEEDBACK_VECTOR_H

#include "feedback/feedback_object.h"

#include <math.h>
#include <string.h>

#define DSC_FEEDBACK_TILE 1024 /* elements that are converted at a time */

/* The current r or u, as it is stored. */
struct dsc_feedback_vector {
    const struct dsc_feedback_memory *memory;
    char *values; /* NULL: the object has none */
    dscomm_residual_type_t type;
    const char *name;
};

struct dsc_feedback_vector dsc_feedback_residual(const dscomm_feedback_t *fb,
                                                 const struct dsc_feedback_state *state);
struct dsc_feedback_vector dsc_feedback_velocity(const dscomm_feedback_t *fb,
                                                 const struct dsc_feedback_state *state);

static inline uint16_t dsc_feedback_to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Finite, and as bf16 too: the largest floats round to Inf there. */
static inline bool dsc_feedback_can_store(const struct dsc_feedback_vector *v, float value)
{
    return isfinite(value) &&
           (v->type == DSCOMM_RESIDUAL_FP32 || (dsc_feedback_to_bf16(value) & 0x7f80) != 0x7f80);
}

/* Elements [first, first + n), 1 to DSC_FEEDBACK_TILE. */
dscomm_status_t dsc_feedback_get(const struct dsc_feedback_vector *v, size_t first, size_t n,
                                 float *values);
dscomm_status_t dsc_feedback_put(const struct dsc_feedback_vector *v, size_t first, size_t n,
                                 const float *values);

#endif
