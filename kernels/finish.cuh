/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a kernel counts what is not finite and, if it is the call's last one, ends the call: the
 * block that is done last flips the residual's parity, publishes the count, and numbers the next
 * call. Nothing else writes this state, so an aborted call leaves it as it was; of a feedback
 * object it says that there was one.
 */
#ifndef DSC_KERNELS_FINISH_CUH
#define DSC_KERNELS_FINISH_CUH

#include "kernels/sample.cuh"
#include "kernels/stage.h"

/* The reader sees the number again that it saw before if the entry did not change meanwhile. */
DSC_DEVICE void publish(const dsc_gpu_work &work, dsc_gpu_state *state, uint64_t n_nonfinite)
{
    dsc_gpu_stats *const entry = &state->ring[state->sequence & state->ring_mask];

    DSC_STORE_RELEASE_SYS(&entry->number, static_cast<uint64_t>(0));
    __threadfence_system();
    DSC_STORE_RELEASE_SYS(&entry->n_nonfinite, n_nonfinite);
    DSC_STORE_RELEASE_SYS(&entry->tx_bytes, work.tx_bytes);
    DSC_STORE_RELEASE_SYS(&entry->rx_bytes, work.rx_bytes);
    DSC_STORE_RELEASE_SYS(&entry->number, state->sequence);
}

/* The host has given up: kernels that come after an exchange that never was run all the same. */
DSC_DEVICE bool is_aborted(const dsc_gpu_state *state)
{
    return state->board != nullptr && DSC_LOAD_ACQUIRE_SYS(&state->board->aborted) != 0;
}

/* Whether the call has written, or begun to write, the residual's other vector. */
DSC_DEVICE bool writes_residual(const dsc_gpu_args &args)
{
    return (args.work.flags & DSC_GPU_WORK_ALL_NONE) == 0 || args.call.feedback->known_zero == 0 ||
           args.call.velocity[0] != nullptr;
}

DSC_DEVICE void end_call(const dsc_gpu_args &args)
{
    dsc_gpu_state *const state = args.call.state;
    dsc_gpu_feedback *const fb = args.call.feedback;
    const unsigned long long count =
        atomicExch(reinterpret_cast<unsigned long long *>(&state->n_nonfinite), 0ull);

    if (fb != nullptr) {
        fb->n_calls++;
        fb->last_wrote = writes_residual(args);
        if (fb->last_wrote != 0) {
            fb->parity ^= 1u;
            fb->known_zero = 0;
        }
    }
    note_call(args, count);
    state->blocks_done = 0;
    state->sequence++;
    if (state->ring != nullptr)
        publish(args.work, state, count);
}

/* The other vector is rubbish now: a later call may not take it for zeros that are there. */
DSC_DEVICE void give_up_call(const dsc_gpu_args &args)
{
    dsc_gpu_feedback *const fb = args.call.feedback;

    if (fb == nullptr)
        return;
    fb->n_calls++;
    fb->last_wrote = DSC_GPU_GIVEN_UP;
    if (writes_residual(args))
        fb->known_zero = 0;
}

/* Says which kernel runs, for whoever waits for it in vain; a call's first one starts its clock. */
DSC_DEVICE void show_progress(const dsc_gpu_args &args, uint32_t block)
{
    const dsc_gpu_state *const state = args.call.state;

    if (block != 0 || threadIdx.x != 0)
        return;
    if (args.call.notes != nullptr && (args.work.flags & DSC_GPU_WORK_FIRST) != 0)
        args.call.notes->began_ns = DSC_GLOBAL_TIMER_NS();
    if (state->board != nullptr)
        DSC_STORE_RELEASE_SYS(&state->board->progress,
                              (state->sequence + 1) << 40 | args.work.step);
}

/*
 * All threads of a block, once, when they are done; the call's last kernel has n_blocks of them.
 * given_up: a word that is not 0 once a block has given up; NULL: none does.
 */
DSC_DEVICE void finish(const dsc_gpu_args &args, uint32_t n_nonfinite, uint32_t n_blocks,
                       const uint32_t *given_up)
{
    dsc_gpu_state *const state = args.call.state;
    const uint32_t of_warp = __reduce_add_sync(kAllLanes, n_nonfinite);

    if (threadIdx.x % 32 == 0 && of_warp > 0)
        atomicAdd(reinterpret_cast<unsigned long long *>(&state->n_nonfinite),
                  static_cast<unsigned long long>(of_warp));
    if ((args.work.flags & DSC_GPU_WORK_LAST) == 0)
        return;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    __threadfence();
    if (atomicAdd(&state->blocks_done, 1u) + 1 != n_blocks)
        return;
    __threadfence();
    if (!is_aborted(state) && (given_up == nullptr || DSC_LOAD_ACQUIRE_SYS(given_up) == 0)) {
        end_call(args);
    } else {
        state->blocks_done = 0;
        give_up_call(args);
    }
}

#endif
