/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that tells on whoever leaves it. Each operand has an arena between two inaccessible pages:
 *
 *     | no access | canary |  elements  | canary | no access |
 *
 * Elements start at the front edge, one element after the canary (misaligned), or end at the back
 * edge, so that an access one element too far is a fault or a changed canary byte.
 */
#include "check/check.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define CANARY_BYTES ((size_t)64)
#define ARENA_BYTES (CHECK_ELEMS_MAX * sizeof(float) + 2 * PAGE)
#define CANARY 0xa5

uint8_t *check_arena_make(void)
{
    uint8_t *const base =
        mmap(NULL, ARENA_BYTES + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED || mprotect(base + PAGE, ARENA_BYTES, PROT_READ | PROT_WRITE) != 0) {
        perror("check: mmap");
        exit(2);
    }
    return base + PAGE;
}

uint8_t *check_arena_place(uint8_t *arena, enum check_placement place, size_t bytes,
                           size_t item_bytes)
{
    uint8_t *data = arena;

    if (place == CHECK_SHIFTED)
        data = arena + CANARY_BYTES + item_bytes;
    else if (place == CHECK_AT_BACK)
        data = arena + ARENA_BYTES - bytes;
    if (data > arena)
        memset(data - CANARY_BYTES, CANARY, CANARY_BYTES);
    if (data + bytes < arena + ARENA_BYTES)
        memset(data + bytes, CANARY, CANARY_BYTES);
    return data;
}

static bool is_canary(const uint8_t *bytes)
{
    for (size_t i = 0; i < CANARY_BYTES; i++) {
        if (bytes[i] != CANARY)
            return false;
    }
    return true;
}

bool check_arena_holds(const uint8_t *arena, const uint8_t *data, size_t bytes)
{
    if (data > arena && !is_canary(data - CANARY_BYTES))
        return false;
    return data + bytes >= arena + ARENA_BYTES || is_canary(data + bytes);
}

static sigjmp_buf fault_jump;

static void on_fault(int sig)
{
    siglongjmp(fault_jump, sig);
}

bool check_run_guarded(const struct check_row *row, const struct dsc_kernels *k,
                       struct check_call *call)
{
    const struct sigaction act = { .sa_handler = on_fault };
    struct sigaction old_segv, old_bus;
    volatile bool is_faulty = true;

    (void)sigaction(SIGSEGV, &act, &old_segv);
    (void)sigaction(SIGBUS, &act, &old_bus);
    if (sigsetjmp(fault_jump, 1) == 0) {
        row->run(k, call);
        is_faulty = false;
    }
    (void)sigaction(SIGSEGV, &old_segv, NULL);
    (void)sigaction(SIGBUS, &old_bus, NULL);
    return !is_faulty;
}
