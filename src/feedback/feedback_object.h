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
    void *vectors[2];   /* r; [1] is NULL with shadow 0 */
    float *velocity[2]; /* u; NULL without momentum */
    int parity;         /* current vectors */
    bool known_zero;
    bool can_roll_back;
    bool last_wrote; /* the last call swapped the vectors */
};

static inline size_t dsc_feedback_elem_bytes(const dscomm_feedback_t *fb)
{
    return fb->config.type == DSCOMM_RESIDUAL_BF16 ? 2 : 4;
}

static inline void *dsc_feedback_current(const dscomm_feedback_t *fb)
{
    return fb->vectors[fb->parity];
}

/* The user changed r or u: nothing of before can be undone. */
static inline void dsc_feedback_touched(dscomm_feedback_t *fb)
{
    fb->known_zero = false;
    fb->can_roll_back = false;
}

dscomm_status_t dsc_feedback_check(const dscomm_feedback_t *fb);

#endif
