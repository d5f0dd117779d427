/* SPDX-License-Identifier: Apache-2.0 */
/* The table for people: one line per codec and algorithm, at its cheapest chunk. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tuner/explain_table.h"
#include "tuner/machine.h"

/* Which speeds of codecs hold: those of vectors in caches, of vectors in memory, or a mix. */
static void print_cache(const struct dsc_explain *about, FILE *out)
{
    const uint64_t far = dsc_question_far_ppm(about->question, about->rates, false);
    const uint64_t with_residual =
        dsc_question_far_ppm(about->question, about->rates, about->question->feedback);

    if (about->rates->cache_bytes == 0)
        return;
    (void)fprintf(out,
                  "caches      %" PRIu64 " KiB for the ranks of a host: vectors are %" PRIu64
                  " %% in memory, with residuals %" PRIu64 " %%\n",
                  about->rates->cache_bytes / 1024, far / 10000, with_residual / 10000);
}

static void print_question(const struct dsc_explain *about, FILE *out)
{
    const struct dsc_question *const q = about->question;
    char budget[32];

    (void)fprintf(out, "question    allreduce of %zu %s, %s, feedback %s, budget %s, %d ranks\n",
                  q->count, dsc_dtype_name(q->dtype), dsc_op_name(q->op),
                  q->feedback ? "on" : "off", dsc_budget_text(&q->budget, budget, sizeof(budget)),
                  q->n_ranks);
    (void)fprintf(out, "rates       %s\n", about->source);
    (void)fprintf(out, "model       stages %s\n",
                  about->rates->overlap != 0 ? "overlap" : "one after another");
    print_cache(about, out);
}

static int count_groups(const struct dsc_question *q, int t)
{
    int most = 0;

    for (int r = 0; q->groups != NULL && r < q->n_ranks; r++)
        most = q->groups[t * q->n_ranks + r] > most ? q->groups[t * q->n_ranks + r] : most;
    return most + 1;
}

static void print_tiers(const struct dsc_explain *about, FILE *out)
{
    for (int t = 0; t < about->question->n_tiers; t++) {
        const struct dsc_tier_rates *const tier = &about->rates->tiers[t];

        (void)fprintf(out, "tier %d      %s, groups %d, ", t, dsc_tier_kind_name(tier->kind),
                      count_groups(about->question, t));
        if (tier->bytes_per_s == 0)
            (void)fprintf(out, "rate unknown\n");
        else
            (void)fprintf(out,
                          "%" PRIu64 " MB/s per rank, alone %" PRIu64 ", latency %" PRIu64 " ns\n",
                          tier->bytes_per_s / DSC_MILLION, tier->bytes_per_s_alone / DSC_MILLION,
                          tier->latency_ns);
    }
    if (about->missing[0] != '\0')
        (void)fprintf(out, "unknown     %s\n", about->missing);
}

static void print_us(uint64_t ns, FILE *out)
{
    if (ns == DSC_UNKNOWN_NS)
        (void)fprintf(out, " %11s", "unknown");
    else
        (void)fprintf(out, " %9" PRIu64 ".%" PRIu64, ns / 1000, ns / 100 % 10);
}

/* What inner tiers send; NULL: there are none. */
static const struct dsc_codec *inner_codec(const struct dsc_option *option)
{
    return option->choice.n_tiers > 1 ? option->choice.codecs[0] : NULL;
}

static void print_option(const struct dsc_explain_table *table, const struct dsc_option *o,
                         FILE *out)
{
    const struct dsc_codec *const inner = inner_codec(o);

    (void)fprintf(out, "%-14s %-8s %-5s %7zu", dsc_option_codec(o)->spec, dsc_option_shape(o),
                  inner != NULL ? inner->spec : "-", o->choice.chunk_elems);
    print_us(o->total_ns, out);
    for (int t = 0; t < table->about->question->n_tiers; t++)
        print_us(o->wire_ns[t], out);
    print_us(o->codec_ns, out);
    print_us(o->cpu_ns, out);
    print_us(o->latency_ns, out);
    (void)fprintf(out, " %8" PRIu64 ".%06" PRIu64 "  %s\n", o->error_ppm / DSC_MILLION,
                  o->error_ppm % DSC_MILLION, o->is_admitted ? "admitted" : o->reason);
}

static void print_head(const struct dsc_explain_table *table, FILE *out)
{
    (void)fprintf(out, "\n%-14s %-8s %-5s %7s %11s", "codec", "shape", "inner", "chunk",
                  "total us");
    for (int t = 0; t < table->about->question->n_tiers; t++)
        (void)fprintf(out, "   wire%d us", t);
    (void)fprintf(out, " %11s %11s %11s %15s  %s\n", "codec us", "cpu us", "latency us", "error e0",
                  "admitted, or why not");
}

/* Equal but for the chunk. */
static bool are_alike(const struct dsc_option *a, const struct dsc_option *b)
{
    return a->choice.algorithm == b->choice.algorithm && a->choice.n_tiers == b->choice.n_tiers &&
           dsc_option_codec(a) == dsc_option_codec(b) && inner_codec(a) == inner_codec(b);
}

/* Of a candidate with several chunks the cheapest is shown that may be taken, if any may. */
static bool is_shown(const struct dsc_explain_table *table, size_t i)
{
    const struct dsc_option *const o = &table->options[i];

    for (size_t k = 0; k < table->n; k++) {
        const struct dsc_option *const other = &table->options[k];
        const bool is_better = other->is_admitted != o->is_admitted ? other->is_admitted : k < i;

        if (is_better && are_alike(other, o))
            return false;
    }
    return true;
}

static void print_choice(const struct dsc_decision *decision, FILE *out)
{
    const struct dsc_option *const o = &decision->option;

    if (o->choice.n_tiers == 0)
        (void)fprintf(out, "none by default");
    else
        (void)fprintf(out, "%s %s, chunk %zu, %" PRIu64 ".%03" PRIu64 " ms",
                      dsc_option_codec(o)->spec, dsc_option_shape(o), o->choice.chunk_elems,
                      o->total_ns / 1000000, o->total_ns / 1000 % 1000);
}

static void print_text(const struct dsc_explain_table *table, FILE *out)
{
    print_question(table->about, out);
    print_tiers(table->about, out);
    print_head(table, out);
    for (size_t i = 0; i < table->n; i++)
        if (is_shown(table, i))
            print_option(table, &table->options[i], out);
    (void)fprintf(out, "\nchoice      ");
    print_choice(&table->decision, out);
    (void)fprintf(out, "\nreason      %s\n", table->decision.reason);
    (void)fprintf(out, "by          %s\n",
                  table->decision.is_preference ? "preference, not cost" : "cost");
    (void)fprintf(out, "%s ", table->about->rates->overlap != 0 ? "no overlap " : "overlapped ");
    print_choice(&table->other, out);
    if (dsc_option_codec(&table->other.option) != dsc_option_codec(&table->decision.option))
        (void)fprintf(out, "; that model disagrees: %s", table->other.reason);
    (void)fprintf(out, "\n");
}

/* ---- what both forms share ---- */

const struct dsc_codec *dsc_option_codec(const struct dsc_option *option)
{
    const int n = option->choice.n_tiers;

    return n == 0 ? NULL : option->choice.codecs[n - 1];
}

const char *dsc_option_shape(const struct dsc_option *option)
{
    return option->choice.n_tiers > 1 ? "tiered" : dsc_algorithm_name(option->choice.algorithm);
}

static dscomm_status_t fill(struct dsc_explain_table *table)
{
    const struct dsc_explain *const about = table->about;
    struct dsc_rates other = *about->rates;

    DSC_TRY(dsc_tuner_options(about->question, about->rates, table->options, &table->n));
    dsc_tuner_pick(about->question, about->rates, table->options, table->n, &table->decision);
    other.overlap = !other.overlap;
    return dsc_tuner_choose(about->question, &other, &table->other);
}

dscomm_status_t dsc_explain_print(const struct dsc_explain *explain, dscomm_explain_format_t format,
                                  FILE *out)
{
    struct dsc_explain_table *const table = dsc_calloc(DSC_MEM_TUNER, 1, sizeof(*table));
    dscomm_status_t st;

    if (table == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "table of candidates");
    table->about = explain;
    st = fill(table);
    if (st >= 0 && format == DSCOMM_EXPLAIN_TEXT)
        print_text(table, out);
    else if (st >= 0 && !dsc_explain_json(table, out))
        st = dsc_fail(DSCOMM_ERR_NO_MEMORY, "table of candidates as JSON");
    dsc_free(table);
    DSC_TRY(st);
    if (fflush(out) != 0 || ferror(out) != 0)
        return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "writing the table of candidates");
    return DSCOMM_OK;
}

/* ---- of a machine ---- */

dscomm_status_t dsc_query_check(const dscomm_tuner_query_t *query, dscomm_explain_format_t format,
                                struct dsc_budget *budget)
{
    if (query == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "query is NULL");
    if (format != DSCOMM_EXPLAIN_TEXT && format != DSCOMM_EXPLAIN_JSON)
        return dsc_fail(DSCOMM_ERR_INVALID, "format %d, must be 0 or 1", (int)format);
    if (query->struct_bytes != sizeof(*query))
        return dsc_fail(DSCOMM_ERR_INVALID, "query struct_bytes %zu, must be %zu",
                        query->struct_bytes, sizeof(*query));
    if (query->count > SIZE_MAX / 64)
        return dsc_fail(DSCOMM_ERR_INVALID, "count %zu, at most %zu", query->count, SIZE_MAX / 64);
    if (dsc_dtype_bytes(query->dtype) == 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "dtype %d is not known", (int)query->dtype);
    if (strcmp(dsc_op_name(query->op), "?") == 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "op %d is not known", (int)query->op);
    if (query->overlap < -1 || query->overlap > 1)
        return dsc_fail(DSCOMM_ERR_INVALID, "overlap %d, must be -1 to 1", query->overlap);
    if (query->budget == NULL || !dsc_budget_parse(query->budget, budget))
        return dsc_fail(DSCOMM_ERR_INVALID, "budget '%.40s', must be " DSC_BUDGET_FORM,
                        query->budget != NULL ? query->budget : "(null)");
    return DSCOMM_OK;
}

dscomm_status_t dscomm_tuner_explain(const dscomm_tuner_t *tuner, const dscomm_tuner_query_t *query,
                                     dscomm_explain_format_t format, FILE *out)
{
    struct dsc_question question;
    struct dsc_rates rates;
    struct dsc_budget budget = { 0 };

    if (tuner == NULL || out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s is NULL", tuner == NULL ? "tuner" : "out");
    DSC_TRY(dsc_query_check(query, format, &budget));
    rates = tuner->rates;
    if (query->overlap >= 0)
        rates.overlap = (uint32_t)query->overlap;
    question = dsc_machine_question(tuner, query->count, query->dtype);
    question.op = query->op;
    question.feedback = query->feedback != 0;
    question.budget = budget;
    return dsc_explain_print(
        &(struct dsc_explain){ &question, &rates, tuner->source, tuner->missing }, format, out);
}

dscomm_status_t dscomm_tuner_explain_text(const dscomm_tuner_t *tuner,
                                          const dscomm_tuner_query_t *query,
                                          dscomm_explain_format_t format, char *buf,
                                          size_t buf_bytes, size_t *needed_out)
{
    char *text = NULL;
    size_t len = 0;
    FILE *const out = open_memstream(&text, &len);
    dscomm_status_t st;

    if (out == NULL)
        return dsc_fail_errno(DSCOMM_ERR_NO_MEMORY, "a text in memory");
    st = dscomm_tuner_explain(tuner, query, format, out);
    if (fclose(out) != 0 && st >= 0)
        st = dsc_fail_errno(DSCOMM_ERR_NO_MEMORY, "a text in memory");
    if (st >= 0 && needed_out != NULL)
        *needed_out = len + 1;
    if (st >= 0 && buf_bytes > len)
        memcpy(buf, text, len + 1);
    else if (st >= 0 && buf_bytes > 0)
        st = dsc_fail(DSCOMM_ERR_LIMIT, "buf_bytes %zu, the table takes %zu", buf_bytes, len + 1);
    free(text);
    return st;
}
