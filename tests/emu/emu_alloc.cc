// SPDX-License-Identifier: Apache-2.0
// Device memory: pieces of one memfd per process, each ending at a guard page of the window. Fresh
// memory is poison, addresses are never handed out twice, and freed pages fault: overruns, use
// before writing and use after free are seen.
#include "emu/emu_rt.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t page_bytes = 4096;
static const int fresh_byte = 0xCB, canary_byte = 0xFD;

std::mutex memory_lock;
static size_t used_bytes[max_devices];

// Never destroyed: workers outlive main.
std::map<uintptr_t, Alloc> &allocs()
{
    static auto &all = *new std::map<uintptr_t, Alloc>;

    return all;
}

static std::set<uintptr_t> &live_device()
{
    static auto &live = *new std::set<uintptr_t>;

    return live;
}

size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

size_t memory_limit()
{
    return static_cast<size_t>(emu_env_long("CUDAEMU_MEM_MB", 4096)) << 20;
}

size_t memory_used(int dev)
{
    std::lock_guard<std::mutex> l(memory_lock);

    return used_bytes[dev];
}

// ---- look-up ----
Alloc *nearest_alloc(uintptr_t p)
{
    auto it = allocs().upper_bound(p);

    return it == allocs().begin() ? nullptr : &std::prev(it)->second;
}

Alloc *find_alloc(const void *p)
{
    const uintptr_t a = reinterpret_cast<uintptr_t>(p);
    Alloc *near = nearest_alloc(a);

    return near && a < near->p + near->n && !near->freed ? near : nullptr;
}

void for_each_open(void (*f)(const Alloc &))
{
    for (uintptr_t p : live_device())
        f(allocs()[p]);
}

bool is_registered(const void *p)
{
    std::lock_guard<std::mutex> l(memory_lock);

    return find_alloc(p) != nullptr;
}

API int emu_is_reachable(const void *p, size_t bytes)
{
    std::lock_guard<std::mutex> l(memory_lock);
    const Alloc *a = find_alloc(p);

    return a && bytes <= a->n && reinterpret_cast<uintptr_t>(p) - a->p <= a->n - bytes;
}

// ---- allocate ----
static void publish(const Alloc &a) // protect, poison the redzones, list
{
    emu_asan_poison(reinterpret_cast<void *>(a.map), a.map_bytes);
    emu_asan_unpoison(reinterpret_cast<void *>(a.p), a.n);
    window_protect(a.map, a.map_bytes);
    if (a.kind == Mem::DEVICE)
        used_bytes[a.dev] += a.n;
    allocs()[a.p] = a;
    live_device().insert(a.p);
}

void *dev_alloc(size_t n, int dev)
{
    window_init();
    std::lock_guard<std::mutex> l(memory_lock);
    Alloc a;

    a.n = n ? n : 1;
    a.dev = dev;
    if (a.n > memory_limit() || used_bytes[dev] + a.n > memory_limit())
        return nullptr;
    const size_t body = round_up(a.n, static_cast<size_t>(emu_env_long("CUDAEMU_ALIGN", 256)));
    a.map_bytes = round_up(body, page_bytes);
    a.offset = window_next_offset();
    a.map = window_map(a.map_bytes, window_fd(), a.offset, true);
    if (!a.map)
        return nullptr;
    a.p = a.map + a.map_bytes - body; // the end sits against the guard page
    memset(reinterpret_cast<void *>(a.map), canary_byte, a.map_bytes);
    memset(reinterpret_cast<void *>(a.p), getenv("CUDAEMU_ZERO") ? 0 : fresh_byte, a.n);
    publish(a);
    return reinterpret_cast<void *>(a.p);
}

void *ipc_map(Alloc a, int fd, size_t offset_in_map)
{
    std::lock_guard<std::mutex> l(memory_lock);

    a.kind = Mem::IPC;
    a.map = window_map(a.map_bytes, fd, a.offset, false);
    if (!a.map)
        return nullptr;
    a.p = a.map + offset_in_map;
    publish(a);
    return reinterpret_cast<void *>(a.p);
}

void add_symbol_memory(void *p, size_t n)
{
    std::lock_guard<std::mutex> l(memory_lock);
    Alloc a;

    a.p = reinterpret_cast<uintptr_t>(p);
    a.n = n;
    a.kind = Mem::SYMBOL;
    allocs()[a.p] = a;
}

// ---- free ----
static void check_canary(const Alloc &a)
{
    for (uintptr_t q = a.map; q < a.map + a.map_bytes; q++) {
        if (q == a.p)
            q += a.n;
        if (q < a.map + a.map_bytes &&
            *reinterpret_cast<const volatile uint8_t *>(q) != canary_byte) {
            emu_report("write outside allocation %p size %zu (offset %ld)",
                       reinterpret_cast<void *>(a.p), a.n, static_cast<long>(q - a.p));
            return;
        }
    }
}

// Only for its own memory: who has it open through IPC may still write.
static void retire_pages(const Alloc &a)
{
    void *const map = reinterpret_cast<void *>(a.map);

    mprotect(map, a.map_bytes, PROT_READ); // keeps the key
    if (window_has_key()) {
        DeviceAccess open;
        check_canary(a);
    } else {
        check_canary(a);
    }
    fallocate(window_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, a.offset,
              static_cast<off_t>(a.map_bytes));
}

cudaError_t dev_free(void *p)
{
    std::lock_guard<std::mutex> l(memory_lock);
    auto it = allocs().find(reinterpret_cast<uintptr_t>(p));

    if (it == allocs().end() || it->second.freed || !it->second.is_on_device()) {
        emu_report("bad or double free of %p", p);
        return cudaErrorInvalidValue;
    }
    Alloc &a = it->second;
    a.freed = true;
    live_device().erase(a.p);
    emu_asan_unpoison(reinterpret_cast<void *>(a.map), a.map_bytes);
    if (a.kind == Mem::DEVICE) {
        used_bytes[a.dev] -= a.n;
        retire_pages(a);
    }
    mmap(reinterpret_cast<void *>(a.map), a.map_bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return cudaSuccess;
}

// ---- checks ----
static const uintptr_t null_page = 4096; // NULL, or a member of what is at NULL

// For copies and memsets issued by the host: a device range lies inside one allocation.
cudaError_t check_range(const void *p, size_t n, const char *what)
{
    if (n && reinterpret_cast<uintptr_t>(p) < null_page) {
        emu_report("%s: NULL (%p), %zu bytes", what, p, n);
        return cudaErrorInvalidValue;
    }
    if (!n || !in_window(p))
        return cudaSuccess;
    std::lock_guard<std::mutex> l(memory_lock);
    const Alloc *a = find_alloc(p);
    if (a && reinterpret_cast<uintptr_t>(p) + n <= a->p + a->n)
        return cudaSuccess;
    emu_report("%s: %p+%zu is outside any live device allocation", what, p, n);
    return cudaErrorInvalidValue;
}

cudaError_t check_argument(const void *p, int dev, const char *kernel, unsigned index)
{
    if (!p)
        return cudaSuccess;
    std::lock_guard<std::mutex> l(memory_lock);
    const Alloc *a = find_alloc(p);
    if (!a && !in_window(p)) {
        emu_report("%s: argument %u is the plain host address %p", kernel, index, p);
        return cudaErrorIllegalAddress;
    }
    // One past the end, or freed: legal to hand over, the access faults.
    if (a && a->kind == Mem::DEVICE && a->dev != dev && !peer_enabled(dev, a->dev)) {
        emu_report("%s: argument %u is memory of device %d, which device %d has no peer access to",
                   kernel, index, a->dev, dev);
        return cudaErrorIllegalAddress;
    }
    return cudaSuccess;
}
