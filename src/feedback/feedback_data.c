/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What users do with the elements of a residual and its momentum: scale, copy out and in.
 */
#include "feedback/feedback_vector.h"

#include <math.h>

/* ---- scaling ---- */

/* How many elements overflowed and are now zero. */
static size_t scale_tile(const struct dsc_feedback_vector *v, float *values, size_t n, float factor)
{
    const uint32_t saved = dsc_fp_enter(); /* the caller may flush subnormals to zero */
    size_t lost = 0;

    for (size_t i = 0; i < n; i++) {
        const float value = values[i] * factor;
        const bool fits = dsc_feedback_can_store(v, value);

        lost += !fits;
        values[i] = fits ? value : 0.0f;
    }
    dsc_fp_leave(saved);
    return lost;
}

static dscomm_status_t scale(const struct dsc_feedback_vector *v, size_t count, float factor,
                             size_t *lost)
{
    for (size_t i = 0; v->values != NULL && i < count; i += DSC_FEEDBACK_TILE) {
        const size_t n = dsc_min_size(DSC_FEEDBACK_TILE, count - i);
        float values[DSC_FEEDBACK_TILE];

        DSC_TRY(dsc_feedback_get(v, i, n, values));
        *lost += scale_tile(v, values, n, factor);
        DSC_TRY(dsc_feedback_put(v, i, n, values));
    }
    return DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_scale(dscomm_feedback_t *fb, float factor)
{
    struct dsc_feedback_state state;
    struct dsc_feedback_vector r, u;
    size_t lost = 0;

    DSC_TRY(dsc_feedback_check(fb));
    if (!isfinite(factor))
        return dsc_fail(DSCOMM_ERR_INVALID, "feedback scale factor %g, must be finite",
                        (double)factor);
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    dsc_feedback_settle(fb, &state);
    if (state.known_zero)
        return DSCOMM_OK;
    r = dsc_feedback_residual(fb, &state);
    u = dsc_feedback_velocity(fb, &state);
    DSC_TRY(scale(&r, fb->count, factor, &lost));
    DSC_TRY(scale(&u, fb->count, factor, &lost));
    if (lost > 0)
        dsc_log_warn(FEEDBACK, "scaling by %g overflowed in %zu elements, set to zero",
                     (double)factor, lost);
    return dsc_feedback_touched(fb, &state);
}

/* ---- spans ---- */

static dscomm_status_t check_span(const dscomm_feedback_t *fb, size_t first, size_t n,
                                  const void *memory)
{
    DSC_TRY(dsc_feedback_check(fb));
    if (first > fb->count || n > fb->count - first)
        return dsc_fail(DSCOMM_ERR_INVALID, "span of %zu elements at %zu exceeds the count %zu", n,
                        first, fb->count);
    if (memory == NULL && n > 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "span memory is NULL");
    return DSCOMM_OK;
}

static dscomm_status_t check_momentum(const dscomm_feedback_t *fb)
{
    DSC_TRY(dsc_feedback_check(fb));
    return dsc_feedback_has_momentum(fb)
               ? DSCOMM_OK
               : dsc_fail(DSCOMM_ERR_BAD_STATE,
                          "the feedback object has momentum 0 and no such vector");
}

/* A vector of the object, as it is now. */
typedef struct dsc_feedback_vector vector_fn(const dscomm_feedback_t *fb,
                                             const struct dsc_feedback_state *state);

static dscomm_status_t read_span(const dscomm_feedback_t *fb, vector_fn *vector_of, size_t first,
                                 size_t n, float *dst)
{
    struct dsc_feedback_state state;
    struct dsc_feedback_vector v;

    DSC_TRY(check_span(fb, first, n, dst));
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    v = vector_of(fb, &state);
    for (size_t i = 0; i < n; i += DSC_FEEDBACK_TILE)
        DSC_TRY(dsc_feedback_get(&v, first + i, dsc_min_size(DSC_FEEDBACK_TILE, n - i), dst + i));
    return DSCOMM_OK;
}

static dscomm_status_t write_span(dscomm_feedback_t *fb, vector_fn *vector_of, size_t first,
                                  size_t n, const float *src)
{
    struct dsc_feedback_state state;
    struct dsc_feedback_vector v;

    DSC_TRY(check_span(fb, first, n, src));
    DSC_TRY(dsc_feedback_read_state(fb, &state));
    v = vector_of(fb, &state);
    for (size_t i = 0; i < n; i++)
        if (!dsc_feedback_can_store(&v, src[i]))
            return dsc_fail(DSCOMM_ERR_INVALID, "%s element %zu is %g, must be finite", v.name,
                            first + i, (double)src[i]);
    for (size_t i = 0; i < n; i += DSC_FEEDBACK_TILE)
        DSC_TRY(dsc_feedback_put(&v, first + i, dsc_min_size(DSC_FEEDBACK_TILE, n - i), src + i));
    return n > 0 ? dsc_feedback_touched(fb, &state) : DSCOMM_OK;
}

dscomm_status_t dscomm_feedback_read(const dscomm_feedback_t *fb, size_t first, size_t n,
                                     float *dst)
{
    return read_span(fb, dsc_feedback_residual, first, n, dst);
}

dscomm_status_t dscomm_feedback_write(dscomm_feedback_t *fb, size_t first, size_t n,
                                      const float *src)
{
    return write_span(fb, dsc_feedback_residual, first, n, src);
}

dscomm_status_t dscomm_feedback_read_momentum(const dscomm_feedback_t *fb, size_t first, size_t n,
                                              float *dst)
{
    DSC_TRY(check_momentum(fb));
    return read_span(fb, dsc_feedback_velocity, first, n, dst);
}

dscomm_status_t dscomm_feedback_write_momentum(dscomm_feedback_t *fb, size_t first, size_t n,
                                               const float *src)
{
    DSC_TRY(check_momentum(fb));
    return write_span(fb, dsc_feedback_velocity, first, n, src);
}
