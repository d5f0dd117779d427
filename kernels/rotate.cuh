/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Hadamard rotation of groups of 32 elements, which four neighbouring lanes hold: butterflies
 * (a+b, a-b) of stride 1, 2, 4 inside a lane, of 8 and 16 with a shuffle.
 */
#ifndef DSC_KERNELS_ROTATE_CUH
#define DSC_KERNELS_ROTATE_CUH

#include "kernels/lanes.cuh"

constexpr uint32_t kRotated = 32; /* elements of a group */

DSC_DEVICE void rotate(float x[kPerLane])
{
    const uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (uint32_t stride = 1; stride < kPerLane; stride *= 2) {
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++) {
            if ((i & stride) != 0)
                continue;
            const float a = x[i], b = x[i | stride];

            x[i] = __fadd_rn(a, b);
            x[i | stride] = __fsub_rn(a, b);
        }
    }
#pragma unroll
    for (uint32_t lanes = 1; lanes < kRotated / kPerLane; lanes *= 2) {
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++) {
            const float other = __shfl_xor_sync(kAllLanes, x[i], static_cast<int>(lanes));

            x[i] = (lane & lanes) != 0 ? __fsub_rn(other, x[i]) : __fadd_rn(x[i], other);
        }
    }
}

/* The same times 2^-5. */
DSC_DEVICE void rotate_back(float x[kPerLane])
{
    rotate(x);
#pragma unroll
    for (uint32_t i = 0; i < kPerLane; i++)
        x[i] = canonical(__fmul_rn(x[i], 0x1p-5f));
}

#endif
