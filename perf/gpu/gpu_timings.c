/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of gpu_check, as JSON on stdout: kernels beside the device's copy rate, calls of four
 * virtual ranks enqueued and replayed, a large allreduce, and the decoding of a sparse message.
 * --small is for the emulator, where only that it runs is of interest.
 */
#include "gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"

#define RANKS 4
#define CHUNK_ELEMS 262144 /* DSCOMM_CUDA_CHUNK_BYTES */

struct scale {
    size_t copy_bytes, kernel_elems, min_bytes, max_bytes, large_bytes, sparse_elems;
    int n_calls, n_large_calls, n_rounds;
};
static const struct scale full = { .copy_bytes = 512u << 20,
                                   .kernel_elems = 32u << 20,
                                   .min_bytes = 64u << 10,
                                   .max_bytes = 1u << 20,
                                   .large_bytes = 128u << 20,
                                   .sparse_elems = 1200000,
                                   .n_calls = 100,
                                   .n_large_calls = 5,
                                   .n_rounds = 7 };
static const struct scale small = { .copy_bytes = 1u << 20,
                                    .kernel_elems = 70000,
                                    .min_bytes = 64u << 10,
                                    .max_bytes = 64u << 10,
                                    .large_bytes = 1u << 20,
                                    .sparse_elems = 140000,
                                    .n_calls = 2,
                                    .n_large_calls = 1,
                                    .n_rounds = 1 };

/* ---- kernels ---- */

static void print_kernel(const char *spec, enum dsc_gpu_stage stage, const struct scale *scale,
                         const char *separator)
{
    static const char *const names[] = { [DSC_GPU_ENCODE] = "encode+feedback",
                                         [DSC_GPU_FINAL] = "reduce+encode, 8 inputs",
                                         [DSC_GPU_DECODE] = "decode" };
    struct gpu_stage_bench bench = { .stage = stage,
                                     .codec = dscomm_codec(spec),
                                     .n = scale->kernel_elems,
                                     .n_inputs = 8,
                                     .feedback = stage != DSC_GPU_DECODE };

    gpu_bench_stage(&bench, scale->n_rounds);
    (void)printf("  {\"codec\": \"%s\", \"kernel\": \"%s\", \"elements\": %zu, \"us\": %.3f, "
                 "\"bytes_per_element\": %.4f, \"gbps\": %.3f}%s\n",
                 spec, names[stage], bench.n, bench.us, bench.bytes_per_elem,
                 bench.bytes_per_elem * (double)bench.n / (bench.us * 1e3), separator);
}

static void print_kernels(const struct scale *scale)
{
    static const char *const specs[] = { "int8",  "bf16",  "int4",      "fp8",          "mxfp8",
                                         "mxfp4", "nvfp4", "topk:0.01", "int8,hadamard" };
    const size_t n = DSC_ARRAY_LEN(specs);

    (void)printf(" \"kernels\": [\n");
    for (size_t i = 0; i < n; i++) {
        print_kernel(specs[i], DSC_GPU_ENCODE, scale, ",");
        print_kernel(specs[i], DSC_GPU_FINAL, scale, ",");
        print_kernel(specs[i], DSC_GPU_DECODE, scale, i + 1 < n ? "," : "");
    }
    (void)printf(" ],\n");
}

/* ---- calls of virtual ranks ---- */

static cudaGraphExec_t capture(struct gpu_ranks *all)
{
    cudaGraphExec_t exec;
    cudaStream_t stream;
    cudaGraph_t graph;

    GPU_DO(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    GPU_DO(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    gpu_ranks_enqueue(all, stream);
    GPU_DO(cudaStreamEndCapture(stream, &graph));
    GPU_DO(cudaGraphInstantiate(&exec, graph, 0));
    GPU_DO(cudaGraphDestroy(graph));
    GPU_DO(cudaStreamDestroy(stream));
    return exec;
}

static void launch(void *user, cudaStream_t stream)
{
    GPU_DO(cudaGraphLaunch((cudaGraphExec_t)user, stream));
}

static void print_call(size_t bytes, int n_calls, int n_rounds, const char *separator)
{
    const struct gpu_ranks_params params = { .n_ranks = RANKS,
                                             .codec = dscomm_codec("int8"),
                                             .count = bytes / sizeof(float),
                                             .chunk_elems = CHUNK_ELEMS,
                                             .dtype = DSCOMM_FLOAT32,
                                             .feedback = true };
    float *const values = malloc(RANKS * bytes);
    struct gpu_ranks *const all = gpu_ranks_create(&params);
    const cudaGraphExec_t exec = capture(all);

    if (values == NULL)
        gpu_die("no memory for %zu bytes", RANKS * bytes);
    gpu_fill(values, RANKS * params.count, 1);
    gpu_ranks_put(all, values);
    const double eager_us = gpu_time_us(gpu_ranks_enqueue, all, n_calls, n_rounds);
    const double graph_us = gpu_time_us(launch, exec, n_calls, n_rounds);
    (void)printf(
        "  {\"codec\": \"int8\", \"ranks\": %d, \"bytes\": %zu, \"kernels\": %d, \"calls\": "
        "%d, \"eager_us\": %.3f, \"graph_us\": %.3f}%s\n",
        RANKS, bytes, gpu_ranks_n_kernels(all), n_calls, eager_us, graph_us, separator);
    GPU_DO(cudaGraphExecDestroy(exec));
    gpu_ranks_destroy(all);
    free(values);
}

static void print_calls(const struct scale *scale)
{
    (void)printf(" \"calls\": [\n");
    for (size_t bytes = scale->min_bytes; bytes <= scale->max_bytes; bytes *= 2)
        print_call(bytes, scale->n_calls, scale->n_rounds, bytes < scale->max_bytes ? "," : "");
    (void)printf(" ],\n \"large\": [\n");
    print_call(scale->large_bytes, scale->n_large_calls, scale->n_rounds, "");
    (void)printf(" ],\n");
}

/* ---- */

static void print_sparse(const struct scale *scale)
{
    struct gpu_stage_bench bench = { .stage = DSC_GPU_DECODE,
                                     .codec = dscomm_codec("topk:0.001,int8"),
                                     .n = scale->sparse_elems };

    gpu_bench_stage(&bench, scale->n_rounds);
    (void)printf(" \"sparse_decode\": {\"codec\": \"%s\", \"elements\": %zu, \"us\": %.3f}\n",
                 bench.codec->spec, bench.n, bench.us);
}

int main(int argc, char **argv)
{
    const bool is_small = argc == 2 && strcmp(argv[1], "--small") == 0;
    const struct scale *const scale = is_small ? &small : &full;

    if (argc > 1 && !is_small)
        gpu_die("gpu_timings: argument '%s', allowed: --small", argv[1]);
    const struct gpu_device device = gpu_open();

    if (device.is_emulated && !is_small)
        gpu_die("gpu_timings: on the emulator use --small");
    (void)printf("{\"device\": \"%s\", \"devices\": %d, \"emulated\": %s, \"compute_capability\": "
                 "\"%d.%d\", "
                 "\"cuda_runtime\": %d, \"cuda_driver\": %d,\n",
                 device.name, device.n_devices, device.is_emulated ? "true" : "false", device.major,
                 device.minor, device.runtime, device.driver);
    (void)printf(" \"copy_gbps\": %.3f,\n", gpu_copy_gbps(scale->copy_bytes, scale->n_rounds));
    print_kernels(scale);
    print_calls(scale);
    print_sparse(scale);
    (void)printf("}\n");
    return 0;
}
