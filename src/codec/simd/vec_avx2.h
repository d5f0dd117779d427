/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of the level AVX2 + F16C. elements.h, casts.h and blocks.h are written in these words
 * alone, so a level is one such file. -mavx2 comes without -mfma: nothing here can be fused.
 *
 * vf: LANES float32; vi: LANES 32-bit integers. Loads and stores need no alignment.
 */
#ifndef DSC_VEC_AVX2_H
#define DSC_VEC_AVX2_H

#include <immintrin.h>
#include <stdbool.h>
#include <stdint.h>

#define LEVEL(name) dsc_##name##_avx2
#define LANES 8
/*
 * What vf_stream() needs. Large blocks of malloc() start at 16 bytes after a cache line, and narrow
 * stores that fill a line are nearly as fast as wide ones.
 */
#define STREAM_ALIGN 16

typedef __m256 vf;
typedef __m256i vi;

/* ---- memory ---- */
static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}
static inline void vf_stream(float *p, vf x)
{
    if ((uintptr_t)p % sizeof(x) == 0) {
        _mm256_stream_ps(p, x);
        return;
    }
    _mm_stream_ps(p, _mm256_castps256_ps128(x));
    _mm_stream_ps(p + 4, _mm256_extractf128_ps(x, 1));
}
static inline void vec_stream_end(void)
{
    _mm_sfence();
}

/* ---- arithmetic ---- */
static inline vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
static inline vf vf_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
/* Of two zeros the second operand. */
static inline vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

/* ---- bits ---- */
static inline vi vf_bits(vf x)
{
    return _mm256_castps_si256(x);
}
static inline vf vi_float(vi x)
{
    return _mm256_castsi256_ps(x);
}
static inline vi vi_set1(uint32_t x)
{
    return _mm256_set1_epi32((int)x);
}
static inline vi vi_load(const uint32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
static inline void vi_store(uint32_t *p, vi x)
{
    _mm256_storeu_si256((__m256i *)p, x);
}
static inline vi vi_and(vi a, vi b)
{
    return _mm256_and_si256(a, b);
}
static inline vi vi_or(vi a, vi b)
{
    return _mm256_or_si256(a, b);
}
static inline vi vi_add(vi a, vi b)
{
    return _mm256_add_epi32(a, b);
}
static inline vi vi_sub(vi a, vi b)
{
    return _mm256_sub_epi32(a, b);
}
static inline vi vi_mul(vi a, vi b) /* the lower halves of products */
{
    return _mm256_mullo_epi32(a, b);
}
static inline vi vi_xor(vi a, vi b)
{
    return _mm256_xor_si256(a, b);
}
/*
 * 0 .. LANES - 1 in an order in which the lower and upper 16 bits of the lanes, taken in turn, are
 * in order: those of the lanes that vi_first_halves() takes, then of the others.
 */
static inline vi vi_pair_lanes(void)
{
    return _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
}
static inline vi vi_first_halves(vi a)
{
    return _mm256_unpacklo_epi16(a, _mm256_setzero_si256());
}
static inline vi vi_second_halves(vi a)
{
    return _mm256_unpackhi_epi16(a, _mm256_setzero_si256());
}
static inline vi vi_max(vi a, vi b) /* unsigned */
{
    return _mm256_max_epu32(a, b);
}
static inline vi vi_min(vi a, vi b) /* unsigned */
{
    return _mm256_min_epu32(a, b);
}
static inline vi vi_shift_right(vi a, int n)
{
    return _mm256_srli_epi32(a, n);
}
static inline vi vi_shift_right_signed(vi a, int n)
{
    return _mm256_srai_epi32(a, n);
}
static inline vi vi_shift_left(vi a, int n)
{
    return _mm256_slli_epi32(a, n);
}
static inline uint32_t vi_largest(vi a)
{
    __m128i x = _mm_max_epu32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));

    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0x4e));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(x);
}

/* ---- butterflies: (a + b, a - b) of lanes 1, 2, 4 apart in turn, all strides below LANES ---- */

/* A difference is a sum with the upper one of a pair negated: `upper` has signs there. */
static inline vf butterfly(vf x, vf other, vi upper)
{
    return vf_add(other, vi_float(vi_xor(vf_bits(x), upper)));
}
static inline vf vf_butterflies(vf x)
{
    const int sign = INT32_MIN;

    x = butterfly(x, _mm256_permute_ps(x, 0xb1),
                  _mm256_setr_epi32(0, sign, 0, sign, 0, sign, 0, sign));
    x = butterfly(x, _mm256_permute_ps(x, 0x4e),
                  _mm256_setr_epi32(0, 0, sign, sign, 0, 0, sign, sign));
    return butterfly(x, _mm256_permute2f128_ps(x, x, 1),
                     _mm256_setr_epi32(0, 0, 0, 0, sign, sign, sign, sign));
}

/* ---- selection ---- */
/* 0x7fc00000 where a or b is NaN, else x */
static inline vf vf_nan_if_unordered(vf x, vf a, vf b)
{
    return _mm256_blendv_ps(x, vi_float(vi_set1(0x7fc00000)), _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}
/* a where x is finite, else b */
static inline vf vf_if_finite(vf x, vf a, vf b)
{
    const vi exponent = vi_set1(0x7f800000);
    const vi bad = _mm256_cmpeq_epi32(vi_and(vf_bits(x), exponent), exponent);

    return _mm256_blendv_ps(a, b, vi_float(bad));
}
/* a where the bits of x, as unsigned numbers below 2^31, are at least `limit`, else b */
static inline vf vf_if_at_least(vi x, uint32_t limit, vf a, vf b)
{
    return _mm256_blendv_ps(b, a, vi_float(_mm256_cmpgt_epi32(x, vi_set1(limit - 1))));
}
static inline unsigned vf_count_nonfinite(vf x)
{
    const vi exponent = vi_set1(0x7f800000);
    const vi bad = _mm256_cmpeq_epi32(vi_and(vf_bits(x), exponent), exponent);

    return (unsigned)_mm_popcnt_u32((unsigned)_mm256_movemask_ps(vi_float(bad)));
}
/* A bit per lane. x: as for vf_if_at_least(). */
static inline unsigned lanes_at_least(vi x, uint32_t limit)
{
    return (unsigned)_mm256_movemask_ps(vi_float(_mm256_cmpgt_epi32(x, vi_set1(limit - 1))));
}
static inline unsigned lanes_equal(vi a, uint32_t b)
{
    return (unsigned)_mm256_movemask_ps(vi_float(_mm256_cmpeq_epi32(a, vi_set1(b))));
}

/* ---- conversions ---- */
static inline vi vf_to_int(vf x) /* nearest even */
{
    return _mm256_cvtps_epi32(x);
}
static inline vf vi_to_float(vi x)
{
    return _mm256_cvtepi32_ps(x);
}
/* LANES fp16 values */
static inline vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
static inline void vf_store_f16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
/* What vf_store_f16() stores, read again. */
static inline vf vf_round_f16(uint16_t *p, vf x)
{
    const __m128i h = _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);

    _mm_storeu_si128((__m128i *)p, h);
    return _mm256_cvtph_ps(h);
}
/* fp16 values that have the bits of E4M3 codes: value = E4M3's / 256. No NaN code. */
static inline vf vf_load_e4m3(const uint8_t *p)
{
    const __m128i h = _mm_slli_epi16(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)p)), 7);

    return _mm256_cvtph_ps(_mm_and_si128(h, _mm_set1_epi16((short)0xbfff)));
}
static inline vf vf_load_e5m2(const uint8_t *p)
{
    const __m128i h = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));

    return _mm256_cvtph_ps(_mm_slli_epi16(h, 8));
}
static inline vi vi_load_u16(const uint16_t *p)
{
    return _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
}
/* 2*LANES values below 65536 */
static inline void vi_store_u16(uint16_t *p, vi a, vi b)
{
    const __m256i mixed = _mm256_packus_epi32(a, b);

    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(mixed, 0xd8));
}
static inline vi vi_load_i8(const void *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p));
}

/*
 * ---- codes: 16, 32 or 4*LANES of them, from vectors of integers from -128 to 127; codes_store()
 * turns larger ones into 127 ----
 */

/* Bytes of two vectors. */
static inline __m128i narrow2(vi a, vi b)
{
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);

    return _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
/* Packing works within 128-bit halves, so the 4-byte groups come out as 0 2 4 6 1 3 5 7. */
static inline __m256i narrow4(const vi v[4])
{
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const __m256i bytes =
        _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));

    return _mm256_permutevar8x32_epi32(bytes, order);
}
static inline void codes_store(uint8_t *q, const vi *v, size_t n)
{
    if (n == 16)
        _mm_storeu_si128((__m128i *)q, narrow2(v[0], v[1]));
    else
        _mm256_storeu_si256((__m256i *)q, narrow4(v));
}
/* Two in a byte; of each the low four bits count. */
static inline void nibbles_store(uint8_t *q, const vi *v, size_t n)
{
    const __m256i bytes = n == 16 ? _mm256_castsi128_si256(narrow2(v[0], v[1])) : narrow4(v);
    const __m256i low = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
    const __m256i pairs = _mm256_maddubs_epi16(low, _mm256_set1_epi16(0x1001));
    const __m128i codes =
        _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));

    if (n == 16)
        _mm_storel_epi64((__m128i *)q, codes);
    else
        _mm_storeu_si128((__m128i *)q, codes);
}

/* The values of all sixteen nibbles times a scale, ready for vf_nibbles() or vf_e2m1(). */
typedef vf nibble_table;
static inline nibble_table nibbles_scaled(float scale)
{
    return _mm256_set1_ps(scale);
}
static inline nibble_table e2m1_scaled(float scale)
{
    return _mm256_mul_ps(_mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6), _mm256_set1_ps(scale));
}
/* LANES nibbles: a byte in every 64-bit lane, then its halves on top of the two 32-bit lanes. */
static inline vi nibbles_on_top(const uint8_t *q)
{
    const __m256i bytes = _mm256_cvtepu8_epi64(_mm_loadu_si32(q));
    const __m256i high = _mm256_and_si256(bytes, _mm256_set1_epi64x(0xf0));

    return _mm256_or_si256(_mm256_slli_epi64(bytes, 28), _mm256_slli_epi64(high, 56));
}
static inline vf vf_nibbles(const uint8_t *q, nibble_table scale)
{
    return _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srai_epi32(nibbles_on_top(q), 28)), scale);
}
/* Three bits choose the magnitude, whatever is above them in a lane; the fourth is the sign. */
static inline vf vf_e2m1(const uint8_t *q, nibble_table table)
{
    const vi top = nibbles_on_top(q);
    const vf magnitude = _mm256_permutevar8x32_ps(table, _mm256_srli_epi32(top, 28));
    const vf sign = vi_float(vi_and(top, vi_set1(0x80000000)));

    return _mm256_xor_ps(magnitude, sign);
}

/* True if one of n bytes without its top bit is above limit; n is 16 or a multiple of 32. */
static inline bool codes_exceed(const uint8_t *q, uint32_t n, uint8_t limit)
{
    const __m256i low = _mm256_set1_epi8(0x7f), most = _mm256_set1_epi8((char)limit);
    __m256i found = _mm256_setzero_si256();

    if (n == 16) {
        const __m128i c = _mm_loadu_si128((const __m128i *)q);

        found = _mm256_cmpgt_epi8(_mm256_and_si256(_mm256_broadcastsi128_si256(c), low), most);
    }
    for (uint32_t i = 0; i + 32 <= n; i += 32) {
        const __m256i c = _mm256_loadu_si256((const __m256i *)(q + i));

        found = _mm256_or_si256(found, _mm256_cmpgt_epi8(_mm256_and_si256(c, low), most));
    }
    return !_mm256_testz_si256(found, found);
}

#endif
