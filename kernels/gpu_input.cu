/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels that keep the input of in-place calls.
 */
#include "kernels/gpu_kernels.h"
#include "kernels/input.cuh"

const void *const dsc_gpu_save = reinterpret_cast<const void *>(dsc_gpu_save_kernel);
const void *const dsc_gpu_undo = reinterpret_cast<const void *>(dsc_gpu_undo_kernel);
