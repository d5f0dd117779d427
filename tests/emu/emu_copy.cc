// SPDX-License-Identifier: Apache-2.0
// Copies and memsets. Pageable sources are staged before the call returns, pageable destinations
// block, as CUDA does.
#include "emu/emu_rt.h"
#include <string.h>

static bool is_pageable(const void *p)
{
    return !in_window(p) && !is_registered(p);
}

static bool kind_fits(const void *d, const void *s, cudaMemcpyKind kind)
{
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !in_window(d) && !in_window(s);
    case cudaMemcpyHostToDevice:
        return !in_window(s);
    case cudaMemcpyDeviceToHost:
        return !in_window(d);
    case cudaMemcpyDeviceToDevice: // registered host memory has a device address too
        return !is_pageable(d) && !is_pageable(s);
    default:
        return true;
    }
}

static cudaError_t capture_copy(CUstream_st *s, void *dst, const void *src, size_t n, bool is_sync)
{
    if (is_sync) {
        s->capture->is_bad = true;
        return cudaErrorStreamCaptureImplicit;
    }
    Node *node = capture_node(s, cudaGraphNodeTypeMemcpy);
    node->work.dst = dst;
    node->work.src = src;
    node->work.bytes = n;
    return cudaSuccess;
}

static cudaError_t check_copy(void *dst, const void *src, size_t n, cudaMemcpyKind kind)
{
    TRY(check_range(dst, n, "memcpy destination"));
    TRY(check_range(src, n, "memcpy source"));
    return n && !kind_fits(dst, src, kind) ? cudaErrorInvalidValue : cudaSuccess;
}

cudaError_t copy(void *dst, const void *src, size_t n, cudaMemcpyKind kind, cudaStream_t st,
                 bool is_sync)
{
    CUstream_st *s = to_stream(st);

    TRY(stream_ready(s));
    TRY(check_copy(dst, src, n, kind));
    if (s->capture)
        return capture_copy(s, dst, src, n, is_sync);
    TRY(watched(Count::COPY, "a copy"));
    const bool blocks = is_sync || (n && is_pageable(dst));
    if (blocks)
        TRY(watched(Count::SYNCHRONIZE, "a copy that blocks"));
    if (!is_sync && n && is_pageable(src)) { // staged before return
        const char *from = static_cast<const char *>(src);
        auto stage = std::make_shared<std::vector<char>>(from, from + n);
        const Token t = enqueue(s, [dst, n, stage] { memcpy(dst, stage->data(), n); });
        if (blocks)
            t.wait();
        return sticky();
    }
    const Token t = enqueue(s, [=] { memmove(dst, src, n); });
    if (blocks)
        t.wait();
    return sticky();
}

API cudaError_t cudaMemcpyAsync(void *d, const void *s, size_t n, cudaMemcpyKind k, cudaStream_t st)
{
    return ret(copy(d, s, n, k, st, false));
}

API cudaError_t cudaMemcpy(void *d, const void *s, size_t n, cudaMemcpyKind k)
{
    TRY(unsafe_call());
    return ret(copy(d, s, n, k, nullptr, true));
}

API cudaError_t cudaMemcpyPeerAsync(void *d, int, const void *s, int, size_t n, cudaStream_t st)
{
    return ret(copy(d, s, n, cudaMemcpyDefault, st, false));
}

API cudaError_t cudaMemcpy2DAsync(void *d, size_t dpitch, const void *s, size_t spitch,
                                  size_t width, size_t height, cudaMemcpyKind k, cudaStream_t st)
{
    for (size_t i = 0; i < height; i++)
        TRY(copy(static_cast<char *>(d) + i * dpitch, static_cast<const char *>(s) + i * spitch,
                 width, k, st, false));
    return cudaSuccess;
}

API cudaError_t cudaMemcpyBatchAsync(void *const *d, const void *const *s, const size_t *n,
                                     size_t count, cudaMemcpyAttributes *, size_t *, size_t,
                                     cudaStream_t st)
{
    for (size_t i = 0; i < count; i++)
        TRY(copy(d[i], s[i], n[i], cudaMemcpyDefault, st, false));
    return cudaSuccess;
}

// ---- memsets ----
void run_memset(const cudaMemsetParams &p)
{
    for (size_t y = 0; y < p.height; y++) {
        for (size_t x = 0; x < p.width; x++)
            memcpy(static_cast<char *>(p.dst) + y * p.pitch + x * p.elementSize, &p.value,
                   p.elementSize);
    }
}

static cudaError_t set(void *d, int v, size_t n, cudaStream_t st, bool is_sync)
{
    CUstream_st *s = to_stream(st);

    TRY(stream_ready(s));
    TRY(check_range(d, n, "memset"));
    if (s->capture) {
        const unsigned byte = static_cast<unsigned>(v & 255);
        capture_node(s, cudaGraphNodeTypeMemset)->work.set = { d, n, byte, 1, n, 1 };
        return cudaSuccess;
    }
    TRY(watched(Count::COPY, "a memset"));
    const Token t = enqueue(s, [=] { memset(d, v, n); });
    if (is_sync)
        t.wait();
    return cudaSuccess;
}

API cudaError_t cudaMemsetAsync(void *d, int v, size_t n, cudaStream_t s)
{
    return ret(set(d, v, n, s, false));
}

API cudaError_t cudaMemset(void *d, int v, size_t n)
{
    TRY(unsafe_call());
    return ret(set(d, v, n, nullptr, true));
}
