/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of fp8.
 */
#include "kernels/block.cuh"
#include "kernels/gpu_kernels.h"
#include "kernels/stages.cuh"

DSC_GPU_FLOATS(DSC_GPU_DEFINE)
