/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints what must be equal on every device: for each codec with kernels, each data type, with and
 * without feedback, a hash of all outputs and residuals after three calls of four virtual ranks,
 * and once more with the calls replayed from a graph. The list made on the emulator is hashes.txt.
 */
#include "gpu/gpu.h"

#include <stdio.h>
#include <stdlib.h>

#include "codec/codec.h"

#define RANKS 4
#define CALLS 3

static const char *const dtype_names[] = { "fp32", "fp16", "bf16" };

static cudaGraphExec_t capture(struct gpu_ranks *all, cudaStream_t stream)
{
    cudaGraphExec_t exec;
    cudaGraph_t graph;

    GPU_DO(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    gpu_ranks_enqueue(all, stream);
    GPU_DO(cudaStreamEndCapture(stream, &graph));
    GPU_DO(cudaGraphInstantiate(&exec, graph, 0));
    GPU_DO(cudaGraphDestroy(graph));
    return exec;
}

/* Calls with new data each. */
static uint32_t run(const struct gpu_ranks_params *params, float *values, bool is_graph)
{
    struct gpu_ranks *const all = gpu_ranks_create(params);
    cudaGraphExec_t exec = NULL;
    cudaStream_t stream;
    uint32_t hash;

    GPU_DO(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    if (is_graph)
        exec = capture(all, stream);
    for (uint32_t i = 0; i < CALLS; i++) {
        gpu_fill(values, RANKS * params->count, i + 1);
        gpu_ranks_put(all, values);
        GPU_DO(cudaDeviceSynchronize());
        if (is_graph)
            GPU_DO(cudaGraphLaunch(exec, stream));
        else
            gpu_ranks_enqueue(all, stream);
        GPU_DO(cudaStreamSynchronize(stream));
    }
    hash = gpu_ranks_hash(all);
    if (exec != NULL)
        GPU_DO(cudaGraphExecDestroy(exec));
    GPU_DO(cudaStreamDestroy(stream));
    gpu_ranks_destroy(all);
    return hash;
}

static void print_hash(struct gpu_ranks_params *params, float *values)
{
    const uint32_t eager = run(params, values, false), graph = run(params, values, true);

    (void)printf("%s %s %s %s %zu %08x\n", params->codec->spec, dtype_names[params->dtype],
                 params->feedback ? "feedback" : "plain",
                 params->is_one_shot ? "one-shot" : "two-shot", params->count, (unsigned)eager);
    (void)fflush(stdout);
    if (eager != graph)
        gpu_die("graph: %08x, which must be the hash of eager calls", (unsigned)graph);
}

/* Three chunks for each rank's piece; a segment, and a bit of another, for codecs that have those.
 */
static void set_shape(struct gpu_ranks_params *params)
{
    const bool has_segments = params->codec->tile_align > 256;

    params->count = params->is_one_shot ? 1500 : has_segments ? 70001 : 20011;
    params->chunk_elems = has_segments ? 65536 : 2048;
}

static void print_codec(const dscomm_codec_t *codec, float *values)
{
    for (int i = 0; i < 6; i++) {
        struct gpu_ranks_params params = { .n_ranks = RANKS,
                                           .codec = codec,
                                           .dtype = (dscomm_dtype_t)(i % 3),
                                           .feedback = i < 3 && !codec->stochastic,
                                           .is_one_shot = i >= 3 };

        set_shape(&params);
        print_hash(&params, values);
    }
}

static void keep_quiet(void *user, dscomm_log_level_t level, const char *line)
{
    (void)user, (void)level, (void)line;
}

int main(void)
{
    const struct gpu_device device = gpu_open();
    float *const values = malloc(RANKS * 70001 * sizeof(float));
    size_t n;
    const char *const *const specs = dsc_codec_test_specs(&n);

    if (values == NULL)
        gpu_die("out of memory");
    dscomm_set_log(keep_quiet, NULL); /* codecs without kernels are no news */
    (void)fprintf(stderr, "# %s\n", device.name);
    for (size_t i = 0; i < n; i++) {
        const dscomm_codec_t *const codec = dscomm_codec(specs[i]);

        if (!codec->reuses && dsc_gpu_supports(codec) == DSCOMM_OK)
            print_codec(codec, values);
    }
    free(values);
    return 0;
}
