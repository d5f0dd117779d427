/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much an interface looks like a real network card: containers leave bridges and veth pairs on
 * every host, and only names and /sys tell them from cards.
 */
#include "transport/netif_score.h"

#include <net/if.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

bool dsc_netif_has_address(const struct ifaddrs *ifa)
{
    return ifa->ifa_addr != NULL &&
           (ifa->ifa_addr->sa_family == AF_INET || ifa->ifa_addr->sa_family == AF_INET6);
}

union dsc_addr dsc_netif_address(const struct ifaddrs *ifa)
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
        if (dsc_netif_has_address(ifa) && strcmp(ifa->ifa_name, name) == 0)
            return true;
    }
    return false;
}

void dsc_netif_names(const struct ifaddrs *list, char *buf, size_t buf_bytes)
{
    size_t used = 0;

    buf[0] = '\0';
    for (const struct ifaddrs *ifa = list; ifa != NULL; ifa = ifa->ifa_next) {
        char text[DSC_ADDR_TEXT_BYTES] = "";

        if (!dsc_netif_has_address(ifa) && is_listed_with_address(list, ifa->ifa_name))
            continue;
        if (dsc_netif_has_address(ifa)) {
            const union dsc_addr addr = dsc_netif_address(ifa);

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

bool dsc_netif_is_listed(const char *words, const char *name, bool exact)
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

    return has_entry(name, "bridge") || dsc_netif_is_listed(prefixes, name, false);
}

int dsc_netif_score(const struct ifaddrs *ifa)
{
    int kind;

    if (!dsc_netif_has_address(ifa) || !(ifa->ifa_flags & IFF_UP))
        return 0;

    const union dsc_addr addr = dsc_netif_address(ifa);

    if (ifa->ifa_flags & IFF_LOOPBACK)
        kind = 1;
    else if (!(ifa->ifa_flags & IFF_RUNNING) || (ifa->ifa_flags & IFF_POINTOPOINT) ||
             looks_virtual(ifa->ifa_name))
        kind = 2;
    else
        kind = has_entry(ifa->ifa_name, "device") ? 4 : 3;
    return kind * DSC_NETIF_SCORES_PER_KIND +
           (addr.any.sa_family == AF_INET ? 2 : !dsc_addr_is_link_local(&addr));
}
