/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree of NUMA nodes, PCI bridges and devices as hwloc sees it: of this host, or of an XML file
 * of lstopo. hwloc knows where things are; speeds and states come from sysfs, the fabric from NVML.
 */
#include "topo/topo_internal.h"

#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

struct walk {
    dscomm_topo_t *topo;
    int host;
};

/* ---- what one object is ---- */

/* hwloc gives gigabytes per second of generation and width together; the highest generation that
 * fits is taken, its rate is that of the others. */
static void set_link(struct dsc_topo_device *dev, double gbps)
{
    for (int gen = 6; gen >= 1 && gbps > 0; gen--) {
        for (int width = 1; width <= 16; width *= 2) {
            const double fits = (double)dsc_topo_pcie_bps(DSCOMM_RATES_PHYSICAL, gen, width) / 1e9;

            if (gbps > 0.99 * fits && gbps < 1.01 * fits) {
                dev->pcie_gen = gen;
                dev->pcie_width = width;
                return;
            }
        }
    }
}

static bool is_gpu(uint32_t pci_class, uint32_t vendor)
{
    const bool is_display = dsc_topo_class_is_gpu(pci_class);

    /* not the display controllers of servers and virtual machines */
    return is_display &&
           (vendor == 0x10de || vendor == 0x1002 ||
            (vendor == 0x8086 && (pci_class >> 8 == 0x0380 || pci_class >> 8 == 0x0302)));
}

/* Interfaces below a PCI function; the RDMA device's name wins. */
static void name_nic(struct dsc_topo_device *dev, hwloc_obj_t obj)
{
    for (hwloc_obj_t child = obj->io_first_child; child != NULL; child = child->next_sibling) {
        if (child->type != HWLOC_OBJ_OS_DEVICE || child->name == NULL)
            continue;
        if (child->attr->osdev.type != HWLOC_OBJ_OSDEV_OPENFABRICS &&
            (child->attr->osdev.type != HWLOC_OBJ_OSDEV_NETWORK || dev->pub.name[0] != '\0'))
            continue;
        dsc_topo_copy(dev->pub.name, sizeof(dev->pub.name), child->name, strlen(child->name));
        dev->pub.kind = DSCOMM_DEVICE_NIC; /* virtio has network interfaces in other classes too */
    }
}

static dscomm_status_t add_pci(const struct walk *walk, hwloc_obj_t obj, int parent,
                               dscomm_device_kind_t kind, int *device_out)
{
    const struct hwloc_pcidev_attr_s *const pci =
        &obj->attr->pcidev; /* first of a bridge as well */
    struct dsc_topo_device *dev;

    DSC_TRY(dsc_topo_device_add(walk->topo, kind, parent, device_out));
    dev = &walk->topo->devices[*device_out];
    (void)snprintf(dev->pub.bus, sizeof(dev->pub.bus), "%04x:%02x:%02x.%x", (unsigned)pci->domain,
                   pci->bus, pci->dev, (unsigned)pci->func & 0xfu);
    dev->pci_class = (uint32_t)pci->class_id << 8;
    dev->pci_vendor = pci->vendor_id;
    set_link(dev, (double)pci->linkspeed);
    return DSCOMM_OK;
}

static dscomm_status_t add_function(const struct walk *walk, hwloc_obj_t obj, int parent)
{
    struct dsc_topo_device *dev;
    int device;

    DSC_TRY(add_pci(walk, obj, parent, DSCOMM_DEVICE_OTHER, &device));
    dev = &walk->topo->devices[device];
    if (is_gpu(dev->pci_class, dev->pci_vendor)) {
        dev->pub.kind = DSCOMM_DEVICE_GPU;
        dev->pub.flags |= DSCOMM_DEVICE_BY_CLASS;
    } else {
        if (dev->pci_class >> 16 == 0x02)
            dev->pub.kind = DSCOMM_DEVICE_NIC;
        name_nic(dev, obj);
    }
    return DSCOMM_OK;
}

static dscomm_status_t add_io(const struct walk *walk, hwloc_obj_t obj, int parent)
{
    int device = parent;

    if (obj->type == HWLOC_OBJ_PCI_DEVICE)
        return add_function(walk, obj, parent);
    if (obj->type != HWLOC_OBJ_BRIDGE)
        return DSCOMM_OK;
    if (obj->attr->bridge.upstream_type == HWLOC_OBJ_BRIDGE_PCI)
        DSC_TRY(add_pci(walk, obj, parent, DSCOMM_DEVICE_PCI, &device));
    for (hwloc_obj_t child = obj->io_first_child; child != NULL; child = child->next_sibling)
        DSC_TRY(add_io(walk, child, device));
    return DSCOMM_OK;
}

/* ---- the whole tree ---- */

/* NUMA node that an object is at, the host if it is at several or none. */
static dscomm_status_t place_of(const struct walk *walk, hwloc_obj_t obj, int *device_out)
{
    *device_out = walk->host;
    if (obj->nodeset == NULL || hwloc_bitmap_weight(obj->nodeset) != 1)
        return DSCOMM_OK;
    return dsc_topo_numa(walk->topo, walk->host, hwloc_bitmap_first(obj->nodeset), device_out);
}

static dscomm_status_t add_below(const struct walk *walk, hwloc_obj_t obj)
{
    int place;

    DSC_TRY(place_of(walk, obj, &place));
    for (hwloc_obj_t child = obj->io_first_child; child != NULL; child = child->next_sibling)
        DSC_TRY(add_io(walk, child, place));
    for (hwloc_obj_t child = obj->first_child; child != NULL; child = child->next_sibling)
        DSC_TRY(add_below(walk, child));
    return DSCOMM_OK;
}

static int info_int(hwloc_obj_t obj, const char *name)
{
    const char *const text = obj != NULL ? hwloc_obj_get_info_by_name(obj, name) : NULL;
    int64_t value;

    return text != NULL && dsc_topo_parse_int(text, 0, 1 << 20, &value) ? (int)value : -1;
}

static const char *info_text(hwloc_obj_t obj, const char *name)
{
    const char *const text = obj != NULL ? hwloc_obj_get_info_by_name(obj, name) : NULL;

    return text != NULL ? text : "";
}

static dscomm_status_t add_all(const struct walk *walk, hwloc_topology_t hwloc)
{
    const hwloc_obj_t root = hwloc_get_root_obj(hwloc);
    const hwloc_obj_t package = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_PACKAGE, NULL);
    const uint64_t smp = dsc_topo_smp_nccl_bps(
        info_text(root, "Architecture"), info_text(package, "CPUVendor"),
        info_int(package, "CPUFamilyNumber"), info_int(package, "CPUModelNumber"));
    int numa;

    for (hwloc_obj_t node = NULL;
         (node = hwloc_get_next_obj_by_type(hwloc, HWLOC_OBJ_NUMANODE, node)) != NULL;) {
        DSC_TRY(dsc_topo_numa(walk->topo, walk->host, (int)node->os_index, &numa));
        walk->topo->devices[numa].smp_nccl_bps = smp;
    }
    return add_below(walk, root);
}

static dscomm_status_t load(hwloc_topology_t hwloc, const char *name)
{
    /* They start drivers, which takes seconds and may fail, NVML is asked directly; and "pci" is
     * replaced by hwloc's reader of the kernel's files: it leaks, and may not be installed. */
    static const char *const unwanted[] = { "opencl",    "cuda", "nvml", "rsmi",
                                            "levelzero", "gl",   "pci" };

    for (size_t i = 0; i < DSC_ARRAY_LEN(unwanted); i++)
        (void)hwloc_topology_set_components(hwloc, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST,
                                            unwanted[i]);
    (void)hwloc_topology_set_io_types_filter(hwloc, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(hwloc) != 0)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "%s: hwloc cannot read it", name);
    return DSCOMM_OK;
}

static dscomm_status_t read_hwloc(dscomm_topo_t *topo, hwloc_topology_t hwloc, const char *name)
{
    struct walk walk = { .topo = topo };

    DSC_TRY(load(hwloc, name));
    DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_HOST, -1, &walk.host));
    return add_all(&walk, hwloc);
}

/* libudev, which hwloc asks about devices, makes a key of its own at first use without a lock. */
static pthread_mutex_t hwloc_lock = PTHREAD_MUTEX_INITIALIZER;

dscomm_status_t dsc_topo_read_hwloc(dscomm_topo_t *topo, const char *xml_path)
{
    hwloc_topology_t hwloc;
    dscomm_status_t st;

    if (hwloc_topology_init(&hwloc) != 0)
        return dsc_fail(DSCOMM_ERR_SYSTEM, "hwloc cannot start");
    (void)pthread_mutex_lock(&hwloc_lock);
    if (xml_path != NULL && hwloc_topology_set_xml(hwloc, xml_path) != 0)
        st = dsc_fail(DSCOMM_ERR_CORRUPT, "%s: hwloc cannot read it", xml_path);
    else
        st = read_hwloc(topo, hwloc, xml_path != NULL ? xml_path : "this host");
    (void)pthread_mutex_unlock(&hwloc_lock);
    hwloc_topology_destroy(hwloc);
    return st;
}

dscomm_status_t dsc_topo_read_hwloc_xml(dscomm_topo_t *topo, const struct dsc_topo_source *src)
{
    hwloc_topology_t hwloc;
    dscomm_status_t st;

    if (hwloc_topology_init(&hwloc) != 0)
        return dsc_fail(DSCOMM_ERR_SYSTEM, "hwloc cannot start");
    if (hwloc_topology_set_xmlbuffer(hwloc, src->text, (int)src->n_bytes + 1) != 0)
        st = dsc_fail(DSCOMM_ERR_CORRUPT, "%s: hwloc cannot read it", src->name);
    else
        st = read_hwloc(topo, hwloc, src->name);
    hwloc_topology_destroy(hwloc);
    return st;
}
