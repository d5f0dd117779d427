/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel that two_shot.h describes. Per element it moves, with V bytes of the data type, W of
 * the message, R of the residual's type and n ranks: 2V + 2W in its own memory and over the link
 * each way 2W(n-1)/n, with a residual + 2R; bound by the link above some hundred KiB, below by
 * the two exchanges of flags.
 *
 * Ordering: a block's threads write, meet at the barrier, and one thread stores the flag with
 * release; the reader's thread loads it with acquire, and the block meets at the barrier before
 * others read. x86 orders stores and loads like that by itself, so no run on the emulator proves
 * it.
 */
#ifndef DSC_KERNELS_TWO_SHOT_CUH
#define DSC_KERNELS_TWO_SHOT_CUH

#include "kernels/stages.cuh"
#include "kernels/two_shot.h"

/* Looks at a flag between two looks at the abort word, which is in host memory, and the clock. */
constexpr uint32_t kLooks = 32;

/* Who waits for an owner waits for whoever keeps it waiting, and the owner knows who that is. */
constexpr uint64_t kOwnerSlackNs = 250000000;

template <class Format> struct TwoShot {
    static_assert(Format::kThreads == DSC_TWO_SHOT_THREADS &&
                      Format::kThreads == Format::kDecodeThreads &&
                      Format::kTile == Format::kDecodeTile,
                  "a thread decodes, and restores, what it has encoded");

    const dsc_two_shot_args &all;
    const dsc_gpu_args &args; /* of this block's rank */
    const uint32_t me, block, n_blocks, epoch;
    const uint64_t deadline;
    uint32_t n_nonfinite = 0;

    __device__ TwoShot(const dsc_two_shot_args &all_, uint32_t ticket, uint32_t epoch_)
        : all(all_), args(all_.ranks[ticket % all_.n_local]), me(args.call.rank),
          block(ticket / all_.n_local), n_blocks(gridDim.x / all_.n_local), epoch(epoch_),
          deadline(DSC_GLOBAL_TIMER_NS() + all_.timeout_ns)
    {
    }

    /* ---- flags ---- */

    __device__ uint32_t *final_flag(uint32_t rank, uint32_t tile) const
    {
        return reinterpret_cast<uint32_t *>(all.arenas[rank]) + tile;
    }

    __device__ uint32_t *sent_flag(uint32_t owner, uint32_t sender, uint32_t first) const
    {
        return final_flag(owner,
                          args.work.n_tiles + sender * all.max_tiles + first / Format::kTile);
    }

    /* A peer may have gone on to the next epoch. */
    __device__ bool is_posted(const uint32_t *flag) const
    {
        return static_cast<int32_t>(DSC_LOAD_ACQUIRE_SYS(flag) - epoch) >= 0;
    }

    /* 0, or 1 + the rank that has given up. */
    __device__ uint32_t teller() const
    {
        return DSC_LOAD_ACQUIRE_SYS(
            &reinterpret_cast<const dsc_two_shot_notes *>(all.arenas[me] + all.notes_at)->told);
    }

    /* Who is first to give up says whom it waited for, or who told it; not if its host did. */
    __device__ bool fails(dsc_gpu_stage stage, uint32_t peer) const
    {
        dsc_gpu_board *const board = args.call.state->board;
        const bool is_ordered = is_aborted(args.call.state);
        const uint32_t told = teller();
        const uint64_t slack = stage == DSC_GPU_DECODE ? kOwnerSlackNs : 0;

        if (DSC_LOAD_ACQUIRE_SYS(&all.control->failed) != 0)
            return true;
        if (!is_ordered && told == 0 && DSC_GLOBAL_TIMER_NS() < deadline + slack)
            return false;
        if (atomicExch(&all.control->failed, 1u) == 0 && !is_ordered && board != nullptr)
            DSC_STORE_RELEASE_SYS(&board->stuck, told != 0 ? DSC_STUCK(DSC_STUCK_TOLD, told - 1)
                                                           : DSC_STUCK(stage, peer));
        return true;
    }

    /* Of one thread. False: it is given up. */
    __device__ bool wait(const uint32_t *flag, dsc_gpu_stage stage, uint32_t peer) const
    {
        for (uint32_t looks = 1; !is_posted(flag); looks++) {
            if (looks % kLooks == 0 && fails(stage, peer))
                return false;
            __nanosleep(20);
        }
        return true;
    }

    /* ---- tiles ---- */

    __device__ Stage<Format> stage(dsc_gpu_tile tile, uint32_t arena) const
    {
        return Stage<Format>(args, args.work.ops[(epoch & 1) * DSC_TWO_SHOT_RANKS + tile.op],
                             tile.first, all.arenas[arena]);
    }

    __device__ void send(dsc_gpu_tile tile) const
    {
        stage(tile, tile.op).encode();
        __syncthreads();
        if (threadIdx.x == 0)
            DSC_STORE_RELEASE_SYS(sent_flag(tile.op, me, tile.first), epoch);
    }

    __device__ bool is_peer() const
    {
        return threadIdx.x < all.n_ranks && threadIdx.x != me;
    }

    __device__ bool sum(uint32_t index, dsc_gpu_tile tile)
    {
        bool is_there = true;

        if (is_peer())
            is_there = wait(sent_flag(me, threadIdx.x, tile.first), DSC_GPU_FINAL, threadIdx.x);
        if (__syncthreads_and(is_there) == 0)
            return false;
        Stage<Format> s = stage(tile, me);

        s.final();
        n_nonfinite += s.n_nonfinite;
        __syncthreads();
        if (is_peer())
            DSC_STORE_RELEASE_SYS(final_flag(threadIdx.x, index), epoch);
        return true;
    }

    __device__ bool receive(uint32_t index, dsc_gpu_tile tile)
    {
        bool is_there = true;

        if (threadIdx.x == 0)
            is_there = wait(final_flag(me, index), DSC_GPU_DECODE, tile.op);
        if (__syncthreads_and(is_there) == 0)
            return false;
        Stage<Format> s = stage(tile, tile.op);

        s.decode();
        n_nonfinite += s.n_nonfinite;
        return true;
    }

    /* Until a wait is given up, as control says then. */
    __device__ void run()
    {
        const dsc_gpu_tile *const tiles = args.work.tiles;
        const uint32_t n = args.work.n_tiles;

        for (uint32_t i = block; i < n; i += n_blocks)
            if (tiles[i].op != me)
                send(tiles[i]);
        for (uint32_t i = block; i < n; i += n_blocks)
            if (tiles[i].op == me && !sum(i, tiles[i]))
                return;
        for (uint32_t i = block; i < n; i += n_blocks)
            if (tiles[i].op != me && !receive(i, tiles[i]))
                return;
    }
};

/* What a block knows at its start. */
struct TwoShotStart {
    uint32_t ticket, epoch, has_failed;
};

/* The epoch stands until all blocks have drawn their tickets. */
DSC_DEVICE TwoShotStart two_shot_start(dsc_two_shot_control *control)
{
    SHARED_ARRAY(TwoShotStart, start, 1);

    if (threadIdx.x == 0) {
        const uint32_t ended = DSC_LOAD_ACQUIRE_SYS(&control->epoch);

        start->ticket = atomicAdd(&control->tickets, 1u) - ended * gridDim.x;
        start->epoch = ended + 1;
        start->has_failed = DSC_LOAD_ACQUIRE_SYS(&control->failed);
    }
    __syncthreads();
    return *start;
}

/* The launch's last block. */
DSC_DEVICE void two_shot_end(dsc_two_shot_control *control, uint32_t epoch)
{
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    __threadfence();
    if (atomicAdd(&control->done, 1u) + 1 < gridDim.x)
        return;
    control->done = 0;
    DSC_STORE_RELEASE_SYS(&control->epoch, epoch);
}

template <class Format>
__global__ void __launch_bounds__(Format::kThreads, 1)
    dsc_gpu_two_shot_kernel(const __grid_constant__ dsc_two_shot_args all)
{
    const TwoShotStart start = two_shot_start(all.control);
    TwoShot<Format> two_shot(all, start.ticket, start.epoch);

    if (start.has_failed == 0) {
        show_progress(two_shot.args, two_shot.block);
        two_shot.run();
    }
    finish(two_shot.args, two_shot.n_nonfinite, two_shot.n_blocks, &all.control->failed);
    two_shot_end(all.control, start.epoch);
}

#endif
