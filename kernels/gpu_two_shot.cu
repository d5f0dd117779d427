/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two-shot kernels of all formats but those with segments.
 */
#include "kernels/block.cuh"
#include "kernels/cast.cuh"
#include "kernels/gpu_kernels.h"
#include "kernels/two_shot.cuh"

static_assert(sizeof(dsc_two_shot_args) <= 4096, "what a kernel's arguments may be");

extern "C" const void *dsc_two_shot_function(const dscomm_codec_t *codec, dscomm_dtype_t dtype)
{
    switch (dsc_gpu_format_of(codec, dtype).kind) {
#define CASE(table, Format, kind) \
    case kind:                    \
        return reinterpret_cast<const void *>(dsc_gpu_two_shot_kernel<Format>);
        DSC_GPU_PLAIN(CASE)
#undef CASE
    default:
        return nullptr;
    }
}
