/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links of the fabrics between GPUs, from the ends that readers stated: each end finds its device,
 * the two ends of a link become one, and links get their rates.
 */
#include "topo/topo_internal.h"

#include <string.h>

#define COUNT_MAX 1024 /* links between two devices; more is a mistake */

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

    if (end->kind == DSCOMM_LINK_C2C || end->target_class == DSC_TOPO_CLASS_CPU) {
        *device_out = numa_above(topo, end->gpu);
        return DSCOMM_OK;
    }
    if (found >= 0) {
        *device_out = dsc_topo_gpu_at(topo, found);
        if (end->target_class == DSC_TOPO_CLASS_SWITCH && !dsc_topo_holds_gpu(topo, found))
            topo->devices[found].pub.kind = DSCOMM_DEVICE_FABRIC;
        return DSCOMM_OK;
    }
    *device_out = -1;
    if (end->target[0] == '\0')
        return DSCOMM_OK; /* a listing of links that does not say where they go */
    if (end->target_class != DSC_TOPO_CLASS_SWITCH && !dsc_topo_bus_is_virtual(end->target) &&
        (dsc_topo_class_is_gpu(end->target_class) || !is_named_twice(topo, end))) {
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

dscomm_status_t dsc_topo_join_fabric(dscomm_topo_t *topo)
{
    for (size_t i = 0; i < topo->n_ends; i++)
        DSC_TRY(join_end(topo, &topo->ends[i]));
    topo->n_ends = 0;
    merge_directions(topo);
    share_parts(topo);
    rate_links(topo);
    return DSCOMM_OK;
}
