/* SPDX-License-Identifier: Apache-2.0 */
/* The table for programs: everything that explain.c prints, and every chunk. */
#include <cjson/cJSON.h>
#include <string.h>

#include "tuner/explain_table.h"

/* cJSON's add functions return NULL for want of memory; what was added before is freed with it. */
static bool add_number(cJSON *to, const char *name, uint64_t value)
{
    return cJSON_AddNumberToObject(to, name, (double)value) != NULL;
}

static bool add_text(cJSON *to, const char *name, const char *text)
{
    return cJSON_AddStringToObject(to, name, text) != NULL;
}

static bool add_bool(cJSON *to, const char *name, bool value)
{
    return cJSON_AddBoolToObject(to, name, value) != NULL;
}

static bool add_question(cJSON *root, const struct dsc_explain *about)
{
    const struct dsc_question *const q = about->question;
    cJSON *const to = cJSON_AddObjectToObject(root, "question");
    char budget[32];

    return to != NULL && add_number(to, "count", q->count) &&
           add_text(to, "dtype", dsc_dtype_name(q->dtype)) &&
           add_text(to, "op", dsc_op_name(q->op)) && add_bool(to, "feedback", q->feedback) &&
           add_text(to, "budget", dsc_budget_text(&q->budget, budget, sizeof(budget))) &&
           add_number(to, "ranks", (uint64_t)q->n_ranks) &&
           add_bool(to, "overlap", about->rates->overlap != 0);
}

static bool add_tier(cJSON *tiers, const struct dsc_tier_rates *tier)
{
    cJSON *const to = cJSON_CreateObject();

    if (to == NULL || !cJSON_AddItemToArray(tiers, to))
        return false;
    if (!add_text(to, "kind", dsc_tier_kind_name(tier->kind)))
        return false;
    if (tier->bytes_per_s == 0) /* unknown is no number */
        return cJSON_AddNullToObject(to, "bytes_per_s") != NULL;
    return add_number(to, "bytes_per_s", tier->bytes_per_s) &&
           add_number(to, "bytes_per_s_alone", tier->bytes_per_s_alone) &&
           add_number(to, "latency_ns", tier->latency_ns);
}

static bool add_tiers(cJSON *root, const struct dsc_explain *about)
{
    cJSON *const tiers = cJSON_AddArrayToObject(root, "tiers");
    bool ok = tiers != NULL;

    for (int t = 0; ok && t < about->question->n_tiers; t++)
        ok = add_tier(tiers, &about->rates->tiers[t]);
    return ok;
}

static bool add_per_tier(cJSON *to, const char *name, const uint64_t *values, int n)
{
    cJSON *const array = cJSON_AddArrayToObject(to, name);
    bool ok = array != NULL;

    for (int t = 0; ok && t < n; t++) {
        cJSON *const value = cJSON_CreateNumber((double)values[t]);

        ok = value != NULL && cJSON_AddItemToArray(array, value);
    }
    return ok;
}

static bool add_times(cJSON *to, const struct dsc_option *o, int n_tiers)
{
    if (o->total_ns == DSC_UNKNOWN_NS)
        return cJSON_AddNullToObject(to, "total_ns") != NULL;
    return add_number(to, "total_ns", o->total_ns) &&
           add_per_tier(to, "wire_ns", o->wire_ns, n_tiers) &&
           add_per_tier(to, "sent_bytes", o->tx_bytes, n_tiers) &&
           add_number(to, "codec_ns", o->codec_ns) && add_number(to, "cpu_ns", o->cpu_ns) &&
           add_number(to, "latency_ns", o->latency_ns) && add_number(to, "messages", o->messages);
}

static bool add_codecs(cJSON *to, const struct dsc_option *o)
{
    cJSON *const array = cJSON_AddArrayToObject(to, "codecs");
    bool ok = array != NULL;

    for (int t = 0; ok && t < o->choice.n_tiers; t++) {
        cJSON *const spec = cJSON_CreateString(o->choice.codecs[t]->spec);

        ok = spec != NULL && cJSON_AddItemToArray(array, spec);
    }
    return ok;
}

static bool fill_option(cJSON *to, const struct dsc_option *o, int n_tiers)
{
    return add_text(to, "codec", dsc_option_codec(o)->spec) &&
           add_text(to, "shape", dsc_option_shape(o)) && add_codecs(to, o) &&
           add_number(to, "chunk_elems", o->choice.chunk_elems) && add_times(to, o, n_tiers) &&
           add_number(to, "error_ppm", o->error_ppm) && add_bool(to, "admitted", o->is_admitted) &&
           add_text(to, "why_not", o->is_admitted ? "" : o->reason);
}

static bool add_options(cJSON *root, const struct dsc_explain_table *table)
{
    cJSON *const array = cJSON_AddArrayToObject(root, "options");
    bool ok = array != NULL;

    for (size_t i = 0; ok && i < table->n; i++) {
        cJSON *const to = cJSON_CreateObject();

        ok = to != NULL && cJSON_AddItemToArray(array, to) &&
             fill_option(to, &table->options[i], table->about->question->n_tiers);
    }
    return ok;
}

static bool add_decision(cJSON *root, const char *name, const struct dsc_decision *decision,
                         int n_tiers)
{
    cJSON *const to = cJSON_AddObjectToObject(root, name);

    if (to == NULL || !add_text(to, "reason", decision->reason) ||
        !add_bool(to, "preference", decision->is_preference))
        return false;
    if (decision->option.choice.n_tiers == 0)
        return cJSON_AddNullToObject(to, "codec") != NULL;
    return fill_option(to, &decision->option, n_tiers);
}

static bool fill(cJSON *root, const struct dsc_explain_table *table)
{
    const int n_tiers = table->about->question->n_tiers;

    return add_question(root, table->about) && add_text(root, "rates", table->about->source) &&
           add_text(root, "unknown", table->about->missing) && add_tiers(root, table->about) &&
           add_options(root, table) && add_decision(root, "choice", &table->decision, n_tiers) &&
           add_decision(root,
                        table->about->rates->overlap != 0 ? "without_overlap" : "with_overlap",
                        &table->other, n_tiers);
}

bool dsc_explain_json(const struct dsc_explain_table *table, FILE *out)
{
    cJSON *const root = cJSON_CreateObject();
    char *const text = root != NULL && fill(root, table) ? cJSON_Print(root) : NULL;
    const bool ok = text != NULL;

    if (ok)
        (void)fprintf(out, "%s\n", text);
    cJSON_free(text);
    cJSON_Delete(root);
    return ok;
}
