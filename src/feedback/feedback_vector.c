/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Access to the elements of a residual and its momentum. bf16 is the upper half of a float32, stored
 * rounded to nearest even.
 */
#include "feedback/feedback_vector.h"

#include <string.h>

struct dsc_feedback_vector dsc_feedback_residual(const dscomm_feedback_t *fb,
                                                 const struct dsc_feedback_state *state)
{
    return (struct dsc_feedback_vector){ fb->memory, dsc_feedback_current(fb, state),
                                         fb->config.type, "residual" };
}

struct dsc_feedback_vector dsc_feedback_velocity(const dscomm_feedback_t *fb,
                                                 const struct dsc_feedback_state *state)
{
    return (struct dsc_feedback_vector){ fb->memory, (void *)fb->velocity[state->parity],
                                         DSCOMM_RESIDUAL_FP32, "momentum" };
}

static float from_bf16(uint16_t half)
{
    const uint32_t bits = (uint32_t)half << 16;
    float value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

dscomm_status_t dsc_feedback_get(const struct dsc_feedback_vector *v, size_t first, size_t n,
                                 float *values)
{
    uint16_t halves[DSC_FEEDBACK_TILE];

    if (v->type == DSCOMM_RESIDUAL_FP32)
        return v->memory->read(values, v->values + first * sizeof(float), n * sizeof(float));
    DSC_TRY(v->memory->read(halves, v->values + first * sizeof(*halves), n * sizeof(*halves)));
    for (size_t i = 0; i < n; i++)
        values[i] = from_bf16(halves[i]);
    return DSCOMM_OK;
}

dscomm_status_t dsc_feedback_put(const struct dsc_feedback_vector *v, size_t first, size_t n,
                                 const float *values)
{
    uint16_t halves[DSC_FEEDBACK_TILE];

    if (v->type == DSCOMM_RESIDUAL_FP32)
        return v->memory->write(v->values + first * sizeof(float), values, n * sizeof(float));
    for (size_t i = 0; i < n; i++)
        halves[i] = dsc_feedback_to_bf16(values[i]);
    return v->memory->write(v->values + first * sizeof(*halves), halves, n * sizeof(*halves));
}
