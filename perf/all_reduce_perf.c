/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AllReduce benchmark with nccl-tests' options and columns: what a codec saves in time and bytes,
 * and what it costs in accuracy.
 */
#include "perf.h"

/* Every byte of a rank's vector leaves once to be reduced and comes back once reduced. */
static double bus_factor(int n_ranks)
{
    return 2.0 * (double)(n_ranks - 1) / (double)n_ranks;
}

static dscomm_status_t call(const struct perf_rank *rank, const struct perf_row *row,
                            const void *send, void *recv)
{
    return dscomm_allreduce_compressed(send, recv, row->count, row->dtype, row->op, row->codec,
                                       row->feedback, rank->comm, rank->stream);
}

static const struct perf_collective all_reduce = {
    .program = "all_reduce_perf",
    .reduces = true,
    .bus_factor = bus_factor,
    .sent_factor = bus_factor,
    .call = call,
};

int main(int argc, char **argv)
{
    return perf_main(&all_reduce, argc, argv);
}
