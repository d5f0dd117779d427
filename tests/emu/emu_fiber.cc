// SPDX-License-Identifier: Apache-2.0
// CUDA threads as fibers: a stack each, switched by hand. Barriers and warp operations are
// generation counters. This file is never instrumented by a sanitizer, which would not know the
// stacks.
#include "emu/emu_fiber.h"
#include "emu/emu_report.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <algorithm>

#ifndef __x86_64__
#error "the emulator switches stacks and handles faults on x86-64 only"
#endif

__thread EmuThread *emu_cur;
static __thread void *scheduler_sp;

// Saves the callee-saved registers and switches stacks.
extern "C" void emu_switch(void **save, void *load);
asm(R"(.text
.globl emu_switch
.hidden emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size emu_switch,.-emu_switch)");

static const size_t page_bytes = 4096;
static const size_t stack_bytes = 128 * 1024;

// ---- stacks end in a guard page and are recycled per worker thread ----
struct StackPool {
    std::vector<char *> idle;

    char *get()
    {
        if (idle.empty()) {
            char *p =
                static_cast<char *>(mmap(nullptr, stack_bytes + page_bytes, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
            if (p == MAP_FAILED || mprotect(p, page_bytes, PROT_NONE) != 0)
                emu_die("no stack for a CUDA thread: too many blocks resident together?");
            return p + page_bytes;
        }
        char *p = idle.back();
        idle.pop_back();
        emu_asan_unpoison(p, stack_bytes); // a trapped fiber leaves its frames behind
        return p;
    }
    ~StackPool()
    {
        for (char *p : idle)
            munmap(p - page_bytes, stack_bytes + page_bytes);
    }
};
static thread_local StackPool stacks;

static void to_scheduler(EmuThread *t)
{
    emu_switch(&t->sp, scheduler_sp);
}

static void leave_barrier(EmuBlock *b)
{
    b->barrier.arrived = 0;
    b->barrier.generation++;
}

static void fiber_main()
{
    EmuThread *t = emu_cur;
    EmuBlock *b = t->block;

    b->grid->launch->kernel->fn(t);
    t->state = EMU_EXITED;
    b->live--;
    b->grid->live--;
    b->grid->progress++;
    if (b->barrier.arrived && b->barrier.arrived >= b->live) // exited threads no longer count
        leave_barrier(b);
    to_scheduler(t);
    __builtin_unreachable();
}

void emu_fiber_init(EmuThread *t)
{
    t->stack = stacks.get();
    void **sp = reinterpret_cast<void **>(static_cast<char *>(t->stack) + stack_bytes);
    *--sp = nullptr; // return address of fiber_main
    *--sp = reinterpret_cast<void *>(fiber_main);
    for (int r = 0; r < 6; r++)
        *--sp = nullptr;
    t->sp = sp;
}

void emu_fiber_fini(EmuThread *t)
{
    stacks.idle.push_back(static_cast<char *>(t->stack));
}

void emu_fiber_run(EmuThread *t)
{
    emu_cur = t;
    emu_switch(&scheduler_sp, t->sp);
    emu_cur = nullptr;
}

// ---- waiting ----
static void wait_while(EmuThread *t, const uint32_t *word, uint32_t value, uint32_t what)
{
    t->what = what;
    t->wait_word = word;
    t->wait_value = value;
    t->state = EMU_WAITING;
    while (*word == value)
        to_scheduler(t);
    t->state = EMU_RUNNABLE;
    t->what = EMU_AT_NOTHING;
    t->block->grid->progress++;
}

extern "C" void emu_yield(EmuThread *t)
{
    t->block->grid->sleeps++;
    t->what = EMU_AT_SLEEP;
    to_scheduler(t);
    t->what = EMU_AT_NOTHING;
}

extern "C" uint32_t emu_barrier_reduce(EmuThread *t, int op, int pred)
{
    EmuBlock *b = t->block;
    EmuBarrier *x = &b->barrier;
    const uint32_t generation = x->generation;
    uint32_t *reduced = x->reduced[generation & 1];

    if (!x->arrived) {
        reduced[0] = reduced[2] = 0;
        reduced[1] = 1;
    }
    reduced[0] += pred != 0;
    reduced[1] &= pred != 0;
    reduced[2] |= pred != 0;
    b->grid->progress++;
    if (++x->arrived >= b->live)
        leave_barrier(b);
    else
        wait_while(t, &x->generation, generation, EMU_AT_BARRIER);
    return reduced[op];
}

extern "C" void emu_barrier(EmuThread *t)
{
    emu_barrier_reduce(t, 0, 0);
}

static EmuWarpGroup *find_group(EmuBlock *b, uint32_t warp, uint32_t mask)
{
    for (EmuWarpGroup &g : b->warps[warp]) {
        if (g.mask == mask)
            return &g;
    }
    return &b->warps[warp].emplace_back(mask);
}

extern "C" void emu_warp_exchange(EmuThread *t, uint32_t mask, uint64_t v, uint64_t out[32])
{
    if (!(mask >> t->lane & 1))
        emu_trap(t, "warp operation: the calling lane is not in its own mask");

    EmuWarpGroup *g = find_group(t->block, t->warp, mask);
    const uint32_t lanes = std::min(32u, t->n_threads - t->warp * 32);
    const uint32_t expected = lanes < 32 ? mask & ((1u << lanes) - 1) : mask; // a partial warp
    const uint32_t generation = g->generation;

    g->slot[generation & 1][t->lane] = v;
    g->arrived |= 1u << t->lane;
    t->block->grid->progress++;
    if ((g->arrived & expected) == expected) {
        g->arrived = 0;
        g->generation++;
    } else {
        wait_while(t, &g->generation, generation, EMU_AT_WARP_OPERATION);
    }
    memcpy(out, g->slot[generation & 1], sizeof(g->slot[0]));
}

// ---- shared memory: each buffer ends at a guard page and starts out as poison ----
void *emu_shared_buffer(EmuBlock *b, const void *key, size_t bytes)
{
    for (EmuSharedBuffer &s : b->shared) {
        if (s.key == key)
            return s.p;
    }
    const size_t used = (std::max(bytes, static_cast<size_t>(1)) + 15) & ~static_cast<size_t>(15);
    const size_t body = (used + page_bytes - 1) & ~(page_bytes - 1);
    uint8_t *map = static_cast<uint8_t *>(mmap(nullptr, body + page_bytes, PROT_READ | PROT_WRITE,
                                               MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (map == MAP_FAILED || mprotect(map + body, page_bytes, PROT_NONE) != 0)
        emu_die("no shared memory for a block");
    uint8_t *p = map + body - used;
    memset(map, 0xCD, body);
    emu_asan_poison(map, body);
    emu_asan_unpoison(p, bytes);
    b->shared.push_back({ key, map, body + page_bytes, p });
    return p;
}

extern "C" void *emu_shared(EmuThread *t, const void *key, size_t bytes)
{
    return emu_shared_buffer(t->block, key, bytes);
}

// ---- faults ----
extern "C" void emu_trap(EmuThread *t, const char *msg)
{
    emu_report("%s: %s (block %u,%u,%u thread %u,%u,%u)", t->block->grid->launch->kernel->name, msg,
               t->ctaid[0], t->ctaid[1], t->ctaid[2], t->tid[0], t->tid[1], t->tid[2]);
    t->block->grid->error = EMU_ILLEGAL_ADDRESS;
    to_scheduler(t);
    __builtin_unreachable();
}

static thread_local char fault_text[320];
static void fault_landing()
{
    emu_trap(emu_cur, fault_text);
}

extern "C" int emu_redirect_fault(void *ucontext, const char *msg)
{
    if (!emu_cur)
        return 0;
    snprintf(fault_text, sizeof(fault_text), "%s", msg);
    auto *regs = static_cast<ucontext_t *>(ucontext)->uc_mcontext.gregs;
    char *top = static_cast<char *>(emu_cur->stack) + stack_bytes; // the fiber is given up
    regs[REG_RIP] = reinterpret_cast<greg_t>(fault_landing);
    regs[REG_RSP] = reinterpret_cast<greg_t>(top - 8);
    regs[REG_EFL] &= ~0x400; // direction flag
    return 1;
}
