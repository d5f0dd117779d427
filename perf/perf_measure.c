/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A row of the table: two placements. Each timed call has new data and a barrier before it; making
 * data, checks and exchanges between ranks lie outside the timed region.
 */
#include "perf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one placement ---- */

struct tally {
    float *times_us; /* [n_iters] */
    uint64_t wire_bytes;
    uint64_t hash; /* of every output so far */
    uint64_t call; /* number of the last one */
    bool is_timed;
    int i;
};

static dscomm_status_t wire_total(const struct perf_rank *pr, uint64_t *bytes_out)
{
    dscomm_stats_t stats = { .struct_bytes = sizeof(stats) };

    PERF_TRY(dscomm_comm_stats(pr->comm, &stats));
    *bytes_out = stats.wire_tx_bytes;
    return DSCOMM_OK;
}

static dscomm_status_t one_call(struct perf_rank *pr, const struct perf_row *row, bool in_place,
                                struct tally *tally)
{
    uint8_t *send, *recv;
    uint64_t before, after;
    double took_us;

    tally->call = pr->n_calls++;
    perf_place(pr, row, in_place, &send, &recv);
    perf_inputs_fill(row->in, send, perf_send_count(pr, row), tally->call);
    PERF_TRY(pr->where->put(pr, row, in_place));
    PERF_TRY(perf_barrier(pr));
    PERF_TRY(wire_total(pr, &before));
    PERF_TRY(pr->where->call(pr, row, in_place, &took_us));
    PERF_TRY(wire_total(pr, &after));
    PERF_TRY(pr->where->get(pr, row, in_place));
    if (pr->args->check)
        tally->hash =
            perf_hash(tally->hash, recv, perf_recv_count(pr, row) * perf_dtype_bytes(row->dtype));
    if (tally->is_timed) {
        tally->times_us[tally->i] = (float)took_us;
        tally->wire_bytes +=
            (after - before) / (pr->args->n_replays > 0 ? (uint64_t)pr->args->n_replays : 1u);
    }
    return DSCOMM_OK;
}

static dscomm_status_t all_calls(struct perf_rank *pr, const struct perf_row *row, bool in_place,
                                 struct tally *tally)
{
    for (int i = -pr->args->n_warmup; i < pr->args->n_iters; i++) {
        tally->is_timed = i >= 0;
        tally->i = i;
        PERF_TRY(one_call(pr, row, in_place, tally));
        if (pr->report != NULL)
            perf_report_progress(pr->report, row, i);
    }
    return DSCOMM_OK;
}

static int compare_f32(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Figures from the slowest rank's time of each iteration. Percentiles by nearest rank. */
static dscomm_status_t summarize(const struct perf_rank *pr, const struct perf_row *row,
                                 const float *times_us, struct perf_placement *place)
{
    const size_t n = (size_t)pr->args->n_iters;
    float *const sorted = malloc(n * sizeof(float));
    double sum = 0.0, square = 0.0;

    if (sorted == NULL)
        return DSCOMM_ERR_NO_MEMORY;
    memcpy(sorted, times_us, n * sizeof(float));
    qsort(sorted, n, sizeof(float), compare_f32);
    for (size_t i = 0; i < n; i++)
        sum += sorted[i];
    place->mean_us = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        square += (sorted[i] - place->mean_us) * (sorted[i] - place->mean_us);
    place->stdev_us = sqrt(square / (double)n);
    place->min_us = sorted[0];
    place->max_us = sorted[n - 1];
    place->median_us = 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]);
    place->p99_us = sorted[(n * 99 + 99) / 100 - 1];
    free(sorted);

    const double bytes = (double)perf_row_bytes(pr, row);
    place->alg_gbps = place->mean_us > 0.0 ? bytes / (place->mean_us * 1e3) : 0.0;
    place->bus_gbps = place->alg_gbps * pr->coll->bus_factor(pr->n_ranks);
    return DSCOMM_OK;
}

static dscomm_status_t check_equal(const struct perf_rank *pr, const struct perf_row *row,
                                   uint64_t hash, int64_t *n_wrong)
{
    bool equal;

    if (pr->coll->sends_shares) /* ranks get different elements */
        return DSCOMM_OK;
    PERF_TRY(perf_all_equal(pr, hash, &equal));
    if (equal)
        return DSCOMM_OK;
    *n_wrong += (int64_t)row->count;
    if (pr->rank == 0)
        (void)fprintf(stderr, "%s: codec %s, %zu elements: ranks have different bits\n",
                      pr->args->program, dscomm_codec_spec(row->codec), row->count);
    return DSCOMM_OK;
}

/* What any rank found wrong is wrong, and every rank's exit code says so. */
static dscomm_status_t share_wrong(struct perf_rank *pr, struct perf_placement *place)
{
    uint64_t total;

    PERF_TRY(perf_sum_u64(pr, (uint64_t)place->n_wrong, &total));
    if (total > 0 && place->n_wrong == 0)
        place->n_wrong = (int64_t)total;
    pr->is_wrong = pr->is_wrong || total > 0;
    return DSCOMM_OK;
}

static dscomm_status_t measure_with(struct perf_rank *pr, const struct perf_row *row, bool in_place,
                                    struct tally *tally, struct perf_placement *place)
{
    if (row->feedback != NULL)
        PERF_TRY(dscomm_feedback_reset(row->feedback));
    if (pr->args->check)
        PERF_TRY(perf_check_probe(pr, row, in_place, &place->n_wrong));
    PERF_TRY(pr->where->begin(pr, row, in_place));
    const dscomm_status_t st = all_calls(pr, row, in_place, tally);
    pr->where->end(pr);
    PERF_TRY(st);
    if (pr->args->check) {
        PERF_TRY(check_equal(pr, row, tally->hash, &place->n_wrong));
        uint8_t *send, *recv;

        perf_place(pr, row, in_place, &send, &recv);
        perf_check_output(pr, row, recv, tally->call, &place->err, &place->n_wrong);
        PERF_TRY(share_wrong(pr, place));
    }
    PERF_TRY(perf_max_f32(pr, tally->times_us, (size_t)pr->args->n_iters));
    return summarize(pr, row, tally->times_us, place);
}

static dscomm_status_t measure(struct perf_rank *pr, const struct perf_row *row, bool in_place,
                               struct perf_placement *place, uint64_t *wire_bytes)
{
    struct tally tally = { .times_us = calloc((size_t)pr->args->n_iters, sizeof(float)) };

    if (tally.times_us == NULL)
        return DSCOMM_ERR_NO_MEMORY;
    *place = (struct perf_placement){ .n_wrong = pr->args->check ? 0 : -1 };
    const dscomm_status_t st = measure_with(pr, row, in_place, &tally, place);
    *wire_bytes += tally.wire_bytes;
    if (st == DSCOMM_OK && pr->args->per_iter && pr->report != NULL)
        place->times_us = tally.times_us;
    else
        free(tally.times_us);
    return st;
}

/* ---- the row ---- */

static void copy_text(char *dst, size_t dst_bytes, const char *src)
{
    (void)snprintf(dst, dst_bytes, "%s", src != NULL ? src : "");
}

static dscomm_status_t describe(const struct perf_rank *pr, const struct perf_row *row,
                                struct perf_result *result)
{
    const dscomm_plan_t *plan = NULL;

    *result = (struct perf_result){ .bytes = perf_row_bytes(pr, row),
                                    .count = row->count,
                                    .dtype = row->dtype,
                                    .op = row->op,
                                    .feedback = row->feedback != NULL };
    copy_text(result->codec, sizeof(result->codec), dscomm_codec_spec(row->codec));
    if (!pr->coll->reduces || pr->coll->sends_shares)
        return DSCOMM_OK; /* plans can be asked for of an allreduce only */
    PERF_TRY(dscomm_plan_create(pr->comm, row->count, row->dtype, row->op, row->codec,
                                row->feedback != NULL, &plan));
    copy_text(result->plan, sizeof(result->plan), dscomm_plan_explain(plan));
    return DSCOMM_OK;
}

dscomm_status_t perf_run_row(struct perf_rank *pr, const struct perf_row *row)
{
    struct perf_result result;
    uint64_t wire_bytes = 0, total;

    PERF_TRY(describe(pr, row, &result));
    for (int place = 0; place < 2; place++) {
        PERF_TRY(measure(pr, row, place == 1, &result.places[place], &wire_bytes));
        result.err = fmax(result.err, result.places[place].err);
    }
    PERF_TRY(perf_sum_u64(pr, wire_bytes, &total));
    result.wire_bytes = (double)total / (2.0 * pr->args->n_iters * pr->n_ranks);
    if (result.wire_bytes > 0.0)
        result.ratio =
            (double)result.bytes * pr->coll->sent_factor(pr->n_ranks) / result.wire_bytes;
    return pr->report != NULL ? perf_report_row(pr->report, &result) : DSCOMM_OK;
}
