/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other about a run goes over the communicator itself, as small uncompressed
 * calls, so that it works the same for processes, threads and several hosts. Integers travel as
 * bytes in float32: sums over 65793 ranks stay exact.
 */
#include "perf.h"

#include <stdlib.h>
#include <string.h>

#define WORD_BYTES 8

static dscomm_status_t reduce(const struct perf_rank *pr, float *values, size_t n, dscomm_op_t op)
{
    return dscomm_allreduce_compressed(values, values, n, DSCOMM_FLOAT32, op, dscomm_codec("none"),
                                       NULL, pr->control, NULL);
}

static void spread(float *values, uint64_t word)
{
    for (int i = 0; i < WORD_BYTES; i++)
        values[i] = (float)((word >> (8 * i)) & 0xff);
}

dscomm_status_t perf_barrier(const struct perf_rank *pr)
{
    float one = 1.0f;

    return reduce(pr, &one, 1, DSCOMM_SUM);
}

dscomm_status_t perf_max_f32(const struct perf_rank *pr, float *values, size_t n)
{
    return reduce(pr, values, n, DSCOMM_MAX);
}

dscomm_status_t perf_sum_u64(const struct perf_rank *pr, uint64_t value, uint64_t *sum_out)
{
    float values[WORD_BYTES];

    spread(values, value);
    PERF_TRY(reduce(pr, values, WORD_BYTES, DSCOMM_SUM));
    *sum_out = 0;
    for (int i = 0; i < WORD_BYTES; i++)
        *sum_out += (uint64_t)values[i] << (8 * i);
    return DSCOMM_OK;
}

dscomm_status_t perf_all_equal(const struct perf_rank *pr, uint64_t value, bool *equal_out)
{
    float largest[WORD_BYTES], smallest[WORD_BYTES];

    spread(largest, value);
    spread(smallest, value);
    PERF_TRY(reduce(pr, largest, WORD_BYTES, DSCOMM_MAX));
    PERF_TRY(reduce(pr, smallest, WORD_BYTES, DSCOMM_MIN));
    *equal_out = true;
    for (int i = 0; i < WORD_BYTES; i++)
        *equal_out = *equal_out && largest[i] == smallest[i];
    return DSCOMM_OK;
}

dscomm_status_t perf_share_bytes(const struct perf_rank *pr, void *bytes, size_t n)
{
    float *const values = calloc(n, sizeof(float));
    uint8_t *const at = bytes;

    if (values == NULL)
        return DSCOMM_ERR_NO_MEMORY;
    for (size_t i = 0; pr->rank == 0 && i < n; i++)
        values[i] = (float)at[i];

    const dscomm_status_t st = reduce(pr, values, n, DSCOMM_SUM);
    for (size_t i = 0; st == DSCOMM_OK && i < n; i++)
        at[i] = (uint8_t)values[i];
    free(values);
    return st;
}

dscomm_status_t perf_gather_lines(const struct perf_rank *pr, const char *line,
                                  char (*lines)[PERF_LINE_BYTES])
{
    const size_t n = (size_t)pr->n_ranks * PERF_LINE_BYTES;
    float *const values = calloc(n, sizeof(float));

    if (values == NULL)
        return DSCOMM_ERR_NO_MEMORY;
    for (size_t i = 0; line[i] != '\0' && i < PERF_LINE_BYTES - 1; i++)
        values[(size_t)pr->rank * PERF_LINE_BYTES + i] = (float)(unsigned char)line[i];

    const dscomm_status_t st = reduce(pr, values, n, DSCOMM_SUM);
    for (size_t i = 0; st == DSCOMM_OK && i < n; i++)
        lines[i / PERF_LINE_BYTES][i % PERF_LINE_BYTES] = (char)(unsigned char)values[i];
    free(values);
    return st;
}
