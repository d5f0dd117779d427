/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference for block formats: these functions, with those of formats_c.h, define the bits.
 * Compiled with -ffp-contract=off.
 *
 * `format` is a constant wherever a function takes it, so the compiler makes one loop per format.
 */
#include "codec/formats_c.h"
#include "codec/kernels.h"

/* ---- one block ---- */

/* Returns the bits of the scale. With formats that draw, index is that of the first element. */
DSC_INLINE uint32_t encode_block(enum format format, uint8_t *restrict q, const float *restrict x,
                                 size_t n, const struct dsc_draw *draw, uint64_t index)
{
    const enum element element = formats[format].element;
    const uint32_t bits = extreme_bits(x, n), amax_bits = bits & F32_ABS;

    if (amax_bits >= F32_INF || amax_bits < F32_TINY) {
        put_zeros(format, q, n);
        return amax_bits >= F32_INF ? F32_NAN : 0;
    }

    const float scale = scale_of(format, float_of(bits));
    const float inv = inverse_of(format, float_of(amax_bits), scale);

    for (size_t i = 0; i < n; i++)
        put_code(format, q, i,
                 formats[format].draws ? drawn_code(element, x[i] * inv, random_16(draw, index + i))
                                       : code_of(element, x[i] * inv));
    return bits_of(scale);
}

/* Only E4M3 and E5M2 have codes that are no numbers. */
DSC_INLINE void decode_block(enum format format, float *restrict dst, const uint8_t *restrict q,
                             uint32_t scale, size_t n)
{
    const enum element element = formats[format].element;
    const bool has_nan = element == ELEM_E4M3 || element == ELEM_E5M2;

    for (size_t i = 0; i < n; i++) {
        const float d = value_of(element, get_code(format, q, i)) * float_of(scale);

        dst[i] = has_nan ? canonical(d) : d;
    }
    if ((scale & F32_INF) == F32_INF)
        for (size_t i = 0; i < n; i++)
            dst[i] = float_of(F32_NAN);
}

/* ---- whole arrays ---- */

DSC_INLINE void encode(enum format format, void *q, void *scales, float *d, const float *x,
                       size_t n, uint32_t block, const struct dsc_draw *draw)
{
    const uint64_t index = formats[format].draws ? draw->first : 0;

    for (size_t b = 0, first = 0; first < n; b++, first += block) {
        const size_t len = dsc_min_size(block, n - first);
        uint8_t *const codes = (uint8_t *)q + code_bytes(format, first);

        put_scale(format, scales, b,
                  encode_block(format, codes, x + first, len, draw, index + first));
        if (d != NULL)
            decode_block(format, d + first, codes, get_scale(format, scales, b), len);
    }
}

DSC_INLINE void encode_feedback(enum format format, void *q, void *scales, float *r_out,
                                const float *v, const float *r, float beta, unsigned flags,
                                size_t n, uint32_t block)
{
    float x[BLOCK_MAX], d[BLOCK_MAX];

    for (size_t b = 0, first = 0; first < n; b++, first += block) {
        const size_t len = dsc_min_size(block, n - first);
        uint8_t *const codes = (uint8_t *)q + code_bytes(format, first);

        dsc_axpy_c(x, v + first, r + first, beta, len);
        put_scale(format, scales, b, encode_block(format, codes, x, len, NULL, 0));
        decode_block(format, d, codes, get_scale(format, scales, b), len);
        keep_block(r_out + first, x, d, r + first, len, (flags & DSC_KEEP_OLD) != 0);
    }
}

DSC_INLINE void decode(enum format format, float *dst, const void *q, const void *scales, size_t n,
                       uint32_t block)
{
    for (size_t b = 0, first = 0; first < n; b++, first += block)
        decode_block(format, dst + first, (const uint8_t *)q + code_bytes(format, first),
                     get_scale(format, scales, b), dsc_min_size(block, n - first));
}

DSC_INLINE void decode_add(enum format format, float *acc, const void *q, const void *scales,
                           size_t n, uint32_t block)
{
    float d[BLOCK_MAX];

    for (size_t b = 0, first = 0; first < n; b++, first += block) {
        const size_t len = dsc_min_size(block, n - first);

        decode_block(format, d, (const uint8_t *)q + code_bytes(format, first),
                     get_scale(format, scales, b), len);
        dsc_add_c(acc + first, d, len);
    }
}

/* The primitives of a format, under the names of kernels.h. */
#define ENCODERS(name, format)                                                                \
    void dsc_##name##_encode_c(void *q, void *scale, float *d, const float *x, size_t n,      \
                               uint32_t block)                                                \
    {                                                                                         \
        encode(format, q, scale, d, x, n, block, NULL);                                       \
    }                                                                                         \
    void dsc_##name##_encode_feedback_c(void *q, void *scale, float *r_out, const float *v,   \
                                        const float *r, float beta, unsigned flags, size_t n, \
                                        uint32_t block)                                       \
    {                                                                                         \
        encode_feedback(format, q, scale, r_out, v, r, beta, flags, n, block);                \
    }

#define DECODERS(name, format)                                                               \
    void dsc_##name##_decode_c(float *dst, const void *q, const void *scale, unsigned flags, \
                               size_t n, uint32_t block)                                     \
    {                                                                                        \
        (void)flags;                                                                         \
        decode(format, dst, q, scale, n, block);                                             \
    }                                                                                        \
    void dsc_##name##_decode_add_c(float *acc, const void *q, const void *scale, size_t n,   \
                                   uint32_t block)                                           \
    {                                                                                        \
        decode_add(format, acc, q, scale, n, block);                                         \
    }

#define ENCODE_SR(name, format)                                                             \
    void dsc_##name##_encode_sr_c(void *q, void *scale, float *d, const float *x, size_t n, \
                                  uint32_t block, const struct dsc_draw *draw)              \
    {                                                                                       \
        encode(format, q, scale, d, x, n, block, draw);                                     \
    }

DSC_BLOCK_FUNCTIONS(ENCODERS, DECODERS, ENCODE_SR)
