/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine in eight lines: how many GPUs and NICs, how GPUs are joined, and the rates that bound a
 * collective. Where sources leave something open, so does the line.
 */
#include "topo/topo_internal.h"

#include <string.h>

enum { GPUS_MAX = 256, GROUPS_MAX = 16 };

struct summary {
    const dscomm_topo_t *topo;
    FILE *out;
    int gpus[GPUS_MAX];                   /* the first of them */
    int n_gpus, n_gpus_by_class, n_cards; /* all; n_cards: devices that hold parts */
    int n_unclassed;
};

/* Equal values and how often they come. */
struct groups {
    uint64_t value[GROUPS_MAX]; /* 0: unknown */
    int count[GROUPS_MAX];
    int n;
};

static void count_value(struct groups *groups, uint64_t value)
{
    int i = 0;

    while (i < groups->n && groups->value[i] != value)
        i++;
    if (i == GROUPS_MAX)
        return;
    groups->value[i] = value;
    groups->count[i]++;
    groups->n += i == groups->n;
}

static void count_devices(struct summary *sum)
{
    for (int i = 0; i < (int)sum->topo->n_devices; i++) {
        const struct dsc_topo_device *const dev = &sum->topo->devices[i];

        sum->n_unclassed += (dev->pub.flags & DSCOMM_DEVICE_UNCLASSED) != 0;
        if (dev->pub.kind != DSCOMM_DEVICE_GPU)
            continue;
        if (sum->n_gpus < GPUS_MAX)
            sum->gpus[sum->n_gpus] = i;
        sum->n_gpus++;
        sum->n_gpus_by_class += (dev->pub.flags & DSCOMM_DEVICE_BY_CLASS) != 0;
        sum->n_cards +=
            dev->n_parts == 1 || i == 0 || sum->topo->devices[i - 1].pub.parent != dev->pub.parent;
    }
}

static void print_gpus(const struct summary *sum)
{
    if (sum->n_gpus == 0 && sum->n_unclassed > 0)
        (void)fprintf(sum->out, "  gpus        unknown (none stated, %d devices without a class)\n",
                      sum->n_unclassed);
    else if (sum->n_cards != sum->n_gpus)
        (void)fprintf(sum->out, "  gpus        %d on %d devices\n", sum->n_gpus, sum->n_cards);
    else
        (void)fprintf(sum->out, "  gpus        %d%s\n", sum->n_gpus,
                      sum->n_gpus_by_class > 0 ? " (by class)" : "");
}

static void print_cpus(const struct summary *sum)
{
    int n = 0, n_unnumbered = 0;

    for (size_t i = 0; i < sum->topo->n_devices; i++) {
        const dscomm_topo_device_t *const pub = &sum->topo->devices[i].pub;

        if (pub->kind != DSCOMM_DEVICE_NUMA)
            continue;
        n++;
        n_unnumbered += pub->numa == DSCOMM_TOPO_UNKNOWN;
    }
    (void)fprintf(sum->out, "  cpus        %d%s\n", n, n_unnumbered > 0 ? " (no number)" : "");
}

/* ---- fabric ---- */

struct fabric {
    int links_min, links_max; /* of a GPU */
    int peers_min, peers_max; /* GPUs reached directly or through a switch */
    bool is_unknown, is_virtual, has_switch;
    dscomm_link_kind_t kind;
    struct groups rates; /* of pairs */
};

static void count_peers(const struct summary *sum, int i, struct fabric *fabric)
{
    int n_peers = 0;

    for (int k = 0; k < sum->n_gpus; k++) {
        dscomm_topo_path_t path = { .struct_bytes = sizeof(path) };
        uint64_t bps = 0;

        if (k == i || dscomm_topo_path(sum->topo, sum->gpus[i], sum->gpus[k], &path) < 0 ||
            (path.kind != DSCOMM_LINK_NVLINK && path.kind != DSCOMM_LINK_XGMI))
            continue;
        n_peers++;
        fabric->kind = path.kind;
        (void)dscomm_rate_best(&path.rate, &bps);
        if (i < k)
            count_value(&fabric->rates, bps);
    }
    fabric->peers_min = i == 0 || n_peers < fabric->peers_min ? n_peers : fabric->peers_min;
    fabric->peers_max = n_peers > fabric->peers_max ? n_peers : fabric->peers_max;
}

static void look_at_fabric(const struct summary *sum, struct fabric *fabric)
{
    for (int i = 0; i < sum->n_gpus; i++) {
        const int links = sum->topo->devices[sum->gpus[i]].pub.fabric_links;

        fabric->is_unknown |= links == DSCOMM_TOPO_UNKNOWN;
        fabric->links_min = i == 0 || links < fabric->links_min ? links : fabric->links_min;
        fabric->links_max = links > fabric->links_max ? links : fabric->links_max;
        count_peers(sum, i, fabric);
    }
    for (size_t i = 0; i < sum->topo->n_devices; i++) {
        if (sum->topo->devices[i].pub.kind != DSCOMM_DEVICE_FABRIC)
            continue;
        fabric->has_switch = true;
        fabric->is_virtual |= dsc_topo_bus_is_virtual(sum->topo->devices[i].pub.bus);
    }
}

static const char *shape_of(const struct summary *sum, const struct fabric *fabric)
{
    if (fabric->has_switch)
        return fabric->is_virtual ? "switch (virtual id)" : "switch";
    if (fabric->peers_max == 0)
        return "other ends not listed";
    if (fabric->peers_min == 1 && fabric->peers_max == 1)
        return "pairs";
    return fabric->peers_min == sum->n_gpus - 1 ? "all pairs" : "partial mesh";
}

/* One GPU behind a switch has no pair here, but its rate is that of any. */
static uint64_t lone_rate(const struct summary *sum)
{
    uint64_t total = 0, bps = 0;

    for (size_t i = 0; i < sum->topo->n_links; i++)
        if (sum->topo->devices[sum->topo->links[i].b].pub.kind == DSCOMM_DEVICE_FABRIC &&
            dscomm_rate_best(&sum->topo->links[i].rate, &bps) != 0)
            total += bps;
    return total;
}

static void print_groups(FILE *out, const struct groups *groups, double unit, const char *unit_name)
{
    for (int i = 0; i < groups->n; i++) {
        (void)fprintf(out, "%s%d x ", i > 0 ? ", " : "", groups->count[i]);
        if (groups->value[i] > 0)
            (void)fprintf(out, "%.4g %s", (double)groups->value[i] / unit, unit_name);
        else
            (void)fprintf(out, "unknown");
    }
}

static void print_fabric(const struct summary *sum)
{
    struct fabric fabric = { .kind = DSCOMM_LINK_NVLINK };

    if (sum->n_gpus == 0 || sum->n_gpus > GPUS_MAX) {
        (void)fprintf(sum->out, "  fabric      %s\n",
                      sum->n_gpus > 0        ? "not summed up: over 256 GPUs"
                      : sum->n_unclassed > 0 ? "unknown"
                                             : "none");
        return;
    }
    look_at_fabric(sum, &fabric);
    if (fabric.is_unknown || fabric.links_max == 0) {
        (void)fprintf(sum->out, "  fabric      %s\n", fabric.is_unknown ? "unknown" : "none");
        return;
    }
    (void)fprintf(sum->out, "  fabric      %s, ", dsc_topo_link_name(fabric.kind));
    if (fabric.links_min != fabric.links_max)
        (void)fprintf(sum->out, "%d to ", fabric.links_min);
    (void)fprintf(sum->out, "%d links per GPU, %s, %d of %d peers\n", fabric.links_max,
                  shape_of(sum, &fabric), fabric.peers_max, sum->n_gpus - 1);
    if (fabric.rates.n == 0 && fabric.has_switch)
        count_value(&fabric.rates, lone_rate(sum));
    (void)fprintf(sum->out, "  pair        ");
    print_groups(sum->out, &fabric.rates, 1e9, "GB/s");
    (void)fprintf(sum->out, "%s\n", fabric.rates.n == 0 ? "none" : "");
}

static void print_c2c(const struct summary *sum)
{
    struct groups rates = { 0 };
    uint64_t bps;

    for (size_t i = 0; i < sum->topo->n_links; i++)
        if (sum->topo->links[i].kind == DSCOMM_LINK_C2C)
            count_value(&rates, dscomm_rate_best(&sum->topo->links[i].rate, &bps) != 0 ? bps : 0);
    if (rates.n == 0)
        return;
    (void)fprintf(sum->out, "  gpu to cpu  c2c ");
    print_groups(sum->out, &rates, 1e9, "GB/s");
    (void)fputc('\n', sum->out);
}

/* ---- PCIe, network, CPUs ---- */

/* A GPU, or where there are none a device of unknown kind. */
static bool is_end_of_pcie(const struct summary *sum, const dscomm_topo_device_t *pub)
{
    return sum->n_gpus > 0 ? pub->kind == DSCOMM_DEVICE_GPU
                           : (pub->flags & DSCOMM_DEVICE_UNCLASSED) != 0;
}

static int cpu_above(const dscomm_topo_t *topo, int device)
{
    int top = topo->devices[device].pub.parent;

    while (top >= 0 && topo->devices[top].pub.kind != DSCOMM_DEVICE_NUMA &&
           topo->devices[top].pub.parent >= 0)
        top = topo->devices[top].pub.parent;
    return top;
}

/* The slowest way to a CPU. */
static void print_pcie(const struct summary *sum)
{
    dscomm_rate_t slowest = { 0 };
    uint64_t least = 0, bps = 0;
    char text[DSC_TOPO_RATE_BYTES];

    for (int i = 0; i < (int)sum->topo->n_devices; i++) {
        const int top = cpu_above(sum->topo, i);
        dscomm_topo_path_t path = { 0 };

        if (!is_end_of_pcie(sum, &sum->topo->devices[i].pub) || top < 0)
            continue;
        dsc_topo_tree_path(sum->topo, i, top, &path);
        if (dscomm_rate_best(&path.rate, &bps) == 0 || (least > 0 && bps >= least))
            continue;
        slowest = path.rate;
        least = bps;
    }
    (void)fprintf(sum->out, "  pcie        %s%s\n", dsc_topo_rate_text(&slowest, text),
                  sum->n_gpus == 0 && least > 0 ? " (devices without a class)" : "");
}

static void print_nics(const struct summary *sum)
{
    struct groups real = { 0 }, virtual = { 0 };
    int n = 0, n_by_class = 0, n_virtual = 0;

    for (size_t i = 0; i < sum->topo->n_devices; i++) {
        const dscomm_topo_device_t *const pub = &sum->topo->devices[i].pub;
        const bool is_virtual = (pub->flags & DSCOMM_DEVICE_VIRTUAL) != 0;
        uint64_t bps = 0;

        if (pub->kind != DSCOMM_DEVICE_NIC)
            continue;
        n++;
        n_virtual += is_virtual;
        n_by_class += (pub->flags & DSCOMM_DEVICE_BY_CLASS) != 0;
        (void)dscomm_rate_best(&pub->port, &bps);
        count_value(is_virtual ? &virtual : &real, bps);
    }
    if (n == 0 && sum->n_unclassed > 0) {
        (void)fprintf(sum->out, "  nics        unknown\n");
        return;
    }
    (void)fprintf(sum->out, "  nics        %d%s%s", n, n_by_class > 0 ? " (by class)" : "",
                  real.n > 0 ? ": " : "");
    print_groups(sum->out, &real, 0.125e9, "Gbit/s");
    if (n_virtual > 0)
        (void)fprintf(sum->out, "; virtual: ");
    print_groups(sum->out, &virtual, 0.125e9, "Gbit/s");
    (void)fputc('\n', sum->out);
}

/* Ports of one card share its connector. */
static void print_cards(const struct summary *sum)
{
    for (int i = 0; i < (int)sum->topo->n_devices; i++) {
        const struct dsc_topo_device *const dev = &sum->topo->devices[i];
        const dscomm_rate_t *const up =
            dev->is_inside ? &sum->topo->devices[dev->pub.parent].pub.up : &dev->pub.up;
        int n_ports = 0;
        uint64_t bps;

        if (dev->pub.kind != DSCOMM_DEVICE_NIC || dev->pub.card != i)
            continue;
        for (size_t k = 0; k < sum->topo->n_devices; k++)
            n_ports += sum->topo->devices[k].pub.kind == DSCOMM_DEVICE_NIC &&
                       sum->topo->devices[k].pub.card == i;
        (void)fprintf(sum->out, "  card        %s: %d ports share PCIe of ", dev->pub.bus, n_ports);
        if (dscomm_rate_best(up, &bps) != 0)
            (void)fprintf(sum->out, "%.4g Gbit/s\n", (double)bps / 0.125e9);
        else
            (void)fprintf(sum->out, "unknown rate\n");
    }
}

static void print_cpu_to_cpu(const struct summary *sum)
{
    int first = -1, second = -1;
    dscomm_topo_path_t path = { .struct_bytes = sizeof(path) };
    char text[DSC_TOPO_RATE_BYTES];

    for (int i = 0; i < (int)sum->topo->n_devices; i++) {
        if (sum->topo->devices[i].pub.kind != DSCOMM_DEVICE_NUMA)
            continue;
        if (first < 0)
            first = i;
        else if (second < 0 &&
                 sum->topo->devices[i].pub.parent == sum->topo->devices[first].pub.parent)
            second = i;
    }
    if (second < 0 || dscomm_topo_path(sum->topo, first, second, &path) < 0)
        return;
    (void)fprintf(sum->out, "  cpu to cpu  %s\n", dsc_topo_rate_text(&path.rate, text));
}

void dsc_topo_write_summary(const dscomm_topo_t *topo, FILE *out)
{
    struct summary sum = { .topo = topo, .out = out };

    count_devices(&sum);
    (void)fprintf(out, "summary\n");
    print_gpus(&sum);
    print_cpus(&sum);
    print_fabric(&sum);
    print_c2c(&sum);
    print_pcie(&sum);
    print_nics(&sum);
    print_cards(&sum);
    print_cpu_to_cpu(&sum);
}
