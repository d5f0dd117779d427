/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel's files say about PCI links and network ports. Every file may be missing, empty
 * or hold nonsense: that makes a value unknown, never zero. An idle device lowers its link's speed
 * by itself, so the maximum counts; its width does not change.
 */
#include "topo/topo_internal.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_BYTES = 128, PATH_BYTES = 512 };

/* First line of <sysfs>/<folder>/<name>/<file>, without its end; false: there is none. */
static bool read_line(const char *sysfs, const char *folder, const char *name, const char *file,
                      char text[TEXT_BYTES])
{
    char path[PATH_BYTES];
    FILE *in;

    if (snprintf(path, sizeof(path), "%s/%s/%s/%s", sysfs, folder, name, file) >= (int)sizeof(path))
        return false;
    in = fopen(path, "re");
    if (in == NULL)
        return false;

    const size_t n = fread(text, 1, TEXT_BYTES - 1, in); /* EINVAL: the port is down */

    (void)fclose(in);
    text[n] = '\0';
    text[strcspn(text, "\r\n")] = '\0';
    return text[0] != '\0';
}

static int64_t number_or_none(const char *text)
{
    int64_t value;

    return dsc_topo_parse_int(text, INT32_MIN, INT32_MAX, &value) ? value : -1;
}

/* ---- PCI ---- */

static void read_pci(dscomm_topo_t *topo, int device, const char *sysfs)
{
    static const char folder[] = "bus/pci/devices";
    struct dsc_topo_device *const dev = &topo->devices[device];
    char text[TEXT_BYTES];
    int now = 0, most = 0;

    if (read_line(sysfs, folder, dev->pub.bus, "current_link_speed", text))
        now = dsc_topo_pcie_gen(text);
    if (read_line(sysfs, folder, dev->pub.bus, "max_link_speed", text))
        most = dsc_topo_pcie_gen(text);
    if (read_line(sysfs, folder, dev->pub.bus, "current_link_width", text)) {
        const int64_t width = number_or_none(text);

        if (width >= 1 && width <= 32)
            dev->pcie_width = (int)width;
    }
    if (now == 0 && most == 0)
        return;
    dev->pcie_gen = most > now ? most : now;
    dev->is_at_maximum = now != 0 && most > now;
}

/* ---- ports ---- */

static int64_t net_mbit(const char *sysfs, const char *name)
{
    char text[TEXT_BYTES];

    return read_line(sysfs, "class/net", name, "speed", text) ? number_or_none(text) : -1;
}

static bool net_is_down(const char *sysfs, const char *name)
{
    char text[TEXT_BYTES];

    return read_line(sysfs, "class/net", name, "operstate", text) &&
           (strcmp(text, "down") == 0 || strcmp(text, "lowerlayerdown") == 0 ||
            strcmp(text, "notpresent") == 0);
}

static bool net_exists(const char *sysfs, const char *name)
{
    char path[PATH_BYTES];
    DIR *dir;

    if (snprintf(path, sizeof(path), "%s/class/net/%s", sysfs, name) >= (int)sizeof(path))
        return false;
    dir = opendir(path);
    if (dir != NULL)
        (void)closedir(dir);
    return dir != NULL;
}

/* An RDMA device states the rate of one port; above a bond the network device knows the sum. */
static void read_rdma(dscomm_topo_t *topo, int nic, const char *sysfs)
{
    dscomm_topo_device_t *const pub = &topo->devices[nic].pub;
    char text[TEXT_BYTES];
    int64_t mbit = -1;

    if (read_line(sysfs, "class/infiniband", pub->name, "ports/1/rate", text)) {
        const double gbit = strtod(text, NULL);

        mbit = gbit > 0 && gbit < 1e6 ? (int64_t)(gbit * 1000 + 0.5) : -1;
    }
    if (read_line(sysfs, "class/infiniband", pub->name, "ports/1/gid_attrs/ndevs/0", text)) {
        const int64_t net = net_mbit(sysfs, text);

        mbit = net > mbit ? net : mbit;
    }
    dsc_topo_port_declare(topo, nic, mbit);
    if (read_line(sysfs, "class/infiniband", pub->name, "ports/1/state", text) &&
        strstr(text, "ACTIVE") == NULL)
        pub->flags |= DSCOMM_DEVICE_DOWN;
}

static void read_port(dscomm_topo_t *topo, int nic, const char *sysfs)
{
    dscomm_topo_device_t *const pub = &topo->devices[nic].pub;
    char text[TEXT_BYTES];

    if (read_line(sysfs, "class/infiniband", pub->name, "ports/1/state", text) ||
        read_line(sysfs, "class/infiniband", pub->name, "ports/1/rate", text)) {
        read_rdma(topo, nic, sysfs);
        return;
    }
    dsc_topo_port_declare(topo, nic, net_mbit(sysfs, pub->name));
    if (net_is_down(sysfs, pub->name))
        pub->flags |= DSCOMM_DEVICE_DOWN;
}

/* ---- interfaces that PCI does not show: bonds and virtual ones ---- */

/* The PCI device that an interface is of, among those listed; -1: none. */
static int pci_of(const dscomm_topo_t *topo, const char *sysfs, const char *name)
{
    char path[PATH_BYTES], target[PATH_BYTES], bus[DSCOMM_TOPO_BUS_BYTES];
    const char *last;
    ssize_t n;

    if (snprintf(path, sizeof(path), "%s/class/net/%s/device", sysfs, name) >= (int)sizeof(path))
        return -1;
    n = readlink(path, target, sizeof(target) - 1);
    if (n < 0)
        return -1;
    target[n] = '\0';
    last = strrchr(target, '/');
    return dsc_topo_bus_normalize(last != NULL ? last + 1 : target, bus)
               ? dsc_topo_find_bus(topo, -1, bus)
               : -1;
}

/* By its own name, or by that of the RDMA device of the same card. */
static bool is_listed(const dscomm_topo_t *topo, const char *sysfs, const char *name)
{
    const int pci = pci_of(topo, sysfs, name);

    if (pci >= 0 && topo->devices[pci].pub.kind == DSCOMM_DEVICE_NIC)
        return true;
    for (size_t i = 0; i < topo->n_devices; i++)
        if (topo->devices[i].pub.kind == DSCOMM_DEVICE_NIC &&
            strcmp(topo->devices[i].pub.name, name) == 0)
            return true;
    return false;
}

/* A bond is where its first member is. */
static int place_of(const dscomm_topo_t *topo, const char *sysfs, const char *name)
{
    char text[TEXT_BYTES];

    if (read_line(sysfs, "class/net", name, "bonding/slaves", text)) {
        text[strcspn(text, " ")] = '\0';
        for (size_t i = 0; i < topo->n_devices; i++)
            if (strcmp(topo->devices[i].pub.name, text) == 0)
                return topo->devices[i].pub.parent;
    }
    return 0; /* the host */
}

static void add_interface(dscomm_topo_t *topo, const char *sysfs, const char *name)
{
    char text[TEXT_BYTES];
    int device;
    /* an interface with a device has PCI or another bus below, which hwloc may not see */
    const bool is_hardware = read_line(sysfs, "class/net", name, "bonding/slaves", text) ||
                             read_line(sysfs, "class/net", name, "device/uevent", text);

    if (dsc_topo_device_add(topo, DSCOMM_DEVICE_NIC, place_of(topo, sysfs, name), &device) < 0)
        return;

    dscomm_topo_device_t *const pub = &topo->devices[device].pub;

    dsc_topo_copy(pub->name, sizeof(pub->name), name, strlen(name));
    if (!is_hardware)
        pub->flags |= DSCOMM_DEVICE_VIRTUAL;
    if (is_hardware || net_mbit(sysfs, name) > 0)
        dsc_topo_port_declare(topo, device, net_mbit(sysfs, name));
    if (net_is_down(sysfs, name))
        pub->flags |= DSCOMM_DEVICE_DOWN;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void add_interfaces(dscomm_topo_t *topo, const char *sysfs)
{
    char path[PATH_BYTES];
    struct dirent **entries;
    int n;

    if (snprintf(path, sizeof(path), "%s/class/net", sysfs) >= (int)sizeof(path))
        return;
    n = scandir(path, &entries, NULL, by_name);
    for (int i = 0; i < n; i++) {
        const char *const name = entries[i]->d_name;

        if (name[0] != '.' && strcmp(name, "lo") != 0 && net_exists(sysfs, name) &&
            !is_listed(topo, sysfs, name))
            add_interface(topo, sysfs, name);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
}

void dsc_topo_read_sysfs(dscomm_topo_t *topo, const char *sysfs)
{
    const int n_seen = (int)topo->n_devices;

    for (int i = 0; i < n_seen; i++) {
        if (topo->devices[i].pub.bus[0] != '\0')
            read_pci(topo, i, sysfs);
        if (topo->devices[i].pub.kind == DSCOMM_DEVICE_NIC && topo->devices[i].pub.name[0] != '\0')
            read_port(topo, i, sysfs);
    }
    add_interfaces(topo, sysfs);
}
