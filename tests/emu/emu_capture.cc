// SPDX-License-Identifier: Apache-2.0
// Stream capture: nodes are appended instead of operations, a wait on a captured event pulls a
// stream in (fork) or adds edges (join), and everything CUDA forbids meanwhile fails as it does
// there.
#include "emu/emu_rt.h"
#include <algorithm>

static std::atomic<int> n_captures{ 0 };
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// ---- what is forbidden ----
// The legacy stream would wait for a blocking stream that captures.
static cudaError_t implicit_dependency(CUstream_st *s)
{
    if (s->capture || !is_legacy(s) || !n_captures)
        return cudaSuccess;
    std::lock_guard<std::mutex> l(stream_lock);
    for (CUstream_st *o : streams()) {
        if (o->capture && is_blocking(o)) {
            o->capture->is_bad = true;
            return cudaErrorStreamCaptureImplicit;
        }
    }
    return cudaSuccess;
}

static cudaError_t check_exists(const CUstream_st *s)
{
    if (!s->is_destroyed)
        return cudaSuccess;
    emu_report("use of a destroyed stream");
    return cudaErrorInvalidResourceHandle;
}

cudaError_t stream_ready(CUstream_st *s)
{
    TRY(check_exists(s));
    if (sticky_error)
        return sticky();
    if (s->capture && s->capture->is_bad)
        return cudaErrorStreamCaptureInvalidated;
    return implicit_dependency(s);
}

cudaError_t forbid_in_capture(CUstream_st *s)
{
    TRY(check_exists(s));
    if (!s->capture)
        return implicit_dependency(s);
    s->capture->is_bad = true;
    return cudaErrorStreamCaptureUnsupported;
}

static bool forbids_unsafe_calls(const Capture &c)
{
    if (c.mode == cudaStreamCaptureModeRelaxed)
        return false;
    if (c.tid == std::this_thread::get_id())
        return true;
    return c.mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal;
}

cudaError_t unsafe_call()
{
    if (!n_captures || thread_mode == cudaStreamCaptureModeRelaxed)
        return cudaSuccess;
    std::lock_guard<std::mutex> l(stream_lock);
    for (CUstream_st *o : streams()) {
        if (o->capture && forbids_unsafe_calls(*o->capture)) {
            o->capture->is_bad = true;
            return cudaErrorStreamCaptureUnsupported;
        }
    }
    return cudaSuccess;
}

// ---- nodes ----
Node *capture_node(CUstream_st *s, cudaGraphNodeType type)
{
    Node *n = add_node(s->capture->graph, type, s->capture_deps);

    n->is_captured = true;
    s->capture_deps = { n };
    return n;
}

cudaError_t wait_captured(CUstream_st *s, CUevent_st *e)
{
    if (e->capture->is_ended)
        return cudaErrorCapturedEvent;
    if (s->capture && s->capture != e->capture)
        return cudaErrorStreamCaptureMerge;
    if (!s->capture) {
        if (is_legacy(s))
            return cudaErrorStreamCaptureImplicit;
        std::lock_guard<std::mutex> l(stream_lock);
        s->capture = e->capture;
        s->capture->members.insert(s);
        s->capture_deps.clear();
    }
    for (Node *n : e->capture_deps) {
        if (std::find(s->capture_deps.begin(), s->capture_deps.end(), n) == s->capture_deps.end())
            s->capture_deps.push_back(n);
    }
    return cudaSuccess;
}

// ---- begin and end ----
static cudaError_t begin_capture(cudaStream_t st, cudaStreamCaptureMode mode)
{
    static std::atomic<unsigned long long> next_id{ 1 };

    if (!st || st == cudaStreamLegacy)
        return cudaErrorStreamCaptureUnsupported;
    CUstream_st *s = to_stream(st);
    std::lock_guard<std::mutex> l(stream_lock);
    if (s->capture)
        return cudaErrorIllegalState;
    s->capture = std::make_shared<Capture>();
    s->capture->graph = new Graph;
    s->capture->id = next_id++;
    s->capture->mode = mode;
    s->capture->origin = s;
    s->capture->tid = std::this_thread::get_id();
    s->capture->members = { s };
    s->capture_deps.clear();
    n_captures++;
    return cudaSuccess;
}

API cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode)
{
    return ret(begin_capture(s, mode));
}

// Every captured node must be reachable from the origin. Nodes that were added by hand or dropped
// through cudaStreamUpdateCaptureDependencies do not count.
static bool is_joined(const Capture &c)
{
    std::set<Node *> reached;
    std::vector<Node *> open = c.origin->capture_deps;

    while (!open.empty()) {
        Node *n = open.back();
        open.pop_back();
        if (reached.insert(n).second)
            open.insert(open.end(), n->deps.begin(), n->deps.end());
    }
    for (const CUstream_st *m : c.members) {
        for (Node *n : m->capture_deps) {
            if (m != c.origin && n->is_captured && !reached.count(n))
                return false;
        }
    }
    return true;
}

static cudaError_t may_end(const CUstream_st *s)
{
    if (!s->capture)
        return cudaErrorIllegalState;
    if (s->capture->origin != s)
        return cudaErrorStreamCaptureUnmatched;
    if (s->capture->mode != cudaStreamCaptureModeRelaxed &&
        s->capture->tid != std::this_thread::get_id())
        return cudaErrorStreamCaptureWrongThread;
    return cudaSuccess;
}

API cudaError_t cudaStreamEndCapture(cudaStream_t st, cudaGraph_t *g)
{
    CUstream_st *s = to_stream(st);
    cudaError_t e = cudaSuccess;

    *g = nullptr;
    TRY(may_end(s));
    const std::shared_ptr<Capture> c = s->capture;
    {
        std::lock_guard<std::mutex> l(stream_lock);
        if (c->is_bad)
            e = cudaErrorStreamCaptureInvalidated;
        else if (!is_joined(*c))
            e = cudaErrorStreamCaptureUnjoined;
        for (CUstream_st *m : c->members) {
            m->capture = nullptr;
            m->capture_deps.clear();
        }
        c->is_ended = true;
        n_captures--;
    }
    if (e == cudaSuccess)
        *g = reinterpret_cast<cudaGraph_t>(c->graph);
    else
        cudaGraphDestroy(reinterpret_cast<cudaGraph_t>(c->graph));
    return ret(e);
}

// ---- questions ----
API cudaError_t cudaStreamIsCapturing(cudaStream_t st, cudaStreamCaptureStatus *o)
{
    CUstream_st *s = to_stream(st);

    *o = !s->capture          ? cudaStreamCaptureStatusNone
         : s->capture->is_bad ? cudaStreamCaptureStatusInvalidated
                              : cudaStreamCaptureStatusActive;
    return cudaSuccess;
}

API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t st, cudaStreamCaptureStatus *status,
                                         unsigned long long *id, cudaGraph_t *g,
                                         const cudaGraphNode_t **deps,
                                         const cudaGraphEdgeData **edges, size_t *n)
{
    CUstream_st *s = to_stream(st);

    cudaStreamIsCapturing(s, status);
    if (!s->capture)
        return cudaSuccess;
    if (id)
        *id = s->capture->id;
    if (g)
        *g = reinterpret_cast<cudaGraph_t>(s->capture->graph);
    if (deps)
        *deps = reinterpret_cast<const cudaGraphNode_t *>(s->capture_deps.data());
    if (edges)
        *edges = nullptr;
    if (n)
        *n = s->capture_deps.size();
    return cudaSuccess;
}

API cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t st, cudaGraphNode_t *deps,
                                                    const cudaGraphEdgeData *, size_t n,
                                                    unsigned flags)
{
    CUstream_st *s = to_stream(st);
    Node **nodes = reinterpret_cast<Node **>(deps);

    if (!s->capture)
        return ret(cudaErrorIllegalState);
    std::vector<Node *> v(nodes, nodes + n);
    if (flags == cudaStreamAddCaptureDependencies)
        v.insert(v.end(), s->capture_deps.begin(), s->capture_deps.end());
    s->capture_deps = v;
    return cudaSuccess;
}

API cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode)
{
    std::swap(*mode, thread_mode);
    return cudaSuccess;
}
