/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the formats with segments: nvfp4 and topk.
 */
#include "kernels/nvfp4.cuh"
#include "kernels/topk.cuh"
#include "kernels/gpu_kernels.h"
#include "kernels/stages.cuh"

DSC_GPU_SEGMENTS(DSC_GPU_DEFINE)
