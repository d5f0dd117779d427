/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How executors use a residual: begin gives the vector to read and the one to write, finish swaps
 * them. A call that fails does not finish, so the residual stays as it was.
 */
#ifndef DSC_FEEDBACK_H
#define DSC_FEEDBACK_H

#include "core/core.h"

/* A call's view. in == out when the object has one vector (shadow 0). */
struct dsc_residual {
    const void *in; /* [count] float32 or bf16 bits */
    void *out;
    dscomm_residual_type_t type;
    float beta;
    /* Created or reset and not written since: `none` neither reads nor writes it. */
    bool known_zero;
    const float *velocity_in; /* u, [count]; NULL: the object has no momentum */
    float *velocity_out;
    float momentum;
};

bool dsc_feedback_has_momentum(const dscomm_feedback_t *fb); /* not NULL */

/* Borrowed until finish or the end of the failed call. */
void dsc_feedback_begin(const dscomm_feedback_t *fb, struct dsc_residual *residual_out);

/* The call succeeded. wrote: it filled every element of `out` and, if there, `velocity_out`. */
void dsc_feedback_finish(dscomm_feedback_t *fb, bool wrote);

/* The call failed after it may have written to `out`. With one vector (shadow 0) r is lost. */
void dsc_feedback_abandon(dscomm_feedback_t *fb);

#endif
