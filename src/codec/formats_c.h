/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference for block formats, element by element: what a scale, its inverse, a code and its
 * value are. Each float operation is one IEEE operation in nearest-even mode.
 */
#ifndef DSC_FORMATS_C_H
#define DSC_FORMATS_C_H

#include "codec/block_formats.h"
#include "codec/kernels.h"

#include <math.h>

/* ---- small floats: sign, exponent and `mbits` of mantissa ---- */

struct minifloat {
    uint32_t mbits;
    uint32_t min_exponent; /* of the smallest normal value, as in float32 */
    float largest;
    uint32_t sign; /* bit */
};

static const struct minifloat e4m3 = { 3, 127 - 6, 448.0f, 0x80 },
                              e5m2 = { 2, 127 - 14, 57344.0f, 0x80 }, e2m1 = { 1, 127, 6.0f, 0x8 };

/*
 * Nearest even by one addition: next to 2^(e + 23 - mbits) a float32 has steps of 2^(e - mbits),
 * the steps of the format at exponent e, so the sum's low bits count them. Below the smallest
 * normal value the steps stay what they are there. What is beyond the largest value becomes it.
 */
DSC_INLINE uint32_t minifloat_code(struct minifloat f, float t)
{
    const uint32_t any = bits_of(t) & F32_ABS;
    const uint32_t magnitude = any < bits_of(f.largest) ? any : bits_of(f.largest);
    const uint32_t exponent = magnitude & F32_INF;
    const uint32_t lowest = f.min_exponent << 23;
    const uint32_t e = exponent > lowest ? exponent : lowest;
    const uint32_t magic = e + ((23 - f.mbits) << 23);
    const uint32_t steps = bits_of(float_of(magnitude) + float_of(magic)) - magic;
    const uint32_t code = ((e - lowest) >> (23 - f.mbits)) + steps;

    return code | (bits_of(t) >> 31 != 0 ? f.sign : 0);
}

/* Exact; the caller has dealt with codes that are no numbers. */
DSC_INLINE float minifloat_value(struct minifloat f, uint32_t code)
{
    const uint32_t sign = (code & f.sign) != 0 ? F32_SIGN : 0;
    const uint32_t magnitude = code & (f.sign - 1);
    const float step = float_of((f.min_exponent - f.mbits) << 23);

    if (magnitude >> f.mbits == 0)
        return float_of(sign | bits_of((float)magnitude * step));
    return float_of(sign | ((magnitude << (23 - f.mbits)) + ((f.min_exponent - 1) << 23)));
}

DSC_INLINE float e5m2_value(uint32_t code)
{
    const uint32_t magnitude = code & 0x7fu;

    if (magnitude > 0x7cu)
        return float_of(F32_NAN);
    if (magnitude == 0x7cu)
        return float_of((code & 0x80u) << 24 | F32_INF);
    return minifloat_value(e5m2, code);
}

DSC_INLINE float e4m3_value(uint32_t code)
{
    return (code & 0x7fu) == 0x7fu ? float_of(F32_NAN) : minifloat_value(e4m3, code);
}

/* ---- integers ---- */

/* Adding and subtracting 1.5 * 2^23 is rint() in nearest-even mode for |t| < 2^22. */
DSC_INLINE uint32_t integer_code(float t, float least, float largest)
{
    const float q = (t + 0x1.8p23f) - 0x1.8p23f;

    return (uint32_t)(int32_t)(q > largest ? largest : q < least ? least : q);
}

/* ---- stochastic rounding ---- */

DSC_INLINE uint32_t mix(uint32_t h)
{
    h ^= h >> 16;
    h *= 0x7feb352du;
    h ^= h >> 15;
    h *= 0x846ca68bu;
    return h ^ h >> 16;
}

/* 16 random bits for element i of the caller's vector: two elements share a hash. */
DSC_INLINE int32_t random_16(const struct dsc_draw *draw, uint64_t i)
{
    const uint32_t high = mix((uint32_t)(i >> 33));
    const uint32_t key = mix(draw->seed + mix(draw->call + mix(draw->rank + high)));
    const uint32_t h = mix(mix(key) ^ (uint32_t)(i >> 1));

    return (int32_t)(i % 2 == 0 ? h & 0xffffu : h >> 16);
}

/* Up with the probability of the fraction of t, in steps of 2^-16. */
DSC_INLINE int32_t stochastic_code(float t, int32_t random, int32_t largest)
{
    const int32_t q = ((int32_t)rintf(t * 0x1p16f) + random) >> 16;

    return q > largest ? largest : q < -largest ? -largest : q;
}

/* ---- elements ---- */

DSC_INLINE uint32_t code_of(enum element element, float t)
{
    switch (element) {
    case ELEM_INT8:
        return integer_code(t, -127.0f, 127.0f) & 0xffu;
    case ELEM_64THS:
        return integer_code(t * 64.0f, -127.0f, 127.0f) & 0xffu;
    case ELEM_INT4:
        return integer_code(t, -7.0f, 7.0f) & 0xfu;
    case ELEM_INT4_SIGNED:
        return integer_code(t, -8.0f, 7.0f) & 0xfu;
    case ELEM_E4M3:
        return minifloat_code(e4m3, t);
    case ELEM_E5M2:
        return minifloat_code(e5m2, t);
    case ELEM_E2M1:
        return minifloat_code(e2m1, t);
    }
    return 0;
}

/* Of formats that draw. */
DSC_INLINE uint32_t drawn_code(enum element element, float t, int32_t random)
{
    return element == ELEM_INT8 ? (uint32_t)stochastic_code(t, random, 127) & 0xffu
                                : (uint32_t)stochastic_code(t, random, 7) & 0xfu;
}

DSC_INLINE float value_of(enum element element, uint32_t code)
{
    switch (element) {
    case ELEM_INT8:
        return (float)(int8_t)code;
    case ELEM_64THS:
        return (float)(int8_t)code * 0x1p-6f;
    case ELEM_INT4:
    case ELEM_INT4_SIGNED:
        return (float)((int32_t)(code << 28) >> 28);
    case ELEM_E4M3:
        return e4m3_value(code);
    case ELEM_E5M2:
        return e5m2_value(code);
    case ELEM_E2M1:
        return minifloat_value(e2m1, code);
    }
    return 0.0f;
}

DSC_INLINE void put_code(enum format format, uint8_t *q, size_t i, uint32_t code)
{
    if (!has_nibbles(format))
        q[i] = (uint8_t)code;
    else if (i % 2 == 0) /* and the high half is zero until its element comes */
        q[i / 2] = (uint8_t)code;
    else
        q[i / 2] = (uint8_t)(q[i / 2] | code << 4);
}

DSC_INLINE uint32_t get_code(enum format format, const uint8_t *q, size_t i)
{
    return has_nibbles(format) ? (uint32_t)(q[i / 2] >> (4 * (i % 2))) & 0xfu : q[i];
}

/* ---- blocks ---- */

/* Bits of the element of largest magnitude, of equal ones a positive one. */
DSC_INLINE uint32_t extreme_bits(const float *x, size_t n)
{
    uint32_t most = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = bits_of(x[i]);
        const uint32_t key = (bits << 1 | bits >> 31) ^ 1u; /* the sign decides last */

        most = key > most ? key : most;
    }
    most ^= 1u;
    return most >> 1 | most << 31;
}

DSC_INLINE uint32_t max_magnitude(const float *x, size_t n)
{
    return extreme_bits(x, n) & F32_ABS;
}

DSC_INLINE void put_zeros(enum format format, uint8_t *q, size_t n)
{
    for (size_t i = 0; i < n; i++)
        put_code(format, q, i, 0);
}

/* What a sender keeps of a block: NaN, if not the old residual, where D is NaN. */
DSC_INLINE void keep_block(float *r_out, const float *x, const float *d, const float *r, size_t n,
                           bool keep_old)
{
    for (size_t i = 0; i < n; i++)
        r_out[i] =
            is_nan(d[i]) && !keep_old ? float_of(F32_NAN) : residual_of(x[i], d[i], r[i], keep_old);
}

/* ---- scales ---- */

/*
 * The power of two that brings amax to the exponent of the largest value, as exponent field. Not
 * 255, which would be poison: that clamp is for one exponent of 64ths, which then saturate.
 */
DSC_INLINE uint32_t e8m0_of(enum format format, uint32_t amax_bits)
{
    const uint32_t largest = bits_of(largest_of(format));
    const bool reaches = (amax_bits & F32_MANTISSA) <= (largest & F32_MANTISSA);
    const uint32_t code = (amax_bits >> 23) - (largest >> 23) + 127 +
                          (formats[format].rounds_up && !reaches ? 1u : 0u);

    return code < 255 ? code : 254;
}

/* extreme: the element of largest magnitude. */
DSC_INLINE float scale_of(enum format format, float extreme)
{
    const bool is_signed = formats[format].element == ELEM_INT4_SIGNED;
    const float amax = float_of(bits_of(extreme) & F32_ABS);
    const float scale = (is_signed ? -extreme : amax) / largest_of(format);

    if (formats[format].scale == SCALE_E8M0)
        return float_of(e8m0_of(format, bits_of(amax)) << 23);
    if (formats[format].scale ==
        SCALE_BF16) /* away from 0, so that no code is beyond the largest */
        return float_of((bits_of(scale) + 0xffffu) & 0xffff0000u);
    return scale;
}

/* Exact for powers of two. */
DSC_INLINE float inverse_of(enum format format, float amax, float scale)
{
    return formats[format].scale == SCALE_F32 ? largest_of(format) / amax : 1.0f / scale;
}

#endif
