/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the collectives are, as a table, and what follows for a caller's vectors: how many elements
 * they have and where in the plan's vector they begin.
 */
#include "plan/plan.h"

static const struct dsc_collective_traits collectives[] = {
    [DSC_ALLREDUCE] = { "allreduce", false, false, true },
    [DSC_REDUCE_SCATTER] = { "reduce_scatter", true, false, true },
    [DSC_ALL_GATHER] = { "all_gather", false, true, true },
    [DSC_BROADCAST] = { "broadcast", false, false, false },
    [DSC_ALL_TO_ALL] = { "all_to_all", true, true, false },
};

const struct dsc_collective_traits *dsc_collective_traits(enum dsc_collective collective)
{
    return &collectives[collective];
}

static bool has_shares(const struct dsc_plan_params *params)
{
    const struct dsc_collective_traits *const traits = &collectives[params->collective];

    return traits->sends_shares || traits->recvs_shares;
}

size_t dsc_plan_share(const struct dsc_plan_params *params)
{
    return has_shares(params) ? params->count / (size_t)params->n_ranks : params->count;
}

size_t dsc_plan_send_elems(const struct dsc_plan_params *params)
{
    return collectives[params->collective].sends_shares ? params->count : dsc_plan_share(params);
}

size_t dsc_plan_recv_elems(const struct dsc_plan_params *params)
{
    return collectives[params->collective].recvs_shares ? params->count : dsc_plan_share(params);
}

/* A vector with one share holds the rank's. */
static size_t base_of(const struct dsc_plan_params *params, size_t elems)
{
    return elems == params->count ? 0 : (size_t)params->rank * elems;
}

size_t dsc_plan_send_base(const struct dsc_plan_params *params)
{
    return base_of(params, dsc_plan_send_elems(params));
}

size_t dsc_plan_recv_base(const struct dsc_plan_params *params)
{
    return base_of(params, dsc_plan_recv_elems(params));
}
