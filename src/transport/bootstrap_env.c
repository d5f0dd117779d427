/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank, world size and rendezvous from what the launcher left in the environment. All ranks compute
 * the same key from the same texts: MASTER_ADDR is hashed as written, because hosts may resolve a
 * name to different addresses.
 */
#include "transport/bootstrap_internal.h"
#include "transport/handshake.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sodium.h>

#define DEFAULT_PORT 29501

struct launcher {
    const char *rank, *n_ranks; /* variables */
    const char *n_local[2];     /* ranks on this host: the first that is set */
};

/* The first whose rank and size are both there: mpirun inside a Slurm job is mpirun. */
static const struct launcher launchers[] = {
    { "RANK", "WORLD_SIZE", { "LOCAL_WORLD_SIZE" } },
    { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", { "OMPI_COMM_WORLD_LOCAL_SIZE" } },
    { "PMI_RANK", "PMI_SIZE", { "PMI_LOCAL_SIZE", "MPI_LOCALNRANKS" } }, /* MPICH: the second */
    { "SLURM_PROCID", "SLURM_NTASKS", { NULL } },
};

/* What makes one job's key another's; which exist depends on the launcher. */
static const char *const job_variables[] = {
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID",
    "SLURM_STEP_ID",       "OMPI_MCA_ess_base_jobid",    "PMIX_NAMESPACE",
};

struct place {
    const char *host; /* as written */
    int port;
};

/* A launcher's number; dflt when unset, unless that is below min: then it must be there. */
static dscomm_status_t number(const char *name, long min, long max, int dflt, int *value_out)
{
    const char *const text = dsc_env_launcher(name);
    char *end;

    if (text == NULL && dflt >= min) {
        *value_out = dflt;
        return DSCOMM_OK;
    }
    if (text == NULL)
        return dsc_fail(DSCOMM_ERR_ENV, "%s is not set; it must be %ld to %ld", name, min, max);
    errno = 0;
    const long value = strtol(text, &end, 10);

    if (end == text || *end != '\0' || errno != 0 || value < min || value > max)
        return dsc_fail(DSCOMM_ERR_ENV, "%s is \"%s\", it must be a number from %ld to %ld", name,
                        text, min, max);
    *value_out = (int)value;
    return DSCOMM_OK;
}

/* One variable of a pair alone is a mistake to name, not a reason to look elsewhere silently. */
static dscomm_status_t find_launcher(const struct launcher **launcher_out)
{
    const char *lonely = NULL, *missing = NULL;

    for (size_t i = 0; i < DSC_ARRAY_LEN(launchers); i++) {
        const bool has_rank = dsc_env_launcher(launchers[i].rank) != NULL;
        const bool has_size = dsc_env_launcher(launchers[i].n_ranks) != NULL;

        if (has_rank && has_size) {
            *launcher_out = &launchers[i];
            return DSCOMM_OK;
        }
        if (has_rank != has_size && lonely == NULL) {
            lonely = has_rank ? launchers[i].rank : launchers[i].n_ranks;
            missing = has_rank ? launchers[i].n_ranks : launchers[i].rank;
        }
    }
    if (lonely != NULL)
        return dsc_fail(DSCOMM_ERR_ENV, "%s is set but %s is not", lonely, missing);
    return dsc_fail(DSCOMM_ERR_ENV,
                    "no launcher's variables: set RANK and WORLD_SIZE (torchrun), "
                    "OMPI_COMM_WORLD_RANK and _SIZE, PMI_RANK and PMI_SIZE (mpirun), or "
                    "SLURM_PROCID and SLURM_NTASKS (srun)");
}

/* Does the launcher say that all ranks are on this host? */
static dscomm_status_t all_are_local(const struct launcher *launcher, int n_ranks, bool *local_out)
{
    int n_local = 0, n_nodes = 0;

    for (size_t i = 0; i < DSC_ARRAY_LEN(launcher->n_local) && n_local == 0; i++) {
        if (launcher->n_local[i] != NULL)
            DSC_TRY(number(launcher->n_local[i], 0, DSC_MAX_RANKS, 0, &n_local));
    }
    if (launcher->n_local[0] == NULL)
        DSC_TRY(number("SLURM_NNODES", 0, DSC_MAX_RANKS, 0, &n_nodes));
    *local_out = n_local == n_ranks || n_nodes == 1 || n_ranks == 1;
    return DSCOMM_OK;
}

static dscomm_status_t find_place(const struct launcher *launcher, int n_ranks,
                                  const struct dsc_env *env, struct place *place_out)
{
    int master_port;
    bool is_local;

    DSC_TRY(number("MASTER_PORT", 1, 65534, DEFAULT_PORT - 1, &master_port));
    place_out->port = env->port != 0 ? (int)env->port : master_port + 1;
    place_out->host = dsc_env_launcher("MASTER_ADDR");
    if (place_out->host != NULL && place_out->host[0] != '\0')
        return DSCOMM_OK;
    DSC_TRY(all_are_local(launcher, n_ranks, &is_local));
    if (!is_local)
        return dsc_fail(DSCOMM_ERR_ENV, "MASTER_ADDR is not set and the ranks are not known to be "
                                        "on one host; set it to the host of rank 0");
    place_out->host = "127.0.0.1";
    return DSCOMM_OK;
}

/* A name server that does not answer yet is asked again until the deadline. */
static dscomm_status_t look_up(const struct place *place, uint64_t deadline_ns,
                               union dsc_addr *addr_out)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    struct addrinfo *list = NULL;
    int err;

    for (;;) {
        errno = 0;
        err = getaddrinfo(place->host, NULL, &hints, &list);
        const bool again = err == EAI_AGAIN || (err == EAI_SYSTEM && errno == EINTR);

        if (!again || dsc_now_ns() >= deadline_ns)
            break;
        poll(NULL, 0, 100);
    }
    if (err != 0)
        return dsc_fail(DSCOMM_ERR_ENV, "MASTER_ADDR is \"%s\", which is no address: %s",
                        place->host, gai_strerror(err));

    union dsc_addr addr = { 0 };

    memcpy(&addr, list->ai_addr, dsc_min_size(list->ai_addrlen, sizeof(addr)));
    freeaddrinfo(list);
    dsc_addr_set_port(&addr, (uint16_t)place->port);
    *addr_out = addr;
    return DSCOMM_OK;
}

static bool is_meant_as_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strncmp(host, "127.", 4) == 0 ||
           strcmp(host, "::1") == 0;
}

/*
 * Many distributions let a host's own name mean 127.0.1.1. Rank 0 would then offer loopback to
 * ranks on other hosts, so on the named host itself a real interface takes its place.
 */
static dscomm_status_t resolve(const struct place *place, const struct dsc_env *env,
                               uint64_t deadline_ns, union dsc_addr *addr_out)
{
    DSC_TRY(look_up(place, deadline_ns, addr_out));
    if (!dsc_addr_is_loopback(addr_out) || is_meant_as_loopback(place->host))
        return DSCOMM_OK;
    DSC_TRY(dsc_netif_choose(env->socket_ifname, addr_out));
    dsc_addr_set_port(addr_out, (uint16_t)place->port);
    return DSCOMM_OK;
}

static void derive_secret(const struct place *place, uint8_t secret_out[DSC_SECRET_BYTES])
{
    crypto_generichash_state state;
    char port[16];

    snprintf(port, sizeof(port), "%d", place->port);
    crypto_generichash_init(&state, NULL, 0, DSC_SECRET_BYTES);
    crypto_generichash_update(&state, (const uint8_t *)"dscomm", sizeof("dscomm"));
    /* With their NULs, so that no two lists of texts look alike. */
    for (size_t i = 0; i < DSC_ARRAY_LEN(job_variables); i++) {
        const char *const set = dsc_env_launcher(job_variables[i]);
        const char *const text = set != NULL ? set : "";

        crypto_generichash_update(&state, (const uint8_t *)text, strlen(text) + 1);
    }
    crypto_generichash_update(&state, (const uint8_t *)place->host, strlen(place->host) + 1);
    crypto_generichash_update(&state, (const uint8_t *)port, strlen(port) + 1);
    crypto_generichash_final(&state, secret_out, DSC_SECRET_BYTES);
}

/* At the known port on every interface: by which one the ranks come is not rank 0's to know. */
static dscomm_status_t start_root(const struct dsc_rendezvous *rv, int timeout_ms)
{
    uint8_t key[DSC_SECRET_BYTES];
    union dsc_addr addr = { 0 };

    if (rv->addr.any.sa_family == AF_INET6) {
        addr.v6.sin6_family = AF_INET6;
        addr.v6.sin6_addr = in6addr_any;
    } else {
        addr.v4.sin_family = AF_INET;
        addr.v4.sin_addr.s_addr = htonl(INADDR_ANY);
    }
    dsc_addr_set_port(&addr, dsc_addr_port(&rv->addr));
    DSC_TRY(dsc_bootstrap_key(rv->secret, key));
    return dsc_root_start(&addr, key, timeout_ms);
}

dscomm_status_t dsc_bootstrap_env(int timeout_ms, int *n_ranks_out, int *rank_out,
                                  dscomm_unique_id_t *id_out)
{
    const struct launcher *launcher;
    const struct dsc_env *env;
    struct dsc_rendezvous rv;
    struct place place;
    int n_ranks, rank;

    DSC_TRY(dsc_env_get(&env));
    DSC_TRY(dsc_sodium_init());
    DSC_TRY(find_launcher(&launcher));
    DSC_TRY(number(launcher->n_ranks, 1, DSC_MAX_RANKS, 0, &n_ranks));
    DSC_TRY(number(launcher->rank, 0, n_ranks - 1, -1, &rank));
    DSC_TRY(find_place(launcher, n_ranks, env, &place));
    DSC_TRY(resolve(&place, env, dsc_deadline_ns(timeout_ms), &rv.addr));
    derive_secret(&place, rv.secret);
    rv.is_rank0s = true;
    if (env->secret[0] == '\0' && rank == 0)
        dsc_log_info(BOOT, "the key comes from the job's id and address, which keeps accidents out "
                           "but not attackers; set DSCOMM_SECRET against those");
    if (rank == 0)
        DSC_TRY(start_root(&rv, timeout_ms));
    dsc_unique_id_encode(&rv, id_out);
    *n_ranks_out = n_ranks;
    *rank_out = rank;
    return DSCOMM_OK;
}
