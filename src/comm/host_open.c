/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a communicator of the host backend is made of once its ranks have met: tiers, an endpoint, an
 * executor; and what its ranks on one host share.
 */
#include "comm/comm.h"

#include <string.h>

/* Calls up to this many float32 bytes run on the caller's thread alone; see docs/perf.md. */
#define INLINE_BYTES 524288

/*
 * Of a rank's slots, all connections together, unless a window of 1 takes more. Many peers keep a
 * rank busy with a short window as few do with a long one.
 */
#define SLOTS_BYTES_MAX ((size_t)32 << 20)

static bool share_cpus(const struct dsc_peer_info *a, const struct dsc_peer_info *b)
{
    bool overlap = false;

    for (size_t i = 0; i < sizeof(a->cpu_set); i++)
        overlap = overlap || (a->cpu_set[i] & b->cpu_set[i]) != 0;
    return overlap && strcmp(a->host_id, b->host_id) == 0;
}

/*
 * Spinning helps only while every rank has a CPU of its own: those that may run on CPUs of this one
 * must not be more than these. Launchers often give each rank CPUs that no other has.
 */
static uint64_t spin_ns(const struct dsc_bootstrap *boot, int n_threads, const struct dsc_env *env)
{
    const struct dsc_peer_info *self = &boot->peers[boot->rank];
    uint64_t n_sharing = 0;

    for (int r = 0; r < boot->n_ranks; r++)
        n_sharing += share_cpus(&boot->peers[r], self);
    if (n_sharing * (uint64_t)n_threads > self->n_cpus)
        return 0;
    return env->spin_us * 1000;
}

/* Ranks on this one's host, and CPUs that one or the other of them may use. */
static void count_host(struct dscomm_comm *comm, const struct dsc_bootstrap *boot)
{
    const struct dsc_peer_info *const self = &boot->peers[boot->rank];
    uint8_t cpus[DSC_CPU_SET_BYTES] = { 0 };
    int n_cpus = 0;

    for (int r = 0; r < boot->n_ranks; r++) {
        if (strcmp(boot->peers[r].host_id, self->host_id) != 0)
            continue;
        comm->ranks_per_host++;
        for (size_t i = 0; i < sizeof(cpus); i++)
            cpus[i] |= boot->peers[r].cpu_set[i];
    }
    for (size_t i = 0; i < sizeof(cpus); i++)
        n_cpus += __builtin_popcount(cpus[i]);
    /* sets are modulo their bits, or unknown: then what this rank may use is the better answer */
    comm->cpus_per_host =
        n_cpus == 8 * DSC_CPU_SET_BYTES || n_cpus < (int)self->n_cpus ? (int)self->n_cpus : n_cpus;
    if (comm->cpus_per_host < 1)
        comm->cpus_per_host = 1;
}

/* Follows from what is equal on all ranks, as both ends of a connection must have it alike. */
static uint32_t fit_window(const struct dsc_bootstrap *boot, const struct dsc_env *env,
                           size_t slot_bytes)
{
    const size_t n_peers = boot->n_ranks > 1 ? (size_t)boot->n_ranks - 1 : 1;
    const size_t fits = SLOTS_BYTES_MAX / (2 * slot_bytes * n_peers);

    return (uint32_t)dsc_max_size(1, dsc_min_size(fits, (size_t)env->window));
}

/* Ranks on CPUs know each other's hosts. */
static dscomm_status_t find_tiers(struct dscomm_comm *comm, const struct dsc_bootstrap *boot,
                                  const char *given)
{
    struct dsc_tier_facts *const facts =
        dsc_calloc(DSC_MEM_COMM, (size_t)boot->n_ranks, sizeof(*facts));
    dscomm_status_t st;

    if (facts == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "facts of %d ranks", boot->n_ranks);
    for (int r = 0; r < boot->n_ranks; r++)
        dsc_tier_facts_of(NULL, -1, boot->peers[r].host_id, &facts[r]);
    st = dsc_comm_set_tiers(comm, facts, given);
    dsc_free(facts);
    return st;
}

static dscomm_status_t open_parts(struct dscomm_comm *comm, struct dsc_bootstrap *boot,
                                  const struct dsc_env *env)
{
    const dscomm_comm_config_t *const c = &comm->config;
    const uint64_t spin = spin_ns(boot, c->n_threads, env);
    const size_t slot_bytes = dsc_slot_bytes(c->chunk_bytes);
    const struct dsc_net_params net = { .transport = c->transport,
                                        .slot_bytes = slot_bytes,
                                        .n_slots = fit_window(boot, env, slot_bytes),
                                        .n_socks = (uint32_t)env->socket_nsocks,
                                        .crc = env->crc != 0,
                                        .timeout_ms = c->timeout_ms,
                                        .spin_ns = spin };
    const struct dsc_exec_params exec = { .n_threads = c->n_threads,
                                          .timeout_ms = c->timeout_ms,
                                          .spin_ns = spin,
                                          .slot_bytes = slot_bytes,
                                          .inline_bytes = INLINE_BYTES };

    const dscomm_status_t st = dsc_net_create(boot, &net, &comm->net);

    DSC_TRY(st);
    boot->listen_fd = -1; /* the endpoint's now */
    return dsc_exec_create(comm->net, &exec, &comm->exec);
}

dscomm_status_t dsc_host_open(struct dscomm_comm *comm, struct dsc_bootstrap *boot,
                              const struct dsc_env *env, const char *tiers)
{
    count_host(comm, boot);
    DSC_TRY(find_tiers(comm, boot, tiers));
    return open_parts(comm, boot, env);
}
