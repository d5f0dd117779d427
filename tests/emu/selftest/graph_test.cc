// SPDX-License-Identifier: Apache-2.0
// Graphs: captured and built by hand, launched, updated, and what keeps their resources alive.
#include "emu/selftest/selftest.h"
#include "emu/emu_api.h"

static const int n = 64;
static const size_t bytes = n * sizeof(int);

static void count_call(void *u)
{
    ++*static_cast<int *>(u);
}

struct Graph : testing::Test {
    Stream a, b;
    Event fork, join;
    Device<int> d{ n };
    Pinned<int> h{ n };
    int n_calls = 0;

    // memset -> add -> mul -> copy on a, a host function on b in between
    void capture(int add, int mul, cudaGraph_t *g)
    {
        CUDA_OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
        CUDA_OK(cudaMemsetAsync(d.p, 0, bytes, a));
        launch_add(d.p, add, n, a);
        CUDA_OK(cudaEventRecord(fork, a));
        CUDA_OK(cudaStreamWaitEvent(b, fork, 0));
        CUDA_OK(cudaLaunchHostFunc(b, count_call, &n_calls));
        CUDA_OK(cudaEventRecord(join, b));
        launch_mul(d.p, mul, n, a);
        CUDA_OK(cudaStreamWaitEvent(a, join, 0));
        CUDA_OK(cudaMemcpyAsync(h.p, d.p, bytes, cudaMemcpyDeviceToHost, a));
        CUDA_OK(cudaStreamEndCapture(a, g));
    }
    int run(cudaGraphExec_t e) // element 7 of the result
    {
        EXPECT_EQ(cudaSuccess, cudaGraphLaunch(e, a));
        EXPECT_EQ(cudaSuccess, cudaStreamSynchronize(a));
        return h.p[7];
    }
    void set_add(cudaGraph_t g, cudaGraphExec_t e, int v)
    {
        cudaGraphNode_t nodes[8];
        size_t n_nodes = 8;
        int count = n;
        void *args[] = { &d.p, &v, &count };

        CUDA_OK(cudaGraphGetNodes(g, nodes, &n_nodes));
        for (size_t i = 0; i < n_nodes; i++) {
            cudaGraphNodeType type;
            cudaKernelNodeParams p;

            CUDA_OK(cudaGraphNodeGetType(nodes[i], &type));
            if (type != cudaGraphNodeTypeKernel)
                continue;
            CUDA_OK(cudaGraphKernelNodeGetParams(nodes[i], &p));
            if (p.func != add_function())
                continue;
            p.kernelParams = args;
            CUDA_OK(cudaGraphExecKernelNodeSetParams(e, nodes[i], &p));
        }
    }
};

TEST_F(Graph, CapturedLaunchedUpdated)
{
    cudaGraph_t g, same, other;
    cudaGraphExec_t e;
    cudaGraphExecUpdateResultInfo info;
    size_t n_nodes = 0;

    capture(5, 3, &g);
    CUDA_OK(cudaGraphGetNodes(g, nullptr, &n_nodes));
    EXPECT_EQ(5u, n_nodes);
    CUDA_OK(cudaGraphInstantiate(&e, g, 0));
    EXPECT_EQ(0, n_calls);
    EXPECT_EQ(15, run(e));
    EXPECT_EQ(1, n_calls);
    set_add(g, e, 9);
    EXPECT_EQ(27, run(e));
    capture(2, 10, &same);
    CUDA_OK(cudaGraphExecUpdate(e, same, &info));
    EXPECT_EQ(20, run(e));
    CUDA_OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    launch_add(d.p, 2, n, a);
    CUDA_OK(cudaStreamEndCapture(a, &other));
    CUDA_FAILS(cudaErrorGraphExecUpdateFailure, cudaGraphExecUpdate(e, other, &info));
    EXPECT_EQ(cudaGraphExecUpdateErrorTopologyChanged, info.result);
    EXPECT_EQ(20, run(e)); // as it was
    CUDA_OK(cudaGraphExecDestroy(e));
    for (cudaGraph_t x : { g, same, other })
        CUDA_OK(cudaGraphDestroy(x));
}

// A launch in flight keeps the parameters it was launched with.
TEST_F(Graph, UpdatesDoNotTouchLaunchesInFlight)
{
    cudaGraph_t g;
    cudaGraphExec_t e;

    capture(1, 1, &g);
    CUDA_OK(cudaGraphInstantiate(&e, g, 0));
    CUDA_OK(cudaGraphLaunch(e, a));
    set_add(g, e, 9);
    CUDA_OK(cudaStreamSynchronize(a));
    EXPECT_EQ(1, h.p[7]);
    CUDA_OK(cudaGraphExecDestroy(e));
    CUDA_OK(cudaGraphDestroy(g));
}

TEST_F(Graph, BuiltByHand)
{
    int v = 4, count = n;
    void *args[] = { &d.p, &v, &count };
    cudaMemsetParams ms = { d.p, 0, 0, sizeof(int), static_cast<size_t>(n), 1 };
    cudaKernelNodeParams kp = {
        const_cast<void *>(add_function()), dim3(1), dim3(n), 0, args, nullptr
    };
    const cudaHostNodeParams hp = { count_call, &n_calls };
    cudaGraphNode_t set, add, host, out;
    cudaGraphExec_t e;
    cudaGraph_t g;
    size_t n_deps = 0;

    CUDA_OK(cudaGraphCreate(&g, 0));
    CUDA_OK(cudaGraphAddMemsetNode(&set, g, nullptr, 0, &ms));
    CUDA_OK(cudaGraphAddHostNode(&host, g, nullptr, 0, &hp));
    CUDA_OK(cudaGraphAddKernelNode(&add, g, &set, 1, &kp));
    CUDA_OK(cudaGraphAddMemcpyNode1D(&out, g, &add, 1, h.p, d.p, bytes, cudaMemcpyDeviceToHost));
    CUDA_OK(cudaGraphAddDependencies(g, &host, &out, nullptr, 1));
    CUDA_OK(cudaGraphNodeGetDependencies(out, nullptr, nullptr, &n_deps));
    EXPECT_EQ(2u, n_deps);
    CUDA_OK(cudaGraphInstantiate(&e, g, 0));
    EXPECT_EQ(4, run(e));
    ms.value = 100;
    CUDA_OK(cudaGraphExecMemsetNodeSetParams(e, set, &ms));
    CUDA_OK(cudaGraphNodeSetEnabled(e, host, 0));
    EXPECT_EQ(104, run(e));
    EXPECT_EQ(1, n_calls);
    CUDA_FAILS(cudaErrorInvalidValue, cudaGraphExecMemcpyNodeSetParams1D(
                                          e, out, h.p, d.p, bytes + 1, cudaMemcpyDeviceToHost));
    CUDA_FAILS(cudaErrorInvalidValue, cudaGraphExecKernelNodeSetParams(e, out, &kp));
    CUDA_OK(cudaGraphDestroy(g));
    CUDA_OK(cudaGraphExecDestroy(e));
}

TEST_F(Graph, KeepsUserObjectsAlive)
{
    cudaUserObject_t object;
    cudaGraph_t g;
    cudaGraphExec_t e;
    int n_dropped = 0;

    CUDA_OK(cudaGraphCreate(&g, 0));
    CUDA_OK(
        cudaUserObjectCreate(&object, &n_dropped, count_call, 1, cudaUserObjectNoDestructorSync));
    CUDA_OK(cudaGraphRetainUserObject(g, object, 1, cudaGraphUserObjectMove));
    CUDA_OK(cudaGraphInstantiate(&e, g, 0));
    CUDA_OK(cudaGraphDestroy(g));
    EXPECT_EQ(0, n_dropped); // the executable graph still holds it
    CUDA_OK(cudaGraphLaunch(e, a));
    CUDA_OK(cudaGraphExecDestroy(e));
    CUDA_OK(cudaStreamSynchronize(a)); // and so did the launch
    EXPECT_EQ(1, n_dropped);
}

TEST_F(Graph, LaunchesAreCounted)
{
    const EmuApi emu;
    EmuCounts t0, t1, t2;
    cudaGraph_t g;
    cudaGraphExec_t e;

    ASSERT_NE(nullptr, emu.counts);
    emu.counts(&t0);
    capture(1, 1, &g);
    CUDA_OK(cudaGraphInstantiate(&e, g, 0));
    emu.counts(&t1);
    EXPECT_EQ(t0.captured + 2, t1.captured);
    EXPECT_EQ(t0.launches, t1.launches);
    emu.forbid(EMU_ALLOCATE | EMU_SYNCHRONIZE | EMU_CREATE | EMU_LAUNCH);
    for (int i = 0; i < 3; i++)
        CUDA_OK(cudaGraphLaunch(e, a));
    emu.forbid(0);
    emu.counts(&t2);
    EXPECT_EQ(t1.graph_launches + 3, t2.graph_launches);
    EXPECT_EQ(t1.graph_kernels + 6, t2.graph_kernels);
    EXPECT_EQ(t1.forbidden_calls, t2.forbidden_calls);
    launch_add(d.p, 1, n, a);
    emu.counts(&t2);
    EXPECT_EQ(t1.launches + 1, t2.launches);
    CUDA_OK(cudaStreamSynchronize(a));
    CUDA_OK(cudaGraphExecDestroy(e));
    CUDA_OK(cudaGraphDestroy(g));
}
