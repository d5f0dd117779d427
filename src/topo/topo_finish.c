/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What follows from what the readers stated, the same for all of them: links of fabrics
 * (topo_fabric.c) and PCIe connectors get their rates, ports of one card find each other, and what
 * cannot be right is marked. Runs again after more was added.
 */
#include "topo/topo_internal.h"

#include <string.h>

#define IMPLAUSIBLE_FACTOR 4

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
        if (dev->pcie_gen == 1 && dsc_topo_holds_gpu(topo, i)) {
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
    DSC_TRY(dsc_topo_join_fabric(topo));
    rate_pcie(topo);
    judge_pcie(topo);
    find_cards(topo);
    judge_nics(topo);
    note_missing(topo);
    return DSCOMM_OK;
}
