/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stages ask of a wire format. All threads of a block call these functions together, each for
 * its lane's 8 elements; formats whose scales or choices hang on a whole segment of 65536 elements
 * have tiles of that size and look at all of it in prepare(). A format is a class because it keeps
 * between the calls what it knows of its message.
 *
 *   check(messages, recvs, n)          reads received messages that need it before the first decode
 *   decode(d, msg, facts, lane)        D of a message; what is not there is any number
 *   prepare(msg, facts, first, end, y) before the first encode of a tile; y(lane, values) gives
 *                                      what will be encoded, as often as it is called
 *   clear_sent(msg, facts, u)          of formats that leave elements out, kLeavesOut: u = 0 where an
 *                                      encoded tile has an element
 *   encode(msg, facts, lane, y, d)     writes the lane's part of the message and of the zeros
 *                                      behind it; D in d. y of what is not there is +0
 *
 * The constructor gets the tile's first element.
 */
#ifndef DSC_KERNELS_FORMAT_CUH
#define DSC_KERNELS_FORMAT_CUH

#include "kernels/lanes.cuh"

constexpr uint32_t kSegment = 65536;

/*
 * Formats that need nothing but the lane's block. A tile is two rounds of all threads: what a block
 * reads of the tables before its first element takes about as long as a round.
 */
struct PlainFormat {
    static constexpr uint32_t kThreads = 256, kTile = 2 * kThreads * kPerLane;
    static constexpr uint32_t kDecodeThreads = kThreads, kDecodeTile = kTile;
    static constexpr bool kLeavesOut = false;

    const dsc_gpu_args &args;
    const dsc_gpu_op &op;

    __device__ PlainFormat(const dsc_gpu_args &args_, const dsc_gpu_op &op_, uint32_t)
        : args(args_), op(op_)
    {
    }

    __device__ void check(const uint8_t *, const dsc_gpu_recv *, uint32_t)
    {
    }

    template <class Y> __device__ void prepare(uint8_t *, dsc_gpu_facts, uint32_t, uint32_t, Y)
    {
    }

    /* With the zeros that follow the last element up to a multiple of `unit`. */
    static __device__ Lane padded(Lane lane, uint32_t n, uint32_t unit)
    {
        const uint32_t end = round_up(n, unit);
        const uint32_t left = lane.pos < end ? end - lane.pos : 0;

        return { lane.pos, left < kPerLane ? left : kPerLane };
    }
};

#endif
