/* SPDX-License-Identifier: Apache-2.0 */
/* In place of the other net_verbs files where a build has no infiniband/verbs.h. */
#include "net.h"

nccl_result_t net_verbs_count(int *n_out)
{
    *n_out = 0;
    return NCCL_SUCCESS;
}

static nccl_result_t none_init(void **ctx, uint64_t comm_id, struct nccl_comm_config *config,
                               nccl_logger_t *logger, nccl_profiler_t *profiler)
{
    (void)comm_id, (void)config, (void)logger, (void)profiler;
    *ctx = NULL;
    net_warn(NET_NAME ": DSCOMM_NET=verbs: this library was built without infiniband/verbs.h");
    return NCCL_SYSTEM_ERROR;
}

const struct nccl_net_v12 net_verbs = { .name = "verbs", .init = none_init };
