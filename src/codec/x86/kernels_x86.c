/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which x86 spelling of each primitive runs. Compiled without ISA flags, so that it can run on any
 * CPU; the primitives' files are compiled with the flags of their level.
 */
#include "codec/kernels.h"

void dsc_kernels_init_cpu(struct dsc_kernels *k, uint32_t cpu)
{
#define USE_AVX2(name, type) k->name = dsc_##name##_avx2;
#define USE_AVX512(name, type) k->name = dsc_##name##_avx512;
    if ((cpu & DSC_CPU_AVX2) != 0) {
        DSC_KERNELS_MAP(USE_AVX2)
    }
    if ((cpu & DSC_CPU_AVX512) != 0) {
        DSC_KERNELS_MAP(USE_AVX512)
    }
#undef USE_AVX2
#undef USE_AVX512
}
