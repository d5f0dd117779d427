/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to netif.c: what the system's list of interfaces says about one, and how much it looks
 * like the network card that one would choose.
 */
#ifndef DSC_NETIF_SCORE_H
#define DSC_NETIF_SCORE_H

#include <ifaddrs.h>

#include "transport/netif.h"

/* Of IP. */
bool dsc_netif_has_address(const struct ifaddrs *ifa);
union dsc_addr dsc_netif_address(const struct ifaddrs *ifa);
/* Higher is better; 0 is of no use. First by kind of interface, then by kind of address. */
#define DSC_NETIF_SCORES_PER_KIND 4
int dsc_netif_score(const struct ifaddrs *ifa);
/* "lo (127.0.0.1), eth0 (192.0.2.2), eth1": for error texts. */
void dsc_netif_names(const struct ifaddrs *list, char *buf, size_t buf_bytes);
/* Is name (or its beginning) one of the comma-separated words? */
bool dsc_netif_is_listed(const char *words, const char *name, bool exact);

#endif
