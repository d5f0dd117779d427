/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's run: codecs, operations, types and sizes in nested loops. Every rank walks the same loops
 * and takes the same decisions, because all of it is collective.
 */
#include "perf.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- rows ---- */

static bool takes_feedback(dscomm_op_t op)
{
    return op == DSCOMM_SUM || op == DSCOMM_AVG;
}

static dscomm_status_t run_size(struct perf_rank *pr, struct perf_row *row)
{
    (void)snprintf(pr->doing, sizeof(pr->doing), "codec %s, %zu elements",
                   dscomm_codec_spec(row->codec), row->count);
    if (pr->args->feedback && takes_feedback(row->op))
        PERF_TRY(pr->where->feedback_create(perf_send_count(pr, row), &row->feedback));
    const dscomm_status_t st = perf_run_row(pr, row);
    dscomm_feedback_destroy(row->feedback);
    row->feedback = NULL;
    return st;
}

static dscomm_status_t run_sizes(struct perf_rank *pr, struct perf_row *row)
{
    size_t bytes = pr->args->min_bytes;

    do {
        row->count = perf_row_count(pr, row->dtype, bytes);
        PERF_TRY(run_size(pr, row));
    } while (perf_next_size(pr->args, &bytes));
    return DSCOMM_OK;
}

static void unalign(struct perf_rank *pr, dscomm_dtype_t dtype)
{
    const size_t shift = pr->args->unalign * perf_dtype_bytes(dtype);

    pr->send = (uint8_t *)pr->send_mem + shift;
    pr->recv = (uint8_t *)pr->recv_mem + shift;
}

static dscomm_status_t run_codec(struct perf_rank *pr, const char *spec)
{
    struct perf_row row = { 0 };

    PERF_TRY(dscomm_codec_parse(spec, &row.codec));
    if (pr->report != NULL)
        perf_report_block(pr->report, dscomm_codec_spec(row.codec));
    for (int i = 0; i < pr->args->n_ops * pr->args->n_dtypes; i++) {
        struct perf_inputs in = { .dtype = pr->args->dtypes[i % pr->args->n_dtypes],
                                  .op = pr->args->ops[i / pr->args->n_dtypes],
                                  .rank = pr->rank,
                                  .n_ranks = pr->n_ranks };

        row.op = in.op;
        row.dtype = in.dtype;
        row.in = &in;
        unalign(pr, row.dtype);
        PERF_TRY(perf_inputs_init(&in, pr->source));
        const dscomm_status_t st = run_sizes(pr, &row);
        perf_inputs_fini(&in);
        PERF_TRY(st);
    }
    return DSCOMM_OK;
}

/* ---- a rank's life ---- */

static dscomm_status_t join(struct perf_rank *pr, const dscomm_unique_id_t *id,
                            const dscomm_comm_config_t *config)
{
    if (id == NULL)
        PERF_TRY(dscomm_comm_create_from_env(config, &pr->control));
    else
        PERF_TRY(dscomm_comm_create(pr->n_ranks, pr->rank, id, config, &pr->control));
    pr->rank = dscomm_comm_rank(pr->control);
    pr->n_ranks = dscomm_comm_n_ranks(pr->control);
    return DSCOMM_OK;
}

size_t perf_buffer_bytes(const struct perf_args *args)
{
    return (args->max_bytes + 4 * args->unalign + 64) / 64 * 64;
}

static dscomm_status_t open_report(struct perf_rank *pr, struct perf_report *report)
{
    char line[PERF_LINE_BYTES], host[40] = "?", device[40];
    char(*const lines)[PERF_LINE_BYTES] = calloc((size_t)pr->n_ranks, sizeof(*lines));

    if (lines == NULL)
        return DSCOMM_ERR_NO_MEMORY;
    (void)gethostname(host, sizeof(host) - 1);
    pr->where->describe(pr, device, sizeof(device));
    (void)snprintf(line, sizeof(line), "Rank %2d Pid %6d on %s%s", pr->rank, (int)getpid(), host,
                   device);
    const dscomm_status_t st = perf_gather_lines(pr, line, lines);
    if (st < 0 || pr->rank != 0) {
        free(lines);
        return st;
    }
    *report = (struct perf_report){ .args = pr->args,
                                    .coll = pr->coll,
                                    .n_ranks = pr->n_ranks,
                                    .data_text = pr->source->text,
                                    .caveat = pr->where->caveat(pr),
                                    .tiers = dscomm_comm_tiers(pr->comm),
                                    .lines = lines };
    pr->report = report;
    perf_report_header(report);
    return DSCOMM_OK;
}

static dscomm_status_t work(struct perf_rank *pr, const dscomm_unique_id_t *id,
                            struct perf_report *report)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.timeout_ms = pr->args->timeout_s * 1000;
    config.n_threads = pr->args->n_threads;
    config.transport = pr->args->transport;
    config.algorithm = pr->args->algorithm;
    PERF_TRY(join(pr, id, &config));
    pr->send_mem = aligned_alloc(64, perf_buffer_bytes(pr->args));
    pr->recv_mem = aligned_alloc(64, perf_buffer_bytes(pr->args));
    if (pr->send_mem == NULL || pr->recv_mem == NULL)
        return DSCOMM_ERR_NO_MEMORY;
    PERF_TRY(pr->where->open(pr, &config));
    PERF_TRY(open_report(pr, report));
    for (int i = 0; i < pr->args->n_codecs; i++)
        PERF_TRY(run_codec(pr, pr->args->codecs[i]));
    return DSCOMM_OK;
}

int perf_rank_run(const struct perf_args *args, const struct perf_collective *coll,
                  const struct perf_source *source, int rank, int n_ranks,
                  const dscomm_unique_id_t *id)
{
    struct perf_rank pr = { .args = args,
                            .coll = coll,
                            .source = source,
                            .where = args->on_cuda ? perf_on_cuda : &perf_on_host,
                            .rank = rank,
                            .n_ranks = n_ranks,
                            .doing = "start" };
    struct perf_report report = { 0 };
    const dscomm_status_t st = work(&pr, id, &report);
    int code = st == DSCOMM_OK && !pr.is_wrong ? PERF_EXIT_OK : PERF_EXIT_FAILED;

    if (st < 0 && pr.rank < 0) /* a launcher's variables never told which */
        (void)fprintf(stderr, "%s: failed (%s): %s\n", args->program, pr.doing,
                      dscomm_status_text(st));
    else if (st < 0)
        (void)fprintf(stderr, "%s: rank %d failed (%s): %s\n", args->program, pr.rank, pr.doing,
                      dscomm_status_text(st));
    if (st == DSCOMM_OK && pr.report != NULL)
        code = perf_report_end(&report);
    perf_report_destroy(&report);
    pr.where->close(&pr);
    dscomm_comm_destroy(pr.control);
    free(pr.send_mem);
    free(pr.recv_mem);
    return code;
}
