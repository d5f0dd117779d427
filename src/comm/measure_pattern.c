/* SPDX-License-Identifier: Apache-2.0 */
/* Who sends to whom while links of a tier are measured. */
#include "comm/comm.h"

/* A tier of a communicator. */
struct place {
    const struct dscomm_comm *comm;
    int tier;
};

/* Group of a rank below the tier. */
static int sub_group(const struct place *l, int rank)
{
    const size_t n = (size_t)l->comm->n_ranks;

    return l->tier == 0 ? rank : l->comm->tiers.groups[(size_t)(l->tier - 1) * n + (size_t)rank];
}

static int group(const struct place *l, int rank)
{
    return l->comm->tiers.groups[(size_t)l->tier * (size_t)l->comm->n_ranks + (size_t)rank];
}

/* The k-th rank, k modulo their number, of a sub-group. */
static int member(const struct place *l, int sub, int k)
{
    int n = 0;

    for (int r = 0; r < l->comm->n_ranks; r++)
        n += sub_group(l, r) == sub;
    k %= n;
    for (int r = 0; r < l->comm->n_ranks; r++)
        if (sub_group(l, r) == sub && k-- == 0)
            return r;
    return -1;
}

/* The next sub-group of the rank's group, in the order of their numbers, around; its own: alone. */
static int next_sub_group(const struct place *l, int rank)
{
    const int own = sub_group(l, rank);
    int lowest = own, next = -1;

    for (int r = 0; r < l->comm->n_ranks; r++) {
        const int sub = sub_group(l, r);

        if (group(l, r) != group(l, rank))
            continue;
        if (sub < lowest)
            lowest = sub;
        if (sub > own && (next < 0 || sub < next))
            next = sub;
    }
    return next < 0 ? lowest : next;
}

int dsc_measure_target(const struct dscomm_comm *comm, int tier, int rank)
{
    const struct place at = { comm, tier }, *const l = &at;
    const int next = next_sub_group(l, rank);
    int place = 0;

    if (next == sub_group(l, rank))
        return -1;
    for (int r = 0; r < rank; r++)
        place += sub_group(l, r) == sub_group(l, rank);
    return member(l, next, place);
}
