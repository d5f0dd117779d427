/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libnvidia-ml.so.1 in tests: the functions that DSComm uses. FAKE_NVML describes its GPUs,
 * separated by |: BUS SM [COUNTxTARGET ...]        TARGET: a bus id, "switch" (behind a fabric
 * manager) or "?" Unset: on the emulated runtime (CUDAEMU_KERNELS) its devices, each with
 * CUDAEMU_NVLINKS links to a switch; elsewhere initialization fails, as without a driver.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

enum { OK = 0, INVALID = 2, NO_DRIVER = 9, GPUS_MAX = 16, LINKS_MAX = 18 };

struct pci {
    char bus_legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
};

struct gpu {
    char bus[32];
    int sm, n_links;
    char target[LINKS_MAX][32];
};

static struct gpu gpus[GPUS_MAX];
static unsigned n_gpus;

API int nvmlInit_v2(void);
API int nvmlShutdown(void);
API int nvmlDeviceGetCount_v2(unsigned *n);
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **gpu);
API int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci *pci);
API int nvmlDeviceGetCudaComputeCapability(struct gpu *gpu, int *major, int *minor);
API int nvmlDeviceGetName(struct gpu *gpu, char *name, unsigned bytes);
API int nvmlDeviceGetUUID(struct gpu *gpu, char *uuid, unsigned bytes);
API int nvmlDeviceGetNvLinkState(struct gpu *gpu, unsigned link, int *is_active);
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct gpu *gpu, unsigned link, struct pci *pci);
API int nvmlDeviceGetNvLinkRemoteDeviceType(struct gpu *gpu, unsigned link, int *type);

static void take_word(struct gpu *gpu, int i, const char *word)
{
    int count = 0;
    char target[32];

    if (i == 0)
        (void)snprintf(gpu->bus, sizeof(gpu->bus), "%.31s", word);
    else if (i == 1)
        gpu->sm = (int)strtol(word, NULL, 10);
    else if (sscanf(word, "%dx%31s", &count, target) == 2)
        for (int k = 0; k < count && gpu->n_links < LINKS_MAX; k++)
            memcpy(gpu->target[gpu->n_links++], target, sizeof(target));
}

static int number_in(const char *variable, int otherwise)
{
    const char *const text = getenv(variable);

    return text != NULL && text[0] != '\0' ? (int)strtol(text, NULL, 10) : otherwise;
}

/* The devices of tests/emu, with its defaults and bus ids. */
static void describe_emulated(char *text, size_t bytes)
{
    const int n = number_in("CUDAEMU_DEVICES", 2), n_links = number_in("CUDAEMU_NVLINKS", 0);
    size_t used = 0;

    text[0] = '\0';
    for (int i = 0; i < n && i < GPUS_MAX && used < bytes; i++)
        used += (size_t)snprintf(text + used, bytes - used, "0000:%02X:00.0 90 %dxswitch|",
                                 (unsigned)(0x10 * (i + 1)) & 0xffu, n_links);
}

/* False: there is no driver. */
static bool describe(char *text, size_t bytes)
{
    const char *const given = getenv("FAKE_NVML");

    if (given != NULL)
        (void)snprintf(text, bytes, "%s", given);
    else if (getenv("CUDAEMU_KERNELS") != NULL)
        describe_emulated(text, bytes);
    else
        return false;
    return true;
}

int nvmlInit_v2(void)
{
    char copy[4096], *rest = copy, *part;

    n_gpus = 0;
    memset(gpus, 0, sizeof(gpus));
    if (!describe(copy, sizeof(copy)))
        return NO_DRIVER;
    while ((part = strsep(&rest, "|")) != NULL && n_gpus < GPUS_MAX) {
        int i = 0;

        for (char *word; (word = strsep(&part, " ")) != NULL;)
            if (word[0] != '\0')
                take_word(&gpus[n_gpus], i++, word);
        n_gpus += i > 0;
    }
    return OK;
}

int nvmlShutdown(void)
{
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = n_gpus;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **gpu)
{
    if (index >= n_gpus)
        return INVALID;
    *gpu = &gpus[index];
    return OK;
}

int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci *pci)
{
    memset(pci, 0, sizeof(*pci));
    (void)snprintf(pci->bus_id, sizeof(pci->bus_id), "0000%.27s", gpu->bus);
    return OK;
}

int nvmlDeviceGetCudaComputeCapability(struct gpu *gpu, int *major, int *minor)
{
    *major = gpu->sm / 10;
    *minor = gpu->sm % 10;
    return OK;
}

int nvmlDeviceGetName(struct gpu *gpu, char *name, unsigned bytes)
{
    (void)snprintf(name, bytes, "Fake %d", gpu->sm);
    return OK;
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *uuid, unsigned bytes)
{
    (void)snprintf(uuid, bytes, "GPU-%04d-fake", (int)(gpu - gpus));
    return OK;
}

int nvmlDeviceGetNvLinkState(struct gpu *gpu, unsigned link, int *is_active)
{
    if (link >= LINKS_MAX)
        return INVALID;
    *is_active = (int)link < gpu->n_links;
    return OK;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct gpu *gpu, unsigned link, struct pci *pci)
{
    const char *const target = gpu->target[link];

    if (strchr(target, ':') == NULL)
        return INVALID;
    memset(pci, 0, sizeof(*pci));
    (void)snprintf(pci->bus_id, sizeof(pci->bus_id), "%.31s", target);
    return OK;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(struct gpu *gpu, unsigned link, int *type)
{
    const char *const target = gpu->target[link];

    *type = strcmp(target, "switch") == 0 ? 2 : target[0] == '?' ? 255 : 0;
    return OK;
}
