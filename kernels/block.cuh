/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes with one scale per block of 16 to 256 elements: int8, int4, fp8 and the formats of OCP MX.
 *
 *     | scale0 | scale1 | ... | 0 .. 0 | q0 q1 q2 ... q(n-1) | 0 .. 0 |
 *
 * A block is 2 to 32 neighbouring lanes: its largest element is found by shuffles, and every lane
 * computes the scale for itself. Options (rotation, drawing, rounding up, signed scales) are tests
 * that all threads of a launch decide alike.
 */
#ifndef DSC_KERNELS_BLOCK_CUH
#define DSC_KERNELS_BLOCK_CUH

#include "kernels/draw.cuh"
#include "kernels/elements.cuh"
#include "kernels/format.cuh"
#include "kernels/rotate.cuh"

/* ---- scales ---- */

/* The largest v among the lanes of a block. */
DSC_DEVICE uint32_t block_max(uint32_t v, uint32_t block_log2)
{
    if (block_log2 == 8)
        return __reduce_max_sync(kAllLanes, v);
    for (uint32_t lanes = 1; lanes < (1u << block_log2) / kPerLane; lanes *= 2)
        v = max(v, __shfl_xor_sync(kAllLanes, v, static_cast<int>(lanes)));
    return v;
}

/* Bits of the block's element of largest magnitude, of equal ones a positive one. */
DSC_DEVICE uint32_t block_extreme(const float y[kPerLane], uint32_t block_log2)
{
    uint32_t most = 0;

#pragma unroll
    for (uint32_t i = 0; i < kPerLane; i++)
        most = max(most, (bits_of(y[i]) << 1 | bits_of(y[i]) >> 31) ^ 1u); /* sign decides last */
    most = block_max(most, block_log2) ^ 1u;
    return most >> 1 | most << 31;
}

/* float32: amax / largest, and its inverse by a division of its own. */
struct ScaleF32 {
    static constexpr uint32_t kBytes = 4;

    template <class Element>
    static __device__ uint32_t of(uint32_t extreme, float *inv_out, uint32_t)
    {
        const float amax = float_of(extreme & kAbs);

        *inv_out = __fdiv_rn(Element::kLargest, amax);
        return bits_of(__fdiv_rn(amax, Element::kLargest));
    }

    static __device__ uint32_t get(const uint8_t *scales, uint32_t i)
    {
        return reinterpret_cast<const uint32_t *>(scales)[i];
    }

    static __device__ void put(uint8_t *scales, uint32_t i, uint32_t bits)
    {
        reinterpret_cast<uint32_t *>(scales)[i] = bits;
    }
};

/* bfloat16, rounded away from 0; with a sign and 8 in place of 7 if asked for. */
struct ScaleBf16 {
    static constexpr uint32_t kBytes = 2;

    template <class Element>
    static __device__ uint32_t of(uint32_t extreme, float *inv_out, uint32_t flags)
    {
        const bool is_signed = (flags & DSC_GPU_FORMAT_SIGNED) != 0;
        const float top = float_of(is_signed ? extreme ^ kSign : extreme & kAbs);
        const float scale = __fdiv_rn(top, is_signed ? 8.0f : Element::kLargest);
        const uint32_t bits = (bits_of(scale) + 0xffffu) & 0xffff0000u;

        *inv_out = __fdiv_rn(1.0f, float_of(bits));
        return bits;
    }

    static __device__ uint32_t get(const uint8_t *scales, uint32_t i)
    {
        return static_cast<uint32_t>(reinterpret_cast<const uint16_t *>(scales)[i]) << 16;
    }

    static __device__ void put(uint8_t *scales, uint32_t i, uint32_t bits)
    {
        reinterpret_cast<uint16_t *>(scales)[i] = static_cast<uint16_t>(bits >> 16);
    }
};

/* E8M0: the power of two that brings amax to the exponent of the largest value, 254 at most. */
struct ScaleE8m0 {
    static constexpr uint32_t kBytes = 1;

    template <class Element>
    static __device__ uint32_t of(uint32_t extreme, float *inv_out, uint32_t flags)
    {
        const uint32_t amax = extreme & kAbs, largest = bits_of(Element::kLargest);
        const bool is_above = (amax & kMantissa) > (largest & kMantissa);
        const uint32_t up = (flags & DSC_GPU_FORMAT_CEIL) != 0 && is_above ? 1u : 0u;
        const uint32_t code = min((amax >> 23) - (largest >> 23) + 127 + up, 254u);

        *inv_out = code < 254 ? float_of((254 - code) << 23) : float_of(0x00400000u);
        return code << 23;
    }

    static __device__ uint32_t get(const uint8_t *scales, uint32_t i)
    {
        const uint32_t code = scales[i];

        return code == 0 ? 0x00400000u : code << 23; /* 2^-127 is subnormal */
    }

    /* Scale 0 as well: code 0 is 2^-127. */
    static __device__ void put(uint8_t *scales, uint32_t i, uint32_t bits)
    {
        scales[i] = static_cast<uint8_t>(bits >> 23);
    }
};

/* ---- a part of a message ---- */

/* D of a lane's codes. A scale with all exponent bits set is poison. */
template <class Element>
DSC_DEVICE void values_of(float d[kPerLane], const Codes<Element::kBits> &q, uint32_t scale)
{
    const bool is_poison = (scale & kInf) == kInf;

#pragma unroll
    for (uint32_t i = 0; i < kPerLane; i++) {
        const float product = __fmul_rn(Element::value(q.get(i)), float_of(scale));
        const float number = Element::kHasNan ? canonical(product) : product;

        d[i] = is_poison ? float_of(kNan) : number;
    }
}

/* Codes of a lane's elements and the scale of its block, for a message of n elements. */
template <class Element, class Scale> struct Blocks {
    using Q = Codes<Element::kBits>;

    uint8_t *scales, *codes;
    uint32_t n, block_log2;

    __device__ Blocks(uint8_t *msg, uint32_t n_, uint32_t block_log2_)
        : scales(msg), n(n_), block_log2(block_log2_)
    {
        codes = msg + round_up(scale_bytes(), 16);
    }

    __device__ uint32_t scale_bytes() const
    {
        return (((n - 1) >> block_log2) + 1) * Scale::kBytes;
    }

    __device__ uint32_t code_bytes() const
    {
        return Element::kBits == 8 ? n : (n + 1) / 2;
    }

    __device__ void decode(float d[kPerLane], uint32_t pos) const
    {
        Q q = {};
        uint32_t scale = 0;

        if (pos < n) {
            q.load(codes + pos * Element::kBits / 8);
            scale = Scale::get(scales, pos >> block_log2);
        }
        values_of<Element>(d, q, scale);
    }

    /* Elements from n on have y = +0; all lanes of the warp. */
    __device__ void store(uint32_t pos, const Q &q, uint32_t scale) const
    {
        const uint32_t at = pos * Element::kBits / 8, warp_end = round_up(pos + 1, kPerWarp);

        if (at < round_up(code_bytes(), 16))
            q.store(codes + at);
        if (pos < n && (pos & ((1u << block_log2) - 1)) == 0)
            Scale::put(scales, pos >> block_log2, scale);
        if (n <= warp_end && n > warp_end - kPerWarp)
            pad_part(scales, scale_bytes());
    }

    /* code_of(i, t): the code of y[i], which is t after scaling. */
    template <class C>
    __device__ void encode(float d[kPerLane], uint32_t pos, const float y[kPerLane], uint32_t flags,
                           C code_of) const
    {
        const uint32_t extreme = block_extreme(y, block_log2), amax = extreme & kAbs;
        const bool is_ordinary = amax >= kTiny && amax < kInf;
        uint32_t scale = amax < kTiny ? 0 : kNan;
        float inv = 0.0f;
        Q q = {};

        if (is_ordinary)
            scale = Scale::template of<Element>(extreme, &inv, flags);
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            q.put(i, is_ordinary ? code_of(i, __fmul_rn(y[i], inv)) : 0);
        store(pos, q, scale);
        values_of<Element>(d, q, scale);
    }
};

/* ---- the formats ---- */

/*
 * int8 in blocks of 256 moves 1 + 4/256 bytes per element on the wire, int4 in blocks of 64
 * 1/2 + 2/64, MX formats 1 (or 1/2) + 1/32.
 */
template <class Element, class Scale, bool can_rotate, bool can_draw>
struct BlockFormat : PlainFormat {
    using PlainFormat::PlainFormat;

    __device__ bool rotates() const
    {
        return can_rotate && (args.format.flags & DSC_GPU_FORMAT_ROTATES) != 0;
    }

    /* Rotated, the padding of the last group is sent as well. */
    __device__ Blocks<Element, Scale> blocks(uint8_t *msg) const
    {
        return { msg, rotates() ? round_up(op.n, kRotated) : op.n, args.format.block_log2 };
    }

    __device__ void decode(float d[kPerLane], const uint8_t *msg, dsc_gpu_facts, Lane lane)
    {
        blocks(const_cast<uint8_t *>(msg)).decode(d, lane.pos);
        if (rotates())
            rotate_back(d);
    }

    __device__ void encode(uint8_t *msg, dsc_gpu_facts, Lane lane, const float y[kPerLane], float d[kPerLane])
    {
        const Blocks<Element, Scale> b = blocks(msg);
        const uint32_t flags = args.format.flags;
        float x[kPerLane];

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            x[i] = y[i];
        if (rotates())
            rotate(x);
        if (can_draw && (flags & DSC_GPU_FORMAT_DRAWS) != 0) {
            const Draw draw(args.call, op.send_at + lane.pos);

            b.encode(d, lane.pos, x, flags, [&](uint32_t i, float t) {
                return draw.code(i, t, static_cast<int>(Element::kLargest));
            });
        } else if (Element::kBits == 4 && (flags & DSC_GPU_FORMAT_SIGNED) != 0) {
            b.encode(d, lane.pos, x, flags,
                     [](uint32_t, float t) { return integer_code(t, -8.0f, 7.0f); });
        } else {
            b.encode(d, lane.pos, x, flags, [](uint32_t, float t) { return Element::code(t); });
        }
        if (rotates())
            rotate_back(d);
    }
};

using FormatInt8 = BlockFormat<Int8, ScaleF32, true, true>;
using FormatInt4 = BlockFormat<Int4, ScaleBf16, true, true>;
using FormatE4m3 = BlockFormat<E4m3, ScaleF32, true, false>;
using FormatE5m2 = BlockFormat<E5m2, ScaleF32, true, false>;
using FormatMxfp8 = BlockFormat<E4m3, ScaleE8m0, false, false>;
using FormatMxfp8E5m2 = BlockFormat<E5m2, ScaleE8m0, false, false>;
using FormatMxfp4 = BlockFormat<E2m1, ScaleE8m0, false, false>;
using FormatMxint8 = BlockFormat<Int64ths, ScaleE8m0, false, false>;

#endif
