/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Speeds of codecs: single operations of real plans, those of vectors that caches do not hold, on
 * 4 MiB of them. An owner is timed with one message and with seven: what six more of them take is
 * the price of six messages. CPU time of many operations, of which a quarter were faster: whatever
 * disturbs one only adds to it. Times the ranks that share a CPU.
 */
#include "comm/measure.h"

#include <string.h>

#define ELEMS ((size_t)1 << 20)
#define CHUNK_ELEMS 16384
#define REPEAT ((size_t)32768)
#define SAMPLES_MAX 32
#define SAMPLES_MIN 2
#define LATE 2      /* times the time that was meant: what is left then is left out */
#define FEW_RANKS 2 /* of the plans */
#define MANY_RANKS 8
#define N_PLANS 3
#define MESSAGE_BYTES (2 * CHUNK_ELEMS * sizeof(float)) /* of any codec, with room */

enum { STEP_SEND, STEP_DECODE, STEP_FEW, STEP_MANY, N_STEPS };

/* The plan of each step: its rank's operations of that kind lie in the first ELEMS elements. */
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
    struct dscomm_plan *plans[N_PLANS];
    struct dsc_call call;
    struct dsc_compute compute[N_PLANS];
    const uint8_t *msgs[MANY_RANKS]; /* equal ones, each in its own memory */
    uint8_t *messages, *out;
    float *scratch;
    uint32_t *thresholds;
    uint64_t fs[N_STEPS][SAMPLES_MAX]; /* femtoseconds per element */
    size_t n[N_STEPS];
    uint32_t at[N_STEPS]; /* operation of the last sample */
};

/* What all codecs share. */
struct vectors {
    void *send, *recv;
    float *residual[2];
    uint8_t *messages; /* [MANY_RANKS] of MESSAGE_BYTES */
    uint8_t *out;
};

/* Bell-shaped values as gradients have, the sum of four even ones; not all of one size. */
static float value_at(size_t i)
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
static void fill(void *vector, dscomm_dtype_t dtype)
{
    const size_t bytes = dsc_dtype_bytes(dtype);
    float values[256];

    for (size_t i = 0; i < REPEAT; i += 256) {
        for (size_t k = 0; k < 256; k++)
            values[k] = value_at(i + k);
        dsc_dtype_store(dtype, (uint8_t *)vector + i * bytes, values, 256);
    }
    for (size_t i = REPEAT; i < ELEMS; i += REPEAT)
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
    v->send = dsc_calloc(DSC_MEM_COMM, ELEMS, sizeof(float));
    v->recv = dsc_calloc(DSC_MEM_COMM, ELEMS, sizeof(float));
    v->residual[0] = dsc_calloc(DSC_MEM_COMM, ELEMS, sizeof(float));
    v->residual[1] = dsc_calloc(DSC_MEM_COMM, ELEMS, sizeof(float));
    v->messages = dsc_calloc(DSC_MEM_COMM, MANY_RANKS, MESSAGE_BYTES);
    v->out = dsc_calloc(DSC_MEM_COMM, 1, MESSAGE_BYTES);
    if (v->send == NULL || v->recv == NULL || v->residual[0] == NULL || v->residual[1] == NULL ||
        v->messages == NULL || v->out == NULL)
        return false;
    memset(v->recv, 1, ELEMS * sizeof(float)); /* pages are there before the clock runs */
    memset(v->residual[1], 0, ELEMS * sizeof(float));
    fill(v->residual[0], DSCOMM_FLOAT32);
    return true;
}

/* ---- one codec ---- */

static dscomm_status_t build(struct bench *b, int k)
{
    struct dsc_plan_params params = { .collective = DSC_ALLREDUCE,
                                      .n_ranks = plans[k].n_ranks,
                                      .rank = plans[k].rank,
                                      .count = ELEMS * (size_t)plans[k].n_ranks,
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
    for (size_t i = 0; i < MANY_RANKS; i++)
        b->msgs[i] = b->messages + i * MESSAGE_BYTES;
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
    for (uint32_t k = 1; k < op->n_recvs; k++)
        memcpy(b->messages + k * MESSAGE_BYTES, b->messages, recv->bytes);
}

static void time_op(struct bench *b, int step, const struct dsc_op *op)
{
    const int plan = steps[step].plan;
    struct dsc_flaw flaw = { 0 };
    uint64_t cpu;

    if (b->n[step] == 0 && op->n_recvs > 0)
        make_messages(b, plan, op);
    cpu = dsc_thread_cpu_ns();
    dsc_compute_op(&b->compute[plan], op, b->msgs, b->out, b->scratch, &flaw);
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
    DSC_ASSERT(p->ops[*at].start + p->ops[*at].n <= ELEMS);
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

static void judge(struct bench *b, uint64_t sharing_ppm, struct dsc_codec_speed *speed_out)
{
    uint64_t fs[N_STEPS], add;

    for (int s = 0; s < N_STEPS; s++)
        fs[s] = dsc_quartile(b->fs[s], b->n[s]);
    add = fs[STEP_MANY] > fs[STEP_FEW] ? (fs[STEP_MANY] - fs[STEP_FEW]) / (MANY_RANKS - FEW_RANKS)
                                       : 0;
    memcpy(speed_out->spec, b->what->codec->spec, DSC_SPEED_SPEC_BYTES);
    speed_out->dtype = (uint8_t)b->what->dtype;
    speed_out->feedback = b->what->feedback;
    speed_out->send_fs = fs_of(fs[STEP_SEND], sharing_ppm);
    speed_out->add_fs = fs_of(add, sharing_ppm);
    speed_out->own_fs = fs_of(fs[STEP_FEW] - dsc_min_u64(add, fs[STEP_FEW]), sharing_ppm);
    speed_out->decode_fs = fs_of(fs[STEP_DECODE], sharing_ppm);
}

static dscomm_status_t measure_codec(const struct vectors *v, const struct dsc_measure_codec *what,
                                     uint64_t until_ns, uint64_t sharing_ppm,
                                     struct dsc_codec_speed *speed_out)
{
    struct bench *const b = dsc_calloc(DSC_MEM_COMM, 1, sizeof(*b));
    dscomm_status_t st;

    if (b == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "measuring %s", what->codec->spec);
    b->what = what;
    st = open_bench(b, v);
    for (size_t i = 0; st == DSCOMM_OK && i < SAMPLES_MAX; i++) {
        if (i >= SAMPLES_MIN && dsc_now_ns() >= until_ns)
            break;
        time_round(b);
    }
    if (st == DSCOMM_OK)
        judge(b, sharing_ppm, speed_out);
    close_bench(b);
    dsc_free(b);
    return st;
}

/* ---- all of them ---- */

static dscomm_status_t measure_listed(struct dsc_meter *m, const struct dsc_measure *what,
                                      const struct vectors *v, uint64_t budget_ns)
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
            fill(v->send, codec->dtype);
        filled = (int)codec->dtype;
        DSC_TRY(measure_codec(v, codec, until, sharing_ppm, &m->rates->speeds[i]));
        m->rates->n_speeds++;
    }
    return DSCOMM_OK;
}

dscomm_status_t dsc_meter_codecs(struct dsc_meter *m, const struct dsc_measure *what,
                                 uint64_t budget_ns)
{
    struct vectors v = { 0 };
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
