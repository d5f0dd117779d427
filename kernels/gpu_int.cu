/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of int8 and int4.
 */
#include "kernels/block.cuh"
#include "kernels/gpu_kernels.h"
#include "kernels/stages.cuh"

DSC_GPU_INTEGERS(DSC_GPU_DEFINE)
