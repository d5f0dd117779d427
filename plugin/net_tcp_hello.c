/* SPDX-License-Identifier: Apache-2.0 */
/* What a side says of itself when sockets prove their key, and what it accepts of the other. */
#include <stdio.h>
#include <string.h>

#include <sodium.h>

#include "net_tcp_meet.h"

static const char transport_name[] = "nccl net tcp";

static bool tcp_is_wrapped(void)
{
    const struct dsc_env *env;

    return dsc_env_get(&env) >= 0 && env->net_inner[0] == '\0' && net_is_wrapped(env);
}

struct dsc_hello tcp_own_hello(uint64_t id, int index, int n_socks)
{
    struct dsc_hello hello = { .purpose = DSC_LINK_NET,
                               .rank = -1,
                               .index = (uint32_t)index,
                               .n_socks = (uint32_t)n_socks,
                               .job = id,
                               .slot_bytes = tcp_is_wrapped(),
                               .n_slots = TCP_WIRE_VERSION };

    memcpy(hello.transport, transport_name, sizeof(transport_name));
    snprintf(hello.detail, sizeof(hello.detail), "%s", net_tuner_text());
    return hello;
}

nccl_result_t tcp_check_hello(const struct dsc_hello *peer, const char *text)
{
    if (peer->purpose != DSC_LINK_NET || strcmp(peer->transport, transport_name) != 0) {
        net_warn("DSComm: %s is \"%s\", not \"%s\"", text, peer->transport, transport_name);
        return NCCL_INVALID_USAGE;
    }
    if (peer->n_slots != TCP_WIRE_VERSION) {
        net_warn("DSComm: %s speaks version %u of the net's protocol, this side %u: install the "
                 "same release on all hosts",
                 text, peer->n_slots, TCP_WIRE_VERSION);
        return NCCL_INVALID_USAGE;
    }
    if (peer->slot_bytes != tcp_is_wrapped()) {
        net_warn("DSComm: %s %s messages, this side %s: set DSCOMM_NET_COMPRESS (off or not) and "
                 "DSCOMM_NET_METER alike on all hosts",
                 text, peer->slot_bytes ? "announces" : "does not announce",
                 tcp_is_wrapped() ? "does" : "does not");
        return NCCL_INVALID_USAGE;
    }
    if (peer->n_socks < 1 || peer->n_socks > TCP_SOCKS_MAX || peer->index >= peer->n_socks) {
        net_warn("DSComm: %s says it is socket %u of %u, allowed: 1 to %d sockets", text,
                 peer->index, peer->n_socks, TCP_SOCKS_MAX);
        return NCCL_REMOTE_ERROR;
    }
    net_tuner_compare(peer->detail, text);
    return NCCL_SUCCESS;
}

void tcp_mix_secret(const uint8_t in[TCP_KEY_BYTES], const char *secret, uint8_t key[TCP_KEY_BYTES])
{
    memcpy(key, in, TCP_KEY_BYTES);
    if (secret[0] != '\0')
        crypto_generichash(key, TCP_KEY_BYTES, (const uint8_t *)secret, strlen(secret), in,
                           TCP_KEY_BYTES);
}
