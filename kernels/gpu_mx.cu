/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the formats of OCP MX.
 */
#include "kernels/block.cuh"
#include "kernels/gpu_kernels.h"
#include "kernels/stages.cuh"

DSC_GPU_MX(DSC_GPU_DEFINE)
