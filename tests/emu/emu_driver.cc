// SPDX-License-Identifier: Apache-2.0
// The few driver functions that programs reach through cudaGetDriverEntryPoint.
#include "emu/emu_rt.h"
#include <cuda.h>
#include <stdio.h>

static CUresult cu_device_get(CUdevice *d, int ordinal)
{
    if (ordinal < 0 || ordinal >= device_count())
        return CUDA_ERROR_INVALID_DEVICE;
    *d = ordinal;
    return CUDA_SUCCESS;
}

static CUresult cu_device_attribute(int *v, CUdevice_attribute a, CUdevice d)
{
    return (CUresult)device_attribute(v, a, d); // both enums use the same numbers
}

static CUresult cu_error_text(CUresult r, const char **s)
{
    *s = cudaGetErrorName((cudaError_t)r);
    return CUDA_SUCCESS;
}

static CUresult cu_address_range(CUdeviceptr *base, size_t *n, CUdeviceptr p)
{
    std::lock_guard<std::mutex> l(memory_lock);
    const Alloc *a = find_alloc((void *)p);
    if (!a)
        return CUDA_ERROR_NOT_FOUND;
    if (base)
        *base = a->p;
    if (n)
        *n = a->n;
    return CUDA_SUCCESS;
}

static CUresult cu_pointer_attribute(void *o, CUpointer_attribute a, CUdeviceptr p)
{
    cudaPointerAttributes at;
    cudaPointerGetAttributes(&at, (void *)p);
    if (at.type == cudaMemoryTypeUnregistered)
        return CUDA_ERROR_INVALID_VALUE;
    if (a == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)
        *(int *)o = at.device;
    else if (a == CU_POINTER_ATTRIBUTE_MEMORY_TYPE)
        *(unsigned *)o = at.type == cudaMemoryTypeHost ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    else
        return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

static CUresult cu_ctx_create(CUcontext *c, CUctxCreateParams *, unsigned, CUdevice d)
{
    *c = (CUcontext)(uintptr_t)(d + 1);
    return CUDA_SUCCESS;
}

static CUresult cu_ctx_destroy(CUcontext)
{
    return CUDA_SUCCESS;
}

static CUresult cu_ctx_get_current(CUcontext *c)
{
    *c = (CUcontext)(uintptr_t)(current_device + 1);
    return CUDA_SUCCESS;
}

static CUresult cu_ctx_set_current(CUcontext c)
{
    if (c)
        current_device = (int)(uintptr_t)c - 1;
    return CUDA_SUCCESS;
}

static CUresult cu_ctx_gecurrent_deviceice(CUdevice *d)
{
    *d = current_device;
    return CUDA_SUCCESS;
}

static const uint8_t *packed_args(void **extra)
{
    for (; extra && extra[0] != CU_LAUNCH_PARAM_END; extra += 2)
        if (extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            return (const uint8_t *)extra[1];
    return nullptr;
}

static CUresult cu_launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned dyn, CUstream s, void **args,
                          void **extra)
{
    return (CUresult)launch((Func *)f, { gx, gy, gz }, { bx, by, bz }, args, dyn, s,
                            packed_args(extra));
}

static CUresult cu_launch_ex(const CUlaunchConfig *c, CUfunction f, void **args, void **extra)
{
    return cu_launch(f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,
                     c->blockDimZ, c->sharedMemBytes, c->hStream, args, extra);
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **p, unsigned,
                                                 unsigned long long,
                                                 cudaDriverEntryPointQueryResult *result)
{
    static const std::map<std::string, void *> known = {
        { "cuDeviceGet", (void *)cu_device_get },
        { "cuDeviceGetAttribute", (void *)cu_device_attribute },
        { "cuGetErrorString", (void *)cu_error_text },
        { "cuGetErrorName", (void *)cu_error_text },
        { "cuMemGetAddressRange", (void *)cu_address_range },
        { "cuPointerGetAttribute", (void *)cu_pointer_attribute },
        { "cuCtxCreate", (void *)cu_ctx_create },
        { "cuCtxDestroy", (void *)cu_ctx_destroy },
        { "cuCtxGetCurrent", (void *)cu_ctx_get_current },
        { "cuCtxSetCurrent", (void *)cu_ctx_set_current },
        { "cuCtxGetDevice", (void *)cu_ctx_gecurrent_deviceice },
        { "cuLaunchKernel", (void *)cu_launch },
        { "cuLaunchKernelEx", (void *)cu_launch_ex },
    };
    auto it = known.find(name);
    *p = it == known.end() ? nullptr : it->second;
    emu_log("driver entry %s: %s", name, *p ? "ok" : "absent");
    if (result)
        *result = *p ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

API cudaError_t cudaGetDriverEntryPoint(const char *name, void **p, unsigned long long flags,
                                        cudaDriverEntryPointQueryResult *result)
{
    return cudaGetDriverEntryPointByVersion(name, p, 13000, flags, result);
}
