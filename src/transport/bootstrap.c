/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous as the rest of the library sees it: ids, the key, joining, and telling the others
 * that a rank gives up.
 */
#include "transport/bootstrap_joiner.h"
#include "transport/handshake.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <sodium.h>

dscomm_status_t dsc_bootstrap_key(const uint8_t secret[DSC_SECRET_BYTES],
                                  uint8_t key_out[DSC_SECRET_BYTES])
{
    const struct dsc_env *env;

    DSC_TRY(dsc_env_get(&env));
    if (env->secret[0] == '\0')
        memcpy(key_out, secret, DSC_SECRET_BYTES);
    else
        crypto_generichash(key_out, DSC_SECRET_BYTES, (const uint8_t *)env->secret,
                           strlen(env->secret), NULL, 0);
    return DSCOMM_OK;
}

dscomm_status_t dscomm_unique_id_create(dscomm_unique_id_t *id_out)
{
    const struct dsc_env *env;
    struct dsc_rendezvous rv = { .is_rank0s = false }; /* any rank may make it */
    uint8_t key[DSC_SECRET_BYTES];

    if (id_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "id_out is NULL");
    DSC_TRY(dsc_env_get(&env));
    DSC_TRY(dsc_sodium_init());
    randombytes_buf(rv.secret, sizeof(rv.secret));
    DSC_TRY(dsc_bootstrap_key(rv.secret, key));
    DSC_TRY(dsc_netif_choose(env->socket_ifname, &rv.addr));
    DSC_TRY(dsc_root_start(&rv.addr, key, (int)env->timeout_ms));
    dsc_unique_id_encode(&rv, id_out);
    return DSCOMM_OK;
}

/* What rank 0 failed of is the other ranks' to know, unless the service said it. */
static void abandon(const struct dsc_rendezvous *rv, int rank, dscomm_status_t status)
{
    char text[DSC_ANSWER_TEXT_MAX];
    uint8_t key[DSC_SECRET_BYTES];

    if (rank != 0 || !rv->is_rank0s)
        return;
    snprintf(text, sizeof(text), "rank 0: %s", dscomm_last_error());
    if (dsc_bootstrap_key(rv->secret, key) == DSCOMM_OK)
        dsc_root_fail(dsc_addr_port(&rv->addr), key, status, text);
}

void dsc_bootstrap_abandon(const dscomm_unique_id_t *id, int rank, dscomm_status_t status)
{
    struct dsc_rendezvous rv;

    if (dsc_unique_id_decode(id, &rv) == DSCOMM_OK)
        abandon(&rv, rank, status);
}

dscomm_status_t dsc_rank_check(int n_ranks, int rank)
{
    if (n_ranks < 1 || n_ranks > DSC_MAX_RANKS)
        return dsc_fail(DSCOMM_ERR_INVALID, "n_ranks %d, must be 1 to %d", n_ranks, DSC_MAX_RANKS);
    if (rank < 0 || rank >= n_ranks)
        return dsc_fail(DSCOMM_ERR_INVALID, "rank %d, must be 0 to %d", rank, n_ranks - 1);
    return DSCOMM_OK;
}

static dscomm_status_t check_params(const struct dsc_bootstrap_params *params)
{
    DSC_TRY(dsc_rank_check(params->n_ranks, params->rank));
    if (params->timeout_ms < 1)
        return dsc_fail(DSCOMM_ERR_INVALID, "timeout_ms is %d, it must be at least 1",
                        params->timeout_ms);
    if (params->settings == NULL || strlen(params->settings) >= DSC_SETTINGS_MAX)
        return dsc_fail(DSCOMM_ERR_INVALID, "settings must be a text of at most %d characters",
                        DSC_SETTINGS_MAX - 1);
    return DSCOMM_OK;
}

static dscomm_status_t join(struct dsc_joiner *j, const struct dsc_rendezvous *rv,
                            struct dsc_bootstrap *boot)
{
    DSC_TRY(check_params(j->params));
    DSC_TRY(dsc_env_get(&j->env));
    DSC_TRY(dsc_sodium_init());
    DSC_TRY(dsc_bootstrap_key(rv->secret, j->key));
    j->root = rv->addr;
    j->is_rank0s = rv->is_rank0s && j->params->rank != 0;
    dsc_addr_text(&j->root, j->root_text);
    j->deadline_ns = dsc_deadline_ns(j->params->timeout_ms);
    memcpy(boot->key, j->key, sizeof(boot->key));
    boot->peers = dsc_calloc(DSC_MEM_TRANSPORT, (size_t)boot->n_ranks, sizeof(*boot->peers));
    if (boot->peers == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for %d ranks", boot->n_ranks);
    return dsc_joiner_meet(j, boot);
}

dscomm_status_t dsc_bootstrap_join(const dscomm_unique_id_t *id,
                                   const struct dsc_bootstrap_params *params,
                                   struct dsc_bootstrap *boot_out)
{
    struct dsc_bootstrap boot = { .n_ranks = params->n_ranks,
                                  .rank = params->rank,
                                  .listen_fd = -1 };
    struct dsc_joiner j = { .params = params, .fd = -1 };
    struct dsc_rendezvous rv;

    DSC_TRY(dsc_unique_id_decode(id, &rv));
    const dscomm_status_t st = join(&j, &rv, &boot);

    if (st < 0)
        abandon(&rv, params->rank, st); /* before the service sees the end of the connection */
    if (j.fd >= 0)
        close(j.fd);
    if (st == DSCOMM_OK)
        *boot_out = boot;
    else
        dsc_bootstrap_fini(&boot);
    return st;
}

void dsc_bootstrap_fini(struct dsc_bootstrap *boot)
{
    if (boot->listen_fd >= 0)
        close(boot->listen_fd);
    boot->listen_fd = -1;
    dsc_free(boot->peers);
    boot->peers = NULL;
    sodium_memzero(boot->key, sizeof(boot->key));
    dsc_root_reap();
}
