// SPDX-License-Identifier: Apache-2.0
// The device language for g++: kernels/device.h includes this instead of CUDA's when a
// kernel is compiled for the emulator. CUDA's own host headers supply the types. Here are the
// execution model, barriers, warp operations and atomics; scalars are in emu_scalar.h, and the
// lines that make kernels known to the runtime in emu_kernel.h.
#ifndef DSC_EMU_CUDA_EMU_H
#define DSC_EMU_CUDA_EMU_H

#include <cuda_runtime_api.h>
#include <vector_types.h>
#include <vector_functions.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <algorithm>
#include <type_traits>
#include "emu/emu_exec.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __grid_constant__
#define __global__ __attribute__((visibility("default"), noinline))
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
// A static variable would survive its block and be shared by blocks that are resident together.
#define __shared__ emu_has_no_plain_shared_variables_use_SHARED_ARRAY

#define SHARED_ARRAY(T, name, n)          \
    static const char emu_key_##name = 0; \
    T *const name = static_cast<T *>(emu_shared(emu_cur, &emu_key_##name, sizeof(T) * (n)))
#define DYNAMIC_SHARED(T, name) T *const name = static_cast<T *>(emu_shared(emu_cur, nullptr, 0))

struct EmuDim {
    uint32_t x, y, z;
};
static inline EmuDim emu_dim(const uint32_t *p)
{
    return { p[0], p[1], p[2] };
}
#define threadIdx (emu_dim(emu_cur->tid))
#define blockIdx (emu_dim(emu_cur->ctaid))
#define blockDim (emu_dim(emu_cur->ntid))
#define gridDim (emu_dim(emu_cur->nctaid))
#define warpSize 32

// ---- bits ----
template <class T> static inline uint64_t emu_bits(T v)
{
    static_assert(sizeof(T) <= 8, "warp operations take at most 8 bytes");
    uint64_t bits = 0;

    memcpy(&bits, &v, sizeof(v));
    return bits;
}
template <class T> static inline T emu_value(uint64_t bits)
{
    T v;

    memcpy(static_cast<void *>(&v), &bits, sizeof(v));
    return v;
}

// ---- barriers, fences, waiting ----
static inline void __syncthreads()
{
    emu_barrier(emu_cur);
}
static inline int __syncthreads_count(int p)
{
    return static_cast<int>(emu_barrier_reduce(emu_cur, 0, p));
}
static inline int __syncthreads_and(int p)
{
    return static_cast<int>(emu_barrier_reduce(emu_cur, 1, p));
}
static inline int __syncthreads_or(int p)
{
    return static_cast<int>(emu_barrier_reduce(emu_cur, 2, p));
}
static inline void __syncwarp(unsigned mask = ~0u)
{
    uint64_t all[32];

    emu_warp_exchange(emu_cur, mask, 0, all);
}
static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
static inline void __threadfence_block()
{
    __threadfence();
}
static inline void __threadfence_system()
{
    __threadfence();
}
static inline void __nanosleep(unsigned)
{
    emu_yield(emu_cur);
}

template <class T> static inline void emu_store_release(T *p, T v)
{
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
template <class T> static inline T emu_load_acquire(const T *p)
{
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
#define DSC_STORE_RELEASE_SYS(p, v) emu_store_release<std::remove_pointer_t<decltype(p)>>(p, v)
#define DSC_LOAD_ACQUIRE_SYS(p) emu_load_acquire(p)

// ---- clocks ----
static inline uint64_t emu_clock_ns()
{
    timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}
#define DSC_GLOBAL_TIMER_NS() emu_clock_ns()
static inline long long clock64()
{
    return static_cast<long long>(emu_clock_ns());
}

// ---- warp operations ----
template <class T> static inline T emu_shuffle(unsigned mask, T v, int source)
{
    uint64_t all[32];

    emu_warp_exchange(emu_cur, mask, emu_bits(v), all);
    if (!(mask >> source & 1))
        emu_trap(emu_cur, "shuffle reads a lane outside the mask");
    return emu_value<T>(all[source]);
}
template <class T> static inline T __shfl_sync(unsigned mask, T v, int source, int width = 32)
{
    const int lane = static_cast<int>(emu_cur->lane);

    return emu_shuffle(mask, v, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32)
{
    const int lane = static_cast<int>(emu_cur->lane);
    const int source = lane ^ bits;

    return emu_shuffle(mask, v, (source & ~(width - 1)) > (lane & ~(width - 1)) ? lane : source);
}
template <class T> static inline T __shfl_down_sync(unsigned mask, T v, unsigned d, int width = 32)
{
    const int lane = static_cast<int>(emu_cur->lane);
    const int delta = static_cast<int>(d);

    return emu_shuffle(mask, v, (lane & (width - 1)) + delta >= width ? lane : lane + delta);
}
template <class T> static inline T __shfl_up_sync(unsigned mask, T v, unsigned d, int width = 32)
{
    const int lane = static_cast<int>(emu_cur->lane);
    const int delta = static_cast<int>(d);

    return emu_shuffle(mask, v, (lane & (width - 1)) < delta ? lane : lane - delta);
}
static inline unsigned __ballot_sync(unsigned mask, int p)
{
    uint64_t all[32];
    unsigned result = 0;

    emu_warp_exchange(emu_cur, mask, p != 0, all);
    for (int i = 0; i < 32; i++) {
        if (mask >> i & 1 && all[i])
            result |= 1u << i;
    }
    return result;
}
static inline int __any_sync(unsigned mask, int p)
{
    return __ballot_sync(mask, p) != 0;
}
static inline int __all_sync(unsigned mask, int p)
{
    return __ballot_sync(mask, !p) == 0;
}
template <class T, class F> static inline T emu_reduce(unsigned mask, T v, F f)
{
    uint64_t all[32];
    bool first = true;
    T result{};

    emu_warp_exchange(emu_cur, mask, emu_bits(v), all);
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1))
            continue;
        const T x = emu_value<T>(all[i]);
        result = first ? x : f(result, x);
        first = false;
    }
    return result;
}
// Integers only, as on the device.
#define EMU_REDUCE(name, type, expression)                                             \
    static inline type name(unsigned mask, type v)                                     \
    {                                                                                  \
        return emu_reduce(mask, v, [](type a, type b) -> type { return expression; }); \
    }
EMU_REDUCE(__reduce_add_sync, unsigned, a + b)
EMU_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
EMU_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
EMU_REDUCE(__reduce_min_sync, int, a < b ? a : b)
EMU_REDUCE(__reduce_max_sync, int, a > b ? a : b)
EMU_REDUCE(__reduce_and_sync, unsigned, a &b)
EMU_REDUCE(__reduce_or_sync, unsigned, a | b)
EMU_REDUCE(__reduce_xor_sync, unsigned, a ^ b)

// ---- atomics: compare-exchange on the bits, since other streams run on other threads ----
template <class T, class F> static inline T emu_atomic(T *p, F f)
{
    using U = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    static_assert(sizeof(T) == sizeof(U), "atomics take 4 or 8 bytes");
    U *const word = reinterpret_cast<U *>(p);
    U seen = __atomic_load_n(word, __ATOMIC_RELAXED);
    U next;
    T old;

    do {
        memcpy(static_cast<void *>(&old), &seen, sizeof(old));
        const T v = f(old);
        memcpy(&next, &v, sizeof(next));
    } while (
        !__atomic_compare_exchange_n(word, &seen, next, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    return old;
}
template <class T> using emu_same = std::common_type_t<T>; // no deduction from this argument
#define EMU_ATOMIC(name, expression)                                \
    template <class T> static inline T name(T *p, emu_same<T> v)    \
    {                                                               \
        return emu_atomic(p, [=](T a) -> T { return expression; }); \
    }
EMU_ATOMIC(atomicAdd, static_cast<T>(a + v))
EMU_ATOMIC(atomicSub, static_cast<T>(a - v))
EMU_ATOMIC(atomicMax, a < v ? v : a)
EMU_ATOMIC(atomicMin, v < a ? v : a)
EMU_ATOMIC(atomicExch, (static_cast<void>(a), v))
EMU_ATOMIC(atomicOr, a | v)
EMU_ATOMIC(atomicAnd, a &v)
EMU_ATOMIC(atomicXor, a ^ v)
template <class T> static inline T atomicCAS(T *p, emu_same<T> expected, emu_same<T> v)
{
    return emu_atomic(p, [=](T a) { return a == expected ? v : a; });
}

#include "emu/emu_scalar.h"
#include "emu/emu_kernel.h"

#endif
