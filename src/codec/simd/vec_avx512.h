/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of the level AVX-512 (F, BW, DQ, VL): the words of vec_avx2.h, see there.
 */
#ifndef DSC_VEC_AVX512_H
#define DSC_VEC_AVX512_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define LEVEL(name) dsc_##name##_avx512
#define LANES 16
#define STREAM_ALIGN 16

typedef __m512 vf;
typedef __m512i vi;

/* ---- memory ---- */
static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void vf_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
static inline void vf_stream(float *p, vf x)
{
    if ((uintptr_t)p % sizeof(x) == 0) {
        _mm512_stream_ps(p, x);
        return;
    }
    _mm_stream_ps(p, _mm512_castps512_ps128(x));
    _mm_stream_ps(p + 4, _mm512_extractf32x4_ps(x, 1));
    _mm_stream_ps(p + 8, _mm512_extractf32x4_ps(x, 2));
    _mm_stream_ps(p + 12, _mm512_extractf32x4_ps(x, 3));
}
static inline void vec_stream_end(void)
{
    _mm_sfence();
}

/* ---- arithmetic ---- */
static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline vf vf_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
static inline vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

/* ---- bits ---- */
static inline vi vf_bits(vf x)
{
    return _mm512_castps_si512(x);
}
static inline vf vi_float(vi x)
{
    return _mm512_castsi512_ps(x);
}
static inline vi vi_set1(uint32_t x)
{
    return _mm512_set1_epi32((int)x);
}
static inline vi vi_load(const uint32_t *p)
{
    return _mm512_loadu_si512(p);
}
static inline void vi_store(uint32_t *p, vi x)
{
    _mm512_storeu_si512(p, x);
}
static inline vi vi_and(vi a, vi b)
{
    return _mm512_and_si512(a, b);
}
static inline vi vi_or(vi a, vi b)
{
    return _mm512_or_si512(a, b);
}
static inline vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}
static inline vi vi_sub(vi a, vi b)
{
    return _mm512_sub_epi32(a, b);
}
static inline vi vi_mul(vi a, vi b)
{
    return _mm512_mullo_epi32(a, b);
}
static inline vi vi_xor(vi a, vi b)
{
    return _mm512_xor_si512(a, b);
}
/* As in vec_avx2.h. */
static inline vi vi_pair_lanes(void)
{
    return _mm512_setr_epi32(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
}
static inline vi vi_first_halves(vi a)
{
    return _mm512_unpacklo_epi16(a, _mm512_setzero_si512());
}
static inline vi vi_second_halves(vi a)
{
    return _mm512_unpackhi_epi16(a, _mm512_setzero_si512());
}
static inline vi vi_max(vi a, vi b)
{
    return _mm512_max_epu32(a, b);
}
static inline vi vi_min(vi a, vi b)
{
    return _mm512_min_epu32(a, b);
}
static inline vi vi_shift_right(vi a, int n)
{
    return _mm512_srli_epi32(a, (unsigned)n);
}
static inline vi vi_shift_right_signed(vi a, int n)
{
    return _mm512_srai_epi32(a, (unsigned)n);
}
static inline vi vi_shift_left(vi a, int n)
{
    return _mm512_slli_epi32(a, (unsigned)n);
}
static inline uint32_t vi_largest(vi a)
{
    return _mm512_reduce_max_epu32(a);
}

/* ---- butterflies: strides 1, 2, 4, 8 ---- */
static inline vf vf_butterflies(vf x)
{
    vf other = _mm512_permute_ps(x, 0xb1);

    x = _mm512_mask_sub_ps(_mm512_add_ps(x, other), 0xaaaa, other, x);
    other = _mm512_permute_ps(x, 0x4e);
    x = _mm512_mask_sub_ps(_mm512_add_ps(x, other), 0xcccc, other, x);
    other = _mm512_shuffle_f32x4(x, x, 0xb1);
    x = _mm512_mask_sub_ps(_mm512_add_ps(x, other), 0xf0f0, other, x);
    other = _mm512_shuffle_f32x4(x, x, 0x4e);
    return _mm512_mask_sub_ps(_mm512_add_ps(x, other), 0xff00, other, x);
}

/* ---- selection ---- */
static inline vf vf_nan_if_unordered(vf x, vf a, vf b)
{
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q),
                              vi_float(vi_set1(0x7fc00000)));
}
static inline __mmask16 nonfinite(vf x)
{
    const vi exponent = vi_set1(0x7f800000);

    return _mm512_cmpeq_epi32_mask(vi_and(vf_bits(x), exponent), exponent);
}
static inline vf vf_if_finite(vf x, vf a, vf b)
{
    return _mm512_mask_mov_ps(a, nonfinite(x), b);
}
static inline vf vf_if_at_least(vi x, uint32_t limit, vf a, vf b)
{
    return _mm512_mask_mov_ps(b, _mm512_cmpge_epu32_mask(x, vi_set1(limit)), a);
}
static inline unsigned vf_count_nonfinite(vf x)
{
    return (unsigned)_mm_popcnt_u32(nonfinite(x));
}
static inline unsigned lanes_at_least(vi x, uint32_t limit)
{
    return _mm512_cmpge_epu32_mask(x, vi_set1(limit));
}
static inline unsigned lanes_equal(vi a, uint32_t b)
{
    return _mm512_cmpeq_epi32_mask(a, vi_set1(b));
}

/* ---- conversions ---- */
static inline vi vf_to_int(vf x)
{
    return _mm512_cvtps_epi32(x);
}
static inline vf vi_to_float(vi x)
{
    return _mm512_cvtepi32_ps(x);
}
static inline vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
static inline void vf_store_f16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
static inline vf vf_round_f16(uint16_t *p, vf x)
{
    const __m256i h = _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);

    _mm256_storeu_si256((__m256i *)p, h);
    return _mm512_cvtph_ps(h);
}
static inline vf vf_load_e4m3(const uint8_t *p)
{
    const __m256i h =
        _mm256_slli_epi16(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p)), 7);

    return _mm512_cvtph_ps(_mm256_and_si256(h, _mm256_set1_epi16((short)0xbfff)));
}
static inline vf vf_load_e5m2(const uint8_t *p)
{
    const __m256i h = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));

    return _mm512_cvtph_ps(_mm256_slli_epi16(h, 8));
}
static inline vi vi_load_u16(const uint16_t *p)
{
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
}
static inline void vi_store_u16(uint16_t *p, vi a, vi b)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(a));
    _mm256_storeu_si256((__m256i *)(p + LANES), _mm512_cvtepi32_epi16(b));
}
static inline vi vi_load_i8(const void *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p));
}

/* ---- codes ---- */

/* Packing works within 128-bit quarters: the 4-byte groups come out in steps of four. */
static inline __m512i narrow4(const vi v[4])
{
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i bytes =
        _mm512_packs_epi16(_mm512_packs_epi32(v[0], v[1]), _mm512_packs_epi32(v[2], v[3]));

    return _mm512_permutexvar_epi32(order, bytes);
}
static inline void codes_store(uint8_t *q, const vi *v, size_t n)
{
    if (n == 64) {
        _mm512_storeu_si512(q, narrow4(v));
        return;
    }
    for (size_t i = 0; i < n / LANES; i++)
        _mm_storeu_si128((__m128i *)q + i, _mm512_cvtsepi32_epi8(v[i]));
}
/* Bytes in pairs: 1 * the lower + 16 * the upper of two. */
static inline __m512i nibble_pairs(__m512i bytes)
{
    const __m512i low = _mm512_and_si512(bytes, _mm512_set1_epi8(15));

    return _mm512_maddubs_epi16(low, _mm512_set1_epi16(0x1001));
}
static inline void nibbles_store(uint8_t *q, const vi *v, size_t n)
{
    if (n == 64) {
        _mm256_storeu_si256((__m256i *)q, _mm512_cvtepi16_epi8(nibble_pairs(narrow4(v))));
        return;
    }
    for (size_t i = 0; i < n / LANES; i++) {
        const __m512i bytes = _mm512_castsi128_si512(_mm512_cvtepi32_epi8(v[i]));
        const __m256i pairs = _mm512_cvtepi16_epi8(nibble_pairs(bytes));

        _mm_storel_epi64((__m128i *)(q + i * LANES / 2), _mm256_castsi256_si128(pairs));
    }
}

typedef vf nibble_table;
static inline nibble_table nibbles_scaled(float scale)
{
    const vf values = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);

    return _mm512_mul_ps(values, _mm512_set1_ps(scale));
}
static inline nibble_table e2m1_scaled(float scale)
{
    const vf values = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f,
                                     -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f);

    return _mm512_mul_ps(values, _mm512_set1_ps(scale));
}
/* The low four bits of each 32-bit lane choose from the table, whatever is above them. */
static inline vf vf_nibbles(const uint8_t *q, nibble_table table)
{
    const vi bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)q));

    return _mm512_permutexvar_ps(vi_or(bytes, _mm512_slli_epi64(bytes, 28)), table);
}

static inline vf vf_e2m1(const uint8_t *q, nibble_table table)
{
    return vf_nibbles(q, table);
}

static inline bool codes_exceed(const uint8_t *q, uint32_t n, uint8_t limit)
{
    const __m512i low = _mm512_set1_epi8(0x7f), most = _mm512_set1_epi8((char)limit);
    __mmask64 found = 0;

    for (uint32_t i = 0; i < n; i += 64) {
        const __mmask64 there = n - i >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << (n - i)) - 1;
        const __m512i c = _mm512_maskz_loadu_epi8(there, q + i);

        found |= _mm512_cmpgt_epu8_mask(_mm512_and_si512(c, low), most);
    }
    return found != 0;
}

#endif
