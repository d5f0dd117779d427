/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Machines of a profile. Its tiers were measured on some layout; another one takes those that it
 * has: within a host, between hosts, or both. Layouts that nodes x local cannot tell are given as
 * DSCOMM_TIERS gives them.
 */
#include "tuner/machine.h"

#include <string.h>

#include "tuner/tuner.h"

static bool is_within_host(uint32_t kind)
{
    return kind == DSC_TIER_FABRIC || kind == DSC_TIER_HOST;
}

/* The profile's tiers for ranks of one host and for hosts; -1: there is none. Several: false. */
static bool find_sides(const struct dsc_rates *rates, int *inner_out, int *outer_out)
{
    int n_inner = 0, n_outer = 0;

    *inner_out = *outer_out = -1;
    for (uint32_t t = 0; t < rates->n_tiers; t++) {
        const uint32_t kind = rates->tiers[t].kind;
        const bool is_given = kind == DSC_TIER_GIVEN; /* the first of two is the inner one */
        const bool is_inner = is_given ? t + 1 < rates->n_tiers : is_within_host(kind);

        if (is_inner)
            *inner_out = (int)t;
        else
            *outer_out = (int)t;
        n_inner += is_inner;
        n_outer += !is_inner;
    }
    return n_inner <= 1 && n_outer <= 1;
}

static void keep_tiers(struct dsc_rates *rates, const int *tiers, int n)
{
    struct dsc_tier_rates kept[DSC_TIERS_MAX] = { 0 };

    for (int i = 0; i < n; i++)
        kept[i] = rates->tiers[tiers[i]];
    memcpy(rates->tiers, kept, sizeof(kept));
    rates->n_tiers = (uint32_t)n;
}

/* Takes the tiers that nodes x local has. */
static dscomm_status_t fit_layout(struct dscomm_tuner *machine)
{
    int sides[2], used[2], n = 0;

    if (!find_sides(&machine->rates, &sides[0], &sides[1]))
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "%s has %u tiers: which ranks they join is not told by nodes and local, "
                        "give tiers",
                        machine->source, machine->rates.n_tiers);
    if (machine->local > 1 && sides[0] < 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s has no tier within a host: local %d, must be 1",
                        machine->source, machine->local);
    if (machine->nodes > 1 && sides[1] < 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s has no tier between hosts: nodes %d, must be 1",
                        machine->source, machine->nodes);
    if (machine->local > 1)
        used[n++] = sides[0];
    if (machine->nodes > 1)
        used[n++] = sides[1];
    if (n == 0) /* one rank */
        used[n++] = (int)machine->rates.n_tiers - 1;
    keep_tiers(&machine->rates, used, n);
    return DSCOMM_OK;
}

static dscomm_status_t build_tiers(struct dscomm_tuner *machine, const char *given)
{
    const int n = machine->nodes * machine->local;
    struct dsc_tier_facts *const facts = dsc_calloc(DSC_MEM_TUNER, (size_t)n, sizeof(*facts));
    dscomm_status_t st;

    if (facts == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "facts of %d ranks", n);
    for (int r = 0; r < n; r++)
        facts[r].host = (uint64_t)(r / machine->local) + 1;
    st = dsc_tiers_build(facts, n, given, &machine->tiers);
    dsc_free(facts);
    DSC_TRY(st);
    if (machine->tiers.n_tiers == (int)machine->rates.n_tiers)
        return DSCOMM_OK;
    return dsc_fail(DSCOMM_ERR_INVALID, "%d tiers for %s, which has %u", machine->tiers.n_tiers,
                    machine->source, machine->rates.n_tiers);
}

/* Tiers that nobody measured. */
static void find_missing(struct dscomm_tuner *machine)
{
    for (uint32_t t = 0; t < machine->rates.n_tiers; t++) {
        const size_t used = strlen(machine->missing);

        if (machine->rates.tiers[t].bytes_per_s == 0)
            (void)snprintf(machine->missing + used, sizeof(machine->missing) - used,
                           "%stier %u (%s) was not measured", used > 0 ? "; " : "", t,
                           dsc_tier_kind_name(machine->rates.tiers[t].kind));
    }
}

static dscomm_status_t load_rates(struct dscomm_tuner *machine, const char *path)
{
    struct dsc_profile *const profile = dsc_calloc(DSC_MEM_TUNER, 1, sizeof(*profile));
    char why[DSC_PROFILE_WHY_BYTES + DSC_PROFILE_PATH_BYTES];
    dscomm_status_t st = DSCOMM_OK;

    if (profile == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "profile %s", path != NULL ? path : "of this host");
    if (path == NULL) {
        st = dsc_fingerprint_host(&profile->machine);
        if (st >= 0 && !dsc_profile_find(&profile->machine, &profile->rates, why, sizeof(why)))
            st = dsc_fail(DSCOMM_ERR_INVALID, "no rates of this host, link_perf measures them: %s",
                          why);
    } else if (!dsc_profile_load(path, profile, why, sizeof(why))) {
        st = dsc_fail(DSCOMM_ERR_INVALID, "profile %s: %s", path, why);
    }
    machine->rates = profile->rates;
    machine->in_memory = dsc_uses_memory(profile->machine.values[DSC_FINGERPRINT_TRANSPORT]);
    dsc_free(profile);
    return st;
}

static dscomm_status_t from_profile(struct dscomm_tuner *machine,
                                    const dscomm_tuner_config_t *config)
{
    const struct dsc_env *env;

    DSC_TRY(dsc_env_get(&env));
    DSC_TRY(load_rates(machine, config->profile));
    machine->is_measured = true;
    machine->message_bytes = dsc_slot_bytes((size_t)env->chunk_bytes);
    (void)snprintf(machine->source, sizeof(machine->source), "profile %.400s",
                   config->profile != NULL ? config->profile : "of this host");
    machine->local = config->local > 0 ? config->local : (int)machine->rates.ranks_per_host;
    if (machine->nodes > DSC_MACHINE_RANKS_MAX / machine->local)
        return dsc_fail(DSCOMM_ERR_INVALID, "%d nodes of %d ranks, at most %d ranks",
                        machine->nodes, machine->local, DSC_MACHINE_RANKS_MAX);
    if (machine->rates.n_tiers == 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "%s has no tiers", machine->source);
    if (config->tiers == NULL)
        DSC_TRY(fit_layout(machine));
    DSC_TRY(build_tiers(machine, config->tiers != NULL ? config->tiers : ""));
    find_missing(machine);
    return DSCOMM_OK;
}

static dscomm_status_t from_topology(struct dscomm_tuner *machine,
                                     const dscomm_tuner_config_t *config)
{
    dscomm_topo_t *topo = NULL;
    dscomm_status_t st;

    if (config->tiers != NULL)
        return dsc_fail(DSCOMM_ERR_INVALID,
                        "tiers '%.64s' with a topology, whose links say who is near whom",
                        config->tiers);
    DSC_TRY(dscomm_topo_load(config->topo, &config->topo_config, &topo));
    st = dsc_machine_declare(machine, topo, config);
    dscomm_topo_destroy(topo);
    return st;
}

static dscomm_status_t check_config(const dscomm_tuner_config_t *config)
{
    if (config->struct_bytes != sizeof(*config))
        return dsc_fail(DSCOMM_ERR_INVALID, "tuner config struct_bytes %zu, must be %zu",
                        config->struct_bytes, sizeof(*config));
    if (config->profile != NULL && config->topo != NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "profile %s and topo %s: only one of them",
                        config->profile, config->topo);
    if (config->nodes < 0 || config->nodes > DSC_MACHINE_RANKS_MAX)
        return dsc_fail(DSCOMM_ERR_INVALID, "nodes %d, must be 0 to %d", config->nodes,
                        DSC_MACHINE_RANKS_MAX);
    if (config->local < 0 || config->local > DSC_MACHINE_RANKS_MAX)
        return dsc_fail(DSCOMM_ERR_INVALID, "local %d, must be 0 to %d", config->local,
                        DSC_MACHINE_RANKS_MAX);
    return DSCOMM_OK;
}

dscomm_status_t dscomm_tuner_create(const dscomm_tuner_config_t *config, dscomm_tuner_t **tuner_out)
{
    static const dscomm_tuner_config_t defaults = DSCOMM_TUNER_CONFIG_INIT;
    struct dscomm_tuner *machine;
    dscomm_status_t st;

    config = config != NULL ? config : &defaults;
    if (tuner_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "tuner_out is NULL");
    DSC_TRY(check_config(config));
    machine = dsc_calloc(DSC_MEM_TUNER, 1, sizeof(*machine));
    if (machine == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "tuner");
    machine->nodes = config->nodes > 0 ? config->nodes : 1;
    st = config->topo != NULL ? from_topology(machine, config) : from_profile(machine, config);
    if (st < 0)
        dscomm_tuner_destroy(machine);
    else
        *tuner_out = machine;
    return st < 0 ? st : DSCOMM_OK;
}

void dscomm_tuner_destroy(dscomm_tuner_t *tuner)
{
    if (tuner == NULL)
        return;
    dsc_tiers_fini(&tuner->tiers);
    dsc_free(tuner);
}

int dscomm_tuner_n_ranks(const dscomm_tuner_t *tuner)
{
    return tuner->nodes * tuner->local;
}

int dscomm_tuner_n_tiers(const dscomm_tuner_t *tuner)
{
    return tuner->tiers.n_tiers;
}

struct dsc_question dsc_machine_question(const struct dscomm_tuner *machine, size_t count,
                                         dscomm_dtype_t dtype)
{
    return (struct dsc_question){ .n_ranks = machine->nodes * machine->local,
                                  .n_tiers = machine->tiers.n_tiers,
                                  .groups = machine->tiers.groups,
                                  .in_memory = machine->in_memory && machine->tiers.n_tiers == 1 &&
                                               machine->tiers.kinds[0] == DSC_TIER_HOST,
                                  .ranks_per_host = machine->local,
                                  .count = count,
                                  .message_bytes = machine->message_bytes,
                                  .dtype = dtype,
                                  .op = DSCOMM_SUM };
}

bool dsc_uses_memory(const char *transport)
{
    return strcmp(transport, "auto") == 0 || strcmp(transport, "shm") == 0;
}

int dsc_machine_group_size(const struct dscomm_tuner *machine, int tier, int rank)
{
    const int n = machine->nodes * machine->local;
    const int *const groups = machine->tiers.groups + (size_t)tier * (size_t)n;
    int size = 0;

    for (int r = 0; r < n; r++)
        size += groups[r] == groups[rank];
    return size;
}
