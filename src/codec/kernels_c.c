/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference: these functions define the bits, every other level is a faster spelling of them.
 * Compiled with -ffp-contract=off; each float operation is one IEEE operation in nearest-even mode.
 */
#include "codec/bits.h"
#include "codec/kernels.h"

#include <pthread.h>
#include <string.h>

#define F32_ABS 0x7fffffffu
#define F32_NAN 0x7fc00000u /* the one NaN that is ever stored */
#define F16_INF 0x7c00u
#define F16_NAN 0x7e00u
#define BF16_NAN 0x7fc0u

static uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

static bool is_nan(float x)
{
    return (bits_of(x) & F32_ABS) > F32_INF;
}

static bool is_finite(float x)
{
    return (bits_of(x) & F32_INF) != F32_INF;
}

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

static uint16_t bf16_from_f32(float x)
{
    const uint32_t u = bits_of(x);

    if (is_nan(x))
        return BF16_NAN;
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static float canonical(float x)
{
    return is_nan(x) ? float_of(F32_NAN) : x;
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
        dst[i] = canonical(float_of((uint32_t)src[i] << 16));
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

/* ---- int8 blocks ---- */

static uint32_t max_magnitude(const float *x, size_t n)
{
    uint32_t amax = 0;

    for (size_t i = 0; i < n; i++) {
        const uint32_t magnitude = bits_of(x[i]) & F32_ABS;

        amax = magnitude > amax ? magnitude : amax;
    }
    return amax;
}

/* Adding and subtracting 1.5 * 2^23 is rint() in nearest-even mode for |t| < 2^22. */
static int8_t int8_code(float x, float inv)
{
    const float t = (x * inv + 0x1.8p23f) - 0x1.8p23f;

    return (int8_t)(t > 127.0f ? 127.0f : t < -127.0f ? -127.0f : t);
}

static void int8_decode_block(float *dst, const int8_t *q, float scale, size_t n)
{
    const bool is_poison = !is_finite(scale);

    for (size_t i = 0; i < n; i++)
        dst[i] = is_poison ? float_of(F32_NAN) : (float)q[i] * scale;
}

static void int8_encode_block(int8_t *q, float *scale, const float *x, size_t n)
{
    const uint32_t amax_bits = max_magnitude(x, n);
    const float amax = float_of(amax_bits);

    if (amax_bits >= F32_INF || amax_bits < F32_TINY) {
        *scale = amax_bits >= F32_INF ? float_of(F32_NAN) : 0.0f;
        memset(q, 0, n);
        return;
    }

    const float inv = 127.0f / amax;

    *scale = amax / 127.0f;
    for (size_t i = 0; i < n; i++)
        q[i] = int8_code(x[i], inv);
}

void dsc_int8_encode_c(int8_t *q, float *scale, float *d, const float *x, size_t n, uint32_t block)
{
    for (size_t first = 0; first < n; first += block) {
        const size_t len = dsc_min_size(block, n - first);

        int8_encode_block(q + first, scale, x + first, len);
        if (d != NULL)
            int8_decode_block(d + first, q + first, *scale, len);
        scale++;
    }
}

static float feedback_residual(float x, float d, float r, bool keep)
{
    if (keep && !is_finite(d))
        return r;
    return is_nan(d) ? float_of(F32_NAN) : x - d;
}

void dsc_int8_encode_feedback_c(int8_t *q, float *scale, float *r_out, const float *v,
                                const float *r, float beta, int keep, size_t n, uint32_t block)
{
    float x[BLOCK_MAX], d[BLOCK_MAX];

    for (size_t first = 0; first < n; first += block) {
        const size_t len = dsc_min_size(block, n - first);

        dsc_axpy_c(x, v + first, r + first, beta, len);
        int8_encode_block(q + first, scale, x, len);
        int8_decode_block(d, q + first, *scale, len);
        for (size_t i = 0; i < len; i++)
            r_out[first + i] = feedback_residual(x[i], d[i], r[first + i], keep != 0);
        scale++;
    }
}

void dsc_int8_decode_c(float *dst, const int8_t *q, const float *scale, size_t n, uint32_t block)
{
    for (size_t first = 0; first < n; first += block)
        int8_decode_block(dst + first, q + first, *scale++, dsc_min_size(block, n - first));
}

void dsc_int8_decode_add_c(float *acc, const int8_t *q, const float *scale, size_t n,
                           uint32_t block)
{
    float d[BLOCK_MAX];

    for (size_t first = 0; first < n; first += block) {
        const size_t len = dsc_min_size(block, n - first);

        int8_decode_block(d, q + first, *scale++, len);
        dsc_add_c(acc + first, d, len);
    }
}

/* ---- selection ---- */

void dsc_kernels_init(struct dsc_kernels *k, uint32_t cpu)
{
#define USE_C(name, type) k->name = dsc_##name##_c;
    DSC_KERNELS_MAP(USE_C)
#undef USE_C
#if defined(__x86_64__)
    dsc_kernels_init_x86(k, cpu);
#else
    (void)cpu;
#endif
}

static struct dsc_kernels chosen;
static pthread_once_t chosen_once = PTHREAD_ONCE_INIT;

static void choose(void)
{
    dsc_kernels_init(&chosen, dsc_cpu_features());
}

const struct dsc_kernels *dsc_kernels_get(void)
{
    (void)pthread_once(&chosen_once, choose);
    return &chosen;
}
