/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/codec: the k elements of a segment with the largest magnitudes, exactly, ties to
 * the lowest index.
 */
#ifndef DSC_TOPK_SELECT_H
#define DSC_TOPK_SELECT_H

#include "core/core.h"

#define DSC_SEGMENT 65536 /* so that an index has 16 bits */

/* What is chosen from: x = v + beta*r, or v where r is NULL. x is never stored as a whole. */
struct dsc_top_source {
    const float *v, *r;
    float beta;
};

/* x of one element: the bits that the primitive axpy gives. */
static inline float dsc_top_value(const struct dsc_top_source *src, size_t i)
{
    if (src->r == NULL)
        return src->v[i];

    const float kept = src->beta * src->r[i];

    return src->v[i] + kept;
}

/* An index of a segment of n, from where a peer may have written to it: inside, whatever it is. */
static inline size_t dsc_top_index_at(const uint16_t *index, size_t n)
{
    return dsc_min_size(*(const volatile uint16_t *)index, n - 1);
}

static inline float dsc_top_value_at(const struct dsc_top_source *src, const uint16_t *index,
                                     size_t n)
{
    return dsc_top_value(src, dsc_top_index_at(index, n));
}

/**
 * Chooses k of n elements by the bits of |x| as integers.
 *
 * @param index [k] ascending; anything on false. May be in reach of a peer
 * @param n     at most DSC_SEGMENT
 * @param k     from 1 to n
 * @param last  NULL, or the smallest chosen |x|, as bits: that of a call before (0: of none), then
 *              of this one. Any number is right: it decides where the search starts, not what it
 *              finds.
 * @return      False if an element is not finite.
 */
bool dsc_top_select(uint16_t *index, const struct dsc_top_source *src, size_t n, size_t k,
                    uint32_t *last);

#endif
