/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine of thousands of ranks on one CPU: the plans that its ranks would build, for one rank of
 * each kind, priced by the tuner's model, beside an uncompressed ring and an uncompressed tree.
 * Looks inside the library, since that is where plans and prices are.
 */
#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tune_args.h"
#include "tuner/tuner.h"

#define NS_PER_S UINT64_C(1000000000)

struct line {
    size_t bytes;
    struct dsc_decision decision;
    uint64_t ring_ns, tree_ns;
};

/* ---- uncompressed, as NCCL's model counts steps and bytes ---- */

struct links {
    uint64_t inner_latency_ns, outer_latency_ns;
    uint64_t bytes_per_s; /* of a rank in a ring: a node's ring uses all its ranks' NICs */
};

static struct links links_of(const struct dscomm_tuner *m)
{
    const int outer = m->nodes > 1 ? m->tiers.n_tiers - 1 : m->tiers.n_tiers;
    struct links links = { 0 };

    for (int t = 0; t < outer; t++) { /* the slowest within a node */
        const struct dsc_tier_rates *const tier = &m->rates.tiers[t];

        if (t == 0 || tier->bytes_per_s < links.bytes_per_s)
            links.bytes_per_s = tier->bytes_per_s;
        if (tier->latency_ns > links.inner_latency_ns)
            links.inner_latency_ns = tier->latency_ns;
    }
    if (m->nodes > 1) {
        const struct dsc_tier_rates *const tier = &m->rates.tiers[outer];
        const uint64_t node = tier->bytes_per_s * (uint64_t)m->local;

        links.outer_latency_ns = tier->latency_ns;
        if (outer == 0 || node < links.bytes_per_s)
            links.bytes_per_s = node;
    }
    return links;
}

static uint64_t ns_of(uint64_t bytes, uint64_t times, uint64_t parts, uint64_t bytes_per_s)
{
    return bytes_per_s == 0 ? DSC_UNKNOWN_NS
                            : bytes / parts * times * 1000 / (bytes_per_s / 1000000 + 1);
}

/* 2(n - 1) steps, 2(nodes - 1) of them between nodes; 2(n - 1)/n of the vector per rank. */
static uint64_t ring_ns(const struct dscomm_tuner *m, uint64_t bytes)
{
    const struct links links = links_of(m);
    const uint64_t n = (uint64_t)(m->nodes * m->local), outer = 2 * (uint64_t)(m->nodes - 1);
    const uint64_t wire = ns_of(bytes, 2 * (n - 1), n, links.bytes_per_s);

    if (wire == DSC_UNKNOWN_NS)
        return wire;
    return m->rates.call_ns + wire + outer * links.outer_latency_ns +
           (2 * (n - 1) - outer) * links.inner_latency_ns;
}

/* A chain within each node, a tree of nodes; up and down. The vector twice per rank. */
static uint64_t tree_ns(const struct dscomm_tuner *m, uint64_t bytes)
{
    const struct links links = links_of(m);
    const uint64_t wire = ns_of(bytes, 2, 1, links.bytes_per_s);

    if (wire == DSC_UNKNOWN_NS)
        return wire;
    return m->rates.call_ns + wire +
           2 * ((uint64_t)(m->local - 1) * links.inner_latency_ns +
                (uint64_t)dsc_log2_up(m->nodes) * links.outer_latency_ns);
}

/* ---- the simulation ---- */

static dscomm_status_t simulate(const struct dscomm_tuner *m, const struct tune_args *args,
                                size_t bytes, struct line *line)
{
    struct dsc_question q = dsc_machine_question(m, tune_count(args, bytes), args->query.dtype);
    struct dsc_rates rates = m->rates;

    q.op = args->query.op;
    q.feedback = args->query.feedback != 0;
    if (args->query.overlap >= 0)
        rates.overlap = (uint32_t)args->query.overlap;
    if (!dsc_budget_parse(args->query.budget, &q.budget))
        return dsc_fail(DSCOMM_ERR_INVALID, "budget '%.40s', must be " DSC_BUDGET_FORM,
                        args->query.budget);
    if (args->codec != NULL)
        DSC_TRY(dscomm_codec_parse(args->codec, &q.codec));
    line->bytes = bytes;
    line->ring_ns = ring_ns(m, bytes);
    line->tree_ns = tree_ns(m, bytes);
    return dsc_tuner_choose(&q, &rates, &line->decision);
}

/* ---- the report ---- */

static void print_us(uint64_t ns)
{
    if (ns == DSC_UNKNOWN_NS)
        printf(" %12s", "unknown");
    else
        printf(" %10" PRIu64 ".%" PRIu64, ns / 1000, ns / 100 % 10);
}

static const char *shape_of(const struct dsc_option *o)
{
    return o->choice.n_tiers > 1 ? "tiered" : dsc_algorithm_name(o->choice.algorithm);
}

static void print_head(const struct dscomm_tuner *m)
{
    printf("# rates    %s\n# ranks    %d: %d nodes of %d\n", m->source, m->nodes * m->local,
           m->nodes, m->local);
    for (int t = 0; t < m->tiers.n_tiers; t++)
        printf("# tier %d   %s, %" PRIu64 " MB/s per rank, latency %" PRIu64 " ns, %d members\n", t,
               dsc_tier_kind_name(m->rates.tiers[t].kind),
               m->rates.tiers[t].bytes_per_s / DSC_MILLION, m->rates.tiers[t].latency_ns,
               dsc_machine_group_size(m, t, 0));
    if (m->missing[0] != '\0')
        printf("# unknown  %s\n", m->missing);
    printf("#%7s %-14s %-8s %12s", "size", "codec", "shape", "total us");
    for (int t = 0; t < m->tiers.n_tiers; t++)
        printf("    wire%d us   tier%d KiB", t, t);
    printf(" %12s %12s %12s %12s %9s\n", "codec us", "latency us", "ring us", "tree us",
           "speed-up");
}

static void print_line(const struct dscomm_tuner *m, const struct line *line)
{
    const struct dsc_option *const o = &line->decision.option;
    const uint64_t plain = dsc_min_u64(line->ring_ns, line->tree_ns);
    char size[32];

    printf("%8s ", tune_size_text(line->bytes, size));
    if (o->choice.n_tiers == 0) {
        printf("%s\n", line->decision.reason);
        return;
    }
    printf("%-14s %-8s", o->choice.codecs[o->choice.n_tiers - 1]->spec, shape_of(o));
    print_us(o->total_ns);
    for (int t = 0; t < m->tiers.n_tiers; t++) {
        print_us(o->wire_ns[t]);
        printf(" %11" PRIu64, o->tx_bytes[t] / 1024);
    }
    print_us(o->codec_ns);
    print_us(o->latency_ns);
    print_us(line->ring_ns);
    print_us(line->tree_ns);
    printf(" %9.2f\n", (double)plain / (double)o->total_ns);
}

static void add_line(cJSON *array, const struct dscomm_tuner *m, const struct line *line)
{
    const struct dsc_option *const o = &line->decision.option;
    cJSON *const to = cJSON_CreateObject();
    cJSON *const tiers = cJSON_AddArrayToObject(to, "tiers");

    cJSON_AddNumberToObject(to, "size_bytes", (double)line->bytes);
    cJSON_AddStringToObject(to, "reason", line->decision.reason);
    if (o->choice.n_tiers > 0) {
        cJSON_AddStringToObject(to, "codec", o->choice.codecs[o->choice.n_tiers - 1]->spec);
        cJSON_AddStringToObject(to, "shape", shape_of(o));
        cJSON_AddNumberToObject(to, "total_ns", (double)o->total_ns);
        cJSON_AddNumberToObject(to, "codec_ns", (double)o->codec_ns);
        cJSON_AddNumberToObject(to, "latency_ns", (double)o->latency_ns);
        cJSON_AddNumberToObject(to, "ring_ns", (double)line->ring_ns);
        cJSON_AddNumberToObject(to, "tree_ns", (double)line->tree_ns);
    }
    for (int t = 0; t < m->tiers.n_tiers && o->choice.n_tiers > 0; t++) {
        cJSON *const tier = cJSON_CreateObject();

        cJSON_AddStringToObject(tier, "kind", dsc_tier_kind_name(m->rates.tiers[t].kind));
        cJSON_AddNumberToObject(tier, "wire_ns", (double)o->wire_ns[t]);
        cJSON_AddNumberToObject(tier, "sent_bytes", (double)o->tx_bytes[t]);
        cJSON_AddItemToArray(tiers, tier);
    }
    cJSON_AddItemToArray(array, to);
}

static bool print_json(const struct dscomm_tuner *m, const struct line *lines, int n)
{
    cJSON *const array = cJSON_CreateArray();
    char *text;

    for (int i = 0; i < n; i++)
        add_line(array, m, &lines[i]);
    text = cJSON_Print(array);
    if (text != NULL)
        printf("%s\n", text);
    cJSON_free(text);
    cJSON_Delete(array);
    return text != NULL;
}

static dscomm_status_t run(const struct dscomm_tuner *m, const struct tune_args *args,
                           struct line *lines)
{
    if (!args->wants_json)
        print_head(m);
    for (int i = 0; i < args->n_sizes; i++) {
        DSC_TRY(simulate(m, args, args->sizes[i], &lines[i]));
        if (!args->wants_json)
            print_line(m, &lines[i]);
    }
    if (args->wants_json && !print_json(m, lines, args->n_sizes))
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "report");
    return DSCOMM_OK;
}

int main(int argc, char **argv)
{
    struct tune_args args;
    dscomm_tuner_t *tuner = NULL;
    struct line *lines;
    dscomm_status_t st;
    int exit_code;

    if (!tune_args_parse(&args, "dscomm_sim", argc, argv, &exit_code))
        return exit_code;
    tune_quiet();
    lines = calloc(TUNE_SIZES_MAX, sizeof(*lines));
    if (lines == NULL) {
        (void)fprintf(stderr, "dscomm_sim: no memory\n");
        return TUNE_FAILED;
    }
    st = dscomm_tuner_create(&args.machine, &tuner);
    if (st >= 0)
        st = run(tuner, &args, lines);
    if (st < 0)
        (void)fprintf(stderr, "dscomm_sim: %s\n", dscomm_last_error());
    dscomm_tuner_destroy(tuner);
    free(lines);
    return st < 0 ? TUNE_FAILED : TUNE_FINE;
}
