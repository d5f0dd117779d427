/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which address a rank offers. A name that fits nothing is an error, since a job that silently runs
 * over another network is found out weeks later; without a name the interface that most looks like
 * a real network card wins, because containers leave bridges and veth pairs on every host.
 */
#include "transport/netif_score.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#define VARIABLE "DSCOMM_SOCKET_IFNAME"

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

    return spec[0] == '\0' || dsc_netif_is_listed(words, name, exact) != inverted;
}

static dscomm_status_t choose_by_name(const struct ifaddrs *list, const char *spec,
                                      union dsc_addr *addr_out, const char **name_out)
{
    char names[1024];
    int best = 0;

    for (const struct ifaddrs *ifa = list; ifa != NULL; ifa = ifa->ifa_next) {
        if (!is_allowed(list, spec, ifa->ifa_name) || dsc_netif_score(ifa) <= best)
            continue;
        best = dsc_netif_score(ifa);
        *addr_out = dsc_netif_address(ifa);
        *name_out = ifa->ifa_name;
    }
    dsc_addr_set_port(addr_out, 0);
    if (best > 0)
        return DSCOMM_OK;

    dsc_netif_names(list, names, sizeof(names));
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

    dsc_netif_names(list, names, sizeof(names));
    if (dsc_addr_is_link_local(addr) && (scope == NULL || scope[0] == '\0'))
        return dsc_fail(DSCOMM_ERR_ENV,
                        VARIABLE " is \"%s\", a link-local address, which needs its "
                                 "interface as in fe80::1%%eth0; this host has %s",
                        spec, names);
    for (const struct ifaddrs *ifa = list; ifa != NULL; ifa = ifa->ifa_next) {
        if (!dsc_netif_has_address(ifa) || (scope != NULL && strcmp(scope, ifa->ifa_name) != 0))
            continue;

        union dsc_addr own = dsc_netif_address(ifa);

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
        if (strcmp(ifa->ifa_name, name) == 0 && dsc_netif_score(ifa) > best)
            best = dsc_netif_score(ifa);
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

    const int best_kind = best_score_of(list, best_name) / DSC_NETIF_SCORES_PER_KIND;

    for (const struct ifaddrs *ifa = list; ifa != NULL; ifa = ifa->ifa_next) {
        const int own = dsc_netif_score(ifa);
        struct dsc_netif *entry;

        if (own == 0 || own != best_score_of(list, ifa->ifa_name) ||
            !is_allowed(list, spec, ifa->ifa_name) ||
            (!named && own / DSC_NETIF_SCORES_PER_KIND != best_kind))
            continue;
        entry = entry_of(netifs, &n, max, ifa->ifa_name);
        if (entry == NULL || entry->addr.any.sa_family != AF_UNSPEC)
            continue; /* of equal addresses the first */
        entry->addr = dsc_netif_address(ifa);
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
