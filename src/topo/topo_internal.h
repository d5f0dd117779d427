/* SPDX-License-Identifier: Apache-2.0 */
/* Private to src/topo: what readers state, and the services they share. */
#ifndef DSC_TOPO_INTERNAL_H
#define DSC_TOPO_INTERNAL_H

#include "topo/topo.h"

/* Beside what the public struct shows. Numbers that nothing states are 0. */
struct dsc_topo_device {
    dscomm_topo_device_t pub;
    uint32_t pci_class, pci_vendor;
    int pcie_gen, pcie_width; /* of the link to the device above */
    bool is_at_maximum;       /* these are the link's maximum, at the moment it is slower */
    bool is_inside;           /* a part of its parent: no link in between */
    bool is_gpu_element;      /* a source said "GPU", not its PCI class alone */
    int xgmi_arch;            /* 90 gfx90a, 94 gfx94x, 9 older ones with xGMI */
    int n_parts;              /* GPUs that share this one's fabric links, itself included */
    uint64_t fabric_link_bps; /* stated payload rate of one fabric link */
    uint64_t smp_nccl_bps;    /* of a NUMA node: NCCL's figure for its links to others */
    char guid[24];
    char host_hash[24]; /* of a host */
    char uuid[48];
};

/* One end of fabric links, as stated: joined with the other ends by dsc_topo_finish(). */
struct dsc_topo_end {
    int gpu;
    dscomm_link_kind_t kind;
    char target[DSCOMM_TOPO_BUS_BYTES];
    uint32_t target_class; /* 0: not stated */
    int count;
    uint64_t c2c_bps; /* of C2C: rate of all */
};

/* PCI classes, as in NCCL's files: of the far end of a link. */
#define DSC_TOPO_CLASS_SWITCH 0x068000
#define DSC_TOPO_CLASS_CPU 0x068001

static inline bool dsc_topo_class_is_gpu(uint32_t pci_class)
{
    return pci_class >> 16 == 0x03 || pci_class >> 16 == 0x12;
}

/* Whether a reaches b's memory, as a table of nvidia-smi says. */
struct dsc_topo_p2p {
    int a, b, allowed;
};

struct dscomm_topo {
    dscomm_topo_config_t config;
    struct dsc_topo_device *devices;
    dscomm_topo_link_t *links;
    struct dsc_topo_end *ends;
    struct dsc_topo_p2p *p2p;
    size_t n_devices, n_links, n_ends, n_p2p;
    size_t cap_devices, cap_links, cap_ends, cap_p2p;
    char notices[DSC_TOPO_NOTICES_MAX][DSC_TOPO_NOTICE_BYTES];
    uint64_t notice_keys[DSC_TOPO_NOTICES_MAX];
    int n_notices;
    bool is_quiet; /* they are not logged */
};

/* ---- topo.c ---- */

dscomm_status_t dsc_topo_create(const dscomm_topo_config_t *config, dscomm_topo_t **topo_out);
dscomm_status_t dsc_topo_device_add(dscomm_topo_t *topo, dscomm_device_kind_t kind, int parent,
                                    int *device_out);
/* Pointers to a new entry are good until the next is added. */
dscomm_status_t dsc_topo_link_add(dscomm_topo_t *topo, int a, int b, dscomm_link_kind_t kind,
                                  int count, dscomm_topo_link_t **link_out);
dscomm_status_t dsc_topo_end_add(dscomm_topo_t *topo, const struct dsc_topo_end *end);
dscomm_status_t dsc_topo_p2p_add(dscomm_topo_t *topo, int a, int b, bool allowed);
/* Logged and kept once per key; key is what the notice is about, without the particulars. */
void dsc_topo_note(dscomm_topo_t *topo, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Takes a notice back: more was added, and it is judged again. */
void dsc_topo_forget(dscomm_topo_t *topo, const char *key);

/* ---- topo_find.c ---- */

/* The host above, itself for a host. */
int dsc_topo_host_of(const dscomm_topo_t *topo, int device);
/* Device of a host by normalized bus id, of a GPU inside a card: the card; -1: none. */
int dsc_topo_find_bus(const dscomm_topo_t *topo, int host, const char *bus);
/* The device itself, or of a card the GPU in it that comes first, if there is one. */
int dsc_topo_gpu_at(const dscomm_topo_t *topo, int device);
bool dsc_topo_holds_gpu(const dscomm_topo_t *topo, int device);
/* NUMA node of a host by number, made if it is new. */
dscomm_status_t dsc_topo_numa(dscomm_topo_t *topo, int host, int number, int *device_out);
/* Order of the device among those of its kind. */
int dsc_topo_ordinal(const dscomm_topo_t *topo, int device);
/* "00000000:C5:00.0" to "0000:c5:00.0"; false: not a bus id, bus_out holds its beginning. */
bool dsc_topo_bus_normalize(const char *text, char bus_out[DSCOMM_TOPO_BUS_BYTES]);
bool dsc_topo_bus_is_virtual(const char *bus); /* domain that no hardware has: an invented id */
/* All of text as a number from min to max, decimal or with 0x; false: it is not. */
bool dsc_topo_parse_int(const char *text, int64_t min, int64_t max, int64_t *value_out);
/* Copies what fits, always ends with NUL; bytes above 126 and below 32 become '?'. */
void dsc_topo_copy(char *dst, size_t dst_bytes, const char *src, size_t n);

static inline bool dsc_topo_is_known(const dscomm_rate_t *rate)
{
    return (rate->marks & (DSCOMM_RATE_DECLARED | DSCOMM_RATE_MEASURED)) != 0;
}

/* ---- topo_rates.c: rates in bytes per second; 0: unknown ---- */

int dsc_topo_pcie_gen(const char *speed); /* "16.0 GT/s PCIe" gives 4; 0: unknown */
uint64_t dsc_topo_pcie_bps(dscomm_rate_kind_t kind, int gen, int width);
uint64_t dsc_topo_nvlink_bps(dscomm_rate_kind_t kind, int sm);
uint64_t dsc_topo_nvlink_payload(double raw_gbps); /* of what nvidia-smi nvlink -s prints */
int dsc_topo_xgmi_arch(const char *gcn);
uint64_t dsc_topo_xgmi_bps(dscomm_rate_kind_t kind, int arch);
/* NCCL's figure of the link between CPUs; numbers below 0 are unknown. */
uint64_t dsc_topo_smp_nccl_bps(const char *arch, const char *vendor, int family, int model);
void dsc_topo_rate_declare(dscomm_rate_t *rate, uint64_t bps);          /* 0: becomes unknown */
void dsc_topo_port_declare(dscomm_topo_t *topo, int nic, int64_t mbit); /* below 1: unknown */
bool dsc_topo_nic_is_virtual(const char *name);

/* ---- topo_fabric.c topo_finish.c ---- */

/* Ends that were added become links, once. */
dscomm_status_t dsc_topo_join_fabric(dscomm_topo_t *topo);
dscomm_status_t dsc_topo_finish(dscomm_topo_t *topo);

/* ---- topo_path.c ---- */

/* Kind and rate by PCIe and CPUs alone, whatever else joins the two; path is zero before. */
void dsc_topo_tree_path(const dscomm_topo_t *topo, int a, int b, dscomm_topo_path_t *path);

/* ---- readers. name stands for the text in messages; text ends with NUL ---- */

struct dsc_topo_source {
    const char *name, *text;
    size_t n_bytes;
};

dscomm_status_t dsc_topo_read_nccl_xml(dscomm_topo_t *topo, const struct dsc_topo_source *src);
dscomm_status_t dsc_topo_read_hwloc_xml(dscomm_topo_t *topo, const struct dsc_topo_source *src);
dscomm_status_t dsc_topo_read_matrix(dscomm_topo_t *topo, const struct dsc_topo_source *src);
dscomm_status_t dsc_topo_read_nvlinks(dscomm_topo_t *topo, const struct dsc_topo_source *src);
dscomm_status_t dsc_topo_read_text(dscomm_topo_t *topo, const struct dsc_topo_source *src);
/* This host's devices by hwloc; its XML for NULL. */
dscomm_status_t dsc_topo_read_hwloc(dscomm_topo_t *topo, const char *xml_path);
/* What the kernel's files say about the devices that are there. */
void dsc_topo_read_sysfs(dscomm_topo_t *topo, const char *sysfs);
dscomm_status_t dsc_topo_read_nvml(dscomm_topo_t *topo, const struct dsc_topo_host_sources *src);

/* ---- topo_print.c topo_summary.c topo_draw.c ---- */

void dsc_topo_write_summary(const dscomm_topo_t *topo, FILE *out);
void dsc_topo_write_dot(const dscomm_topo_t *topo, FILE *out);
void dsc_topo_write_svg(const dscomm_topo_t *topo, FILE *out);
/* "gpu3", "pci 0000:3b:00.0": the short form used everywhere. Returns buf. */
#define DSC_TOPO_LABEL_BYTES 128
#define DSC_TOPO_CLIQUE_MAX 256 /* GPUs of a host that are looked at for direct links */
const char *dsc_topo_label(const dscomm_topo_t *topo, int device, char buf[DSC_TOPO_LABEL_BYTES]);
const char *dsc_topo_link_name(dscomm_link_kind_t kind);
/* "31.5 GB/s", "unknown", "0.98 GB/s (implausible)". Returns buf. */
#define DSC_TOPO_RATE_BYTES 96
const char *dsc_topo_rate_text(const dscomm_rate_t *rate, char buf[DSC_TOPO_RATE_BYTES]);

#endif
