/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to what net_kind.h promises: how two plugins find each other. The listener's handle,
 * which NCCL carries to the connector, is
 *
 *     | magic u64 | version u32 | kind u32 | address [24] | key [32] | connecting u64 | not ours |
 *
 * All sockets of a connection prove the key (transport/handshake.h), mixed with DSCOMM_SECRET, and
 * say what their side can do before a message is sent.
 */
#ifndef DSC_NET_MEET_H
#define DSC_NET_MEET_H

#include "net_kind.h"

#define NET_HANDLE_MAGIC 0x64736e65742d7463u

enum {
    NET_HANDLE_VERSION_AT = 8,
    NET_HANDLE_KIND_AT = 12,
    NET_HANDLE_ADDR_AT = 16,
    NET_HANDLE_KEY_AT = 40,
    NET_HANDLE_CONNECTING_AT = 72, /* which of net_connecting.c; 0: none yet */
    NET_HANDLE_USED = 80,
    NET_KEY_BYTES = 32,
};
_Static_assert(NET_HANDLE_USED <= NCCL_HANDLE_BYTES, "a handle fits NCCL's");

/* DSCOMM_SECRET never travels. */
void net_mix_secret(const uint8_t in[NET_KEY_BYTES], const char *secret,
                    uint8_t key[NET_KEY_BYTES]);

/* What a side says of socket `index` of connection id. */
struct dsc_hello net_own_hello(const struct net_kind *kind, uint64_t id, int index, int n_socks);
/* The peer has the key, so it is another plugin; text says who. */
nccl_result_t net_check_hello(const struct net_kind *kind, const struct dsc_hello *peer,
                              const char *text);

/* Takes the descriptors of handshakes that are done and destroys these. NULL: has said why. */
void *net_open_comm(const struct net_kind *kind, int dev, bool sends, struct dsc_handshake **socks,
                    int n, int traffic_class, uint64_t timeout_ms);
/* *comm_out: the connection, when it can be used; then, and if it cannot, *comm is NULL. */
nccl_result_t net_settle(const struct net_kind *kind, void **comm, void **comm_out);

#endif
