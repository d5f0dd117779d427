// SPDX-License-Identifier: Apache-2.0
// Graphs under construction: nodes by hand or by capture, their order, and user objects.
#include "emu/emu_rt.h"
#include <algorithm>

struct UserObject {
    void *p;
    cudaHostFn_t destroy;
    std::atomic<int> refs;
};

static Graph *graph_of(cudaGraph_t g)
{
    return reinterpret_cast<Graph *>(g);
}

static Node *node_of(cudaGraphNode_t n)
{
    return reinterpret_cast<Node *>(n);
}

Node *add_node(Graph *g, cudaGraphNodeType type, const std::vector<Node *> &deps)
{
    Node *n = new Node{};

    n->type = type;
    n->deps = deps;
    n->owner = g;
    g->nodes.push_back(n);
    return n;
}

// Depends only on creation order, so two captures of one program sort alike.
std::vector<Node *> topological(const std::vector<Node *> &nodes)
{
    std::vector<Node *> out;
    std::set<Node *> seen;
    std::function<void(Node *)> visit = [&](Node *n) {
        if (!seen.insert(n).second)
            return;
        for (Node *d : n->deps)
            visit(d);
        out.push_back(n);
    };

    for (Node *n : nodes)
        visit(n);
    return out;
}

// ---- graphs and user objects ----
void retain_object(cudaUserObject_t o)
{
    reinterpret_cast<UserObject *>(o)->refs++;
}

void release_object(cudaUserObject_t o)
{
    auto *u = reinterpret_cast<UserObject *>(o);

    if (--u->refs > 0)
        return;
    {
        HostAccess closed;
        u->destroy(u->p);
    }
    delete u;
}

API cudaError_t cudaUserObjectCreate(cudaUserObject_t *o, void *p, cudaHostFn_t destroy,
                                     unsigned refs, unsigned)
{
    *o = reinterpret_cast<cudaUserObject_t>(
        new UserObject{ p, destroy, { static_cast<int>(refs) } });
    return cudaSuccess;
}

API cudaError_t cudaUserObjectRelease(cudaUserObject_t o, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        release_object(o);
    return cudaSuccess;
}

API cudaError_t cudaGraphRetainUserObject(cudaGraph_t g, cudaUserObject_t o, unsigned count,
                                          unsigned flags)
{
    for (unsigned i = 0; i < count; i++) {
        if (!(flags & cudaGraphUserObjectMove))
            retain_object(o);
        graph_of(g)->objects.push_back(o);
    }
    return cudaSuccess;
}

API cudaError_t cudaGraphCreate(cudaGraph_t *g, unsigned)
{
    TRY(watched(Count::CREATE, "cudaGraphCreate"));
    *g = reinterpret_cast<cudaGraph_t>(new Graph);
    return cudaSuccess;
}

API cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    for (cudaUserObject_t o : graph_of(g)->objects)
        release_object(o);
    for (Node *n : graph_of(g)->nodes)
        delete n;
    delete graph_of(g);
    return cudaSuccess;
}

// ---- nodes ----
cudaError_t set_kernel(Work *w, const cudaKernelNodeParams *p)
{
    KernelArgs k;

    TRY(pack_args(&k, func_of(p->func), p->gridDim, p->blockDim, p->kernelParams,
                  p->sharedMemBytes));
    w->kernel = k;
    return cudaSuccess;
}

cudaError_t set_copy(Work *w, void *dst, const void *src, size_t bytes)
{
    TRY(check_range(dst, bytes, "memcpy node destination"));
    TRY(check_range(src, bytes, "memcpy node source"));
    w->dst = dst;
    w->src = src;
    w->bytes = bytes;
    return cudaSuccess;
}

static cudaError_t add(cudaGraphNode_t *o, cudaGraph_t g, cudaGraphNodeType type,
                       const cudaGraphNode_t *deps, size_t n, const Work &work)
{
    Node *const *d = reinterpret_cast<Node *const *>(deps);
    Node *x = add_node(graph_of(g), type, std::vector<Node *>(d, d + n));

    x->work = work;
    *o = reinterpret_cast<cudaGraphNode_t>(x);
    return cudaSuccess;
}

API cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t *o, cudaGraph_t g, const cudaGraphNode_t *d,
                                       size_t n, const cudaKernelNodeParams *p)
{
    Work w;

    TRY(set_kernel(&w, p));
    return add(o, g, cudaGraphNodeTypeKernel, d, n, w);
}

API cudaError_t cudaGraphAddHostNode(cudaGraphNode_t *o, cudaGraph_t g, const cudaGraphNode_t *d,
                                     size_t n, const cudaHostNodeParams *p)
{
    Work w;

    w.host = *p;
    return add(o, g, cudaGraphNodeTypeHost, d, n, w);
}

API cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t *o, cudaGraph_t g, const cudaGraphNode_t *d,
                                      size_t n)
{
    return add(o, g, cudaGraphNodeTypeEmpty, d, n, Work{});
}

API cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t *o, cudaGraph_t g,
                                            const cudaGraphNode_t *d, size_t n, cudaEvent_t e)
{
    Work w;

    w.event = e;
    return add(o, g, cudaGraphNodeTypeEventRecord, d, n, w);
}

API cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t *o, cudaGraph_t g,
                                         const cudaGraphNode_t *d, size_t n, void *dst,
                                         const void *src, size_t bytes, cudaMemcpyKind)
{
    Work w;

    TRY(set_copy(&w, dst, src, bytes));
    return add(o, g, cudaGraphNodeTypeMemcpy, d, n, w);
}

API cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t *o, cudaGraph_t g, const cudaGraphNode_t *d,
                                       size_t n, const cudaMemsetParams *p)
{
    Work w;

    w.set = *p;
    return add(o, g, cudaGraphNodeTypeMemset, d, n, w);
}

API cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t *from,
                                         const cudaGraphNode_t *to, const cudaGraphEdgeData *,
                                         size_t n)
{
    for (size_t i = 0; i < n; i++)
        node_of(to[i])->deps.push_back(node_of(from[i]));
    return cudaSuccess;
}

// ---- questions ----
API cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *o, size_t *n)
{
    const std::vector<Node *> &v = graph_of(g)->nodes;

    for (size_t i = 0; o && i < *n; i++)
        o[i] = i < v.size() ? reinterpret_cast<cudaGraphNode_t>(v[i]) : nullptr;
    *n = o ? std::min(*n, v.size()) : v.size();
    return cudaSuccess;
}

API cudaError_t cudaGraphNodeGetType(cudaGraphNode_t n, cudaGraphNodeType *o)
{
    *o = node_of(n)->type;
    return cudaSuccess;
}

API cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t n, cudaGraphNode_t *o,
                                             cudaGraphEdgeData *, size_t *count)
{
    const std::vector<Node *> &v = node_of(n)->deps;

    for (size_t i = 0; o && i < *count && i < v.size(); i++)
        o[i] = reinterpret_cast<cudaGraphNode_t>(v[i]);
    *count = v.size();
    return cudaSuccess;
}

API cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t n, cudaKernelNodeParams *p)
{
    Node *x = node_of(n);
    KernelArgs &k = x->work.kernel;

    if (x->type != cudaGraphNodeTypeKernel || !k.func)
        return ret(cudaErrorInvalidValue);
    k.ptrs.clear();
    for (uint32_t i = 0; k.desc && i < k.desc->n_params; i++)
        k.ptrs.push_back(&k.blob[k.desc->param_offset[i]]);
    *p = { const_cast<void *>(k.func->host),       k.grid,        k.block,
           static_cast<unsigned>(k.dynamic_bytes), k.ptrs.data(), nullptr };
    return cudaSuccess;
}

API cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t n, const cudaKernelNodeParams *p)
{
    Node *x = node_of(n);

    if (x->type != cudaGraphNodeTypeKernel)
        return ret(cudaErrorInvalidValue);
    return ret(set_kernel(&x->work, p));
}
