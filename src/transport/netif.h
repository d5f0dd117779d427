/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport and plugin/. Addresses (netif_addr.c), which of them this rank offers to
 * the others (netif.c, netif_score.c), and sockets (netif_socket.c). DSCOMM_SOCKET_IFNAME is read by
 * the callers, so tests can pass any.
 */
#ifndef DSC_NETIF_H
#define DSC_NETIF_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "transport/transport.h"

/* What dsc_peer_info.addr holds. */
union dsc_addr {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    uint8_t bytes[DSC_ADDR_BYTES];
};
_Static_assert(sizeof(union dsc_addr) == DSC_ADDR_BYTES, "an address fits dsc_peer_info.addr");

#define DSC_ADDR_TEXT_BYTES 96 /* "[address%interface]:port" and NUL */
#define DSC_ADDR_WIRE_BYTES 24

/* ---- addresses ---- */

socklen_t dsc_addr_len(const union dsc_addr *addr);
uint16_t dsc_addr_port(const union dsc_addr *addr);
void dsc_addr_set_port(union dsc_addr *addr, uint16_t port);
bool dsc_addr_is_loopback(const union dsc_addr *addr);
bool dsc_addr_is_link_local(const union dsc_addr *addr); /* IPv6 fe80::/10 */
/* "10.0.0.1:500", "[fe80::1%eth0]:500"; port 0 leaves brackets and port out. Returns buf. */
const char *dsc_addr_text(const union dsc_addr *addr, char buf[DSC_ADDR_TEXT_BYTES]);
/* Of a socket's own or other end; "unknown address" if there is none (any more). Returns buf. */
const char *dsc_addr_of_peer(int fd, char buf[DSC_ADDR_TEXT_BYTES]);

/* family u8 (4 or 6), 0, port u16, scope u32, address [16]; little endian, address big endian. */
void dsc_addr_encode(const union dsc_addr *addr, uint8_t wire[DSC_ADDR_WIRE_BYTES]);
bool dsc_addr_decode(const uint8_t wire[DSC_ADDR_WIRE_BYTES], union dsc_addr *addr_out);

/* ---- interfaces ---- */

/*
 * The address to listen on, port 0, logged at info.
 *
 * spec  DSCOMM_SOCKET_IFNAME: "" any, "eth0", "eth,ens" (a name or the beginning of one), "=eth0"
 *       (exact), "^docker,lo" (none of these), or a literal address, link-local with its scope.
 *
 * DSCOMM_ERR_ENV  nothing fits; names variable, value and the existing interfaces
 */
dscomm_status_t dsc_netif_choose(const char *spec, union dsc_addr *addr_out);

struct dsc_netif {
    char name[16]; /* IF_NAMESIZE */
    union dsc_addr addr;
};

/*
 * All interfaces that fit, each with its best address, in the order of the system's list: without a
 * spec or with one that excludes, those that look as much like a real network card as the best one.
 * At least one; no more than max, the rest is left out.
 *
 * DSCOMM_ERR_ENV  as dsc_netif_choose()
 */
dscomm_status_t dsc_netif_list(const char *spec, struct dsc_netif *netifs, size_t max,
                               size_t *n_out);

/* ---- sockets ---- */

/* Fails for errno after a call that opens a descriptor: their limit is DSCOMM_ERR_LIMIT. */
dscomm_status_t dsc_fail_open(const char *what);

/*
 * Non-blocking, close-on-exec TCP socket with the congestion control of DSCOMM_SOCKET_CONGESTION,
 * which those have too that a listening one accepts. DSCOMM_ERR_LIMIT names the descriptor limit.
 */
dscomm_status_t dsc_socket_create(int family, int *fd_out);
/* wanted: as DSCOMM_SOCKET_CONGESTION. DSCOMM_ERR_ENV: the kernel refuses; names those it has. */
dscomm_status_t dsc_socket_congestion(int fd, const char *wanted);

/*
 * Listening socket at addr (port 0: any); addr's port is set to the one it got.
 * DSCOMM_ERR_SYSTEM names address and port when it is in use.
 */
dscomm_status_t dsc_netif_listen(union dsc_addr *addr, int *fd_out);

#endif
