/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's topology XML, and RCCL's dialect of it: files that NCCL dumps, and files by which vendors
 * of virtual machines describe theirs. Reads more than NCCL does, but says what NCCL would refuse:
 * the text is somebody's input to NCCL too.
 *
 *   system > cpu > pci (nested) > gpu > nvlink | xgmi | c2c
 *                               > nic > net
 */
#include "topo/topo_internal.h"

#include <expat.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_MAX = 64,
    NCCL_CHILDREN_MAX = 640,
    NCCL_ATTRS_MAX = 16,
    VALUE_BYTES = 255, /* NCCL refuses longer ones too */
    UNKNOWN_MAX = 8,   /* unknown names that get a notice */
};

struct reader;
typedef dscomm_status_t element_fn(struct reader *reader, const char **attrs);

/* One open element. */
struct frame {
    const char *name; /* in the table of elements */
    int device;       /* that children belong to */
    int n_children;
    int n_inside; /* devices */
    bool is_pci;
};

struct reader {
    dscomm_topo_t *topo;
    const struct dsc_topo_source *src;
    XML_Parser parser;
    dscomm_status_t st; /* of the first failure */
    struct frame stack[DEPTH_MAX];
    int depth;
    int skip; /* open elements that are skipped */
    int n_unknown;
    bool has_gpu_element, has_net_element;
};

static struct frame *top(struct reader *reader)
{
    return &reader->stack[reader->depth - 1];
}

/* The element being opened, not yet on the stack: top() is its parent. */
static struct frame *opened(struct reader *reader)
{
    return &reader->stack[reader->depth];
}

static unsigned long line_of(const struct reader *reader)
{
    return (unsigned long)XML_GetCurrentLineNumber(reader->parser);
}

/* ---- attributes ---- */

/* Value without blanks at its end; false: none, or too long to be one. */
static bool get(struct reader *reader, const char **attrs, const char *name, char buf[VALUE_BYTES])
{
    size_t len;

    while (attrs[0] != NULL && strcmp(attrs[0], name) != 0)
        attrs += 2;
    if (attrs[0] == NULL)
        return false;
    len = strlen(attrs[1]);
    if (len >= VALUE_BYTES) {
        dsc_topo_note(reader->topo, "long value",
                      "line %lu: %s has %zu characters, at most 254 (NCCL refuses it): left out",
                      line_of(reader), name, len);
        return false;
    }
    while (len > 0 && (attrs[1][len - 1] == ' ' || attrs[1][len - 1] == '\t'))
        len--;
    if (attrs[1][len] != '\0')
        dsc_topo_note(reader->topo, "value end",
                      "line %lu: value of %s ends in a blank or line break: ignored",
                      line_of(reader), name);
    dsc_topo_copy(buf, VALUE_BYTES, attrs[1], len);
    return true;
}

static int get_int(struct reader *reader, const char **attrs, const char *name, int min, int max)
{
    char buf[VALUE_BYTES];
    int64_t value;

    if (!get(reader, attrs, name, buf) || buf[0] == '\0')
        return DSCOMM_TOPO_UNKNOWN;
    if (dsc_topo_parse_int(buf, min, max, &value))
        return (int)value;
    dsc_topo_note(reader->topo, name, "line %lu: %s \"%.40s\", allowed: %d to %d: unknown",
                  line_of(reader), name, buf, min, max);
    return DSCOMM_TOPO_UNKNOWN;
}

/* "0x030200"; 0: not stated. */
static uint32_t get_hex(struct reader *reader, const char **attrs, const char *name)
{
    char buf[VALUE_BYTES];

    return get(reader, attrs, name, buf) ? (uint32_t)strtoul(buf, NULL, 16) : 0;
}

/* ---- elements ---- */

static dscomm_status_t on_system(struct reader *reader, const char **attrs)
{
    const int version = get_int(reader, attrs, "version", 0, 999);

    if (version != 1 && version != 2)
        dsc_topo_note(reader->topo, "version",
                      "version %d, known are 1 (NCCL) and 2 (RCCL): read like these",
                      version == DSCOMM_TOPO_UNKNOWN ? 0 : version);
    return DSCOMM_OK;
}

/* The host with this hash, or the one without. */
static dscomm_status_t find_host(struct reader *reader, const char *hash, int *host_out)
{
    dscomm_topo_t *const topo = reader->topo;

    for (int i = 0; i < (int)topo->n_devices; i++) {
        if (topo->devices[i].pub.kind == DSCOMM_DEVICE_HOST &&
            strcmp(topo->devices[i].host_hash, hash) == 0) {
            *host_out = i;
            return DSCOMM_OK;
        }
    }
    DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_HOST, -1, host_out));
    dsc_topo_copy(topo->devices[*host_out].host_hash, sizeof(topo->devices[0].host_hash), hash,
                  strlen(hash));
    return DSCOMM_OK;
}

static dscomm_status_t on_cpu(struct reader *reader, const char **attrs)
{
    dscomm_topo_t *const topo = reader->topo;
    char hash[VALUE_BYTES] = "", arch[VALUE_BYTES] = "", vendor[VALUE_BYTES] = "";
    int host, numa;

    (void)get(reader, attrs, "host_hash", hash);
    hash[sizeof(topo->devices[0].host_hash) - 1] = '\0';
    DSC_TRY(find_host(reader, hash, &host));
    DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_NUMA, host, &numa));

    const int number = get_int(reader, attrs, "numaid", -1, 1 << 20);

    topo->devices[numa].pub.numa = number >= 0 ? number : DSCOMM_TOPO_UNKNOWN;
    if (number < 0)
        dsc_topo_note(topo, "numaid", "a CPU states no NUMA node number: unknown");
    (void)get(reader, attrs, "arch", arch);
    (void)get(reader, attrs, "vendor", vendor);
    if (arch[0] == '\0')
        dsc_topo_note(topo, "arch",
                      "a CPU states no architecture: links between CPUs keep the default tier, "
                      "sys, at an unknown rate");
    topo->devices[numa].smp_nccl_bps =
        dsc_topo_smp_nccl_bps(arch, vendor, get_int(reader, attrs, "familyid", -1, 1 << 20),
                              get_int(reader, attrs, "modelid", -1, 1 << 20));
    opened(reader)->device = numa;
    return DSCOMM_OK;
}

static void read_pcie(struct reader *reader, const char **attrs, struct dsc_topo_device *dev)
{
    char speed[VALUE_BYTES] = "";
    const bool has_speed = get(reader, attrs, "link_speed", speed);
    const int width = get_int(reader, attrs, "link_width", 0, 32);

    dev->pcie_gen = dsc_topo_pcie_gen(speed);
    dev->pcie_width = width > 0 ? width : 0;
    if ((has_speed && dev->pcie_gen == 0) || width == 0)
        dsc_topo_note(reader->topo, "pcie unknown",
                      "%s: link_speed \"%.40s\", link_width %d: PCIe rate unknown", dev->pub.bus,
                      speed, dev->pcie_width);
}

static dscomm_status_t on_pci(struct reader *reader, const char **attrs)
{
    dscomm_topo_t *const topo = reader->topo;
    const int parent = top(reader)->device;
    char text[VALUE_BYTES] = "", bus[DSCOMM_TOPO_BUS_BYTES];
    int device;

    (void)get(reader, attrs, "busid", text);
    if (!dsc_topo_bus_normalize(text, bus))
        dsc_topo_note(topo, "busid", "line %lu: busid \"%.40s\" is not like 0000:3b:00.0",
                      line_of(reader), text);
    if (bus[0] != '\0' && dsc_topo_find_bus(topo, dsc_topo_host_of(topo, parent), bus) >= 0) {
        dsc_topo_note(topo, "duplicate",
                      "line %lu: %s is listed twice on one host: the second "
                      "is left out",
                      line_of(reader), bus);
        reader->skip = 1;
        return DSCOMM_OK;
    }
    DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_OTHER, parent, &device));

    struct dsc_topo_device *const dev = &topo->devices[device];

    memcpy(dev->pub.bus, bus, sizeof(bus));
    dev->pci_class = get_hex(reader, attrs, "class");
    dev->pci_vendor = get_hex(reader, attrs, "vendor");
    read_pcie(reader, attrs, dev);
    top(reader)->n_inside++;
    opened(reader)->device = device;
    opened(reader)->is_pci = true;
    return DSCOMM_OK;
}

/* A GPU or port is a part of its PCI device; some files hang them under the CPU. */
static dscomm_status_t add_inside(struct reader *reader, dscomm_device_kind_t kind, int *device_out)
{
    dscomm_topo_t *const topo = reader->topo;
    const int parent = top(reader)->device;

    DSC_TRY(dsc_topo_device_add(topo, kind, parent, device_out));
    top(reader)->n_inside++;
    if (topo->devices[parent].pub.kind != DSCOMM_DEVICE_NUMA) {
        topo->devices[*device_out].is_inside = true;
        memcpy(topo->devices[*device_out].pub.bus, topo->devices[parent].pub.bus,
               DSCOMM_TOPO_BUS_BYTES);
    }
    return DSCOMM_OK;
}

static dscomm_status_t on_gpu(struct reader *reader, const char **attrs)
{
    char gcn[VALUE_BYTES];
    int device;

    DSC_TRY(add_inside(reader, DSCOMM_DEVICE_GPU, &device));

    struct dsc_topo_device *const dev = &reader->topo->devices[device];

    dev->is_gpu_element = true;
    dev->pub.fabric_links = 0;
    dev->pub.dev = get_int(reader, attrs, "dev", 0, 1 << 20);
    dev->pub.rank = get_int(reader, attrs, "rank", 0, 1 << 30);
    if (get(reader, attrs, "gcn", gcn)) /* RCCL: sm is the number of compute units there */
        dev->xgmi_arch = dsc_topo_xgmi_arch(gcn);
    else
        dev->pub.sm = get_int(reader, attrs, "sm", 10, 999);
    reader->has_gpu_element = true;
    opened(reader)->device = device;
    return DSCOMM_OK;
}

static dscomm_status_t add_end(struct reader *reader, const char **attrs, dscomm_link_kind_t kind)
{
    struct dsc_topo_end end = { .gpu = top(reader)->device, .kind = kind };
    char target[VALUE_BYTES] = "";
    const int count = get_int(reader, attrs, "count", -1000000, 1000000);

    if (reader->topo->devices[end.gpu].pub.kind != DSCOMM_DEVICE_GPU)
        return DSCOMM_OK;
    end.count = count == DSCOMM_TOPO_UNKNOWN ? 0 : count;
    end.target_class = get_hex(reader, attrs, "tclass");
    (void)get(reader, attrs, "target", target);
    if (!dsc_topo_bus_normalize(target, end.target) && kind != DSCOMM_LINK_C2C) {
        dsc_topo_note(reader->topo, "target",
                      "line %lu: target \"%.40s\" is not like "
                      "0000:3b:00.0: left out",
                      line_of(reader), target);
        return DSCOMM_OK;
    }
    if (kind == DSCOMM_LINK_C2C) {
        const int mb = get_int(reader, attrs, "bw", 1, 10000000);

        if (mb != DSCOMM_TOPO_UNKNOWN && count > 0)
            end.c2c_bps = (uint64_t)mb * 1000000u * (uint64_t)count;
    }
    return dsc_topo_end_add(reader->topo, &end);
}

static dscomm_status_t on_nvlink(struct reader *reader, const char **attrs)
{
    return add_end(reader, attrs, DSCOMM_LINK_NVLINK);
}

static dscomm_status_t on_xgmi(struct reader *reader, const char **attrs)
{
    return add_end(reader, attrs, DSCOMM_LINK_XGMI);
}

static dscomm_status_t on_c2c(struct reader *reader, const char **attrs)
{
    return add_end(reader, attrs, DSCOMM_LINK_C2C);
}

static dscomm_status_t on_nic(struct reader *reader, const char **attrs)
{
    (void)reader, (void)attrs; /* only groups the ports of one card */
    return DSCOMM_OK;
}

static int find_nic(const dscomm_topo_t *topo, int host, const char *name, const char *guid)
{
    for (int i = 0; i < (int)topo->n_devices; i++) {
        const struct dsc_topo_device *const dev = &topo->devices[i];

        if (dev->pub.kind == DSCOMM_DEVICE_NIC && strcmp(dev->pub.name, name) == 0 &&
            strcmp(dev->guid, guid) == 0 && dsc_topo_host_of(topo, i) == host)
            return i;
    }
    return -1;
}

/* The same NIC below another CPU: it stays where PCI places it, else at neither. */
static void see_again(struct reader *reader, int nic, int host)
{
    struct dsc_topo_device *const dev = &reader->topo->devices[nic];

    dsc_topo_note(reader->topo, "nic twice", "nic %s is listed at several places: one device",
                  dev->pub.name);
    if (dev->is_inside)
        return;
    dev->pub.parent = host;
    dev->pub.numa = DSCOMM_TOPO_UNKNOWN;
}

static dscomm_status_t on_net(struct reader *reader, const char **attrs)
{
    dscomm_topo_t *const topo = reader->topo;
    const int parent = top(reader)->device, host = dsc_topo_host_of(topo, parent);
    char name[VALUE_BYTES] = "", guid[VALUE_BYTES] = "", speed[VALUE_BYTES];
    int64_t mbit;
    int device;

    reader->has_net_element = true;
    (void)get(reader, attrs, "name", name);
    (void)get(reader, attrs, "guid", guid);
    name[DSCOMM_TOPO_NAME_BYTES - 1] = '\0';
    guid[sizeof(topo->devices[0].guid) - 1] = '\0';
    device = name[0] != '\0' ? find_nic(topo, host, name, guid) : -1;
    if (device >= 0) {
        see_again(reader, device, host);
        return DSCOMM_OK;
    }
    DSC_TRY(add_inside(reader, DSCOMM_DEVICE_NIC, &device));

    struct dsc_topo_device *const dev = &topo->devices[device];

    dsc_topo_copy(dev->pub.name, sizeof(dev->pub.name), name, strlen(name));
    dsc_topo_copy(dev->guid, sizeof(dev->guid), guid, strlen(guid));
    dev->pub.dev = get_int(reader, attrs, "dev", 0, 1 << 20);
    if (!get(reader, attrs, "speed", speed) ||
        !dsc_topo_parse_int(speed, INT64_MIN, INT64_MAX, &mbit))
        mbit = 0;
    dsc_topo_port_declare(topo, device, mbit);
    return DSCOMM_OK;
}

/* ---- the table of elements ---- */

static const struct {
    const char *name, *parents; /* NULL: the root */
    element_fn *open;
    const char *attrs;
} elements[] = {
    { "system", NULL, on_system, " version " },
    { "cpu", " system ", on_cpu, " host_hash numaid affinity arch vendor familyid modelid " },
    { "pci", " cpu pci ", on_pci,
      " busid class vendor device subsystem_vendor subsystem_device link_speed link_width "
      "affinity " },
    { "gpu", " pci cpu ", on_gpu, " dev sm rank gdr gcn arch mlopart " },
    { "nvlink", " gpu ", on_nvlink, " target count tclass " },
    { "xgmi", " gpu ", on_xgmi, " target count tclass " },
    { "c2c", " gpu ", on_c2c, " bw count " },
    { "nic", " pci cpu ", on_nic, " " },
    { "net", " nic ", on_net, " name dev speed port latency guid maxconn gdr coll net " },
};

static bool is_word_of(const char *list, const char *word)
{
    const size_t len = strlen(word);

    for (const char *at = list; (at = strstr(at, word)) != NULL; at++)
        if (len > 0 && at > list && at[-1] == ' ' && at[len] == ' ')
            return true;
    return false;
}

static void note_unknown(struct reader *reader, const char *what, const char *element,
                         const char *name)
{
    char key[VALUE_BYTES];

    (void)snprintf(key, sizeof(key), "unknown %s %.60s %.60s", what, element, name);
    if (reader->n_unknown < UNKNOWN_MAX)
        dsc_topo_note(reader->topo, key, "line %lu: unknown %s \"%.60s\" %s%.60s: skipped",
                      line_of(reader), what, name, element[0] != '\0' ? "in " : "", element);
    reader->n_unknown++;
}

static void check_attrs(struct reader *reader, size_t row, const char **attrs)
{
    int n = 0;

    for (; attrs[0] != NULL; attrs += 2, n++)
        if (!is_word_of(elements[row].attrs, attrs[0]) && strcmp(attrs[0], "keep") != 0)
            note_unknown(reader, "attribute", elements[row].name, attrs[0]);
    if (n > NCCL_ATTRS_MAX)
        dsc_topo_note(reader->topo, "many attributes",
                      "line %lu: %s has %d attributes, NCCL refuses more than %d", line_of(reader),
                      elements[row].name, n, NCCL_ATTRS_MAX);
}

/* Of the first failure: expat goes on to the end of its buffer otherwise. */
static void stop(struct reader *reader, dscomm_status_t st)
{
    if (reader->st >= 0)
        reader->st = st;
    (void)XML_StopParser(reader->parser, XML_FALSE);
}

static size_t find_row(const char *name)
{
    size_t row = 0;

    while (row < DSC_ARRAY_LEN(elements) && strcmp(elements[row].name, name) != 0)
        row++;
    return row;
}

/* Whether the element may stand here; false: it was said, and it is skipped. */
static bool check_place(struct reader *reader, size_t row, const char *name)
{
    if (row == DSC_ARRAY_LEN(elements)) {
        note_unknown(reader, "element", "", name);
        return false;
    }
    if (elements[row].parents == NULL || !is_word_of(elements[row].parents, top(reader)->name)) {
        dsc_topo_note(reader->topo, "misplaced", "line %lu: <%s> inside <%s>: skipped",
                      line_of(reader), name, top(reader)->name);
        return false;
    }
    if (++top(reader)->n_children == NCCL_CHILDREN_MAX + 1)
        dsc_topo_note(reader->topo, "many children",
                      "line %lu: <%s> has more than %d children, NCCL refuses that",
                      line_of(reader), top(reader)->name, NCCL_CHILDREN_MAX);
    return true;
}

static void XMLCALL on_start(void *arg, const XML_Char *name, const XML_Char **attrs)
{
    struct reader *const reader = arg;
    const size_t row = find_row(name);
    dscomm_status_t st;

    if (reader->st < 0)
        return;
    if (reader->skip > 0) {
        reader->skip++;
        return;
    }
    if (reader->depth == 0 && strcmp(name, "system") != 0) {
        stop(reader, dsc_fail(DSCOMM_ERR_CORRUPT,
                              "%s: root element <%.40s>, allowed: <system> "
                              "(NCCL), <topology> (hwloc)",
                              reader->src->name, name));
        return;
    }
    if (reader->depth == DEPTH_MAX) {
        stop(reader, dsc_fail(DSCOMM_ERR_LIMIT, "%s:%lu: elements nest deeper than %d",
                              reader->src->name, line_of(reader), DEPTH_MAX));
        return;
    }
    if (reader->depth > 0 && !check_place(reader, row, name)) {
        reader->skip = 1;
        return;
    }
    check_attrs(reader, row, attrs);
    *opened(reader) = (struct frame){ .name = elements[row].name,
                                      .device = reader->depth > 0 ? top(reader)->device : -1 };
    st = elements[row].open(reader, attrs);
    if (st < 0)
        stop(reader, st);
    else if (reader->skip == 0)
        reader->depth++;
}

/* What a PCI device is, now that all inside it is known. */
static void classify(struct dsc_topo_device *dev, int n_inside)
{
    if (n_inside > 0 || dev->pci_class >> 16 == 0x06) {
        dev->pub.kind = DSCOMM_DEVICE_PCI;
    } else if (dev->pci_class >> 16 == 0x03 || dev->pci_class >> 16 == 0x12) {
        dev->pub.kind = DSCOMM_DEVICE_GPU;
        dev->pub.flags |= DSCOMM_DEVICE_BY_CLASS;
    } else if (dev->pci_class >> 16 == 0x02) {
        dev->pub.kind = DSCOMM_DEVICE_NIC;
        dev->pub.flags |= DSCOMM_DEVICE_BY_CLASS;
    } else if (dev->pci_class == 0) {
        dev->pub.flags |= DSCOMM_DEVICE_UNCLASSED;
    }
}

static void XMLCALL on_end(void *arg, const XML_Char *name)
{
    struct reader *const reader = arg;
    struct frame *frame;

    (void)name;
    if (reader->st < 0) /* the end of <a/> is reported even after its start stopped the parser */
        return;
    if (reader->skip > 0) {
        reader->skip--;
        return;
    }
    frame = &reader->stack[--reader->depth];
    if (frame->is_pci)
        classify(&reader->topo->devices[frame->device], frame->n_inside);
    else if (strcmp(frame->name, "nic") == 0)
        top(reader)->n_inside += frame->n_inside;
}

/* Entities could make megabytes out of a line, and no topology has any. */
static void XMLCALL on_doctype(void *arg, const XML_Char *name, const XML_Char *system_id,
                               const XML_Char *public_id, int has_internal)
{
    struct reader *const reader = arg;

    (void)name, (void)system_id, (void)public_id, (void)has_internal;
    stop(reader, dsc_fail(DSCOMM_ERR_CORRUPT, "%s:%lu: document type declaration, not allowed here",
                          reader->src->name, line_of(reader)));
}

/* ---- the whole text ---- */

static bool breaks_inside_tag(const char *text)
{
    char quote = '\0';
    bool is_tag = false;

    for (const char *at = text; *at != '\0'; at++) {
        if (!is_tag && strncmp(at, "<!--", 4) == 0) {
            at = strstr(at, "-->");
            if (at == NULL)
                return false;
        } else if (quote != '\0') {
            quote = *at == quote ? '\0' : quote;
        } else if (is_tag && (*at == '"' || *at == '\'')) {
            quote = *at;
        } else if (is_tag && *at == '\n') {
            return true;
        } else if (*at == '<' || *at == '>') {
            is_tag = *at == '<';
        }
    }
    return false;
}

static void note_dialect(dscomm_topo_t *topo, const char *text)
{
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0)
        dsc_topo_note(topo, "bom", "begins with a byte order mark, which NCCL refuses");
    if (strstr(text, "\r\n") != NULL)
        dsc_topo_note(topo, "crlf", "lines end in CR LF, which NCCL may refuse");
    if (breaks_inside_tag(text))
        dsc_topo_note(topo, "tag break", "a line break between attributes, which NCCL refuses");
}

/* Where a file has <gpu> or <net>, a PCI class alone makes none: those are for others. */
static void trust_elements(const struct reader *reader)
{
    for (size_t i = 0; i < reader->topo->n_devices; i++) {
        dscomm_topo_device_t *const pub = &reader->topo->devices[i].pub;

        if ((pub->flags & DSCOMM_DEVICE_BY_CLASS) == 0 ||
            !(pub->kind == DSCOMM_DEVICE_GPU ? reader->has_gpu_element : reader->has_net_element))
            continue;
        pub->kind = DSCOMM_DEVICE_OTHER;
        pub->flags &= ~(uint32_t)DSCOMM_DEVICE_BY_CLASS;
    }
}

static dscomm_status_t parse(struct reader *reader)
{
    XML_SetUserData(reader->parser, reader);
    XML_SetElementHandler(reader->parser, on_start, on_end);
    XML_SetStartDoctypeDeclHandler(reader->parser, on_doctype);
    if (XML_Parse(reader->parser, reader->src->text, (int)reader->src->n_bytes, XML_TRUE) ==
            XML_STATUS_OK ||
        reader->st < 0)
        return reader->st;
    return dsc_fail(DSCOMM_ERR_CORRUPT, "%s:%lu: %s", reader->src->name, line_of(reader),
                    XML_ErrorString(XML_GetErrorCode(reader->parser)));
}

dscomm_status_t dsc_topo_read_nccl_xml(dscomm_topo_t *topo, const struct dsc_topo_source *src)
{
    struct reader reader = { .topo = topo, .src = src, .parser = XML_ParserCreate(NULL) };

    if (reader.parser == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "XML parser for %s", src->name);
    note_dialect(topo, src->text);

    const dscomm_status_t st = parse(&reader);

    XML_ParserFree(reader.parser);
    DSC_TRY(st);
    if (topo->n_devices == 0)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "%s: no <cpu> in <system>", src->name);
    trust_elements(&reader);
    return DSCOMM_OK;
}
