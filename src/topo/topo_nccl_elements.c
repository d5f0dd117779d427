/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of NCCL's topology XML: what each adds to the topology, a function for every element,
 * and their table, which says where one may stand and what attributes it has.
 */
#include "topo/topo_nccl_xml.h"

#include <string.h>

static dscomm_status_t on_system(struct dsc_xml_reader *reader, const char **attrs)
{
    const int version = dsc_xml_attr_int(reader, attrs, "version", 0, 999);

    if (version != 1 && version != 2)
        dsc_topo_note(reader->topo, "version",
                      "version %d, known are 1 (NCCL) and 2 (RCCL): read like these",
                      version == DSCOMM_TOPO_UNKNOWN ? 0 : version);
    return DSCOMM_OK;
}

/* The host with this hash, or the one without. */
static dscomm_status_t find_host(struct dsc_xml_reader *reader, const char *hash, int *host_out)
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

static dscomm_status_t on_cpu(struct dsc_xml_reader *reader, const char **attrs)
{
    dscomm_topo_t *const topo = reader->topo;
    char hash[DSC_XML_VALUE_BYTES] = "", arch[DSC_XML_VALUE_BYTES] = "",
         vendor[DSC_XML_VALUE_BYTES] = "";
    int host, numa;

    (void)dsc_xml_attr(reader, attrs, "host_hash", hash);
    hash[sizeof(topo->devices[0].host_hash) - 1] = '\0';
    DSC_TRY(find_host(reader, hash, &host));
    DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_NUMA, host, &numa));

    const int number = dsc_xml_attr_int(reader, attrs, "numaid", -1, 1 << 20);

    topo->devices[numa].pub.numa = number >= 0 ? number : DSCOMM_TOPO_UNKNOWN;
    if (number < 0)
        dsc_topo_note(topo, "numaid", "a CPU states no NUMA node number: unknown");
    (void)dsc_xml_attr(reader, attrs, "arch", arch);
    (void)dsc_xml_attr(reader, attrs, "vendor", vendor);
    if (arch[0] == '\0')
        dsc_topo_note(topo, "arch",
                      "a CPU states no architecture: links between CPUs keep the default tier, "
                      "sys, at an unknown rate");
    topo->devices[numa].smp_nccl_bps = dsc_topo_smp_nccl_bps(
        arch, vendor, dsc_xml_attr_int(reader, attrs, "familyid", -1, 1 << 20),
        dsc_xml_attr_int(reader, attrs, "modelid", -1, 1 << 20));
    dsc_xml_opened(reader)->device = numa;
    return DSCOMM_OK;
}

static void read_pcie(struct dsc_xml_reader *reader, const char **attrs,
                      struct dsc_topo_device *dev)
{
    char speed[DSC_XML_VALUE_BYTES] = "";
    const bool has_speed = dsc_xml_attr(reader, attrs, "link_speed", speed);
    const int width = dsc_xml_attr_int(reader, attrs, "link_width", 0, 32);

    dev->pcie_gen = dsc_topo_pcie_gen(speed);
    dev->pcie_width = width > 0 ? width : 0;
    if ((has_speed && dev->pcie_gen == 0) || width == 0)
        dsc_topo_note(reader->topo, "pcie unknown",
                      "%s: link_speed \"%.40s\", link_width %d: PCIe rate unknown", dev->pub.bus,
                      speed, dev->pcie_width);
}

static dscomm_status_t on_pci(struct dsc_xml_reader *reader, const char **attrs)
{
    dscomm_topo_t *const topo = reader->topo;
    const int parent = dsc_xml_top(reader)->device;
    char text[DSC_XML_VALUE_BYTES] = "", bus[DSCOMM_TOPO_BUS_BYTES];
    int device;

    (void)dsc_xml_attr(reader, attrs, "busid", text);
    if (!dsc_topo_bus_normalize(text, bus))
        dsc_topo_note(topo, "busid", "line %lu: busid \"%.40s\" is not like 0000:3b:00.0",
                      dsc_xml_line(reader), text);
    if (bus[0] != '\0' && dsc_topo_find_bus(topo, dsc_topo_host_of(topo, parent), bus) >= 0) {
        dsc_topo_note(topo, "duplicate",
                      "line %lu: %s is listed twice on one host: the second "
                      "is left out",
                      dsc_xml_line(reader), bus);
        reader->skip = 1;
        return DSCOMM_OK;
    }
    DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_OTHER, parent, &device));

    struct dsc_topo_device *const dev = &topo->devices[device];

    memcpy(dev->pub.bus, bus, sizeof(bus));
    dev->pci_class = dsc_xml_attr_hex(reader, attrs, "class");
    dev->pci_vendor = dsc_xml_attr_hex(reader, attrs, "vendor");
    read_pcie(reader, attrs, dev);
    dsc_xml_top(reader)->n_inside++;
    dsc_xml_opened(reader)->device = device;
    dsc_xml_opened(reader)->is_pci = true;
    return DSCOMM_OK;
}

/* A GPU or port is a part of its PCI device; some files hang them under the CPU. */
static dscomm_status_t add_inside(struct dsc_xml_reader *reader, dscomm_device_kind_t kind,
                                  int *device_out)
{
    dscomm_topo_t *const topo = reader->topo;
    const int parent = dsc_xml_top(reader)->device;

    DSC_TRY(dsc_topo_device_add(topo, kind, parent, device_out));
    dsc_xml_top(reader)->n_inside++;
    if (topo->devices[parent].pub.kind != DSCOMM_DEVICE_NUMA) {
        topo->devices[*device_out].is_inside = true;
        memcpy(topo->devices[*device_out].pub.bus, topo->devices[parent].pub.bus,
               DSCOMM_TOPO_BUS_BYTES);
    }
    return DSCOMM_OK;
}

static dscomm_status_t on_gpu(struct dsc_xml_reader *reader, const char **attrs)
{
    char gcn[DSC_XML_VALUE_BYTES];
    int device;

    DSC_TRY(add_inside(reader, DSCOMM_DEVICE_GPU, &device));

    struct dsc_topo_device *const dev = &reader->topo->devices[device];

    dev->is_gpu_element = true;
    dev->pub.fabric_links = 0;
    dev->pub.dev = dsc_xml_attr_int(reader, attrs, "dev", 0, 1 << 20);
    dev->pub.rank = dsc_xml_attr_int(reader, attrs, "rank", 0, 1 << 30);
    if (dsc_xml_attr(reader, attrs, "gcn", gcn)) /* RCCL: sm is the number of compute units there */
        dev->xgmi_arch = dsc_topo_xgmi_arch(gcn);
    else
        dev->pub.sm = dsc_xml_attr_int(reader, attrs, "sm", 10, 999);
    reader->has_gpu_element = true;
    dsc_xml_opened(reader)->device = device;
    return DSCOMM_OK;
}

static dscomm_status_t add_end(struct dsc_xml_reader *reader, const char **attrs,
                               dscomm_link_kind_t kind)
{
    struct dsc_topo_end end = { .gpu = dsc_xml_top(reader)->device, .kind = kind };
    char target[DSC_XML_VALUE_BYTES] = "";
    const int count = dsc_xml_attr_int(reader, attrs, "count", -1000000, 1000000);

    if (reader->topo->devices[end.gpu].pub.kind != DSCOMM_DEVICE_GPU)
        return DSCOMM_OK;
    end.count = count == DSCOMM_TOPO_UNKNOWN ? 0 : count;
    end.target_class = dsc_xml_attr_hex(reader, attrs, "tclass");
    (void)dsc_xml_attr(reader, attrs, "target", target);
    if (!dsc_topo_bus_normalize(target, end.target) && kind != DSCOMM_LINK_C2C) {
        dsc_topo_note(reader->topo, "target",
                      "line %lu: target \"%.40s\" is not like "
                      "0000:3b:00.0: left out",
                      dsc_xml_line(reader), target);
        return DSCOMM_OK;
    }
    if (kind == DSCOMM_LINK_C2C) {
        const int mb = dsc_xml_attr_int(reader, attrs, "bw", 1, 10000000);

        if (mb != DSCOMM_TOPO_UNKNOWN && count > 0)
            end.c2c_bps = (uint64_t)mb * 1000000u * (uint64_t)count;
    }
    return dsc_topo_end_add(reader->topo, &end);
}

static dscomm_status_t on_nvlink(struct dsc_xml_reader *reader, const char **attrs)
{
    return add_end(reader, attrs, DSCOMM_LINK_NVLINK);
}

static dscomm_status_t on_xgmi(struct dsc_xml_reader *reader, const char **attrs)
{
    return add_end(reader, attrs, DSCOMM_LINK_XGMI);
}

static dscomm_status_t on_c2c(struct dsc_xml_reader *reader, const char **attrs)
{
    return add_end(reader, attrs, DSCOMM_LINK_C2C);
}

static dscomm_status_t on_nic(struct dsc_xml_reader *reader, const char **attrs)
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
static void see_again(struct dsc_xml_reader *reader, int nic, int host)
{
    struct dsc_topo_device *const dev = &reader->topo->devices[nic];

    dsc_topo_note(reader->topo, "nic twice", "nic %s is listed at several places: one device",
                  dev->pub.name);
    if (dev->is_inside)
        return;
    dev->pub.parent = host;
    dev->pub.numa = DSCOMM_TOPO_UNKNOWN;
}

static dscomm_status_t on_net(struct dsc_xml_reader *reader, const char **attrs)
{
    dscomm_topo_t *const topo = reader->topo;
    const int parent = dsc_xml_top(reader)->device, host = dsc_topo_host_of(topo, parent);
    char name[DSC_XML_VALUE_BYTES] = "", guid[DSC_XML_VALUE_BYTES] = "", speed[DSC_XML_VALUE_BYTES];
    int64_t mbit;
    int device;

    reader->has_net_element = true;
    (void)dsc_xml_attr(reader, attrs, "name", name);
    (void)dsc_xml_attr(reader, attrs, "guid", guid);
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
    dev->pub.dev = dsc_xml_attr_int(reader, attrs, "dev", 0, 1 << 20);
    if (!dsc_xml_attr(reader, attrs, "speed", speed) ||
        !dsc_topo_parse_int(speed, INT64_MIN, INT64_MAX, &mbit))
        mbit = 0;
    dsc_topo_port_declare(topo, device, mbit);
    return DSCOMM_OK;
}

static const struct dsc_xml_element elements[] = {
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

const struct dsc_xml_element *dsc_xml_find_element(const char *name)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(elements); i++)
        if (strcmp(elements[i].name, name) == 0)
            return &elements[i];
    return NULL;
}
