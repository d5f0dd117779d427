/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speeds of codecs: single operations of real plans. An owner is timed with one message and with
 * three: what two more of them take is the price of two messages. CPU time of many operations, of
 * which a quarter were faster: whatever disturbs one only adds to it. Times the ranks that share a
 * CPU.
 *
 * First around vectors that the last-level cache holds (near), then, where there is time, through
 * longer ones, so that all is in memory again when an operation comes back to it (far). There the
 * median counts: waiting for memory that others use too is part of it.
 */
#include "comm/measure.h"

#include <string.h>

#define NEAR_ELEMS ((size_t)1 << 18)    /* plans of all ranks stay below DSC_STREAM_BYTES */
#define FAR_ELEMS_MIN ((size_t)1 << 20) /* and here above */
#define FAR_ELEMS_MAX ((size_t)1 << 23)
#define FAR_CACHES 16     /* a rank's vectors are so many of its shares of the cache */
#define CHUNK_ELEMS 65536 /* much as calls have by default */
#define REPEAT ((size_t)32768)
#define SAMPLES_MAX 16
#define SAMPLES_MIN 2
#define LATE 2      /* times the time that was meant: what is left then is left out */
#define FEW_RANKS 2 /* of the plans */
#define MANY_RANKS 4
#define N_PLANS 3
#define MESSAGE_BYTES (2 * CHUNK_ELEMS * sizeof(float)) /* of any codec, with room */

enum { STEP_SEND, STEP_DECODE, STEP_FEW, STEP_MANY, N_STEPS };

/* The plan of each step: its rank's operations of that kind lie in the vectors. */
static const struct {
    int plan;
    enum dsc_op_kind kind;
} steps[N_STEPS] = { [STEP_SEND] = { 0, DSC_OP_SEND },
                     [STEP_DECODE] = { 0, DSC_OP_DECODE },
                     [STEP_FEW] = { 1, DSC_OP_FINAL },
                     [STEP_MANY] = { 2, DSC_OP_FINAL } };
static const struct {
    int n_ranks, rank;
} plans[N_PLANS] = { { FEW_RANKS, 1 }, { FEW_RANKS, 0 }, { MANY_RANKS, 0 } };

struct bench {
    const struct dsc_measure_codec *what;
    size_t elems;
    struct dscomm_plan *plans[N_PLANS];
    struct dsc_call call;
    struct dsc_compute compute[N_PLANS];
    const uint8_t *msgs[MANY_RANKS]; /* equal ones, each in its own memory, by turns */
    uint8_t *messages, *out;
    float *scratch;
    uint32_t *thresholds;
    uint64_t fs[N_STEPS][SAMPLES_MAX]; /* femtoseconds per element */
    size_t n[N_STEPS];
    uint32_t at[N_STEPS]; /* operation of the last sample */
};

/* What all codecs share. */
struct vectors {
    size_t elems; /* of each */
    void *send, *recv;
    float *residual[2];
    uint8_t *messages; /* [MANY_RANKS] of MESSAGE_BYTES */
    uint8_t *out;      /* likewise: connections have several slots, which are taken in turn */
    uint32_t far_ops;  /* of each step so far: the next codec goes on where the last one stopped */
};

/* The sum of four even ones. */
float dsc_measure_value(size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + 12345u;
    float sum = 0;

    for (int k = 0; k < 4; k++) {
        x = x * 1664525u + 1013904223u;
        sum += (float)(x >> 8) * 0x1p-24f - 0.5f;
    }
    return sum * (i % 97 == 0 ? 4.0f : 0.25f);
}

/* The same values every REPEAT elements: making them takes longer than encoding them. */
static void fill(void *vector, size_t elems, dscomm_dtype_t dtype)
{
    const size_t bytes = dsc_dtype_bytes(dtype);
    float values[256];

    for (size_t i = 0; i < REPEAT; i += 256) {
        for (size_t k = 0; k < 256; k++)
            values[k] = dsc_measure_value(i + k);
        dsc_dtype_store(dtype, (uint8_t *)vector + i * bytes, values, 256);
    }
    for (size_t i = REPEAT; i < elems; i += REPEAT)
        memcpy((uint8_t *)vector + i * bytes, vector, REPEAT * bytes);
}

static void free_vectors(struct vectors *v)
{
    dsc_free(v->send);
    dsc_free(v->recv);
    dsc_free(v->residual[0]);
    dsc_free(v->residual[1]);
    dsc_free(v->messages);
    dsc_free(v->out);
}

static bool make_vectors(struct vectors *v)
{
    v->send = dsc_calloc(DSC_MEM_COMM, v->elems, sizeof(float));
    v->recv = dsc_calloc(DSC_MEM_COMM, v->elems, sizeof(float));
    v->residual[0] = dsc_calloc(DSC_MEM_COMM, v->elems, sizeof(float));
    v->residual[1] = dsc_calloc(DSC_MEM_COMM, v->elems, sizeof(float));
    v->messages = dsc_calloc(DSC_MEM_COMM, MANY_RANKS, MESSAGE_BYTES);
    v->out = dsc_calloc(DSC_MEM_COMM, MANY_RANKS, MESSAGE_BYTES);
    if (v->send == NULL || v->recv == NULL || v->residual[0] == NULL || v->residual[1] == NULL ||
        v->messages == NULL || v->out == NULL)
        return false;
    memset(v->recv, 1, v->elems * sizeof(float)); /* pages are there before the clock runs */
    memset(v->residual[1], 0, v->elems * sizeof(float));
    memset(v->messages, 0, MANY_RANKS * MESSAGE_BYTES);
    memset(v->out, 0, MANY_RANKS * MESSAGE_BYTES);
    fill(v->residual[0], v->elems, DSCOMM_FLOAT32);
    return true;
}

/* ---- one codec ---- */

static dscomm_status_t build(struct bench *b, int k)
{
    struct dsc_plan_params params = { .collective = DSC_ALLREDUCE,
                                      .n_ranks = plans[k].n_ranks,
                                      .rank = plans[k].rank,
                                      .count = b->elems * (size_t)plans[k].n_ranks,
                                      .dtype = b->what->dtype,
                                      .op = DSCOMM_SUM,
                                      .feedback = b->what->feedback,
                                      .algorithm = DSC_ALG_TWO_SHOT,
                                      .chunk_elems = CHUNK_ELEMS,
                                      .n_tiers = 1 };

    params.codecs[0] = b->what->codec;
    DSC_TRY(dsc_plan_build(&params, &b->plans[k]));
    DSC_ASSERT(b->plans[k]->max_msg_bytes <= MESSAGE_BYTES);
    return DSCOMM_OK;
}

static dscomm_status_t open_bench(struct bench *b, const struct vectors *v)
{
    size_t floats = 0, n_thresholds = 0;

    for (int k = 0; k < N_PLANS; k++) {
        DSC_TRY(build(b, k));
        floats = dsc_max_size(floats, dsc_compute_scratch_floats(b->plans[k]));
        n_thresholds = dsc_max_size(n_thresholds, b->plans[k]->n_thresholds);
    }
    b->scratch = dsc_calloc(DSC_MEM_COMM, floats, sizeof(float));
    b->thresholds = dsc_calloc(DSC_MEM_COMM, n_thresholds, sizeof(*b->thresholds));
    if (b->scratch == NULL || b->thresholds == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "scratch memory of %s", b->what->codec->spec);
    b->call = (struct dsc_call){ .send = v->send,
                                 .recv = v->recv,
                                 .feedback = b->what->feedback,
                                 .residual = { .in = v->residual[0],
                                               .out = v->residual[1],
                                               .type = DSCOMM_RESIDUAL_FP32,
                                               .beta = 1.0f } };
    b->messages = v->messages;
    b->out = v->out;
    for (int k = 0; k < N_STEPS; k++) /* apart, so that no step finds what another has just used */
        b->at[k] = b->plans[steps[k].plan]->n_ops / N_STEPS * (uint32_t)k;
    for (int k = 0; k < N_PLANS; k++)
        dsc_compute_begin(&b->compute[k], b->plans[k], &b->call, NULL, NULL, b->thresholds);
    return DSCOMM_OK;
}

static void close_bench(struct bench *b)
{
    for (int k = 0; k < N_PLANS; k++)
        dsc_plan_destroy(b->plans[k]);
    dsc_free(b->scratch);
    dsc_free(b->thresholds);
}

/* A chunk as another rank would send it; all chunks are of one length. Copies for all senders. */
static void make_messages(const struct bench *b, int plan, const struct dsc_op *op)
{
    const struct dscomm_plan *const p = b->plans[plan];
    const struct dsc_plan_msg *const recv = &p->recvs[op->first_recv];
    struct dsc_codec made;
    const struct dsc_codec *const codec = dsc_codec_at(p->codecs[0], recv->place, &made);
    const struct dsc_msg msg = {
        .bytes = b->messages, .n = op->n, .exponent = recv->exponent, .thresholds = b->thresholds
    };
    const size_t step = dsc_max_size(DSC_TILE_ELEMS, codec->tile_align);

    for (size_t i = 0; i < op->n; i += step) {
        const size_t n = dsc_min_size(step, op->n - i);

        dsc_dtype_load(b->what->dtype, b->scratch,
                       (const uint8_t *)b->call.send + i * dsc_dtype_bytes(b->what->dtype), n);
        codec->ops->encode(codec, &msg, i, n, b->scratch, NULL);
    }
    for (size_t k = 1; k < MANY_RANKS; k++)
        memcpy(b->messages + k * MESSAGE_BYTES, b->messages, recv->bytes);
}

static void time_op(struct bench *b, int step, const struct dsc_op *op)
{
    const int plan = steps[step].plan;
    const size_t slot = b->n[step] % MANY_RANKS;
    struct dsc_flaw flaw = { 0 };
    uint64_t cpu;

    if (b->n[step] == 0 && op->n_recvs > 0)
        make_messages(b, plan, op);
    for (size_t k = 0; k < MANY_RANKS; k++)
        b->msgs[k] = b->messages + (slot + k) % MANY_RANKS * MESSAGE_BYTES;
    cpu = dsc_thread_cpu_ns();
    dsc_compute_op(&b->compute[plan], op, b->msgs, b->out + slot * MESSAGE_BYTES, b->scratch,
                   &flaw);
    cpu = dsc_thread_cpu_ns() - cpu;
    b->fs[step][b->n[step]++] = cpu * 1000000u / op->n;
}

/* The next operation of a step, around the vector; there always is one. */
static const struct dsc_op *next_op(struct bench *b, int step)
{
    const struct dscomm_plan *const p = b->plans[steps[step].plan];
    uint32_t *const at = &b->at[step];

    do
        *at = (*at + 1) % p->n_ops;
    while (p->ops[*at].kind != steps[step].kind);
    DSC_ASSERT(p->ops[*at].start + p->ops[*at].n <= b->elems);
    return &p->ops[*at];
}

static void time_round(struct bench *b)
{
    for (int step = 0; step < N_STEPS; step++)
        time_op(b, step, next_op(b, step));
}

static uint32_t fs_of(uint64_t fs, uint64_t sharing_ppm)
{
    const uint64_t shared = fs * sharing_ppm / 1000000u;

    return (uint32_t)dsc_min_u64(dsc_max_size(1, shared), 1000000000u);
}

/* Femtoseconds of each step, of a rank that shares its CPU. */
static void judge(struct bench *b, bool is_far, uint64_t sharing_ppm, uint32_t fs_out[N_STEPS])
{
    uint64_t fs[N_STEPS], one;

    for (int s = 0; s < N_STEPS; s++)
        fs[s] = is_far ? dsc_median(b->fs[s], b->n[s]) : dsc_quartile(b->fs[s], b->n[s]);
    one = fs[STEP_MANY] > fs[STEP_FEW] ? (fs[STEP_MANY] - fs[STEP_FEW]) / (MANY_RANKS - FEW_RANKS)
                                       : 0;
    fs[STEP_MANY] = one;
    fs[STEP_FEW] -= dsc_min_u64(one, fs[STEP_FEW]);
    for (int s = 0; s < N_STEPS; s++)
        fs_out[s] = fs_of(fs[s], sharing_ppm);
}

static dscomm_status_t time_codec(struct vectors *v, const struct dsc_measure_codec *what,
                                  bool is_far, uint64_t until_ns, uint64_t sharing_ppm,
                                  uint32_t fs_out[N_STEPS])
{
    struct bench *const b = dsc_calloc(DSC_MEM_COMM, 1, sizeof(*b));
    dscomm_status_t st;

    if (b == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "measuring %s", what->codec->spec);
    b->what = what;
    b->elems = is_far ? v->elems : NEAR_ELEMS;
    st = open_bench(b, v);
    for (int k = 0; st == DSCOMM_OK && is_far && k < N_STEPS; k++)
        b->at[k] = (b->at[k] + v->far_ops) % b->plans[steps[k].plan]->n_ops;
    for (size_t i = 0; st == DSCOMM_OK && i < SAMPLES_MAX; i++) {
        if (i >= SAMPLES_MIN && dsc_now_ns() >= until_ns)
            break;
        time_round(b);
    }
    if (st == DSCOMM_OK)
        judge(b, is_far, sharing_ppm, fs_out);
    if (is_far)
        v->far_ops += (uint32_t)b->n[STEP_SEND];
    close_bench(b);
    dsc_free(b);
    return st;
}

static dscomm_status_t measure_codec(struct vectors *v, const struct dsc_measure_codec *what,
                                     uint64_t until_ns, uint64_t sharing_ppm,
                                     struct dsc_codec_speed *speed_out)
{
    uint32_t near[N_STEPS], far[N_STEPS] = { 0 };

    DSC_TRY(time_codec(v, what, false, until_ns, sharing_ppm, near));
    if (v->elems > NEAR_ELEMS)
        DSC_TRY(time_codec(v, what, true, until_ns, sharing_ppm, far));
    memcpy(speed_out->spec, what->codec->spec, DSC_SPEED_SPEC_BYTES);
    speed_out->dtype = (uint8_t)what->dtype;
    speed_out->feedback = what->feedback;
    speed_out->send_fs = near[STEP_SEND];
    speed_out->add_fs = near[STEP_MANY];
    speed_out->own_fs = near[STEP_FEW];
    speed_out->decode_fs = near[STEP_DECODE];
    speed_out->far_send_fs = far[STEP_SEND];
    speed_out->far_own_fs = far[STEP_FEW];
    speed_out->far_decode_fs = far[STEP_DECODE];
    return DSCOMM_OK;
}

/* Of vectors: long ones where there is time for them, and it is known how long is enough. */
static size_t elems_of(const struct dsc_meter *m)
{
    const struct dsc_rates *const r = m->rates;
    const size_t per_elem = 4 * sizeof(float);
    const size_t elems = (size_t)(r->cache_bytes / r->ranks_per_host) * FAR_CACHES / per_elem;

    if (m->n_rounds < DSC_ROUNDS_MAX || r->cache_bytes == 0)
        return NEAR_ELEMS;
    return dsc_round_up(dsc_min_size(dsc_max_size(elems, FAR_ELEMS_MIN), FAR_ELEMS_MAX), REPEAT);
}

/* ---- all of them ---- */

static dscomm_status_t measure_listed(struct dsc_meter *m, const struct dsc_measure *what,
                                      struct vectors *v, uint64_t budget_ns)
{
    const uint64_t ranks = m->rates->ranks_per_host, cpus = m->rates->cpus_per_host;
    const uint64_t sharing_ppm = ranks > cpus ? ranks * 1000000u / cpus : 1000000u;
    const uint64_t start = dsc_now_ns();
    int filled = -1;

    for (size_t i = 0; i < what->n_codecs; i++) {
        const struct dsc_measure_codec *const codec = &what->codecs[i];
        const uint64_t until = start + budget_ns * (i + 1) / what->n_codecs;

        if (dsc_now_ns() - start > LATE * budget_ns) {
            dsc_log_info(TUNE, "no time to measure %s and %zu more codecs", codec->codec->spec,
                         what->n_codecs - i - 1);
            break;
        }
        if (filled != (int)codec->dtype)
            fill(v->send, v->elems, codec->dtype);
        filled = (int)codec->dtype;
        DSC_TRY(measure_codec(v, codec, until, sharing_ppm, &m->rates->speeds[i]));
        m->rates->n_speeds++;
    }
    return DSCOMM_OK;
}

dscomm_status_t dsc_meter_codecs(struct dsc_meter *m, const struct dsc_measure *what,
                                 uint64_t budget_ns)
{
    struct vectors v = { .elems = elems_of(m) };
    struct dsc_agreed agreed;
    dscomm_status_t st;
    uint32_t fp;

    if (what->n_codecs == 0)
        return DSCOMM_OK;
    st = make_vectors(&v) ? DSCOMM_OK : dsc_fail(DSCOMM_ERR_NO_MEMORY, "vectors to measure with");
    if (st == DSCOMM_OK && m->comm->n_ranks > 1)
        st = dsc_meter_agree(m, 1, &agreed); /* all begin at the same time */
    fp = dsc_fp_enter();
    if (st == DSCOMM_OK)
        st = measure_listed(m, what, &v, budget_ns);
    dsc_fp_leave(fp);
    free_vectors(&v);
    if (st < 0 && atomic_load(&m->comm->failed) >= 0)
        st = dsc_comm_fail(m->comm, NULL, st, -1);
    return st;
}
