/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Network interfaces as NCCL's devices. NCCL places a card by the last component of its real path
 * in sysfs and chooses the number of channels from its speed, so neither is guessed where sysfs
 * tells. Two interfaces have one guid only if they have one hardware address and one name.
 */
#include "net.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPEED_UNKNOWN 10000 /* what NCCL assumes too */

/* The first line of /sys/class/net/NAME/ENTRY, without its end; empty where there is none. */
static void read_entry(const char *name, const char *entry, char *text, size_t bytes)
{
    char path[128];
    FILE *file;

    text[0] = '\0';
    snprintf(path, sizeof(path), "/sys/class/net/%.15s/%.16s", name, entry);
    file = fopen(path, "re");
    if (file == NULL)
        return;
    if (fgets(text, (int)bytes, file) == NULL)
        text[0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    fclose(file);
}

static int read_speed(const char *name)
{
    char text[32];
    long speed;

    read_entry(name, "speed", text, sizeof(text));
    speed = strtol(text, NULL, 10);
    return speed > 0 && speed <= 100000000 ? (int)speed : SPEED_UNKNOWN;
}

void net_device_pci_path(const char *class_name, const char *name, char *path, size_t bytes)
{
    char link[128], real[PATH_MAX];

    path[0] = '\0';
    snprintf(link, sizeof(link), "/sys/class/%.20s/%.63s/device", class_name, name);
    if (realpath(link, real) != NULL && strlen(real) < bytes)
        memcpy(path, real, strlen(real) + 1);
}

static uint64_t make_guid(const struct dsc_netif *netif)
{
    char address[64], text[192], boot[DSC_ADDR_TEXT_BYTES];
    uint64_t guid;

    read_entry(netif->name, "address", address, sizeof(address));
    snprintf(text, sizeof(text), "%.15s %.63s %.95s", netif->name, address,
             dsc_addr_text(&netif->addr, boot));
    guid = dsc_hash_text(text);
    return guid != 0 ? guid : 1;
}

dscomm_status_t net_devices_find(struct net_device *devices, size_t max, int *n_out)
{
    struct dsc_netif netifs[NET_DEVICES_MAX];
    const struct dsc_env *env;
    size_t n;

    DSC_TRY(dsc_env_get(&env));
    DSC_TRY(
        dsc_netif_list(env->socket_ifname, netifs, dsc_min_size(max, DSC_ARRAY_LEN(netifs)), &n));
    for (size_t i = 0; i < n; i++) {
        struct net_device *const device = &devices[i];

        *device = (struct net_device){ .addr = netifs[i].addr,
                                       .guid = make_guid(&netifs[i]),
                                       .speed = read_speed(netifs[i].name),
                                       .max_comms = 65536,
                                       .ptr_support = NCCL_PTR_HOST,
                                       .max_bytes = NCCL_NET_BYTES_MAX };
        snprintf(device->name, sizeof(device->name), "%s", netifs[i].name);
        net_device_pci_path("net", device->name, device->pci_path, sizeof(device->pci_path));
    }
    *n_out = (int)n;
    return DSCOMM_OK;
}

void net_device_props(const struct net_device *device, int index, struct nccl_props_v12 *props)
{
    *props = (struct nccl_props_v12){
        .name = (char *)(uintptr_t)device->name,
        .pci_path = device->pci_path[0] != '\0' ? (char *)(uintptr_t)device->pci_path : NULL,
        .guid = device->guid,
        .ptr_support = device->ptr_support,
        .speed = device->speed,
        .port = device->port,
        .max_comms = device->max_comms,
        .max_recvs = 1,
        .vdevice = { .n_devs = 1, .devs = { index } },
        .max_p2p_bytes = device->max_bytes,
        .max_coll_bytes = device->max_bytes,
        .max_multi_request = 1,
        .rail = NCCL_UNDEFINED,
        .plane = NCCL_UNDEFINED,
    };
}
