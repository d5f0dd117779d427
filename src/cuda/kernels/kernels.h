/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/cuda/kernels: which kernels there are, and how the files that instantiate them
 * hand them to gpu_launch.cu.
 */
#ifndef DSC_CUDA_KERNELS_H
#define DSC_CUDA_KERNELS_H

#include "cuda/kernels/stage.h"

/* The kernels of a kind of format. */
struct dsc_gpu_kernels {
    const void *function[DSC_GPU_RESTORE]; /* by stage */
    unsigned encode_threads, decode_threads;
};

/* clang-format off */
/* X(table, class of the format, kind) */
#define DSC_GPU_CASTS(X)                                            \
    X(dsc_gpu_fp32,       Fp32,            DSC_GPU_KIND_FP32)       \
    X(dsc_gpu_fp16,       Fp16,            DSC_GPU_KIND_FP16)       \
    X(dsc_gpu_bf16,       Bf16,            DSC_GPU_KIND_BF16)
#define DSC_GPU_INTEGERS(X)                                         \
    X(dsc_gpu_int8,       FormatInt8,      DSC_GPU_KIND_INT8)
/* clang-format on */

#define DSC_GPU_FORMATS(X) DSC_GPU_CASTS(X) DSC_GPU_INTEGERS(X)

#define DSC_GPU_DECLARE(table, Format, kind) extern const struct dsc_gpu_kernels table;
DSC_GPU_FORMATS(DSC_GPU_DECLARE)
#undef DSC_GPU_DECLARE
extern const void *const dsc_gpu_restore; /* the stage without a format */

/* The address of a kernel. */
#define DSC_GPU_FUNCTION(Format, stage) \
    reinterpret_cast<const void *>(dsc_gpu_kernel<Format, stage>)

/* X of DSC_GPU_FORMATS: instantiates all stages of a format. */
#define DSC_GPU_DEFINE(table, Format, kind)                                                   \
    const struct dsc_gpu_kernels table = {                                                    \
        { DSC_GPU_FUNCTION(Format, DSC_GPU_ENCODE), DSC_GPU_FUNCTION(Format, DSC_GPU_REDUCE), \
          DSC_GPU_FUNCTION(Format, DSC_GPU_FINAL), DSC_GPU_FUNCTION(Format, DSC_GPU_DECODE),  \
          DSC_GPU_FUNCTION(Format, DSC_GPU_SUM), DSC_GPU_FUNCTION(Format, DSC_GPU_RESULT) },  \
        Format::kThreads,                                                                     \
        Format::kDecodeThreads,                                                               \
    };

#endif
