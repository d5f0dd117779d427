/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors in host memory: they are where they are made, and the control communicator carries them.
 */
#include "perf.h"

static dscomm_status_t open_host(struct perf_rank *pr, const dscomm_comm_config_t *config)
{
    (void)config;
    pr->comm = pr->control;
    return DSCOMM_OK;
}

static void close_host(struct perf_rank *pr)
{
    pr->comm = NULL; /* the control communicator is the rank's */
}

static dscomm_status_t create_feedback(size_t count, dscomm_feedback_t **fb_out)
{
    return dscomm_feedback_create(count, NULL, fb_out);
}

static dscomm_status_t begin(struct perf_rank *pr, const struct perf_row *row, bool in_place)
{
    (void)pr, (void)row, (void)in_place;
    return DSCOMM_OK;
}

static void end(struct perf_rank *pr)
{
    (void)pr;
}

static dscomm_status_t is_there(const struct perf_rank *pr, const struct perf_row *row,
                                bool in_place)
{
    (void)pr, (void)row, (void)in_place;
    return DSCOMM_OK;
}

static dscomm_status_t call(const struct perf_rank *pr, const struct perf_row *row, bool in_place,
                            double *us_out)
{
    uint8_t *send, *recv;

    perf_place(pr, row, in_place, &send, &recv);
    const uint64_t start_ns = perf_now_ns();
    PERF_TRY(pr->coll->call(pr, row, send, recv));
    *us_out = (double)(perf_now_ns() - start_ns) * 1e-3;
    return DSCOMM_OK;
}

static void describe(const struct perf_rank *pr, char *text, size_t text_bytes)
{
    (void)pr, (void)text_bytes;
    text[0] = '\0';
}

static const char *caveat(const struct perf_rank *pr)
{
    (void)pr;
    return NULL;
}

const struct perf_place_ops perf_on_host = {
    .open = open_host,
    .close = close_host,
    .feedback_create = create_feedback,
    .begin = begin,
    .end = end,
    .put = is_there,
    .call = call,
    .get = is_there,
    .describe = describe,
    .caveat = caveat,
};
