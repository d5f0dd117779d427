/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels that kernels/ instantiates, compiled by g++ for the emulator.
 */
#include "kernels/block.cuh"
#include "kernels/cast.cuh"
#include "kernels/gpu_kernels.h"
#include "kernels/input.cuh"
#include "kernels/nvfp4.cuh"
#include "kernels/stages.cuh"
#include "kernels/topk.cuh"
#include "kernels/two_shot.cuh"

#define EMULATE(table, Format, kind)                     \
    EMU_KERNEL((dsc_gpu_kernel<Format, DSC_GPU_ENCODE>)) \
    EMU_KERNEL((dsc_gpu_kernel<Format, DSC_GPU_REDUCE>)) \
    EMU_KERNEL((dsc_gpu_kernel<Format, DSC_GPU_FINAL>))  \
    EMU_KERNEL((dsc_gpu_kernel<Format, DSC_GPU_DECODE>)) \
    EMU_KERNEL((dsc_gpu_kernel<Format, DSC_GPU_SUM>))    \
    EMU_KERNEL((dsc_gpu_kernel<Format, DSC_GPU_RESULT>))
DSC_GPU_FORMATS(EMULATE)
EMU_KERNEL((dsc_gpu_kernel<Fp32, DSC_GPU_RESTORE>))
EMU_KERNEL((dsc_gpu_save_kernel))
EMU_KERNEL((dsc_gpu_undo_kernel))

#define EMULATE_TWO_SHOT(table, Format, kind) EMU_KERNEL_RESIDENT((dsc_gpu_two_shot_kernel<Format>))
DSC_GPU_PLAIN(EMULATE_TWO_SHOT)
