/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one allocator. A block carries its tag in front, so tests can count what is left per module
 * and fail the n-th allocation; there is no other bookkeeping and no lock.
 *
 *     | tag, magic, padding: 64 bytes | user's bytes, 64-byte aligned ... |
 */
#include "core/core.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN_BYTES 64
#define MAGIC_LIVE 0x6473636du
#define MAGIC_FREE 0x66726565u

struct block {
    uint32_t magic;
    enum dsc_mem_tag tag;
    uint8_t padding[ALIGN_BYTES - 8];
};
_Static_assert(sizeof(struct block) == ALIGN_BYTES, "user's bytes keep the alignment");

static _Atomic size_t live[DSC_MEM_N_TAGS];
static _Atomic int64_t fail_countdown = -1; /* the allocation that takes it from 1 to 0 fails */

static bool must_fail(void)
{
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) <= 0)
        return false;
    return atomic_fetch_sub(&fail_countdown, 1) == 1;
}

void *dsc_calloc(enum dsc_mem_tag tag, size_t n, size_t size)
{
    void *memory;

    DSC_ASSERT((unsigned)tag < DSC_MEM_N_TAGS);
    if (size != 0 && n > (SIZE_MAX - 2 * sizeof(struct block)) / size)
        return NULL;
    if (must_fail() || posix_memalign(&memory, ALIGN_BYTES, sizeof(struct block) + n * size) != 0)
        return NULL;

    struct block *const block = memory;

    memset(block, 0, sizeof(*block) + n * size);
    block->magic = MAGIC_LIVE;
    block->tag = tag;
    atomic_fetch_add(&live[tag], 1);
    return block + 1;
}

void dsc_free(void *ptr)
{
    if (ptr == NULL)
        return;

    struct block *const block = (struct block *)ptr - 1;

    DSC_ASSERT(block->magic == MAGIC_LIVE);
    atomic_fetch_sub(&live[block->tag], 1);
    block->magic = MAGIC_FREE;
    free(block);
}

size_t dsc_mem_live(enum dsc_mem_tag tag)
{
    return atomic_load(&live[tag]);
}

void dsc_mem_fail_after(int64_t n_allocs)
{
    atomic_store(&fail_countdown, n_allocs);
}
