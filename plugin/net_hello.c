/* SPDX-License-Identifier: Apache-2.0 */
/* What a side says of itself when sockets prove their key, and what it accepts of the other. */
#include <stdio.h>
#include <string.h>

#include <sodium.h>

#include "net_meet.h"

static bool is_announcing(void)
{
    const struct dsc_env *env;

    return dsc_env_get(&env) >= 0 && env->net_inner[0] == '\0' && net_is_wrapped(env);
}

struct dsc_hello net_own_hello(const struct net_kind *kind, uint64_t id, int index, int n_socks)
{
    struct dsc_hello hello = { .purpose = DSC_LINK_NET,
                               .rank = -1,
                               .index = (uint32_t)index,
                               .n_socks = (uint32_t)n_socks,
                               .job = id,
                               .slot_bytes = is_announcing(),
                               .n_slots = kind->version };

    snprintf(hello.transport, sizeof(hello.transport), "nccl net %s", kind->name);
    snprintf(hello.detail, sizeof(hello.detail), "%s", net_tuner_text());
    return hello;
}

nccl_result_t net_check_hello(const struct net_kind *kind, const struct dsc_hello *peer,
                              const char *text)
{
    const struct dsc_hello mine = net_own_hello(kind, 0, 0, 0);

    if (peer->purpose != DSC_LINK_NET ||
        strncmp(peer->transport, mine.transport, sizeof(mine.transport)) != 0) {
        net_warn("DSComm: %s is \"%.16s\", not \"%s\": set DSCOMM_NET alike on all hosts", text,
                 peer->transport, mine.transport);
        return NCCL_INVALID_USAGE;
    }
    if (peer->n_slots != kind->version) {
        net_warn("DSComm: %s speaks version %u of the net's protocol, this side %u: install the "
                 "same release on all hosts",
                 text, peer->n_slots, kind->version);
        return NCCL_INVALID_USAGE;
    }
    if (peer->slot_bytes != is_announcing()) {
        net_warn("DSComm: %s %s messages, this side %s: set DSCOMM_NET_COMPRESS (off or not) and "
                 "DSCOMM_NET_METER alike on all hosts",
                 text, peer->slot_bytes ? "announces" : "does not announce",
                 is_announcing() ? "does" : "does not");
        return NCCL_INVALID_USAGE;
    }
    if (peer->n_socks < 1 || peer->n_socks > NET_SOCKS_MAX || peer->index >= peer->n_socks) {
        net_warn("DSComm: %s says it is socket %u of %u, allowed: 1 to %d sockets", text,
                 peer->index, peer->n_socks, NET_SOCKS_MAX);
        return NCCL_REMOTE_ERROR;
    }
    net_tuner_compare(peer->detail, text);
    return NCCL_SUCCESS;
}

void net_mix_secret(const uint8_t in[NET_KEY_BYTES], const char *secret, uint8_t key[NET_KEY_BYTES])
{
    memcpy(key, in, NET_KEY_BYTES);
    if (secret[0] != '\0')
        crypto_generichash(key, NET_KEY_BYTES, (const uint8_t *)secret, strlen(secret), in,
                           NET_KEY_BYTES);
}
