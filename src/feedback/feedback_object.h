/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/feedback: the object. All element values are finite at any time.
 */
#ifndef DSC_FEEDBACK_OBJECT_H
#define DSC_FEEDBACK_OBJECT_H

#include "feedback/feedback.h"

struct dscomm_feedback {
    size_t count;
    dscomm_feedback_config_t config;
    const struct dsc_feedback_memory *memory;
    void *vectors[2];                 /* r; [1] is NULL with shadow 0 */
    float *velocity[2];               /* u; NULL without momentum */
    struct dsc_feedback_state *state; /* in memory, as are the vectors */
    uint32_t n_settled;               /* ended calls up to here cannot be rolled back */
    uint32_t n_issued;                /* calls that the host knows of */
    bool may_be_written;              /* device memory: r may not be zero */
};

static inline size_t dsc_feedback_elem_bytes(const dscomm_feedback_t *fb)
{
    return fb->config.type == DSCOMM_RESIDUAL_BF16 ? 2 : 4;
}

/* Kernels flip the parity of a single vector, too. */
static inline void *dsc_feedback_current(const dscomm_feedback_t *fb,
                                         const struct dsc_feedback_state *state)
{
    return fb->vectors[fb->config.shadow ? state->parity : 0];
}

static inline dscomm_status_t dsc_feedback_read_state(const dscomm_feedback_t *fb,
                                                      struct dsc_feedback_state *state_out)
{
    return fb->memory->read(state_out, fb->state, sizeof(*state_out));
}

/* Nothing of before can be rolled back. */
static inline void dsc_feedback_settle(dscomm_feedback_t *fb,
                                       const struct dsc_feedback_state *state)
{
    fb->n_settled = state->n_calls;
    fb->n_issued = state->n_calls;
}

/* The user changed r or u: nothing of before can be undone. */
dscomm_status_t dsc_feedback_touched(dscomm_feedback_t *fb, struct dsc_feedback_state *state);

dscomm_status_t dsc_feedback_check(const dscomm_feedback_t *fb);

#endif
