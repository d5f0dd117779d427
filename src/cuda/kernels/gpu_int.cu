/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of int8 and int4.
 */
#include "cuda/kernels/block.cuh"
#include "cuda/kernels/gpu_kernels.h"
#include "cuda/kernels/stages.cuh"

DSC_GPU_INTEGERS(DSC_GPU_DEFINE)
