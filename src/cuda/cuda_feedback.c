/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Residuals in device memory. Reading and writing them is for checkpoints and the like: blocking
 * copies, which wait for the device.
 */
#include "cuda/cuda.h"
#include "dscomm/nccl.h"

_Static_assert(sizeof(struct dsc_gpu_feedback) == sizeof(struct dsc_feedback_state) &&
                   offsetof(struct dsc_gpu_feedback, known_zero) ==
                       offsetof(struct dsc_feedback_state, known_zero) &&
                   offsetof(struct dsc_gpu_feedback, n_calls) ==
                       offsetof(struct dsc_feedback_state, n_calls) &&
                   offsetof(struct dsc_gpu_feedback, last_wrote) ==
                       offsetof(struct dsc_feedback_state, last_wrote),
               "kernels and feedback.c have one layout");
_Static_assert(DSC_GPU_GIVEN_UP == DSC_CALL_GIVEN_UP, "and one word for a call that was given up");

static dscomm_status_t device_zero(void *memory, size_t bytes)
{
    CUDA_TRY(cudaMemset(memory, 0, bytes));
    CUDA_TRY(cudaDeviceSynchronize()); /* a memset of device memory may return before it is done */
    return DSCOMM_OK;
}

static dscomm_status_t device_alloc(size_t bytes, void **memory_out)
{
    void *memory = NULL;
    dscomm_status_t st;

    CUDA_TRY(cudaMalloc(&memory, bytes > 0 ? bytes : 1));
    st = bytes > 0 ? device_zero(memory, bytes) : DSCOMM_OK;
    if (st < 0)
        cudaFree(memory);
    else
        *memory_out = memory;
    return st;
}

static void device_free(void *memory)
{
    if (memory != NULL)
        cudaFree(memory);
}

static dscomm_status_t device_read(void *dst, const void *memory, size_t bytes)
{
    CUDA_TRY(cudaDeviceSynchronize()); /* calls run on streams that a copy does not wait for */
    CUDA_TRY(cudaMemcpy(dst, memory, bytes, cudaMemcpyDeviceToHost));
    return DSCOMM_OK;
}

static dscomm_status_t device_write(void *memory, const void *src, size_t bytes)
{
    CUDA_TRY(cudaDeviceSynchronize());
    CUDA_TRY(cudaMemcpy(memory, src, bytes, cudaMemcpyHostToDevice));
    return DSCOMM_OK;
}

const struct dsc_feedback_memory dsc_cuda_memory = {
    .name = "cuda",
    .alloc = device_alloc,
    .free = device_free,
    .read = device_read,
    .write = device_write,
    .zero = device_zero,
};

dscomm_status_t dscomm_feedback_create_cuda(size_t count, const dscomm_feedback_config_t *config,
                                            dscomm_feedback_t **fb_out)
{
    return dsc_feedback_create_in(&dsc_cuda_memory, count, config, fb_out);
}
