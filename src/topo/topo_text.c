/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plain text: a machine by hand, or what is known better about one that was read elsewhere. One
 * statement per line, # begins a comment; docs/topology.md has the whole grammar.
 *
 *     gpu NAME [numa N] [bus ID] [sm N]        link A B KIND [count N] [rate GB/s]
 *     nic NAME [numa N] [bus ID] [gbit N]      pcie A rate GB/s
 *                                              measured A B GB/s
 */
#include "topo/topo_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 12, WORD_BYTES = 64 };

struct statement {
    dscomm_topo_t *topo;
    const char *source;
    int line, n_words;
    char words[WORDS_MAX][WORD_BYTES];
};

static dscomm_status_t bad(const struct statement *st, const char *word, const char *allowed)
{
    return dsc_fail(DSCOMM_ERR_CORRUPT, "%s:%d: \"%s\", expected %s", st->source, st->line, word,
                    allowed);
}

/* Word of a position; empty behind the last. */
static const char *word_at(const struct statement *st, int i)
{
    return i < st->n_words ? st->words[i] : "";
}

static dscomm_status_t get_device(const struct statement *st, int i, int *device_out)
{
    *device_out = dscomm_topo_find(st->topo, word_at(st, i));
    return *device_out >= 0 ? DSCOMM_OK : bad(st, word_at(st, i), "a device of the topology");
}

/* Gigabytes (or gigabits, for another scale) per second, above 0. */
static dscomm_status_t get_rate(const struct statement *st, int i, double scale, uint64_t *bps_out)
{
    char *end;
    const double value = strtod(word_at(st, i), &end);

    if (end == word_at(st, i) || *end != '\0' || !isfinite(value) || value * scale < 1 ||
        value > 1e6)
        return bad(st, word_at(st, i), "a rate above 0, at most 1000000");
    *bps_out = (uint64_t)(value * scale + 0.5);
    return DSCOMM_OK;
}

static dscomm_status_t get_int(const struct statement *st, int i, int min, int max, int *out)
{
    char allowed[64];
    int64_t value;

    if (dsc_topo_parse_int(word_at(st, i), min, max, &value)) {
        *out = (int)value;
        return DSCOMM_OK;
    }
    (void)snprintf(allowed, sizeof(allowed), "a number from %d to %d", min, max);
    return bad(st, word_at(st, i), allowed);
}

/* ---- devices ---- */

static dscomm_status_t take_property(const struct statement *st, int i, int device)
{
    const char *const key = word_at(st, i);
    struct dsc_topo_device *const dev = &st->topo->devices[device];
    uint64_t bps;
    int numa;

    if (strcmp(key, "numa") == 0) {
        DSC_TRY(get_int(st, i + 1, 0, 4096, &dev->pub.numa));
        numa = dev->pub.numa;
        DSC_TRY(dsc_topo_numa(st->topo, dsc_topo_host_of(st->topo, device), numa, &numa));
        st->topo->devices[device].pub.parent = numa;
        return DSCOMM_OK;
    }
    if (strcmp(key, "bus") == 0)
        return dsc_topo_bus_normalize(word_at(st, i + 1), dev->pub.bus)
                   ? DSCOMM_OK
                   : bad(st, word_at(st, i + 1), "a bus id such as 0000:3b:00.0");
    if (strcmp(key, "sm") == 0 && dev->pub.kind == DSCOMM_DEVICE_GPU)
        return get_int(st, i + 1, 30, 999, &dev->pub.sm);
    if (strcmp(key, "gbit") == 0 && dev->pub.kind == DSCOMM_DEVICE_NIC) {
        DSC_TRY(get_rate(st, i + 1, 0.125e9, &bps));
        dsc_topo_rate_declare(&dev->pub.port, bps);
        dev->pub.port.marks &= ~(uint32_t)DSCOMM_RATE_IMPLAUSIBLE;
        return DSCOMM_OK;
    }
    return bad(st, key,
               dev->pub.kind == DSCOMM_DEVICE_GPU ? "numa, bus or sm" : "numa, bus or gbit");
}

/* A new device, or more about one that is there. */
static dscomm_status_t take_device(const struct statement *st, dscomm_device_kind_t kind)
{
    dscomm_topo_t *const topo = st->topo;
    int device = dscomm_topo_find(topo, word_at(st, 1));

    if (word_at(st, 1)[0] == '\0')
        return bad(st, "", "a name");
    if (device >= 0 && topo->devices[device].pub.kind != kind)
        return bad(st, word_at(st, 1), "a name that no other device has");
    if (device < 0) {
        DSC_TRY(dsc_topo_device_add(topo, kind, 0, &device));
        memcpy(topo->devices[device].pub.name, word_at(st, 1), WORD_BYTES);
    }
    for (int i = 2; i < st->n_words; i += 2)
        DSC_TRY(take_property(st, i, device));
    return DSCOMM_OK;
}

static dscomm_status_t on_gpu(const struct statement *st)
{
    return take_device(st, DSCOMM_DEVICE_GPU);
}

static dscomm_status_t on_nic(const struct statement *st)
{
    return take_device(st, DSCOMM_DEVICE_NIC);
}

/* ---- links ---- */

static dscomm_status_t get_kind(const struct statement *st, int i, dscomm_link_kind_t *kind_out)
{
    for (int kind = DSCOMM_LINK_NVLINK; kind <= DSCOMM_LINK_SYS; kind++) {
        if (strcmp(word_at(st, i), dsc_topo_link_name((dscomm_link_kind_t)kind)) == 0) {
            *kind_out = (dscomm_link_kind_t)kind;
            return DSCOMM_OK;
        }
    }
    return bad(st, word_at(st, i), "nvlink xgmi c2c pix pxb phb node or sys");
}

/* The link of a pair and kind, made if it is new. */
static dscomm_status_t get_link(const struct statement *st, dscomm_link_kind_t kind,
                                dscomm_topo_link_t **link_out)
{
    dscomm_topo_t *const topo = st->topo;
    int a, b;

    DSC_TRY(get_device(st, 1, &a));
    DSC_TRY(get_device(st, 2, &b));
    if (a == b)
        return bad(st, word_at(st, 2), "two different devices");
    for (size_t i = 0; i < topo->n_links; i++) {
        dscomm_topo_link_t *const link = &topo->links[i];

        if (link->kind != kind ||
            !((link->a == a && link->b == b) || (link->a == b && link->b == a)))
            continue;
        *link_out = link;
        return DSCOMM_OK;
    }
    return dsc_topo_link_add(topo, a, b, kind, 0, link_out);
}

static dscomm_status_t on_link(const struct statement *st)
{
    dscomm_link_kind_t kind = DSCOMM_LINK_NVLINK; /* get_kind() sets it */
    dscomm_topo_link_t *link;
    uint64_t bps = 0;
    int count = 0;

    DSC_TRY(get_kind(st, 3, &kind));
    for (int i = 4; i < st->n_words; i += 2) {
        if (strcmp(st->words[i], "count") == 0)
            DSC_TRY(get_int(st, i + 1, 1, 1024, &count));
        else if (strcmp(st->words[i], "rate") == 0)
            DSC_TRY(get_rate(st, i + 1, 1e9, &bps));
        else
            return bad(st, st->words[i], "count or rate");
    }
    DSC_TRY(get_link(st, kind, &link));
    link->count = bps > 0 ? 0 : count; /* a stated rate is that of all, whatever their number */
    dsc_topo_rate_declare(&link->rate, bps);
    if (kind != DSCOMM_LINK_NVLINK && kind != DSCOMM_LINK_XGMI)
        return DSCOMM_OK;
    for (int end = 0; end < 2; end++) {
        dscomm_topo_device_t *const pub = &st->topo->devices[end == 0 ? link->a : link->b].pub;

        if (pub->fabric_links == DSCOMM_TOPO_UNKNOWN)
            pub->fabric_links = 0;
        pub->fabric_links = pub->fabric_links > 1024 ? 1024 : pub->fabric_links + count;
    }
    return DSCOMM_OK;
}

static dscomm_status_t on_pcie(const struct statement *st)
{
    struct dsc_topo_device *dev;
    uint64_t bps;
    int device;

    DSC_TRY(get_device(st, 1, &device));
    if (strcmp(word_at(st, 2), "rate") != 0)
        return bad(st, word_at(st, 2), "rate");
    DSC_TRY(get_rate(st, 3, 1e9, &bps));
    dev = &st->topo->devices[device];
    if (dev->is_inside)
        dev = &st->topo->devices[dev->pub.parent];
    dev->pcie_gen = dev->pcie_width = 0; /* what was read before no longer counts */
    dev->pub.up.marks = 0;
    dsc_topo_rate_declare(&dev->pub.up, bps);
    return DSCOMM_OK;
}

static dscomm_status_t on_measured(const struct statement *st)
{
    dscomm_topo_link_t *link;
    uint64_t bps;

    DSC_TRY(get_rate(st, 3, 1e9, &bps));
    DSC_TRY(get_link(st, DSCOMM_LINK_NONE, &link));
    link->rate.measured = bps;
    link->rate.marks |= DSCOMM_RATE_MEASURED;
    return DSCOMM_OK;
}

/* ---- lines ---- */

static const struct {
    const char *name;
    dscomm_status_t (*take)(const struct statement *st);
    int min_words, max_words;
} statements[] = {
    { "gpu", on_gpu, 2, 8 },   { "nic", on_nic, 2, 8 },           { "link", on_link, 4, 8 },
    { "pcie", on_pcie, 4, 4 }, { "measured", on_measured, 4, 4 },
};

static dscomm_status_t take_statement(const struct statement *st)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(statements); i++) {
        if (strcmp(statements[i].name, st->words[0]) != 0)
            continue;
        if (st->n_words < statements[i].min_words || st->n_words > statements[i].max_words ||
            (st->n_words - statements[i].min_words) % 2 != 0)
            return bad(st, st->words[0], "another number of words behind it");
        return statements[i].take(st);
    }
    return bad(st, st->words[0], "gpu, nic, link, pcie or measured");
}

static dscomm_status_t split_words(struct statement *st, const char *line, size_t len)
{
    char scratch[WORD_BYTES];

    st->n_words = 0;
    for (size_t at = 0; at < len;) {
        const size_t blanks = strspn(line + at, " \t\r");
        const size_t word = strcspn(line + at + blanks, " \t\r\n#");

        at += blanks;
        if (at >= len || line[at] == '#')
            return DSCOMM_OK;
        if (word == 0)
            return DSCOMM_OK;
        dsc_topo_copy(scratch, WORD_BYTES, line + at, word);
        if (st->n_words == WORDS_MAX || word >= WORD_BYTES)
            return bad(st, scratch, "at most 12 words of 63 characters");
        memcpy(st->words[st->n_words++], scratch, WORD_BYTES);
        at += word;
    }
    return DSCOMM_OK;
}

dscomm_status_t dsc_topo_read_text(dscomm_topo_t *topo, const struct dsc_topo_source *src)
{
    struct statement st = { .topo = topo, .source = src->name };
    int host;

    if (topo->n_devices == 0)
        DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_HOST, -1, &host));
    for (const char *at = src->text; *at != '\0';) {
        const size_t len = strcspn(at, "\n");

        st.line++;
        DSC_TRY(split_words(&st, at, len));
        if (st.n_words > 0)
            DSC_TRY(take_statement(&st));
        at += len + (at[len] == '\n');
    }
    if (topo->n_devices == 1)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "%s: no device in it", src->name);
    return DSCOMM_OK;
}
