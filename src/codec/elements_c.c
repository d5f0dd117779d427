/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference for conversions, element-wise arithmetic and casts: these functions define the
 * bits, every other level is a faster spelling of them. Compiled with -ffp-contract=off; each float
 * operation is one IEEE operation in nearest-even mode.
 */
#include "codec/bits.h"
#include "codec/kernels.h"

/* ---- conversions ---- */

static float f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;

    if (magnitude > F16_INF)
        return float_of(F32_NAN);
    if (magnitude == F16_INF)
        return float_of(sign | F32_INF);
    if (magnitude < 0x0400u) /* zero or subnormal: a multiple of 2^-24 */
        return float_of(sign | bits_of((float)magnitude * 0x1p-24f));
    return float_of(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

static uint16_t f16_from_f32(float x)
{
    const uint32_t u = bits_of(x);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t magnitude = u & F32_ABS;

    if (magnitude > F32_INF)
        return F16_NAN;
    if (magnitude >= 0x477ff000u) /* 65520, half way between the largest value and 2^16 */
        return (uint16_t)(sign | F16_INF);
    if (magnitude < 0x38800000u) /* below 2^-14: adding 1/2 rounds to a multiple of 2^-24 */
        return (uint16_t)(sign | (bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f)));

    const uint32_t rounded = magnitude + 0x0fffu + ((magnitude >> 13) & 1u);

    return (uint16_t)(sign | ((rounded - ((127u - 15u) << 23)) >> 13));
}

static float bf16_to_f32(uint16_t h)
{
    return canonical(float_of((uint32_t)h << 16));
}

static uint16_t bf16_from_f32(float x)
{
    const uint32_t u = bits_of(x);

    if (is_nan(x))
        return BF16_NAN;
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

void dsc_f16_load_c(float *dst, const uint16_t *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = f16_to_f32(src[i]);
}

void dsc_f16_store_c(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = f16_from_f32(src[i]);
}

void dsc_bf16_load_c(float *dst, const uint16_t *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_to_f32(src[i]);
}

void dsc_bf16_store_c(uint16_t *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = bf16_from_f32(src[i]);
}

void dsc_f32_store_c(float *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++)
        dst[i] = canonical(src[i]);
}

void dsc_stream_c(float *dst, const float *src, size_t n)
{
    memcpy(dst, src, n * sizeof(*dst));
}

/* ---- element-wise ---- */

void dsc_axpy_c(float *x, const float *v, const float *r, float beta, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float kept = beta * r[i];

        x[i] = v[i] + kept;
    }
}

void dsc_add_c(float *acc, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = acc[i] + x[i];
}

/* Equal values differ in bits only as +0 and -0: `and` gives the larger, `or` the smaller one. */
static float larger(float a, float b)
{
    if (is_nan(a) || is_nan(b))
        return float_of(F32_NAN);
    if (a == b)
        return float_of(bits_of(a) & bits_of(b));
    return a > b ? a : b;
}

static float smaller(float a, float b)
{
    if (is_nan(a) || is_nan(b))
        return float_of(F32_NAN);
    if (a == b)
        return float_of(bits_of(a) | bits_of(b));
    return a < b ? a : b;
}

void dsc_max_c(float *acc, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = larger(acc[i], x[i]);
}

void dsc_min_c(float *acc, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        acc[i] = smaller(acc[i], x[i]);
}

void dsc_mul_c(float *y, const float *x, float s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * s;
}

void dsc_div_c(float *y, const float *x, float d, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] / d;
}

void dsc_residual_c(float *r, const float *x, const float *o, float a, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const float delivered = a * o[i];

        r[i] = x[i] - delivered;
    }
}

size_t dsc_count_nonfinite_c(const float *o, float a, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += !is_finite(a * o[i]);
    return count;
}

size_t dsc_count_minus_zero_c(const float *x, size_t n)
{
    size_t count = 0;

    for (size_t i = 0; i < n; i++)
        count += bits_of(x[i]) == F32_SIGN;
    return count;
}

size_t dsc_at_least_c(uint8_t *mask, const float *v, const float *r, float beta, uint32_t limit,
                      size_t n)
{
    size_t count = 0;

    memset(mask, 0, dsc_ceil_div(n, 8));
    for (size_t i = 0; i < n; i++) {
        const float kept = r != NULL ? beta * r[i] : 0.0f;
        const float x = r != NULL ? v[i] + kept : v[i];
        const bool is_set = (bits_of(x) & F32_ABS) >= limit;

        mask[i / 8] |= (uint8_t)(is_set << i % 8);
        count += is_set;
    }
    return count;
}

/* ---- casts ---- */

void dsc_f32_encode_feedback_c(void *q, float *r_out, const float *v, const float *r, float beta,
                               unsigned flags, int exponent, size_t n)
{
    float *const out = q;

    (void)exponent;
    for (size_t i = 0; i < n; i++) {
        const float kept = beta * r[i];
        const float x = v[i] + kept;

        out[i] = canonical(x);
        r_out[i] = residual_of(x, out[i], r[i], (flags & DSC_KEEP_OLD) != 0);
    }
}

void dsc_f16_encode_feedback_c(void *q, float *r_out, const float *v, const float *r, float beta,
                               unsigned flags, int exponent, size_t n)
{
    const float down = power_of_two(-exponent), up = power_of_two(exponent);
    uint16_t *const out = q;

    for (size_t i = 0; i < n; i++) {
        const float kept = beta * r[i];
        const float x = v[i] + kept;

        out[i] = f16_from_f32(x * down);
        r_out[i] = residual_of(x, f16_to_f32(out[i]) * up, r[i], (flags & DSC_KEEP_OLD) != 0);
    }
}

void dsc_bf16_encode_feedback_c(void *q, float *r_out, const float *v, const float *r, float beta,
                                unsigned flags, int exponent, size_t n)
{
    uint16_t *const out = q;

    (void)exponent;
    for (size_t i = 0; i < n; i++) {
        const float kept = beta * r[i];
        const float x = v[i] + kept;

        out[i] = bf16_from_f32(x);
        r_out[i] = residual_of(x, bf16_to_f32(out[i]), r[i], (flags & DSC_KEEP_OLD) != 0);
    }
}

void dsc_f32_decode_add_c(float *acc, const void *q, int exponent, size_t n)
{
    (void)exponent;
    dsc_add_c(acc, q, n);
}

void dsc_f16_decode_add_c(float *acc, const void *q, int exponent, size_t n)
{
    const uint16_t *const in = q;
    const float up = power_of_two(exponent);

    for (size_t i = 0; i < n; i++) {
        const float d = f16_to_f32(in[i]) * up;

        acc[i] = acc[i] + d;
    }
}

void dsc_bf16_decode_add_c(float *acc, const void *q, int exponent, size_t n)
{
    const uint16_t *const in = q;

    (void)exponent;
    for (size_t i = 0; i < n; i++)
        acc[i] = acc[i] + bf16_to_f32(in[i]);
}

/* ---- Hadamard rotation ---- */

static void rotate_group(float *x)
{
    for (size_t stride = 1; stride < DSC_HADAMARD_GROUP; stride *= 2) {
        for (size_t i = 0; i < DSC_HADAMARD_GROUP; i++) {
            const float a = x[i], b = x[i | stride];

            if ((i & stride) != 0) /* the upper one of a pair: done with the lower */
                continue;
            x[i] = a + b;
            x[i | stride] = a - b;
        }
    }
}

void dsc_hadamard_rotate_c(float *rotated, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += DSC_HADAMARD_GROUP) {
        const size_t len = dsc_min_size(DSC_HADAMARD_GROUP, n - i);

        for (size_t j = 0; j < DSC_HADAMARD_GROUP; j++)
            rotated[i + j] = j < len ? x[i + j] : 0.0f;
        rotate_group(rotated + i);
    }
}

void dsc_hadamard_restore_c(float *x, const float *rotated, size_t n)
{
    float group[DSC_HADAMARD_GROUP];

    for (size_t i = 0; i < n; i += DSC_HADAMARD_GROUP) {
        memcpy(group, rotated + i, sizeof(group));
        rotate_group(group);
        for (size_t j = 0; j < dsc_min_size(DSC_HADAMARD_GROUP, n - i); j++)
            x[i + j] = canonical(group[j] * 0x1p-5f);
    }
}
