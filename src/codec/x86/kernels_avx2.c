/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX2 and F16C spelling of the conversions and of the element-wise primitives: eight elements a
 * step, the rest by the reference. -mavx2 without -mfma: nothing here can be fused.
 */
#include "codec/kernels.h"

#include <immintrin.h>

#define LANES 8

static __m256 nan_to_canonical(__m256 x)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));

    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

/* ---- conversions ---- */

void dsc_f16_load_avx2(float *dst, const uint16_t *src, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const __m128i h = _mm_loadu_si128((const __m128i *)(src + i));

        _mm256_storeu_ps(dst + i, nan_to_canonical(_mm256_cvtph_ps(h)));
    }
    dsc_f16_load_c(dst + i, src + i, n - i);
}

void dsc_f16_store_avx2(uint16_t *dst, const float *src, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const __m256 x = nan_to_canonical(_mm256_loadu_ps(src + i));

        _mm_storeu_si128((__m128i *)(dst + i),
                         _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    dsc_f16_store_c(dst + i, src + i, n - i);
}

void dsc_bf16_load_avx2(float *dst, const uint16_t *src, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const __m256i h = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(src + i)));
        const __m256 x = _mm256_castsi256_ps(_mm256_slli_epi32(h, 16));

        _mm256_storeu_ps(dst + i, nan_to_canonical(x));
    }
    dsc_bf16_load_c(dst + i, src + i, n - i);
}

/* Eight bf16 values in the low halves of 32-bit lanes. A canonical NaN rounds to 0x7fc0 as it is.
 */
static __m256i bf16_round(const float *src)
{
    const __m256i u = _mm256_castps_si256(nan_to_canonical(_mm256_loadu_ps(src)));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));

    return _mm256_srli_epi32(_mm256_add_epi32(u, half), 16);
}

void dsc_bf16_store_avx2(uint16_t *dst, const float *src, size_t n)
{
    size_t i = 0;

    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        const __m256i mixed = _mm256_packus_epi32(bf16_round(src + i), bf16_round(src + i + LANES));

        _mm256_storeu_si256((__m256i *)(dst + i), _mm256_permute4x64_epi64(mixed, 0xd8));
    }
    dsc_bf16_store_c(dst + i, src + i, n - i);
}

void dsc_f32_store_avx2(float *dst, const float *src, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_ps(dst + i, nan_to_canonical(_mm256_loadu_ps(src + i)));
    dsc_f32_store_c(dst + i, src + i, n - i);
}

/* ---- element-wise ---- */

void dsc_axpy_avx2(float *x, const float *v, const float *r, float beta, size_t n)
{
    const __m256 scale = _mm256_set1_ps(beta);
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const __m256 kept = _mm256_mul_ps(scale, _mm256_loadu_ps(r + i));

        _mm256_storeu_ps(x + i, _mm256_add_ps(_mm256_loadu_ps(v + i), kept));
    }
    dsc_axpy_c(x + i, v + i, r + i, beta, n - i);
}

void dsc_add_avx2(float *acc, const float *x, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_ps(acc + i, _mm256_add_ps(_mm256_loadu_ps(acc + i), _mm256_loadu_ps(x + i)));
    dsc_add_c(acc + i, x + i, n - i);
}

static __m256 canonical_if_unordered(__m256 result, __m256 a, __m256 b)
{
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));

    return _mm256_blendv_ps(result, nan, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}

/* vmaxps gives its second operand for two zeros, so the two orders differ only in a zero's sign. */
void dsc_max_avx2(float *acc, const float *x, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const __m256 a = _mm256_loadu_ps(acc + i);
        const __m256 b = _mm256_loadu_ps(x + i);
        const __m256 m = _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));

        _mm256_storeu_ps(acc + i, canonical_if_unordered(m, a, b));
    }
    dsc_max_c(acc + i, x + i, n - i);
}

void dsc_min_avx2(float *acc, const float *x, size_t n)
{
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const __m256 a = _mm256_loadu_ps(acc + i);
        const __m256 b = _mm256_loadu_ps(x + i);
        const __m256 m = _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));

        _mm256_storeu_ps(acc + i, canonical_if_unordered(m, a, b));
    }
    dsc_min_c(acc + i, x + i, n - i);
}

void dsc_mul_avx2(float *y, const float *x, float s, size_t n)
{
    const __m256 scale = _mm256_set1_ps(s);
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), scale));
    dsc_mul_c(y + i, x + i, s, n - i);
}

void dsc_div_avx2(float *y, const float *x, float d, size_t n)
{
    const __m256 divisor = _mm256_set1_ps(d);
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        _mm256_storeu_ps(y + i, _mm256_div_ps(_mm256_loadu_ps(x + i), divisor));
    dsc_div_c(y + i, x + i, d, n - i);
}

void dsc_residual_avx2(float *r, const float *x, const float *o, float a, size_t n)
{
    const __m256 scale = _mm256_set1_ps(a);
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const __m256 delivered = _mm256_mul_ps(scale, _mm256_loadu_ps(o + i));

        _mm256_storeu_ps(r + i, _mm256_sub_ps(_mm256_loadu_ps(x + i), delivered));
    }
    dsc_residual_c(r + i, x + i, o + i, a, n - i);
}

size_t dsc_count_nonfinite_avx2(const float *o, float a, size_t n)
{
    const __m256i exponent = _mm256_set1_epi32(0x7f800000);
    const __m256 scale = _mm256_set1_ps(a);
    size_t count = 0, i = 0;

    for (; i + LANES <= n; i += LANES) {
        const __m256 y = _mm256_mul_ps(scale, _mm256_loadu_ps(o + i));
        const __m256i e = _mm256_and_si256(_mm256_castps_si256(y), exponent);
        const __m256 hit = _mm256_castsi256_ps(_mm256_cmpeq_epi32(e, exponent));

        count += (size_t)_mm_popcnt_u32((unsigned)_mm256_movemask_ps(hit));
    }
    return count + dsc_count_nonfinite_c(o + i, a, n - i);
}
