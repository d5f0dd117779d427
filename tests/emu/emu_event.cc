// SPDX-License-Identifier: Apache-2.0
// Events: a token of the queue they were recorded in, or the nodes of a capture.
#include "emu/emu_rt.h"
#include <time.h>

double now_ms()
{
    timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_nsec) * 1e-6;
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    TRY(watched(Count::CREATE, "cudaEventCreate"));
    *e = new CUevent_st{};
    (*e)->flags = flags;
    (*e)->dev = current_device;
    return cudaSuccess;
}

API cudaError_t cudaEventCreate(cudaEvent_t *e)
{
    return cudaEventCreateWithFlags(e, 0);
}

API cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    TRY(watched(Count::CREATE, "cudaEventDestroy"));
    if (!e)
        return ret(cudaErrorInvalidResourceHandle);
    delete e;
    return cudaSuccess;
}

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t st, unsigned flags)
{
    CUstream_st *s = to_stream(st);

    TRY(stream_ready(s));
    if (e->dev != s->dev)
        return ret(cudaErrorInvalidResourceHandle);
    if (s->capture && (flags & cudaEventRecordExternal)) {
        capture_node(s, cudaGraphNodeTypeEventRecord)->work.event = e;
        return cudaSuccess;
    }
    if (s->capture) {
        std::lock_guard<std::mutex> l(e->m);
        e->capture = s->capture;
        e->capture_deps = s->capture_deps;
        return cudaSuccess;
    }
    auto ms = std::make_shared<double>(0);
    const Token t = enqueue(s, [ms] { *ms = now_ms(); });
    std::lock_guard<std::mutex> l(e->m);
    e->capture = nullptr;
    e->ms = ms;
    e->t = t;
    return cudaSuccess;
}

API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    return cudaEventRecordWithFlags(e, s, 0);
}

API cudaError_t cudaEventQuery(cudaEvent_t e)
{
    std::lock_guard<std::mutex> l(e->m);

    if (e->capture)
        return ret(cudaErrorCapturedEvent);
    TRY(sticky());
    return e->t.is_done() ? cudaSuccess : ret(cudaErrorNotReady);
}

API cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    Token t;

    {
        std::lock_guard<std::mutex> l(e->m);
        if (e->capture)
            return ret(cudaErrorCapturedEvent);
        t = e->t;
    }
    TRY(watched(Count::SYNCHRONIZE, "cudaEventSynchronize"));
    t.wait();
    return ret(sticky());
}

API cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b)
{
    if (!a->ms || !b->ms || ((a->flags | b->flags) & cudaEventDisableTiming))
        return ret(cudaErrorInvalidResourceHandle);
    if (cudaEventQuery(a) != cudaSuccess || cudaEventQuery(b) != cudaSuccess)
        return ret(cudaErrorNotReady);
    *ms = static_cast<float>(*b->ms - *a->ms);
    return cudaSuccess;
}

API cudaError_t cudaStreamWaitEvent(cudaStream_t st, cudaEvent_t e, unsigned flags)
{
    CUstream_st *s = to_stream(st);
    Token t;

    TRY(stream_ready(s));
    if (s->capture && (flags & cudaEventWaitExternal)) {
        capture_node(s, cudaGraphNodeTypeWaitEvent)->work.event = e;
        return cudaSuccess;
    }
    {
        std::lock_guard<std::mutex> l(e->m);
        if (e->capture)
            return ret(wait_captured(s, e));
        t = e->t;
    }
    if (!t.q)
        return cudaSuccess;
    if (s->capture) { // an event from outside the capture
        s->capture->is_bad = true;
        return ret(cudaErrorStreamCaptureIsolation);
    }
    enqueue(s, [] {}, { t });
    return cudaSuccess;
}
