/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-to-all benchmark with the options and columns of all_reduce_perf.
 */
#include "perf.h"

static dscomm_status_t call(const struct perf_rank *rank, const struct perf_row *row,
                            const void *send, void *recv)
{
    return dscomm_all_to_all_compressed(send, recv, row->count, row->dtype, row->codec,
                                        row->feedback, rank->comm, rank->stream);
}

static const struct perf_collective alltoall = {
    .program = "alltoall_perf",
    .sends_shares = true,
    .recvs_shares = true,
    .bus_factor = perf_others_factor,
    .sent_factor = perf_others_factor,
    .call = call,
};

int main(int argc, char **argv)
{
    return perf_main(&alltoall, argc, argv);
}
