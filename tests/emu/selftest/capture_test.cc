// SPDX-License-Identifier: Apache-2.0
// Stream capture: fork and join, and the errors of everything that is forbidden meanwhile.
#include "emu/selftest/selftest.h"
#include <thread>

static const int n = 64;

struct Capture : testing::Test {
    Stream a, b;
    Event fork, join;
    Device<int> d{ std::vector<int>(n, 0) };

    void begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal)
    {
        CUDA_OK(cudaStreamBeginCapture(a, mode));
    }
    void end()
    {
        cudaGraph_t g = nullptr;

        CUDA_OK(cudaStreamEndCapture(a, &g));
        CUDA_OK(cudaGraphDestroy(g));
    }
    void end_fails(cudaError_t want)
    {
        cudaGraph_t g = nullptr;

        CUDA_FAILS(want, cudaStreamEndCapture(a, &g));
        EXPECT_EQ(nullptr, g);
    }
    void fork_b()
    {
        CUDA_OK(cudaEventRecord(fork, a));
        CUDA_OK(cudaStreamWaitEvent(b, fork, 0));
    }
    cudaStreamCaptureStatus status(cudaStream_t s)
    {
        cudaStreamCaptureStatus o = cudaStreamCaptureStatusInvalidated;

        EXPECT_EQ(cudaSuccess, cudaStreamIsCapturing(s, &o));
        return o;
    }
};

TEST_F(Capture, AForkThatDoesNotJoinIsAnError)
{
    begin();
    launch_add(d.p, 1, n, a);
    fork_b();
    launch_add(d.p, 1, n, b);
    EXPECT_EQ(cudaStreamCaptureStatusActive, status(b));
    end_fails(cudaErrorStreamCaptureUnjoined);
    EXPECT_EQ(cudaStreamCaptureStatusNone, status(b));
    EXPECT_EQ(0, d.get()[0]); // nothing ran
}

TEST_F(Capture, WaitingInsideInvalidates)
{
    begin();
    CUDA_FAILS(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(a));
    EXPECT_EQ(cudaStreamCaptureStatusInvalidated, status(a));
    end_fails(cudaErrorStreamCaptureInvalidated);
    begin();
    CUDA_FAILS(cudaErrorStreamCaptureUnsupported, cudaStreamQuery(a));
    end_fails(cudaErrorStreamCaptureInvalidated);
}

TEST_F(Capture, AllocatingInsideInvalidates)
{
    void *p;

    begin();
    CUDA_FAILS(cudaErrorStreamCaptureUnsupported, cudaMalloc(&p, 64));
    end_fails(cudaErrorStreamCaptureInvalidated);
    begin(cudaStreamCaptureModeRelaxed); // which allows it
    CUDA_OK(cudaMalloc(&p, 64));
    end();
    CUDA_OK(cudaFree(p));
}

TEST_F(Capture, OtherThreadsMayAllocateUnlessTheModeIsGlobal)
{
    cudaError_t e = cudaSuccess;
    void *p = nullptr;

    begin();
    std::thread([&] { e = cudaMalloc(&p, 64); }).join();
    EXPECT_EQ(cudaSuccess, e);
    end();
    CUDA_OK(cudaFree(p));
    begin(cudaStreamCaptureModeGlobal);
    std::thread([&] { e = cudaMalloc(&p, 64); }).join();
    EXPECT_EQ(cudaErrorStreamCaptureUnsupported, e);
    end_fails(cudaErrorStreamCaptureInvalidated);
}

TEST_F(Capture, TheLegacyStreamDependsOnBlockingStreams)
{
    Stream blocking(cudaStreamDefault);
    cudaGraph_t g;

    CUDA_OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
    launch_add(d.p, 1, n, nullptr);
    CUDA_FAILS(cudaErrorStreamCaptureImplicit, cudaGetLastError());
    CUDA_FAILS(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(blocking, &g));
    CUDA_FAILS(cudaErrorStreamCaptureUnsupported,
               cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed));
}

TEST_F(Capture, OnlyItsOriginAndThreadMayEndIt)
{
    cudaGraph_t g;

    begin();
    fork_b();
    CUDA_FAILS(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(b, &g));
    std::thread([&] {
        cudaGraph_t other;
        EXPECT_EQ(cudaErrorStreamCaptureWrongThread, cudaStreamEndCapture(a, &other));
    }).join();
    end();
    CUDA_FAILS(cudaErrorIllegalState, cudaStreamEndCapture(a, &g));
}

TEST_F(Capture, TwoCapturesDoNotMix)
{
    Stream second;
    cudaGraph_t g;

    begin();
    CUDA_OK(cudaEventRecord(fork, a));
    CUDA_OK(cudaStreamBeginCapture(second, cudaStreamCaptureModeThreadLocal));
    CUDA_FAILS(cudaErrorStreamCaptureMerge, cudaStreamWaitEvent(second, fork, 0));
    CUDA_OK(cudaStreamEndCapture(second, &g));
    CUDA_OK(cudaGraphDestroy(g));
    end();
    CUDA_FAILS(cudaErrorCapturedEvent, cudaStreamWaitEvent(b, fork, 0)); // it has ended
    EXPECT_EQ(cudaStreamCaptureStatusNone, status(b));
}

TEST_F(Capture, EventsFromOutsideAreForeign)
{
    CUDA_OK(cudaEventRecord(join, b));
    begin();
    CUDA_FAILS(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(a, join, 0));
    end_fails(cudaErrorStreamCaptureInvalidated);
    begin();
    CUDA_OK(cudaEventRecord(fork, a));
    CUDA_FAILS(cudaErrorCapturedEvent, cudaEventQuery(fork));
    CUDA_FAILS(cudaErrorCapturedEvent, cudaEventSynchronize(fork));
    end();
}

// External events, dropped dependencies, a stream destroyed inside, a graph launched into a
// capture.
TEST_F(Capture, Pitfalls)
{
    Device<int> d_b(std::vector<int>(n, 0));
    Event external;
    cudaGraph_t g, outer;
    cudaGraphExec_t e, twice;
    cudaStream_t gone;
    size_t n_nodes = 0, n_outer = 0;

    CUDA_OK(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking));
    begin();
    CUDA_OK(cudaStreamWaitEvent(a, external, cudaEventWaitExternal));
    launch_add(d.p, 1, n, a);
    CUDA_OK(cudaEventRecord(fork, a));
    CUDA_OK(cudaStreamWaitEvent(gone, fork, 0));
    CUDA_OK(cudaStreamDestroy(gone));
    CUDA_OK(cudaStreamWaitEvent(b, fork, 0));
    launch_add(d_b.p, 1, n, b);
    CUDA_OK(cudaStreamUpdateCaptureDependencies(b, nullptr, nullptr, 0,
                                                cudaStreamSetCaptureDependencies)); // dropped
    CUDA_OK(cudaEventRecordWithFlags(external, a, cudaEventRecordExternal));
    CUDA_OK(cudaStreamEndCapture(a, &g));
    CUDA_OK(cudaGraphInstantiate(&e, g, 0));

    begin();
    CUDA_OK(cudaGraphLaunch(e, a));
    CUDA_OK(cudaGraphLaunch(e, a));
    CUDA_OK(cudaStreamEndCapture(a, &outer));
    CUDA_OK(cudaGraphGetNodes(g, nullptr, &n_nodes));
    CUDA_OK(cudaGraphGetNodes(outer, nullptr, &n_outer));
    EXPECT_EQ(2 * n_nodes, n_outer);
    CUDA_OK(cudaGraphInstantiate(&twice, outer, 0));
    CUDA_OK(cudaGraphLaunch(twice, a));
    CUDA_OK(cudaGraphLaunch(e, a));
    CUDA_OK(cudaEventSynchronize(external));
    EXPECT_EQ(3, d.get()[7]);
    EXPECT_EQ(3, d_b.get()[7]);
    for (cudaGraphExec_t x : { e, twice })
        CUDA_OK(cudaGraphExecDestroy(x));
    for (cudaGraph_t x : { g, outer })
        CUDA_OK(cudaGraphDestroy(x));
}
