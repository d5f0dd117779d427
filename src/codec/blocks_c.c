/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference for block formats: these functions define the bits. Compiled with
 * -ffp-contract=off; each float operation is one IEEE operation in nearest-even mode.
 *
 * A format is four small functions below. `format` is a constant wherever they are called, so the
 * compiler makes one loop per format.
 */
#include "codec/bits.h"
#include "codec/kernels.h"

#include <math.h>

enum format { INT8, INT4, INT4_SIGNED, E4M3, E5M2 };

/* Two codes in a byte and bfloat16 scales. */
DSC_INLINE bool has_nibbles(enum format format)
{
    return format == INT4 || format == INT4_SIGNED;
}

/* ---- small floats: sign, exponent and `mbits` of mantissa in a byte ---- */

struct minifloat {
    uint32_t mbits;
    uint32_t min_exponent; /* of the smallest normal value, as in float32 */
};

static const struct minifloat e4m3 = { 3, 127 - 6 }, e5m2 = { 2, 127 - 14 };

/*
 * Nearest even by one addition: next to 2^(e + 23 - mbits) a float32 has steps of 2^(e - mbits),
 * the steps of the format at exponent e, so the sum's low bits count them. Below the smallest
 * normal value the steps stay what they are there. The caller's |t| does not round beyond the
 * largest value: |x| <= amax, and x*inv is amax*inv within two roundings.
 */
static uint32_t minifloat_code(struct minifloat f, float t)
{
    const uint32_t magnitude = bits_of(t) & F32_ABS;
    const uint32_t exponent = magnitude & F32_INF;
    const uint32_t lowest = f.min_exponent << 23;
    const uint32_t e = exponent > lowest ? exponent : lowest;
    const uint32_t magic = e + ((23 - f.mbits) << 23);
    const uint32_t steps = bits_of(float_of(magnitude) + float_of(magic)) - magic;
    const uint32_t code = ((e - lowest) >> (23 - f.mbits)) + steps;

    return code | (bits_of(t) >> 24 & 0x80u);
}

/* Exact; the caller has dealt with codes that are no numbers. */
static float minifloat_value(struct minifloat f, uint32_t code)
{
    const uint32_t sign = (code & 0x80u) << 24;
    const uint32_t magnitude = code & 0x7fu;
    const float step = float_of((f.min_exponent - f.mbits) << 23);

    if (magnitude >> f.mbits == 0)
        return float_of(sign | bits_of((float)magnitude * step));
    return float_of(sign | ((magnitude << (23 - f.mbits)) + ((f.min_exponent - 1) << 23)));
}

static float e5m2_value(uint32_t code)
{
    const uint32_t magnitude = code & 0x7fu;

    if (magnitude > 0x7cu)
        return float_of(F32_NAN);
    if (magnitude == 0x7cu)
        return float_of((code & 0x80u) << 24 | F32_INF);
    return minifloat_value(e5m2, code);
}

static float e4m3_value(uint32_t code)
{
    return (code & 0x7fu) == 0x7fu ? float_of(F32_NAN) : minifloat_value(e4m3, code);
}

/* ---- integers ---- */

/* Adding and subtracting 1.5 * 2^23 is rint() in nearest-even mode for |t| < 2^22. */
static int32_t integer_code(float t, float least, float largest)
{
    const float q = (t + 0x1.8p23f) - 0x1.8p23f;

    return (int32_t)(q > largest ? largest : q < least ? least : q);
}

/* ---- stochastic rounding ---- */

static uint32_t mix(uint32_t h)
{
    h ^= h >> 16;
    h *= 0x7feb352du;
    h ^= h >> 15;
    h *= 0x846ca68bu;
    return h ^ h >> 16;
}

/* 16 random bits for element i of the caller's vector: two elements share a hash. */
static int32_t random_16(const struct dsc_draw *draw, uint64_t i)
{
    const uint32_t high = mix((uint32_t)(i >> 33));
    const uint32_t key = mix(draw->seed + mix(draw->call + mix(draw->rank + high)));
    const uint32_t h = mix(mix(key) ^ (uint32_t)(i >> 1));

    return (int32_t)(i % 2 == 0 ? h & 0xffffu : h >> 16);
}

/* Up with the probability of the fraction of t, in steps of 2^-16. */
static int32_t stochastic_code(float t, int32_t random, int32_t largest)
{
    const int32_t q = ((int32_t)rintf(t * 0x1p16f) + random) >> 16;

    return q > largest ? largest : q < -largest ? -largest : q;
}

/* ---- what a format is ---- */

/* Away from zero to a bfloat16, so that no code is beyond the largest. */
static float bf16_scale(float scale)
{
    return float_of((bits_of(scale) + 0xffffu) & 0xffff0000u);
}

/* extreme: the element of largest magnitude. */
DSC_INLINE float scale_of(enum format format, float extreme)
{
    const float amax = float_of(bits_of(extreme) & F32_ABS);

    switch (format) {
    case INT8:
        return amax / 127.0f;
    case INT4:
        return bf16_scale(amax / 7.0f);
    case INT4_SIGNED:
        return bf16_scale(extreme / -8.0f);
    case E4M3:
        return amax / 448.0f;
    case E5M2:
        return amax / 57344.0f;
    }
    return 0.0f;
}

DSC_INLINE float inverse_of(enum format format, float amax, float scale)
{
    switch (format) {
    case INT8:
        return 127.0f / amax;
    case INT4:
    case INT4_SIGNED:
        return 1.0f / scale;
    case E4M3:
        return 448.0f / amax;
    case E5M2:
        return 57344.0f / amax;
    }
    return 0.0f;
}

DSC_INLINE uint32_t code_of(enum format format, float t)
{
    switch (format) {
    case INT8:
        return (uint32_t)integer_code(t, -127.0f, 127.0f) & 0xffu;
    case INT4:
        return (uint32_t)integer_code(t, -7.0f, 7.0f) & 0xfu;
    case INT4_SIGNED:
        return (uint32_t)integer_code(t, -8.0f, 7.0f) & 0xfu;
    case E4M3:
        return minifloat_code(e4m3, t);
    case E5M2:
        return minifloat_code(e5m2, t);
    }
    return 0;
}

/* Of INT8 and INT4. */
DSC_INLINE uint32_t drawn_code(enum format format, float t, int32_t random)
{
    return format == INT8 ? (uint32_t)stochastic_code(t, random, 127) & 0xffu
                          : (uint32_t)stochastic_code(t, random, 7) & 0xfu;
}

DSC_INLINE float value_of(enum format format, uint32_t code)
{
    switch (format) {
    case INT8:
        return (float)(int8_t)code;
    case INT4:
    case INT4_SIGNED:
        return (float)((int32_t)(code << 28) >> 28);
    case E4M3:
        return e4m3_value(code);
    case E5M2:
        return e5m2_value(code);
    }
    return 0.0f;
}

/* ---- codes and scales in memory ---- */

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
    return !has_nibbles(format) ? q[i] : (uint32_t)(q[i / 2] >> (4 * (i % 2))) & 0xfu;
}

DSC_INLINE void put_scale(enum format format, void *scales, size_t i, float scale)
{
    if (has_nibbles(format))
        ((uint16_t *)scales)[i] = (uint16_t)(bits_of(scale) >> 16);
    else
        ((float *)scales)[i] = scale;
}

DSC_INLINE float get_scale(enum format format, const void *scales, size_t i)
{
    if (has_nibbles(format))
        return float_of((uint32_t)((const uint16_t *)scales)[i] << 16);
    return ((const float *)scales)[i];
}

DSC_INLINE size_t code_bytes(enum format format, size_t n)
{
    return has_nibbles(format) ? n / 2 : n;
}

/* ---- one block ---- */

/* Bits of the element of largest magnitude, of equal ones a positive one. */
static uint32_t extreme_bits(const float *x, size_t n)
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

/* Returns the scale, as sent. draw: NULL, or whence the random numbers come, i the first's index.
 */
DSC_INLINE float encode_block(enum format format, uint8_t *restrict q, const float *restrict x,
                              size_t n, const struct dsc_draw *draw, uint64_t index)
{
    const uint32_t bits = extreme_bits(x, n), amax_bits = bits & F32_ABS;

    if (amax_bits >= F32_INF || amax_bits < F32_TINY) {
        for (size_t i = 0; i < n; i++)
            put_code(format, q, i, 0);
        return amax_bits >= F32_INF ? float_of(F32_NAN) : 0.0f;
    }

    const float scale = scale_of(format, float_of(bits));
    const float inv = inverse_of(format, float_of(amax_bits), scale);

    for (size_t i = 0; i < n; i++)
        put_code(format, q, i,
                 draw != NULL ? drawn_code(format, x[i] * inv, random_16(draw, index + i))
                              : code_of(format, x[i] * inv));
    return scale;
}

/* Only e4m3 and e5m2 have codes that are no numbers. */
DSC_INLINE void decode_block(enum format format, float *restrict dst, const uint8_t *restrict q,
                             float scale, size_t n)
{
    const bool has_nan = format == E4M3 || format == E5M2;

    for (size_t i = 0; i < n; i++) {
        const float d = value_of(format, get_code(format, q, i)) * scale;

        dst[i] = has_nan ? canonical(d) : d;
    }
    if (!is_finite(scale))
        for (size_t i = 0; i < n; i++)
            dst[i] = float_of(F32_NAN);
}

/* ---- whole arrays ---- */

DSC_INLINE void encode(enum format format, void *q, void *scales, float *d, const float *x,
                       size_t n, uint32_t block, const struct dsc_draw *draw)
{
    const uint64_t index = draw != NULL ? draw->first : 0;

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
        for (size_t i = 0; i < len; i++)
            r_out[first + i] = is_nan(d[i]) && (flags & DSC_KEEP_OLD) == 0
                                   ? float_of(F32_NAN)
                                   : residual_of(x[i], d[i], r[first + i], (flags & DSC_KEEP_OLD));
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
#define BLOCK_ENCODERS(name, format)                                                          \
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

#define BLOCK_DECODERS(name, format)                                                         \
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

#define BLOCK_ENCODE_SR(name, format)                                                       \
    void dsc_##name##_encode_sr_c(void *q, void *scale, float *d, const float *x, size_t n, \
                                  uint32_t block, const struct dsc_draw *draw)              \
    {                                                                                       \
        encode(format, q, scale, d, x, n, block, draw);                                     \
    }

BLOCK_ENCODERS(int8, INT8)
BLOCK_DECODERS(int8, INT8)
BLOCK_ENCODE_SR(int8, INT8)
BLOCK_ENCODERS(int4, INT4)
BLOCK_DECODERS(int4, INT4)
BLOCK_ENCODE_SR(int4, INT4)
BLOCK_ENCODERS(int4s, INT4_SIGNED)
BLOCK_ENCODERS(e4m3, E4M3)
BLOCK_DECODERS(e4m3, E4M3)
BLOCK_ENCODERS(e5m2, E5M2)
BLOCK_DECODERS(e5m2, E5M2)
