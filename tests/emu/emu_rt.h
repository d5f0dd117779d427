// SPDX-License-Identifier: Apache-2.0
// Inside the emulated runtime. Nothing here is seen by programs or kernels.
#ifndef DSC_EMU_RT_H
#define DSC_EMU_RT_H

#include <cuda_runtime_api.h>
#include "emu/emu_api.h"
#include "emu/emu_exec.h"
#include "emu/emu_report.h"
#include <sys/types.h>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))
#define TRY(expr)                      \
    do {                               \
        const cudaError_t e_ = (expr); \
        if (e_ != cudaSuccess)         \
            return ret(e_);            \
    } while (0)

// ---- process state (emu_device.cc, emu_error.cc) ----
constexpr int max_devices = 16;
constexpr int threads_per_sm = 2048, blocks_per_sm = 32;
constexpr int shared_per_sm = 233472, shared_per_block = 232448, shared_reserved = 1024;
extern thread_local int current_device;
extern std::atomic<int> sticky_error; // a kernel fault stays, as on a device
int device_count();
int sm_count();
int bus_id(int dev);
cudaError_t device_attribute(int *v, int attribute, int dev);
cudaError_t ret(cudaError_t e); // remembers the last error of the thread
static inline cudaError_t sticky()
{
    return static_cast<cudaError_t>(static_cast<int>(sticky_error));
}

// ---- what tests count and forbid (emu_watch.cc) ----
enum class Count { ALLOCATE, SYNCHRONIZE, CREATE, LAUNCH, COPY, CAPTURED, GRAPH, GRAPH_KERNEL };
// Counts one call of a kind that can be forbidden: cudaErrorNotPermitted when it is.
cudaError_t watched(Count kind, const char *call);
void counted(Count kind); // the same, for what is never forbidden

// ---- who may touch device memory (emu_window.cc) ----
void window_init();
bool in_window(const void *p);
bool window_has_key();
// A fixed place for bytes of fd at offset, between guard pages; 0 when the window is full.
uintptr_t window_map(size_t bytes, int fd, off_t offset, bool own);
off_t window_next_offset();
int window_fd();
void window_protect(uintptr_t map, size_t bytes); // closes new pages to the host
// Opens the device window for this thread (protection key), or for all threads without one.
struct DeviceAccess {
    unsigned saved = 0;
    DeviceAccess();
    ~DeviceAccess();
};
// Closes it again around user callbacks on a worker thread.
struct HostAccess {
    unsigned saved = 0;
    bool active = false;
    HostAccess();
    ~HostAccess();
};
void fault_handler_init();
// The handler must not run on a fiber's stack: it may be the one that overflowed.
struct SignalStack {
    void *map = nullptr;
    SignalStack();
    ~SignalStack();
};

// ---- memory (emu_alloc.cc) ----
enum class Mem { DEVICE, PINNED, REGISTERED, IPC, SYMBOL };
struct Alloc {
    uintptr_t p = 0;
    size_t n = 0;
    uintptr_t map = 0; // pages behind it
    size_t map_bytes = 0;
    Mem kind = Mem::DEVICE;
    int dev = 0;
    bool freed = false;
    off_t offset = 0; // in the memfd

    bool is_on_device() const
    {
        return kind == Mem::DEVICE || kind == Mem::IPC;
    }
    bool is_on_host() const
    {
        return kind == Mem::PINNED || kind == Mem::REGISTERED;
    }
};
extern std::mutex memory_lock;
// The lock is held for these four.
std::map<uintptr_t, Alloc> &allocs();
Alloc *find_alloc(const void *p);
Alloc *nearest_alloc(uintptr_t p);            // live or freed
void for_each_open(void (*f)(const Alloc &)); // live device memory

size_t round_up(size_t n, size_t to);
size_t memory_limit();
size_t memory_used(int dev);
bool is_registered(const void *p); // inside any live allocation
void *dev_alloc(size_t n, int dev);
cudaError_t dev_free(void *p);
void *ipc_map(Alloc a, int fd, size_t offset_in_map); // a: n, map_bytes, offset, dev
void add_symbol_memory(void *p, size_t n);
cudaError_t check_range(const void *p, size_t n, const char *what);
// A pointer that a kernel gets as an argument: null, or memory that the device can reach.
cudaError_t check_argument(const void *p, int dev, const char *kernel, unsigned index);
bool peer_enabled(int dev, int peer);

// ---- functions (emu_module.cc) ----
struct Func {
    std::string name;
    const void *host;
    int max_dynamic = 48 * 1024;
};
Func *func_of(const void *host);
const EmuKernelDesc *kernel_of(Func *f);
int blocks_that_fit(int threads, size_t dynamic_bytes); // on one multiprocessor

// ---- queues (emu_queue.cc) ----
struct Queue;
struct Token { // "everything up to seq on q is done"
    std::shared_ptr<Queue> q;
    uint64_t seq = 0;
    bool is_done() const;
    void wait() const;
};
struct Op {
    std::function<void()> run;
    std::vector<Token> deps;
};
struct Queue { // in order, one worker thread
    std::mutex m;
    std::condition_variable cv;
    std::deque<Op> ops;
    uint64_t issued = 0, taken = 0;
    uint64_t wanted = 0; // somebody waits for it: CUDAEMU_LAZY runs no more than that
    std::atomic<uint64_t> done{ 0 };
    bool stop = false;
    int dev = 0;

    void push(Op op);
    void want(uint64_t seq);
    void wait(uint64_t seq);
    void run();
};
std::shared_ptr<Queue> queue_start(int dev);
std::vector<Token> all_work(int dev); // of every queue of the device, destroyed streams included

// ---- streams, events (emu_stream.cc, emu_event.cc) and capture (emu_capture.cc) ----
struct Graph;
struct Node;
struct Capture {
    Graph *graph;
    unsigned long long id;
    cudaStreamCaptureMode mode;
    CUstream_st *origin;
    std::thread::id tid;
    std::set<CUstream_st *> members;
    bool is_bad = false, is_ended = false;
};
struct CUstream_st {
    std::shared_ptr<Queue> q;
    int dev;
    unsigned flags;
    int priority;
    std::atomic<bool> is_destroyed{ false };
    std::shared_ptr<Capture> capture;
    std::vector<Node *> capture_deps;
};
struct CUevent_st {
    unsigned flags;
    int dev;
    std::mutex m;
    Token t;
    std::shared_ptr<double> ms; // time stamp
    std::shared_ptr<Capture> capture;
    std::vector<Node *> capture_deps;
};
extern std::mutex stream_lock; // the two lists, and every stream's capture state
std::set<CUstream_st *> &streams();
CUstream_st *to_stream(cudaStream_t s);
bool is_blocking(const CUstream_st *s);
bool is_legacy(const CUstream_st *s);
Token last_of(CUstream_st *s);
Token enqueue(CUstream_st *s, std::function<void()> run, std::vector<Token> deps = {});
double now_ms();

// Destroyed stream, sticky fault, broken capture, implicit dependency.
cudaError_t stream_ready(CUstream_st *s);
cudaError_t unsafe_call(); // cudaMalloc, synchronization, ... during a capture
cudaError_t forbid_in_capture(CUstream_st *s);
cudaError_t wait_captured(CUstream_st *s, CUevent_st *e);
Node *capture_node(CUstream_st *s, cudaGraphNodeType type);

// ---- graphs (emu_graph.cc, emu_graph_exec.cc) and the work they hold (emu_ops.cc, emu_copy.cc)
// ----
struct KernelArgs {
    Func *func = nullptr;
    const EmuKernelDesc *desc = nullptr; // null: skipped
    dim3 grid, block;
    size_t dynamic_bytes = 0;
    std::vector<uint8_t> blob; // arguments, copied at launch or capture
    std::vector<void *> ptrs;  // handed out by cudaGraphKernelNodeGetParams
};
struct StreamOp { // emu_stream_op()
    void (*run)(void *arg) = nullptr;
    std::shared_ptr<void> arg;
};
struct Work { // what a node does
    KernelArgs kernel;
    StreamOp op; // of a kernel node that is no kernel
    cudaHostNodeParams host{};
    void *dst = nullptr; // memcpy
    const void *src = nullptr;
    size_t bytes = 0;
    cudaMemsetParams set{};
    cudaEvent_t event = nullptr;
};
struct Node {
    cudaGraphNodeType type;
    std::vector<Node *> deps;
    Graph *owner;
    Work work;
    bool is_enabled = true, is_captured = false;
};
struct Graph {
    std::vector<Node *> nodes;
    std::vector<cudaUserObject_t> objects;
};
Node *add_node(Graph *g, cudaGraphNodeType type, const std::vector<Node *> &deps);
std::vector<Node *> topological(const std::vector<Node *> &nodes);
void release_object(cudaUserObject_t o);
void retain_object(cudaUserObject_t o);
cudaError_t set_kernel(Work *w, const cudaKernelNodeParams *p);
cudaError_t set_copy(Work *w, void *dst, const void *src, size_t bytes);
cudaError_t pack_args(KernelArgs *k, Func *f, dim3 grid, dim3 block, void **args,
                      size_t dynamic_bytes, const uint8_t *packed = nullptr);
cudaError_t launch(Func *f, dim3 grid, dim3 block, void **args, size_t dynamic_bytes,
                   cudaStream_t s, const uint8_t *packed = nullptr);
cudaError_t copy(void *dst, const void *src, size_t n, cudaMemcpyKind kind, cudaStream_t s,
                 bool is_sync);
void run_memset(const cudaMemsetParams &p);
void run_node(cudaGraphNodeType type, const Work &w);

#endif
