/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC32C. ISA-L's, because that is a table walk on old CPUs and a few bytes per cycle on new ones.
 */
#include "core/core.h"

#include <limits.h>

#include <isa-l/crc.h>

/*
 * ISA-L's AVX-512 code returns with the upper halves of the vector registers in use, and then every
 * SSE instruction waits for them, here and in the caller's code: 5 times slower, measured.
 */
static void release_upper_halves(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx"))
        __asm__ volatile("vzeroupper" ::
                             : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7",
                               "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14",
                               "xmm15");
#endif
}

/* ISA-L works on the raw register: both complements of CRC32C are ours. Its length is an int. */
uint32_t dsc_crc32c(uint32_t crc, const void *data, size_t n)
{
    const uint8_t *p = data;
    uint32_t state = ~crc;

    while (n > 0) {
        const size_t part = dsc_min_size(n, INT_MAX);

        /* ISA-L's prototype lacks a const: it only reads. */
        state = crc32_iscsi((unsigned char *)(uintptr_t)p, (int)part, state);
        p += part;
        n -= part;
    }
    release_upper_halves();
    return ~state;
}
