// SPDX-License-Identifier: Apache-2.0
// Errors: remembered per thread, sticky after a fault, and their names.
#include "emu/emu_rt.h"

static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t ret(cudaError_t e)
{
    if (e == cudaSuccess)
        return e;
    last_error = e;
    emu_log("-> %s", cudaGetErrorName(e));
    return e;
}

API cudaError_t cudaGetLastError()
{
    const cudaError_t e = last_error;

    last_error = cudaSuccess;
    return sticky_error ? sticky() : e;
}

API cudaError_t cudaPeekAtLastError()
{
    return sticky_error ? sticky() : last_error;
}

#define NAME(n) \
    {           \
        n, #n   \
    }
static const struct {
    cudaError_t error;
    const char *name;
} names[] = {
    NAME(cudaSuccess),
    NAME(cudaErrorInvalidValue),
    NAME(cudaErrorMemoryAllocation),
    NAME(cudaErrorInvalidConfiguration),
    NAME(cudaErrorMissingConfiguration),
    NAME(cudaErrorInvalidSymbol),
    NAME(cudaErrorInvalidDevice),
    NAME(cudaErrorInvalidDeviceFunction),
    NAME(cudaErrorNoKernelImageForDevice),
    NAME(cudaErrorDeviceUninitialized),
    NAME(cudaErrorMapBufferObjectFailed),
    NAME(cudaErrorHostMemoryAlreadyRegistered),
    NAME(cudaErrorHostMemoryNotRegistered),
    NAME(cudaErrorPeerAccessAlreadyEnabled),
    NAME(cudaErrorPeerAccessNotEnabled),
    NAME(cudaErrorPeerAccessUnsupported),
    NAME(cudaErrorCooperativeLaunchTooLarge),
    NAME(cudaErrorIllegalAddress),
    NAME(cudaErrorLaunchTimeout),
    NAME(cudaErrorNotReady),
    NAME(cudaErrorNotPermitted),
    NAME(cudaErrorNotSupported),
    NAME(cudaErrorIllegalState),
    NAME(cudaErrorInvalidResourceHandle),
    NAME(cudaErrorCapturedEvent),
    NAME(cudaErrorStreamCaptureUnsupported),
    NAME(cudaErrorStreamCaptureInvalidated),
    NAME(cudaErrorStreamCaptureMerge),
    NAME(cudaErrorStreamCaptureUnmatched),
    NAME(cudaErrorStreamCaptureUnjoined),
    NAME(cudaErrorStreamCaptureIsolation),
    NAME(cudaErrorStreamCaptureImplicit),
    NAME(cudaErrorStreamCaptureWrongThread),
    NAME(cudaErrorGraphExecUpdateFailure),
};

API const char *cudaGetErrorName(cudaError_t e)
{
    for (const auto &n : names) {
        if (n.error == e)
            return n.name;
    }
    return "cudaError(other)";
}

API const char *cudaGetErrorString(cudaError_t e)
{
    return cudaGetErrorName(e);
}
