/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tiers of ranks with a device each: what each rank knows about its host and the links of its
 * device is gathered, so that all ranks find the same tiers.
 */
#include "cuda/cuda.h"
#include "topo/topo.h"
#include "transport/transport.h"

#include <string.h>

/*
 * What is not known stays 0 and joins nobody: that costs speed alone, and an error here would let
 * the other ranks wait.
 */
static struct dsc_tier_facts find_facts(const struct dsc_cuda_comm *cc, const struct dsc_env *env)
{
    struct dsc_tier_facts facts = { 0 };
    struct dsc_peer_info self;
    char bus[32] = "";
    dscomm_topo_t *topo = NULL;

    if (dsc_peer_info_self(env, &self) < 0)
        return facts;
    if (cudaDeviceGetPCIBusId(bus, sizeof(bus), cc->device) == cudaSuccess &&
        dscomm_topo_load_host(NULL, &topo) == DSCOMM_OK) {
        dsc_tier_facts_of(topo, dscomm_topo_find(topo, bus), self.host_id, &facts);
        dscomm_topo_destroy(topo);
    } else {
        dsc_log_warn(CUDA, "the links of device %d are not known, its host is", cc->device);
        dsc_tier_facts_of(NULL, -1, self.host_id, &facts);
    }
    return facts;
}

const struct dsc_tier_facts *dsc_cuda_facts(struct dsc_cuda_comm *cc, const struct dsc_env *env)
{
    if (!cc->has_facts)
        cc->facts = find_facts(cc, env);
    cc->has_facts = true;
    return &cc->facts;
}

dscomm_status_t dsc_cuda_find_tiers(struct dsc_cuda_comm *cc, const struct dsc_env *env,
                                    const char *given)
{
    const size_t n = sizeof(struct dsc_tier_facts), n_ranks = (size_t)cc->base.n_ranks;
    struct dsc_tier_facts *all;
    dscomm_status_t st;

    if (given[0] != '\0')
        return dsc_comm_set_tiers(&cc->base, NULL, given);
    memcpy(cc->agree, dsc_cuda_facts(cc, env), n);
    DSC_TRY(dsc_cuda_gather(cc, n));
    all = dsc_calloc(DSC_MEM_COMM, n_ranks, n);
    if (all == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "facts of %zu ranks", n_ranks);
    memcpy(all, cc->agree + n, n_ranks * n);
    st = dsc_comm_set_tiers(&cc->base, all, "");
    dsc_free(all);
    return st;
}
