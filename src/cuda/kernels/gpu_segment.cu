/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the formats with segments: nvfp4 and topk.
 */
#include "cuda/kernels/nvfp4.cuh"
#include "cuda/kernels/topk.cuh"
#include "cuda/kernels/gpu_kernels.h"
#include "cuda/kernels/stages.cuh"

DSC_GPU_SEGMENTS(DSC_GPU_DEFINE)
