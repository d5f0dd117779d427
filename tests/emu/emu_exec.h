// SPDX-License-Identifier: Apache-2.0
// What kernel modules and the emulated runtime share: the CUDA thread as kernel code sees it, the
// description of a kernel, and the calls of both sides.
#ifndef DSC_EMU_EXEC_H
#define DSC_EMU_EXEC_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct EmuBlock;

// One CUDA thread, run as a fiber.
typedef struct EmuThread {
    uint32_t tid[3], ntid[3], ctaid[3], nctaid[3];
    uint32_t lane, warp, n_threads;
    const uint8_t *params; // packed kernel arguments
    struct EmuBlock *block;
    void *sp, *stack;
    uint32_t state;            // runnable, waiting, exited
    uint32_t what;             // what it waits for, for the report of a deadlock
    const uint32_t *wait_word; // waits while *wait_word == wait_value
    uint32_t wait_value;
} EmuThread;

typedef void (*EmuKernelFn)(EmuThread *);

// One kernel instantiation. Sizes and offsets come from its C++ argument types.
typedef struct EmuKernelDesc {
    const char *name; // mangled
    EmuKernelFn fn;
    uint32_t n_params;
    const uint32_t *param_bytes, *param_offset;
    const uint8_t *param_is_pointer;
    uint32_t params_bytes;
    uint32_t is_resident; // its blocks wait for each other: all of them run interleaved
} EmuKernelDesc;

typedef struct EmuLaunch {
    const EmuKernelDesc *kernel;
    uint32_t grid[3], block[3], dynamic_bytes;
    const uint8_t *params;
} EmuLaunch;

// Set only while kernel code runs.
extern __thread EmuThread *emu_cur;

// Called by kernel modules when they are loaded.
void emu_register_kernel(const EmuKernelDesc *desc);
void emu_register_symbol(const char *name, void *addr, size_t bytes);

// Called by kernel code.
void emu_barrier(EmuThread *t);
uint32_t emu_barrier_reduce(EmuThread *t, int op, int pred); // op: 0 count, 1 and, 2 or
void emu_warp_exchange(EmuThread *t, uint32_t mask, uint64_t v, uint64_t out[32]);
void emu_yield(EmuThread *t); // for loops that wait
void emu_trap(EmuThread *t, const char *msg);
// Shared memory of the block, one buffer per key; key NULL is the dynamic buffer.
void *emu_shared(EmuThread *t, const void *key, size_t bytes);

// Runs a grid on the calling thread. Returns 0 or a cudaError.
int emu_run_grid(const EmuLaunch *launch);
// For the SIGSEGV handler: turns a fault in kernel code into a trap. False outside kernels.
int emu_redirect_fault(void *ucontext, const char *msg);

#ifdef __cplusplus
}
#endif

#endif
