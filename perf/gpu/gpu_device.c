/* SPDX-License-Identifier: Apache-2.0 */
/* See gpu.h. */
#include "gpu/gpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_ROUNDS 64

void gpu_die(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    (void)vfprintf(stderr, fmt, ap);
    va_end(ap);
    (void)fputc('\n', stderr);
    exit(1);
}

void gpu_must(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        gpu_die("CUDA: %s: %s", what, cudaGetErrorString(error));
}

struct gpu_device gpu_open(void)
{
    struct gpu_device device = { 0 };
    struct cudaDeviceProp properties;
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);

    if (error != cudaSuccess || n == 0)
        gpu_die("no GPU: %s", error != cudaSuccess ? cudaGetErrorString(error) : "0 devices");
    GPU_DO(cudaSetDevice(0));
    GPU_DO(cudaGetDeviceProperties(&properties, 0));
    GPU_DO(cudaRuntimeGetVersion(&device.runtime));
    GPU_DO(cudaDriverGetVersion(&device.driver));
    (void)snprintf(device.name, sizeof(device.name), "%.63s", properties.name);
    device.n_devices = n;
    device.major = properties.major;
    device.minor = properties.minor;
    device.is_emulated = strcmp(device.name, "cudaemu") == 0;
    return device;
}

const char *gpu_caveat(const struct gpu_device *device)
{
    return device->is_emulated ? "backend cudaemu, an emulator on the CPU: figures mean nothing"
                               : NULL;
}

void *gpu_alloc(size_t bytes)
{
    void *memory = NULL;

    GPU_DO(cudaMalloc(&memory, bytes > 0 ? bytes : 1));
    GPU_DO(cudaMemset(memory, 0, bytes > 0 ? bytes : 1));
    return memory;
}

void gpu_put(void *device, const void *host, size_t bytes)
{
    GPU_DO(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
}

void gpu_get(void *host, const void *device, size_t bytes)
{
    GPU_DO(cudaDeviceSynchronize());
    GPU_DO(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
}

/* Products of three uniform numbers; only exact operations and one rounding each. */
void gpu_fill(float *values, size_t n, uint32_t seed)
{
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;

    for (size_t i = 0; i < n; i++) {
        float product = 0.01f;

        for (int k = 0; k < 3; k++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            product *= (float)(int32_t)(state >> 32) * 0x1p-30f;
        }
        values[i] = product;
    }
}

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

double gpu_time_us(gpu_enqueue_fn *fn, void *user, int n_calls, int n_rounds)
{
    float ms[MAX_ROUNDS];
    cudaStream_t stream;
    cudaEvent_t from, to;

    n_rounds = n_rounds < MAX_ROUNDS ? n_rounds : MAX_ROUNDS;
    GPU_DO(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    GPU_DO(cudaEventCreate(&from));
    GPU_DO(cudaEventCreate(&to));
    fn(user, stream); /* warm */
    for (int round = 0; round < n_rounds; round++) {
        GPU_DO(cudaStreamSynchronize(stream));
        GPU_DO(cudaEventRecord(from, stream));
        for (int i = 0; i < n_calls; i++)
            fn(user, stream);
        GPU_DO(cudaEventRecord(to, stream));
        GPU_DO(cudaEventSynchronize(to));
        GPU_DO(cudaEventElapsedTime(&ms[round], from, to));
    }
    GPU_DO(cudaEventDestroy(from));
    GPU_DO(cudaEventDestroy(to));
    GPU_DO(cudaStreamDestroy(stream));
    qsort(ms, (size_t)n_rounds, sizeof(ms[0]), compare_floats);
    return (double)ms[n_rounds / 2] * 1e3 / n_calls;
}

struct copy {
    void *from, *to;
    size_t bytes;
};

static void enqueue_copy(void *user, cudaStream_t stream)
{
    const struct copy *const c = user;

    GPU_DO(cudaMemcpyAsync(c->to, c->from, c->bytes, cudaMemcpyDeviceToDevice, stream));
}

double gpu_copy_gbps(size_t bytes, int n_rounds)
{
    struct copy copy = { gpu_alloc(bytes), gpu_alloc(bytes), bytes };
    const double us = gpu_time_us(enqueue_copy, &copy, 5, n_rounds);

    GPU_DO(cudaFree(copy.from));
    GPU_DO(cudaFree(copy.to));
    return us > 0.0 ? 2.0 * (double)bytes / (us * 1e3) : 0.0;
}
