/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvfp4: 4-bit floats in blocks of 16, whose scales are 8-bit floats under one float32 scale per
 * segment of 65536 elements.
 *
 *     | segment scales | 0 .. 0 | block scales | 0 .. 0 | q1 q0 | q3 q2 | ... | 0 .. 0 |
 *
 * An encoder's thread block does a whole segment: it reads what it encodes twice, the second time
 * out of the second level cache, first for the largest element. It moves 1/2 + 1/16 bytes per
 * element on the wire.
 */
#ifndef DSC_KERNELS_NVFP4_CUH
#define DSC_KERNELS_NVFP4_CUH

#include "kernels/elements.cuh"
#include "kernels/format.cuh"

struct Nvfp4 : PlainFormat {
    using PlainFormat::PlainFormat;
    using Q = Codes<E2m1::kBits>;

    static constexpr uint32_t kThreads = 512, kTile = kSegment, kBlock = 16;
    static constexpr uint32_t kPoison = 0x7f; /* the block scale that E4M3 has no number for */
    static constexpr float kSegmentLargest = 448.0f * 6.0f;

    float segment_scale, segment_inv; /* of what is encoded */

    /* ---- where things are ---- */

    __device__ uint32_t segment_bytes() const
    {
        return ((op.n - 1) / kSegment + 1) * 4;
    }

    __device__ uint32_t scale_bytes() const
    {
        return (op.n - 1) / kBlock + 1;
    }

    __device__ uint32_t code_bytes() const
    {
        return (op.n + 1) / 2;
    }

    __device__ uint32_t scales_at() const
    {
        return round_up(segment_bytes(), 16);
    }

    __device__ uint32_t codes_at() const
    {
        return scales_at() + round_up(scale_bytes(), 16);
    }

    /* ---- decoding ---- */

    static __device__ void values(float d[kPerLane], const Q &q, uint32_t code, float segment_scale)
    {
        const bool is_poison = (code & 0x7f) == kPoison || !is_finite(segment_scale);
        const float scale = __fmul_rn(E4m3::value(code), segment_scale);

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            d[i] = is_poison ? float_of(kNan) : canonical(__fmul_rn(E2m1::value(q.get(i)), scale));
    }

    __device__ void decode(float d[kPerLane], const uint8_t *msg, dsc_gpu_facts, Lane lane)
    {
        Q q = {};
        uint32_t code = 0;
        float scale = 0.0f;

        if (lane.n > 0) {
            q.load(msg + codes_at() + lane.pos / 2);
            code = msg[scales_at() + lane.pos / kBlock];
            scale = reinterpret_cast<const float *>(msg)[lane.pos / kSegment];
        }
        values(d, q, code, scale);
    }

    /* ---- encoding ---- */

    /* The largest magnitude of the lane's block. */
    static __device__ uint32_t block_amax(const float y[kPerLane])
    {
        uint32_t amax = 0;

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            amax = max(amax, bits_of(y[i]) & kAbs);
        return max(amax, __shfl_xor_sync(kAllLanes, amax, 1));
    }

    /* The largest of the segment's blocks without NaN and Inf, 0 if that is tiny. */
    template <class Y> __device__ float segment_amax(uint32_t first, uint32_t end, Y y)
    {
        SHARED_ARRAY(uint32_t, of_warp, kThreads / 32);
        uint32_t largest = 0;

        for (uint32_t at = first; at < end; at += kThreads * kPerLane) {
            float x[kPerLane];

            y(lane_at(at, op.n), x);
            const uint32_t amax = block_amax(x);
            largest = amax < kInf ? max(largest, amax) : largest;
        }
        largest = __reduce_max_sync(kAllLanes, largest);
        if (threadIdx.x % 32 == 0)
            of_warp[threadIdx.x / 32] = largest;
        __syncthreads();
        for (uint32_t i = 0; i < kThreads / 32; i++)
            largest = max(largest, of_warp[i]);
        return largest < kTiny ? 0.0f : float_of(largest);
    }

    template <class Y> __device__ void prepare(uint8_t *msg, dsc_gpu_facts, uint32_t first, uint32_t end, Y y)
    {
        const float amax = segment_amax(first, end, y);

        segment_scale = amax > 0.0f ? __fdiv_rn(amax, kSegmentLargest) : 0.0f;
        segment_inv = amax > 0.0f ? __fdiv_rn(kSegmentLargest, amax) : 0.0f;
        if (threadIdx.x == 0)
            reinterpret_cast<float *>(msg)[first / kSegment] = segment_scale;
        if (end == op.n && threadIdx.x < 32) {
            pad_part(msg, segment_bytes());
            pad_part(msg + scales_at(), scale_bytes());
        }
    }

    __device__ void encode(uint8_t *msg, dsc_gpu_facts, Lane lane, const float y[kPerLane], float d[kPerLane])
    {
        const uint32_t amax = block_amax(y);
        const float top =
            amax >= kTiny && amax < kInf ? __fmul_rn(float_of(amax), segment_inv) : 0.0f;
        const uint32_t code = E4m3::code(__fdiv_rn(top, 6.0f));
        const float scale = __fmul_rn(E4m3::value(code), segment_scale);
        const bool is_zero = scale == 0.0f; /* too small beside the segment, or nothing to send */
        const float inv = is_zero ? 0.0f : __fdiv_rn(1.0f, scale);
        const uint32_t sent = !is_zero ? code : amax >= kInf ? kPoison : 0;
        Q q = {};

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            q.put(i, is_zero ? 0 : E2m1::code(__fmul_rn(y[i], inv)));
        if (lane.pos / 2 < round_up(code_bytes(), 16))
            q.store(msg + codes_at() + lane.pos / 2);
        if (lane.n > 0 && lane.pos % kBlock == 0)
            msg[scales_at() + lane.pos / kBlock] = static_cast<uint8_t>(sent);
        values(d, q, sent, segment_scale);
    }
};

#endif
