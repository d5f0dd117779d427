// SPDX-License-Identifier: Apache-2.0
// Memory as CUDA's API names it: device, pinned, registered, and device memory of other processes.
#include "emu/emu_rt.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t page_bytes = 4096;
static const int fresh_byte = 0xCB;

// ---- device ----
API cudaError_t cudaMalloc(void **p, size_t n)
{
    TRY(watched(Count::ALLOCATE, "cudaMalloc"));
    TRY(unsafe_call());
    *p = n ? dev_alloc(n, current_device) : nullptr;
    return ret(*p || !n ? cudaSuccess : cudaErrorMemoryAllocation);
}

API cudaError_t cudaFree(void *p)
{
    if (!p)
        return cudaSuccess;
    TRY(watched(Count::ALLOCATE, "cudaFree"));
    TRY(unsafe_call());
    for (const Token &t : all_work(current_device))
        t.wait();
    return ret(dev_free(p));
}

// In a capture the memory exists at once and the graph holds a node without effect.
API cudaError_t cudaMallocAsync(void **p, size_t n, cudaStream_t st)
{
    CUstream_st *s = to_stream(st);

    TRY(watched(Count::ALLOCATE, "cudaMallocAsync"));
    *p = dev_alloc(n, s->dev);
    if (s->capture)
        capture_node(s, cudaGraphNodeTypeMemAlloc);
    return ret(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

API cudaError_t cudaMallocFromPoolAsync(void **p, size_t n, cudaMemPool_t, cudaStream_t s)
{
    return cudaMallocAsync(p, n, s);
}

API cudaError_t cudaFreeAsync(void *p, cudaStream_t st)
{
    CUstream_st *s = to_stream(st);

    TRY(watched(Count::ALLOCATE, "cudaFreeAsync"));
    if (s->capture)
        capture_node(s, cudaGraphNodeTypeMemFree);
    else
        enqueue(s, [p] { dev_free(p); });
    return cudaSuccess;
}

API cudaError_t cudaMemPoolCreate(cudaMemPool_t *p, const cudaMemPoolProps *)
{
    *p = static_cast<cudaMemPool_t>(malloc(1));
    return cudaSuccess;
}

API cudaError_t cudaMemPoolDestroy(cudaMemPool_t p)
{
    free(p);
    return cudaSuccess;
}

API cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *)
{
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *p, int dev)
{
    *p = reinterpret_cast<cudaMemPool_t>(static_cast<uintptr_t>(0x1000 + dev));
    return cudaSuccess;
}

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *total = memory_limit();
    *free_bytes = *total - memory_used(current_device);
    return cudaSuccess;
}

// ---- host ----
API cudaError_t cudaHostAlloc(void **p, size_t n, unsigned)
{
    Alloc a;

    TRY(watched(Count::ALLOCATE, "cudaHostAlloc"));
    TRY(unsafe_call());
    window_init();
    a.n = n ? n : 1;
    a.kind = Mem::PINNED;
    a.dev = current_device;
    a.map_bytes = round_up(a.n, page_bytes) + 2 * page_bytes;
    char *map = static_cast<char *>(
        mmap(nullptr, a.map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (map == MAP_FAILED)
        return ret(cudaErrorMemoryAllocation);
    mprotect(map + page_bytes, a.map_bytes - 2 * page_bytes, PROT_READ | PROT_WRITE);
    a.map = reinterpret_cast<uintptr_t>(map);
    a.p = a.map + a.map_bytes - page_bytes - round_up(a.n, 256);
    memset(reinterpret_cast<void *>(a.p), fresh_byte, a.n);
    std::lock_guard<std::mutex> l(memory_lock);
    allocs()[a.p] = a;
    *p = reinterpret_cast<void *>(a.p);
    return cudaSuccess;
}

API cudaError_t cudaMallocHost(void **p, size_t n)
{
    return cudaHostAlloc(p, n, 0);
}

API cudaError_t cudaFreeHost(void *p)
{
    if (!p)
        return cudaSuccess;
    TRY(watched(Count::ALLOCATE, "cudaFreeHost"));
    for (const Token &t : all_work(current_device))
        t.wait();
    std::lock_guard<std::mutex> l(memory_lock);
    auto it = allocs().find(reinterpret_cast<uintptr_t>(p));
    if (it == allocs().end() || it->second.kind != Mem::PINNED)
        return ret(cudaErrorInvalidValue);
    munmap(reinterpret_cast<void *>(it->second.map), it->second.map_bytes);
    allocs().erase(it);
    return cudaSuccess;
}

API cudaError_t cudaHostRegister(void *p, size_t n, unsigned)
{
    TRY(watched(Count::ALLOCATE, "cudaHostRegister"));
    window_init();
    std::lock_guard<std::mutex> l(memory_lock);
    if (find_alloc(p))
        return ret(cudaErrorHostMemoryAlreadyRegistered);
    Alloc a;
    a.p = reinterpret_cast<uintptr_t>(p);
    a.n = n;
    a.kind = Mem::REGISTERED;
    a.dev = current_device;
    allocs()[a.p] = a;
    return cudaSuccess;
}

API cudaError_t cudaHostUnregister(void *p)
{
    TRY(watched(Count::ALLOCATE, "cudaHostUnregister"));
    std::lock_guard<std::mutex> l(memory_lock);
    auto it = allocs().find(reinterpret_cast<uintptr_t>(p));
    if (it == allocs().end() || it->second.kind != Mem::REGISTERED)
        return ret(cudaErrorHostMemoryNotRegistered);
    allocs().erase(it);
    return cudaSuccess;
}

API cudaError_t cudaHostGetDevicePointer(void **d, void *h, unsigned)
{
    if (!is_registered(h))
        return ret(cudaErrorInvalidValue);
    *d = h;
    return cudaSuccess;
}

API cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *o, const void *p)
{
    std::lock_guard<std::mutex> l(memory_lock);
    const Alloc *a = find_alloc(p);

    memset(o, 0, sizeof(*o));
    o->device = a ? a->dev : -2;
    o->type = !a                ? cudaMemoryTypeUnregistered
              : a->is_on_host() ? cudaMemoryTypeHost
                                : cudaMemoryTypeDevice;
    o->devicePointer = a ? const_cast<void *>(p) : nullptr;
    o->hostPointer = !a || a->is_on_host() ? const_cast<void *>(p) : nullptr;
    return cudaSuccess;
}

// ---- IPC: the peer maps our memfd through /proc/<pid>/fd ----
struct IpcHandle {
    uint32_t magic, pid;
    int fd;
    uint32_t dev;
    uint64_t offset, map_bytes, in_map, n;
};
static const uint32_t ipc_magic = 0x454d5545;
static_assert(sizeof(IpcHandle) <= sizeof(cudaIpcMemHandle_t), "fits the opaque handle");

API cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *h, void *p)
{
    std::lock_guard<std::mutex> l(memory_lock);
    const Alloc *a = find_alloc(p);

    if (!a || a->kind != Mem::DEVICE)
        return ret(cudaErrorInvalidValue);
    const IpcHandle i = { ipc_magic,
                          static_cast<uint32_t>(getpid()),
                          window_fd(),
                          static_cast<uint32_t>(a->dev),
                          static_cast<uint64_t>(a->offset),
                          a->map_bytes,
                          a->p - a->map,
                          a->n };
    memset(h, 0, sizeof(*h));
    memcpy(h, &i, sizeof(i));
    return cudaSuccess;
}

API cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t h, unsigned)
{
    IpcHandle i;
    char path[64];
    Alloc a;

    memcpy(&i, &h, sizeof(i));
    TRY(watched(Count::ALLOCATE, "cudaIpcOpenMemHandle"));
    if (i.magic != ipc_magic || i.n > i.map_bytes || i.in_map > i.map_bytes - i.n)
        return ret(cudaErrorInvalidValue);
    if (i.pid == static_cast<uint32_t>(getpid())) // CUDA refuses handles of the own process
        return ret(cudaErrorDeviceUninitialized);
    window_init();
    snprintf(path, sizeof(path), "/proc/%u/fd/%d", i.pid, i.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return ret(cudaErrorMapBufferObjectFailed);
    a.n = i.n;
    a.dev = current_device;
    a.map_bytes = i.map_bytes;
    a.offset = static_cast<off_t>(i.offset);
    *p = ipc_map(a, fd, i.in_map);
    close(fd);
    return ret(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

API cudaError_t cudaIpcCloseMemHandle(void *p)
{
    TRY(watched(Count::ALLOCATE, "cudaIpcCloseMemHandle"));
    return ret(dev_free(p));
}
