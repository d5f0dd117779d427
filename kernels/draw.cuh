/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stochastic rounding: 16 random bits for every element of the caller's vector, two elements share
 * a hash. They follow from seed, rank, and the number of the call, which is in device memory: a
 * graph that is replayed draws anew.
 */
#ifndef DSC_KERNELS_DRAW_CUH
#define DSC_KERNELS_DRAW_CUH

#include "kernels/lanes.cuh"

DSC_DEVICE uint32_t mix(uint32_t h)
{
    h ^= h >> 16;
    h *= 0x7feb352du;
    h ^= h >> 15;
    h *= 0x846ca68bu;
    return h ^ h >> 16;
}

struct Draw {
    uint32_t key, pair; /* of the lane's first element */
    bool is_second;     /* that is the second of its pair */

    /* index: of the lane's first element. */
    __device__ Draw(const dsc_gpu_call &call, uint64_t index)
    {
        const uint32_t number = static_cast<uint32_t>(call.state->sequence);
        const uint32_t high = mix(static_cast<uint32_t>(index >> 33));

        key = mix(mix(call.seed + mix(number + mix(call.rank + high))));
        pair = static_cast<uint32_t>(index >> 1);
        is_second = index % 2 != 0;
    }

    /* Of element i: up with the probability of the fraction of t, in steps of 2^-16. */
    __device__ uint32_t code(uint32_t i, float t, int largest) const
    {
        const uint32_t at = i + is_second, h = mix(key ^ (pair + at / 2));
        const int random = static_cast<int>(at % 2 == 0 ? h & 0xffffu : h >> 16);
        const int q = (__float2int_rn(__fmul_rn(t, 0x1p16f)) + random) >> 16;

        return static_cast<uint32_t>(min(max(q, -largest), largest));
    }
};

#endif
