// SPDX-License-Identifier: Apache-2.0
// Executable graphs hold private copies of the nodes in topological order. A launch runs a snapshot
// of them, independent branches at the same time on helper threads, as a device would.
#include "emu/emu_rt.h"
#include <algorithm>

struct Step { // one node, by position
    cudaGraphNodeType type;
    bool is_enabled;
    Work work;
    std::vector<size_t> next;
    size_t n_deps;
};

struct UserObjects { // released with the last launch that may use them
    std::vector<cudaUserObject_t> all;

    ~UserObjects()
    {
        for (cudaUserObject_t o : all)
            release_object(o);
    }
};

struct Exec {
    std::vector<Node *> order;
    std::map<Node *, Node *> copy_of; // template node -> private copy
    std::shared_ptr<UserObjects> objects = std::make_shared<UserObjects>();
};

static Exec *exec_of(cudaGraphExec_t e)
{
    return reinterpret_cast<Exec *>(e);
}

// ---- one launch ----
struct Run {
    std::vector<Step> steps;
    std::shared_ptr<UserObjects> objects;
    int dev = 0;

    std::mutex m;
    std::condition_variable cv;
    std::vector<size_t> ready; // a stack: a branch goes on before another starts
    std::vector<std::thread> helpers;
    size_t n_left = 0, n_idle = 0;

    void finish(size_t i)
    {
        n_left--;
        for (size_t k = steps[i].next.size(); k-- > 0;) {
            const size_t s = steps[i].next[k];
            if (--steps[s].n_deps == 0)
                ready.push_back(s);
        }
        cv.notify_all();
    }

    // Waiting threads and this one take a node each; more ready nodes need helpers.
    void call_helpers()
    {
        while (ready.size() > n_idle) {
            n_idle++; // it will be
            helpers.emplace_back([this] {
                const SignalStack signal_stack;
                const DeviceAccess open;

                current_device = dev;
                std::unique_lock<std::mutex> l(m);
                n_idle--;
                work(&l);
            });
        }
    }

    void work(std::unique_lock<std::mutex> *l)
    {
        while (n_left > 0) {
            if (ready.empty()) {
                n_idle++;
                cv.wait(*l);
                n_idle--;
                continue;
            }
            const size_t i = ready.back();
            ready.pop_back();
            call_helpers();
            l->unlock();
            if (steps[i].is_enabled && !sticky_error)
                run_node(steps[i].type, steps[i].work);
            l->lock();
            finish(i);
        }
    }

    void all()
    {
        std::unique_lock<std::mutex> l(m);

        n_left = steps.size();
        for (size_t i = steps.size(); i-- > 0;) {
            if (steps[i].n_deps == 0)
                ready.push_back(i);
        }
        work(&l);
        l.unlock();
        for (std::thread &t : helpers)
            t.join();
    }
};

static std::shared_ptr<Run> snapshot(const Exec &x, int dev)
{
    auto run = std::make_shared<Run>();
    std::map<const Node *, size_t> at;

    run->objects = x.objects;
    run->dev = dev;
    for (const Node *n : x.order) {
        at[n] = run->steps.size();
        for (const Node *d : n->deps)
            run->steps[at.at(d)].next.push_back(run->steps.size());
        run->steps.push_back({ n->type, n->is_enabled, n->work, {}, n->deps.size() });
    }
    return run;
}

// Inside a capture the nodes are appended; CUDA would add one child graph node.
static void capture_launch(const Exec &x, CUstream_st *s)
{
    std::map<const Node *, Node *> copy_of;
    std::set<Node *> leaves;

    for (const Node *n : x.order) {
        std::vector<Node *> deps;
        for (const Node *d : n->deps) {
            deps.push_back(copy_of.at(d));
            leaves.erase(copy_of.at(d));
        }
        Node *c = add_node(s->capture->graph, n->type, deps.empty() ? s->capture_deps : deps);
        c->work = n->work;
        c->is_enabled = n->is_enabled;
        c->is_captured = true;
        copy_of[n] = c;
        leaves.insert(c);
    }
    if (!leaves.empty())
        s->capture_deps.assign(leaves.begin(), leaves.end());
}

// Event nodes are coarse: the whole launch waits for an event, and records when it ends.
static std::vector<Token> awaited_events(const Exec &x)
{
    std::vector<Token> deps;

    for (const Node *n : x.order) {
        if (n->type != cudaGraphNodeTypeWaitEvent)
            continue;
        std::lock_guard<std::mutex> l(n->work.event->m);
        if (n->work.event->t.q)
            deps.push_back(n->work.event->t);
    }
    return deps;
}

static void record_events(const Exec &x, const Token &t, const std::shared_ptr<double> &end_ms)
{
    for (const Node *n : x.order) {
        if (n->type != cudaGraphNodeTypeEventRecord)
            continue;
        std::lock_guard<std::mutex> l(n->work.event->m);
        n->work.event->capture = nullptr;
        n->work.event->ms = end_ms;
        n->work.event->t = t;
    }
}

API cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t st)
{
    CUstream_st *s = to_stream(st);
    const Exec &x = *exec_of(e);

    TRY(stream_ready(s));
    if (s->capture) {
        capture_launch(x, s);
        return cudaSuccess;
    }
    counted(Count::GRAPH);
    for (const Node *n : x.order) {
        if (n->type == cudaGraphNodeTypeKernel && n->is_enabled)
            counted(Count::GRAPH_KERNEL);
    }
    auto end_ms = std::make_shared<double>(0);
    const Token t = enqueue(
        s,
        [run = snapshot(x, s->dev), end_ms] {
            run->all();
            *end_ms = now_ms();
        },
        awaited_events(x));
    record_events(x, t, end_ms);
    return cudaSuccess;
}

API cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t)
{
    return cudaSuccess;
}

// ---- create and destroy ----
API cudaError_t cudaGraphInstantiate(cudaGraphExec_t *o, cudaGraph_t graph, unsigned long long)
{
    const Graph *g = reinterpret_cast<Graph *>(graph);

    TRY(watched(Count::CREATE, "cudaGraphInstantiate"));
    auto *x = new Exec;
    x->objects->all = g->objects;
    for (cudaUserObject_t u : g->objects)
        retain_object(u);
    for (Node *n : topological(g->nodes)) {
        Node *c = new Node(*n);
        x->copy_of[n] = c;
        x->order.push_back(c);
        for (Node *&d : c->deps)
            d = x->copy_of[d];
    }
    *o = reinterpret_cast<cudaGraphExec_t>(x);
    return cudaSuccess;
}

API cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *o, cudaGraph_t g,
                                              unsigned long long flags)
{
    return cudaGraphInstantiate(o, g, flags);
}

API cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e)
{
    TRY(watched(Count::CREATE, "cudaGraphExecDestroy"));
    for (Node *n : exec_of(e)->order)
        delete n;
    delete exec_of(e);
    return cudaSuccess;
}

// ---- updates ----
static Node *exec_node(cudaGraphExec_t e, cudaGraphNode_t n)
{
    const auto &m = exec_of(e)->copy_of;
    auto it = m.find(reinterpret_cast<Node *>(n));

    return it != m.end() ? it->second : nullptr;
}

static Work *exec_work(cudaGraphExec_t e, cudaGraphNode_t n, cudaGraphNodeType type)
{
    Node *x = exec_node(e, n);

    return x && x->type == type ? &x->work : nullptr;
}

API cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t e, cudaGraphNode_t n,
                                                 const cudaKernelNodeParams *p)
{
    Work *w = exec_work(e, n, cudaGraphNodeTypeKernel);

    return ret(w && w->kernel.func ? set_kernel(w, p) : cudaErrorInvalidValue);
}

API cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t e, cudaGraphNode_t n, void *dst,
                                                   const void *src, size_t bytes, cudaMemcpyKind)
{
    Work *w = exec_work(e, n, cudaGraphNodeTypeMemcpy);

    return ret(w ? set_copy(w, dst, src, bytes) : cudaErrorInvalidValue);
}

API cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t e, cudaGraphNode_t n,
                                                 const cudaMemsetParams *p)
{
    Work *w = exec_work(e, n, cudaGraphNodeTypeMemset);

    if (!w)
        return ret(cudaErrorInvalidValue);
    w->set = *p;
    return cudaSuccess;
}

API cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t e, cudaGraphNode_t n,
                                               const cudaHostNodeParams *p)
{
    Work *w = exec_work(e, n, cudaGraphNodeTypeHost);

    if (!w)
        return ret(cudaErrorInvalidValue);
    w->host = *p;
    return cudaSuccess;
}

API cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t e, cudaGraphNode_t n, unsigned on)
{
    Node *x = exec_node(e, n);

    if (!x)
        return ret(cudaErrorInvalidValue);
    x->is_enabled = on != 0;
    return cudaSuccess;
}

static std::vector<size_t> dep_positions(const Node *n, const std::map<const Node *, size_t> &at)
{
    std::vector<size_t> v;

    for (const Node *d : n->deps)
        v.push_back(at.at(d));
    std::sort(v.begin(), v.end());
    return v;
}

// What changed that an update can not carry over, and at which node.
static cudaGraphExecUpdateResult compare(const Exec &x, const std::vector<Node *> &fresh,
                                         Node **where)
{
    std::map<const Node *, size_t> at;

    if (fresh.size() != x.order.size())
        return cudaGraphExecUpdateErrorTopologyChanged;
    for (size_t i = 0; i < fresh.size(); i++)
        at[fresh[i]] = at[x.order[i]] = i;
    for (size_t i = 0; i < fresh.size(); i++) {
        *where = fresh[i];
        if (fresh[i]->type != x.order[i]->type)
            return cudaGraphExecUpdateErrorNodeTypeChanged;
        if (dep_positions(fresh[i], at) != dep_positions(x.order[i], at))
            return cudaGraphExecUpdateErrorTopologyChanged;
        if (fresh[i]->work.kernel.func != x.order[i]->work.kernel.func)
            return cudaGraphExecUpdateErrorFunctionChanged;
    }
    *where = nullptr;
    return cudaGraphExecUpdateSuccess;
}

API cudaError_t cudaGraphExecUpdate(cudaGraphExec_t e, cudaGraph_t g,
                                    cudaGraphExecUpdateResultInfo *info)
{
    Exec &x = *exec_of(e);
    const std::vector<Node *> fresh = topological(reinterpret_cast<Graph *>(g)->nodes);
    Node *where = nullptr;
    const cudaGraphExecUpdateResult result = compare(x, fresh, &where);

    if (info)
        *info = { result, reinterpret_cast<cudaGraphNode_t>(where), nullptr };
    if (result != cudaGraphExecUpdateSuccess)
        return ret(cudaErrorGraphExecUpdateFailure);
    for (size_t i = 0; i < fresh.size(); i++) {
        x.order[i]->work = fresh[i]->work;
        x.copy_of[fresh[i]] = x.order[i];
    }
    return cudaSuccess;
}
