/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which spelling of each primitive runs on 64-bit ARM.
 */
#include "codec/kernels.h"

void dsc_kernels_init_cpu(struct dsc_kernels *k, uint32_t cpu)
{
#define USE_NEON(name, type) k->name = dsc_##name##_neon;
    if ((cpu & DSC_CPU_NEON) != 0) {
        DSC_KERNELS_MAP(USE_NEON)
    }
#undef USE_NEON
}
