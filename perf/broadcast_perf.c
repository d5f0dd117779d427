/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Broadcast benchmark with the options and columns of all_reduce_perf; -r names the root.
 */
#include "perf.h"

/* Every byte must reach each rank once. */
static double bus_factor(int n_ranks)
{
    (void)n_ranks;
    return 1.0;
}

static dscomm_status_t call(const struct perf_rank *rank, const struct perf_row *row,
                            const void *send, void *recv)
{
    return dscomm_broadcast(send, recv, row->count, row->dtype, rank->args->root, row->codec,
                            rank->comm, rank->stream);
}

static const struct perf_collective broadcast = {
    .program = "broadcast_perf",
    .has_root = true,
    .bus_factor = bus_factor,
    .sent_factor = perf_others_factor,
    .call = call,
};

int main(int argc, char **argv)
{
    return perf_main(&broadcast, argc, argv);
}
