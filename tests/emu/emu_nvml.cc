// SPDX-License-Identifier: Apache-2.0
// A small libnvidia-ml.so.1 for the devices of the emulated runtime: who they are, which may be
// peers, and CUDAEMU_NVLINKS links each to a switch (0 by default). CUDA's headers do not bring
// nvml.h, so its few numbers and structures stand here.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVML_API extern "C" __attribute__((visibility("default")))

typedef void *Device; // device index + 1
enum Result { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum P2PStatus { P2P_OK = 0, P2P_CHIPSET_NOT_SUPPORTED = 1 };
enum Topology { SAME_HOST_BRIDGE = 30 };
enum RemoteType { REMOTE_SWITCH = 2 };

struct PciInfo {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

static long env_number(const char *name, long default_value)
{
    const char *e = getenv(name);

    return e && *e ? strtol(e, nullptr, 10) : default_value;
}

static unsigned device_count()
{
    return static_cast<unsigned>(env_number("CUDAEMU_DEVICES", 2));
}

static unsigned index_of(Device d)
{
    return static_cast<unsigned>(reinterpret_cast<size_t>(d)) - 1;
}

static bool is_device(Device d)
{
    return index_of(d) < device_count();
}

static unsigned bus_of(unsigned index) // as the emulated runtime numbers them
{
    return 0x10 * (index + 1);
}

static int put_text(char *to, unsigned size, const char *text)
{
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    snprintf(to, size, "%s", text);
    return OK;
}

// ---- the library ----
NVML_API int nvmlInit()
{
    return OK;
}

NVML_API int nvmlInit_v2()
{
    return OK;
}

NVML_API int nvmlShutdown()
{
    return OK;
}

NVML_API const char *nvmlErrorString(int r)
{
    return r == OK ? "cudaemu nvml: ok" : "cudaemu nvml: error";
}

NVML_API int nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    return put_text(text, size, "580.0.cudaemu");
}

// ---- which devices ----
NVML_API int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = device_count();
    return OK;
}

NVML_API int nvmlDeviceGetCount(unsigned *n)
{
    return nvmlDeviceGetCount_v2(n);
}

NVML_API int nvmlDeviceGetHandleByIndex_v2(unsigned i, Device *d)
{
    if (i >= device_count())
        return INVALID;
    *d = reinterpret_cast<Device>(static_cast<size_t>(i + 1));
    return OK;
}

NVML_API int nvmlDeviceGetHandleByIndex(unsigned i, Device *d)
{
    return nvmlDeviceGetHandleByIndex_v2(i, d);
}

NVML_API int nvmlDeviceGetHandleByPciBusId_v2(const char *s, Device *d)
{
    unsigned domain, bus;

    if (sscanf(s, "%x:%x", &domain, &bus) != 2 || bus % 0x10 || bus < bus_of(0))
        return INVALID;
    return nvmlDeviceGetHandleByIndex_v2(bus / 0x10 - 1, d) == OK ? OK : NOT_FOUND;
}

NVML_API int nvmlDeviceGetHandleByPciBusId(const char *s, Device *d)
{
    return nvmlDeviceGetHandleByPciBusId_v2(s, d);
}

NVML_API int nvmlDeviceGetIndex(Device d, unsigned *i)
{
    *i = index_of(d);
    return is_device(d) ? OK : INVALID;
}

NVML_API int nvmlDeviceGetName(Device d, char *text, unsigned size)
{
    return is_device(d) ? put_text(text, size, "cudaemu") : INVALID;
}

NVML_API int nvmlDeviceGetUUID(Device d, char *text, unsigned size)
{
    char uuid[48];

    snprintf(uuid, sizeof(uuid), "GPU-63756461-656d-7500-0000-0000000000%02x", index_of(d) & 0xff);
    return is_device(d) ? put_text(text, size, uuid) : INVALID;
}

NVML_API int nvmlDeviceGetPciInfo_v3(Device d, PciInfo *info)
{
    if (!is_device(d))
        return INVALID;
    memset(info, 0, sizeof(*info));
    info->bus = bus_of(index_of(d));
    snprintf(info->bus_id_legacy, sizeof(info->bus_id_legacy), "0000:%02X:00.0", info->bus);
    snprintf(info->bus_id, sizeof(info->bus_id), "00000000:%02X:00.0", info->bus);
    return OK;
}

NVML_API int nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor)
{
    *major = 9;
    *minor = 0;
    return is_device(d) ? OK : INVALID;
}

// ---- how they are connected ----
NVML_API int nvmlDeviceGetP2PStatus(Device a, Device b, int, int *status)
{
    if (!is_device(a) || !is_device(b))
        return INVALID;
    *status = env_number("CUDAEMU_P2P", 1) ? P2P_OK : P2P_CHIPSET_NOT_SUPPORTED;
    return OK;
}

NVML_API int nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, int *level)
{
    *level = SAME_HOST_BRIDGE;
    return is_device(a) && is_device(b) ? OK : INVALID;
}

static bool has_link(Device d, unsigned link)
{
    return is_device(d) && static_cast<long>(link) < env_number("CUDAEMU_NVLINKS", 0);
}

NVML_API int nvmlDeviceGetNvLinkState(Device d, unsigned link, int *is_active)
{
    *is_active = 1;
    return has_link(d, link) ? OK : NOT_SUPPORTED;
}

NVML_API int nvmlDeviceGetNvLinkVersion(Device d, unsigned link, unsigned *version)
{
    *version = 4;
    return has_link(d, link) ? OK : NOT_SUPPORTED;
}

NVML_API int nvmlDeviceGetNvLinkCapability(Device d, unsigned link, int, unsigned *result)
{
    *result = 1;
    return has_link(d, link) ? OK : NOT_SUPPORTED;
}

NVML_API int nvmlDeviceGetNvLinkRemoteDeviceType(Device d, unsigned link, int *type)
{
    *type = REMOTE_SWITCH;
    return has_link(d, link) ? OK : NOT_SUPPORTED;
}

NVML_API int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device d, unsigned link, PciInfo *info)
{
    if (!has_link(d, link))
        return NOT_SUPPORTED;
    memset(info, 0, sizeof(*info));
    info->bus = 0xf0; // the switch
    snprintf(info->bus_id_legacy, sizeof(info->bus_id_legacy), "0000:F0:00.0");
    snprintf(info->bus_id, sizeof(info->bus_id), "00000000:F0:00.0");
    return OK;
}

NVML_API int nvmlDeviceGetNvLinkRemotePciInfo(Device d, unsigned link, PciInfo *info)
{
    return nvmlDeviceGetNvLinkRemotePciInfo_v2(d, link, info);
}

// ---- looked up by NCCL, but there is nothing to report ----
NVML_API int nvmlDeviceGetFieldValues(Device, int, void *)
{
    return NOT_SUPPORTED;
}

NVML_API int nvmlDeviceGetGpuFabricInfoV(Device, void *)
{
    return NOT_SUPPORTED;
}

NVML_API int nvmlDeviceGetPlatformInfo(Device, void *)
{
    return NOT_SUPPORTED;
}
