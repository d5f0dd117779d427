/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The best path between two devices. Three kinds of knowledge compete: links that join the two, a
 * fabric switch that both are at, and the tree of PCIe bridges, CPUs and hosts. The better kind
 * wins, not the higher figure: figures of the tree are often wrong. A measurement of the pair goes
 * over whatever is declared.
 */
#include "topo/topo_internal.h"

#include <string.h>

static void limit(dscomm_rate_t *rate, const dscomm_rate_t *part)
{
    uint64_t now = 0, bps = 0;

    if (dscomm_rate_best(part, &bps) == 0) {
        rate->marks |= DSCOMM_RATE_PARTIAL;
        return;
    }
    rate->marks |= part->marks & (DSCOMM_RATE_IMPLAUSIBLE | DSCOMM_RATE_MAXIMUM);
    if (dscomm_rate_best(rate, &now) == 0 || bps < now)
        dsc_topo_rate_declare(rate, bps);
}

/* ---- the tree ---- */

static int depth_of(const dscomm_topo_t *topo, int device)
{
    int depth = 0;

    for (; topo->devices[device].pub.parent >= 0; device = topo->devices[device].pub.parent)
        depth++;
    return depth;
}

static int common_above(const dscomm_topo_t *topo, int a, int b)
{
    int depth_a = depth_of(topo, a), depth_b = depth_of(topo, b);

    for (; depth_a > depth_b; depth_a--)
        a = topo->devices[a].pub.parent;
    for (; depth_b > depth_a; depth_b--)
        b = topo->devices[b].pub.parent;
    while (a != b && a >= 0) {
        a = topo->devices[a].pub.parent;
        b = topo->devices[b].pub.parent;
    }
    return a == b ? a : -1;
}

/* CPU to CPU: NCCL has a figure by model, nothing else declares one. */
static dscomm_rate_t smp_rate(const dscomm_topo_t *topo, int numa)
{
    dscomm_rate_t rate = { 0 };

    if (topo->config.rates == DSCOMM_RATES_NCCL)
        dsc_topo_rate_declare(&rate, topo->devices[numa].smp_nccl_bps);
    return rate;
}

/* From a device up to one above it; adds bridges in between, both ends excluded. */
static void climb(const dscomm_topo_t *topo, int from, int top, dscomm_topo_path_t *path,
                  int *n_bridges)
{
    for (int at = from; at != top; at = topo->devices[at].pub.parent) {
        const struct dsc_topo_device *const dev = &topo->devices[at];
        const bool is_function =
            at == from || (topo->devices[from].is_inside && topo->devices[from].pub.parent == at);

        *n_bridges += dev->pub.kind == DSCOMM_DEVICE_PCI && !is_function;
        if (dev->pub.kind == DSCOMM_DEVICE_NUMA) {
            const dscomm_rate_t rate = smp_rate(topo, at);

            limit(&path->rate, &rate);
        } else if (!dev->is_inside) {
            limit(&path->rate, &dev->pub.up);
        }
    }
}

void dsc_topo_tree_path(const dscomm_topo_t *topo, int a, int b, dscomm_topo_path_t *path)
{
    const int top = common_above(topo, a, b);
    int n_bridges = 0;

    if (top < 0)
        return;
    climb(topo, a, top, path, &n_bridges);
    climb(topo, b, top, path, &n_bridges);
    switch (topo->devices[top].pub.kind) {
    case DSCOMM_DEVICE_HOST:
        path->kind = DSCOMM_LINK_SYS;
        break;
    case DSCOMM_DEVICE_NUMA:
        path->kind = DSCOMM_LINK_PHB;
        break;
    default:
        path->kind = n_bridges + (top != a && top != b) > 1 ? DSCOMM_LINK_PXB : DSCOMM_LINK_PIX;
    }
}

/* ---- fabric ---- */

/* What a GPU sends into switches; marks are empty if it is at none or a rate is unknown. */
static dscomm_rate_t switch_rate(const dscomm_topo_t *topo, int gpu, bool *is_at_switch_out)
{
    dscomm_rate_t sum = { 0 };
    uint64_t total = 0, bps = 0;
    bool is_known = true;

    *is_at_switch_out = false;
    for (size_t i = 0; i < topo->n_links; i++) {
        if (topo->links[i].a != gpu ||
            topo->devices[topo->links[i].b].pub.kind != DSCOMM_DEVICE_FABRIC)
            continue;
        *is_at_switch_out = true;
        if (dscomm_rate_best(&topo->links[i].rate, &bps) != 0)
            total += bps;
        else
            is_known = false;
    }
    dsc_topo_rate_declare(&sum, is_known ? total : 0);
    return sum;
}

static bool shares_switch(const dscomm_topo_t *topo, int a, int b)
{
    for (size_t i = 0; i < topo->n_links; i++) {
        const dscomm_topo_link_t *const one = &topo->links[i];

        if (one->a != a || topo->devices[one->b].pub.kind != DSCOMM_DEVICE_FABRIC)
            continue;
        for (size_t k = 0; k < topo->n_links; k++)
            if (topo->links[k].a == b && topo->links[k].b == one->b)
                return true;
    }
    return false;
}

static void switch_path(const dscomm_topo_t *topo, int a, int b, dscomm_topo_path_t *path)
{
    bool is_a, is_b;
    const dscomm_rate_t rate_a = switch_rate(topo, a, &is_a);
    const dscomm_rate_t rate_b = switch_rate(topo, b, &is_b);

    if (!is_a || !is_b || !shares_switch(topo, a, b))
        return;
    *path = (dscomm_topo_path_t){ .kind = DSCOMM_LINK_NVLINK };
    limit(&path->rate, &rate_a);
    limit(&path->rate, &rate_b);
}

/* ---- all together ---- */

static void stated_path(const dscomm_topo_t *topo, int a, int b, dscomm_topo_path_t *path)
{
    for (size_t i = 0; i < topo->n_links; i++) {
        const dscomm_topo_link_t *const link = &topo->links[i];
        const bool is_pair = (link->a == a && link->b == b) || (link->a == b && link->b == a);

        if (!is_pair || link->kind == DSCOMM_LINK_NONE ||
            (path->kind != DSCOMM_LINK_NONE && path->kind <= link->kind))
            continue;
        *path = (dscomm_topo_path_t){ .kind = link->kind, .rate = link->rate };
        if (!dsc_topo_is_known(&link->rate))
            path->rate.marks |= DSCOMM_RATE_PARTIAL;
    }
}

static void measured_path(const dscomm_topo_t *topo, int a, int b, dscomm_topo_path_t *path)
{
    for (size_t i = 0; i < topo->n_links; i++) {
        const dscomm_topo_link_t *const link = &topo->links[i];

        if (link->kind != DSCOMM_LINK_NONE ||
            !((link->a == a && link->b == b) || (link->a == b && link->b == a)))
            continue;
        path->rate.measured = link->rate.measured;
        path->rate.marks |= DSCOMM_RATE_MEASURED;
        path->rate.marks &= ~(uint32_t)DSCOMM_RATE_PARTIAL;
    }
}

static int p2p_of(const dscomm_topo_t *topo, int a, int b)
{
    for (size_t i = 0; i < topo->n_p2p; i++)
        if (topo->p2p[i].a == a && topo->p2p[i].b == b)
            return topo->p2p[i].allowed;
    return DSCOMM_TOPO_UNKNOWN;
}

static bool is_fabric_known(const dscomm_topo_t *topo, int device)
{
    const dscomm_topo_device_t *const pub = &topo->devices[device].pub;

    return pub->kind == DSCOMM_DEVICE_OTHER
               ? (pub->flags & DSCOMM_DEVICE_UNCLASSED) == 0
               : pub->kind != DSCOMM_DEVICE_GPU || pub->fabric_links != DSCOMM_TOPO_UNKNOWN;
}

dscomm_status_t dscomm_topo_path(const dscomm_topo_t *topo, int a, int b,
                                 dscomm_topo_path_t *path_out)
{
    dscomm_topo_path_t path = { 0 }, fabric = { 0 };
    const int n = (int)topo->n_devices;

    if (a < 0 || a >= n || b < 0 || b >= n)
        return dsc_fail(DSCOMM_ERR_INVALID, "devices %d and %d, the topology has %d", a, b, n);
    if (path_out->struct_bytes != sizeof(path))
        return dsc_fail(DSCOMM_ERR_INVALID, "path struct_bytes %zu, must be %zu",
                        path_out->struct_bytes, sizeof(path));
    if (a != b) {
        stated_path(topo, a, b, &path);
        if (path.kind == DSCOMM_LINK_NONE || path.kind > DSCOMM_LINK_NVLINK)
            switch_path(topo, a, b, &fabric);
        if (fabric.kind != DSCOMM_LINK_NONE)
            path = fabric;
        if (path.kind == DSCOMM_LINK_NONE)
            dsc_topo_tree_path(topo, a, b, &path);
        measured_path(topo, a, b, &path);
    }
    path.struct_bytes = sizeof(path);
    path.p2p = p2p_of(topo, a, b);
    path.fabric_known = is_fabric_known(topo, a) && is_fabric_known(topo, b);
    *path_out = path;
    return DSCOMM_OK;
}

/* ---- the NIC of a device ---- */

static bool is_better_nic(const dscomm_topo_t *topo, int device, int nic, int best)
{
    const dscomm_topo_device_t *const a = &topo->devices[nic].pub, *const b =
                                                                       &topo->devices[best].pub;
    dscomm_topo_path_t to_a = { .struct_bytes = sizeof(to_a) },
                       to_b = { .struct_bytes = sizeof(to_b) };
    uint64_t bps_a = 0, bps_b = 0;

    if (((a->flags ^ b->flags) & DSCOMM_DEVICE_VIRTUAL) != 0)
        return (b->flags & DSCOMM_DEVICE_VIRTUAL) != 0;
    if (dscomm_topo_path(topo, device, nic, &to_a) < 0 ||
        dscomm_topo_path(topo, device, best, &to_b) < 0)
        return false;
    if (to_a.kind != to_b.kind)
        return to_a.kind < to_b.kind;
    (void)dscomm_rate_best(&a->port, &bps_a);
    (void)dscomm_rate_best(&b->port, &bps_b);
    return bps_a > bps_b;
}

int dscomm_topo_nic_for(const dscomm_topo_t *topo, int device)
{
    int best = -1;

    if (device < 0 || (size_t)device >= topo->n_devices)
        return -1;
    for (int i = 0; i < (int)topo->n_devices; i++) {
        if (topo->devices[i].pub.kind != DSCOMM_DEVICE_NIC ||
            (topo->devices[i].pub.flags & DSCOMM_DEVICE_DOWN) != 0 ||
            dsc_topo_host_of(topo, i) != dsc_topo_host_of(topo, device))
            continue;
        if (best < 0 || is_better_nic(topo, device, i, best))
            best = i;
    }
    return best;
}
