/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stages. One thread block does one tile of an operation; every operation on floats is the one
 * that src/exec/compute*.c does on that element, in the same order, so all bits are the same.
 *
 * Bytes moved per element, all of them once, with V bytes of the data type, W of the message, R of
 * the residual's type and m received messages; the bound is the memory's bandwidth:
 *   encode   V + W            with a residual V + W + 2R
 *   reduce   mW + V + 4       (4 instead of V where the own value is a partial sum)
 *   final    mW + V + W + V   with a residual + 2R
 *   decode   W + V
 *   sum      mW + V           with a residual + 2R for the elements owned
 *   result   mW + 2V          with a residual + 2R
 *   restore  1/2048           + 2R where there are marks
 * With momentum 8 more wherever V is read.
 * Formats with a segment read what they encode as often as they look at it (nvfp4.cuh, topk.cuh).
 */
#ifndef DSC_KERNELS_STAGES_CUH
#define DSC_KERNELS_STAGES_CUH

#include "kernels/finish.cuh"
#include "kernels/format.cuh"
#include "kernels/residual.cuh"

template <class Format> struct Stage {
    const dsc_gpu_args &args;
    const dsc_gpu_op &op;
    const uint32_t first;    /* of the tile */
    uint8_t *const messages; /* what the operation's places count from */
    const Residual residual;
    const float ranks;   /* A: number of ranks for AVG, else 1 */
    const bool is_exact; /* A is a power of two: x * (1/A) is x/A */
    Format format;
    uint32_t n_nonfinite = 0; /* of this thread's output */

    __device__ Stage(const dsc_gpu_args &args_, const dsc_gpu_op &op_, uint32_t first_,
                     uint8_t *messages_)
        : args(args_), op(op_), first(first_), messages(messages_), residual(args_, op_),
          ranks(args_.call.op == DSCOMM_AVG ? static_cast<float>(args_.call.n_ranks) : 1.0f),
          is_exact((args_.call.n_ranks & (args_.call.n_ranks - 1)) == 0), format(args_, op_, first_)
    {
    }

    /* ---- values ---- */

    __device__ void own(float v[kPerLane], Lane lane) const
    {
        if (op.own_partial != DSC_GPU_NONE)
            load_f32(v, args.work.partial + op.own_partial + lane.pos, lane.n);
        else
            load_values(v, args.call.send, args.call.dtype, op.send_at + lane.pos, lane.n);
        if (op.own_partial == DSC_GPU_NONE && residual.has_momentum())
            residual.add_momentum(v, op.send_at + lane.pos, lane.n);
    }

    /* acc op= x */
    __device__ void combine(float acc[kPerLane], const float x[kPerLane]) const
    {
        const dscomm_op_t how = args.call.op;

        if (how == DSCOMM_SUM || how == DSCOMM_AVG) {
#pragma unroll
            for (uint32_t i = 0; i < kPerLane; i++)
                acc[i] = __fadd_rn(acc[i], x[i]);
            return;
        }
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            acc[i] = how == DSCOMM_MAX ? larger(acc[i], x[i]) : smaller(acc[i], x[i]);
    }

    /*
     * n_values values in the order of ranks, the own one at own_at (none is, if that is not below).
     * What is not there becomes +0: it might be encoded.
     */
    __device__ void sum(float x[kPerLane], Lane lane, uint32_t n_values, uint32_t own_at)
    {
        const dsc_gpu_recv *recv = args.work.recvs + op.first_recv;
        float next[kPerLane];

        for (uint32_t k = 0; k < n_values; k++) {
            if (k == own_at) {
                own(next, lane);
            } else {
                format.decode(next, messages + recv->at, recv->facts, lane);
                recv++;
            }
            if (k == 0) {
#pragma unroll
                for (uint32_t i = 0; i < kPerLane; i++)
                    x[i] = next[i];
            } else {
                combine(x, next);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            x[i] = i < lane.n ? x[i] : 0.0f;
    }

    __device__ void check_received()
    {
        format.check(messages, args.work.recvs + op.first_recv, op.n_recvs);
    }

    /* x = v + beta*r, unless the residual is left alone. */
    __device__ void add_residual(float x[kPerLane], float r[kPerLane], Lane lane) const
    {
        if (residual.is_idle)
            return;
        residual.load(r, op.send_at + lane.pos, lane.n);
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            x[i] = add_product(x[i], args.call.beta, r[i]);
    }

    /* y = x/A */
    __device__ void divide(float y[kPerLane], const float x[kPerLane]) const
    {
        const float inverse = 1.0f / ranks; /* 1, or a power of two, where it is used */

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            y[i] = is_exact || ranks == 1.0f ? __fmul_rn(x[i], inverse) : __fdiv_rn(x[i], ranks);
    }

    /* Rounds to the output, leaves in o what it holds, and counts. True: all are finite. */
    __device__ bool output(float o[kPerLane], Lane lane)
    {
        uint32_t n_bad = 0;

        store_values(args.call.recv, o, args.call.dtype, op.recv_at + lane.pos, lane.n);
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            n_bad += i < lane.n && !is_finite(__fmul_rn(ranks, o[i]));
        n_nonfinite += n_bad;
        return n_bad == 0;
    }

    __device__ void restore(const float o[kPerLane], Lane lane) const
    {
        for (uint32_t i = 0; i < lane.n; i++) {
            if (!is_finite(__fmul_rn(ranks, o[i])))
                residual.restore(op.send_at + lane.pos, i);
        }
    }

    /* What the codec makes of a lane's values, for the call's note. */
    __device__ void sample(const float x[kPerLane], const float d[kPerLane],
                           const float r[kPerLane], Lane lane) const
    {
        float v[kPerLane];

#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++)
            v[i] = residual.is_idle ? x[i] : __fsub_rn(x[i], __fmul_rn(args.call.beta, r[i]));
        add_sample(args.call.notes, x, d, v, !residual.is_idle, lane.n);
    }

    /* After all of the tile: what its message has of u has been sent. */
    __device__ void clear_sent(const uint8_t *msg) const
    {
        if constexpr (Format::kLeavesOut) {
            if (!residual.has_momentum())
                return;
            __syncthreads();
            format.clear_sent(msg, op.facts, residual.velocity_out() + op.send_at);
            __syncthreads();
        }
    }

    /* What was sent by an owner whose output is not finite was not. */
    __device__ void restore_cleared() const
    {
        if constexpr (Format::kLeavesOut) {
            if (!residual.has_momentum() || n_nonfinite == 0)
                return;
            for (uint32_t at = first; at < tile_end(Format::kTile);
                 at += Format::kThreads * kPerLane) {
                const Lane lane = lane_at(at, op.n);
                float o[kPerLane];

                load_values(o, args.call.recv, args.call.dtype, op.recv_at + lane.pos, lane.n);
                restore(o, lane);
            }
        }
    }

    __device__ uint32_t tile_end(uint32_t tile) const
    {
        return op.n - first < tile ? op.n : first + tile;
    }

    /* ---- stages ---- */

    __device__ void encode()
    {
        uint8_t *const msg = messages + op.out_at;
        const auto value = [&](Lane lane, float x[kPerLane], float r[kPerLane]) {
            own(x, lane);
            add_residual(x, r, lane);
        };

        format.prepare(msg, op.facts, first, tile_end(Format::kTile),
                       [&](Lane lane, float y[kPerLane]) {
                           float r[kPerLane];

                           value(lane, y, r);
                       });
        for (uint32_t at = first; at < tile_end(Format::kTile); at += Format::kThreads * kPerLane) {
            const Lane lane = lane_at(at, op.n);
            float x[kPerLane], r[kPerLane], d[kPerLane];

            value(lane, x, r);
            format.encode(msg, op.facts, lane, x, d);
            if (is_sampled(args, at) && !residual.has_momentum())
                sample(x, d, r, lane);
            if (!residual.is_idle)
                residual.store_sent(x, d, r, op.send_at + lane.pos, lane.n);
        }
        clear_sent(msg);
    }

    __device__ void reduce()
    {
        check_received();
        for (uint32_t at = first; at < tile_end(Format::kDecodeTile);
             at += Format::kDecodeThreads * kPerLane) {
            const Lane lane = lane_at(at, op.n);
            float x[kPerLane];

            sum(x, lane, op.n_recvs + 1, op.own_at);
            store_f32(args.work.partial + op.out_partial + lane.pos, x, lane.n);
        }
    }

    __device__ void final()
    {
        uint8_t *const msg = messages + op.out_at;
        const auto value = [&](Lane lane, float x[kPerLane], float r[kPerLane], float y[kPerLane]) {
            sum(x, lane, op.n_recvs + 1, op.own_at);
            add_residual(x, r, lane);
            divide(y, x);
        };

        check_received();
        format.prepare(msg, op.facts, first, tile_end(Format::kTile),
                       [&](Lane lane, float y[kPerLane]) {
                           float x[kPerLane], r[kPerLane];

                           value(lane, x, r, y);
                       });
        for (uint32_t at = first; at < tile_end(Format::kTile); at += Format::kThreads * kPerLane) {
            const Lane lane = lane_at(at, op.n);
            float x[kPerLane], r[kPerLane], y[kPerLane], d[kPerLane];

            value(lane, x, r, y);
            format.encode(msg, op.facts, lane, y, d);
            (void)output(d, lane);
            if (!residual.is_idle)
                residual.store_owned(x, d, ranks, r, op.send_at + lane.pos, lane.n);
        }
        clear_sent(msg);
        restore_cleared();
    }

    __device__ void decode()
    {
        const dsc_gpu_recv *const recv = args.work.recvs + op.first_recv;

        check_received();
        for (uint32_t at = first; at < tile_end(Format::kDecodeTile);
             at += Format::kDecodeThreads * kPerLane) {
            const Lane lane = lane_at(at, op.n);
            float d[kPerLane];

            format.decode(d, messages + recv->at, recv->facts, lane);
            if (!output(d, lane) && (op.flags & DSC_GPU_OP_RESTORES) != 0)
                restore(d, lane);
        }
    }

    /* The owner of an element adds S - A*o to its r', in a second rounding. */
    __device__ void add_owner_residual(const float x[kPerLane], const float o[kPerLane],
                                       Lane lane) const
    {
        const uint64_t at = op.send_at + lane.pos, index = op.start + lane.pos;
        uint32_t first_owned, end_owned, lost = 0; /* of the lane's elements */
        float kept[kPerLane];

        if (residual.is_idle || index >= op.own_end || index + lane.n <= op.own_start)
            return;
        first_owned = op.own_start > index ? static_cast<uint32_t>(op.own_start - index) : 0;
        end_owned =
            op.own_end - index < lane.n ? static_cast<uint32_t>(op.own_end - index) : lane.n;
        residual.load_from(kept, residual.out, at, lane.n);
#pragma unroll
        for (uint32_t i = 0; i < kPerLane; i++) {
            const float delivered = __fmul_rn(ranks, o[i]);
            const float missed = is_finite(delivered) ? __fsub_rn(x[i], delivered) : 0.0f;
            const float fresh = __fadd_rn(missed, kept[i]);
            const bool is_owned = i >= first_owned && i < end_owned,
                       is_kept = residual.keeps(fresh);

            kept[i] = is_owned && is_kept ? fresh : kept[i];
            lost |= static_cast<uint32_t>(is_owned && !is_kept) << i;
        }
        residual.store_bits(kept, at, lane.n);
        for (; lost != 0; lost &= lost - 1)
            residual.restore_residual(at, static_cast<uint32_t>(__ffs(static_cast<int>(lost)) - 1));
    }

    __device__ void sum_all()
    {
        check_received();
        for (uint32_t at = first; at < tile_end(Format::kDecodeTile);
             at += Format::kDecodeThreads * kPerLane) {
            const Lane lane = lane_at(at, op.n);
            float x[kPerLane], o[kPerLane];
            bool is_clean;

            sum(x, lane, op.n_recvs, op.n_recvs);
            divide(o, x);
            is_clean = output(o, lane);
            add_owner_residual(x, o, lane);
            if (!is_clean)
                restore(o, lane);
        }
    }

    __device__ void result()
    {
        check_received();
        for (uint32_t at = first; at < tile_end(Format::kDecodeTile);
             at += Format::kDecodeThreads * kPerLane) {
            const Lane lane = lane_at(at, op.n);
            float x[kPerLane], r[kPerLane], o[kPerLane];
            bool is_clean;

            sum(x, lane, op.n_recvs + 1, op.own_at);
            add_residual(x, r, lane);
            divide(o, x);
            is_clean = output(o, lane);
            if (!residual.is_idle)
                residual.store_owned(x, o, ranks, r, op.send_at + lane.pos, lane.n);
            if (op.out_at != DSC_GPU_NONE)
                mark(lane, at, __any_sync(kAllLanes, !is_clean) != 0);
        }
    }

    /* 256 elements share a mark, a bit, and are restored together. A warp has that many. */
    __device__ void mark(Lane lane, uint32_t at, bool is_marked) const
    {
        constexpr uint32_t kBytes = Format::kDecodeThreads * kPerLane / (8 * kPerWarp);
        uint8_t *const marks = messages + op.out_at;
        const uint32_t used = (op.n - 1) / (8 * kPerWarp) + 1, byte = at / (8 * kPerWarp);
        SHARED_ARRAY(uint8_t, is_bad, 8 * kBytes);

        for (uint32_t i = 0; is_marked && i < lane.n; i++)
            residual.restore(op.send_at + lane.pos, i);
        if (threadIdx.x % 32 == 0)
            is_bad[threadIdx.x / 32] = is_marked;
        __syncthreads();
        if (threadIdx.x < kBytes && byte + threadIdx.x < used) {
            uint32_t bits = 0;

            for (uint32_t i = 0; i < 8; i++)
                bits |= static_cast<uint32_t>(is_bad[8 * threadIdx.x + i]) << i;
            marks[byte + threadIdx.x] = static_cast<uint8_t>(bits);
        }
        if (byte + kBytes >= used && threadIdx.x < 32)
            pad_part(marks, used);
        __syncthreads();
    }

    __device__ void restore_marked()
    {
        const uint8_t *const marks = messages + args.work.recvs[op.first_recv].at;

        for (uint32_t at = first; at < tile_end(Format::kDecodeTile);
             at += Format::kDecodeThreads * kPerLane) {
            const Lane lane = lane_at(at, op.n);
            const uint32_t unit = lane.pos / kPerWarp;

            if (lane.n == 0 || (marks[unit / 8] >> unit % 8 & 1u) == 0)
                continue;
            for (uint32_t i = 0; i < lane.n; i++)
                residual.restore(op.send_at + lane.pos, i);
        }
    }

    template <dsc_gpu_stage stage> __device__ void run()
    {
        if constexpr (stage == DSC_GPU_ENCODE)
            encode();
        else if constexpr (stage == DSC_GPU_REDUCE)
            reduce();
        else if constexpr (stage == DSC_GPU_FINAL)
            final();
        else if constexpr (stage == DSC_GPU_DECODE)
            decode();
        else if constexpr (stage == DSC_GPU_SUM)
            sum_all();
        else if constexpr (stage == DSC_GPU_RESULT)
            result();
        else
            restore_marked();
    }
};

/* Whether a stage writes messages of its format, and so has the encoder's tiles. */
constexpr bool encodes(dsc_gpu_stage stage)
{
    return stage == DSC_GPU_ENCODE || stage == DSC_GPU_FINAL;
}

template <class Format, dsc_gpu_stage stage>
__global__ void __launch_bounds__(encodes(stage) ? Format::kThreads : Format::kDecodeThreads, 1)
    dsc_gpu_kernel(const dsc_gpu_args args)
{
    uint32_t n_nonfinite = 0;

    show_progress(args, blockIdx.x);
    if (blockIdx.x < args.work.n_tiles) {
        const dsc_gpu_tile tile = args.work.tiles[blockIdx.x];
        Stage<Format> s(args, args.work.ops[tile.op], tile.first, args.work.messages);

        s.template run<stage>();
        n_nonfinite = s.n_nonfinite;
    }
    finish(args, n_nonfinite, gridDim.x, nullptr);
}

#endif
