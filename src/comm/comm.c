/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of a communicator: settings from config and environment; of a host one the rendezvous, after
 * which host_open.c makes its parts.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <string.h>

/* Of a chunk; below, a message's fixed cost outweighs what overlap wins. */
#define MIN_CHUNK_ELEMS 64256

/* Config with the environment's values filled in, all members set. */
struct settings {
    dscomm_comm_config_t config;
    const struct dsc_env *env;
    const char *tiers; /* DSCOMM_TIERS, or as a communicator that was split has them */
};

/* The struct as it was when it was first published: a caller may know no more. */
#define CONFIG_BYTES_FIRST (offsetof(dscomm_comm_config_t, preserve_input) + sizeof(int))

static dscomm_status_t copy_config(const dscomm_comm_config_t *config, dscomm_comm_config_t *out)
{
    static const dscomm_comm_config_t defaults = DSCOMM_COMM_CONFIG_INIT;

    *out = defaults;
    if (config == NULL)
        return DSCOMM_OK;
    if (config->struct_bytes < CONFIG_BYTES_FIRST)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "config struct_bytes %zu, must be sizeof(dscomm_comm_config_t), %zu",
                        config->struct_bytes, sizeof(*config));
    memcpy(out, config, dsc_min_size(config->struct_bytes, sizeof(*out)));
    return DSCOMM_OK;
}

static dscomm_status_t check_config(const dscomm_comm_config_t *c)
{
    if (c->timeout_ms < 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "timeout_ms %d, must be 0 or more", c->timeout_ms);
    if (c->n_threads < 0 || c->n_threads > 256)
        return dsc_fail(DSCOMM_ERR_INVALID, "n_threads %d, must be 0 to 256", c->n_threads);
    if (c->chunk_bytes != 0 && (c->chunk_bytes < 1024 || c->chunk_bytes > 67108864))
        return dsc_fail(DSCOMM_ERR_INVALID, "chunk_bytes %zu, must be 0 or 1024 to 67108864",
                        c->chunk_bytes);
    if (c->transport != NULL && !dsc_is_word_of(DSC_TRANSPORT_WORDS, c->transport))
        return dsc_fail(DSCOMM_ERR_INVALID, "transport '%s', must be one of " DSC_TRANSPORT_WORDS,
                        c->transport);
    if (c->algorithm != NULL && !dsc_is_word_of(DSC_ALGORITHM_WORDS, c->algorithm))
        return dsc_fail(DSCOMM_ERR_INVALID, "algorithm '%s', must be one of " DSC_ALGORITHM_WORDS,
                        c->algorithm);
    if (c->exact_order != 0 && c->exact_order != 1)
        return dsc_fail(DSCOMM_ERR_INVALID, "exact_order %d, must be 0 or 1", c->exact_order);
    return DSCOMM_OK;
}

static dscomm_status_t check_budget(const struct dsc_env *env)
{
    struct dsc_budget budget;

    if (!dsc_budget_parse(env->error_budget, &budget))
        return dsc_fail(DSCOMM_ERR_ENV, "DSCOMM_ERROR_BUDGET=\"%.40s\", must be " DSC_BUDGET_FORM,
                        env->error_budget);
    return DSCOMM_OK;
}

dscomm_status_t dsc_comm_settings(const dscomm_comm_config_t *config, const struct dsc_env *env,
                                  dscomm_comm_config_t *settings_out)
{
    dscomm_comm_config_t *const c = settings_out;

    DSC_TRY(check_budget(env));
    DSC_TRY(copy_config(config, c));
    DSC_TRY(check_config(c));
    if (c->timeout_ms == 0)
        c->timeout_ms = (int)env->timeout_ms;
    if (c->n_threads == 0)
        c->n_threads = (int)env->threads;
    if (c->chunk_bytes == 0)
        c->chunk_bytes = (size_t)env->chunk_bytes;
    if (c->transport == NULL)
        c->transport = env->transport;
    if (c->algorithm == NULL)
        c->algorithm = env->algorithm;
    if (c->seed == 0)
        c->seed = (unsigned)env->seed;
    if (c->exact_order == 0)
        c->exact_order = (int)env->exact_order;
    return DSCOMM_OK;
}

static dscomm_status_t read_settings(const dscomm_comm_config_t *config, struct settings *out)
{
    DSC_TRY(dsc_env_get(&out->env));
    out->tiers = out->env->tiers;
    return dsc_comm_settings(config, out->env, &out->config);
}

dscomm_status_t dsc_comm_check_config(const dscomm_comm_config_t *config)
{
    dscomm_comm_config_t copy;

    DSC_TRY(copy_config(config, &copy));
    return check_config(&copy);
}

void dsc_comm_config_of(const struct dscomm_comm *comm, dscomm_comm_config_t *config_out)
{
    *config_out = comm->config;
    config_out->struct_bytes = sizeof(*config_out);
    config_out->transport = comm->transport;
    config_out->algorithm = dsc_algorithm_name(comm->algorithm);
}

/* What must be equal on all ranks, compared at rendezvous. */
static dscomm_status_t settings_text(const struct settings *s, int n_ranks, const char *net_plugin,
                                     char *text, size_t bytes)
{
    char tiers[DSC_TIERS_SETTING_BYTES];

    DSC_TRY(dsc_tiers_setting(s->tiers, n_ranks, tiers, sizeof(tiers)));
    snprintf(text, bytes,
             "chunk_bytes=%zu algorithm=%s oneshot_bytes=%llu window=%llu socket_nsocks=%llu "
             "crc=%llu transport=%s seed=%u min_bytes=%zu tiers=%s error_budget=%s "
             "net_plugin=%s",
             s->config.chunk_bytes, s->config.algorithm, (unsigned long long)s->env->oneshot_bytes,
             (unsigned long long)s->env->window, (unsigned long long)s->env->socket_nsocks,
             (unsigned long long)s->env->crc, s->config.transport, s->config.seed,
             s->config.min_bytes, tiers, s->env->error_budget, net_plugin);
    return DSCOMM_OK;
}

void dsc_comm_init(struct dscomm_comm *comm, const struct dsc_backend *backend, int n_ranks,
                   int rank, const dscomm_comm_config_t *settings, const struct dsc_env *env)
{
    comm->backend = backend;
    comm->n_ranks = n_ranks;
    comm->rank = rank;
    comm->config = *settings;
    snprintf(comm->transport, sizeof(comm->transport), "%s", settings->transport);
    comm->chunk_elems = settings->chunk_bytes / sizeof(float);
    comm->min_chunk_elems = MIN_CHUNK_ELEMS;
    comm->oneshot_bytes = (size_t)env->oneshot_bytes;
    dsc_algorithm_find(settings->algorithm, &comm->algorithm);
    dsc_budget_parse(env->error_budget, &comm->budget); /* checked before */
}

static enum dsc_rdma_wish rdma_wish(const char *transport)
{
    if (strcmp(transport, "verbs") == 0)
        return DSC_RDMA_MUST;
    return strcmp(transport, "auto") == 0 ? DSC_RDMA_MAY : DSC_RDMA_NO;
}

static dscomm_status_t join(int n_ranks, int rank, const dscomm_unique_id_t *id,
                            const struct settings *s, const char *net_plugin,
                            dscomm_comm_t **comm_out)
{
    char text[1024];
    const struct dsc_bootstrap_params params = { n_ranks, rank, s->config.timeout_ms, text,
                                                 rdma_wish(s->config.transport) };
    struct dsc_bootstrap boot;
    dscomm_comm_t *comm = dsc_calloc(DSC_MEM_COMM, 1, sizeof(*comm));
    dscomm_status_t st;

    st = comm == NULL ? dsc_fail(DSCOMM_ERR_NO_MEMORY, "communicator")
                      : settings_text(s, n_ranks, net_plugin, text, sizeof(text));
    if (st < 0) {
        dsc_bootstrap_abandon(id, rank, st);
        dsc_free(comm);
        return st;
    }
    dsc_log_set_rank(rank, n_ranks);
    dsc_comm_init(comm, &dsc_backend_host, n_ranks, rank, &s->config, s->env);
    st = dsc_bootstrap_join(id, &params, &boot);
    if (st == DSCOMM_OK) {
        st = dsc_host_open(comm, &boot, s->env, s->tiers);
        dsc_bootstrap_fini(&boot);
    }
    if (st < 0) {
        dscomm_comm_destroy(comm);
        return st;
    }
    *comm_out = comm;
    return DSCOMM_OK;
}

/* The plugin's name must be known before ranks meet; from then on the endpoint holds it too. */
static dscomm_status_t join_with_plugin(int n_ranks, int rank, const dscomm_unique_id_t *id,
                                        const struct settings *s, dscomm_comm_t **comm_out)
{
    const bool has_plugin = strcmp(s->config.transport, dsc_transport_nccl_net.name) == 0;
    char name[DSC_NCCL_NAME_BYTES] = "none";
    dscomm_status_t st = has_plugin ? dsc_nccl_net_hold(name) : DSCOMM_OK;

    if (st < 0) {
        dsc_bootstrap_abandon(id, rank, st);
        return st;
    }
    st = join(n_ranks, rank, id, s, name, comm_out);
    if (has_plugin)
        dsc_nccl_net_drop();
    return st;
}

dscomm_status_t dsc_comm_create(int n_ranks, int rank, const dscomm_unique_id_t *id,
                                const dscomm_comm_config_t *config, const char *tiers,
                                dscomm_comm_t **comm_out)
{
    struct settings s;

    if (id == NULL || comm_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s is NULL", id == NULL ? "id" : "comm_out");
    DSC_TRY(dsc_rank_check(n_ranks, rank));
    DSC_TRY(read_settings(config, &s));
    s.tiers = tiers != NULL ? tiers : s.tiers;
    return join_with_plugin(n_ranks, rank, id, &s, comm_out);
}

/* ---- public ---- */

dscomm_status_t dscomm_comm_create(int n_ranks, int rank, const dscomm_unique_id_t *id,
                                   const dscomm_comm_config_t *config, dscomm_comm_t **comm_out)
{
    return dsc_comm_create(n_ranks, rank, id, config, NULL, comm_out);
}

dscomm_status_t dscomm_comm_create_from_env(const dscomm_comm_config_t *config,
                                            dscomm_comm_t **comm_out)
{
    dscomm_unique_id_t id;
    struct settings s;
    int n_ranks, rank;

    if (comm_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "comm_out is NULL");
    DSC_TRY(read_settings(config, &s));
    DSC_TRY(dsc_bootstrap_env(s.config.timeout_ms, &n_ranks, &rank, &id));
    return join_with_plugin(n_ranks, rank, &id, &s, comm_out);
}

dscomm_status_t dscomm_comm_destroy(dscomm_comm_t *comm)
{
    if (comm == NULL)
        return DSCOMM_OK;
    dsc_turns_drain(&comm->turns); /* queued calls */
    DSC_TRY(comm->backend->close(comm));
    dsc_group_forget(comm);
    dsc_free(comm->group.calls.args);
    dsc_auto_destroy(comm->automatic);
    dsc_tiers_fini(&comm->tiers);
    dsc_free(comm->tiers_text);
    dsc_free(comm);
    return DSCOMM_OK;
}

dscomm_status_t dscomm_comm_async_error(const dscomm_comm_t *comm, const char **text_out)
{
    dscomm_status_t st;

    if (comm == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "comm is NULL");
    st = (dscomm_status_t)atomic_load(&comm->failed);
    if (text_out != NULL)
        *text_out = st < 0 ? comm->error_text : "";
    return st;
}

int dscomm_comm_rank(const dscomm_comm_t *comm)
{
    return comm == NULL ? -1 : comm->rank;
}

int dscomm_comm_n_ranks(const dscomm_comm_t *comm)
{
    return comm == NULL ? -1 : comm->n_ranks;
}

dscomm_status_t dscomm_comm_stats(const dscomm_comm_t *comm, dscomm_stats_t *stats_out)
{
    if (comm == NULL || stats_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s is NULL", comm == NULL ? "comm" : "stats_out");
    if (stats_out->struct_bytes != sizeof(*stats_out))
        return dsc_fail(DSCOMM_ERR_INVALID, "stats struct_bytes %zu, must be %zu",
                        stats_out->struct_bytes, sizeof(*stats_out));
    *stats_out = (dscomm_stats_t){ .struct_bytes = sizeof(*stats_out),
                                   .calls = atomic_load(&comm->calls),
                                   .call_ns = atomic_load(&comm->call_ns),
                                   .plans = atomic_load(&comm->plans_made) };
    comm->backend->stats(comm, stats_out);
    return DSCOMM_OK;
}
