/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which spelling of each primitive runs.
 */
#include "codec/kernels.h"

#include <pthread.h>

void dsc_kernels_init(struct dsc_kernels *k, uint32_t cpu)
{
#define USE_C(name, type) k->name = dsc_##name##_c;
    DSC_KERNELS_MAP(USE_C)
#undef USE_C
#if defined(__x86_64__) || defined(__aarch64__)
    dsc_kernels_init_cpu(k, cpu);
#else
    (void)cpu;
#endif
}

static struct dsc_kernels chosen;
static pthread_once_t chosen_once = PTHREAD_ONCE_INIT;

static void choose(void)
{
    dsc_kernels_init(&chosen, dsc_cpu_features());
}

const struct dsc_kernels *dsc_kernels_get(void)
{
    (void)pthread_once(&chosen_once, choose);
    return &chosen;
}
