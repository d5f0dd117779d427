/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The topology for people: a tree of what is where, the links beside it, and what was odd about the
 * sources. A PCI function that only holds one device is shown as that device.
 */
#include "topo/topo_internal.h"

#include <errno.h>
#include <string.h>

const char *dsc_topo_link_name(dscomm_link_kind_t kind)
{
    static const char *const names[] = { "none", "nvlink", "xgmi", "c2c", "pix",
                                         "pxb",  "phb",    "node", "sys" };

    return (size_t)kind < DSC_ARRAY_LEN(names) ? names[kind] : "?";
}

const char *dsc_topo_label(const dscomm_topo_t *topo, int device, char buf[DSC_TOPO_LABEL_BYTES])
{
    static const char *const kinds[] = { "host", "numa", "pci", "gpu", "nic", "switch", "device" };
    const dscomm_topo_device_t *const pub = &topo->devices[device].pub;
    const char *const kind = kinds[pub->kind];

    if (pub->kind == DSCOMM_DEVICE_GPU || pub->kind == DSCOMM_DEVICE_HOST)
        (void)snprintf(buf, DSC_TOPO_LABEL_BYTES, "%s%d", kind, dsc_topo_ordinal(topo, device));
    else if (pub->kind == DSCOMM_DEVICE_NIC)
        (void)snprintf(buf, DSC_TOPO_LABEL_BYTES, "nic%d%s%s", dsc_topo_ordinal(topo, device),
                       pub->name[0] != '\0' ? " " : "", pub->name);
    else if (pub->kind == DSCOMM_DEVICE_NUMA && pub->numa == DSCOMM_TOPO_UNKNOWN)
        (void)snprintf(buf, DSC_TOPO_LABEL_BYTES, "numa ?");
    else if (pub->kind == DSCOMM_DEVICE_NUMA)
        (void)snprintf(buf, DSC_TOPO_LABEL_BYTES, "numa %d", pub->numa);
    else
        (void)snprintf(buf, DSC_TOPO_LABEL_BYTES, "%s %s", kind, pub->bus);
    return buf;
}

const char *dsc_topo_rate_text(const dscomm_rate_t *rate, char buf[DSC_TOPO_RATE_BYTES])
{
    const uint32_t marks = rate->marks;
    uint64_t bps;

    if (dscomm_rate_best(rate, &bps) == 0) {
        (void)snprintf(buf, DSC_TOPO_RATE_BYTES, "unknown");
        return buf;
    }
    (void)snprintf(buf, DSC_TOPO_RATE_BYTES, "%s%.4g GB/s%s%s%s",
                   (marks & DSCOMM_RATE_PARTIAL) != 0 ? "at most " : "", (double)bps / 1e9,
                   (marks & DSCOMM_RATE_MEASURED) != 0 ? " measured" : "",
                   (marks & DSCOMM_RATE_IMPLAUSIBLE) != 0 ? " declared, implausible" : "",
                   (marks & DSCOMM_RATE_MAXIMUM) != 0 ? " maximum, slower now" : "");
    return buf;
}

/* ---- tree ---- */

static void print_number(FILE *out, const char *name, int number)
{
    if (number != DSCOMM_TOPO_UNKNOWN)
        (void)fprintf(out, "%s %d", name, number);
}

static void print_port(FILE *out, const dscomm_topo_device_t *pub)
{
    uint64_t bps;

    if (dscomm_rate_best(&pub->port, &bps) != 0)
        (void)fprintf(out, ", port %.6g Gbit/s", (double)bps / 0.125e9);
    else
        (void)fprintf(out, ", port unknown");
    if ((pub->flags & DSCOMM_DEVICE_VIRTUAL) != 0)
        (void)fprintf(out, " (virtual)");
    if ((pub->flags & DSCOMM_DEVICE_DOWN) != 0)
        (void)fprintf(out, " (down)");
    if (pub->card >= 0)
        (void)fprintf(out, ", shares its card's PCIe");
}

static void print_line(const dscomm_topo_t *topo, int device, const dscomm_rate_t *up, int depth,
                       FILE *out)
{
    const dscomm_topo_device_t *const pub = &topo->devices[device].pub;
    char label[DSC_TOPO_LABEL_BYTES], rate[DSC_TOPO_RATE_BYTES];

    (void)fprintf(out, "%*s%s", 2 * depth, "", dsc_topo_label(topo, device, label));
    if (pub->kind == DSCOMM_DEVICE_GPU || pub->kind == DSCOMM_DEVICE_NIC) {
        if (pub->bus[0] != '\0')
            (void)fprintf(out, " %s", pub->bus);
        print_number(out, " dev", pub->dev);
        print_number(out, " rank", pub->rank);
        print_number(out, " sm", pub->sm);
    }
    if (pub->bus[0] != '\0' && pub->kind != DSCOMM_DEVICE_FABRIC)
        (void)fprintf(out, ", pcie %s", dsc_topo_rate_text(up, rate));
    if (pub->kind == DSCOMM_DEVICE_NIC)
        print_port(out, pub);
    if (pub->kind == DSCOMM_DEVICE_GPU)
        print_number(out, ", fabric links", pub->fabric_links);
    if (topo->devices[device].fabric_link_bps > 0)
        (void)fprintf(out, " of %.4g GB/s", (double)topo->devices[device].fabric_link_bps / 1e9);
    if ((pub->flags & DSCOMM_DEVICE_BY_CLASS) != 0)
        (void)fprintf(out, " (by class)");
    (void)fputc('\n', out);
}

/* The only device in a PCI function, or -1. */
static int only_inside(const dscomm_topo_t *topo, int device)
{
    int found = -1;

    for (int i = 0; i < (int)topo->n_devices; i++) {
        if (topo->devices[i].pub.parent != device)
            continue;
        if (found >= 0 || !topo->devices[i].is_inside)
            return -1;
        found = i;
    }
    return found;
}

static void print_tree(const dscomm_topo_t *topo, int device, int depth, FILE *out)
{
    const int inside = only_inside(topo, device);

    if (topo->devices[device].pub.kind == DSCOMM_DEVICE_FABRIC)
        return;
    print_line(topo, inside >= 0 ? inside : device, &topo->devices[device].pub.up, depth, out);
    for (int i = 0; i < (int)topo->n_devices && inside < 0; i++)
        if (topo->devices[i].pub.parent == device)
            print_tree(topo, i, depth + 1, out);
}

static void print_links(const dscomm_topo_t *topo, FILE *out)
{
    char a[DSC_TOPO_LABEL_BYTES], b[DSC_TOPO_LABEL_BYTES], rate[DSC_TOPO_RATE_BYTES];

    for (size_t i = 0; i < topo->n_links; i++) {
        const dscomm_topo_link_t *const link = &topo->links[i];

        if (i == 0)
            (void)fprintf(out, "links\n");
        (void)fprintf(out, "  %s - %s: %s", dsc_topo_label(topo, link->a, a),
                      dsc_topo_label(topo, link->b, b),
                      link->kind == DSCOMM_LINK_NONE ? "path" : dsc_topo_link_name(link->kind));
        if (link->count > 0)
            (void)fprintf(out, " x%d", link->count);
        (void)fprintf(out, ", %s\n", dsc_topo_rate_text(&link->rate, rate));
    }
}

static void print_p2p(const dscomm_topo_t *topo, FILE *out)
{
    char a[DSC_TOPO_LABEL_BYTES], b[DSC_TOPO_LABEL_BYTES];

    for (size_t i = 0; i < topo->n_p2p; i++)
        (void)fprintf(out, "%s  %s to %s: peer access %s\n", i == 0 ? "peer access\n" : "",
                      dsc_topo_label(topo, topo->p2p[i].a, a),
                      dsc_topo_label(topo, topo->p2p[i].b, b),
                      topo->p2p[i].allowed != 0 ? "yes" : "no");
}

static void write_tree(const dscomm_topo_t *topo, FILE *out)
{
    (void)fprintf(out, "rates are %s, per direction\n",
                  topo->config.rates == DSCOMM_RATES_NCCL ? "NCCL's figures"
                                                          : "physical: what the links carry");
    for (int i = 0; i < (int)topo->n_devices; i++)
        if (topo->devices[i].pub.parent < 0)
            print_tree(topo, i, 0, out);
    print_links(topo, out);
    print_p2p(topo, out);
    dsc_topo_write_summary(topo, out);
    for (int i = 0; i < topo->n_notices; i++)
        (void)fprintf(out, "%s  %s\n", i == 0 ? "notices\n" : "", topo->notices[i]);
}

dscomm_status_t dscomm_topo_print(const dscomm_topo_t *topo, dscomm_topo_format_t format, FILE *out)
{
    static void (*const writers[])(const dscomm_topo_t *, FILE *) = {
        [DSCOMM_TOPO_TREE] = write_tree,
        [DSCOMM_TOPO_DOT] = dsc_topo_write_dot,
        [DSCOMM_TOPO_SVG] = dsc_topo_write_svg,
    };

    if ((size_t)format >= DSC_ARRAY_LEN(writers))
        return dsc_fail(DSCOMM_ERR_INVALID, "topology format %d, allowed: 0 to 2", (int)format);
    writers[format](topo, out);
    if (fflush(out) != 0 || ferror(out) != 0)
        return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "writing a topology");
    return DSCOMM_OK;
}
