/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What links carry, one table per kind of link: what the link's payload is (physical) beside what
 * NCCL, for xGMI RCCL, computes with. Rows are generations that have been seen; others are unknown
 * rather than like their neighbours.
 */
#include "topo/topo_internal.h"

#include <stdlib.h>
#include <string.h>

struct rate_row {
    int first, last; /* generations */
    uint64_t bps[2]; /* by dscomm_rate_kind_t; 0: unknown */
};

/* Per lane. Gen 1 and 2 code 8 bits as 10, 3 to 5 128 as 130, 6 sends 236 of 256 bytes' worth. */
static const struct rate_row pcie_rows[] = {
    { 1, 1, { 250000000, 187500000 } },   { 2, 2, { 500000000, 375000000 } },
    { 3, 3, { 984615384, 750000000 } },   { 4, 4, { 1969230769, 1500000000 } },
    { 5, 5, { 3938461538, 3000000000 } }, { 6, 6, { 7375000000, 6000000000 } },
};

/* Per link, by compute capability. */
static const struct rate_row nvlink_rows[] = {
    { 60, 69, { 20000000000, 18000000000 } }, { 70, 74, { 25000000000, 20000000000 } },
    { 80, 80, { 25000000000, 20000000000 } }, { 86, 86, { 14062500000, 12000000000 } },
    { 90, 99, { 25000000000, 20600000000 } }, { 100, 119, { 50000000000, 40100000000 } },
};

/* Per link, by dsc_topo_xgmi_arch(). */
static const struct rate_row xgmi_rows[] = {
    { 9, 9, { 0, 24000000000 } },
    { 90, 90, { 0, 36000000000 } },
    { 94, 94, { 64000000000, 48000000000 } },
};

static uint64_t look_up(const struct rate_row *rows, size_t n, dscomm_rate_kind_t kind, int value)
{
    for (size_t i = 0; i < n; i++)
        if (value >= rows[i].first && value <= rows[i].last)
            return rows[i].bps[kind];
    return 0;
}

int dsc_topo_pcie_gen(const char *speed)
{
    static const double gts[] = { 2.5, 5, 8, 16, 32, 64 };
    const double number = strtod(speed, NULL);

    for (size_t i = 0; i < DSC_ARRAY_LEN(gts); i++)
        if (number > 0.99 * gts[i] && number < 1.01 * gts[i])
            return (int)i + 1;
    return 0;
}

uint64_t dsc_topo_pcie_bps(dscomm_rate_kind_t kind, int gen, int width)
{
    const uint64_t lane = look_up(pcie_rows, DSC_ARRAY_LEN(pcie_rows), kind, gen);

    return width >= 1 && width <= 32 ? lane * (uint64_t)width : 0;
}

uint64_t dsc_topo_nvlink_bps(dscomm_rate_kind_t kind, int sm)
{
    return look_up(nvlink_rows, DSC_ARRAY_LEN(nvlink_rows), kind, sm);
}

uint64_t dsc_topo_nvlink_payload(double raw_gbps)
{
    /* From the second generation on some tools print the signal's rate, others the payload's. */
    static const struct {
        double raw, payload_gbps;
    } rows[] = { { 14.062, 14.0625 }, { 20, 20 }, { 25, 25 },    { 25.781, 25 },
                 { 26.562, 25 },      { 50, 50 }, { 53.125, 50 } };

    for (size_t i = 0; i < DSC_ARRAY_LEN(rows); i++)
        if (raw_gbps > 0.999 * rows[i].raw && raw_gbps < 1.001 * rows[i].raw)
            return (uint64_t)(rows[i].payload_gbps * 1e9);
    return 0;
}

int dsc_topo_xgmi_arch(const char *gcn)
{
    static const struct {
        const char *prefix;
        int arch;
    } rows[] = { { "gfx94", 94 }, { "94", 94 }, { "gfx90a", 90 }, { "90a", 90 }, { "910", 90 },
                 { "gfx906", 9 }, { "906", 9 }, { "gfx908", 9 },  { "908", 9 } };

    for (size_t i = 0; i < DSC_ARRAY_LEN(rows); i++)
        if (strncmp(gcn, rows[i].prefix, strlen(rows[i].prefix)) == 0)
            return rows[i].arch;
    return 0;
}

uint64_t dsc_topo_xgmi_bps(dscomm_rate_kind_t kind, int arch)
{
    return look_up(xgmi_rows, DSC_ARRAY_LEN(xgmi_rows), kind, arch);
}

uint64_t dsc_topo_smp_nccl_bps(const char *arch, const char *vendor, int family, int model)
{
    static const struct rate_row intel_rows[] = { /* by model of family 6 */
                                                  { 0, 0x54, { 0, 6000000000 } },
                                                  { 0x55, 0x8e, { 0, 10000000000 } },
                                                  { 0x8f, 0xce, { 0, 22000000000 } },
                                                  { 0xcf, 0xfff, { 0, 40000000000 } }
    };

    if (strcmp(arch, "arm64") == 0 || strcmp(arch, "aarch64") == 0)
        return 6000000000;
    if (strcmp(arch, "ppc64") == 0)
        return 32000000000;
    if (strcmp(arch, "x86_64") != 0)
        return 0;
    if (strcmp(vendor, "AuthenticAMD") == 0)
        return 16000000000;
    if (strcmp(vendor, "GenuineIntel") != 0 || family != 6)
        return 0;
    return look_up(intel_rows, DSC_ARRAY_LEN(intel_rows), DSCOMM_RATES_NCCL, model);
}

void dsc_topo_rate_declare(dscomm_rate_t *rate, uint64_t bps)
{
    rate->declared = bps;
    rate->marks &= ~(uint32_t)DSCOMM_RATE_DECLARED;
    if (bps > 0)
        rate->marks |= DSCOMM_RATE_DECLARED;
}

void dsc_topo_port_declare(dscomm_topo_t *topo, int nic, int64_t mbit)
{
    dscomm_topo_device_t *const pub = &topo->devices[nic].pub;

    /* 0x7fffffff and 0xffffffff: -1 that went through other types */
    if (mbit > 0 && mbit < INT32_MAX) {
        dsc_topo_rate_declare(&pub->port, (uint64_t)mbit * 125000);
        return;
    }
    dsc_topo_rate_declare(&pub->port, 0);
    dsc_topo_note(topo, pub->name, "nic %s states no speed: unknown", pub->name);
}

bool dsc_topo_nic_is_virtual(const char *name)
{
    static const char *const prefixes[] = { "veth", "br",    "docker",  "virbr",        "cali",
                                            "tunl", "cni",   "flannel", "vxlan",        "tap",
                                            "tun",  "dummy", "lxc",     "lxd",          "cilium",
                                            "kube", "weave", "ifb",     "nodelocaldns", "ovs",
                                            "vnet", "wg",    "zt",      "tailscale" };

    for (size_t i = 0; i < DSC_ARRAY_LEN(prefixes); i++)
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return strcmp(name, "lo") == 0;
}
