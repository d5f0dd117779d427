/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVIDIA's management library, loaded at run time where it is installed: which GPUs this process
 * may use, their models, and where each of their NVLinks goes. The few types and numbers of its
 * interface that are used are declared here.
 */
#include "topo/topo_internal.h"

#include <dlfcn.h>
#include <string.h>

enum { NVML_OK = 0, NVLINKS_MAX = 36, REMOTE_SWITCH = 2, REMOTE_UNKNOWN = 255 };

typedef struct nvml_device *nvml_device_t;

/* nvmlPciInfo_t */
struct nvml_pci {
    char bus_legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
};

/* Every entry point that is used; REMOTE_TYPE may be missing in old libraries. */
struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *n);
    int (*by_index)(unsigned index, nvml_device_t *device);
    int (*pci)(nvml_device_t device, struct nvml_pci *pci);
    int (*capability)(nvml_device_t device, int *major, int *minor);
    int (*name)(nvml_device_t device, char *name, unsigned bytes);
    int (*uuid)(nvml_device_t device, char *uuid, unsigned bytes);
    int (*link_state)(nvml_device_t device, unsigned link, int *is_active);
    int (*link_remote)(nvml_device_t device, unsigned link, struct nvml_pci *pci);
    int (*link_remote_type)(nvml_device_t device, unsigned link, int *type);
};

static const struct {
    const char *symbol;
    size_t offset;
    bool is_optional;
} symbols[] = {
    { "nvmlInit_v2", offsetof(struct nvml, init), false },
    { "nvmlShutdown", offsetof(struct nvml, shutdown), false },
    { "nvmlDeviceGetCount_v2", offsetof(struct nvml, count), false },
    { "nvmlDeviceGetHandleByIndex_v2", offsetof(struct nvml, by_index), false },
    { "nvmlDeviceGetPciInfo_v3", offsetof(struct nvml, pci), false },
    { "nvmlDeviceGetCudaComputeCapability", offsetof(struct nvml, capability), false },
    { "nvmlDeviceGetName", offsetof(struct nvml, name), false },
    { "nvmlDeviceGetUUID", offsetof(struct nvml, uuid), false },
    { "nvmlDeviceGetNvLinkState", offsetof(struct nvml, link_state), false },
    { "nvmlDeviceGetNvLinkRemotePciInfo_v2", offsetof(struct nvml, link_remote), false },
    { "nvmlDeviceGetNvLinkRemoteDeviceType", offsetof(struct nvml, link_remote_type), true },
};

/* ---- one GPU ---- */

/* All links of a GPU. A state that cannot be asked for is a GPU without NVLink. */
static dscomm_status_t read_links(dscomm_topo_t *topo, const struct nvml *nvml,
                                  nvml_device_t handle, int gpu)
{
    topo->devices[gpu].pub.fabric_links = 0;
    for (unsigned i = 0; i < NVLINKS_MAX; i++) {
        struct dsc_topo_end end = { .gpu = gpu, .kind = DSCOMM_LINK_NVLINK, .count = 1 };
        struct nvml_pci pci = { .bus_id = "" };
        int is_active = 0, type = REMOTE_UNKNOWN;

        if (nvml->link_state(handle, i, &is_active) != NVML_OK || is_active == 0)
            continue;
        if (nvml->link_remote(handle, i, &pci) == NVML_OK) {
            pci.bus_id[sizeof(pci.bus_id) - 1] = '\0';
            if (!dsc_topo_bus_normalize(pci.bus_id, end.target))
                end.target[0] = '\0';
        }
        if (nvml->link_remote_type != NULL && nvml->link_remote_type(handle, i, &type) == NVML_OK &&
            type == REMOTE_SWITCH) {
            end.target_class = DSC_TOPO_CLASS_SWITCH;
            if (end.target[0] == '\0') /* a fabric manager keeps the switches to itself */
                dsc_topo_copy(end.target, sizeof(end.target), "fffffff:ff:ff.0", 15);
        }
        DSC_TRY(dsc_topo_end_add(topo, &end));
    }
    return DSCOMM_OK;
}

/* The device that hwloc found, or a new one where it did not look at PCI. */
static dscomm_status_t find_gpu(dscomm_topo_t *topo, const char *bus, int *gpu_out)
{
    *gpu_out = dsc_topo_find_bus(topo, 0, bus);
    if (*gpu_out >= 0)
        return DSCOMM_OK;
    DSC_TRY(dsc_topo_device_add(topo, DSCOMM_DEVICE_GPU, 0, gpu_out));
    memcpy(topo->devices[*gpu_out].pub.bus, bus, DSCOMM_TOPO_BUS_BYTES);
    return DSCOMM_OK;
}

static dscomm_status_t read_gpu(dscomm_topo_t *topo, const struct nvml *nvml, nvml_device_t handle,
                                int index)
{
    struct nvml_pci pci = { .bus_id = "" };
    char bus[DSCOMM_TOPO_BUS_BYTES], text[96] = "";
    int gpu, major = 0, minor = 0;

    if (nvml->pci(handle, &pci) != NVML_OK)
        return DSCOMM_OK;
    pci.bus_id[sizeof(pci.bus_id) - 1] = '\0';
    if (!dsc_topo_bus_normalize(pci.bus_id, bus))
        return DSCOMM_OK;
    DSC_TRY(find_gpu(topo, bus, &gpu));

    struct dsc_topo_device *const dev = &topo->devices[gpu];

    dev->pub.kind = DSCOMM_DEVICE_GPU;
    dev->pub.flags &= ~(uint32_t)DSCOMM_DEVICE_BY_CLASS;
    dev->is_gpu_element = true;
    dev->pub.dev = index;
    if (nvml->capability(handle, &major, &minor) == NVML_OK)
        dev->pub.sm = 10 * major + minor;
    if (nvml->name(handle, text, sizeof(text)) == NVML_OK)
        dsc_topo_copy(dev->pub.name, sizeof(dev->pub.name), text, strnlen(text, sizeof(text)));
    if (nvml->uuid(handle, text, sizeof(text)) == NVML_OK)
        dsc_topo_copy(dev->uuid, sizeof(dev->uuid), text, strnlen(text, sizeof(text)));
    return read_links(topo, nvml, handle, gpu);
}

/* ---- which GPUs are this process's ---- */

static bool is_in_list(const char *list, int index, const char *uuid)
{
    while (*list != '\0') {
        const size_t len = strcspn(list, ",");
        char word[64];
        int64_t number;

        dsc_topo_copy(word, sizeof(word), list, len);
        if (dsc_topo_parse_int(word, 0, 4096, &number) ? number == index
                                                       : len > 0 && strncmp(uuid, word, len) == 0)
            return true;
        list += len + (list[len] == ',');
    }
    return false;
}

/* GPUs that NVML does not list, or CUDA_VISIBLE_DEVICES leaves out, belong to others. */
static void hide_others(dscomm_topo_t *topo, const char *visible)
{
    int n_hidden = 0;

    for (size_t i = 0; i < topo->n_devices; i++) {
        struct dsc_topo_device *const dev = &topo->devices[i];
        const bool is_listed = dev->is_gpu_element &&
                               (visible == NULL || is_in_list(visible, dev->pub.dev, dev->uuid));

        if (dev->pub.kind != DSCOMM_DEVICE_GPU || is_listed ||
            (!dev->is_gpu_element && dev->pci_vendor != 0x10de))
            continue;
        dev->pub.kind = DSCOMM_DEVICE_OTHER;
        n_hidden++;
    }
    if (n_hidden > 0)
        dsc_topo_note(topo, "hidden", "%d GPUs of this host are not visible to this process",
                      n_hidden);
}

/* ---- the library ---- */

static dscomm_status_t read_all(dscomm_topo_t *topo, const struct nvml *nvml, const char *visible)
{
    unsigned n = 0;
    nvml_device_t handle;

    if (nvml->count(&n) != NVML_OK)
        n = 0;
    for (unsigned i = 0; i < n && i < DSC_TOPO_DEVICES_MAX; i++)
        if (nvml->by_index(i, &handle) == NVML_OK)
            DSC_TRY(read_gpu(topo, nvml, handle, (int)i));
    hide_others(topo, visible);
    return DSCOMM_OK;
}

static bool bind(void *library, struct nvml *nvml)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(symbols); i++) {
        void *const address = dlsym(library, symbols[i].symbol);

        if (address == NULL && !symbols[i].is_optional)
            return false;
        memcpy((char *)nvml + symbols[i].offset, &address, sizeof(address));
    }
    return true;
}

static bool has_nvidia(const dscomm_topo_t *topo)
{
    for (size_t i = 0; i < topo->n_devices; i++)
        if (topo->devices[i].pub.kind == DSCOMM_DEVICE_GPU && topo->devices[i].pci_vendor == 0x10de)
            return true;
    return false;
}

dscomm_status_t dsc_topo_read_nvml(dscomm_topo_t *topo, const struct dsc_topo_host_sources *src)
{
    void *const library = src->nvml != NULL ? dlopen(src->nvml, RTLD_NOW | RTLD_LOCAL) : NULL;
    struct nvml nvml = { 0 };
    dscomm_status_t st = DSCOMM_OK;

    if (library == NULL) {
        if (has_nvidia(topo))
            dsc_topo_note(topo, "nvml", "GPUs of NVIDIA, but no %s: their NVLinks are unknown",
                          src->nvml != NULL ? src->nvml : "management library");
        return DSCOMM_OK;
    }
    if (!bind(library, &nvml) || nvml.init() != NVML_OK) {
        dsc_topo_note(topo, "nvml", "%s does not start: NVLinks are unknown", src->nvml);
    } else {
        st = read_all(topo, &nvml, src->visible);
        (void)nvml.shutdown();
    }
    (void)dlclose(library);
    return st;
}
