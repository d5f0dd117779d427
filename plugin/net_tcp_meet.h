/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to plugin/net_tcp*.c: how two plugins find each other. The listener's handle, which NCCL
 * carries to the connector, is
 *
 *     | magic u64 | version u32 | 0 u32 | address [24] | key [32] | connecting u64 | not ours ... |
 *
 * All sockets of a connection prove the key (transport/handshake.h), mixed with DSCOMM_SECRET, and
 * say what their side can do before a message is sent.
 */
#ifndef DSC_NET_TCP_MEET_H
#define DSC_NET_TCP_MEET_H

#include "net_tcp.h"

#define TCP_HANDLE_MAGIC 0x64736e65742d7463u

enum {
    TCP_HANDLE_VERSION_AT = 8,
    TCP_HANDLE_ADDR_AT = 16,
    TCP_HANDLE_KEY_AT = 40,
    TCP_HANDLE_CONNECTING_AT = 72, /* which of net_tcp_connect.c; 0: none yet */
    TCP_HANDLE_USED = 80,
    TCP_KEY_BYTES = 32,
};
_Static_assert(TCP_HANDLE_USED <= NCCL_HANDLE_BYTES, "a handle fits NCCL's");

/* DSCOMM_SECRET never travels. */
void tcp_mix_secret(const uint8_t in[TCP_KEY_BYTES], const char *secret,
                    uint8_t key[TCP_KEY_BYTES]);

/* What a side says of socket `index` of connection id. */
struct dsc_hello tcp_own_hello(uint64_t id, int index, int n_socks);
/* The peer has the key, so it is another plugin; text says who. */
nccl_result_t tcp_check_hello(const struct dsc_hello *peer, const char *text);

/* Takes the descriptors of handshakes that are done and destroys these. NULL: no memory. */
struct tcp_comm *tcp_comm_make(bool sends, struct dsc_handshake **socks, int n, int traffic_class,
                               uint64_t timeout_ms);

#endif
