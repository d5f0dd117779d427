/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Addresses: their parts, their text for people, their form on the wire.
 */
#include "transport/netif.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <stdio.h>
#include <string.h>

socklen_t dsc_addr_len(const union dsc_addr *addr)
{
    return addr->any.sa_family == AF_INET6 ? sizeof(addr->v6) : sizeof(addr->v4);
}

uint16_t dsc_addr_port(const union dsc_addr *addr)
{
    return ntohs(addr->any.sa_family == AF_INET6 ? addr->v6.sin6_port : addr->v4.sin_port);
}

void dsc_addr_set_port(union dsc_addr *addr, uint16_t port)
{
    if (addr->any.sa_family == AF_INET6)
        addr->v6.sin6_port = htons(port);
    else
        addr->v4.sin_port = htons(port);
}

bool dsc_addr_is_loopback(const union dsc_addr *addr)
{
    if (addr->any.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&addr->v6.sin6_addr);
    return ntohl(addr->v4.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

bool dsc_addr_is_link_local(const union dsc_addr *addr)
{
    return addr->any.sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&addr->v6.sin6_addr);
}

const char *dsc_addr_text(const union dsc_addr *addr, char buf[DSC_ADDR_TEXT_BYTES])
{
    const bool is_v6 = addr->any.sa_family == AF_INET6;
    const void *const raw =
        is_v6 ? (const void *)&addr->v6.sin6_addr : (const void *)&addr->v4.sin_addr;
    const uint16_t port = dsc_addr_port(addr);
    char host[INET6_ADDRSTRLEN] = "?";
    char scope[IF_NAMESIZE + 1] = "";

    inet_ntop(addr->any.sa_family, raw, host, sizeof(host));
    if (dsc_addr_is_link_local(addr) && addr->v6.sin6_scope_id != 0) {
        scope[0] = '%';
        if (if_indextoname(addr->v6.sin6_scope_id, scope + 1) == NULL)
            snprintf(scope + 1, sizeof(scope) - 1, "%u", addr->v6.sin6_scope_id);
    }
    if (port == 0)
        snprintf(buf, DSC_ADDR_TEXT_BYTES, "%s%s", host, scope);
    else
        snprintf(buf, DSC_ADDR_TEXT_BYTES, is_v6 ? "[%s%s]:%u" : "%s%s:%u", host, scope, port);
    return buf;
}

const char *dsc_addr_of_peer(int fd, char buf[DSC_ADDR_TEXT_BYTES])
{
    union dsc_addr addr = { 0 };
    socklen_t len = sizeof(addr);

    if (getpeername(fd, &addr.any, &len) == 0 &&
        (addr.any.sa_family == AF_INET || addr.any.sa_family == AF_INET6))
        return dsc_addr_text(&addr, buf);
    snprintf(buf, DSC_ADDR_TEXT_BYTES, "unknown address");
    return buf;
}

void dsc_addr_encode(const union dsc_addr *addr, uint8_t wire[DSC_ADDR_WIRE_BYTES])
{
    const uint16_t port = dsc_addr_port(addr);

    memset(wire, 0, DSC_ADDR_WIRE_BYTES);
    wire[2] = (uint8_t)port;
    wire[3] = (uint8_t)(port >> 8);
    if (addr->any.sa_family == AF_INET6) {
        wire[0] = 6;
        for (int i = 0; i < 4; i++)
            wire[4 + i] = (uint8_t)(addr->v6.sin6_scope_id >> 8 * i);
        memcpy(wire + 8, &addr->v6.sin6_addr, 16);
    } else {
        wire[0] = 4;
        memcpy(wire + 8, &addr->v4.sin_addr, 4);
    }
}

bool dsc_addr_decode(const uint8_t wire[DSC_ADDR_WIRE_BYTES], union dsc_addr *addr_out)
{
    union dsc_addr addr = { 0 };

    if ((wire[0] != 4 && wire[0] != 6) || wire[1] != 0)
        return false;
    if (wire[0] == 6) {
        addr.v6.sin6_family = AF_INET6;
        for (int i = 0; i < 4; i++)
            addr.v6.sin6_scope_id |= (uint32_t)wire[4 + i] << 8 * i;
        memcpy(&addr.v6.sin6_addr, wire + 8, 16);
    } else {
        addr.v4.sin_family = AF_INET;
        memcpy(&addr.v4.sin_addr, wire + 8, 4);
    }
    dsc_addr_set_port(&addr, (uint16_t)(wire[2] | wire[3] << 8));
    *addr_out = addr;
    return true;
}
