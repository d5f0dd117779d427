/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/codec: the bit patterns that the formats are defined by, and float32 as bits.
 */
#ifndef DSC_BITS_H
#define DSC_BITS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/*
 * For functions that take a format or a flag as a constant: without being inlined they would test
 * it per element.
 */
#define DSC_INLINE static inline __attribute__((always_inline))

#define F32_ABS 0x7fffffffu
#define F32_SIGN 0x80000000u
#define F32_MANTISSA 0x007fffffu
#define F32_INF 0x7f800000u
#define F32_NAN 0x7fc00000u    /* the one NaN that is ever stored */
#define F32_TINY 0x0d800000u   /* 2^-100: below it a block's scale could be subnormal */
#define E8M0_LEAST 0x00400000u /* 2^-127 */
#define F16_INF 0x7c00u
#define F16_NAN 0x7e00u
#define BF16_NAN 0x7fc0u

#define BLOCK_MAX 256 /* elements of the largest block */

/*
 * Copies bytes that a peer may write to at any time: what is looked at afterwards is the copy,
 * which the compiler may not read from there again.
 */
static inline void copy_once(void *dst, const void *src, size_t n)
{
    memcpy(dst, src, n);
    __asm__ volatile("" : : "r"(dst) : "memory");
}

static inline uint32_t bits_of(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof(u));
    return u;
}

static inline float float_of(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof(x));
    return x;
}

static inline bool is_nan(float x)
{
    return (bits_of(x) & F32_ABS) > F32_INF;
}

static inline bool is_finite(float x)
{
    return (bits_of(x) & F32_INF) != F32_INF;
}

static inline float canonical(float x)
{
    return is_nan(x) ? float_of(F32_NAN) : x;
}

/* 2^e, -126 <= e <= 127 */
static inline float power_of_two(int e)
{
    return float_of((uint32_t)(127 + e) << 23);
}

/* Of an E8M0 code: 2^(code - 127), which is subnormal for code 0; poison, 0xff, becomes Inf. */
static inline uint32_t e8m0_bits(uint8_t code)
{
    return code == 0 ? E8M0_LEAST : (uint32_t)code << 23;
}

/* What a sender keeps: x - D, or the old residual where D is not finite and that is asked for. */
static inline float residual_of(float x, float d, float r, bool keep_old)
{
    return keep_old && !is_finite(d) ? r : x - d;
}

#endif
