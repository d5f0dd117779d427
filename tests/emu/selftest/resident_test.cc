// SPDX-License-Identifier: Apache-2.0
// Kernels whose blocks wait for each other, for another kernel, or for a branch of the same graph.
#include "emu/selftest/selftest.h"

static const int n_blocks = 4, n_threads = 64;
static const uint32_t n_rounds = 8;

static void expect_met(Device<uint64_t> *done)
{
    EXPECT_EQ(n_rounds, done->get()[0]);
}

TEST(Resident, BlocksOfOneKernel)
{
    Device<uint32_t> arrived(std::vector<uint32_t>(n_rounds, 0));
    Device<uint64_t> done(std::vector<uint64_t>{ 0 });

    launch_meet(arrived.p, 1, n_rounds, done.p, n_blocks, n_threads, nullptr);
    expect_met(&done);
}

TEST(Resident, KernelsOnTwoStreams)
{
    Device<uint32_t> arrived(std::vector<uint32_t>(n_rounds, 0));
    Device<uint64_t> done(std::vector<uint64_t>{ 0 }), done2(std::vector<uint64_t>{ 0 });
    Stream a, b;

    launch_meet(arrived.p, 2, n_rounds, done.p, n_blocks, n_threads, a);
    launch_meet(arrived.p, 2, n_rounds, done2.p, n_blocks, n_threads, b);
    CUDA_OK(cudaStreamSynchronize(a)); // which needs b to go on, too
    expect_met(&done);
    expect_met(&done2);
}

TEST(Resident, BranchesOfOneGraph)
{
    Device<uint32_t> arrived(n_rounds);
    Device<uint64_t> done(std::vector<uint64_t>{ 0 }), done2(std::vector<uint64_t>{ 0 });
    Stream a, b;
    Event fork, join;
    cudaGraph_t g;
    cudaGraphExec_t e;

    CUDA_OK(cudaStreamBeginCapture(a, cudaStreamCaptureModeThreadLocal));
    CUDA_OK(cudaMemsetAsync(arrived.p, 0, n_rounds * sizeof(uint32_t), a));
    CUDA_OK(cudaEventRecord(fork, a));
    CUDA_OK(cudaStreamWaitEvent(b, fork, 0));
    launch_meet(arrived.p, 2, n_rounds, done.p, n_blocks, n_threads, a);
    launch_meet(arrived.p, 2, n_rounds, done2.p, n_blocks, n_threads, b);
    CUDA_OK(cudaEventRecord(join, b));
    CUDA_OK(cudaStreamWaitEvent(a, join, 0));
    CUDA_OK(cudaStreamEndCapture(a, &g));
    CUDA_OK(cudaGraphInstantiate(&e, g, 0));
    for (int i = 0; i < 3; i++)
        CUDA_OK(cudaGraphLaunch(e, a));
    CUDA_OK(cudaStreamSynchronize(a));
    expect_met(&done);
    expect_met(&done2);
    CUDA_OK(cudaGraphExecDestroy(e));
    CUDA_OK(cudaGraphDestroy(g));
}

TEST(Resident, MoreBlocksThanTheDeviceHoldsAreRefused)
{
    Device<uint32_t> arrived(std::vector<uint32_t>(n_rounds, 0));
    Device<uint64_t> done(1);
    int n_sms = 0;

    CUDA_OK(cudaDeviceGetAttribute(&n_sms, cudaDevAttrMultiProcessorCount, 0));
    launch_meet(arrived.p, 1, n_rounds, done.p, n_sms * 2 + 1, 1024, nullptr);
    CUDA_FAILS(cudaErrorCooperativeLaunchTooLarge, cudaGetLastError());
}
