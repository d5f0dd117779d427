/* SPDX-License-Identifier: Apache-2.0 */
/* Another plugin, to be wrapped: the sockets of DSComm's, and nothing around them. */
#include "net.h"

#define PLAIN_EXPORT __attribute__((visibility("default")))

bool net_is_wrapped(const struct dsc_env *env)
{
    (void)env;
    return false;
}

const char *net_tuner_text(void)
{
    return "0 none";
}

void net_tuner_compare(const char *peer_text, const char *peer)
{
    (void)peer_text, (void)peer;
}

static nccl_result_t plain_init(void **ctx, uint64_t comm_id, struct nccl_comm_config *config,
                                nccl_logger_t *logger, nccl_profiler_t *profiler)
{
    net_log_set(logger);
    return net_tcp.init(ctx, comm_id, config, logger, profiler);
}

/* Written when the library is loaded: the rest is the table of the sockets. */
extern struct nccl_net_v12 ncclNetPlugin_v12;
PLAIN_EXPORT struct nccl_net_v12 ncclNetPlugin_v12;

__attribute__((constructor)) static void fill_in(void)
{
    ncclNetPlugin_v12 = net_tcp;
    ncclNetPlugin_v12.name = "plain";
    ncclNetPlugin_v12.init = plain_init;
}

DSC_AT_UNLOAD static void unload(void)
{
    (void)net_tcp.finalize(NULL);
    dsc_env_unload();
}
