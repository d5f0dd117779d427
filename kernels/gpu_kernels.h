/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to kernels/: which kernels there are, and how the files that instantiate them hand them
 * to gpu_launch.cu.
 */
#ifndef DSC_KERNELS_GPU_KERNELS_H
#define DSC_KERNELS_GPU_KERNELS_H

#include "kernels/stage.h"

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
    X(dsc_gpu_int8,       FormatInt8,      DSC_GPU_KIND_INT8)       \
    X(dsc_gpu_int4,       FormatInt4,      DSC_GPU_KIND_INT4)
#define DSC_GPU_FLOATS(X)                                           \
    X(dsc_gpu_e4m3,       FormatE4m3,      DSC_GPU_KIND_E4M3)       \
    X(dsc_gpu_e5m2,       FormatE5m2,      DSC_GPU_KIND_E5M2)
#define DSC_GPU_MX(X)                                               \
    X(dsc_gpu_mxfp8,      FormatMxfp8,     DSC_GPU_KIND_MXFP8)      \
    X(dsc_gpu_mxfp8_e5m2, FormatMxfp8E5m2, DSC_GPU_KIND_MXFP8_E5M2) \
    X(dsc_gpu_mxfp4,      FormatMxfp4,     DSC_GPU_KIND_MXFP4)      \
    X(dsc_gpu_mxint8,     FormatMxint8,    DSC_GPU_KIND_MXINT8)
#define DSC_GPU_SEGMENTS(X)                                         \
    X(dsc_gpu_nvfp4,      Nvfp4,           DSC_GPU_KIND_NVFP4)      \
    X(dsc_gpu_topk,       Topk,            DSC_GPU_KIND_TOPK)
#define DSC_GPU_PLAIN(X)                                            \
    DSC_GPU_CASTS(X)                                                \
    DSC_GPU_INTEGERS(X)                                             \
    DSC_GPU_FLOATS(X)                                               \
    DSC_GPU_MX(X)
#define DSC_GPU_FORMATS(X)                                          \
    DSC_GPU_PLAIN(X)                                                \
    DSC_GPU_SEGMENTS(X)
/* clang-format on */

#define DSC_GPU_DECLARE(table, Format, kind) extern const struct dsc_gpu_kernels table;
DSC_GPU_FORMATS(DSC_GPU_DECLARE)
#undef DSC_GPU_DECLARE
extern const void *const dsc_gpu_restore, *const dsc_gpu_save, *const dsc_gpu_undo; /* no format */

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
