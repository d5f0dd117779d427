/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers as bits, and the arithmetic that device code shares with src/codec/elements_c.c: every
 * operation is one IEEE operation in nearest-even mode with subnormals, never fused (built with
 * --fmad=false). A NaN that is stored is canonical; one that is still summed may be any.
 */
#ifndef DSC_KERNELS_NUMBERS_CUH
#define DSC_KERNELS_NUMBERS_CUH

#include "kernels/device.h"

#define DSC_DEVICE static __device__ __forceinline__

constexpr uint32_t kAbs = 0x7fffffffu, kSign = 0x80000000u, kMantissa = 0x007fffffu;
constexpr uint32_t kInf = 0x7f800000u, kNan = 0x7fc00000u;
constexpr uint32_t kTiny = 0x0d800000u; /* 2^-100: below it a block is sent as zeros */
constexpr uint32_t kAllLanes = 0xffffffffu;

DSC_DEVICE uint32_t bits_of(float x)
{
    return __float_as_uint(x);
}

DSC_DEVICE float float_of(uint32_t u)
{
    return __uint_as_float(u);
}

DSC_DEVICE bool is_nan(float x)
{
    return (bits_of(x) & kAbs) > kInf;
}

DSC_DEVICE bool is_finite(float x)
{
    return (bits_of(x) & kInf) != kInf;
}

DSC_DEVICE float canonical(float x)
{
    return is_nan(x) ? float_of(kNan) : x;
}

/* 2^e, -126 <= e <= 127 */
DSC_DEVICE float power_of_two(int e)
{
    return float_of(static_cast<uint32_t>(127 + e) << 23);
}

DSC_DEVICE uint32_t round_up(uint32_t n, uint32_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* ---- 16-bit floats ---- */

DSC_DEVICE float f16_to_f32(uint16_t h)
{
    return canonical(__half2float(__ushort_as_half(h)));
}

DSC_DEVICE uint16_t f16_from_f32(float x)
{
    return is_nan(x) ? 0x7e00u : __half_as_ushort(__float2half_rn(x));
}

DSC_DEVICE float bf16_to_f32(uint16_t h)
{
    return canonical(float_of(static_cast<uint32_t>(h) << 16));
}

DSC_DEVICE uint16_t bf16_from_f32(float x)
{
    const uint32_t u = bits_of(x);

    return static_cast<uint16_t>(is_nan(x) ? 0x7fc0u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

/* ---- combining ---- */

/* Equal values differ in bits only as +0 and -0: `and` gives the larger, `or` the smaller one. */
DSC_DEVICE float larger(float a, float b)
{
    const float equal = float_of(bits_of(a) & bits_of(b));
    const float most = a == b ? equal : a > b ? a : b;

    return is_nan(a) || is_nan(b) ? float_of(kNan) : most;
}

DSC_DEVICE float smaller(float a, float b)
{
    const float equal = float_of(bits_of(a) | bits_of(b));
    const float least = a == b ? equal : a < b ? a : b;

    return is_nan(a) || is_nan(b) ? float_of(kNan) : least;
}

DSC_DEVICE float add_product(float v, float beta, float r)
{
    return __fadd_rn(v, __fmul_rn(beta, r));
}

#endif
