// SPDX-License-Identifier: Apache-2.0
// Inside the executor: grids, blocks and what their threads wait for.
#ifndef DSC_EMU_FIBER_H
#define DSC_EMU_FIBER_H

#include "emu/emu_exec.h"
#include <deque>
#include <vector>

enum { EMU_RUNNABLE, EMU_WAITING, EMU_EXITED }; // EmuThread.state
enum {
    EMU_AT_NOTHING,
    EMU_AT_BARRIER,
    EMU_AT_WARP_OPERATION, // EmuThread.what
    EMU_AT_SLEEP
};

enum : int { EMU_ILLEGAL_ADDRESS = 700, EMU_LAUNCH_TIMEOUT = 702 }; // cudaError values

struct EmuBarrier {
    uint32_t arrived = 0, generation = 0;
    uint32_t reduced[2][3] = {}; // by parity of the generation: count, and, or
};

struct EmuWarpGroup { // lanes that meet under one mask
    uint32_t mask, arrived = 0, generation = 0;
    uint64_t slot[2][32] = {};
    explicit EmuWarpGroup(uint32_t m) : mask(m)
    {
    }
};

struct EmuSharedBuffer {
    const void *key;
    uint8_t *map;
    size_t map_bytes;
    uint8_t *p;
};

// Blocks that are scheduled together: one, or all of a resident kernel.
struct EmuGrid {
    const EmuLaunch *launch = nullptr;
    uint64_t progress = 0, sleeps = 0;
    uint32_t live = 0; // threads
    int error = 0;
};

struct EmuBlock {
    EmuGrid *grid = nullptr;
    std::vector<EmuThread> threads;
    std::vector<std::deque<EmuWarpGroup>> warps;
    std::vector<EmuSharedBuffer> shared;
    EmuBarrier barrier;
    uint32_t live = 0;

    void init(EmuGrid *g, uint32_t block_index);
    ~EmuBlock(); // its fibers run no more
};

void emu_fiber_init(EmuThread *t); // takes a stack
void emu_fiber_fini(EmuThread *t); // gives it back
void emu_fiber_run(EmuThread *t);  // until it waits, sleeps or ends
void *emu_shared_buffer(EmuBlock *b, const void *key, size_t bytes);

#endif
