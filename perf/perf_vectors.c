/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a collective's vectors hold, from the few facts that its program states. A vector with
 * shares has row->count elements for every rank, in rank order.
 */
#include "perf.h"

static size_t shares(const struct perf_rank *pr, bool has_shares)
{
    return has_shares ? (size_t)pr->n_ranks : 1;
}

size_t perf_send_count(const struct perf_rank *pr, const struct perf_row *row)
{
    return row->count * shares(pr, pr->coll->sends_shares);
}

size_t perf_recv_count(const struct perf_rank *pr, const struct perf_row *row)
{
    return row->count * shares(pr, pr->coll->recvs_shares);
}

size_t perf_row_bytes(const struct perf_rank *pr, const struct perf_row *row)
{
    const size_t n = shares(pr, pr->coll->sends_shares || pr->coll->recvs_shares);

    return row->count * n * perf_dtype_bytes(row->dtype);
}

size_t perf_row_count(const struct perf_rank *pr, dscomm_dtype_t dtype, size_t bytes)
{
    const size_t n = shares(pr, pr->coll->sends_shares || pr->coll->recvs_shares);

    return (n == 1 ? bytes : bytes / n / 16 * 16) / perf_dtype_bytes(dtype);
}

/* In place an element that is in both vectors lies in one place. */
void perf_place(const struct perf_rank *pr, const struct perf_row *row, bool in_place,
                uint8_t **send_out, uint8_t **recv_out)
{
    const size_t own = (size_t)pr->rank * row->count * perf_dtype_bytes(row->dtype);
    const bool send_is_part = pr->coll->recvs_shares && !pr->coll->sends_shares;
    const bool recv_is_part = pr->coll->sends_shares && !pr->coll->recvs_shares;

    *send_out = !in_place ? pr->send : pr->recv + (send_is_part ? own : 0);
    *recv_out = pr->recv + (in_place && recv_is_part ? own : 0);
}

int perf_n_parts(const struct perf_rank *pr)
{
    return pr->coll->recvs_shares ? pr->n_ranks : 1;
}

struct perf_part perf_part(const struct perf_rank *pr, const struct perf_row *row, int i)
{
    return (struct perf_part){
        .rank = pr->coll->reduces    ? PERF_ALL_RANKS
                : pr->coll->has_root ? pr->args->root
                                     : i,
        .first = pr->coll->sends_shares ? (size_t)pr->rank * row->count : 0,
    };
}

int perf_root(const struct perf_collective *coll, const struct perf_args *args)
{
    return coll->has_root ? args->root : -1;
}

const char *perf_redop_name(const struct perf_collective *coll, dscomm_op_t op)
{
    return coll->reduces ? perf_op_name(op) : "none";
}

double perf_others_factor(int n_ranks)
{
    return (double)(n_ranks - 1) / (double)n_ranks;
}
