/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of 64-bit ARM (NEON, part of every such CPU): the words of vec_avx2.h, see there.
 */
#ifndef DSC_VEC_NEON_H
#define DSC_VEC_NEON_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define LEVEL(name) dsc_##name##_neon
#define LANES 4
#define STREAM_ALIGN 16

typedef float32x4_t vf;
typedef uint32x4_t vi;

/* ---- memory ---- */
static inline vf vf_load(const float *p)
{
    return vld1q_f32(p);
}
static inline void vf_store(float *p, vf x)
{
    vst1q_f32(p, x);
}
/* There is no hint worth giving for 16 bytes. */
static inline void vf_stream(float *p, vf x)
{
    vst1q_f32(p, x);
}
static inline void vec_stream_end(void)
{
}

/* ---- arithmetic ---- */
static inline vf vf_set1(float x)
{
    return vdupq_n_f32(x);
}
static inline vf vf_add(vf a, vf b)
{
    return vaddq_f32(a, b);
}
static inline vf vf_sub(vf a, vf b)
{
    return vsubq_f32(a, b);
}
static inline vf vf_mul(vf a, vf b)
{
    return vmulq_f32(a, b);
}
static inline vf vf_div(vf a, vf b)
{
    return vdivq_f32(a, b);
}
static inline vf vf_max(vf a, vf b)
{
    return vmaxq_f32(a, b);
}
static inline vf vf_min(vf a, vf b)
{
    return vminq_f32(a, b);
}

/* ---- bits ---- */
static inline vi vf_bits(vf x)
{
    return vreinterpretq_u32_f32(x);
}
static inline vf vi_float(vi x)
{
    return vreinterpretq_f32_u32(x);
}
static inline vi vi_set1(uint32_t x)
{
    return vdupq_n_u32(x);
}
static inline vi vi_load(const uint32_t *p)
{
    return vld1q_u32(p);
}
static inline void vi_store(uint32_t *p, vi x)
{
    vst1q_u32(p, x);
}
static inline vi vi_and(vi a, vi b)
{
    return vandq_u32(a, b);
}
static inline vi vi_or(vi a, vi b)
{
    return vorrq_u32(a, b);
}
static inline vi vi_add(vi a, vi b)
{
    return vaddq_u32(a, b);
}
static inline vi vi_sub(vi a, vi b)
{
    return vsubq_u32(a, b);
}
static inline vi vi_mul(vi a, vi b)
{
    return vmulq_u32(a, b);
}
static inline vi vi_xor(vi a, vi b)
{
    return veorq_u32(a, b);
}
/* As in vec_avx2.h; here in their order. */
static inline vi vi_pair_lanes(void)
{
    static const uint32_t lanes[LANES] = { 0, 1, 2, 3 };

    return vld1q_u32(lanes);
}
static inline vi vi_first_halves(vi a)
{
    return vmovl_u16(vget_low_u16(vreinterpretq_u16_u32(a)));
}
static inline vi vi_second_halves(vi a)
{
    return vmovl_u16(vget_high_u16(vreinterpretq_u16_u32(a)));
}
static inline vi vi_max(vi a, vi b)
{
    return vmaxq_u32(a, b);
}
static inline vi vi_min(vi a, vi b)
{
    return vminq_u32(a, b);
}
static inline vi vi_shift_right(vi a, int n)
{
    return vshlq_u32(a, vdupq_n_s32(-n));
}
static inline vi vi_shift_right_signed(vi a, int n)
{
    return vreinterpretq_u32_s32(vshlq_s32(vreinterpretq_s32_u32(a), vdupq_n_s32(-n)));
}
static inline vi vi_shift_left(vi a, int n)
{
    return vshlq_u32(a, vdupq_n_s32(n));
}
static inline uint32_t vi_largest(vi a)
{
    return vmaxvq_u32(a);
}

/* ---- butterflies: strides 1, 2 ---- */
static inline vf vf_butterflies(vf x)
{
    static const uint32_t odd[LANES] = { 0, 0x80000000, 0, 0x80000000 };
    static const uint32_t high[LANES] = { 0, 0, 0x80000000, 0x80000000 };

    x = vf_add(vrev64q_f32(x), vi_float(vi_xor(vf_bits(x), vi_load(odd))));
    return vf_add(vextq_f32(x, x, 2), vi_float(vi_xor(vf_bits(x), vi_load(high))));
}

/* ---- selection ---- */
static inline vf vf_nan_if_unordered(vf x, vf a, vf b)
{
    const uint32x4_t ordered = vandq_u32(vceqq_f32(a, a), vceqq_f32(b, b));

    return vbslq_f32(ordered, x, vi_float(vi_set1(0x7fc00000)));
}
static inline uint32x4_t nonfinite(vf x)
{
    const vi exponent = vi_set1(0x7f800000);

    return vceqq_u32(vi_and(vf_bits(x), exponent), exponent);
}
static inline vf vf_if_finite(vf x, vf a, vf b)
{
    return vbslq_f32(nonfinite(x), b, a);
}
static inline vf vf_if_at_least(vi x, uint32_t limit, vf a, vf b)
{
    return vbslq_f32(vcgeq_u32(x, vi_set1(limit)), a, b);
}
static inline unsigned vf_count_nonfinite(vf x)
{
    return vaddvq_u32(vshrq_n_u32(nonfinite(x), 31));
}
static inline unsigned lanes_set(vi all_or_nothing)
{
    static const uint32_t bit[] = { 1, 2, 4, 8 };

    return vaddvq_u32(vandq_u32(all_or_nothing, vld1q_u32(bit)));
}
static inline unsigned lanes_at_least(vi x, uint32_t limit)
{
    return lanes_set(vcgeq_u32(x, vi_set1(limit)));
}
static inline unsigned lanes_equal(vi a, uint32_t b)
{
    return lanes_set(vceqq_u32(a, vi_set1(b)));
}

/* ---- conversions ---- */
static inline vi vf_to_int(vf x)
{
    return vreinterpretq_u32_s32(vcvtnq_s32_f32(x));
}
static inline vf vi_to_float(vi x)
{
    return vcvtq_f32_s32(vreinterpretq_s32_u32(x));
}
static inline vf vf_load_f16(const uint16_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
static inline void vf_store_f16(uint16_t *p, vf x)
{
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x)));
}
static inline vf vf_round_f16(uint16_t *p, vf x)
{
    const float16x4_t h = vcvt_f16_f32(x);

    vst1_u16(p, vreinterpret_u16_f16(h));
    return vcvt_f32_f16(h);
}
static inline uint8x8_t load_four(const void *p)
{
    uint32_t u;

    memcpy(&u, p, sizeof(u));
    return vreinterpret_u8_u32(vdup_n_u32(u));
}
static inline vf vf_load_e4m3(const uint8_t *p)
{
    const int16x4_t code = vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_four(p))));
    const uint16x4_t h = vand_u16(vreinterpret_u16_s16(vshl_n_s16(code, 7)), vdup_n_u16(0xbfff));

    return vcvt_f32_f16(vreinterpret_f16_u16(h));
}
static inline vf vf_load_e5m2(const uint8_t *p)
{
    const uint16x4_t code = vget_low_u16(vmovl_u8(load_four(p)));

    return vcvt_f32_f16(vreinterpret_f16_u16(vshl_n_u16(code, 8)));
}
static inline vi vi_load_u16(const uint16_t *p)
{
    return vmovl_u16(vld1_u16(p));
}
static inline void vi_store_u16(uint16_t *p, vi a, vi b)
{
    vst1q_u16(p, vcombine_u16(vmovn_u32(a), vmovn_u32(b)));
}
static inline vi vi_load_i8(const void *p)
{
    const int16x4_t words = vget_low_s16(vmovl_s8(vreinterpret_s8_u8(load_four(p))));

    return vreinterpretq_u32_s32(vmovl_s16(words));
}

/* ---- codes: sixteen of them ---- */
static inline int8x8_t narrow2(vi a, vi b)
{
    const int16x4_t low = vqmovn_s32(vreinterpretq_s32_u32(a));
    const int16x4_t high = vqmovn_s32(vreinterpretq_s32_u32(b));

    return vqmovn_s16(vcombine_s16(low, high));
}
static inline uint8x16_t narrow4(const vi v[4])
{
    return vreinterpretq_u8_s8(vcombine_s8(narrow2(v[0], v[1]), narrow2(v[2], v[3])));
}
static inline void codes_store(uint8_t *q, const vi *v, size_t n)
{
    (void)n;
    vst1q_u8(q, narrow4(v));
}
static inline void nibbles_store(uint8_t *q, const vi *v, size_t n)
{
    const uint8x16_t low = vandq_u8(narrow4(v), vdupq_n_u8(15));
    const uint8x16_t pairs = vorrq_u8(vuzp1q_u8(low, low), vshlq_n_u8(vuzp2q_u8(low, low), 4));

    (void)n;
    vst1_u8(q, vget_low_u8(pairs));
}

typedef vf nibble_table;
static inline nibble_table nibbles_scaled(float scale)
{
    return vdupq_n_f32(scale);
}
static inline nibble_table e2m1_scaled(float scale)
{
    return vdupq_n_f32(scale);
}
/* Two bytes in every lane; each lane moves its nibble to the top. */
static inline vi nibbles_on_top(const uint8_t *q)
{
    static const int32_t up[LANES] = { 28, 24, 20, 16 };
    uint16_t u;

    memcpy(&u, q, sizeof(u));
    return vshlq_u32(vdupq_n_u32(u), vld1q_s32(up));
}
static inline vf vf_nibbles(const uint8_t *q, nibble_table scale)
{
    const int32x4_t codes = vshrq_n_s32(vreinterpretq_s32_u32(nibbles_on_top(q)), 28);

    return vmulq_f32(vcvtq_f32_s32(codes), scale);
}
/* fp16 values that have the bits of E2M1 codes are 2^-14 times theirs. */
static inline vf vf_e2m1(const uint8_t *q, nibble_table scale)
{
    const vi top = nibbles_on_top(q);
    const vi sign = vi_and(vshrq_n_u32(top, 16), vi_set1(0x8000));
    const vi magnitude = vi_and(vshrq_n_u32(top, 19), vi_set1(0x0e00));
    const vf value = vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vi_or(sign, magnitude))));

    return vmulq_f32(vmulq_f32(value, vdupq_n_f32(0x1p14f)), scale);
}

static inline bool codes_exceed(const uint8_t *q, uint32_t n, uint8_t limit)
{
    uint8x16_t largest = vdupq_n_u8(0);

    for (uint32_t i = 0; i < n; i += 16)
        largest = vmaxq_u8(largest, vandq_u8(vld1q_u8(q + i), vdupq_n_u8(0x7f)));
    return vmaxvq_u8(largest) > limit;
}

#endif
