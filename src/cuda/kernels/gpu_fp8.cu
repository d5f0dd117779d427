/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of fp8.
 */
#include "cuda/kernels/block.cuh"
#include "cuda/kernels/gpu_kernels.h"
#include "cuda/kernels/stages.cuh"

DSC_GPU_FLOATS(DSC_GPU_DEFINE)
