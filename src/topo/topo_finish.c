/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from what the readers stated, the same for all of them: fabric ends become links,
 * links and PCIe connectors get their rates, ports of one card find each other, and what cannot be
 * right is marked. Runs again after more was added.
 */
#include "topo/topo_internal.h"

#include <string.h>

enum {
    COUNT_MAX = 1024, /* links between two devices; more is a mistake */
    CLASS_FABRIC_SWITCH = 0x068000,
    CLASS_FABRIC_CPU = 0x068001,
    IMPLAUSIBLE_FACTOR = 4,
};

static bool is_gpu_class(uint32_t pci_class)
{
    return pci_class >> 16 == 0x03 || pci_class >> 16 == 0x12;
}

/* ---- fabric ---- */

/* A usable end; what is wrong with the others is said once. */
static bool check_end(dscomm_topo_t *topo, const struct dsc_topo_end *end)
{
    const char *const bus = topo->devices[end->gpu].pub.bus;

    if (end->count < 1 || end->count > COUNT_MAX) {
        dsc_topo_note(topo, "fabric count", "%s: %d links to %s, allowed: 1 to %d; left out", bus,
                      end->count, end->target, COUNT_MAX);
        return false;
    }
    if (end->kind != DSCOMM_LINK_C2C && strcmp(bus, end->target) == 0) {
        dsc_topo_note(topo, "fabric self", "%s: link to itself, left out", bus);
        return false;
    }
    return true;
}

/* The GPU of the bus id, by itself or as the part of a card that has most use for it. */
static int gpu_at(const dscomm_topo_t *topo, int device)
{
    if (topo->devices[device].pub.kind != DSCOMM_DEVICE_PCI)
        return device;
    for (int i = device + 1; i < (int)topo->n_devices; i++)
        if (topo->devices[i].pub.parent == device && topo->devices[i].pub.kind == DSCOMM_DEVICE_GPU)
            return i;
    return device;
}

static bool holds_gpu(const dscomm_topo_t *topo, int device)
{
    return topo->devices[gpu_at(topo, device)].pub.kind == DSCOMM_DEVICE_GPU;
}

static int numa_above(const dscomm_topo_t *topo, int device)
{
    while (device >= 0 && topo->devices[device].pub.kind != DSCOMM_DEVICE_NUMA)
        device = topo->devices[device].pub.parent;
    return device;
}

static bool is_named_twice(const dscomm_topo_t *topo, const struct dsc_topo_end *end)
{
    for (size_t i = 0; i < topo->n_ends; i++)
        if (topo->ends[i].gpu != end->gpu && strcmp(topo->ends[i].target, end->target) == 0)
            return true;
    return false;
}

/* Device at the other end, a switch made for it where need be; -1: it is not here. */
static dscomm_status_t target_of(dscomm_topo_t *topo, const struct dsc_topo_end *end,
                                 int *device_out)
{
    const int host = dsc_topo_host_of(topo, end->gpu);
    const int found = dsc_topo_find_bus(topo, host, end->target);
    char label[DSC_TOPO_LABEL_BYTES];

    if (end->kind == DSCOMM_LINK_C2C || end->target_class == CLASS_FABRIC_CPU) {
        *device_out = numa_above(topo, end->gpu);
        return DSCOMM_OK;
    }
    if (found >= 0) {
        *device_out = gpu_at(topo, found);
        if (end->target_class == CLASS_FABRIC_SWITCH && !holds_gpu(topo, found))
            topo->devices[found].pub.kind = DSCOMM_DEVICE_FABRIC;
        return DSCOMM_OK;
    }
    *device_out = -1;
    if (end->target[0] == '\0')
        return DSCOMM_OK; /* a listing of links that does not say where they go */
    if (end->target_class != CLASS_FABRIC_SWITCH && !dsc_topo_bus_is_virtual(end->target) &&
        (is_gpu_class(end->target_class) || !is_named_twice(topo, end))) {
        dsc_topo_note(topo, "fabric target", "%s: links to %s, which is not listed",
                      dsc_topo_label(topo, end->gpu, label), end->target);
        return DSCOMM_OK;
    }
    DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_FABRIC, host, device_out));
    dsc_topo_copy(topo->devices[*device_out].pub.bus, DSCOMM_TOPO_BUS_BYTES, end->target,
                  strlen(end->target));
    return DSCOMM_OK;
}

static dscomm_topo_link_t *find_link(dscomm_topo_t *topo, int a, int b, dscomm_link_kind_t kind)
{
    for (size_t i = 0; i < topo->n_links; i++)
        if (topo->links[i].a == a && topo->links[i].b == b && topo->links[i].kind == kind)
            return &topo->links[i];
    return NULL;
}

/* Ends of one GPU that go to one device add up. */
static dscomm_status_t join_end(dscomm_topo_t *topo, const struct dsc_topo_end *end)
{
    dscomm_topo_device_t *pub;
    dscomm_topo_link_t *link;
    int target;

    if (!check_end(topo, end))
        return DSCOMM_OK;
    DSC_TRY(target_of(topo, end, &target));
    pub = &topo->devices[end->gpu].pub;
    if (end->kind != DSCOMM_LINK_C2C) {
        if (pub->fabric_links == DSCOMM_TOPO_UNKNOWN)
            pub->fabric_links = 0;
        pub->fabric_links =
            pub->fabric_links > COUNT_MAX ? COUNT_MAX : pub->fabric_links + end->count;
    }
    if (target < 0 || target == end->gpu)
        return DSCOMM_OK;
    link = find_link(topo, end->gpu, target, end->kind);
    if (link == NULL)
        DSC_TRY(dsc_topo_link_add(topo, end->gpu, target, end->kind, 0, &link));
    link->count = link->count + end->count > COUNT_MAX ? COUNT_MAX : link->count + end->count;
    if (end->kind == DSCOMM_LINK_C2C)
        dsc_topo_rate_declare(&link->rate, end->c2c_bps);
    return DSCOMM_OK;
}

/* Both GPUs of a pair state their link: one of the two goes. The lower count is what is usable. */
static void merge_directions(dscomm_topo_t *topo)
{
    size_t n_kept = 0;

    for (size_t i = 0; i < topo->n_links; i++) {
        const dscomm_topo_link_t link = topo->links[i];
        dscomm_topo_link_t *back = NULL;

        for (size_t k = 0; k < n_kept && link.kind != DSCOMM_LINK_NONE && back == NULL; k++)
            if (topo->links[k].a == link.b && topo->links[k].b == link.a &&
                topo->links[k].kind == link.kind)
                back = &topo->links[k];
        if (back == NULL) {
            topo->links[n_kept++] = link;
            continue;
        }
        if (back->count != link.count)
            dsc_topo_note(topo, "fabric asymmetric",
                          "%d links one way and %d the other between %s and %s: the fewer count",
                          back->count, link.count, topo->devices[link.b].pub.bus,
                          topo->devices[link.a].pub.bus);
        back->count = back->count < link.count ? back->count : link.count;
    }
    topo->n_links = n_kept;
}

/* GPUs in one card that list equal ends are parts of one device: the links are there once. */
static void share_parts(dscomm_topo_t *topo)
{
    for (int i = 0; i < (int)topo->n_devices; i++) {
        struct dsc_topo_device *const dev = &topo->devices[i];
        int n_parts = 0;

        if (dev->pub.kind != DSCOMM_DEVICE_GPU || !dev->is_inside || dev->pub.fabric_links <= 0)
            continue;
        for (int k = 0; k < (int)topo->n_devices; k++)
            n_parts += topo->devices[k].pub.parent == dev->pub.parent &&
                       topo->devices[k].pub.kind == DSCOMM_DEVICE_GPU &&
                       topo->devices[k].pub.fabric_links == dev->pub.fabric_links;
        dev->n_parts = n_parts;
        if (n_parts > 1)
            dsc_topo_note(topo, "parts", "%s holds %d GPUs with equal links: they share them",
                          dev->pub.bus, n_parts);
    }
}

static uint64_t link_bps(const dscomm_topo_t *topo, const struct dsc_topo_device *gpu,
                         dscomm_link_kind_t kind)
{
    const dscomm_rate_kind_t rates = topo->config.rates;

    if (kind == DSCOMM_LINK_XGMI)
        return dsc_topo_xgmi_bps(rates, gpu->xgmi_arch);
    if (gpu->pub.sm == DSCOMM_TOPO_UNKNOWN && rates == DSCOMM_RATES_PHYSICAL)
        return gpu->fabric_link_bps > 0 ? gpu->fabric_link_bps
                                        : dsc_topo_nvlink_bps(rates, topo->config.sm);
    return dsc_topo_nvlink_bps(rates,
                               gpu->pub.sm == DSCOMM_TOPO_UNKNOWN ? topo->config.sm : gpu->pub.sm);
}

static void rate_links(dscomm_topo_t *topo)
{
    char label[DSC_TOPO_LABEL_BYTES];

    for (size_t i = 0; i < topo->n_links; i++) {
        dscomm_topo_link_t *const link = &topo->links[i];
        const struct dsc_topo_device *const gpu = &topo->devices[link->a];
        uint64_t bps;

        if ((link->kind != DSCOMM_LINK_NVLINK && link->kind != DSCOMM_LINK_XGMI) ||
            link->count == 0)
            continue;
        bps = link_bps(topo, gpu, link->kind) * (uint64_t)link->count / (uint64_t)gpu->n_parts;
        if (bps > 0)
            dsc_topo_rate_declare(&link->rate, bps);
        if (!dsc_topo_is_known(&link->rate))
            dsc_topo_note(topo, "fabric rate",
                          "%s: no rate is known for the links of this GPU model: unknown",
                          dsc_topo_label(topo, link->a, label));
    }
}

/* ---- PCIe ---- */

static void rate_pcie(dscomm_topo_t *topo)
{
    for (size_t i = 0; i < topo->n_devices; i++) {
        struct dsc_topo_device *const dev = &topo->devices[i];

        if (dev->pcie_gen == 0 || dev->pcie_width == 0)
            continue;
        dsc_topo_rate_declare(
            &dev->pub.up, dsc_topo_pcie_bps(topo->config.rates, dev->pcie_gen, dev->pcie_width));
        if (dev->is_at_maximum)
            dev->pub.up.marks |= DSCOMM_RATE_MAXIMUM;
    }
}

/* A bridge far slower than what hangs below it, or a GPU at the first generation: link states of
 * virtual bridges and of idle devices, not of the hardware. */
static void judge_pcie(dscomm_topo_t *topo)
{
    for (int i = 0; i < (int)topo->n_devices; i++) {
        struct dsc_topo_device *const dev = &topo->devices[i];

        if ((dev->pub.up.marks & DSCOMM_RATE_DECLARED) == 0)
            continue;
        if (dev->pcie_gen == 1 && holds_gpu(topo, i)) {
            dev->pub.up.marks |= DSCOMM_RATE_IMPLAUSIBLE;
            dsc_topo_note(topo, "gen1", "%s: GPU link at Gen1, 2.5 GT/s, as an idle one reports",
                          dev->pub.bus);
        }
        for (int up = dev->pub.parent; up >= 0; up = topo->devices[up].pub.parent) {
            dscomm_topo_device_t *const above = &topo->devices[up].pub;

            if ((above->up.marks & DSCOMM_RATE_DECLARED) == 0 ||
                dev->pub.up.declared / IMPLAUSIBLE_FACTOR <= above->up.declared)
                continue;
            above->up.marks |= DSCOMM_RATE_IMPLAUSIBLE;
            dsc_topo_note(topo, "slow bridge",
                          "bridge %s declares Gen%d x%d, over %d times slower than %s below it: "
                          "implausible",
                          above->bus, topo->devices[up].pcie_gen, topo->devices[up].pcie_width,
                          IMPLAUSIBLE_FACTOR, dev->pub.bus);
        }
    }
}

/* ---- network cards ---- */

/* Where the NIC sits: its own bus id, or that of the card it is in. */
static const char *place_of(const dscomm_topo_t *topo, int nic)
{
    const dscomm_topo_device_t *const pub = &topo->devices[nic].pub;

    if (pub->bus[0] != '\0' || pub->parent < 0)
        return pub->bus;
    return topo->devices[pub->parent].pub.bus;
}

static bool is_same_card(const dscomm_topo_t *topo, int a, int b)
{
    const char *const bus_a = place_of(topo, a), *const bus_b = place_of(topo, b);
    const char *const dot = strrchr(bus_a, '.');

    return dot != NULL && bus_b[0] != '\0' && !dsc_topo_bus_is_virtual(bus_a) &&
           dsc_topo_host_of(topo, a) == dsc_topo_host_of(topo, b) &&
           strncmp(bus_a, bus_b, (size_t)(dot - bus_a) + 1) == 0;
}

static void find_cards(dscomm_topo_t *topo)
{
    for (int i = 0; i < (int)topo->n_devices; i++) {
        if (topo->devices[i].pub.kind != DSCOMM_DEVICE_NIC)
            continue;
        for (int k = 0; k < i; k++) {
            if (topo->devices[k].pub.kind != DSCOMM_DEVICE_NIC || !is_same_card(topo, i, k))
                continue;
            if (topo->devices[k].pub.card < 0)
                topo->devices[k].pub.card = k;
            topo->devices[i].pub.card = topo->devices[k].pub.card;
            break;
        }
    }
}

static void judge_nics(dscomm_topo_t *topo)
{
    for (size_t i = 0; i < topo->n_devices; i++) {
        dscomm_topo_device_t *const pub = &topo->devices[i].pub;

        if (pub->kind != DSCOMM_DEVICE_NIC || !dsc_topo_nic_is_virtual(pub->name))
            continue;
        pub->flags |= DSCOMM_DEVICE_VIRTUAL;
        if ((pub->port.marks & DSCOMM_RATE_DECLARED) != 0)
            pub->port.marks |= DSCOMM_RATE_IMPLAUSIBLE;
        dsc_topo_note(topo, "virtual",
                      "nic %s and others like it are virtual: their rates are "
                      "made up",
                      pub->name);
    }
}

/* ---- what is missing ---- */

static void note_missing(dscomm_topo_t *topo)
{
    for (size_t i = 0; i < topo->n_devices; i++) {
        struct dsc_topo_device *const dev = &topo->devices[i];

        if (dev->pub.kind == DSCOMM_DEVICE_GPU && dev->pub.fabric_links == DSCOMM_TOPO_UNKNOWN)
            dsc_topo_note(topo, "fabric unknown",
                          "GPUs are there, but nothing says whether NVLink or xGMI joins them: "
                          "fabric unknown");
        if ((dev->pub.flags & DSCOMM_DEVICE_UNCLASSED) != 0)
            dsc_topo_note(
                topo, "unclassed",
                "%s states no class: nothing says whether it is a GPU, a NIC or something "
                "else",
                dev->pub.bus);
    }
}

dscomm_status_t dsc_topo_finish(dscomm_topo_t *topo)
{
    static const char *const judged_again[] = { "fabric rate", "fabric unknown", "unclassed" };

    for (size_t i = 0; i < DSC_ARRAY_LEN(judged_again); i++)
        dsc_topo_forget(topo, judged_again[i]);
    for (size_t i = 0; i < topo->n_ends; i++)
        DSC_TRY(join_end(topo, &topo->ends[i]));
    topo->n_ends = 0;
    merge_directions(topo);
    share_parts(topo);
    rate_links(topo);
    rate_pcie(topo);
    judge_pcie(topo);
    find_cards(topo);
    judge_nics(topo);
    note_missing(topo);
    return DSCOMM_OK;
}
