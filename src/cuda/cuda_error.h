/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors of the CUDA runtime as statuses.
 */
#ifndef DSC_CUDA_ERROR_H
#define DSC_CUDA_ERROR_H

#include <cuda_runtime_api.h>
#include <stdarg.h>
#include <stdio.h>

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

/*
 * What was asked for cannot be done, and whoever asked has another way: nothing has failed, so
 * nothing is logged. The thread's last error says why.
 */
__attribute__((format(printf, 1, 2))) static inline dscomm_status_t dsc_refuse(const char *fmt, ...)
{
    char text[256];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    dsc_set_last_error(text);
    return DSCOMM_ERR_UNSUPPORTED;
}

#endif
