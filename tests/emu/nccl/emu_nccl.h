// SPDX-License-Identifier: Apache-2.0
// Inside the stand-in for NCCL. Ranks are threads or processes of one machine; either way they meet
// in a piece of shared memory (the world) that the unique id names, and all data goes through it.
// It is strict where NCCL is: what would hang or give wrong bytes there is an error with a name
// here, and every wait has a deadline (EMU_NCCL_TIMEOUT_MS, 20000).
#ifndef DSC_EMU_NCCL_H
#define DSC_EMU_NCCL_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <stdint.h>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#define NCCL_API extern "C" __attribute__((visibility("default")))

constexpr int max_ranks = 32;
constexpr size_t ring_bytes = 1 << 16;

// ---- the world (emu_nccl_world.cc); fresh shared memory, all zero, is its initial state ----
struct Ring { // bytes from one rank to another
    alignas(64) std::atomic<uint64_t> written;
    alignas(64) std::atomic<uint64_t> read;
    uint8_t bytes[ring_bytes];

    size_t put(const void *p, size_t n); // how many went in
    size_t get(void *p, size_t n);
};

struct Seat { // what a rank tells the others
    std::atomic<uint32_t> is_taken, has_aborted;
    int device;
    int color, key; // of a split
    ncclUniqueId split_id;
};

struct World {
    std::atomic<uint64_t> token;
    std::atomic<uint32_t> n_ranks, n_arrived;
    std::atomic<uint32_t> barrier_count, barrier_generation;
    std::atomic<uint32_t> has_failed; // 1 while failure is written, then 2
    char failure[400];
    Seat seats[max_ranks];
    Ring rings[];

    Ring *ring(int from, int to);
};

struct Comm;
ncclResult_t world_make_id(ncclUniqueId *id);
ncclResult_t world_join(Comm *c, const ncclUniqueId &id);
void world_leave(Comm *c);
ncclResult_t world_barrier(Comm *c, const char *why);

// ---- communicators (emu_nccl_comm.cc) ----
struct Comm {
    World *world = nullptr;
    size_t world_bytes = 0;
    int rank = 0, n_ranks = 0, device = 0;
    std::atomic<int> state{ ncclSuccess }; // ncclInProgress, or the first error
    std::atomic<bool> has_aborted{ false }, is_destroyed{ false };
    std::mutex text_lock; // of text and what is known of the last operation
    std::string text;     // of the last error

    std::mutex run_lock; // one operation of a communicator at a time
    uint64_t n_run = 0;  // collectives so far: each replay of a graph counts
    bool has_last = false;
    cudaStream_t last_stream = nullptr;
    cudaEvent_t last_done = nullptr; // of the last eager operation: the next one may be elsewhere
    cudaEvent_t meeting = nullptr;   // of the streams of one group

    ~Comm();
    // Remembers and reports; the same for every rank of the world, since it can not go on.
    ncclResult_t fail(ncclResult_t e, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
    ncclResult_t fail_all(ncclResult_t e, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
    // An error of this call alone: nothing happened yet.
    ncclResult_t refuse(ncclResult_t e, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
    ncclResult_t check_alive(); // aborted here, or failed anywhere
    const char *who();          // "rank 1 of 4"
};
struct ncclComm {
    std::shared_ptr<Comm> c;
};
// For errors without a communicator.
ncclResult_t refuse(ncclResult_t e, const char *format, ...) __attribute__((format(printf, 2, 3)));

// A wait that has to end.
struct Deadline {
    double end;
    Deadline();
    bool has_passed() const;
    static double seconds();
};
void idle(); // between two looks

// ---- operations (emu_nccl_api.cc) in groups (emu_nccl_group.cc) ----
enum class Kind : uint32_t { SEND, RECV, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, BROADCAST };
struct Task {
    Kind kind;
    const void *send;
    void *recv;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int peer; // or root
};
size_t type_bytes(ncclDataType_t type);
const char *type_name(ncclDataType_t type);
const char *kind_name(Kind kind);
ncclResult_t group_add(const std::shared_ptr<Comm> &c, cudaStream_t stream, const Task &task);
// A call inside a group is wrong: the end of the group says so and does nothing.
ncclResult_t group_fail(ncclResult_t e);
// A call that waits for other ranks: at the end of the group, all such calls at the same time.
ncclResult_t group_job(std::function<ncclResult_t()> job);

// ---- running them (emu_nccl_run.cc, emu_nccl_reduce.cc) ----
struct Batch { // all of a group on one communicator
    std::shared_ptr<Comm> c;
    std::vector<Task> tasks;
    bool is_captured = false; // its runs are replays of a graph
};
void run_batch(Batch *b);
// out[i] = in[0][i] op in[1][i] ..., in this order, floats in fp32 and rounded once.
void reduce(void *out, const std::vector<const void *> &in, size_t count, ncclDataType_t type,
            ncclRedOp_t op);

#endif
