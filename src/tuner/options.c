/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The candidates: codec of the slowest tier x flat one-shot, flat two-shot, two-shot over the tiers
 * x chunk. Inner tiers send fp32 (one lossy step going up), and where the data have 16 bits also
 * `none`. Plans that differ in nothing but codecs share a load, so that a table takes few of them.
 */
#include "tuner/cost.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* In the order of preference. Of formats with equal sizes the one that loses less comes first. */
static const char *const specs[] = {
    "none",  "bf16",        "fp16",  "lossless", "int8",          "fp8",
    "mxfp8", "int4:signed", "nvfp4", "mxfp4",    "topk:0.01,fp8", "topk:0.01",
};

#define N_SPECS DSC_ARRAY_LEN(specs)

#define CHUNK_LARGEST 262144

/* Elements, in the order of preference. Multiples of DSC_PIECE_ALIGN. */
static const size_t chunks[] = { 64256, 32256, CHUNK_LARGEST, 16128, 8192 };

/* What communicators like messages to take at most: two TCP segments of 64 KiB, docs/perf.md. */
#define MESSAGE_BYTES (128u << 10)

#define CHUNKS_MAX 1024            /* of a rank's largest piece */
#define SMALL_CHUNKS_MAX 128       /* the same of chunks smaller than the usual ones */
#define ONE_SHOT_ELEMS (64u << 20) /* of all ranks together: more is never cheapest, nor fits */
#define ONE_SHOT_RANKS 64
#define MEMBERS_MAX 8 /* ranks looked at: one of each kind */

#define ALGORITHM_WEIGHT 100
#define SPEC_WEIGHT 10000

const char *const *dsc_tuner_specs(size_t *n_out)
{
    *n_out = N_SPECS;
    return specs;
}

uint64_t dsc_tuner_bit(const struct dsc_codec *codec)
{
    for (size_t i = 0; i < N_SPECS; i++)
        if (strcmp(codec->spec, specs[i]) == 0)
            return UINT64_C(1) << i;
    return 0;
}

/* ---- ranks that stand for all ---- */

struct kinds {
    int ranks[MEMBERS_MAX];
    int n;
};

/* Sizes of the rank's groups at all tiers but the last: what its part in a plan depends on. */
static bool same_kind(const struct dsc_question *q, const int *sizes, int a, int b)
{
    for (int t = 0; t < q->n_tiers - 1; t++)
        if (sizes[t * q->n_ranks + q->groups[t * q->n_ranks + a]] !=
            sizes[t * q->n_ranks + q->groups[t * q->n_ranks + b]])
            return false;
    return true;
}

/* The last of a kind has the largest pieces: cuts round down. */
static dscomm_status_t find_kinds(const struct dsc_question *q, struct kinds *kinds)
{
    const int n = q->n_ranks;
    int *sizes;

    kinds->ranks[0] = n - 1;
    kinds->n = 1;
    if (q->n_tiers == 1 || q->groups == NULL)
        return DSCOMM_OK;
    sizes = dsc_calloc(DSC_MEM_PLAN, (size_t)q->n_tiers * (size_t)n, sizeof(*sizes));
    if (sizes == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "%d tiers of %d ranks", q->n_tiers, n);
    for (int t = 0; t < q->n_tiers; t++)
        for (int r = 0; r < n; r++)
            sizes[t * n + q->groups[t * n + r]]++;
    for (int r = n - 1; r >= 0 && kinds->n < MEMBERS_MAX; r--) {
        bool is_new = true;

        for (int k = 0; k < kinds->n; k++)
            is_new = is_new && !same_kind(q, sizes, r, kinds->ranks[k]);
        if (is_new)
            kinds->ranks[kinds->n++] = r;
    }
    dsc_free(sizes);
    return DSCOMM_OK;
}

/* ---- loads, made when first asked for ---- */

struct shape {
    enum dsc_algorithm algorithm;
    int n_tiers;
    size_t chunk_elems;
};

struct cached {
    struct shape shape;
    struct dsc_load loads[MEMBERS_MAX];
    int n;
};

#define CACHED_MAX 64

struct table {
    const struct dsc_question *q;
    const struct dsc_rates *rates;
    struct dsc_option *options;
    size_t n_options;
    const struct dsc_codec *fp32;
    struct kinds kinds;
    struct cached cache[CACHED_MAX];
    int n_cached;
};

static struct dsc_plan_params params_of(const struct table *table, const struct shape *shape,
                                        int rank)
{
    const struct dsc_question *const q = table->q;
    struct dsc_plan_params params = { .collective = DSC_ALLREDUCE,
                                      .n_ranks = q->n_ranks,
                                      .rank = rank,
                                      .count = q->count,
                                      .dtype = q->dtype,
                                      .op = q->op,
                                      .feedback = q->feedback,
                                      .algorithm = shape->algorithm,
                                      .chunk_elems = shape->chunk_elems,
                                      .n_tiers = shape->n_tiers,
                                      .groups = shape->n_tiers > 1 ? q->groups : NULL };

    for (int t = 0; t < shape->n_tiers; t++)
        params.codecs[t] = table->fp32;
    return params;
}

static bool same_shape(const struct shape *a, const struct shape *b)
{
    return a->algorithm == b->algorithm && a->n_tiers == b->n_tiers &&
           a->chunk_elems == b->chunk_elems;
}

static dscomm_status_t find_loads(struct table *table, const struct shape *shape,
                                  struct cached **cached_out)
{
    struct cached *fresh;

    for (int i = 0; i < table->n_cached; i++)
        if (same_shape(&table->cache[i].shape, shape)) {
            *cached_out = &table->cache[i];
            return DSCOMM_OK;
        }
    if (table->n_cached == CACHED_MAX)
        return dsc_fail(DSCOMM_ERR_LIMIT, "more than %d shapes of plans", CACHED_MAX);
    fresh = &table->cache[table->n_cached++];
    fresh->shape = *shape;
    for (; fresh->n < table->kinds.n; fresh->n++) {
        const struct dsc_plan_params params = params_of(table, shape, table->kinds.ranks[fresh->n]);

        DSC_TRY(
            dsc_load_init(&fresh->loads[fresh->n], &params, table->q->groups, table->q->n_tiers));
    }
    *cached_out = fresh;
    return DSCOMM_OK;
}

/* ---- one candidate ---- */

/* A feedback object that only such calls had is known to be zero and not touched by them. */
static bool touches_feedback(const struct table *table, const struct dsc_option *option)
{
    bool is_plain = true;

    for (int t = 0; t < option->choice.n_tiers; t++)
        is_plain = is_plain && option->choice.codecs[t]->by_dtype;
    return table->q->feedback && !is_plain;
}

/* The measured speed; of another data type or without feedback where only that is known. */
static const struct dsc_codec_speed *find_speed(const struct table *table, const char *spec,
                                                bool feedback)
{
    const dscomm_dtype_t dtypes[] = { table->q->dtype, DSCOMM_FLOAT32 };

    for (size_t i = 0; i < 2 * DSC_ARRAY_LEN(dtypes); i++) {
        const struct dsc_codec_speed *const speed =
            dsc_rates_speed(table->rates, spec, dtypes[i / 2], i % 2 == 0 ? feedback : !feedback);

        if (speed != NULL)
            return speed;
    }
    return NULL;
}

/* NULL: may be used; else why not. */
static const char *refusal(const struct table *table, const struct dsc_codec *codec)
{
    const struct dsc_question *const q = table->q;

    if (q->codec != NULL)
        return NULL;
    if (codec->sums_only && q->op != DSCOMM_SUM && q->op != DSCOMM_AVG)
        return "only for sum and avg";
    if (q->in_memory && strcmp(codec->spec, specs[0]) != 0)
        return "shared memory is no link to spare";
    if ((q->absent & dsc_tuner_bit(codec)) != 0)
        return "only for CPUs";
    if ((q->banned & dsc_tuner_bit(codec)) != 0)
        return "banned: its error was too large";
    return dsc_budget_refuses(&q->budget, codec, q->feedback);
}

static void refuse(struct dsc_option *option, const char *reason)
{
    option->is_admitted = false;
    (void)snprintf(option->reason, sizeof(option->reason), "%s", reason);
}

/* Takes over the rank that takes longest. */
static void take_cost(struct dsc_option *option, const struct dsc_cost *cost)
{
    if (option->total_ns != 0 && cost->total_ns <= option->total_ns)
        return;
    option->total_ns = cost->total_ns;
    memcpy(option->wire_ns, cost->wire_ns, sizeof(option->wire_ns));
    memcpy(option->tx_bytes, cost->tx_bytes, sizeof(option->tx_bytes));
    option->codec_ns = cost->codec_ns;
    option->cpu_ns = cost->cpu_ns;
    option->latency_ns = cost->latency_ns;
    option->messages = (uint32_t)dsc_min_u64(cost->messages, UINT32_MAX);
}

static void price(const struct table *table, const struct cached *cached,
                  const struct dsc_cost_codec *codecs, struct dsc_option *option)
{
    for (int i = 0; i < cached->n; i++) {
        struct dsc_cost cost;
        int tier = 0;

        if (!dsc_cost_of(&cached->loads[i], codecs, table->q, table->rates, &cost, &tier)) {
            option->total_ns = DSC_UNKNOWN_NS;
            option->is_admitted = false;
            (void)snprintf(option->reason, sizeof(option->reason), "tier %d was not measured",
                           tier);
            return;
        }
        take_cost(option, &cost);
    }
}

/* A message too long for connections: nobody could make the plan. */
static void check_messages(const struct table *table, struct dsc_option *option,
                           const struct dsc_cost_codec *codecs)
{
    const size_t n = dsc_min_size(option->choice.chunk_elems, table->q->count);
    size_t most = 0;

    for (int t = 0; t < option->choice.n_tiers; t++)
        most = dsc_max_size(most, dsc_longest_message(codecs[t].codec, n));
    if (table->q->message_bytes == 0 || most <= table->q->message_bytes)
        return;
    option->is_admitted = false;
    (void)snprintf(option->reason, sizeof(option->reason),
                   "messages of %zu bytes, connections carry %zu", most, table->q->message_bytes);
}

uint64_t dsc_question_far_ppm(const struct dsc_question *q, const struct dsc_rates *rates,
                              bool feedback)
{
    const uint64_t ranks =
        q->ranks_per_host > 0 ? (uint64_t)q->ranks_per_host : rates->ranks_per_host;
    const uint64_t per_elem = 2 * dsc_dtype_bytes(q->dtype) + (feedback ? 2 * sizeof(float) : 0);
    const uint64_t touched = dsc_mul_div(q->count, ranks * per_elem, 1);
    const uint64_t cache = rates->cache_bytes, half = cache / 2;

    if (cache == 0 || touched <= half)
        return 0;
    return touched >= cache ? DSC_MILLION : dsc_mul_div(touched - half, DSC_MILLION, cache - half);
}

static uint32_t mix_fs(uint32_t near_fs, uint32_t far_fs, uint64_t ppm)
{
    if (far_fs == 0)
        return near_fs;
    return (uint32_t)((near_fs * (DSC_MILLION - ppm) + far_fs * ppm) / DSC_MILLION);
}

static struct dsc_codec_speed mix_speed(const struct dsc_codec_speed *speed, uint64_t ppm)
{
    struct dsc_codec_speed mixed = *speed;

    mixed.send_fs = mix_fs(speed->send_fs, speed->far_send_fs, ppm);
    mixed.own_fs = mix_fs(speed->own_fs, speed->far_own_fs, ppm);
    mixed.decode_fs = mix_fs(speed->decode_fs, speed->far_decode_fs, ppm);
    return mixed;
}

/* Codecs per tier with their speeds; false: one was not measured. */
static bool look_up(const struct table *table, struct dsc_option *option,
                    struct dsc_cost_codec codecs[DSC_MAX_TIERS])
{
    for (int t = 0; t < option->choice.n_tiers; t++) {
        const struct dsc_codec *const codec = option->choice.codecs[t];
        const struct dsc_codec_speed *const speed =
            find_speed(table, codec->spec, touches_feedback(table, option));

        codecs[t].codec = dsc_codec_resolve(codec, table->q->dtype);
        if (codecs[t].codec->e0_ppm > option->error_ppm)
            option->error_ppm = codecs[t].codec->e0_ppm;
        if (speed == NULL) {
            option->total_ns = DSC_UNKNOWN_NS;
            option->is_admitted = false;
            (void)snprintf(option->reason, sizeof(option->reason), "the speed of %s is not known",
                           codec->spec);
            return false;
        }
        codecs[t].speed = mix_speed(
            speed, dsc_question_far_ppm(table->q, table->rates, touches_feedback(table, option)));
    }
    return true;
}

static dscomm_status_t add_option(struct table *table, const struct shape *shape,
                                  const struct dsc_codec *inner, const struct dsc_codec *codec,
                                  uint32_t preference)
{
    struct dsc_option *const option = &table->options[table->n_options];
    struct dsc_cost_codec codecs[DSC_MAX_TIERS];
    const char *const reason = refusal(table, codec);
    struct cached *cached;
    struct shape rounded = *shape;

    if (table->n_options == DSC_OPTIONS_MAX)
        return DSCOMM_OK;
    memset(option, 0, sizeof(*option));
    option->is_admitted = true;
    option->rank = preference;
    option->choice.algorithm = shape->algorithm;
    option->choice.n_tiers = shape->n_tiers;
    for (int t = 0; t < shape->n_tiers; t++)
        option->choice.codecs[t] = t < shape->n_tiers - 1 ? inner : codec;
    if (reason != NULL)
        refuse(option, reason);
    rounded.chunk_elems =
        dsc_round_up(shape->chunk_elems, dsc_max_size(DSC_PIECE_ALIGN, codec->tile_align));
    DSC_TRY(find_loads(table, &rounded, &cached));
    option->choice.chunk_elems = cached->loads[0].chunk_elems;
    table->n_options++;
    if (look_up(table, option, codecs)) {
        price(table, cached, codecs, option);
        if (option->is_admitted)
            check_messages(table, option, codecs);
    }
    return DSCOMM_OK;
}

/* ---- all candidates ---- */

static bool is_worth(const struct table *table, enum dsc_algorithm algorithm)
{
    const struct dsc_question *const q = table->q;

    return algorithm != DSC_ALG_ONE_SHOT ||
           (q->n_ranks <= ONE_SHOT_RANKS && q->count <= ONE_SHOT_ELEMS / (size_t)q->n_ranks);
}

/* The largest span that one message stream carries. */
static size_t largest_piece(const struct table *table, enum dsc_algorithm algorithm, int n_tiers)
{
    const struct dsc_question *const q = table->q;

    if (algorithm == DSC_ALG_ONE_SHOT)
        return q->count;
    if (n_tiers == 1 || q->groups == NULL)
        return dsc_ceil_div(q->count, (size_t)q->n_ranks);
    return dsc_ceil_div(q->count, 2); /* at least two members join at the first tier */
}

/* Chunks that differ for the piece: not more than it takes, and only one that holds all of it. */
static bool is_chunk_useful(size_t piece, size_t i)
{
    if (chunks[i] >= piece) { /* no other that is smaller may do as well, the preferred one goes */
        for (size_t k = 0; k < i; k++)
            if (chunks[k] >= piece)
                return false;
        return true;
    }
    return chunks[i] == CHUNK_LARGEST ||
           piece / chunks[i] <= (i < 2 ? CHUNKS_MAX : SMALL_CHUNKS_MAX);
}

/* Order of preference of chunk i: the first two change places where the first is too long. */
static uint32_t chunk_rank(const struct table *table, const struct dsc_codec *inner,
                           const struct dsc_codec *codec, size_t i)
{
    size_t bytes = dsc_codec_message_bytes(dsc_codec_resolve(codec, table->q->dtype), chunks[0]);

    if (inner != NULL)
        bytes = dsc_max_size(
            bytes, dsc_codec_message_bytes(dsc_codec_resolve(inner, table->q->dtype), chunks[0]));
    return (uint32_t)(i < 2 && bytes > MESSAGE_BYTES ? 1 - i : i);
}

static dscomm_status_t add_chunks(struct table *table, struct shape shape,
                                  const struct dsc_codec *inner, const struct dsc_codec *codec,
                                  uint32_t preference)
{
    const size_t piece = largest_piece(table, shape.algorithm, shape.n_tiers);

    shape.chunk_elems = table->q->chunk_elems;
    if (shape.chunk_elems != 0)
        return add_option(table, &shape, inner, codec, preference);
    for (size_t i = 0; i < DSC_ARRAY_LEN(chunks); i++) {
        bool is_repeated = false;

        if (!is_chunk_useful(piece, i))
            continue;
        for (size_t k = 0; k < i; k++) /* rounded to the codec's unit they are the same */
            is_repeated = is_repeated || (is_chunk_useful(piece, k) &&
                                          dsc_round_up(chunks[k], codec->tile_align) ==
                                              dsc_round_up(chunks[i], codec->tile_align));
        if (is_repeated)
            continue;
        shape.chunk_elems = chunks[i];
        DSC_TRY(add_option(table, &shape, inner, codec,
                           preference + chunk_rank(table, inner, codec, i)));
    }
    return DSCOMM_OK;
}

static dscomm_status_t add_codec(struct table *table, const struct dsc_codec *none,
                                 const struct dsc_codec *codec, uint32_t preference)
{
    const struct dsc_question *const q = table->q;
    struct shape shape = { .algorithm = DSC_ALG_ONE_SHOT, .n_tiers = 1 };

    if (is_worth(table, shape.algorithm))
        DSC_TRY(add_chunks(table, shape, NULL, codec, preference));
    shape.algorithm = DSC_ALG_TWO_SHOT;
    DSC_TRY(add_chunks(table, shape, NULL, codec, preference + ALGORITHM_WEIGHT));
    if (q->n_tiers == 1)
        return DSCOMM_OK;
    shape.n_tiers = q->n_tiers;
    if (q->dtype == DSCOMM_FLOAT32) /* `none` is fp32 there, and leaves a residual of zeros alone */
        return add_chunks(table, shape, codec->by_dtype ? none : table->fp32, codec,
                          preference + 2 * ALGORITHM_WEIGHT);
    DSC_TRY(add_chunks(table, shape, table->fp32, codec, preference + 2 * ALGORITHM_WEIGHT));
    return add_chunks(table, shape, none, codec, preference + 3 * ALGORITHM_WEIGHT);
}

static dscomm_status_t add_all(struct table *table)
{
    const struct dsc_codec *none = NULL;

    DSC_TRY(dscomm_codec_parse("fp32", &table->fp32));
    DSC_TRY(dscomm_codec_parse("none", &none));
    if (table->q->codec != NULL)
        return add_codec(table, none, table->q->codec, 0);
    for (size_t i = 0; i < N_SPECS; i++) {
        const struct dsc_codec *codec = NULL;

        DSC_TRY(dscomm_codec_parse(specs[i], &codec));
        if (codec != none && dsc_codec_resolve(none, table->q->dtype) == codec)
            continue; /* bf16 data as bf16: that is none */
        DSC_TRY(add_codec(table, none, codec, (uint32_t)i * SPEC_WEIGHT));
    }
    return DSCOMM_OK;
}

static int compare_options(const void *a, const void *b)
{
    const struct dsc_option *const x = a, *const y = b;

    if (x->total_ns != y->total_ns)
        return x->total_ns < y->total_ns ? -1 : 1;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static dscomm_status_t check_question(const struct dsc_question *q, const struct dsc_rates *rates)
{
    if (q->n_ranks < 1)
        return dsc_fail(DSCOMM_ERR_INVALID, "%d ranks, must be 1 or more", q->n_ranks);
    if (q->n_tiers < 1 || q->n_tiers > DSC_MAX_TIERS || rates->n_tiers != (uint32_t)q->n_tiers)
        return dsc_fail(DSCOMM_ERR_INVALID, "rates of %u tiers for %d tiers", rates->n_tiers,
                        q->n_tiers);
    if (q->groups == NULL && q->n_tiers > 1)
        return dsc_fail(DSCOMM_ERR_INVALID, "%d tiers without groups", q->n_tiers);
    for (int i = 0; q->groups != NULL && i < q->n_tiers * q->n_ranks; i++)
        if (q->groups[i] < 0 || q->groups[i] >= q->n_ranks)
            return dsc_fail(DSCOMM_ERR_INVALID, "group %d of rank %d, must be 0 to %d",
                            q->groups[i], i % q->n_ranks, q->n_ranks - 1);
    return DSCOMM_OK;
}

/* Nobody to talk to, or nothing to say: the communicator's own rules. */
static void add_local(const struct dsc_question *q, const struct dsc_rates *rates,
                      struct table *table)
{
    struct dsc_option *const option = &table->options[table->n_options++];

    memset(option, 0, sizeof(*option));
    option->choice = (struct dsc_choice){ .n_tiers = 1, .codecs = { dscomm_codec("none") } };
    option->total_ns = rates->call_ns;
    option->cpu_ns = rates->call_ns;
    option->is_admitted = true;
    (void)snprintf(option->reason, sizeof(option->reason), "%s",
                   q->n_ranks == 1 ? "one rank" : "no elements");
}

static void table_destroy(struct table *table)
{
    for (int i = 0; i < table->n_cached; i++)
        for (int k = 0; k < table->cache[i].n; k++)
            dsc_load_fini(&table->cache[i].loads[k]);
    dsc_free(table);
}

dscomm_status_t dsc_tuner_options(const struct dsc_question *question,
                                  const struct dsc_rates *rates,
                                  struct dsc_option options[DSC_OPTIONS_MAX], size_t *n_out)
{
    struct table *table;
    dscomm_status_t st = DSCOMM_OK;

    DSC_TRY(check_question(question, rates));
    table = dsc_calloc(DSC_MEM_PLAN, 1, sizeof(*table));
    if (table == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "table of candidates");
    table->q = question;
    table->rates = rates;
    table->options = options;
    if (question->n_ranks == 1 || question->count == 0) {
        add_local(question, rates, table);
    } else {
        st = find_kinds(question, &table->kinds);
        st = st < 0 ? st : add_all(table);
    }
    if (st >= 0) {
        qsort(options, table->n_options, sizeof(*options), compare_options);
        *n_out = table->n_options;
    }
    table_destroy(table);
    return st < 0 ? st : DSCOMM_OK;
}
