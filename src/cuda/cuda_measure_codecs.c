/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speeds of codecs on a device: single stages, as plans have them, on a vector that caches do not
 * hold. An owner is timed with one message and with three: what two more of them take is the price
 * of two messages. Several launches back to back, of which the fastest round counts: whatever
 * disturbs one only adds to it.
 */
#include "cuda/cuda_measure.h"

#include <stdio.h>
#include <string.h>

#define ELEMS ((size_t)4 << 20)
/* Of a device that takes longer than SLOW_NS for so many: it is measured with these alone. */
#define FEW_ELEMS ((size_t)1 << 16)
#define SLOW_NS 200000u
#define SMALL_ELEMS 256
#define ROUNDS 3
#define LAUNCHES 4 /* of a round */
#define LATE 2     /* times the time that was meant: what is left then is left out */
#define MANY_RECVS 3
#define SLACK 65536 /* tables and padding of a message */

enum { STEP_SEND, STEP_DECODE, STEP_FEW, STEP_MANY, N_STEPS };

struct dsc_codec_bench {
    struct dsc_cuda_timer *timer;
    size_t n;        /* elements */
    size_t capacity; /* of a message */
    void *send, *recv;
    float *residual[2];
    uint8_t *messages; /* [1 + MANY_RECVS]: what is encoded, what is received */
    struct dsc_gpu_state *state;
    struct dsc_gpu_feedback *feedback;
    struct dsc_gpu_op *op;
    struct dsc_gpu_recv *recvs; /* [MANY_RECVS] */
    struct dsc_gpu_tile *tiles; /* [n / smallest tile] */
    struct dsc_gpu_prepared small;
};

/* ---- memory ---- */

#define SMALLEST_TILE 4096

/* For n elements. */
static dscomm_status_t alloc(struct dsc_codec_bench *b, size_t n)
{
    b->n = n;
    b->capacity = n * sizeof(float) + SLACK;
    CUDA_TRY(cudaMalloc(&b->send, n * sizeof(float)));
    CUDA_TRY(cudaMalloc(&b->recv, n * sizeof(float)));
    CUDA_TRY(cudaMalloc((void **)&b->residual[0], n * sizeof(float)));
    CUDA_TRY(cudaMalloc((void **)&b->residual[1], n * sizeof(float)));
    CUDA_TRY(cudaMalloc((void **)&b->messages, (1 + MANY_RECVS) * b->capacity));
    CUDA_TRY(cudaMalloc((void **)&b->state, sizeof(*b->state)));
    CUDA_TRY(cudaMalloc((void **)&b->feedback, sizeof(*b->feedback)));
    CUDA_TRY(cudaMalloc((void **)&b->op, sizeof(*b->op)));
    CUDA_TRY(cudaMalloc((void **)&b->recvs, MANY_RECVS * sizeof(*b->recvs)));
    CUDA_TRY(cudaMalloc((void **)&b->tiles, n / SMALLEST_TILE * sizeof(*b->tiles)));
    return DSCOMM_OK;
}

static void release(struct dsc_codec_bench *b)
{
    cudaFree(b->send);
    cudaFree(b->recv);
    cudaFree(b->residual[0]);
    cudaFree(b->residual[1]);
    cudaFree(b->messages);
    cudaFree(b->state);
    cudaFree(b->feedback);
    cudaFree(b->op);
    cudaFree(b->recvs);
    cudaFree(b->tiles);
    *b = (struct dsc_codec_bench){ .timer = b->timer };
}

void dsc_codec_bench_close(struct dsc_codec_bench *b)
{
    if (b == NULL)
        return;
    release(b);
    dsc_free(b);
}

/*
 * The same FEW_ELEMS values again and again. bf16 are the upper halves of float32: so both types
 * have the same values, half as many of them.
 */
static dscomm_status_t fill(struct dsc_codec_bench *b, dscomm_dtype_t dtype)
{
    const size_t bytes = FEW_ELEMS * dsc_dtype_bytes(dtype);
    const cudaStream_t own = b->timer->cc->own;
    uint8_t *const values = dsc_calloc(DSC_MEM_COMM, FEW_ELEMS, sizeof(float));

    if (values == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "values to measure with");
    for (size_t i = 0; i < FEW_ELEMS; i++) {
        const float value = dsc_measure_value(i);
        uint32_t bits;

        memcpy(&bits, &value, sizeof(bits));
        bits = dtype == DSCOMM_FLOAT32 ? bits : bits >> 16;
        memcpy(values + i * dsc_dtype_bytes(dtype), &bits, dsc_dtype_bytes(dtype));
    }
    for (size_t i = 0; i < b->n; i += FEW_ELEMS)
        if (cudaMemcpyAsync((uint8_t *)b->send + i * dsc_dtype_bytes(dtype), values, bytes,
                            cudaMemcpyHostToDevice, own) != cudaSuccess)
            break; /* waiting says why */
    const dscomm_status_t st = dsc_cuda_wait_own(b->timer->cc, "filling a vector to measure with");

    dsc_free(values);
    return st;
}

/* ---- one stage ---- */

/* The tables of an operation of n elements that receives so many messages. */
static dscomm_status_t write_tables(struct dsc_codec_bench *b, uint32_t n, uint32_t n_recvs,
                                    uint32_t tile_elems, uint32_t *n_tiles_out)
{
    const struct dsc_gpu_facts facts = { .exponent = 1, .members = 1 };
    const struct dsc_gpu_op op = { .own_partial = DSC_GPU_NONE,
                                   .facts = facts,
                                   .n = n,
                                   .n_recvs = n_recvs,
                                   .flags = DSC_GPU_OP_RESTORES };
    const uint32_t n_tiles = (uint32_t)dsc_ceil_div(n, tile_elems);
    struct dsc_gpu_recv recvs[MANY_RECVS];
    struct dsc_gpu_tile tiles[ELEMS / SMALLEST_TILE];

    for (uint32_t i = 0; i < MANY_RECVS; i++)
        recvs[i] = (struct dsc_gpu_recv){ .at = (1 + i) * b->capacity, .facts = facts };
    for (uint32_t i = 0; i < n_tiles; i++)
        tiles[i] = (struct dsc_gpu_tile){ .first = i * tile_elems };
    /* from pageable memory: they return when it has been read */
    CUDA_TRY(cudaMemcpyAsync(b->op, &op, sizeof(op), cudaMemcpyHostToDevice, b->timer->cc->own));
    CUDA_TRY(
        cudaMemcpyAsync(b->recvs, recvs, sizeof(recvs), cudaMemcpyHostToDevice, b->timer->cc->own));
    CUDA_TRY(cudaMemcpyAsync(b->tiles, tiles, n_tiles * sizeof(*tiles), cudaMemcpyHostToDevice,
                             b->timer->cc->own));
    *n_tiles_out = n_tiles;
    return dsc_cuda_wait_own(b->timer->cc, "copying tables to measure with");
}

static dscomm_status_t prepare(struct dsc_codec_bench *b, const struct dsc_measure_codec *what,
                               enum dsc_gpu_stage stage, uint32_t n, uint32_t n_recvs,
                               struct dsc_gpu_prepared *launch_out)
{
    struct dsc_gpu_work work = {
        .ops = b->op, .recvs = b->recvs, .tiles = b->tiles, .messages = b->messages
    };
    const struct dsc_gpu_call call = { .send = b->send,
                                       .recv = b->recv,
                                       .residual = { b->residual[0], b->residual[1] },
                                       .feedback = what->feedback ? b->feedback : NULL,
                                       .state = b->state,
                                       .beta = 1.0f,
                                       .n_ranks = 1 + MANY_RECVS,
                                       .dtype = what->dtype,
                                       .op = DSCOMM_SUM,
                                       .residual_type = DSCOMM_RESIDUAL_FP32 };

    DSC_TRY(write_tables(b, n, n_recvs, dsc_gpu_tile_elems(stage, what->codec, what->dtype),
                         &work.n_tiles));
    *launch_out = dsc_gpu_prepare(stage, what->codec, &work, &call);
    return DSCOMM_OK;
}

static dscomm_status_t time_stage(struct dsc_codec_bench *b, const struct dsc_measure_codec *what,
                                  enum dsc_gpu_stage stage, uint32_t n_recvs, uint64_t *fs_out)
{
    struct dsc_gpu_prepared launch;
    uint64_t best = UINT64_MAX;

    DSC_TRY(prepare(b, what, stage, (uint32_t)b->n, n_recvs, &launch));
    for (int round = 0; round < ROUNDS; round++) {
        /* the first loads the kernel, and on a slow device one tells enough */
        const int n = round == 0 || b->n < ELEMS ? 1 : LAUNCHES;
        uint64_t ns;

        DSC_TRY(dsc_timer_start(b->timer));
        for (int i = 0; i < n; i++)
            CUDA_TRY(dsc_gpu_launch(&launch, b->timer->cc->own));
        DSC_TRY(dsc_timer_stop(b->timer, &ns));
        best = dsc_min_u64(best, ns / (uint64_t)n);
    }
    *fs_out = best * 1000000u / b->n;
    return DSCOMM_OK;
}

/* ---- one codec ---- */

/* What is received is what was encoded. */
static dscomm_status_t copy_messages(struct dsc_codec_bench *b)
{
    const size_t bytes = b->n * sizeof(float) + SLACK;

    for (size_t i = 0; i < MANY_RECVS; i++)
        CUDA_TRY(cudaMemcpyAsync(b->messages + (1 + i) * b->capacity, b->messages, bytes,
                                 cudaMemcpyDeviceToDevice, b->timer->cc->own));
    return DSCOMM_OK;
}

static uint32_t limited(uint64_t fs)
{
    return (uint32_t)dsc_min_u64(dsc_max_size(1, fs), 1000000000u);
}

static dscomm_status_t measure_codec(struct dsc_codec_bench *b,
                                     const struct dsc_measure_codec *what,
                                     struct dsc_codec_speed *speed_out)
{
    uint64_t fs[N_STEPS], add;

    DSC_TRY(time_stage(b, what, DSC_GPU_ENCODE, 0, &fs[STEP_SEND]));
    DSC_TRY(copy_messages(b));
    DSC_TRY(time_stage(b, what, DSC_GPU_DECODE, 1, &fs[STEP_DECODE]));
    DSC_TRY(time_stage(b, what, DSC_GPU_FINAL, 1, &fs[STEP_FEW]));
    DSC_TRY(time_stage(b, what, DSC_GPU_FINAL, MANY_RECVS, &fs[STEP_MANY]));
    add = (fs[STEP_MANY] - dsc_min_u64(fs[STEP_FEW], fs[STEP_MANY])) / (MANY_RECVS - 1);
    *speed_out =
        (struct dsc_codec_speed){ .dtype = (uint8_t)what->dtype, .feedback = what->feedback };
    snprintf(speed_out->spec, sizeof(speed_out->spec), "%.31s", what->codec->spec);
    speed_out->send_fs = limited(fs[STEP_SEND]);
    speed_out->add_fs = limited(add);
    speed_out->own_fs = limited(fs[STEP_FEW] - dsc_min_u64(add, fs[STEP_FEW]));
    speed_out->decode_fs = limited(fs[STEP_DECODE]);
    return DSCOMM_OK;
}

/* ---- all of them ---- */

static dscomm_status_t make_vectors(struct dsc_codec_bench *b, size_t n)
{
    const cudaStream_t own = b->timer->cc->own;

    DSC_TRY(alloc(b, n));
    CUDA_TRY(cudaMemsetAsync(b->state, 0, sizeof(*b->state), own));
    CUDA_TRY(cudaMemsetAsync(b->feedback, 0, sizeof(*b->feedback), own));
    CUDA_TRY(cudaMemsetAsync(b->residual[0], 0, n * sizeof(float), own));
    CUDA_TRY(cudaMemsetAsync(b->messages, 0, (1 + MANY_RECVS) * b->capacity, own));
    return fill(b, DSCOMM_FLOAT32);
}

/* A device that is slow, an emulated one above all, would take seconds for the whole vector. */
static dscomm_status_t make_bench(struct dsc_codec_bench *b)
{
    const struct dsc_measure_codec what = { dscomm_codec("fp32"), DSCOMM_FLOAT32, false };
    uint64_t fs;

    DSC_TRY(make_vectors(b, FEW_ELEMS));
    DSC_TRY(time_stage(b, &what, DSC_GPU_ENCODE, 0, &fs));
    if (fs * FEW_ELEMS / 1000000u < SLOW_NS) {
        release(b);
        DSC_TRY(make_vectors(b, ELEMS));
    }
    return prepare(b, &what, DSC_GPU_ENCODE, SMALL_ELEMS, 0, &b->small);
}

dscomm_status_t dsc_codec_bench_open(struct dsc_cuda_timer *timer, struct dsc_codec_bench **out)
{
    struct dsc_codec_bench *const b = dsc_calloc(DSC_MEM_COMM, 1, sizeof(*b));

    if (b == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "measuring codecs");
    *out = b;
    b->timer = timer;
    return make_bench(b);
}

const struct dsc_gpu_prepared *dsc_codec_bench_small(struct dsc_codec_bench *b)
{
    return &b->small;
}

dscomm_status_t dsc_codec_bench_run(struct dsc_codec_bench *b, const struct dsc_measure *what,
                                    uint64_t budget_ns, struct dsc_rates *rates)
{
    const uint64_t start = dsc_now_ns();
    int filled = -1;

    for (size_t i = 0; i < what->n_codecs; i++) {
        const struct dsc_measure_codec *const codec = &what->codecs[i];

        if (!dsc_gpu_knows(codec->codec))
            continue;
        if (dsc_now_ns() - start > LATE * budget_ns) {
            dsc_log_info(TUNE, "no time to measure %s and %zu more codecs", codec->codec->spec,
                         what->n_codecs - i - 1);
            break;
        }
        if (filled != (int)codec->dtype)
            DSC_TRY(fill(b, codec->dtype));
        filled = (int)codec->dtype;
        DSC_TRY(measure_codec(b, codec, &rates->speeds[rates->n_speeds]));
        rates->n_speeds++;
    }
    return DSCOMM_OK;
}
