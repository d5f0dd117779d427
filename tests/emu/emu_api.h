// SPDX-License-Identifier: Apache-2.0
// What tests may ask the emulated runtime beyond CUDA. Tests find these functions with dlsym (the
// EmuApi below does), so that the same program also runs on a GPU, where they are absent.
#ifndef DSC_EMU_API_H
#define DSC_EMU_API_H

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdint.h>

// Kinds of calls that emu_forbid() takes.
enum {
    EMU_ALLOCATE = 1,    // memory is allocated, freed, registered or opened
    EMU_SYNCHRONIZE = 2, // the host waits, blocking copies included
    EMU_CREATE = 4,      // streams, events, graphs and their executables come or go
    EMU_LAUNCH = 8,      // kernels and copies are launched one by one, not by a graph
};

// Calls of this process so far; subtract two readings.
typedef struct EmuCounts {
    uint64_t allocations, synchronizations, creations;
    uint64_t launches;        // kernels launched one by one
    uint64_t copies;          // copies and memsets issued one by one
    uint64_t captured;        // kernels that became nodes of a graph
    uint64_t graph_launches;  // whole graphs
    uint64_t graph_kernels;   // kernel nodes of these graphs
    uint64_t forbidden_calls; // that emu_forbid() refused
    uint64_t faults;          // reports of the emulator: bad accesses, deadlocks, double frees
} EmuCounts;

typedef void emu_counts_fn(EmuCounts *counts_out);
// From now on these kinds of calls are reported and fail with cudaErrorNotPermitted; 0 ends it.
typedef void emu_forbid_fn(unsigned kinds);
// A host function that sees device memory and runs in stream order; in a capture it becomes a
// kernel node and runs at each replay. release(arg) is called once, when it can not run any more.
typedef cudaError_t emu_stream_op_fn(cudaStream_t stream, void (*run)(void *arg), void *arg,
                                     void (*release)(void *arg));
// Whether all these bytes are in one allocation, of the device or pinned, that kernels can reach.
typedef int emu_is_reachable_fn(const void *p, size_t bytes);

#ifdef __cplusplus
extern "C" {
emu_counts_fn emu_counts;
emu_forbid_fn emu_forbid;
emu_stream_op_fn emu_stream_op;
emu_is_reachable_fn emu_is_reachable;
}

// All NULL where the runtime is not emulated.
struct EmuApi {
    emu_counts_fn *counts = reinterpret_cast<emu_counts_fn *>(dlsym(RTLD_DEFAULT, "emu_counts"));
    emu_forbid_fn *forbid = reinterpret_cast<emu_forbid_fn *>(dlsym(RTLD_DEFAULT, "emu_forbid"));
};
#endif

#endif
