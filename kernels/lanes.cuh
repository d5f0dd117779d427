/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How threads share elements: a warp owns 256 consecutive ones of an operation, each lane 8 of
 * them. Loads and stores of a lane are two 16-byte accesses (float32) or one (16-bit types) where
 * the address allows it, else one per element: the caller's vectors have their elements' alignment
 * only. The test is the same for all lanes, but for the one at the operation's end.
 */
#ifndef DSC_KERNELS_LANES_CUH
#define DSC_KERNELS_LANES_CUH

#include "kernels/numbers.cuh"
#include "kernels/stage.h"

constexpr uint32_t kPerLane = 8, kPerWarp = 256;

/* A lane's elements [pos, pos + n) of its operation. */
struct Lane {
    uint32_t pos, n;
};

DSC_DEVICE Lane lane_at(uint32_t at, uint32_t end)
{
    const uint32_t pos = at + threadIdx.x * kPerLane;
    const uint32_t left = pos < end ? end - pos : 0;

    return { pos, left < kPerLane ? left : kPerLane };
}

DSC_DEVICE bool is_aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

/* ---- float32 ---- */

/* What is not there becomes +0. */
DSC_DEVICE void load_f32(float x[kPerLane], const float *p, uint32_t n)
{
    if (n == kPerLane && is_aligned(p)) {
        const float4 low = reinterpret_cast<const float4 *>(p)[0];
        const float4 high = reinterpret_cast<const float4 *>(p)[1];

        x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
        x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; i++)
        x[i] = i < n ? p[i] : 0.0f;
}

DSC_DEVICE void store_f32(float *p, const float x[kPerLane], uint32_t n)
{
    if (n == kPerLane && is_aligned(p)) {
        reinterpret_cast<float4 *>(p)[0] = make_float4(x[0], x[1], x[2], x[3]);
        reinterpret_cast<float4 *>(p)[1] = make_float4(x[4], x[5], x[6], x[7]);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; i++) {
        if (i < n)
            p[i] = x[i];
    }
}

/* ---- 16-bit types, as bits ---- */

DSC_DEVICE void load_u16(uint16_t h[kPerLane], const uint16_t *p, uint32_t n)
{
    if (n == kPerLane && is_aligned(p)) {
        const uint4 v = *reinterpret_cast<const uint4 *>(p);
        const uint32_t word[4] = { v.x, v.y, v.z, v.w };

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            h[i] = static_cast<uint16_t>(word[i / 2] >> 16 * (i % 2));
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; i++)
        h[i] = i < n ? p[i] : 0;
}

DSC_DEVICE void store_u16(uint16_t *p, const uint16_t h[kPerLane], uint32_t n)
{
    if (n == kPerLane && is_aligned(p)) {
        uint32_t word[4];

#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            word[i] = h[2 * i] | static_cast<uint32_t>(h[2 * i + 1]) << 16;
        *reinterpret_cast<uint4 *>(p) = make_uint4(word[0], word[1], word[2], word[3]);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; i++) {
        if (i < n)
            p[i] = h[i];
    }
}

/* ---- the caller's vectors ---- */

DSC_DEVICE void load_values(float x[kPerLane], const void *vector, dscomm_dtype_t dtype,
                            uint64_t at, uint32_t n)
{
    uint16_t h[kPerLane];

    if (dtype == DSCOMM_FLOAT32) {
        load_f32(x, static_cast<const float *>(vector) + at, n);
        return;
    }
    load_u16(h, static_cast<const uint16_t *>(vector) + at, n);
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; i++)
        x[i] = dtype == DSCOMM_FLOAT16 ? f16_to_f32(h[i]) : bf16_to_f32(h[i]);
}

/* Rounds x to the data type, stores it, and leaves in x what was stored. */
DSC_DEVICE void store_values(void *vector, float x[kPerLane], dscomm_dtype_t dtype, uint64_t at,
                             uint32_t n)
{
    uint16_t h[kPerLane];

    if (dtype == DSCOMM_FLOAT32) {
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            x[i] = canonical(x[i]);
        store_f32(static_cast<float *>(vector) + at, x, n);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; i++) {
        h[i] = dtype == DSCOMM_FLOAT16 ? f16_from_f32(x[i]) : bf16_from_f32(x[i]);
        x[i] = dtype == DSCOMM_FLOAT16 ? f16_to_f32(h[i]) : bf16_to_f32(h[i]);
    }
    store_u16(static_cast<uint16_t *>(vector) + at, h, n);
}

/* ---- messages ---- */

/* Writes the zeros behind a part that ends here: lanes 0 to 15, of one warp. */
DSC_DEVICE void pad_part(uint8_t *part, uint32_t used_bytes)
{
    const uint32_t at = used_bytes + threadIdx.x % 32;

    if (at < round_up(used_bytes, 16))
        part[at] = 0;
}

#endif
