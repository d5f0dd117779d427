// SPDX-License-Identifier: Apache-2.0
// Communicators: they come and go, are asked, split, and fail.
#include "emu/nccl/emu_nccl.h"
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <algorithm>
#include <thread>

__attribute__((constructor)) static void banner()
{
    fprintf(stderr,
            "[emunccl] stand-in for NCCL on the CPU: a pass here says nothing about NCCL\n");
}

// ---- errors ----
static thread_local std::string thread_text; // last error without a communicator

static std::string format_text(const char *who, const char *format, va_list args)
{
    char text[400];

    vsnprintf(text, sizeof(text), format, args);
    const std::string line = std::string("emunccl: ") + who + ": " + text;
    fprintf(stderr, "[emunccl] %s\n", line.c_str() + strlen("emunccl: "));
    thread_text = line;
    return line;
}

ncclResult_t refuse(ncclResult_t e, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    format_text("call", format, args);
    va_end(args);
    return e;
}

const char *Comm::who()
{
    static thread_local char text[40];

    snprintf(text, sizeof(text), "rank %d of %d", rank, n_ranks);
    return text;
}

static void remember(Comm *c, const std::string &line)
{
    std::lock_guard<std::mutex> l(c->text_lock);

    c->text = line;
}

static ncclResult_t settle(Comm *c, ncclResult_t e) // the first error stays
{
    int was = ncclSuccess, busy = ncclInProgress;

    if (!c->state.compare_exchange_strong(was, e))
        c->state.compare_exchange_strong(busy, e);
    return e;
}

ncclResult_t Comm::refuse(ncclResult_t e, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    remember(this, format_text(who(), format, args));
    va_end(args);
    return e;
}

ncclResult_t Comm::fail(ncclResult_t e, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    remember(this, format_text(who(), format, args));
    va_end(args);
    return settle(this, e);
}

ncclResult_t Comm::fail_all(ncclResult_t e, const char *format, ...)
{
    uint32_t unset = 0;
    va_list args;

    va_start(args, format);
    const std::string line = format_text(who(), format, args);
    va_end(args);
    remember(this, line);
    if (world && world->has_failed.compare_exchange_strong(unset, 1)) {
        snprintf(world->failure, sizeof(world->failure), "%s", line.c_str());
        world->has_failed = 2;
    }
    return settle(this, e);
}

ncclResult_t Comm::check_alive()
{
    const int s = state;

    if (s != ncclSuccess && s != ncclInProgress)
        return static_cast<ncclResult_t>(s);
    if (has_aborted)
        return fail(ncclInvalidUsage, "aborted while it waited");
    if (world && world->has_failed == 2)
        return fail(ncclRemoteError, "another rank failed: %s", world->failure);
    return ncclSuccess;
}

Comm::~Comm()
{
    for (cudaEvent_t e : { last_done, meeting }) {
        if (e)
            cudaEventDestroy(e);
    }
    world_leave(this);
}

NCCL_API const char *ncclGetErrorString(ncclResult_t e)
{
    static const char *const names[] = { "no error",       "unhandled cuda error", "system error",
                                         "internal error", "invalid argument",     "invalid usage",
                                         "remote error",   "in progress" };

    return e >= 0 && e < ncclNumResults ? names[e] : "unknown result code";
}

NCCL_API const char *ncclGetLastError(ncclComm_t comm)
{
    static thread_local std::string text;

    if (!comm)
        return thread_text.c_str();
    std::lock_guard<std::mutex> l(comm->c->text_lock);
    text = comm->c->text;
    return text.c_str();
}

NCCL_API ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *e)
{
    if (!comm || !e)
        return refuse(ncclInvalidArgument, "ncclCommGetAsyncError: NULL");
    *e = static_cast<ncclResult_t>(comm->c->state.load());
    return ncclSuccess;
}

// ---- init ----
static ncclResult_t check_init(int n_ranks, int rank, const ncclConfig_t *config)
{
    if (n_ranks < 1 || n_ranks > max_ranks)
        return refuse(ncclInvalidArgument, "%d ranks; 1 to %d are allowed", n_ranks, max_ranks);
    if (rank < 0 || rank >= n_ranks)
        return refuse(ncclInvalidArgument, "rank %d; 0 to %d are allowed", rank, n_ranks - 1);
    if (config && config->magic != 0xcafebeef)
        return refuse(ncclInvalidArgument, "config: not from NCCL_CONFIG_INITIALIZER");
    if (config && config->blocking != NCCL_CONFIG_UNDEF_INT && config->blocking != 0 &&
        config->blocking != 1)
        return refuse(ncclInvalidArgument, "config: blocking is %d; 0 and 1 are allowed",
                      config->blocking);
    return ncclSuccess;
}

// NCCL allocates here, which a capture forbids: so does this.
static ncclResult_t check_no_capture(Comm *c)
{
    void *p = nullptr;
    cudaError_t e = cudaMalloc(&p, 256);

    if (e == cudaSuccess)
        e = cudaFree(p);
    if (e == cudaSuccess)
        e = cudaEventCreateWithFlags(&c->last_done, cudaEventDisableTiming);
    if (e == cudaSuccess)
        e = cudaEventCreateWithFlags(&c->meeting, cudaEventDisableTiming);
    if (e == cudaSuccess)
        return ncclSuccess;
    return c->fail(ncclUnhandledCudaError, "init: %s (inside a stream capture?)",
                   cudaGetErrorName(e));
}

static ncclResult_t join_now(const std::shared_ptr<Comm> &c, const ncclUniqueId &id)
{
    cudaSetDevice(c->device);
    ncclResult_t e = check_no_capture(c.get());
    if (e == ncclSuccess)
        e = world_join(c.get(), id);
    int busy = ncclInProgress;
    c->state.compare_exchange_strong(busy, e);
    return e;
}

static ncclResult_t init_rank(ncclComm_t *out, int n_ranks, const ncclUniqueId &id, int rank,
                              const ncclConfig_t *config, int device)
{
    if (!out)
        return refuse(ncclInvalidArgument, "comm: NULL");
    ncclResult_t e = check_init(n_ranks, rank, config);
    if (e != ncclSuccess)
        return e;
    auto c = std::make_shared<Comm>();
    c->rank = rank;
    c->n_ranks = n_ranks;
    c->device = device;
    if (config && config->blocking == 0) {
        c->state = ncclInProgress;
        *out = new ncclComm{ c };
        std::thread([c, id] { join_now(c, id); }).detach();
        return ncclInProgress;
    }
    return group_job([out, c, id] {
        const ncclResult_t joined = join_now(c, id);
        *out = joined == ncclSuccess ? new ncclComm{ c } : nullptr;
        return joined;
    });
}

static int current_device()
{
    int device = 0;

    cudaGetDevice(&device);
    return device;
}

NCCL_API ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    return id ? world_make_id(id) : refuse(ncclInvalidArgument, "ncclGetUniqueId: NULL");
}

NCCL_API ncclResult_t ncclCommInitRank(ncclComm_t *comm, int n_ranks, ncclUniqueId id, int rank)
{
    return init_rank(comm, n_ranks, id, rank, nullptr, current_device());
}

NCCL_API ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int n_ranks, ncclUniqueId id,
                                             int rank, ncclConfig_t *config)
{
    return init_rank(comm, n_ranks, id, rank, config, current_device());
}

NCCL_API ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
    ncclUniqueId id;
    ncclResult_t e = world_make_id(&id);

    if (e != ncclSuccess)
        return e;
    ncclGroupStart();
    for (int r = 0; r < n && e == ncclSuccess; r++)
        e = init_rank(&comms[r], n, id, r, nullptr, devices ? devices[r] : r);
    const ncclResult_t ended = ncclGroupEnd();
    return e != ncclSuccess ? e : ended;
}

// ---- split ----
// The lowest (key, rank) of a color makes the id of its new communicator.
static ncclResult_t split_now(const std::shared_ptr<Comm> &c, int color, int key, ncclComm_t *out)
{
    Seat *seats = c->world->seats;
    std::vector<std::pair<int, int>> members; // (key, rank)
    ncclUniqueId id;

    *out = nullptr;
    seats[c->rank].color = color;
    seats[c->rank].key = key;
    ncclResult_t e = world_barrier(c.get(), "split");
    if (e != ncclSuccess)
        return e;
    for (int r = 0; r < c->n_ranks; r++) {
        if (seats[r].color == color)
            members.push_back({ seats[r].key, r });
    }
    std::sort(members.begin(), members.end());
    if (color >= 0 && members[0].second == c->rank)
        e = world_make_id(&seats[c->rank].split_id);
    if (e == ncclSuccess)
        e = world_barrier(c.get(), "split");
    id = color >= 0 ? seats[members[0].second].split_id : ncclUniqueId();
    if (e == ncclSuccess)
        e = world_barrier(c.get(), "split"); // the seats are free for the next one
    if (e != ncclSuccess || color < 0)
        return e;
    auto part = std::make_shared<Comm>();
    const auto me = std::find(members.begin(), members.end(), std::make_pair(key, c->rank));
    part->rank = static_cast<int>(me - members.begin());
    part->n_ranks = static_cast<int>(members.size());
    part->device = c->device;
    e = join_now(part, id);
    if (e == ncclSuccess)
        *out = new ncclComm{ part };
    return e;
}

static ncclResult_t check_ready(const std::shared_ptr<Comm> &c, const char *call)
{
    if (c->state == ncclInProgress)
        return c->refuse(ncclInvalidUsage, "%s before the init is done", call);
    return c->check_alive();
}

NCCL_API ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *out,
                                    ncclConfig_t *config)
{
    if (!comm || !out)
        return refuse(ncclInvalidArgument, "ncclCommSplit: NULL");
    if (color < 0 && color != NCCL_SPLIT_NOCOLOR)
        return comm->c->refuse(ncclInvalidArgument, "color %d; 0 and up, or NCCL_SPLIT_NOCOLOR",
                               color);
    ncclResult_t e = check_init(1, 0, config);
    if (e == ncclSuccess)
        e = check_ready(comm->c, "split");
    if (e != ncclSuccess)
        return e;
    return group_job([c = comm->c, color, key, out] {
        cudaSetDevice(c->device);
        void *p = nullptr; // NCCL allocates before it talks to others
        if (cudaMalloc(&p, 256) != cudaSuccess)
            return c->refuse(ncclUnhandledCudaError, "split: %s (inside a stream capture?)",
                             cudaGetErrorName(cudaGetLastError()));
        cudaFree(p);
        return split_now(c, color, key, out);
    });
}

// ---- the end ----
// Own work has run, well or not: its waits have deadlines. Batches are in one order whatever their
// streams, which may be gone by now, so the last one's event stands for all.
static void drain(const std::shared_ptr<Comm> &c)
{
    bool has_last;

    {
        std::lock_guard<std::mutex> l(c->text_lock);
        has_last = c->has_last;
    }
    if (has_last)
        cudaEventSynchronize(c->last_done);
}

NCCL_API ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    if (!comm)
        return refuse(ncclInvalidArgument, "ncclCommFinalize: NULL");
    const ncclResult_t e = check_ready(comm->c, "finalize");
    if (e == ncclSuccess)
        drain(comm->c);
    return e;
}

NCCL_API ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    if (comm->c->state == ncclInProgress)
        return comm->c->refuse(ncclInvalidUsage, "destroy before the init is done: abort it");
    drain(comm->c);
    comm->c->is_destroyed = true;
    delete comm;
    return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    const std::shared_ptr<Comm> c = comm->c;
    c->has_aborted = true;
    if (c->world && c->state != ncclInProgress)
        c->world->seats[c->rank].has_aborted = 1;
    drain(c);
    c->is_destroyed = true;
    delete comm;
    return ncclSuccess;
}

// ---- questions ----
NCCL_API ncclResult_t ncclCommCount(const ncclComm_t comm, int *n)
{
    if (!comm || !n)
        return refuse(ncclInvalidArgument, "ncclCommCount: NULL");
    *n = comm->c->n_ranks;
    return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    if (!comm || !rank)
        return refuse(ncclInvalidArgument, "ncclCommUserRank: NULL");
    *rank = comm->c->rank;
    return ncclSuccess;
}

NCCL_API ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    if (!comm || !device)
        return refuse(ncclInvalidArgument, "ncclCommCuDevice: NULL");
    *device = comm->c->device;
    return ncclSuccess;
}
