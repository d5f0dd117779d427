/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of the formats without scales, and of the stage that has no format.
 */
#include "kernels/cast.cuh"
#include "kernels/gpu_kernels.h"
#include "kernels/stages.cuh"

DSC_GPU_CASTS(DSC_GPU_DEFINE)
const void *const dsc_gpu_restore = DSC_GPU_FUNCTION(Fp32, DSC_GPU_RESTORE);
