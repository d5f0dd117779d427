/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the programs that look at one GPU share. They look inside the library: kernels and schedules
 * are driven without communicators. An error of CUDA ends the program with what failed.
 *
 *   gpu_device.c     which device, its copy rate, times by events
 *   stage_bench.c    one stage's kernel on one large operation
 *   virtual_ranks.c  an allreduce of several ranks on one device, without NCCL
 */
#ifndef PERF_GPU_H
#define PERF_GPU_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/stage.h"

/* ---- gpu_device.c ---- */

#define GPU_DO(expr) gpu_must((expr), #expr)
void gpu_must(cudaError_t error, const char *what);
/* Prints a line like printf's and ends the program. */
void gpu_die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

struct gpu_device {
    char name[64];
    int n_devices;
    int major, minor; /* compute capability */
    int runtime, driver;
    bool is_emulated;
};

/* Of device 0, which becomes the current one. Dies where there is none. */
struct gpu_device gpu_open(void);
/* For every report of figures, NULL on a GPU. */
const char *gpu_caveat(const struct gpu_device *device);

void *gpu_alloc(size_t bytes); /* zeros */
void gpu_put(void *device, const void *host, size_t bytes);
void gpu_get(void *host, const void *device, size_t bytes);
/* n numbers of a fixed sequence like a gradient's: most small, some large; equal on every machine.
 */
void gpu_fill(float *values, size_t n, uint32_t seed);

typedef void gpu_enqueue_fn(void *user, cudaStream_t stream);
/* Microseconds of a call by the device's clock: n_calls back to back, median of n_rounds. */
double gpu_time_us(gpu_enqueue_fn *fn, void *user, int n_calls, int n_rounds);
/* Bytes read and written per nanosecond by a copy of so many bytes within the device. */
double gpu_copy_gbps(size_t bytes, int n_rounds);

/* ---- stage_bench.c ---- */

struct gpu_stage_bench {
    enum dsc_gpu_stage stage; /* ENCODE, FINAL or DECODE */
    const dscomm_codec_t *codec;
    size_t n;     /* elements, fp32 */
    int n_inputs; /* FINAL: the own value and so many messages less one */
    bool feedback;
    double us;             /* out */
    double bytes_per_elem; /* out: what must be read and written once */
};

void gpu_bench_stage(struct gpu_stage_bench *bench, int n_rounds);

/* ---- virtual_ranks.c ---- */

struct gpu_ranks;

struct gpu_ranks_params {
    int n_ranks;
    const dscomm_codec_t *codec;
    size_t count, chunk_elems;
    dscomm_dtype_t dtype;
    bool feedback, is_one_shot;
};

struct gpu_ranks *gpu_ranks_create(const struct gpu_ranks_params *params);
void gpu_ranks_destroy(struct gpu_ranks *all);
/* Every rank's vector from these float32 numbers, [n_ranks][count]. */
void gpu_ranks_put(struct gpu_ranks *all, const float *values);
/* A call of all ranks. May be captured. */
void gpu_ranks_enqueue(void *all, cudaStream_t stream);
/* Of all outputs, which must be equal, and of all residuals. Waits for the device. */
uint32_t gpu_ranks_hash(const struct gpu_ranks *all);
int gpu_ranks_n_kernels(const struct gpu_ranks *all);

#endif
