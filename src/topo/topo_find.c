/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices by their names: bus ids and numbers in texts, and the devices that they stand for. What
 * comes from a text is untrusted: it is cut and made printable where it is copied.
 */
#include "topo/topo_internal.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- texts ---- */

void dsc_topo_copy(char *dst, size_t dst_bytes, const char *src, size_t n)
{
    const size_t n_copied = dsc_min_size(n, dst_bytes - 1);

    for (size_t i = 0; i < n_copied; i++)
        dst[i] = src[i] >= ' ' && src[i] < 0x7f ? src[i] : '?';
    dst[n_copied] = '\0';
}

bool dsc_topo_parse_int(const char *text, int64_t min, int64_t max, int64_t *value_out)
{
    const bool is_hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
    char *end;

    if (!isdigit((unsigned char)text[0]) && text[0] != '-')
        return false;
    errno = 0;

    const int64_t value = strtoll(text, &end, is_hex ? 16 : 10);

    if (errno != 0 || end == text || *end != '\0' || value < min || value > max)
        return false;
    *value_out = value;
    return true;
}

/* A hexadecimal number of at most max_digits that ends at the character given; moves on behind. */
static bool take_hex(const char **text, size_t max_digits, char last, unsigned long *value_out)
{
    size_t n = 0;

    while (n <= max_digits && isxdigit((unsigned char)(*text)[n]))
        n++;
    if (n == 0 || n > max_digits || (*text)[n] != last)
        return false;
    *value_out = strtoul(*text, NULL, 16);
    *text += n + (last != '\0');
    return true;
}

bool dsc_topo_bus_normalize(const char *text, char bus_out[DSCOMM_TOPO_BUS_BYTES])
{
    const char *at = text;
    unsigned long domain = 0, bus, device, function;

    dsc_topo_copy(bus_out, DSCOMM_TOPO_BUS_BYTES, text, strlen(text));
    if (strchr(text, ':') != strrchr(text, ':') && !take_hex(&at, 8, ':', &domain))
        return false;
    if (!take_hex(&at, 2, ':', &bus) || !take_hex(&at, 2, '.', &device) ||
        !take_hex(&at, 1, '\0', &function))
        return false;
    (void)snprintf(bus_out, DSCOMM_TOPO_BUS_BYTES, "%04lx:%02lx:%02lx.%lx", domain, bus, device,
                   function);
    return true;
}

bool dsc_topo_bus_is_virtual(const char *bus)
{
    return strtoul(bus, NULL, 16) > 0xfffff; /* PCI domains beyond 16 bits: VMD, never beyond 20 */
}

/* ---- devices ---- */

int dsc_topo_host_of(const dscomm_topo_t *topo, int device)
{
    while (topo->devices[device].pub.parent >= 0)
        device = topo->devices[device].pub.parent;
    return device;
}

int dsc_topo_find_bus(const dscomm_topo_t *topo, int host, const char *bus)
{
    if (bus[0] == '\0')
        return -1;
    for (int i = 0; i < (int)topo->n_devices; i++)
        if (strcmp(topo->devices[i].pub.bus, bus) == 0 &&
            (host < 0 || dsc_topo_host_of(topo, i) == host))
            return i;
    return -1;
}

int dsc_topo_gpu_at(const dscomm_topo_t *topo, int device)
{
    if (topo->devices[device].pub.kind != DSCOMM_DEVICE_PCI)
        return device;
    for (int i = device + 1; i < (int)topo->n_devices; i++)
        if (topo->devices[i].pub.parent == device && topo->devices[i].pub.kind == DSCOMM_DEVICE_GPU)
            return i;
    return device;
}

bool dsc_topo_holds_gpu(const dscomm_topo_t *topo, int device)
{
    return topo->devices[dsc_topo_gpu_at(topo, device)].pub.kind == DSCOMM_DEVICE_GPU;
}

dscomm_status_t dsc_topo_numa(dscomm_topo_t *topo, int host, int number, int *device_out)
{
    for (int i = 0; i < (int)topo->n_devices; i++) {
        const dscomm_topo_device_t *const pub = &topo->devices[i].pub;

        if (pub->kind == DSCOMM_DEVICE_NUMA && pub->numa == number && pub->parent == host) {
            *device_out = i;
            return DSCOMM_OK;
        }
    }
    DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_NUMA, host, device_out));
    topo->devices[*device_out].pub.numa = number;
    return DSCOMM_OK;
}

int dsc_topo_ordinal(const dscomm_topo_t *topo, int device)
{
    int n = 0;

    for (int i = 0; i < device; i++)
        n += topo->devices[i].pub.kind == topo->devices[device].pub.kind;
    return n;
}

/* "gpu3": the fourth of its kind. */
static int find_ordinal(const dscomm_topo_t *topo, const char *name)
{
    static const struct {
        const char *prefix;
        dscomm_device_kind_t kind;
    } kinds[] = { { "gpu", DSCOMM_DEVICE_GPU },
                  { "nic", DSCOMM_DEVICE_NIC },
                  { "numa", DSCOMM_DEVICE_NUMA },
                  { "host", DSCOMM_DEVICE_HOST } };
    int64_t left;

    for (size_t k = 0; k < DSC_ARRAY_LEN(kinds); k++) {
        const size_t len = strlen(kinds[k].prefix);

        if (strncmp(name, kinds[k].prefix, len) != 0 ||
            !dsc_topo_parse_int(name + len, 0, DSC_TOPO_DEVICES_MAX, &left))
            continue;
        for (int i = 0; i < (int)topo->n_devices; i++)
            if (topo->devices[i].pub.kind == kinds[k].kind && left-- == 0)
                return i;
    }
    return -1;
}

int dscomm_topo_find(const dscomm_topo_t *topo, const char *name)
{
    char bus[DSCOMM_TOPO_BUS_BYTES];

    if (topo == NULL || name == NULL || name[0] == '\0')
        return -1;
    for (int i = 0; i < (int)topo->n_devices; i++)
        if (strcmp(topo->devices[i].pub.name, name) == 0)
            return i;
    if (!dsc_topo_bus_normalize(name, bus))
        return find_ordinal(topo, name);
    for (int i = 0; i < (int)topo->n_devices; i++) /* the device, not the card that it is in */
        if (topo->devices[i].is_inside && strcmp(topo->devices[i].pub.bus, bus) == 0)
            return i;
    return dsc_topo_find_bus(topo, -1, bus);
}
