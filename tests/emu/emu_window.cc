// SPDX-License-Identifier: Apache-2.0
// The window of addresses that device memory lives in, and who may touch it. With protection keys
// (PKU) rights belong to a thread, and only workers open the window. Without, the pages are
// PROT_NONE while no operation runs; CUDAEMU_LAZY=1 then sees to it that none runs unless somebody
// waits.
#include "emu/emu_rt.h"
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

static const size_t window_bytes = 64ull << 30;
static const size_t page_bytes = 4096;

static uintptr_t window =
    ~static_cast<uintptr_t>(0) >> 1; // sanitizers own fixed ranges: mmap decides
static size_t next_offset = 1 << 20;
static int memory_fd = -1, key = -1;
static struct sigaction old_segv;

bool in_window(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) - window < window_bytes;
}

bool window_has_key()
{
    return key > 0;
}

int window_fd()
{
    return memory_fd;
}

off_t window_next_offset()
{
    return static_cast<off_t>(next_offset);
}

void window_init()
{
    static std::once_flag once;

    std::call_once(once, [] {
        memory_fd = memfd_create("cudaemu", MFD_CLOEXEC);
        void *w = mmap(nullptr, window_bytes, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory_fd < 0 || w == MAP_FAILED)
            emu_die("no device window");
        window = reinterpret_cast<uintptr_t>(w);
        if (!getenv("CUDAEMU_NO_PKU"))
            key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
        fault_handler_init();
        emu_log("device window %p, protection key %d", w, key);
    });
}

uintptr_t window_map(size_t bytes, int fd, off_t offset, bool own)
{
    const uintptr_t map = window + next_offset;

    next_offset += bytes + 2 * page_bytes;
    if (next_offset > window_bytes || (own && ftruncate(fd, static_cast<off_t>(next_offset)) != 0))
        return 0;
    void *p = mmap(reinterpret_cast<void *>(map), bytes, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_FIXED, fd, offset);
    return p == MAP_FAILED ? 0 : map;
}

// ---- rights ----
static inline unsigned read_pkru()
{
    unsigned a, d;

    asm volatile(".byte 0x0f,0x01,0xee" : "=a"(a), "=d"(d) : "c"(0));
    return a;
}

static inline void write_pkru(unsigned v)
{
    asm volatile(".byte 0x0f,0x01,0xef" ::"a"(v), "c"(0), "d"(0) : "memory");
}

static int n_open;                  // without a key: operations that have the window open
static thread_local int open_depth; // DeviceAccess of this thread

void window_protect(uintptr_t map, size_t bytes)
{
    if (key > 0)
        pkey_mprotect(reinterpret_cast<void *>(map), bytes, PROT_READ | PROT_WRITE, key);
    else if (n_open == 0)
        mprotect(reinterpret_cast<void *>(map), bytes, PROT_NONE);
}

// Without a key: open for the first operation, close after the last.
static void count_open(int step)
{
    std::lock_guard<std::mutex> l(memory_lock);
    const bool was_open = n_open > 0;

    n_open += step;
    if (was_open == (n_open > 0))
        return;
    for_each_open(
        was_open
            ? [](const Alloc
                     &a) { mprotect(reinterpret_cast<void *>(a.map), a.map_bytes, PROT_NONE); }
            : [](const Alloc &a) {
                  mprotect(reinterpret_cast<void *>(a.map), a.map_bytes, PROT_READ | PROT_WRITE);
              });
}

DeviceAccess::DeviceAccess()
{
    open_depth++;
    if (key <= 0) {
        count_open(+1);
        return;
    }
    saved = read_pkru();
    write_pkru(saved & ~(3u << (2 * key)));
}

DeviceAccess::~DeviceAccess()
{
    open_depth--;
    if (key <= 0)
        count_open(-1);
    else
        write_pkru(saved);
}

HostAccess::HostAccess() : active(open_depth > 0)
{
    if (!active)
        return;
    if (key <= 0) {
        count_open(-1);
        return;
    }
    saved = read_pkru();
    write_pkru(saved | (3u << (2 * key)));
}

HostAccess::~HostAccess()
{
    if (!active)
        return;
    if (key <= 0)
        count_open(+1);
    else
        write_pkru(saved);
}

// ---- faults ----
static int describe_window_fault(char *m, size_t n, uintptr_t a, bool is_key_fault)
{
    // The thread may have died inside the allocator: no lock, then no neighbour.
    const bool is_locked = memory_lock.try_lock();
    const Alloc *near = is_locked ? nearest_alloc(a) : nullptr;
    const bool is_live = near && !near->freed && a < near->p + near->n;
    const bool is_host = !emu_cur && (is_live || is_key_fault);
    int used = snprintf(m, n, "%s at %p",
                        is_host ? "HOST DEREFERENCE OF DEVICE MEMORY"
                                : "access outside any live device allocation",
                        reinterpret_cast<void *>(a));

    if (near)
        used += snprintf(m + used, n - static_cast<size_t>(used),
                         "; nearest: %p size %zu dev %d%s, offset %ld",
                         reinterpret_cast<void *>(near->p), near->n, near->dev,
                         near->freed ? " (FREED)" : "", static_cast<long>(a - near->p));
    if (is_locked)
        memory_lock.unlock();
    return used;
}

static void on_segv(int, siginfo_t *si, void *context)
{
    const uintptr_t a = reinterpret_cast<uintptr_t>(si->si_addr);
    char m[300];
    int n = 0;

    if (in_window(si->si_addr))
        n = describe_window_fault(m, sizeof(m), a, si->si_code == SEGV_PKUERR);
    else if (emu_cur)
        snprintf(
            m, sizeof(m),
            "invalid access at %p (shared memory overrun, stack overflow, null or host address)",
            si->si_addr);
    if (emu_redirect_fault(context, m)) // in a kernel: becomes a sticky error
        return;
    if (n > 0)
        emu_report("%s", m);
    sigaction(SIGSEGV, &old_segv, nullptr); // fault again under the previous action
}

void fault_handler_init()
{
    struct sigaction sa = {};

    sa.sa_sigaction = on_segv;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &sa, &old_segv);
}

SignalStack::SignalStack()
{
    stack_t s = {};

    if (sigaltstack(nullptr, &s) == 0 && !(s.ss_flags & SS_DISABLE))
        return; // a sanitizer has set one
    s = {};
    s.ss_size = 64 * 1024;
    s.ss_sp = mmap(nullptr, s.ss_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (s.ss_sp == MAP_FAILED)
        return;
    map = s.ss_sp;
    sigaltstack(&s, nullptr);
}

SignalStack::~SignalStack()
{
    stack_t off = {};

    if (!map)
        return;
    off.ss_flags = SS_DISABLE;
    sigaltstack(&off, nullptr);
    munmap(map, 64 * 1024);
}
