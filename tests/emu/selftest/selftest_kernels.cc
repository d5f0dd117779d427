// SPDX-License-Identifier: Apache-2.0
// The kernels of selftest_kernels.cuh, compiled by g++.
#include "emu/selftest/selftest_kernels.cuh"

EMU_KERNEL((quant_ef_i8))
EMU_KERNEL((cast_count<__half>))
EMU_KERNEL((cast_count<__nv_bfloat16>))
EMU_KERNEL((cast_count<__nv_fp8_e4m3>))
EMU_KERNEL((scalar_ops))
EMU_KERNEL((warp_ops))
EMU_KERNEL((atomic_ops))
EMU_KERNEL((add_int))
EMU_KERNEL((mul_int))
EMU_KERNEL((add_step))
EMU_KERNEL_RESIDENT((meet))
EMU_KERNEL((meet_unmarked))
EMU_SYMBOL(step)
EMU_SYMBOL(table)

EMU_KERNEL((bad_global))
EMU_KERNEL((bad_read))
EMU_KERNEL((bad_static_shared))
EMU_KERNEL((bad_dynamic_shared))
EMU_KERNEL((bad_divergence))
EMU_KERNEL((bad_shuffle))
EMU_KERNEL((bad_barrier))
EMU_KERNEL((bad_initial))
EMU_KERNEL((bad_align))
