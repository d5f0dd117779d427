/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data types of the caller's vectors. Everything inside is float32: elements are widened on the way
 * in, which is exact, and rounded once on the way out.
 */
#include "codec/codec.h"
#include "codec/kernels.h"

#include <string.h>

void dsc_dtype_load(dscomm_dtype_t dtype, float *dst, const void *bits, size_t n)
{
    switch (dtype) {
    case DSCOMM_FLOAT32:
        if (dst != bits && n > 0)
            memcpy(dst, bits, n * sizeof(float));
        return;
    case DSCOMM_FLOAT16:
        dsc_kernels_get()->f16_load(dst, bits, n);
        return;
    case DSCOMM_BFLOAT16:
        dsc_kernels_get()->bf16_load(dst, bits, n);
        return;
    }
    DSC_ASSERT(dsc_dtype_bytes(dtype) != 0); /* callers check data types */
}

void dsc_dtype_store(dscomm_dtype_t dtype, void *bits, const float *src, size_t n)
{
    switch (dtype) {
    case DSCOMM_FLOAT32:
        dsc_kernels_get()->f32_store(bits, src, n);
        return;
    case DSCOMM_FLOAT16:
        dsc_kernels_get()->f16_store(bits, src, n);
        return;
    case DSCOMM_BFLOAT16:
        dsc_kernels_get()->bf16_store(bits, src, n);
        return;
    }
    DSC_ASSERT(dsc_dtype_bytes(dtype) != 0); /* callers check data types */
}
