/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What kernels (.cuh) are written in. This is the one place that knows of two compilers: nvcc,
 * which builds them for a device, and g++ with the emulator of tests/emu, which runs the same text
 * on the CPU. A kernel file includes this header first and nothing else of CUDA, and has no <<<>>>,
 * no inline PTX and no plain __shared__ arrays.
 *
 *   SHARED_ARRAY(T, name, n)      a static array of the block; name may not be used in sizeof
 *   DYNAMIC_SHARED(T, name)       the dynamic shared memory of the launch, 16-byte aligned
 *   DSC_STORE_RELEASE_SYS(p, v)   v (u32 or u64) becomes visible to the whole system after
 * everything this thread wrote before DSC_LOAD_ACQUIRE_SYS(p)       the other half
 *   DSC_GLOBAL_TIMER_NS()         nanoseconds, the same clock on all multiprocessors
 *
 * A loop that waits for another thread calls __nanosleep(): the emulator runs the others there.
 */
#ifndef DSC_KERNELS_DEVICE_H
#define DSC_KERNELS_DEVICE_H

#ifdef DSC_CUDA_EMULATED
#include <emu/cuda_emu.h>
#else

#include <cuda_runtime.h>
#include <stdint.h>

#define SHARED_ARRAY(T, name, n) __shared__ T name[n]

/* One symbol for all types: two kernels of a file may see it as different arrays. */
extern __shared__ __align__(16) unsigned char dsc_dynamic_shared[];
#define DYNAMIC_SHARED(T, name) T *const name = reinterpret_cast<T *>(dsc_dynamic_shared)

static __device__ __forceinline__ void dsc_store_release_sys(uint32_t *p, uint32_t v)
{
    asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

static __device__ __forceinline__ void dsc_store_release_sys(uint64_t *p, uint64_t v)
{
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

static __device__ __forceinline__ uint32_t dsc_load_acquire_sys(const uint32_t *p)
{
    uint32_t v;

    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

static __device__ __forceinline__ uint64_t dsc_load_acquire_sys(const uint64_t *p)
{
    uint64_t v;

    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

static __device__ __forceinline__ uint64_t dsc_global_timer_ns()
{
    uint64_t v;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(v));
    return v;
}

#define DSC_STORE_RELEASE_SYS(p, v) dsc_store_release_sys(p, v)
#define DSC_LOAD_ACQUIRE_SYS(p) dsc_load_acquire_sys(p)
#define DSC_GLOBAL_TIMER_NS() dsc_global_timer_ns()

#endif /* DSC_CUDA_EMULATED */

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#endif
