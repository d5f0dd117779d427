/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The side of DSComm: compare_dscomm CONTROL SHARED SIDE, with the variables of a launcher. Lossy
 * codecs have a feedback object, as in training; settings are the library's defaults.
 */
#include "compare_worker.h"

#include <dscomm/dscomm.h>
#include <stdio.h>
#include <string.h>

struct side {
    dscomm_comm_t *comm;
    const dscomm_codec_t *codec;
    dscomm_feedback_t *feedback;
    size_t feedback_count;
};

static bool is_ok(dscomm_status_t st)
{
    if (st < 0)
        (void)fprintf(stderr, "dscomm: %s: %s\n", dscomm_status_text(st), dscomm_last_error());
    return st >= 0;
}

static bool knows(void *self, const char *codec)
{
    const dscomm_codec_t *found;

    (void)self;
    return dscomm_codec_parse(codec, &found) == DSCOMM_OK;
}

/* The residual of another codec or length would be another job's: it starts anew. */
static bool prepare(void *self, const char *spec, float *recv, size_t count)
{
    struct side *const side = self;
    const dscomm_codec_t *codec;

    (void)recv;
    if (!is_ok(dscomm_codec_parse(spec, &codec)))
        return false;
    if (side->feedback != NULL && codec == side->codec && count == side->feedback_count)
        return true;
    dscomm_feedback_destroy(side->feedback);
    side->feedback = NULL;
    side->codec = codec;
    side->feedback_count = count;
    if (strcmp(spec, "none") == 0)
        return true;
    return is_ok(dscomm_feedback_create(count, NULL, &side->feedback));
}

static bool call(void *self, const float *send, float *recv, size_t count)
{
    struct side *const side = self;

    return is_ok(dscomm_allreduce_compressed(send, recv, count, DSCOMM_FLOAT32, DSCOMM_SUM,
                                             side->codec, side->feedback, side->comm, NULL));
}

static int64_t sent_bytes(void *self)
{
    struct side *const side = self;
    dscomm_stats_t stats = { .struct_bytes = sizeof(stats) };

    return is_ok(dscomm_comm_stats(side->comm, &stats)) ? (int64_t)stats.wire_tx_bytes : -1;
}

int main(int argc, char **argv)
{
    struct side side = { 0 };
    struct compare_backend backend = { .self = &side,
                                       .version = dscomm_version(),
                                       .knows = knows,
                                       .prepare = prepare,
                                       .call = call,
                                       .sent_bytes = sent_bytes };

    if (argc != 4) {
        (void)fprintf(stderr, "usage: %s CONTROL SHARED SIDE\n", argv[0]);
        return 2;
    }
    if (!is_ok(dscomm_comm_create_from_env(NULL, &side.comm)))
        return 1;
    backend.rank = dscomm_comm_rank(side.comm);
    const int code = compare_worker_run(&backend, argv[1], argv[2], argv[3]);
    dscomm_feedback_destroy(side.feedback);
    dscomm_comm_destroy(side.comm);
    return code;
}
