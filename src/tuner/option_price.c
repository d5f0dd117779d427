/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a candidate costs, by the rank that takes longest, and why it may not be taken. Loads of
 * plans are made when they are first asked for: codecs do not change them.
 */
#include "tuner/option_price.h"

#include <string.h>

/* ---- ranks that stand for all ---- */

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
static dscomm_status_t find_kinds(struct dsc_option_table *table)
{
    const struct dsc_question *const q = table->q;
    const int n = q->n_ranks;
    int *sizes;

    table->kinds[0] = n - 1;
    table->n_kinds = 1;
    if (q->n_tiers == 1 || q->groups == NULL)
        return DSCOMM_OK;
    sizes = dsc_calloc(DSC_MEM_PLAN, (size_t)q->n_tiers * (size_t)n, sizeof(*sizes));
    if (sizes == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "%d tiers of %d ranks", q->n_tiers, n);
    for (int t = 0; t < q->n_tiers; t++)
        for (int r = 0; r < n; r++)
            sizes[t * n + q->groups[t * n + r]]++;
    for (int r = n - 1; r >= 0 && table->n_kinds < DSC_KINDS_MAX; r--) {
        bool is_new = true;

        for (int k = 0; k < table->n_kinds; k++)
            is_new = is_new && !same_kind(q, sizes, r, table->kinds[k]);
        if (is_new)
            table->kinds[table->n_kinds++] = r;
    }
    dsc_free(sizes);
    return DSCOMM_OK;
}

/* ---- loads, made when first asked for ---- */

static struct dsc_plan_params params_of(const struct dsc_option_table *table,
                                        const struct dsc_option_shape *shape, int rank)
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

static bool same_shape(const struct dsc_option_shape *a, const struct dsc_option_shape *b)
{
    return a->algorithm == b->algorithm && a->n_tiers == b->n_tiers &&
           a->chunk_elems == b->chunk_elems;
}

static dscomm_status_t find_loads(struct dsc_option_table *table,
                                  const struct dsc_option_shape *shape,
                                  struct dsc_option_loads **cached_out)
{
    struct dsc_option_loads *fresh;

    for (int i = 0; i < table->n_cached; i++)
        if (same_shape(&table->cache[i].shape, shape)) {
            *cached_out = &table->cache[i];
            return DSCOMM_OK;
        }
    if (table->n_cached == DSC_SHAPES_MAX)
        return dsc_fail(DSCOMM_ERR_LIMIT, "more than %d shapes of plans", DSC_SHAPES_MAX);
    fresh = &table->cache[table->n_cached++];
    fresh->shape = *shape;
    for (; fresh->n < table->n_kinds; fresh->n++) {
        const struct dsc_plan_params params = params_of(table, shape, table->kinds[fresh->n]);

        DSC_TRY(
            dsc_load_init(&fresh->loads[fresh->n], &params, table->q->groups, table->q->n_tiers));
    }
    *cached_out = fresh;
    return DSCOMM_OK;
}

/* ---- one candidate ---- */

/* A feedback object that only such calls had is known to be zero and not touched by them. */
static bool touches_feedback(const struct dsc_option_table *table, const struct dsc_option *option)
{
    bool is_plain = true;

    for (int t = 0; t < option->choice.n_tiers; t++)
        is_plain = is_plain && option->choice.codecs[t]->by_dtype;
    return table->q->feedback && !is_plain;
}

/* The measured speed; of another data type or without feedback where only that is known. */
static const struct dsc_codec_speed *find_speed(const struct dsc_option_table *table,
                                                const char *spec, bool feedback)
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
static const char *refusal(const struct dsc_option_table *table, const struct dsc_codec *codec)
{
    const struct dsc_question *const q = table->q;

    if (q->codec != NULL)
        return NULL;
    if (codec->sums_only && q->op != DSCOMM_SUM && q->op != DSCOMM_AVG)
        return "only for sum and avg";
    if (q->in_memory && codec != table->none)
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

static void price(const struct dsc_option_table *table, const struct dsc_option_loads *cached,
                  const struct dsc_cost_codec *codecs, struct dsc_option *option)
{
    const uint64_t far_ppm =
        dsc_question_far_ppm(table->q, table->rates, touches_feedback(table, option));

    for (int i = 0; i < cached->n; i++) {
        struct dsc_cost cost;
        int tier = 0;

        if (!dsc_cost_of(&cached->loads[i], codecs, table->q, table->rates, far_ppm, &cost,
                         &tier)) {
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
static void check_messages(const struct dsc_option_table *table, struct dsc_option *option,
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

static struct dsc_codec_speed mix_speed(const struct dsc_codec_speed *speed, uint64_t ppm)
{
    struct dsc_codec_speed mixed = *speed;

    mixed.send_fs = dsc_mix_fs(speed->send_fs, speed->far_send_fs, ppm);
    mixed.own_fs = dsc_mix_fs(speed->own_fs, speed->far_own_fs, ppm);
    mixed.decode_fs = dsc_mix_fs(speed->decode_fs, speed->far_decode_fs, ppm);
    return mixed;
}

/* Codecs per tier with their speeds; false: one was not measured. */
static bool look_up(const struct dsc_option_table *table, struct dsc_option *option,
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

dscomm_status_t dsc_option_add(struct dsc_option_table *table, const struct dsc_option_shape *shape,
                               const struct dsc_codec *inner, const struct dsc_codec *codec,
                               uint32_t preference)
{
    struct dsc_option *const option = &table->options[table->n_options];
    struct dsc_cost_codec codecs[DSC_MAX_TIERS];
    const char *const reason = refusal(table, codec);
    struct dsc_option_loads *cached;
    struct dsc_option_shape rounded = *shape;

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

/* ---- the table ---- */

dscomm_status_t dsc_option_table_init(struct dsc_option_table *table)
{
    DSC_TRY(dscomm_codec_parse("none", &table->none));
    DSC_TRY(dscomm_codec_parse("fp32", &table->fp32));
    return find_kinds(table);
}

void dsc_option_table_fini(struct dsc_option_table *table)
{
    for (int i = 0; i < table->n_cached; i++)
        for (int k = 0; k < table->cache[i].n; k++)
            dsc_load_fini(&table->cache[i].loads[k]);
}
