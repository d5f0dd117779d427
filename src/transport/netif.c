/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which address a rank offers. A name that fits nothing is an error, since a job that silently runs
 * over another network is found out weeks later; without a name the interface that most looks like
 * a real network card wins, because containers leave bridges and veth pairs on every host.
 */
#include "transport/netif.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define VARIABLE "DSCOMM_SOCKET_IFNAME"

dscomm_status_t dsc_fail_open(const char *what)
{
    struct rlimit limit = { 0, 0 };

    if (errno != EMFILE)
        return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "%s", what);
    getrlimit(RLIMIT_NOFILE, &limit);
    return dsc_fail(DSCOMM_ERR_LIMIT,
                    "%s: all %llu descriptors that this process may open are in use; raise "
                    "RLIMIT_NOFILE (ulimit -n)",
                    what, (unsigned long long)limit.rlim_cur);
}

/* ---- addresses ---- */

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

/* ---- interfaces ---- */

static bool has_address(const struct ifaddrs *ifa)
{
    return ifa->ifa_addr != NULL &&
           (ifa->ifa_addr->sa_family == AF_INET || ifa->ifa_addr->sa_family == AF_INET6);
}

static union dsc_addr address_of(const struct ifaddrs *ifa)
{
    union dsc_addr addr = { 0 };

    if (ifa->ifa_addr->sa_family == AF_INET6)
        memcpy(&addr.v6, ifa->ifa_addr, sizeof(addr.v6));
    else
        memcpy(&addr.v4, ifa->ifa_addr, sizeof(addr.v4));
    return addr;
}

/* Whether another entry shows the interface with an address. */
static bool is_listed_with_address(const struct ifaddrs *list, const char *name)
{
    for (const struct ifaddrs *ifa = list; ifa != NULL; ifa = ifa->ifa_next) {
        if (has_address(ifa) && strcmp(ifa->ifa_name, name) == 0)
            return true;
    }
    return false;
}

/* "lo (127.0.0.1), eth0 (192.0.2.2), eth1": for error texts. */
static void list_interfaces(const struct ifaddrs *list, char *buf, size_t buf_bytes)
{
    size_t used = 0;

    buf[0] = '\0';
    for (const struct ifaddrs *ifa = list; ifa != NULL; ifa = ifa->ifa_next) {
        char text[DSC_ADDR_TEXT_BYTES] = "";

        if (!has_address(ifa) && is_listed_with_address(list, ifa->ifa_name))
            continue;
        if (has_address(ifa)) {
            const union dsc_addr addr = address_of(ifa);

            dsc_addr_text(&addr, text);
        }

        const int n =
            snprintf(buf + used, buf_bytes - used, "%s%s%s%s%s", used > 0 ? ", " : "",
                     ifa->ifa_name, text[0] != '\0' ? " (" : "", text, text[0] != '\0' ? ")" : "");

        if (n < 0 || (size_t)n >= buf_bytes - used)
            return;
        used += (size_t)n;
    }
}

/* Is name (or its beginning) one of the comma-separated words? */
static bool is_listed(const char *words, const char *name, bool exact)
{
    for (const char *word = words; *word != '\0';) {
        const size_t n = strcspn(word, ",");

        if (n > 0 && strncmp(word, name, n) == 0 && (!exact || name[n] == '\0'))
            return true;
        word += n;
        word += *word == ',';
    }
    return false;
}

/* Does an interface of this very name exist? Then "eth1" does not also mean "eth10". */
static bool exists(const struct ifaddrs *list, const char *name)
{
    for (const struct ifaddrs *ifa = list; ifa != NULL; ifa = ifa->ifa_next) {
        if (strcmp(ifa->ifa_name, name) == 0)
            return true;
    }
    return false;
}

static bool is_allowed(const struct ifaddrs *list, const char *spec, const char *name)
{
    const bool inverted = spec[0] == '^';
    const char *const rest = spec + inverted;
    const bool exact = rest[0] == '=' || (!inverted && exists(list, rest));
    const char *const words = rest + (rest[0] == '=');

    return spec[0] == '\0' || is_listed(words, name, exact) != inverted;
}

/* A device behind it ("device"), or what makes it a bridge ("bridge"). */
static bool has_entry(const char *name, const char *entry)
{
    char path[sizeof("/sys/class/net//device") + IF_NAMESIZE];

    snprintf(path, sizeof(path), "/sys/class/net/%s/%s", name, entry);
    return access(path, F_OK) == 0;
}

static bool looks_virtual(const char *name)
{
    static const char prefixes[] =
        "docker,veth,br-,virbr,cali,tun,tap,vnet,cni,flannel,cilium,lxc,podman,dummy,ifb,wg,vmnet";

    return has_entry(name, "bridge") || is_listed(prefixes, name, false);
}

/* Higher is better; 0 is of no use. First by kind of interface, then by kind of address. */
static int score(const struct ifaddrs *ifa)
{
    int kind;

    if (!has_address(ifa) || !(ifa->ifa_flags & IFF_UP))
        return 0;

    const union dsc_addr addr = address_of(ifa);

    if (ifa->ifa_flags & IFF_LOOPBACK)
        kind = 1;
    else if (!(ifa->ifa_flags & IFF_RUNNING) || (ifa->ifa_flags & IFF_POINTOPOINT) ||
             looks_virtual(ifa->ifa_name))
        kind = 2;
    else
        kind = has_entry(ifa->ifa_name, "device") ? 4 : 3;
    return kind * 4 + (addr.any.sa_family == AF_INET ? 2 : !dsc_addr_is_link_local(&addr));
}

static dscomm_status_t choose_by_name(const struct ifaddrs *list, const char *spec,
                                      union dsc_addr *addr_out, const char **name_out)
{
    char names[1024];
    int best = 0;

    for (const struct ifaddrs *ifa = list; ifa != NULL; ifa = ifa->ifa_next) {
        if (!is_allowed(list, spec, ifa->ifa_name) || score(ifa) <= best)
            continue;
        best = score(ifa);
        *addr_out = address_of(ifa);
        *name_out = ifa->ifa_name;
    }
    dsc_addr_set_port(addr_out, 0);
    if (best > 0)
        return DSCOMM_OK;

    list_interfaces(list, names, sizeof(names));
    if (spec[0] == '\0')
        return dsc_fail(DSCOMM_ERR_SYSTEM, "no network interface is up and has an address: %s",
                        names);
    return dsc_fail(DSCOMM_ERR_ENV,
                    VARIABLE " is \"%s\", which is no interface that is up and has "
                             "an address; this host has %s",
                    spec, names);
}

/* Whether spec is a literal address; then scope is what follows '%', or NULL. */
static bool parse_literal(const char *spec, union dsc_addr *addr_out, const char **scope_out)
{
    char host[INET6_ADDRSTRLEN + 2];
    const size_t n = strcspn(spec, "%");
    union dsc_addr addr = { 0 };

    if (n >= sizeof(host))
        return false;
    memcpy(host, spec, n);
    host[n] = '\0';
    *scope_out = spec[n] == '%' ? spec + n + 1 : NULL;
    if (inet_pton(AF_INET, host, &addr.v4.sin_addr) == 1) {
        addr.v4.sin_family = AF_INET;
    } else {
        if (inet_pton(AF_INET6, host, &addr.v6.sin6_addr) != 1)
            return false;
        addr.v6.sin6_family = AF_INET6;
    }
    *addr_out = addr;
    return true;
}

static bool is_same_host(const union dsc_addr *a, const union dsc_addr *b)
{
    if (a->any.sa_family != b->any.sa_family)
        return false;
    if (a->any.sa_family == AF_INET)
        return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
    return IN6_ARE_ADDR_EQUAL(&a->v6.sin6_addr, &b->v6.sin6_addr);
}

static dscomm_status_t choose_literal(const struct ifaddrs *list, const char *spec,
                                      const char *scope, union dsc_addr *addr,
                                      const char **name_out)
{
    char names[1024];

    list_interfaces(list, names, sizeof(names));
    if (dsc_addr_is_link_local(addr) && (scope == NULL || scope[0] == '\0'))
        return dsc_fail(DSCOMM_ERR_ENV,
                        VARIABLE " is \"%s\", a link-local address, which needs its "
                                 "interface as in fe80::1%%eth0; this host has %s",
                        spec, names);
    for (const struct ifaddrs *ifa = list; ifa != NULL; ifa = ifa->ifa_next) {
        if (!has_address(ifa) || (scope != NULL && strcmp(scope, ifa->ifa_name) != 0))
            continue;

        union dsc_addr own = address_of(ifa);

        /* All of 127.0.0.0/8 is this host, though only 127.0.0.1 is listed. */
        if (!is_same_host(addr, &own) &&
            !(dsc_addr_is_loopback(addr) && dsc_addr_is_loopback(&own) &&
              addr->any.sa_family == own.any.sa_family))
            continue;
        if (dsc_addr_is_link_local(addr))
            addr->v6.sin6_scope_id = own.v6.sin6_scope_id;
        *name_out = ifa->ifa_name;
        return DSCOMM_OK;
    }
    return dsc_fail(DSCOMM_ERR_ENV,
                    VARIABLE " is \"%s\", which is not an address of this host; it has %s", spec,
                    names);
}

dscomm_status_t dsc_netif_choose(const char *spec, union dsc_addr *addr_out)
{
    union dsc_addr addr = { 0 };
    const char *name = "", *scope = NULL;
    struct ifaddrs *list;
    char text[DSC_ADDR_TEXT_BYTES];
    dscomm_status_t st;

    if (getifaddrs(&list) != 0)
        return dsc_fail_open("cannot list network interfaces");
    if (parse_literal(spec, &addr, &scope))
        DSC_TRY_GOTO(out, choose_literal(list, spec, scope, &addr, &name));
    else
        DSC_TRY_GOTO(out, choose_by_name(list, spec, &addr, &name));
    dsc_log_info(NET, "using interface %s address %s", name, dsc_addr_text(&addr, text));
    *addr_out = addr;

out:
    freeifaddrs(list);
    return st;
}

/* The entry of that name, or a new one; NULL: there is no room. */
static struct dsc_netif *entry_of(struct dsc_netif *netifs, size_t *n, size_t max, const char *name)
{
    for (size_t i = 0; i < *n; i++) {
        if (strcmp(netifs[i].name, name) == 0)
            return &netifs[i];
    }
    if (*n == max)
        return NULL;

    struct dsc_netif *const entry = &netifs[(*n)++];

    memset(entry, 0, sizeof(*entry));
    snprintf(entry->name, sizeof(entry->name), "%s", name);
    return entry;
}

static int best_score_of(const struct ifaddrs *list, const char *name)
{
    int best = 0;

    for (const struct ifaddrs *ifa = list; ifa != NULL; ifa = ifa->ifa_next)
        if (strcmp(ifa->ifa_name, name) == 0 && score(ifa) > best)
            best = score(ifa);
    return best;
}

static dscomm_status_t list_by_name(const struct ifaddrs *list, const char *spec,
                                    struct dsc_netif *netifs, size_t max, size_t *n_out)
{
    const bool named = spec[0] != '\0' && spec[0] != '^';
    const char *best_name = "";
    union dsc_addr addr;
    size_t n = 0;

    DSC_TRY(choose_by_name(list, spec, &addr, &best_name));

    const int best_kind = best_score_of(list, best_name) / 4;

    for (const struct ifaddrs *ifa = list; ifa != NULL; ifa = ifa->ifa_next) {
        const int own = score(ifa);
        struct dsc_netif *entry;

        if (own == 0 || own != best_score_of(list, ifa->ifa_name) ||
            !is_allowed(list, spec, ifa->ifa_name) || (!named && own / 4 != best_kind))
            continue;
        entry = entry_of(netifs, &n, max, ifa->ifa_name);
        if (entry == NULL || entry->addr.any.sa_family != AF_UNSPEC)
            continue; /* of equal addresses the first */
        entry->addr = address_of(ifa);
        dsc_addr_set_port(&entry->addr, 0);
    }
    *n_out = n;
    return DSCOMM_OK;
}

dscomm_status_t dsc_netif_list(const char *spec, struct dsc_netif *netifs, size_t max,
                               size_t *n_out)
{
    union dsc_addr addr = { 0 };
    const char *name = "", *scope = NULL;
    struct ifaddrs *list;
    dscomm_status_t st;

    if (getifaddrs(&list) != 0)
        return dsc_fail_open("cannot list network interfaces");
    if (parse_literal(spec, &addr, &scope)) {
        DSC_TRY_GOTO(out, choose_literal(list, spec, scope, &addr, &name));
        *n_out = 0;
        entry_of(netifs, n_out, max, name)->addr = addr;
    } else {
        DSC_TRY_GOTO(out, list_by_name(list, spec, netifs, max, n_out));
    }

out:
    freeifaddrs(list);
    return st;
}

/* ---- sockets ---- */

dscomm_status_t dsc_socket_create(int family, int *fd_out)
{
    const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return dsc_fail_open("cannot open a socket");
    *fd_out = fd;
    return DSCOMM_OK;
}

dscomm_status_t dsc_netif_listen(union dsc_addr *addr, int *fd_out)
{
    union dsc_addr bound = { 0 };
    socklen_t len = sizeof(bound);
    char text[DSC_ADDR_TEXT_BYTES];
    const int one = 1;
    dscomm_status_t st;
    int fd = -1;

    dsc_addr_text(addr, text);
    DSC_TRY(dsc_socket_create(addr->any.sa_family, &fd));
    /* A port in TIME_WAIT after the last job is free; one that somebody listens on is still not. */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (addr->any.sa_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (bind(fd, &addr->any, dsc_addr_len(addr)) == 0 && listen(fd, SOMAXCONN) == 0 &&
        getsockname(fd, &bound.any, &len) == 0) {
        *addr = bound;
        *fd_out = fd;
        return DSCOMM_OK;
    }

    if (errno == EADDRINUSE)
        st = dsc_fail(DSCOMM_ERR_SYSTEM, "port %u is in use (address %s); is another job on it?",
                      dsc_addr_port(addr), text);
    else
        st = dsc_fail_errno(DSCOMM_ERR_SYSTEM, "cannot listen at %s", text);
    close(fd);
    return st;
}
