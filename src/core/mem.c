/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one allocator. A block carries its tag in front, so tests can count what is left per module
 * and fail the n-th allocation; there is no other bookkeeping and no lock.
 *
 *     | padding to 64 | tag, magic, start: 64 bytes | user's bytes, 64-byte aligned ... |
 *
 * calloc() below it hands out large blocks as untouched zero pages, so rings and buffers cost
 * memory only as far as they are used.
 */
#include "core/core.h"

#include <stdlib.h>

#define ALIGN_BYTES 64
#define MAGIC_LIVE 0x6473636du
#define MAGIC_FREE 0x66726565u

struct block {
    uint32_t magic;
    enum dsc_mem_tag tag;
    void *start; /* what calloc() gave */
    uint8_t padding[ALIGN_BYTES - 8 - sizeof(void *)];
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
    uint8_t *start;
    struct block *block;

    DSC_ASSERT((unsigned)tag < DSC_MEM_N_TAGS);
    if (size != 0 && n > (SIZE_MAX - 4 * sizeof(struct block)) / size)
        return NULL;
    if (must_fail())
        return NULL;
    start = calloc(1, ALIGN_BYTES - 1 + sizeof(struct block) + n * size);
    if (start == NULL)
        return NULL;

    block = (struct block *)(((uintptr_t)start + ALIGN_BYTES - 1) & ~(uintptr_t)(ALIGN_BYTES - 1));
    block->magic = MAGIC_LIVE;
    block->tag = tag;
    block->start = start;
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
    free(block->start);
}

size_t dsc_mem_live(enum dsc_mem_tag tag)
{
    return atomic_load(&live[tag]);
}

void dsc_mem_fail_after(int64_t n_allocs)
{
    atomic_store(&fail_countdown, n_allocs);
}
