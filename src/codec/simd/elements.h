/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions and element-wise primitives in the words of a vec_*.h: whole vectors here, the rest
 * by the reference.
 */
#include "codec/kernels.h"

static inline vf vf_canonical(vf x)
{
    return vf_nan_if_unordered(x, x, x);
}

/* bfloat16 in the low halves of 32-bit lanes. A canonical NaN rounds to 0x7fc0 as it is. */
static inline vi bf16_bits(vf x)
{
    const vi u = vf_bits(vf_canonical(x));
    const vi odd = vi_and(vi_shift_right(u, 16), vi_set1(1));

    return vi_shift_right(vi_add(u, vi_add(odd, vi_set1(0x7fff))), 16);
}

static inline vf bf16_value(vi bits)
{
    return vf_canonical(vi_float(vi_shift_left(bits, 16)));
}

/* ---- conversions ---- */

void LEVEL(f16_load)(float *dst, const uint16_t *src, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        vf_store(dst + i, vf_canonical(vf_load_f16(src + i)));
    dsc_f16_load_c(dst + i, src + i, n - i);
}

void LEVEL(f16_store)(uint16_t *dst, const float *src, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        vf_store_f16(dst + i, vf_canonical(vf_load(src + i)));
    dsc_f16_store_c(dst + i, src + i, n - i);
}

void LEVEL(bf16_load)(float *dst, const uint16_t *src, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        vf_store(dst + i, bf16_value(vi_load_u16(src + i)));
    dsc_bf16_load_c(dst + i, src + i, n - i);
}

void LEVEL(bf16_store)(uint16_t *dst, const float *src, size_t n)
{
    size_t i = 0;

    for (; i + 2 * LANES <= n; i += 2 * LANES)
        vi_store_u16(dst + i, bf16_bits(vf_load(src + i)), bf16_bits(vf_load(src + i + LANES)));
    dsc_bf16_store_c(dst + i, src + i, n - i);
}

void LEVEL(f32_store)(float *dst, const float *src, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        vf_store(dst + i, vf_canonical(vf_load(src + i)));
    dsc_f32_store_c(dst + i, src + i, n - i);
}

void LEVEL(stream)(float *dst, const float *src, size_t n)
{
    size_t i = 0;

    if ((uintptr_t)dst % sizeof(vf) == 0) {
        for (; i + LANES <= n; i += LANES)
            vf_stream(dst + i, vf_load(src + i));
        vec_stream_end();
    }
    dsc_stream_c(dst + i, src + i, n - i);
}

/* ---- element-wise ---- */

void LEVEL(axpy)(float *x, const float *v, const float *r, float beta, size_t n)
{
    const vf scale = vf_set1(beta);
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        vf_store(x + i, vf_add(vf_load(v + i), vf_mul(scale, vf_load(r + i))));
    dsc_axpy_c(x + i, v + i, r + i, beta, n - i);
}

void LEVEL(add)(float *acc, const float *x, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        vf_store(acc + i, vf_add(vf_load(acc + i), vf_load(x + i)));
    dsc_add_c(acc + i, x + i, n - i);
}

/* vf_max() gives its second operand for two zeros, so the two orders differ only in a zero's sign.
 */
void LEVEL(max)(float *acc, const float *x, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const vf a = vf_load(acc + i), b = vf_load(x + i);
        const vi m = vi_and(vf_bits(vf_max(a, b)), vf_bits(vf_max(b, a)));

        vf_store(acc + i, vf_nan_if_unordered(vi_float(m), a, b));
    }
    dsc_max_c(acc + i, x + i, n - i);
}

void LEVEL(min)(float *acc, const float *x, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const vf a = vf_load(acc + i), b = vf_load(x + i);
        const vi m = vi_or(vf_bits(vf_min(a, b)), vf_bits(vf_min(b, a)));

        vf_store(acc + i, vf_nan_if_unordered(vi_float(m), a, b));
    }
    dsc_min_c(acc + i, x + i, n - i);
}

void LEVEL(mul)(float *y, const float *x, float s, size_t n)
{
    const vf scale = vf_set1(s);
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        vf_store(y + i, vf_mul(vf_load(x + i), scale));
    dsc_mul_c(y + i, x + i, s, n - i);
}

void LEVEL(div)(float *y, const float *x, float d, size_t n)
{
    const vf divisor = vf_set1(d);
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        vf_store(y + i, vf_div(vf_load(x + i), divisor));
    dsc_div_c(y + i, x + i, d, n - i);
}

void LEVEL(residual)(float *r, const float *x, const float *o, float a, size_t n)
{
    const vf scale = vf_set1(a);
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        vf_store(r + i, vf_sub(vf_load(x + i), vf_mul(scale, vf_load(o + i))));
    dsc_residual_c(r + i, x + i, o + i, a, n - i);
}

size_t LEVEL(count_nonfinite)(const float *o, float a, size_t n)
{
    const vf scale = vf_set1(a);
    size_t count = 0, i = 0;

    for (; i + LANES <= n; i += LANES)
        count += vf_count_nonfinite(vf_mul(vf_load(o + i), scale));
    return count + dsc_count_nonfinite_c(o + i, a, n - i);
}

size_t LEVEL(count_minus_zero)(const float *x, size_t n)
{
    size_t count = 0, i = 0;

    for (; i + LANES <= n; i += LANES)
        count += (size_t)__builtin_popcount(lanes_equal(vf_bits(vf_load(x + i)), 0x80000000u));
    return count + dsc_count_minus_zero_c(x + i, n - i);
}

/* Of 16 elements, the bits of those that reach the limit. */
static inline unsigned reach(const float *v, const float *r, vf beta, uint32_t limit)
{
    unsigned bits = 0;

    for (unsigned i = 0; i < 16; i += LANES) {
        vf x = vf_load(v + i);

        if (r != NULL)
            x = vf_add(x, vf_mul(beta, vf_load(r + i)));
        bits |= lanes_at_least(vi_and(vf_bits(x), vi_set1(0x7fffffff)), limit) << i;
    }
    return bits;
}

size_t LEVEL(at_least)(uint8_t *mask, const float *v, const float *r, float beta, uint32_t limit,
                       size_t n)
{
    const vf decay = vf_set1(beta);
    size_t i = 0, count = 0;

    for (; i + 16 <= n; i += 16) {
        const unsigned bits = reach(v + i, r != NULL ? r + i : NULL, decay, limit);

        mask[i / 8] = (uint8_t)bits;
        mask[i / 8 + 1] = (uint8_t)(bits >> 8);
        count += (size_t)__builtin_popcount(bits);
    }
    return count +
           dsc_at_least_c(mask + i / 8, v + i, r != NULL ? r + i : NULL, beta, limit, n - i);
}

/* ---- Hadamard rotation ---- */

#define GROUP_VECTORS (DSC_HADAMARD_GROUP / LANES)

/* Short strides within vectors, then long ones between them. */
static inline void rotate_group(vf v[GROUP_VECTORS])
{
#pragma GCC unroll 8
    for (size_t i = 0; i < GROUP_VECTORS; i++)
        v[i] = vf_butterflies(v[i]);
#pragma GCC unroll 8
    for (size_t stride = 1; stride < GROUP_VECTORS; stride *= 2) {
#pragma GCC unroll 8
        for (size_t i = 0; i < GROUP_VECTORS; i++) {
            const vf a = v[i], b = v[i | stride];

            if ((i & stride) != 0)
                continue;
            v[i] = vf_add(a, b);
            v[i | stride] = vf_sub(a, b);
        }
    }
}

void LEVEL(hadamard_rotate)(float *rotated, const float *x, size_t n)
{
    const size_t whole = n - n % DSC_HADAMARD_GROUP;
    vf v[GROUP_VECTORS];

    for (size_t i = 0; i < whole; i += DSC_HADAMARD_GROUP) {
        for (size_t j = 0; j < GROUP_VECTORS; j++)
            v[j] = vf_load(x + i + j * LANES);
        rotate_group(v);
        for (size_t j = 0; j < GROUP_VECTORS; j++)
            vf_store(rotated + i + j * LANES, v[j]);
    }
    dsc_hadamard_rotate_c(rotated + whole, x + whole, n - whole);
}

void LEVEL(hadamard_restore)(float *x, const float *rotated, size_t n)
{
    const size_t whole = n - n % DSC_HADAMARD_GROUP;
    const vf scale = vf_set1(0x1p-5f);
    vf v[GROUP_VECTORS];

    for (size_t i = 0; i < whole; i += DSC_HADAMARD_GROUP) {
        for (size_t j = 0; j < GROUP_VECTORS; j++)
            v[j] = vf_load(rotated + i + j * LANES);
        rotate_group(v);
        for (size_t j = 0; j < GROUP_VECTORS; j++)
            vf_store(x + i + j * LANES, vf_canonical(vf_mul(v[j], scale)));
    }
    dsc_hadamard_restore_c(x + whole, rotated + whole, n - whole);
}
