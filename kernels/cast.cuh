/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Wire formats without scales: fp32, fp16, bf16. One value per element, then zeros to 16 bytes.
 */
#ifndef DSC_KERNELS_CAST_CUH
#define DSC_KERNELS_CAST_CUH

#include "kernels/format.cuh"

/* 4 bytes per element on the wire. */
struct Fp32 : PlainFormat {
    using PlainFormat::PlainFormat;

    __device__ void decode(float d[kPerLane], const uint8_t *msg, dsc_gpu_facts, Lane lane)
    {
        load_f32(d, reinterpret_cast<const float *>(msg) + lane.pos, lane.n);
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            d[i] = canonical(d[i]);
    }

    __device__ void encode(uint8_t *msg, dsc_gpu_facts, Lane lane, const float y[kPerLane], float d[kPerLane])
    {
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            d[i] = canonical(y[i]);
        store_f32(reinterpret_cast<float *>(msg) + lane.pos, d, padded(lane, op.n, 4).n);
    }
};

/* 2 bytes per element on the wire; fp16 carries y * 2^-exponent. */
template <bool is_f16> struct Half : PlainFormat {
    using PlainFormat::PlainFormat;

    static __device__ void values(float d[kPerLane], const uint16_t h[kPerLane], int exponent)
    {
        const float up = power_of_two(exponent);

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            d[i] = is_f16 ? __fmul_rn(f16_to_f32(h[i]), up) : bf16_to_f32(h[i]);
    }

    __device__ void decode(float d[kPerLane], const uint8_t *msg, dsc_gpu_facts facts, Lane lane)
    {
        uint16_t h[kPerLane];

        load_u16(h, reinterpret_cast<const uint16_t *>(msg) + lane.pos, lane.n);
        values(d, h, facts.exponent);
    }

    /* Of a message of n elements. */
    static __device__ void encode_of(uint8_t *msg, int exponent, Lane lane, uint32_t n,
                                     const float y[kPerLane], float d[kPerLane])
    {
        const float down = power_of_two(-exponent);
        uint16_t h[kPerLane];

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            h[i] = is_f16 ? f16_from_f32(__fmul_rn(y[i], down)) : bf16_from_f32(y[i]);
        store_u16(reinterpret_cast<uint16_t *>(msg) + lane.pos, h, padded(lane, n, 8).n);
        values(d, h, exponent);
    }

    __device__ void encode(uint8_t *msg, dsc_gpu_facts facts, Lane lane, const float y[kPerLane],
                           float d[kPerLane])
    {
        encode_of(msg, facts.exponent, lane, op.n, y, d);
    }
};

using Fp16 = Half<true>;
using Bf16 = Half<false>;

#endif
