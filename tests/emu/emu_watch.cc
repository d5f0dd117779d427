// SPDX-License-Identifier: Apache-2.0
// Counters of calls, calls that a test has forbidden, and reports.
#include "emu/emu_rt.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static std::atomic<uint64_t> counts[8], n_forbidden, n_faults;
static std::atomic<unsigned> forbidden_kinds;

static unsigned kind_of(Count c)
{
    switch (c) {
    case Count::ALLOCATE:
        return EMU_ALLOCATE;
    case Count::SYNCHRONIZE:
        return EMU_SYNCHRONIZE;
    case Count::CREATE:
        return EMU_CREATE;
    case Count::LAUNCH:
    case Count::COPY:
        return EMU_LAUNCH;
    default:
        return 0;
    }
}

void counted(Count kind)
{
    counts[static_cast<int>(kind)]++;
}

cudaError_t watched(Count kind, const char *call)
{
    counted(kind);
    if (!(forbidden_kinds & kind_of(kind)))
        return cudaSuccess;
    n_forbidden++;
    emu_report("FORBIDDEN: %s, where the test allows none", call);
    return cudaErrorNotPermitted;
}

API void emu_forbid(unsigned kinds)
{
    forbidden_kinds = kinds;
}

API void emu_counts(EmuCounts *o)
{
    const auto get = [](Count c) { return counts[static_cast<int>(c)].load(); };

    *o = { get(Count::ALLOCATE), get(Count::SYNCHRONIZE),
           get(Count::CREATE),   get(Count::LAUNCH),
           get(Count::COPY),     get(Count::CAPTURED),
           get(Count::GRAPH),    get(Count::GRAPH_KERNEL),
           n_forbidden,          n_faults };
}

// ---- reports: one write each, also from the fault handler ----
static void say(const char *format, va_list args)
{
    char line[1024] = "[cudaemu] ";
    const int n = vsnprintf(line + 10, sizeof(line) - 12, format, args);
    size_t end = 10 + (n < 0 ? 0 : static_cast<size_t>(n));

    if (end > sizeof(line) - 2)
        end = sizeof(line) - 2;
    line[end++] = '\n';
    if (write(2, line, end) < 0)
        return; // nobody listens
}

void emu_report(const char *format, ...)
{
    va_list args;

    n_faults++;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

void emu_log(const char *format, ...)
{
    static const bool is_verbose = emu_env_long("CUDAEMU_VERBOSE", 0) != 0;
    va_list args;

    if (!is_verbose)
        return;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

void emu_die(const char *what)
{
    perror("[cudaemu]");
    emu_report("%s", what);
    abort();
}

long emu_env_long(const char *name, long default_value)
{
    const char *e = getenv(name);
    char *end;

    if (!e || !*e)
        return default_value;
    const long v = strtol(e, &end, 10);
    if (*end) {
        emu_report("%s=%s: expected a number", name, e);
        abort();
    }
    return v;
}

// ---- AddressSanitizer, where the process runs under it ----
extern "C" __attribute__((weak)) void __asan_poison_memory_region(const volatile void *, size_t);
extern "C" __attribute__((weak)) void __asan_unpoison_memory_region(const volatile void *, size_t);

void emu_asan_poison(const void *p, size_t bytes)
{
    if (__asan_poison_memory_region)
        __asan_poison_memory_region(p, bytes);
}

void emu_asan_unpoison(const void *p, size_t bytes)
{
    if (__asan_unpoison_memory_region)
        __asan_unpoison_memory_region(p, bytes);
}
