/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report as JSON in nccl-tests' shape (its layout version 3), so that its readers work, with
 * the figures of a codec added to each result.
 */
#include "perf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cjson/cJSON.h>

#define NCCL_TESTS_LAYOUT 3

extern char **environ;

static void add_args(cJSON *top, const struct perf_args *args)
{
    cJSON *const list = cJSON_AddArrayToObject(top, "args");

    for (int i = 0; i < args->argc; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(args->argv[i]));
}

/* The library's variables that are set; a secret stays one. */
static void add_env(cJSON *top)
{
    static const char secret[] = "DSCOMM_SECRET=";
    cJSON *const list = cJSON_AddArrayToObject(top, "env");

    for (char **e = environ; *e != NULL; e++) {
        if (strncmp(*e, "DSCOMM_", 7) != 0)
            continue;
        const bool is_secret = strncmp(*e, secret, sizeof(secret) - 1) == 0;
        cJSON_AddItemToArray(list, cJSON_CreateString(is_secret ? "DSCOMM_SECRET=***" : *e));
    }
}

static void add_time(cJSON *top, const char *name)
{
    char text[32];
    struct tm tm;
    const time_t now = time(NULL);

    (void)strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", localtime_r(&now, &tm));
    cJSON_AddStringToObject(top, name, text);
}

static void add_config(cJSON *top, const struct perf_report *report)
{
    const struct perf_args *const args = report->args;
    cJSON *const config = cJSON_AddObjectToObject(top, "config");

    cJSON_AddNumberToObject(config, "nthreads", args->n_threads);
    cJSON_AddNumberToObject(config, "nranks", report->n_ranks);
    cJSON_AddNumberToObject(config, "minimum_bytes", (double)args->min_bytes);
    cJSON_AddNumberToObject(config, "maximum_bytes", (double)args->max_bytes);
    if (args->step_factor != 0)
        cJSON_AddNumberToObject(config, "step_factor", (double)args->step_factor);
    else
        cJSON_AddNumberToObject(config, "step_bytes", (double)args->step_bytes);
    cJSON_AddNumberToObject(config, "warmup_iters", args->n_warmup);
    cJSON_AddNumberToObject(config, "iterations", args->n_iters);
    cJSON_AddNumberToObject(config, "validation", args->check);
    cJSON_AddNumberToObject(config, "unalign", (double)args->unalign);

    cJSON *const devices = cJSON_AddArrayToObject(config, "devices");
    for (int i = 0; i < report->n_ranks; i++)
        cJSON_AddItemToArray(devices, cJSON_CreateString(report->lines[i]));
}

static void add_place(cJSON *result, const char *name, const struct perf_placement *place)
{
    cJSON *const object = cJSON_AddObjectToObject(result, name);

    cJSON_AddNumberToObject(object, "time", place->mean_us);
    cJSON_AddNumberToObject(object, "alg_bw", place->alg_gbps);
    cJSON_AddNumberToObject(object, "bus_bw", place->bus_gbps);
    if (place->n_wrong >= 0)
        cJSON_AddNumberToObject(object, "nwrong", (double)place->n_wrong);
    else
        cJSON_AddNullToObject(object, "nwrong");
    cJSON_AddNumberToObject(object, "median_us", place->median_us);
    cJSON_AddNumberToObject(object, "p99_us", place->p99_us);
}

static void add_per_iter(cJSON *result, const char *name, const struct perf_placement *place,
                         int n_iters)
{
    cJSON *const object = cJSON_AddObjectToObject(result, name);
    cJSON *const times = cJSON_CreateArray();

    cJSON_AddNumberToObject(object, "skipped_iterations", 0);
    cJSON_AddNumberToObject(object, "min_us", place->min_us);
    cJSON_AddNumberToObject(object, "max_us", place->max_us);
    cJSON_AddNumberToObject(object, "avg_us", place->mean_us);
    cJSON_AddNumberToObject(object, "p50_us", place->median_us);
    cJSON_AddNumberToObject(object, "p99_us", place->p99_us);
    cJSON_AddNumberToObject(object, "stdev_us", place->stdev_us);
    cJSON_AddNumberToObject(object, "cv_pct",
                            place->mean_us > 0.0 ? 100.0 * place->stdev_us / place->mean_us : 0.0);
    for (int i = 0; i < n_iters; i++)
        cJSON_AddItemToArray(times, cJSON_CreateNumber(place->times_us[i]));
    cJSON_AddItemToObject(object, "times_us", times);
}

static void add_result(cJSON *list, const struct perf_report *report,
                       const struct perf_result *result)
{
    static const char *const names[2] = { "out_of_place", "in_place" };
    static const char *const per_iter[2] = { "out_of_place_per_iter", "in_place_per_iter" };
    cJSON *const object = cJSON_CreateObject();
    char root[16];

    cJSON_AddItemToArray(list, object);
    cJSON_AddNumberToObject(object, "size", (double)result->bytes);
    cJSON_AddNumberToObject(object, "count", (double)result->count);
    cJSON_AddStringToObject(object, "type", perf_dtype_name(result->dtype));
    cJSON_AddStringToObject(object, "redop", perf_redop_name(report->coll, result->op));
    (void)snprintf(root, sizeof(root), "%d", perf_root(report->coll, report->args));
    cJSON_AddStringToObject(object, "root", root);
    cJSON_AddStringToObject(object, "codec", result->codec);
    cJSON_AddNumberToObject(object, "feedback", result->feedback);
    cJSON_AddNumberToObject(object, "wire_bytes", result->wire_bytes);
    cJSON_AddNumberToObject(object, "ratio", result->ratio);
    if (report->args->check)
        cJSON_AddNumberToObject(object, "err", result->err);
    else
        cJSON_AddNullToObject(object, "err");
    cJSON_AddNumberToObject(object, "median_us", result->places[0].median_us);
    cJSON_AddNumberToObject(object, "p99_us", result->places[0].p99_us);
    cJSON_AddStringToObject(object, "plan", result->plan);
    for (int i = 0; i < 2; i++) {
        add_place(object, names[i], &result->places[i]);
        if (report->args->per_iter)
            add_per_iter(object, per_iter[i], &result->places[i], report->args->n_iters);
    }
}

static void add_footer(cJSON *top, const struct perf_report *report)
{
    const int64_t n_wrong = perf_report_wrong(report);
    cJSON *const bounds = cJSON_AddObjectToObject(top, "out_of_bounds");

    cJSON_AddNumberToObject(bounds, "count", (double)n_wrong);
    cJSON_AddStringToObject(bounds, "okay", n_wrong == 0 ? "true" : "false");

    cJSON *const bus = cJSON_AddObjectToObject(top, "average_bus_bandwidth");
    cJSON_AddNumberToObject(bus, "bandwidth", perf_report_mean_bus(report));
    cJSON_AddStringToObject(bus, "okay", "unchecked");
}

static cJSON *make_json(const struct perf_report *report)
{
    const struct perf_args *const args = report->args;
    cJSON *const top = cJSON_CreateObject();

    cJSON_AddNumberToObject(top, "version", NCCL_TESTS_LAYOUT);
    cJSON_AddStringToObject(top, "dscomm_version", dscomm_version());
    cJSON_AddStringToObject(top, "program", args->program);
    add_args(top, args);
    add_env(top);
    cJSON_AddNumberToObject(top, "ranks", report->n_ranks);
    cJSON_AddStringToObject(top, "transport",
                            args->transport != NULL ? args->transport : "default");
    cJSON_AddStringToObject(top, "algorithm",
                            args->algorithm != NULL ? args->algorithm : "default");
    cJSON_AddStringToObject(top, "tiers", report->tiers);
    cJSON_AddStringToObject(top, "data", report->data_text);
    cJSON_AddStringToObject(top, "device", args->on_cuda ? "cuda" : "host");
    cJSON_AddNumberToObject(top, "graph_launches", args->n_replays);
    if (report->caveat != NULL)
        cJSON_AddStringToObject(top, "note", report->caveat);
    add_config(top, report);

    cJSON *const list = cJSON_AddArrayToObject(top, "results");
    for (size_t i = 0; i < report->n_results; i++)
        add_result(list, report, &report->results[i]);
    add_footer(top, report);
    add_time(top, "end_time");
    return top;
}

bool perf_json_write(const struct perf_report *report)
{
    const char *const path = report->args->json_path;
    cJSON *const top = make_json(report);
    char *const text = cJSON_Print(top); /* NULL too if a part could not be allocated */
    FILE *const file = fopen(path, "w");
    bool ok = text != NULL && file != NULL;

    if (ok)
        ok = fputs(text, file) >= 0 && fputc('\n', file) != EOF;
    if (file != NULL && fclose(file) != 0)
        ok = false;
    if (!ok)
        perf_complain(report->args, "-J", path, "cannot be written: %s", strerror(errno));
    cJSON_free(text);
    cJSON_Delete(top);
    return ok;
}
