// SPDX-License-Identifier: Apache-2.0
// Streams: a queue each, and the rules of the legacy default stream.
#include "emu/emu_rt.h"

std::mutex stream_lock;
static CUstream_st *legacy[max_devices];

std::set<CUstream_st *> &streams()
{
    static auto &all = *new std::set<CUstream_st *>;

    return all;
}

// Stream objects are never freed, so that events and graphs may outlive them.
static CUstream_st *make_stream(int dev, unsigned flags, int priority)
{
    auto *s = new CUstream_st;

    s->q = queue_start(dev);
    s->dev = dev;
    s->flags = flags;
    s->priority = priority;
    return s;
}

static void list_stream(CUstream_st *s)
{
    std::lock_guard<std::mutex> l(stream_lock);

    streams().insert(s);
}

static CUstream_st *own_stream_of_thread()
{
    static thread_local CUstream_st *mine[max_devices];
    CUstream_st **s = &mine[current_device];

    if (!*s) {
        *s = make_stream(current_device, 0, 0);
        list_stream(*s);
    }
    return *s;
}

CUstream_st *to_stream(cudaStream_t s)
{
    if (s == cudaStreamPerThread)
        return own_stream_of_thread();
    if (s && s != cudaStreamLegacy)
        return s;
    std::lock_guard<std::mutex> l(stream_lock);
    if (!legacy[current_device])
        legacy[current_device] = make_stream(current_device, 0, 0);
    return legacy[current_device];
}

bool is_blocking(const CUstream_st *s)
{
    return !(s->flags & cudaStreamNonBlocking);
}

bool is_legacy(const CUstream_st *s)
{
    return s == legacy[s->dev];
}

Token last_of(CUstream_st *s)
{
    std::lock_guard<std::mutex> l(s->q->m);

    return { s->q, s->q->issued };
}

// The legacy default stream and blocking streams wait for each other.
Token enqueue(CUstream_st *s, std::function<void()> run, std::vector<Token> deps)
{
    std::lock_guard<std::mutex> l(stream_lock);

    if (is_legacy(s)) {
        for (CUstream_st *o : streams()) {
            if (o->dev == s->dev && is_blocking(o))
                deps.push_back(last_of(o));
        }
    } else if (is_blocking(s) && legacy[s->dev]) {
        deps.push_back(last_of(legacy[s->dev]));
    }
    std::lock_guard<std::mutex> lq(s->q->m);
    s->q->push({ std::move(run), std::move(deps) });
    return { s->q, s->q->issued };
}

API cudaError_t emu_stream_op(cudaStream_t st, void (*run)(void *), void *arg,
                              void (*release)(void *))
{
    CUstream_st *s = to_stream(st);
    const std::shared_ptr<void> held(arg, release);

    TRY(stream_ready(s));
    if (s->capture) {
        counted(Count::CAPTURED);
        capture_node(s, cudaGraphNodeTypeKernel)->work.op = { run, held };
        return cudaSuccess;
    }
    TRY(watched(Count::LAUNCH, "a stream operation"));
    enqueue(s, [run, held] { run(held.get()); });
    return cudaSuccess;
}

// ---- API ----
API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority)
{
    TRY(watched(Count::CREATE, "cudaStreamCreate"));
    *s = make_stream(current_device, flags, priority);
    list_stream(*s);
    return cudaSuccess;
}

API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    return cudaStreamCreateWithPriority(s, flags, 0);
}

API cudaError_t cudaStreamCreate(cudaStream_t *s)
{
    return cudaStreamCreateWithPriority(s, 0, 0);
}

API cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    TRY(watched(Count::CREATE, "cudaStreamDestroy"));
    {
        static auto &destroyed = *new std::vector<CUstream_st *>; // reachable: no leak
        std::lock_guard<std::mutex> l(stream_lock);
        if (!s || !streams().erase(s))
            return ret(cudaErrorInvalidResourceHandle);
        if (s->capture)
            s->capture->members.erase(s);
        destroyed.push_back(s);
        s->is_destroyed = true;
    }
    std::lock_guard<std::mutex> l(s->q->m);
    s->q->stop = true; // the worker finishes what is queued
    s->q->cv.notify_all();
    return cudaSuccess;
}

API cudaError_t cudaStreamSynchronize(cudaStream_t st)
{
    CUstream_st *s = to_stream(st);

    TRY(forbid_in_capture(s));
    TRY(watched(Count::SYNCHRONIZE, "cudaStreamSynchronize"));
    last_of(s).wait();
    return ret(sticky());
}

API cudaError_t cudaStreamQuery(cudaStream_t st)
{
    CUstream_st *s = to_stream(st);

    TRY(forbid_in_capture(s));
    TRY(sticky());
    return last_of(s).is_done() ? cudaSuccess : ret(cudaErrorNotReady);
}

API cudaError_t cudaDeviceSynchronize()
{
    TRY(unsafe_call());
    TRY(watched(Count::SYNCHRONIZE, "cudaDeviceSynchronize"));
    for (const Token &t : all_work(current_device))
        t.wait();
    return ret(sticky());
}

API cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned *o)
{
    *o = to_stream(s)->flags;
    return cudaSuccess;
}

API cudaError_t cudaStreamGetPriority(cudaStream_t s, int *o)
{
    *o = to_stream(s)->priority;
    return cudaSuccess;
}

API cudaError_t cudaStreamGetDevice(cudaStream_t s, int *o)
{
    *o = to_stream(s)->dev;
    return cudaSuccess;
}

API cudaError_t cudaStreamGetId(cudaStream_t s, unsigned long long *o)
{
    *o = reinterpret_cast<uintptr_t>(to_stream(s));
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
