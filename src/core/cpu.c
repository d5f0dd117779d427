/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the CPU can do, how many of them there are, and the floating-point mode. FTZ and DAZ are
 * inherited by threads and set by some applications (-ffast-math start-up code); with them the
 * codecs would not give the same bits everywhere.
 */
#include "core/core.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

#define MASK_WORDS 128 /* 8192 CPUs, what the kernel allows */
#define MXCSR_DEFAULT 0x1f80u
#define CACHES_MAX 8 /* of a CPU */
#define CACHE_TEXT "/sys/devices/system/cpu/cpu%d/cache/index%d/%s"

#if defined(__x86_64__)
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;

    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 29)) != 0;
}

/* The compiler's builtins also check that the kernel saves the wide registers. */
static uint32_t detect(void)
{
    uint32_t found = 0;

    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && has_f16c())
        found |= DSC_CPU_AVX2;
    if (found != 0 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        found |= DSC_CPU_AVX512;
    return found;
}
#elif defined(__aarch64__)
static uint32_t detect(void)
{
    return DSC_CPU_NEON;
}
#else
static uint32_t detect(void)
{
    return 0;
}
#endif

uint32_t dsc_cpu_features(void)
{
    const struct dsc_env *env;

    /* A bad variable was reported by the call; whoever can fail because of it does. */
    if (dsc_env_get(&env) < 0)
        return detect();
    return detect() & (uint32_t)env->cpu_mask;
}

int dsc_cpu_allowed(void)
{
    unsigned long mask[MASK_WORDS] = { 0 };
    int n = 0;

    if (sched_getaffinity(0, sizeof(mask), (cpu_set_t *)(void *)mask) != 0) {
        const long online = sysconf(_SC_NPROCESSORS_ONLN);

        return online > 0 ? (int)online : 1;
    }
    for (size_t i = 0; i < DSC_ARRAY_LEN(mask); i++)
        n += __builtin_popcountl(mask[i]);
    return n > 0 ? n : 1;
}

/* "32768K"; CPUs as masks of 32 bits, "3" or "ffffffff,00000001". 0: there is no such cache. */
static uint64_t read_cache(int cpu, int index, uint64_t *n_cpus_out)
{
    char path[96];
    uint64_t kib = 0;
    uint32_t mask = 0;
    FILE *file;

    *n_cpus_out = 0;
    (void)snprintf(path, sizeof(path), CACHE_TEXT, cpu, index, "size");
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%" SCNu64 "K", &kib) != 1)
        kib = 0;
    (void)fclose(file);
    (void)snprintf(path, sizeof(path), CACHE_TEXT, cpu, index, "shared_cpu_map");
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    while (fscanf(file, "%" SCNx32 ",", &mask) == 1)
        *n_cpus_out += (uint64_t)__builtin_popcount(mask);
    (void)fclose(file);
    return kib * 1024;
}

/* Caches are listed from the nearest on, so the last one is what is before memory. */
uint64_t dsc_cpu_cache_bytes(void)
{
    const int cpu = sched_getcpu();
    uint64_t share = 0;

    for (int i = 0; cpu >= 0 && i < CACHES_MAX; i++) {
        uint64_t n_cpus;
        const uint64_t bytes = read_cache(cpu, i, &n_cpus);

        if (bytes > 0 && n_cpus > 0)
            share = bytes / n_cpus;
    }
    return share;
}

#if defined(__x86_64__)
uint32_t dsc_fp_enter(void)
{
    const uint32_t saved = _mm_getcsr();

    _mm_setcsr(MXCSR_DEFAULT);
    return saved;
}

void dsc_fp_leave(uint32_t saved)
{
    _mm_setcsr(saved);
}
#elif defined(__aarch64__)
uint32_t dsc_fp_enter(void)
{
    uint64_t saved;

    __asm__ volatile("mrs %0, fpcr" : "=r"(saved));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return (uint32_t)saved;
}

void dsc_fp_leave(uint32_t saved)
{
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)saved));
}
#else
uint32_t dsc_fp_enter(void)
{
    return 0;
}

void dsc_fp_leave(uint32_t saved)
{
    (void)saved;
}
#endif
