/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVTX ranges, for profilers: free where none is attached.
 */
#ifndef DSC_CUDA_RANGES_H
#define DSC_CUDA_RANGES_H

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

static inline void dsc_range_push(const char *name)
{
    nvtxRangePushA(name);
}

static inline void dsc_range_pop(void)
{
    nvtxRangePop();
}

#else /* a toolkit without its profiling headers */

static inline void dsc_range_push(const char *name)
{
    (void)name;
}

static inline void dsc_range_pop(void)
{
}

#endif
#endif
