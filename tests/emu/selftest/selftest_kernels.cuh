/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the emulator's self-test; those of the last section hold planted bugs. */
#ifndef DSC_EMU_SELFTEST_KERNELS_CUH
#define DSC_EMU_SELFTEST_KERNELS_CUH

#include "kernels/device.h"

#define QUANT_BLOCK 256 /* elements per scale */
#define SCALAR_OPS 24   /* words per thread that scalar_ops() writes */
#define WARP_OPS 12

/* e = x + r; scale = amax(e) / 127 per block; q = rn(e / scale); r = e - q * scale */
__global__ void __launch_bounds__(QUANT_BLOCK)
    quant_ef_i8(const float *x, float *r, int8_t *q, float *scale, int n)
{
    SHARED_ARRAY(float, warp_max, QUANT_BLOCK / 32);
    SHARED_ARRAY(float, block_scale, 1);
    const int i = blockIdx.x * QUANT_BLOCK + threadIdx.x;
    const float e = i < n ? __fadd_rn(x[i], r[i]) : 0.0f;
    float m = fabsf(e);

    for (int o = 16; o > 0; o >>= 1)
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
    if ((threadIdx.x & 31) == 0)
        warp_max[threadIdx.x >> 5] = m;
    __syncthreads();
    if (threadIdx.x < 32) {
        float v = threadIdx.x < QUANT_BLOCK / 32 ? warp_max[threadIdx.x] : 0.0f;

        for (int o = 4; o > 0; o >>= 1)
            v = fmaxf(v, __shfl_down_sync(0xffffffffu, v, o));
        if (threadIdx.x == 0)
            scale[blockIdx.x] = block_scale[0] = v > 0.0f ? __fdiv_rn(v, 127.0f) : 1.0f;
    }
    __syncthreads();
    if (i < n) {
        const int v = max(-127, min(127, __float2int_rn(__fdiv_rn(e, block_scale[0]))));

        q[i] = (int8_t)v;
        r[i] = __fmaf_rn(-(float)v, block_scale[0], e);
    }
}

template <class T> __device__ inline T cast_to(float v);
template <> __device__ inline __half cast_to<__half>(float v)
{
    return __float2half_rn(v);
}
template <> __device__ inline __nv_bfloat16 cast_to<__nv_bfloat16>(float v)
{
    return __float2bfloat16_rn(v);
}
template <> __device__ inline __nv_fp8_e4m3 cast_to<__nv_fp8_e4m3>(float v)
{
    return __nv_fp8_e4m3(v);
}

/* Dynamic shared memory, a barrier that matters, a ballot and an atomic. */
template <class T> __global__ void cast_count(const float *x, T *y, int n, unsigned *negatives)
{
    DYNAMIC_SHARED(float, buffer);
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int mirror = blockDim.x - 1 - threadIdx.x;
    const int j = blockIdx.x * blockDim.x + mirror;

    buffer[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    const float v = buffer[mirror];
    if (j < n)
        y[j] = cast_to<T>(v);
    const unsigned ballot = __ballot_sync(0xffffffffu, v < 0.0f && j < n);
    if ((threadIdx.x & 31) == 0)
        atomicAdd(negatives, (unsigned)__popc(ballot));
}

/* out[thread][SCALAR_OPS]: the intrinsics on one value, each of which the host can tell. */
__global__ void scalar_ops(const uint32_t *in, uint32_t *out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= n)
        return;
    const uint32_t a = in[2 * i], b = in[2 * i + 1];
    const float x = __uint_as_float(a), y = __uint_as_float(b);
    uint32_t *o = out + SCALAR_OPS * i;

    o[0] = (uint32_t)__popc(a);
    o[1] = (uint32_t)__clz((int)a);
    o[2] = (uint32_t)__ffs((int)a);
    o[3] = __brev(a);
    o[4] = __umulhi(a, b);
    o[5] = __byte_perm(a, b, 0x3715);
    o[6] = __funnelshift_l(a, b, b & 31);
    o[7] = __funnelshift_r(a, b, a & 31);
    o[8] = (uint32_t)__float2int_rn(x);
    o[9] = (uint32_t)__float2int_rz(x);
    o[10] = __float2uint_rn(x);
    o[11] = __float_as_uint(__int2float_rn((int)a));
    o[12] = __float_as_uint(__uint2float_rn(a));
    o[13] = __float_as_uint(rintf(x));
    o[14] = (uint32_t)(__popcll(((uint64_t)a << 32) | b) + __clzll((long long)b));
    o[15] = __float_as_uint(__fmul_rn(x, y));
    o[16] = __float_as_uint(__fadd_rn(x, y));
    o[17] = __float_as_uint(__fsub_rn(x, y));
    o[18] = __float_as_uint(__fdiv_rn(x, y));
    o[19] = __float_as_uint(__fmaf_rn(x, y, x));
    o[20] = __float_as_uint(__frcp_rn(x));
    o[21] = min(a, b);
    o[22] = (uint32_t)max((int)a, (int)b);
    o[23] = (uint32_t)(__brevll(((uint64_t)a << 32) | b) >> 32);
}

/* out[lane][WARP_OPS] of one full warp. */
__global__ void warp_ops(const uint32_t *in, uint32_t *out)
{
    const uint32_t v = in[threadIdx.x];
    uint32_t *o = out + WARP_OPS * threadIdx.x;

    o[0] = __shfl_sync(0xffffffffu, v, 5);
    o[1] = __shfl_xor_sync(0xffffffffu, v, 9);
    o[2] = __shfl_down_sync(0xffffffffu, v, 3);
    o[3] = __shfl_up_sync(0xffffffffu, v, 3);
    o[4] = __ballot_sync(0xffffffffu, v & 1);
    o[5] = (uint32_t)__any_sync(0xffffffffu, v == in[7]);
    o[6] = (uint32_t)__all_sync(0xffffffffu, v == in[7]);
    o[7] = __reduce_max_sync(0xffffffffu, v);
    o[8] = __reduce_add_sync(0xffffffffu, v);
    o[9] = __shfl_sync(0xffffffffu, v, 3, 8);
    o[10] = (uint32_t)__syncthreads_count(v & 1);
    o[11] = (uint32_t)__syncthreads_or(threadIdx.x == 31 ? 4 : 0);
}

/* All threads on the same words. */
__global__ void atomic_ops(uint32_t *words, unsigned long long *wide)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

    atomicAdd(&words[0], i);
    atomicMax(&words[1], i);
    atomicMin(&words[2], i);
    atomicOr(&words[3], 1u << (i & 31));
    atomicAdd(wide, 1ull << 33);
    while (atomicCAS(&words[4], 0u, 1u) != 0u) /* a lock */
        __nanosleep(20);
    words[5]++;
    __threadfence();
    atomicExch(&words[4], 0u);
}

__constant__ int table[4] = { 3, 1, 4, 1 };
__device__ int step;
__global__ void add_int(int *p, int v, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        p[i] += v;
}
__global__ void mul_int(int *p, int v, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        p[i] *= v;
}
__global__ void add_step(int *p, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        p[i] += step + table[i & 3];
}

/*
 * Every block adds one to each of rounds * gridDim counters in turn and waits until all blocks of
 * both parties have: a barrier across blocks and, when two launches share arrived, across launches.
 */
__global__ void meet(uint32_t *arrived, uint32_t n_parties, uint32_t rounds, uint64_t *done)
{
    SHARED_ARRAY(uint32_t, seen, 1);

    for (uint32_t r = 0; r < rounds; r++) {
        if (threadIdx.x == 0) {
            __threadfence_system();
            atomicAdd(&arrived[r], 1u);
            while (DSC_LOAD_ACQUIRE_SYS(&arrived[r]) < gridDim.x * n_parties)
                __nanosleep(100);
            seen[0] = r + 1;
        }
        __syncthreads();
        if (seen[0] != r + 1)
            return;
        __syncthreads();
    }
    if (threadIdx.x == 0 && blockIdx.x == 0)
        DSC_STORE_RELEASE_SYS(done, (uint64_t)rounds);
}
/* The same text, but its module does not say that its blocks wait for each other. */
__global__ void meet_unmarked(uint32_t *arrived)
{
    atomicAdd(arrived, 1u);
    while (DSC_LOAD_ACQUIRE_SYS(arrived) < gridDim.x * blockDim.x)
        __nanosleep(100);
}

/* ---- planted bugs ---- */
__global__ void bad_global(float *p, int n)
{
    p[n + threadIdx.x] = 1.0f;
}
__global__ void bad_read(const float *p, float *out, int n)
{
    out[0] = p[n];
}
__global__ void bad_static_shared(float *p)
{
    SHARED_ARRAY(float, s, 64);

    s[threadIdx.x + 1] = 1.0f;
    __syncthreads();
    p[threadIdx.x] = s[threadIdx.x];
}
__global__ void bad_dynamic_shared(float *p)
{
    DYNAMIC_SHARED(float, s);

    s[threadIdx.x + 1] = 1.0f;
    __syncthreads();
    p[threadIdx.x] = s[threadIdx.x];
}
__global__ void bad_divergence(float *p)
{
    if (threadIdx.x < 16)
        p[0] = __shfl_sync(0xffffffffu, 1.0f, 0);
    __syncthreads();
}
__global__ void bad_shuffle(float *p)
{
    if (threadIdx.x < 16)
        p[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);
}
__global__ void bad_barrier(int *p) /* the barrier between writing and reading is missing */
{
    SHARED_ARRAY(int, s, 64);

    s[threadIdx.x] = (int)threadIdx.x;
    p[threadIdx.x] = s[(threadIdx.x + 33) % 64];
}
__global__ void bad_initial(int *p) /* shared memory was never written */
{
    SHARED_ARRAY(int, s, 64);

    p[threadIdx.x] = s[threadIdx.x];
}
__global__ void bad_align(const unsigned char *p, uint4 *out)
{
    out[0] = __ldg((const uint4 *)(p + 4));
}

#endif
