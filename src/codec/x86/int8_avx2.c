/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AVX2 spelling of the int8 block primitives. Whole ordinary blocks run here; the short last block
 * and rare ones (poison, sums near the largest float) go through the reference.
 *
 * No clamp: |x| <= amax and inv = 127/amax, each rounded once, so |x*inv| <= 127 * (1 + 2^-23) and
 * rounds to at most 127. inv is normal for 2^-100 <= amax < 2^128.
 */
#include "codec/bits.h"
#include "codec/kernels.h"

#include <immintrin.h>

#define LANES 8
#define F32_HUGE 0x7f000000u /* 2^127: below it 127*scale cannot overflow */

struct scales {
    float scale, inv;
};

/* amax is not poison. Tiny blocks get zeros, which make codes and D zero without a branch. */
static struct scales scales_of(uint32_t amax_bits)
{
    const float amax = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)amax_bits)));
    struct scales s = { 0.0f, 0.0f };

    if (amax_bits >= F32_TINY) {
        s.scale = amax / 127.0f;
        s.inv = 127.0f / amax;
    }
    return s;
}

static __m256i magnitude(__m256 x)
{
    return _mm256_and_si256(_mm256_castps_si256(x), _mm256_set1_epi32(0x7fffffff));
}

static uint32_t horizontal_max(__m256i m)
{
    __m128i x = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));

    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0x4e));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(x);
}

static uint32_t max_magnitude(const float *x, size_t n)
{
    __m256i m0 = _mm256_setzero_si256(), m1 = m0;

    for (size_t i = 0; i < n; i += 2 * LANES) {
        m0 = _mm256_max_epu32(m0, magnitude(_mm256_loadu_ps(x + i)));
        m1 = _mm256_max_epu32(m1, magnitude(_mm256_loadu_ps(x + i + LANES)));
    }
    return horizontal_max(_mm256_max_epu32(m0, m1));
}

/* x = v + beta*r and the largest magnitude of x. */
static uint32_t axpy_max_magnitude(float *x, const float *v, const float *r, __m256 beta, size_t n)
{
    __m256i m0 = _mm256_setzero_si256(), m1 = m0;

    for (size_t i = 0; i < n; i += 2 * LANES) {
        const __m256 r0 = _mm256_mul_ps(beta, _mm256_loadu_ps(r + i));
        const __m256 r1 = _mm256_mul_ps(beta, _mm256_loadu_ps(r + i + LANES));
        const __m256 x0 = _mm256_add_ps(_mm256_loadu_ps(v + i), r0);
        const __m256 x1 = _mm256_add_ps(_mm256_loadu_ps(v + i + LANES), r1);

        _mm256_storeu_ps(x + i, x0);
        _mm256_storeu_ps(x + i + LANES, x1);
        m0 = _mm256_max_epu32(m0, magnitude(x0));
        m1 = _mm256_max_epu32(m1, magnitude(x1));
    }
    return horizontal_max(_mm256_max_epu32(m0, m1));
}

/* What a quantizing pass leaves per element besides the code. */
enum { KEEP_NONE, KEEP_D, KEEP_RESIDUAL };

static __m256i quantize8(float *out, const float *x, __m256 scale, __m256 inv, int kept)
{
    const __m256 value = _mm256_loadu_ps(x);
    const __m256i q = _mm256_cvtps_epi32(_mm256_mul_ps(value, inv));

    if (kept == KEEP_NONE)
        return q;

    const __m256 d = _mm256_mul_ps(_mm256_cvtepi32_ps(q), scale);

    _mm256_storeu_ps(out, kept == KEEP_D ? d : _mm256_sub_ps(value, d));
    return q;
}

/* `out` may be NULL when nothing is kept, and nothing may be added to that. */
static inline float *beyond(float *out, size_t n, int kept)
{
    return kept == KEEP_NONE ? out : out + n;
}

/* Packing works within 128-bit halves, so the 4-byte groups come out as 0 2 4 6 1 3 5 7. */
static void quantize32(int8_t *q, float *out, const float *x, __m256 scale, __m256 inv, int kept)
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i q0 = quantize8(out, x, scale, inv, kept);
    const __m256i q1 = quantize8(beyond(out, LANES, kept), x + LANES, scale, inv, kept);
    const __m256i q2 = quantize8(beyond(out, 2 * LANES, kept), x + 2 * LANES, scale, inv, kept);
    const __m256i q3 = quantize8(beyond(out, 3 * LANES, kept), x + 3 * LANES, scale, inv, kept);
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(q0, q1), _mm256_packs_epi32(q2, q3));

    _mm256_storeu_si256((__m256i *)q, _mm256_permutevar8x32_epi32(bytes, order));
}

static void quantize16(int8_t *q, float *out, const float *x, __m256 scale, __m256 inv, int kept)
{
    const __m256i q0 = quantize8(out, x, scale, inv, kept);
    const __m256i q1 = quantize8(beyond(out, LANES, kept), x + LANES, scale, inv, kept);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(q0, q1), 0xd8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));

    _mm_storeu_si128((__m128i *)q, bytes);
}

/* One block of 16 or a multiple of 32 elements. Inlined with a constant `kept`. */
static inline void quantize_block(int8_t *q, float *out, const float *x, struct scales s,
                                  uint32_t block, int kept)
{
    const __m256 scale = _mm256_set1_ps(s.scale);
    const __m256 inv = _mm256_set1_ps(s.inv);

    if (block == 16) {
        quantize16(q, out, x, scale, inv, kept);
        return;
    }
    for (uint32_t i = 0; i < block; i += 32)
        quantize32(q + i, beyond(out, i, kept), x + i, scale, inv, kept);
}

void dsc_int8_encode_avx2(int8_t *q, float *scale, float *d, const float *x, size_t n,
                          uint32_t block)
{
    while (n >= block) {
        const uint32_t amax = max_magnitude(x, block);

        if (amax >= F32_INF) {
            dsc_int8_encode_c(q, scale, d, x, block, block);
        } else {
            const struct scales s = scales_of(amax);

            *scale = s.scale;
            if (d == NULL)
                quantize_block(q, NULL, x, s, block, KEEP_NONE);
            else
                quantize_block(q, d, x, s, block, KEEP_D);
        }
        q += block, x += block, n -= block, scale++;
        if (d != NULL)
            d += block;
    }
    dsc_int8_encode_c(q, scale, d, x, n, block);
}

/*
 * The sums of block i + 1 are formed before block i is quantized: that hides the time from the last
 * sum to the scale (a maximum over lanes and two divisions) behind work that does not need it.
 */
void dsc_int8_encode_feedback_avx2(int8_t *q, float *scale, float *r_out, const float *v,
                                   const float *r, float beta, int keep, size_t n, uint32_t block)
{
    /* Blocks whose D may be infinite need r again where it is to be kept. */
    const uint32_t ordinary = keep != 0 ? F32_HUGE : F32_INF;
    const __m256 decay = _mm256_set1_ps(beta);
    const size_t n_whole = n - n % block;
    float sums[2][BLOCK_MAX];
    float *x = sums[0], *next = sums[1];
    uint32_t amax = n_whole > 0 ? axpy_max_magnitude(x, v, r, decay, block) : 0;

    for (size_t i = 0; i < n_whole; i += block) {
        const size_t j = i + block;
        const uint32_t next_amax =
            j < n_whole ? axpy_max_magnitude(next, v + j, r + j, decay, block) : 0;

        if (amax >= ordinary) {
            dsc_int8_encode_feedback_c(q + i, scale, r_out + i, v + i, r + i, beta, keep, block,
                                       block);
        } else {
            const struct scales s = scales_of(amax);

            *scale = s.scale;
            quantize_block(q + i, r_out + i, x, s, block, KEEP_RESIDUAL);
        }
        float *const done = x;

        x = next, next = done, amax = next_amax, scale++;
    }
    dsc_int8_encode_feedback_c(q + n_whole, scale, r_out + n_whole, v + n_whole, r + n_whole, beta,
                               keep, n - n_whole, block);
}

static __m256 decode8(const int8_t *q, __m256 scale)
{
    const __m256i code = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)q));

    return _mm256_mul_ps(_mm256_cvtepi32_ps(code), scale);
}

static bool is_poison(const float *scale)
{
    const uint32_t u = (uint32_t)_mm_cvtsi128_si32(_mm_castps_si128(_mm_load_ss(scale)));

    return (u & F32_INF) == F32_INF;
}

void dsc_int8_decode_avx2(float *dst, const int8_t *q, const float *scale, size_t n, uint32_t block)
{
    while (n >= block) {
        if (is_poison(scale)) {
            dsc_int8_decode_c(dst, q, scale, block, block);
        } else {
            const __m256 s = _mm256_set1_ps(*scale);

            for (uint32_t i = 0; i < block; i += 2 * LANES) {
                _mm256_storeu_ps(dst + i, decode8(q + i, s));
                _mm256_storeu_ps(dst + i + LANES, decode8(q + i + LANES, s));
            }
        }
        dst += block, q += block, n -= block, scale++;
    }
    dsc_int8_decode_c(dst, q, scale, n, block);
}

static void add8(float *acc, __m256 d)
{
    _mm256_storeu_ps(acc, _mm256_add_ps(_mm256_loadu_ps(acc), d));
}

void dsc_int8_decode_add_avx2(float *acc, const int8_t *q, const float *scale, size_t n,
                              uint32_t block)
{
    while (n >= block) {
        if (is_poison(scale)) {
            dsc_int8_decode_add_c(acc, q, scale, block, block);
        } else {
            const __m256 s = _mm256_set1_ps(*scale);

            for (uint32_t i = 0; i < block; i += 2 * LANES) {
                add8(acc + i, decode8(q + i, s));
                add8(acc + i + LANES, decode8(q + i + LANES, s));
            }
        }
        acc += block, q += block, n -= block, scale++;
    }
    dsc_int8_decode_add_c(acc, q, scale, n, block);
}
