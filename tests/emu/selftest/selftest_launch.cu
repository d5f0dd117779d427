/* SPDX-License-Identifier: Apache-2.0 */
/* Launches the kernels of the self-test: compiled by nvcc, run by the emulator or a GPU. */
#include "emu/selftest/selftest_kernels.cuh"
#include "emu/selftest/selftest.h"

void launch_quant(const float *x, float *r, int8_t *q, float *scale, int n, cudaStream_t s)
{
    quant_ef_i8<<<(n + QUANT_BLOCK - 1) / QUANT_BLOCK, QUANT_BLOCK, 0, s>>>(x, r, q, scale, n);
}

template <class T>
static void cast(const float *x, void *y, int n, unsigned *negatives, cudaStream_t s)
{
    cast_count<T>
        <<<(n + 255) / 256, 256, 256 * sizeof(float), s>>>(x, static_cast<T *>(y), n, negatives);
}

void launch_cast(Cast type, const float *x, void *y, int n, unsigned *negatives, cudaStream_t s)
{
    if (type == Cast::HALF)
        cast<__half>(x, y, n, negatives, s);
    else if (type == Cast::BFLOAT16)
        cast<__nv_bfloat16>(x, y, n, negatives, s);
    else
        cast<__nv_fp8_e4m3>(x, y, n, negatives, s);
}

void launch_scalar_ops(const uint32_t *in, uint32_t *out, int n, cudaStream_t s)
{
    scalar_ops<<<(n + 63) / 64, 64, 0, s>>>(in, out, n);
}

void launch_warp_ops(const uint32_t *in, uint32_t *out, cudaStream_t s)
{
    warp_ops<<<1, 32, 0, s>>>(in, out);
}

void launch_atomic_ops(uint32_t *words, unsigned long long *wide, int blocks, int threads,
                       cudaStream_t s)
{
    atomic_ops<<<blocks, threads, 0, s>>>(words, wide);
}

void launch_add(int *p, int v, int n, cudaStream_t s)
{
    add_int<<<(n + 63) / 64, 64, 0, s>>>(p, v, n);
}

void launch_add_threads(int *p, int v, int n, int threads, cudaStream_t s)
{
    add_int<<<1, threads, 0, s>>>(p, v, n);
}

void launch_mul(int *p, int v, int n, cudaStream_t s)
{
    mul_int<<<(n + 63) / 64, 64, 0, s>>>(p, v, n);
}

void launch_add_step(int *p, int n, cudaStream_t s)
{
    add_step<<<(n + 63) / 64, 64, 0, s>>>(p, n);
}

void launch_meet(uint32_t *arrived, uint32_t n_parties, uint32_t rounds, uint64_t *done, int blocks,
                 int threads, cudaStream_t s)
{
    meet<<<blocks, threads, 0, s>>>(arrived, n_parties, rounds, done);
}

void launch_meet_unmarked(uint32_t *arrived, int blocks, cudaStream_t s)
{
    meet_unmarked<<<blocks, 32, 0, s>>>(arrived);
}

cudaError_t set_step(int v)
{
    return cudaMemcpyToSymbol(step, &v, sizeof(v));
}

cudaError_t get_step(int *v)
{
    return cudaMemcpyFromSymbol(v, step, sizeof(*v));
}

const void *add_function()
{
    return reinterpret_cast<const void *>(add_int);
}

void launch_bug(Bug bug, void *p, int n)
{
    float *const f = static_cast<float *>(p);
    int *const i = static_cast<int *>(p);

    switch (bug) {
    case Bug::GLOBAL:
        bad_global<<<1, 64>>>(f, n);
        break;
    case Bug::READ:
        bad_read<<<1, 1>>>(f, f, n);
        break;
    case Bug::STATIC_SHARED:
        bad_static_shared<<<1, 64>>>(f);
        break;
    case Bug::DYNAMIC_SHARED:
        bad_dynamic_shared<<<1, 64, 64 * sizeof(float)>>>(f);
        break;
    case Bug::DIVERGENCE:
        bad_divergence<<<1, 64>>>(f);
        break;
    case Bug::SHUFFLE:
        bad_shuffle<<<1, 64>>>(f);
        break;
    case Bug::BARRIER:
        bad_barrier<<<1, 64>>>(i);
        break;
    case Bug::INITIAL:
        bad_initial<<<1, 64>>>(i);
        break;
    case Bug::ALIGN:
        bad_align<<<1, 1>>>(static_cast<unsigned char *>(p), static_cast<uint4 *>(p));
        break;
    }
}
