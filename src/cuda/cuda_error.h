/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors of the CUDA runtime as statuses.
 */
#ifndef DSC_CUDA_ERROR_H
#define DSC_CUDA_ERROR_H

#include <cuda_runtime_api.h>

#include "core/core.h"

/* Takes the runtime's error away, so that the caller does not find it again. */
static inline dscomm_status_t dsc_cuda_fail(cudaError_t error, const char *what, const char *file,
                                            int line)
{
    (void)cudaGetLastError();
    dsc_fail_at(file, line, "%s: %s", what, cudaGetErrorString(error));
    return error == cudaErrorMemoryAllocation ? DSCOMM_ERR_NO_MEMORY : DSCOMM_ERR_SYSTEM;
}

/* Returns from a function with dscomm_status_t. */
#define CUDA_TRY(expr)                                               \
    do {                                                             \
        const cudaError_t error_ = (expr);                           \
        if (error_ != cudaSuccess)                                   \
            return dsc_cuda_fail(error_, #expr, __FILE__, __LINE__); \
    } while (0)

#endif
