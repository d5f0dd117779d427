/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See planes.h. The loops have nothing but their types that differs, and compilers turn those over
 * planes into vector code.
 */
#include "codec/planes.h"

#include <string.h>

#include "codec/huffman.h"
#include "core/core.h"

/* ---- zeros ---- */

static size_t count_zeros_wide(const uint32_t *elems, size_t n)
{
    uint32_t n_zeros = 0;

    for (size_t i = 0; i < n; i++)
        n_zeros += elems[i] == 0;
    return n_zeros;
}

static size_t count_zeros_half(const uint16_t *elems, size_t n)
{
    uint32_t n_zeros = 0;

    for (size_t i = 0; i < n; i++)
        n_zeros += elems[i] == 0;
    return n_zeros;
}

/* Moves the elements that are not 0 to the front; bit i of the mask: element i is one of them. */
#define DROP_ZEROS(suffix, type)                                            \
    static size_t drop_zeros_##suffix(uint8_t *mask, type *elems, size_t n) \
    {                                                                       \
        size_t kept = 0;                                                    \
                                                                            \
        for (size_t i = 0; i < n; i += 8) {                                 \
            const size_t len = dsc_min_size(8, n - i);                      \
            unsigned bits = 0;                                              \
                                                                            \
            for (size_t k = 0; k < len; k++) {                              \
                const type x = elems[i + k];                                \
                                                                            \
                elems[kept] = x;                                            \
                kept += x != 0;                                             \
                bits |= (unsigned)(x != 0) << k;                            \
            }                                                               \
            mask[i / 8] = (uint8_t)bits;                                    \
        }                                                                   \
        return kept;                                                        \
    }

/* Zeros come in runs: most bytes of a mask are all or nothing. */
#define RESTORE_ZEROS(suffix, type)                                                              \
    static size_t restore_run_##suffix(type *dst, const type *elems, size_t kept, unsigned bits, \
                                       size_t len)                                               \
    {                                                                                            \
        type run[8];                                                                             \
                                                                                                 \
        if (len == 8 && bits == 0) {                                                             \
            memset(dst, 0, sizeof(run));                                                         \
            return kept;                                                                         \
        }                                                                                        \
        if (len == 8 && bits == 0xff) {                                                          \
            memcpy(run, elems + kept - 8, sizeof(run));                                          \
            memcpy(dst, run, sizeof(run));                                                       \
            return kept - 8;                                                                     \
        }                                                                                        \
        for (size_t k = len; k-- > 0;) {                                                         \
            const unsigned bit = bits >> k & 1;                                                  \
                                                                                                 \
            kept -= bit;                                                                         \
            dst[k] = (type)(elems[kept] & (0u - bit));                                           \
        }                                                                                        \
        return kept;                                                                             \
    }                                                                                            \
    /* The other way: from the last on, so that none is overwritten before it is moved. */       \
    static void restore_zeros_##suffix(type *elems, size_t n, const uint8_t *mask, size_t kept)  \
    {                                                                                            \
        for (size_t i = dsc_round_up(n, 8); i > 0; i -= 8)                                       \
            kept = restore_run_##suffix(elems + i - 8, elems, kept, mask[i / 8 - 1],             \
                                        dsc_min_size(8, n - (i - 8)));                           \
    }

DROP_ZEROS(wide, uint32_t)
DROP_ZEROS(half, uint16_t)
RESTORE_ZEROS(wide, uint32_t)
RESTORE_ZEROS(half, uint16_t)
RESTORE_ZEROS(byte, uint8_t)

/* Elements of a segment that a mask lets through. */
size_t dsc_mask_count(const uint8_t *mask, size_t n)
{
    size_t kept = 0;

    for (size_t i = 0; i < n / 8; i++)
        kept += (size_t)__builtin_popcount(mask[i]);
    if (n % 8 != 0)
        kept += (size_t)__builtin_popcount(mask[n / 8] & ((1u << n % 8) - 1));
    return kept;
}

/* At least one element in 16: below, the mask takes what it saves. */
size_t dsc_drop_zeros(uint8_t *mask, void *elems, size_t width, size_t n)
{
    if (width == sizeof(uint32_t) && 16 * count_zeros_wide(elems, n) >= n)
        return drop_zeros_wide(mask, elems, n);
    if (width == sizeof(uint16_t) && 16 * count_zeros_half(elems, n) >= n)
        return drop_zeros_half(mask, elems, n);
    memset(mask, 0xff, dsc_ceil_div(n, 8));
    return n;
}

void dsc_restore_zeros(void *elems, size_t width, size_t n, const uint8_t *mask, size_t kept)
{
    if (kept == n)
        return;
    if (width == sizeof(uint32_t))
        restore_zeros_wide(elems, n, mask, kept);
    else if (width == sizeof(uint16_t))
        restore_zeros_half(elems, n, mask, kept);
    else
        restore_zeros_byte(elems, n, mask, kept);
}

/* ---- planes ---- */

/* Turned left by one bit, so that the exponent is in one byte: the sign comes last. */
static void split_wide(uint8_t *planes, const uint32_t *src, size_t n)
{
    uint8_t *const p0 = planes, *const p1 = planes + DSC_PLANE_MAX,
                   *const p2 = planes + 2 * DSC_PLANE_MAX, *const p3 = planes + 3 * DSC_PLANE_MAX;

    for (size_t i = 0; i < n; i++) {
        const uint32_t u = src[i] << 1 | src[i] >> 31;

        p0[i] = (uint8_t)u;
        p1[i] = (uint8_t)(u >> 8);
        p2[i] = (uint8_t)(u >> 16);
        p3[i] = (uint8_t)(u >> 24);
    }
}

static void join_wide(uint32_t *dst, const uint8_t *const *p, size_t n)
{
    const uint8_t *const p0 = p[0], *const p1 = p[1], *const p2 = p[2], *const p3 = p[3];

    for (size_t i = 0; i < n; i++) {
        const uint32_t u =
            p0[i] | (uint32_t)p1[i] << 8 | (uint32_t)p2[i] << 16 | (uint32_t)p3[i] << 24;

        dst[i] = u >> 1 | u << 31;
    }
}

static void split_half(uint8_t *planes, const uint16_t *src, size_t n)
{
    uint8_t *const p0 = planes, *const p1 = planes + DSC_PLANE_MAX;

    for (size_t i = 0; i < n; i++) {
        p0[i] = (uint8_t)(src[i] << 1 | src[i] >> 15);
        p1[i] = (uint8_t)(src[i] >> 7);
    }
}

static void join_half(uint16_t *dst, const uint8_t *const *p, size_t n)
{
    const uint8_t *const p0 = p[0], *const p1 = p[1];

    for (size_t i = 0; i < n; i++) {
        const uint16_t u = (uint16_t)(p0[i] | p1[i] << 8);

        dst[i] = (uint16_t)(u >> 1 | u << 15);
    }
}

void dsc_split_planes(uint8_t *planes, const void *elems, size_t width, size_t n)
{
    if (width == sizeof(uint32_t))
        split_wide(planes, elems, n);
    else if (width == sizeof(uint16_t))
        split_half(planes, elems, n);
    else
        memcpy(planes, elems, n);
}

void dsc_join_planes(void *elems, size_t width, const uint8_t *const *planes, size_t n)
{
    if (width == sizeof(uint32_t))
        join_wide(elems, planes, n);
    else if (width == sizeof(uint16_t))
        join_half(elems, planes, n);
    else
        memcpy(elems, planes[0], n);
}
