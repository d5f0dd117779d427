// SPDX-License-Identifier: Apache-2.0
// Devices: shaped like a compute capability 9.0 part with few multiprocessors, otherwise invented.
#include "emu/emu_rt.h"
#include <stdio.h>
#include <string.h>
#include <algorithm>

thread_local int current_device = 0;
std::atomic<int> sticky_error{ 0 };
static std::atomic<bool> peers[max_devices][max_devices];

__attribute__((constructor)) static void banner()
{
    fprintf(stderr, "[cudaemu] emulated CUDA runtime on the CPU: a pass here is not a GPU pass\n");
}

int device_count()
{
    static const int n =
        static_cast<int>(std::clamp(emu_env_long("CUDAEMU_DEVICES", 2), 1L, 1L * max_devices));

    return n;
}

// Few, so that launches sized for the device stay small.
int sm_count()
{
    static const int n = static_cast<int>(std::clamp(emu_env_long("CUDAEMU_SMS", 4), 1L, 132L));

    return n;
}

int bus_id(int dev)
{
    return 0x10 + 0x10 * dev;
}

static bool is_valid(int dev)
{
    return dev >= 0 && dev < device_count();
}

API cudaError_t cudaGetDeviceCount(int *n)
{
    *n = device_count();
    return cudaSuccess;
}

API cudaError_t cudaGetDevice(int *dev)
{
    *dev = current_device;
    return cudaSuccess;
}

API cudaError_t cudaSetDevice(int dev)
{
    if (!is_valid(dev))
        return ret(cudaErrorInvalidDevice);
    current_device = dev;
    return cudaSuccess;
}

API cudaError_t cudaDeviceReset()
{
    return cudaSuccess;
}

API cudaError_t cudaSetDeviceFlags(unsigned)
{
    return cudaSuccess;
}

API cudaError_t cudaDriverGetVersion(int *v)
{
    *v = 13000;
    return cudaSuccess;
}

API cudaError_t cudaRuntimeGetVersion(int *v)
{
    *v = 13000;
    return cudaSuccess;
}

API cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int dev)
{
    if (!is_valid(dev))
        return ret(cudaErrorInvalidDevice);
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), "cudaemu");
    memcpy(&p->uuid, "cudaemu", 8);
    p->uuid.bytes[15] = static_cast<char>(dev);
    p->totalGlobalMem = memory_limit();
    p->major = 9;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->multiProcessorCount = sm_count();
    p->maxThreadsPerMultiProcessor = threads_per_sm;
    p->maxBlocksPerMultiProcessor = blocks_per_sm;
    p->regsPerBlock = 65536;
    p->sharedMemPerBlock = 49152;
    p->sharedMemPerBlockOptin = shared_per_block;
    p->sharedMemPerMultiprocessor = shared_per_sm;
    p->reservedSharedMemPerBlock = shared_reserved;
    p->memoryBusWidth = 5120;
    p->l2CacheSize = 50 << 20;
    p->pciBusID = bus_id(dev);
    p->asyncEngineCount = 3;
    p->concurrentKernels = p->unifiedAddressing = p->canMapHostMemory = 1;
    p->memoryPoolsSupported = p->cooperativeLaunch = 1;
    return cudaSuccess;
}

cudaError_t device_attribute(int *v, int a, int dev)
{
    static const std::map<int, int> known = {
        { cudaDevAttrMaxThreadsPerBlock, 1024 },
        { cudaDevAttrWarpSize, 32 },
        { cudaDevAttrMultiProcessorCount, sm_count() },
        { cudaDevAttrMaxThreadsPerMultiProcessor, threads_per_sm },
        { cudaDevAttrMaxBlocksPerMultiprocessor, blocks_per_sm },
        { cudaDevAttrComputeCapabilityMajor, 9 },
        { cudaDevAttrMaxSharedMemoryPerBlock, 49152 },
        { cudaDevAttrMaxSharedMemoryPerBlockOptin, shared_per_block },
        { cudaDevAttrMaxSharedMemoryPerMultiprocessor, shared_per_sm },
        { cudaDevAttrReservedSharedMemoryPerBlock, shared_reserved },
        { cudaDevAttrUnifiedAddressing, 1 },
        { cudaDevAttrMemoryPoolsSupported, 1 },
        { cudaDevAttrCanMapHostMemory, 1 },
        { cudaDevAttrCooperativeLaunch, 1 },
    };

    if (!is_valid(dev))
        return cudaErrorInvalidDevice;
    auto it = known.find(a);
    *v = a == cudaDevAttrPciBusId ? bus_id(dev) : it != known.end() ? it->second : 0;
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr a, int dev)
{
    return ret(device_attribute(v, a, dev));
}

API cudaError_t cudaDeviceGetPCIBusId(char *s, int n, int dev)
{
    if (!is_valid(dev))
        return ret(cudaErrorInvalidDevice);
    snprintf(s, static_cast<size_t>(n), "0000:%02X:00.0", bus_id(dev));
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetByPCIBusId(int *dev, const char *s)
{
    unsigned domain, bus;

    if (sscanf(s, "%x:%x", &domain, &bus) == 2) {
        for (*dev = 0; *dev < device_count(); ++*dev) {
            if (static_cast<int>(bus) == bus_id(*dev))
                return cudaSuccess;
        }
    }
    return ret(cudaErrorInvalidDevice);
}

// ---- peers ----
static bool may_be_peers(int a, int b)
{
    return a != b && emu_env_long("CUDAEMU_P2P", 1) != 0;
}

bool peer_enabled(int dev, int peer)
{
    return peers[dev][peer];
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b)
{
    if (!is_valid(a) || !is_valid(b))
        return ret(cudaErrorInvalidDevice);
    *can = may_be_peers(a, b);
    return cudaSuccess;
}

API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    if (!is_valid(peer) || peer == current_device)
        return ret(cudaErrorInvalidDevice);
    if (flags != 0)
        return ret(cudaErrorInvalidValue);
    if (!may_be_peers(current_device, peer))
        return ret(cudaErrorPeerAccessUnsupported);
    return ret(peers[current_device][peer].exchange(true) ? cudaErrorPeerAccessAlreadyEnabled
                                                          : cudaSuccess);
}

API cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    if (!is_valid(peer))
        return ret(cudaErrorInvalidDevice);
    return ret(peers[current_device][peer].exchange(false) ? cudaSuccess
                                                           : cudaErrorPeerAccessNotEnabled);
}

API cudaError_t cudaDeviceSetLimit(cudaLimit, size_t)
{
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetLimit(size_t *v, cudaLimit)
{
    *v = 1024;
    return cudaSuccess;
}
