/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The candidates: codec of the slowest tier x flat one-shot, flat two-shot, two-shot over the tiers
 * x chunk. Inner tiers send fp32 (one lossy step going up), and where the data have 16 bits also
 * `none`.
 */
#include "tuner/option_price.h"

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

/* ---- all candidates ---- */

static bool is_worth(const struct dsc_option_table *table, enum dsc_algorithm algorithm)
{
    const struct dsc_question *const q = table->q;

    return algorithm != DSC_ALG_ONE_SHOT ||
           (q->n_ranks <= ONE_SHOT_RANKS && q->count <= ONE_SHOT_ELEMS / (size_t)q->n_ranks);
}

/* The largest span that one message stream carries. */
static size_t largest_piece(const struct dsc_option_table *table, enum dsc_algorithm algorithm,
                            int n_tiers)
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
static uint32_t chunk_rank(const struct dsc_option_table *table, const struct dsc_codec *inner,
                           const struct dsc_codec *codec, size_t i)
{
    size_t bytes = dsc_codec_message_bytes(dsc_codec_resolve(codec, table->q->dtype), chunks[0]);

    if (inner != NULL)
        bytes = dsc_max_size(
            bytes, dsc_codec_message_bytes(dsc_codec_resolve(inner, table->q->dtype), chunks[0]));
    return (uint32_t)(i < 2 && bytes > MESSAGE_BYTES ? 1 - i : i);
}

static dscomm_status_t add_chunks(struct dsc_option_table *table, struct dsc_option_shape shape,
                                  const struct dsc_codec *inner, const struct dsc_codec *codec,
                                  uint32_t preference)
{
    const size_t piece = largest_piece(table, shape.algorithm, shape.n_tiers);

    shape.chunk_elems = table->q->chunk_elems;
    if (shape.chunk_elems != 0)
        return dsc_option_add(table, &shape, inner, codec, preference);
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
        DSC_TRY(dsc_option_add(table, &shape, inner, codec,
                               preference + chunk_rank(table, inner, codec, i)));
    }
    return DSCOMM_OK;
}

static dscomm_status_t add_codec(struct dsc_option_table *table, const struct dsc_codec *codec,
                                 uint32_t preference)
{
    const struct dsc_question *const q = table->q;
    struct dsc_option_shape shape = { .algorithm = DSC_ALG_ONE_SHOT, .n_tiers = 1 };

    if (is_worth(table, shape.algorithm))
        DSC_TRY(add_chunks(table, shape, NULL, codec, preference));
    shape.algorithm = DSC_ALG_TWO_SHOT;
    DSC_TRY(add_chunks(table, shape, NULL, codec, preference + ALGORITHM_WEIGHT));
    if (q->n_tiers == 1)
        return DSCOMM_OK;
    shape.n_tiers = q->n_tiers;
    if (q->dtype == DSCOMM_FLOAT32) /* `none` is fp32 there, and leaves a residual of zeros alone */
        return add_chunks(table, shape, codec->by_dtype ? table->none : table->fp32, codec,
                          preference + 2 * ALGORITHM_WEIGHT);
    DSC_TRY(add_chunks(table, shape, table->fp32, codec, preference + 2 * ALGORITHM_WEIGHT));
    return add_chunks(table, shape, table->none, codec, preference + 3 * ALGORITHM_WEIGHT);
}

static dscomm_status_t add_all(struct dsc_option_table *table)
{
    if (table->q->codec != NULL)
        return add_codec(table, table->q->codec, 0);
    for (size_t i = 0; i < N_SPECS; i++) {
        const struct dsc_codec *codec = NULL;

        DSC_TRY(dscomm_codec_parse(specs[i], &codec));
        if (codec != table->none && dsc_codec_resolve(table->none, table->q->dtype) == codec)
            continue; /* bf16 data as bf16: that is none */
        DSC_TRY(add_codec(table, codec, (uint32_t)i * SPEC_WEIGHT));
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
                      struct dsc_option_table *table)
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

dscomm_status_t dsc_tuner_options(const struct dsc_question *question,
                                  const struct dsc_rates *rates,
                                  struct dsc_option options[DSC_OPTIONS_MAX], size_t *n_out)
{
    struct dsc_option_table *table;
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
        st = dsc_option_table_init(table);
        st = st < 0 ? st : add_all(table);
    }
    if (st >= 0) {
        qsort(options, table->n_options, sizeof(*options), compare_options);
        *n_out = table->n_options;
    }
    dsc_option_table_fini(table);
    dsc_free(table);
    return st < 0 ? st : DSCOMM_OK;
}
