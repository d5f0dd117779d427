/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How executors use a residual: a call reads one vector and writes the other, and its end swaps
 * them. A call that fails does not get there, so the residual stays as it was. The vectors lie in
 * memory of some kind, and so does what a call changes at its end: replays of a CUDA graph end
 * without the host.
 */
#ifndef DSC_FEEDBACK_H
#define DSC_FEEDBACK_H

#include "core/core.h"

/* What ends of calls change. In the object's kind of memory; kernels know the layout. */
struct dsc_feedback_state {
    uint32_t parity;     /* the current vector */
    uint32_t known_zero; /* created or reset and not written since */
    uint32_t n_calls;    /* ended, or given up by the device */
    uint32_t last_wrote; /* the last call swapped the vectors; DSC_CALL_GIVEN_UP: it failed */
};

#define DSC_CALL_GIVEN_UP 2u

/* A kind of memory. read and write return when they are done; the host's side is ordinary. */
struct dsc_feedback_memory {
    const char *name;
    dscomm_status_t (*alloc)(size_t bytes, void **memory_out); /* zeroed */
    void (*free)(void *memory);                                /* NULL allowed */
    dscomm_status_t (*read)(void *dst, const void *memory, size_t bytes);
    dscomm_status_t (*write)(void *memory, const void *src, size_t bytes);
    dscomm_status_t (*zero)(void *memory, size_t bytes);
};

extern const struct dsc_feedback_memory dsc_host_memory;

/* dscomm_feedback_create() in a kind of memory. */
DSC_SHARED dscomm_status_t dsc_feedback_create_in(const struct dsc_feedback_memory *memory,
                                                  size_t count,
                                                  const dscomm_feedback_config_t *config,
                                                  dscomm_feedback_t **fb_out);
DSC_SHARED const struct dsc_feedback_memory *dsc_feedback_memory(const dscomm_feedback_t *fb);

/* ---- device memory: kernels end calls ---- */

/* Where an object's parts are; the same vector twice with shadow 0. */
struct dsc_feedback_parts {
    void *vectors[2];
    float *velocity[2]; /* NULL without momentum */
    void *state;        /* struct dsc_feedback_state */
    dscomm_residual_type_t type;
    float beta, momentum;
    bool known_zero; /* and without momentum; as far as the host knows: no call that may write it
                        was issued since */
};

DSC_SHARED struct dsc_feedback_parts dsc_feedback_parts(const dscomm_feedback_t *fb);
/* A call was issued: its end counts, and it may write the residual, or not. */
DSC_SHARED void dsc_feedback_issued(dscomm_feedback_t *fb, bool counts, bool may_write);

/* ---- host memory ---- */

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
