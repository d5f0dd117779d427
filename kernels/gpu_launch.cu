/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which kernel a stage is, and its launch. Nothing here waits, allocates or picks a device.
 */
#include "kernels/gpu_kernels.h"

static const struct dsc_gpu_kernels *kernels_of(uint32_t kind)
{
    switch (kind) {
#define CASE(table, Format, kind) \
    case kind:                    \
        return &table;
        DSC_GPU_FORMATS(CASE)
#undef CASE
    default:
        return nullptr;
    }
}

/* Of a stage that knows no format; NULL: it does. */
static const void *plain_function(enum dsc_gpu_stage stage)
{
    switch (stage) {
    case DSC_GPU_RESTORE:
        return dsc_gpu_restore;
    case DSC_GPU_SAVE:
        return dsc_gpu_save;
    case DSC_GPU_UNDO:
        return dsc_gpu_undo;
    default:
        return nullptr;
    }
}

struct dsc_gpu_prepared dsc_gpu_prepare(enum dsc_gpu_stage stage, const dscomm_codec_t *codec,
                                        const struct dsc_gpu_work *work,
                                        const struct dsc_gpu_call *call)
{
    const struct dsc_gpu_format format = dsc_gpu_format_of(codec, call->dtype);
    const struct dsc_gpu_kernels *const k = kernels_of(format.kind);
    const bool encodes = stage == DSC_GPU_ENCODE || stage == DSC_GPU_FINAL;
    const void *const plain = plain_function(stage);
    struct dsc_gpu_prepared launch = {};

    launch.function = plain != nullptr ? plain : k->function[stage];
    launch.n_blocks = work->n_tiles > 0 ? work->n_tiles : 1; /* one may have to end the call */
    launch.n_threads = plain != nullptr ? dsc_gpu_fp32.decode_threads
                       : encodes        ? k->encode_threads
                                        : k->decode_threads;
    launch.args = { *work, *call, format };
    return launch;
}

cudaError_t dsc_gpu_launch(const struct dsc_gpu_prepared *launch, cudaStream_t stream)
{
    void *args[] = { const_cast<struct dsc_gpu_args *>(&launch->args) };

    return cudaLaunchKernel(launch->function, dim3(launch->n_blocks), dim3(launch->n_threads), args,
                            0, stream);
}

struct cudaKernelNodeParams dsc_gpu_node_params(struct dsc_gpu_prepared *launch, void **args_out)
{
    struct cudaKernelNodeParams params = {};

    *args_out = &launch->args;
    params.func = const_cast<void *>(launch->function);
    params.gridDim = dim3(launch->n_blocks);
    params.blockDim = dim3(launch->n_threads);
    params.kernelParams = args_out;
    return params;
}
