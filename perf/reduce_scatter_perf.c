/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter benchmark with the options and columns of all_reduce_perf.
 */
#include "perf.h"

static dscomm_status_t call(const struct perf_rank *rank, const struct perf_row *row,
                            const void *send, void *recv)
{
    return dscomm_reduce_scatter_compressed(send, recv, row->count, row->dtype, row->op, row->codec,
                                            row->feedback, rank->comm, rank->stream);
}

static const struct perf_collective reduce_scatter = {
    .program = "reduce_scatter_perf",
    .sends_shares = true,
    .reduces = true,
    .bus_factor = perf_others_factor,
    .sent_factor = perf_others_factor,
    .call = call,
};

int main(int argc, char **argv)
{
    return perf_main(&reduce_scatter, argc, argv);
}
