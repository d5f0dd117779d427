// SPDX-License-Identifier: Apache-2.0
// Groups: what is called between start and end happens at the end, all of a communicator as one
// stream operation. Outside a group every call is a group of its own.
#include "emu/emu_api.h"
#include "emu/nccl/emu_nccl.h"
#include <algorithm>
#include <thread>

struct Pending {
    std::shared_ptr<Comm> c;
    cudaStream_t stream;
    Task task;
};

struct Group {
    int depth = 0;
    ncclResult_t error = ncclSuccess; // of a call inside: the end reports it and does nothing
    std::vector<Pending> ops;
    std::vector<std::function<ncclResult_t()>> jobs;
};
static thread_local Group group;

// ---- jobs ----
static ncclResult_t run_jobs(const std::vector<std::function<ncclResult_t()>> &jobs)
{
    std::vector<ncclResult_t> results(jobs.size(), ncclSuccess);
    std::vector<std::thread> threads;
    int device = 0;

    if (jobs.size() == 1) // in this thread, which may be the one that captures
        return jobs[0]();
    cudaGetDevice(&device);
    for (size_t i = 0; i < jobs.size(); i++)
        threads.emplace_back([&, i] { results[i] = jobs[i](); });
    for (std::thread &t : threads)
        t.join();
    cudaSetDevice(device);
    for (ncclResult_t e : results) {
        if (e != ncclSuccess)
            return e;
    }
    return ncclSuccess;
}

// ---- operations ----
static ncclResult_t cuda_ok(Comm *c, cudaError_t e, const char *what)
{
    return e == cudaSuccess
               ? ncclSuccess
               : c->refuse(ncclUnhandledCudaError, "%s: %s", what, cudaGetErrorName(e));
}

// Streams of one group on one communicator wait for each other; operations of a communicator run in
// the order of the calls, whatever their streams.
static ncclResult_t join_streams(Comm *c, cudaStream_t first,
                                 const std::vector<cudaStream_t> &others, bool is_captured)
{
    cudaError_t e = cudaSuccess;

    for (cudaStream_t s : others) {
        if (e == cudaSuccess)
            e = cudaEventRecord(c->meeting, s);
        if (e == cudaSuccess)
            e = cudaStreamWaitEvent(first, c->meeting, 0);
    }
    if (e == cudaSuccess && !is_captured && c->has_last && c->last_stream != first)
        e = cudaStreamWaitEvent(first, c->last_done, 0);
    return cuda_ok(c, e, "order of streams");
}

static ncclResult_t release_streams(Comm *c, cudaStream_t first,
                                    const std::vector<cudaStream_t> &others)
{
    cudaError_t e = others.empty() ? cudaSuccess : cudaEventRecord(c->meeting, first);

    for (cudaStream_t s : others) {
        if (e == cudaSuccess)
            e = cudaStreamWaitEvent(s, c->meeting, 0);
    }
    return cuda_ok(c, e, "order of streams");
}

static ncclResult_t remember_last(Comm *c, cudaStream_t stream)
{
    const std::lock_guard<std::mutex> l(c->text_lock);

    c->has_last = true;
    c->last_stream = stream;
    return cudaEventRecord(c->last_done, stream) == cudaSuccess ? ncclSuccess
                                                                : ncclUnhandledCudaError;
}

static ncclResult_t enqueue(const std::shared_ptr<Comm> &c,
                            const std::vector<cudaStream_t> &streams, Batch *batch)
{
    const std::vector<cudaStream_t> others(streams.begin() + 1, streams.end());
    const bool is_captured = batch->is_captured;
    const auto run = [](void *b) { run_batch(static_cast<Batch *>(b)); };
    const auto drop = [](void *b) { delete static_cast<Batch *>(b); };

    ncclResult_t r = join_streams(c.get(), streams[0], others, is_captured);
    if (r != ncclSuccess) {
        delete batch;
        return r;
    }
    r = cuda_ok(c.get(), emu_stream_op(streams[0], run, batch, drop), "enqueue");
    if (r == ncclSuccess)
        r = release_streams(c.get(), streams[0], others);
    return r == ncclSuccess && !is_captured ? remember_last(c.get(), streams[0]) : r;
}

static ncclResult_t is_capturing(const Pending &p, bool *out)
{
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

    if (cudaStreamIsCapturing(p.stream, &status) != cudaSuccess ||
        status == cudaStreamCaptureStatusInvalidated)
        return p.c->refuse(ncclInvalidUsage, "the stream's capture is broken");
    *out = status == cudaStreamCaptureStatusActive;
    return ncclSuccess;
}

static ncclResult_t check_capture(const std::vector<Pending> &ops, bool *is_captured)
{
    for (size_t i = 0; i < ops.size(); i++) {
        bool one = false;
        const ncclResult_t e = is_capturing(ops[i], &one);

        if (e != ncclSuccess)
            return e;
        if (i > 0 && one != *is_captured)
            return ops[i].c->refuse(ncclInvalidUsage,
                                    "a group mixes streams that capture and streams that do not");
        *is_captured = one;
    }
    return ncclSuccess;
}

static ncclResult_t launch_one(const std::shared_ptr<Comm> &c, const std::vector<Pending> &ops,
                               bool is_captured)
{
    std::vector<cudaStream_t> streams;
    auto *batch = new Batch{ c, {}, is_captured };

    for (const Pending &p : ops) {
        if (p.c != c)
            continue;
        batch->tasks.push_back(p.task);
        if (std::find(streams.begin(), streams.end(), p.stream) == streams.end())
            streams.push_back(p.stream);
    }
    return enqueue(c, streams, batch);
}

static ncclResult_t launch(const std::vector<Pending> &ops)
{
    std::set<Comm *> launched;
    bool is_captured = false;
    ncclResult_t e = check_capture(ops, &is_captured);
    int device = 0;

    cudaGetDevice(&device);
    for (const Pending &p : ops) {
        if (e != ncclSuccess || !launched.insert(p.c.get()).second)
            continue;
        cudaSetDevice(p.c->device);
        e = launch_one(p.c, ops, is_captured);
    }
    cudaSetDevice(device);
    return e;
}

// ---- API ----
ncclResult_t group_add(const std::shared_ptr<Comm> &c, cudaStream_t stream, const Task &task)
{
    ncclGroupStart();
    group.ops.push_back({ c, stream, task });
    return ncclGroupEnd();
}

ncclResult_t group_job(std::function<ncclResult_t()> job)
{
    ncclGroupStart();
    group.jobs.push_back(std::move(job));
    return ncclGroupEnd();
}

ncclResult_t group_fail(ncclResult_t e)
{
    if (group.depth > 0 && group.error == ncclSuccess)
        group.error = e;
    return e;
}

NCCL_API ncclResult_t ncclGroupStart()
{
    group.depth++;
    return ncclSuccess;
}

NCCL_API ncclResult_t ncclGroupEnd()
{
    if (group.depth == 0)
        return refuse(ncclInvalidUsage, "ncclGroupEnd without a start");
    if (--group.depth > 0)
        return ncclSuccess;
    Group done;
    std::swap(done, group);
    if (done.error != ncclSuccess)
        return done.error;
    ncclResult_t e = done.jobs.empty() ? ncclSuccess : run_jobs(done.jobs);
    if (e == ncclSuccess && !done.ops.empty())
        e = launch(done.ops);
    return e;
}
