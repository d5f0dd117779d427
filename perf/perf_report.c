/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table: nccl-tests' columns, then what a codec adds to them: wire bytes, ratio and error.
 */
#include "perf.h"

#include <stdlib.h>
#include <string.h>

#define PROGRESS_NS 5000000000u

/* A number in `width` columns with as many digits as fit, at most two after the point. */
static void print_number(double value, int width)
{
    const int decimals = value < 1e3 ? 2 : value < 1e4 ? 1 : 0;
    double limit = 1.0;

    for (int i = 0; i < width; i++)
        limit *= 10.0;
    if (value < limit)
        printf("  %*.*f", width, decimals, value);
    else
        printf("  %*.*e", width, width >= 7 ? 1 : 0, value);
}

static void print_config(const struct perf_args *args, int n_ranks)
{
    char n_threads[16] = "default";

    if (args->n_threads > 0)
        (void)snprintf(n_threads, sizeof(n_threads), "%d", args->n_threads);
    printf("# nThread %s nRanks %d minBytes %zu maxBytes %zu step: %zu(%s) warmup iters: %d "
           "iters: %d validation: %d unalign: %zu\n",
           n_threads, n_ranks, args->min_bytes, args->max_bytes,
           args->step_factor != 0 ? args->step_factor : args->step_bytes,
           args->step_factor != 0 ? "factor" : "bytes", args->n_warmup, args->n_iters, args->check,
           args->unalign);
}

static bool any_without_feedback(const struct perf_args *args)
{
    for (int i = 0; i < args->n_ops; i++) {
        if (args->ops[i] == DSCOMM_MAX || args->ops[i] == DSCOMM_MIN)
            return true;
    }
    return false;
}

void perf_report_header(struct perf_report *report)
{
    const struct perf_args *const args = report->args;

    printf("# %s, dscomm %s\n", args->program, dscomm_version());
    print_config(args, report->n_ranks);
    printf("# data %s\n", report->data_text);
    printf("# transport %s\n", args->transport != NULL ? args->transport : "default");
    printf("# algorithm %s, tiers %s\n", args->algorithm != NULL ? args->algorithm : "default",
           report->tiers);
    if (args->on_cuda)
        printf("# device cuda, %s; NCCL carries messages, times are of %s\n",
               args->n_replays > 0 ? "calls replayed as a graph" : "calls enqueued",
               args->n_replays > 0 ? "the device" : "the host, until the stream is done");
    if (report->caveat != NULL)
        printf("# note: %s\n", report->caveat);
    if (args->feedback && any_without_feedback(args))
        printf("# note: max and min run without feedback\n");
    printf("#\n# Ranks\n");
    for (int i = 0; i < report->n_ranks; i++)
        printf("#  %s\n", report->lines[i]);
    if (report->n_ranks == 1)
        printf("# note: one rank has nobody to talk to; -g N starts N ranks on this machine\n");
    report->quiet_since_ns = perf_now_ns();
}

static void print_places(const char *const *names, int n, const char *const *times, int n_times)
{
    for (int place = 0; place < 2; place++) {
        for (int i = 0; i < n; i++)
            printf("  %*s", i == 0 ? 8 : 6, names[i]);
        for (int i = 0; i < n_times; i++)
            printf("  %8s", times[i]);
    }
}

void perf_report_block(struct perf_report *report, const char *codec)
{
    static const char *const names[2][4] = { { "time", "algbw", "busbw", "#wrong" },
                                             { "(us)", "(GB/s)", "(GB/s)", "" } };
    static const char *const times[2][4] = { { "i_min", "i_max", "i_p99", "i_cv%" },
                                             { "(us)", "(us)", "(us)", "(%)" } };
    const int n_times = report->args->per_iter ? 4 : 0;
    const int place_width = 32 + n_times * 10;

    report->plan_shown[0] = '\0';
    printf("#\n# codec %s, feedback %s\n", codec, report->args->feedback ? "on" : "off");
    printf("# %10s  %12s  %8s  %6s  %4s%*s%*s\n", "", "", "", "", "", place_width, "out-of-place",
           place_width, "in-place");
    printf("# %10s  %12s  %8s  %6s  %4s", "size", "count", "type", "redop", "root");
    print_places(names[0], 4, times[0], n_times);
    printf("  %12s  %6s  %8s\n", "wire", "ratio", "err");
    printf("# %10s  %12s  %8s  %6s  %4s", "(B)", "(elements)", "", "", "");
    print_places(names[1], 4, times[1], n_times);
    printf("  %12s\n", "(B/rank)");
    (void)fflush(stdout);
}

static void print_place(const struct perf_placement *place, bool per_iter)
{
    print_number(place->mean_us, 8);
    print_number(place->alg_gbps, 6);
    print_number(place->bus_gbps, 6);
    if (place->n_wrong >= 0)
        printf("  %6lld", (long long)place->n_wrong);
    else
        printf("  %6s", "N/A");
    if (!per_iter)
        return;
    print_number(place->min_us, 8);
    print_number(place->max_us, 8);
    print_number(place->p99_us, 8);
    print_number(place->mean_us > 0.0 ? 100.0 * place->stdev_us / place->mean_us : 0.0, 8);
}

/*
 * The first word of a plan's line is its algorithm: shown where it changes from size to size, and
 * always where the codec may do so too.
 */
static void print_plan(struct perf_report *report, const struct perf_result *result)
{
    const size_t n = strcspn(result->plan, " ") + 1;
    const bool is_auto = strncmp(result->codec, "auto", 4) == 0;

    if (result->plan[0] == '\0' || (!is_auto && strncmp(result->plan, report->plan_shown, n) == 0))
        return;
    printf("# plan %s\n", result->plan);
    memcpy(report->plan_shown, result->plan, sizeof(report->plan_shown));
}

dscomm_status_t perf_report_row(struct perf_report *report, const struct perf_result *result)
{
    const size_t n = report->n_results + 1;
    struct perf_result *const grown = realloc(report->results, n * sizeof(*grown));

    if (grown == NULL)
        return DSCOMM_ERR_NO_MEMORY;
    grown[report->n_results] = *result;
    report->results = grown;
    report->n_results = n;

    print_plan(report, result);
    printf("%12zu  %12zu  %8s  %6s  %4d", result->bytes, result->count,
           perf_dtype_name(result->dtype), perf_redop_name(report->coll, result->op),
           perf_root(report->coll, report->args));
    for (int place = 0; place < 2; place++)
        print_place(&result->places[place], report->args->per_iter);
    printf("  %12.0f", result->wire_bytes);
    if (result->ratio > 0.0)
        printf("  %6.2f", result->ratio);
    else
        printf("  %6s", "-");
    if (report->args->check)
        printf("  %8.2e\n", result->err);
    else
        printf("  %8s\n", "N/A");
    (void)fflush(stdout);
    report->quiet_since_ns = perf_now_ns();
    return DSCOMM_OK;
}

void perf_report_progress(struct perf_report *report, const struct perf_row *row, int iteration)
{
    const uint64_t now_ns = perf_now_ns();

    if (now_ns - report->quiet_since_ns < PROGRESS_NS)
        return;
    report->quiet_since_ns = now_ns;
    (void)fprintf(stderr, "# codec %s, %zu B, %s %d of %d\n", dscomm_codec_spec(row->codec),
                  row->count * perf_dtype_bytes(row->dtype),
                  iteration < 0 ? "warm-up, then" : "iteration", iteration < 0 ? 0 : iteration + 1,
                  report->args->n_iters);
}

/* ---- summary ---- */

static const struct perf_result *find_none(const struct perf_report *report,
                                           const struct perf_result *like)
{
    for (size_t i = 0; i < report->n_results; i++) {
        const struct perf_result *const r = &report->results[i];

        if (strcmp(r->codec, "none") == 0 && r->bytes == like->bytes && r->op == like->op &&
            r->dtype == like->dtype)
            return r;
    }
    return NULL;
}

static void print_summary_row(const struct perf_report *report, const struct perf_result *result)
{
    const struct perf_result *const none = find_none(report, result);

    printf("# %-16s  %8s  %6s  %12.1f", result->codec, perf_dtype_name(result->dtype),
           perf_redop_name(report->coll, result->op), result->places[0].mean_us);
    if (none != NULL && result->places[0].mean_us > 0.0)
        printf("  %8.2f", none->places[0].mean_us / result->places[0].mean_us);
    else
        printf("  %8s", "-");
    printf("  %6.2f  %8.2e\n", result->ratio, result->err);
}

static void print_summary(const struct perf_report *report)
{
    size_t largest = 0;

    for (size_t i = 0; i < report->n_results; i++)
        largest = report->results[i].bytes > largest ? report->results[i].bytes : largest;
    printf("#\n# Largest size, %zu B, out-of-place\n", largest);
    printf("# %-16s  %8s  %6s  %12s  %8s  %6s  %8s\n", "codec", "type", "redop", "time (us)",
           "speed-up", "ratio", "err");
    for (size_t i = 0; i < report->n_results; i++) {
        if (report->results[i].bytes == largest)
            print_summary_row(report, &report->results[i]);
    }
}

int64_t perf_report_wrong(const struct perf_report *report)
{
    int64_t n_wrong = 0;

    for (size_t i = 0; i < 2 * report->n_results; i++) {
        const int64_t n = report->results[i / 2].places[i % 2].n_wrong;
        n_wrong += n > 0 ? n : 0;
    }
    return n_wrong;
}

double perf_report_mean_bus(const struct perf_report *report)
{
    double sum = 0.0;

    for (size_t i = 0; i < 2 * report->n_results; i++)
        sum += report->results[i / 2].places[i % 2].bus_gbps;
    return report->n_results > 0 ? sum / (2.0 * (double)report->n_results) : 0.0;
}

int perf_report_end(struct perf_report *report)
{
    const int64_t n_wrong = perf_report_wrong(report);

    print_summary(report);
    printf("#\n# %-20s : %lld %s\n", "Out of bounds values", (long long)n_wrong,
           !report->args->check ? "UNCHECKED"
           : n_wrong > 0        ? "FAILED"
                                : "OK");
    printf("# %-20s : %g\n#\n", "Avg bus bandwidth", perf_report_mean_bus(report));
    (void)fflush(stdout);
    if (report->args->json_path != NULL && !perf_json_write(report))
        return PERF_EXIT_FAILED;
    return n_wrong > 0 ? PERF_EXIT_FAILED : PERF_EXIT_OK;
}

void perf_report_destroy(struct perf_report *report)
{
    for (size_t i = 0; i < 2 * report->n_results; i++)
        free(report->results[i / 2].places[i % 2].times_us);
    free(report->results);
    free(report->lines);
    *report = (struct perf_report){ 0 };
}
