/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the formats of OCP MX.
 */
#include "cuda/kernels/block.cuh"
#include "cuda/kernels/gpu_kernels.h"
#include "cuda/kernels/stages.cuh"

DSC_GPU_MX(DSC_GPU_DEFINE)
