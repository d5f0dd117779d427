/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input of an in-place call, kept until the call has ended: SAVE copies it away before the
 * call's first kernel, UNDO copies it back if the call was given up. Calls that come after that one
 * run on rubbish too, and save and undo their inputs likewise. 2 bytes moved per byte of input; the
 * bound is the memory's bandwidth.
 */
#ifndef DSC_KERNELS_INPUT_CUH
#define DSC_KERNELS_INPUT_CUH

#include "kernels/finish.cuh"

/* By all blocks, 16 bytes at a time; both places miss 16-byte alignment alike. */
DSC_DEVICE void copy_bytes(uint8_t *dst, const uint8_t *src, uint64_t n)
{
    const uint64_t start = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    const uint64_t gap = (16 - reinterpret_cast<uintptr_t>(src) % 16) % 16;
    const uint64_t head = gap < n ? gap : n, n_words = (n - head) / 16;

    for (uint64_t i = start; i < n_words; i += stride)
        reinterpret_cast<uint4 *>(dst + head)[i] = reinterpret_cast<const uint4 *>(src + head)[i];
    if (start < head)
        dst[start] = src[start];
    for (uint64_t i = head + 16 * n_words + start; i < n; i += stride)
        dst[i] = src[i];
}

__global__ void dsc_gpu_save_kernel(const dsc_gpu_args args)
{
    const dsc_gpu_call &call = args.call;

    if (blockIdx.x == 0 && threadIdx.x == 0)
        call.state->saved_at = call.state->sequence;
    copy_bytes(static_cast<uint8_t *>(call.saved), static_cast<const uint8_t *>(call.input),
               call.input_bytes);
}

__global__ void dsc_gpu_undo_kernel(const dsc_gpu_args args)
{
    const dsc_gpu_call &call = args.call;

    /* else it has ended, and has its output */
    if (call.state->saved_at == call.state->sequence)
        copy_bytes(static_cast<uint8_t *>(call.input), static_cast<const uint8_t *>(call.saved),
                   call.input_bytes);
}

#endif
