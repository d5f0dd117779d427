/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tuner's tables, v2 to v6. What is done to a call: the first row that fits makes its pair of
 * algorithm and protocol the cheapest, if NCCL offers it; LL128 between nodes over this project's
 * net is taken out, as long as something else is left, until that path has run on a GPU.
 */
#include <stdio.h>
#include <string.h>

#include "net.h"
#include "tuner_plugin.h"

#define TUNER_EXPORT __attribute__((visibility("default")))

struct tuner {
    struct tuner_config config;
    int64_t n_ranks, n_nodes;
    bool no_ll128;
    bool user_chose; /* NCCL_ALGO or NCCL_PROTO: of v2, which has no table to see it by */
    _Atomic bool told[TUNER_ROWS_MAX]; /* rows that NCCL did not offer */
};

static bool is_set(const char *name)
{
    const char *const value = dsc_env_launcher(name);

    return value != NULL && value[0] != '\0';
}

/* Both sides of a copied file must come to the same answer, so the environment counts as well. */
static bool uses_own_net(void)
{
    const char *const plugins = dsc_env_launcher("NCCL_NET_PLUGIN");

    return net_chosen() != NULL || (plugins != NULL && strstr(plugins, "dscomm") != NULL);
}

static void say_what_is_done(const struct tuner *t)
{
    net_info(NCCL_LOG_INIT | NCCL_LOG_TUNING,
             "TUNER/" NET_NAME " %s: %zu rows, network latency %.1f us, LL128 between nodes %s; "
             "files %s, hash %016llx",
             dscomm_version(), t->config.n_rows, t->config.net_latency_us,
             t->no_ll128 ? "off" : "as NCCL has it", t->config.names,
             (unsigned long long)t->config.hash);
}

/* Never fails: *ctx is NULL where there is nothing to say. */
static struct tuner *make(size_t n_ranks, size_t n_nodes, nccl_logger_t *logger)
{
    const struct dsc_env *env;
    struct tuner *t;

    net_log_set(logger);
    if (dsc_env_get(&env) < 0 || env->tuner == 0)
        return NULL;
    t = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*t));
    if (t == NULL)
        return NULL;
    t->n_ranks = (int64_t)n_ranks;
    t->n_nodes = (int64_t)n_nodes;
    t->no_ll128 = n_nodes > 1 && env->tuner_ll128 == 0 && uses_own_net();
    t->user_chose = is_set("NCCL_ALGO") || is_set("NCCL_PROTO");
    tuner_config_read(&t->config);
    say_what_is_done(t);
    return t;
}

static nccl_result_t init_v2(size_t n_ranks, size_t n_nodes, nccl_logger_t *logger, void **ctx)
{
    *ctx = make(n_ranks, n_nodes, logger);
    return NCCL_SUCCESS;
}

/* NCCL's model of a network's latency is that of a fast one: the profile's comes on top. */
static nccl_result_t init_v5(void **ctx, uint64_t comm_id, size_t n_ranks, size_t n_nodes,
                             nccl_logger_t *logger, struct nccl_nvl_domains *domains,
                             struct nccl_tuner_constants *constants)
{
    struct tuner *const t = make(n_ranks, n_nodes, logger);

    (void)comm_id, (void)domains;
    *ctx = t;
    if (t == NULL || constants == NULL)
        return NCCL_SUCCESS;
    for (int algo = 0; algo < NCCL_ALGOS; algo++)
        for (int proto = 0; proto < NCCL_PROTOS; proto++)
            constants->hw_latencies[NCCL_LINK_NET][algo][proto] += t->config.net_latency_us;
    return NCCL_SUCCESS;
}

static nccl_result_t finalize(void *ctx)
{
    struct tuner *const t = ctx;

    if (t != NULL)
        tuner_config_free(&t->config);
    dsc_free(t);
    return NCCL_SUCCESS;
}

static bool is_wanted(int64_t wanted, int64_t value)
{
    return wanted == TUNER_ANY || wanted == value;
}

/* NULL: none fits. reg_buff and n_pipe_ops: TUNER_ANY where the version does not say. */
static const struct tuner_row *find_row(const struct tuner *t, int func, size_t bytes,
                                        int n_pipe_ops, int reg_buff)
{
    for (size_t i = 0; i < t->config.n_rows; i++) {
        const struct tuner_row *const row = &t->config.rows[i];

        if (row->func == func && bytes >= row->bytes_min && bytes <= row->bytes_max &&
            is_wanted(row->n_nodes, t->n_nodes) && is_wanted(row->n_ranks, t->n_ranks) &&
            is_wanted(row->n_pipe_ops, n_pipe_ops) && is_wanted(row->reg_buff, reg_buff))
            return row;
    }
    return NULL;
}

struct costs {
    float *table; /* [n_algos][n_protos] */
    int n_algos, n_protos;
};

static float *cost_of(const struct costs *costs, int algo, int proto)
{
    return &costs->table[algo * costs->n_protos + proto];
}

static void apply_row(struct tuner *t, const struct tuner_row *row, const struct costs *costs,
                      int *n_channels)
{
    const bool exists = row->algo < costs->n_algos && row->proto < costs->n_protos;

    if (exists && *cost_of(costs, row->algo, row->proto) != NCCL_COST_IGNORE) {
        *cost_of(costs, row->algo, row->proto) = 0.0f;
        if (row->n_channels > 0)
            *n_channels = row->n_channels;
        return;
    }
    if (!atomic_exchange(&t->told[row - t->config.rows], true))
        net_info(NCCL_LOG_TUNING,
                 "TUNER/" NET_NAME ": line %d names what NCCL does not allow here (NCCL_ALGO, "
                 "NCCL_PROTO, or the hardware); NCCL's own choice stands",
                 row->line);
}

/* Whether something other than LL128 may be used. */
static bool has_other(const struct costs *costs)
{
    for (int algo = 0; algo < costs->n_algos; algo++)
        for (int proto = 0; proto < costs->n_protos; proto++)
            if (proto != NCCL_LL128 && *cost_of(costs, algo, proto) >= 0)
                return true;
    return false;
}

static void drop_ll128(const struct costs *costs)
{
    if (costs->n_protos <= NCCL_LL128 || !has_other(costs))
        return;
    for (int algo = 0; algo < costs->n_algos; algo++)
        *cost_of(costs, algo, NCCL_LL128) = NCCL_COST_IGNORE;
}

static nccl_result_t get_coll_info_v4(void *ctx, int func, size_t bytes, int n_pipe_ops,
                                      float **table, int n_algos, int n_protos, int reg_buff,
                                      int *n_channels)
{
    const struct costs costs = { (float *)(void *)table, n_algos, n_protos };
    struct tuner *const t = ctx;
    const struct tuner_row *row;

    if (t == NULL || table == NULL || n_algos < 1 || n_protos < 1)
        return NCCL_SUCCESS;
    if (t->no_ll128)
        drop_ll128(&costs);
    row = find_row(t, func, bytes, n_pipe_ops, reg_buff);
    if (row != NULL)
        apply_row(t, row, &costs, n_channels);
    return NCCL_SUCCESS;
}

static nccl_result_t get_coll_info_v3(void *ctx, int func, size_t bytes, int n_pipe_ops,
                                      float **table, int n_algos, int n_protos, int *n_channels)
{
    return get_coll_info_v4(ctx, func, bytes, n_pipe_ops, table, n_algos, n_protos, TUNER_ANY,
                            n_channels);
}

/* No table, so what NCCL_ALGO and NCCL_PROTO forbid cannot be seen: then no opinion. */
static nccl_result_t get_coll_info_v2(void *ctx, int func, size_t bytes, int collnet, int nvls,
                                      int n_pipe_ops, int *algo, int *proto, int *n_channels)
{
    const struct tuner *const t = ctx;
    const struct tuner_row *row;

    if (t == NULL || t->user_chose)
        return NCCL_SUCCESS;
    row = find_row(t, func, bytes, n_pipe_ops, TUNER_ANY);
    if (row == NULL || (t->no_ll128 && row->proto == NCCL_LL128) ||
        ((row->algo == NCCL_COLLNET_DIRECT || row->algo == NCCL_COLLNET_CHAIN) && !collnet) ||
        ((row->algo == NCCL_NVLS || row->algo == NCCL_NVLS_TREE) && !nvls))
        return NCCL_SUCCESS;
    *algo = row->algo;
    *proto = row->proto;
    if (row->n_channels > 0)
        *n_channels = row->n_channels;
    return NCCL_SUCCESS;
}

extern const struct nccl_tuner_v2 ncclTunerPlugin_v2;
extern const struct nccl_tuner_v3 ncclTunerPlugin_v3;
extern const struct nccl_tuner_v4 ncclTunerPlugin_v4;
extern const struct nccl_tuner_v5 ncclTunerPlugin_v5;
extern const struct nccl_tuner_v6 ncclTunerPlugin_v6;

TUNER_EXPORT const struct nccl_tuner_v2 ncclTunerPlugin_v2 = {
    .name = NET_NAME, .init = init_v2, .get_coll_info = get_coll_info_v2, .destroy = finalize
};
TUNER_EXPORT const struct nccl_tuner_v3 ncclTunerPlugin_v3 = {
    .name = NET_NAME, .init = init_v2, .get_coll_info = get_coll_info_v3, .destroy = finalize
};
TUNER_EXPORT const struct nccl_tuner_v4 ncclTunerPlugin_v4 = {
    .name = NET_NAME, .init = init_v2, .get_coll_info = get_coll_info_v4, .destroy = finalize
};
TUNER_EXPORT const struct nccl_tuner_v5 ncclTunerPlugin_v5 = {
    .name = NET_NAME, .init = init_v5, .get_coll_info = get_coll_info_v4, .finalize = finalize
};
TUNER_EXPORT const struct nccl_tuner_v6 ncclTunerPlugin_v6 = {
    .name = NET_NAME, .init = init_v5, .get_coll_info = get_coll_info_v4, .finalize = finalize
};
