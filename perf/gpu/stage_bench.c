/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stage as the executor launches it, on one operation that holds the whole vector. Messages hold
 * what the encoder made of other data, so decoders meet real ones.
 */
#include "gpu/gpu.h"

#include <stdlib.h>

#include "codec/codec.h"

struct bench {
    const struct gpu_stage_bench *in;
    size_t message_bytes, stride;
    struct dsc_gpu_op op;
    struct dsc_gpu_recv *recvs;
    struct dsc_gpu_tile *tiles;
    struct dsc_gpu_work work;
    struct dsc_gpu_call call;
    struct dsc_gpu_prepared launch;
};

static void enqueue(void *user, cudaStream_t stream)
{
    const struct bench *const b = user;

    GPU_DO(dsc_gpu_launch(&b->launch, stream));
}

static int n_messages(const struct gpu_stage_bench *in)
{
    return in->stage == DSC_GPU_FINAL ? in->n_inputs - 1 : in->stage == DSC_GPU_DECODE;
}

/* Tables of one stage; received messages are the first ones in `messages`, its own is the last. */
static void prepare(struct bench *b, enum dsc_gpu_stage stage, uint64_t out_at)
{
    const size_t step = dsc_gpu_tile_elems(stage, b->in->codec, DSCOMM_FLOAT32);
    const int n_recvs = stage == DSC_GPU_ENCODE ? 0 : n_messages(b->in);
    uint32_t n_tiles = 0;

    for (size_t at = 0; at < b->in->n; at += step)
        b->tiles[n_tiles++] = (struct dsc_gpu_tile){ 0, (uint32_t)at };
    for (int i = 0; i < n_recvs; i++)
        b->recvs[i] =
            (struct dsc_gpu_recv){ .at = (uint64_t)i * b->stride, .facts = { .exponent = 3 } };
    b->op = (struct dsc_gpu_op){ .n = (uint32_t)b->in->n,
                                 .out_at = stage == DSC_GPU_DECODE ? DSC_GPU_NONE : out_at,
                                 .own_partial = DSC_GPU_NONE,
                                 .out_partial = DSC_GPU_NONE,
                                 .facts = { .exponent = 3 },
                                 .n_recvs = (uint32_t)n_recvs,
                                 .flags = DSC_GPU_OP_RESTORES };
    gpu_put((void *)b->work.ops, &b->op, sizeof(b->op));
    gpu_put((void *)b->work.tiles, b->tiles, n_tiles * sizeof(*b->tiles));
    if (n_recvs > 0)
        gpu_put((void *)b->work.recvs, b->recvs, (size_t)n_recvs * sizeof(*b->recvs));
    b->work.n_tiles = n_tiles;
    b->launch = dsc_gpu_prepare(stage, b->in->codec, &b->work, &b->call);
}

static void fill_vectors(const struct bench *b)
{
    const size_t bytes = b->in->n * sizeof(float);
    float *const values = malloc(bytes);

    if (values == NULL)
        gpu_die("no memory for %zu bytes", bytes);
    gpu_fill(values, b->in->n, 1);
    gpu_put((void *)b->call.send, values, bytes);
    for (int i = 0; b->in->feedback && i < 2; i++) {
        gpu_fill(values, b->in->n, 2);
        gpu_put(b->call.residual[i], values, bytes);
    }
    free(values);
}

static void open_bench(struct bench *b, const struct gpu_stage_bench *in)
{
    const struct dsc_codec *const codec = dsc_codec_resolve(in->codec, DSCOMM_FLOAT32);
    const size_t bytes = in->n * sizeof(float), max_tiles = in->n / 256 + 1;

    *b = (struct bench){ .in = in, .message_bytes = dsc_codec_message_bytes(codec, in->n) };
    b->stride = dsc_round_up(b->message_bytes, 256);
    b->recvs = calloc((size_t)in->n_inputs + 1, sizeof(*b->recvs));
    b->tiles = calloc(max_tiles, sizeof(*b->tiles));
    if (b->recvs == NULL || b->tiles == NULL)
        gpu_die("no memory for %zu tiles", max_tiles);
    b->work = (struct dsc_gpu_work){
        .ops = gpu_alloc(sizeof(b->op)),
        .recvs = gpu_alloc(((size_t)in->n_inputs + 1) * sizeof(*b->recvs)),
        .tiles = gpu_alloc(max_tiles * sizeof(*b->tiles)),
        .messages = gpu_alloc(((size_t)n_messages(in) + 1) * b->stride),
    };
    b->call = (struct dsc_gpu_call){
        .send = gpu_alloc(bytes),
        .recv = gpu_alloc(bytes),
        .residual = { in->feedback ? gpu_alloc(bytes) : NULL,
                      in->feedback ? gpu_alloc(bytes) : NULL },
        .feedback = in->feedback ? gpu_alloc(sizeof(struct dsc_gpu_feedback)) : NULL,
        .state = gpu_alloc(sizeof(struct dsc_gpu_state)),
        .beta = 1.0f,
        .n_ranks = in->n_inputs > 0 ? (uint32_t)in->n_inputs : 1,
        .dtype = DSCOMM_FLOAT32,
        .op = DSCOMM_SUM,
    };
    fill_vectors(b);
}

static void close_bench(struct bench *b)
{
    const void *const all[] = { b->work.ops,      b->work.recvs,       b->work.tiles,
                                b->work.messages, b->call.send,        b->call.recv,
                                b->call.feedback, b->call.residual[0], b->call.residual[1],
                                b->call.state };

    GPU_DO(cudaDeviceSynchronize());
    for (size_t i = 0; i < DSC_ARRAY_LEN(all); i++)
        GPU_DO(cudaFree((void *)all[i]));
    free(b->recvs);
    free(b->tiles);
}

/* stages.cuh states these sums. */
static double bytes_per_elem(const struct bench *b)
{
    const double wire = (double)b->message_bytes / (double)b->in->n;
    const double residual = b->in->feedback ? 8.0 : 0.0;

    switch (b->in->stage) {
    case DSC_GPU_ENCODE:
        return 4.0 + wire + residual;
    case DSC_GPU_DECODE:
        return wire + 4.0;
    default:
        return n_messages(b->in) * wire + 4.0 + wire + 4.0 + residual;
    }
}

void gpu_bench_stage(struct gpu_stage_bench *bench, int n_rounds)
{
    struct bench b;

    open_bench(&b, bench);
    for (int i = 0; i < n_messages(bench); i++) {
        prepare(&b, DSC_GPU_ENCODE, (uint64_t)i * b.stride);
        enqueue(&b, NULL);
        GPU_DO(cudaDeviceSynchronize()); /* tables are used again */
    }
    prepare(&b, bench->stage, (uint64_t)n_messages(bench) * b.stride);
    bench->us = gpu_time_us(enqueue, &b, 5, n_rounds);
    bench->bytes_per_elem = bytes_per_elem(&b);
    close_bench(&b);
}
