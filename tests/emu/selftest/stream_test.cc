// SPDX-License-Identifier: Apache-2.0
// Streams, events and copies: order, asynchrony, and what belongs to which device.
#include "emu/selftest/selftest.h"
#include <string.h>
#include <unistd.h>

static const int n = 64;
static const size_t bytes = n * sizeof(int);

static void slow(void *flag)
{
    usleep(20000);
    *static_cast<int *>(flag) = 1;
}

TEST(Stream, EventsOrderStreams)
{
    Stream a, b;
    Event first, last;
    int flag = 0;

    CUDA_OK(cudaLaunchHostFunc(a, slow, &flag));
    CUDA_OK(cudaEventRecord(first, a));
    CUDA_FAILS(cudaErrorNotReady, cudaEventQuery(first));
    CUDA_OK(cudaStreamWaitEvent(b, first, 0));
    CUDA_OK(cudaEventRecord(last, b));
    CUDA_FAILS(cudaErrorNotReady, cudaStreamQuery(b));
    CUDA_OK(cudaEventSynchronize(last));
    EXPECT_EQ(1, flag);
}

// A loop of queries is a way to wait, also where work runs only when somebody does.
TEST(Stream, PollingMakesProgress)
{
    Stream a;
    Event e;
    int flag = 0, n_polls = 0;

    CUDA_OK(cudaLaunchHostFunc(a, slow, &flag));
    CUDA_OK(cudaEventRecord(e, a));
    while (cudaEventQuery(e) == cudaErrorNotReady && n_polls++ < 5000)
        usleep(1000);
    static_cast<void>(cudaGetLastError());
    EXPECT_EQ(1, flag);
}

TEST(Stream, ElapsedTime)
{
    Stream a;
    Event t0(0), t1(0);
    float ms = 0;
    int flag = 0;

    CUDA_OK(cudaEventRecord(t0, a));
    CUDA_OK(cudaLaunchHostFunc(a, slow, &flag));
    CUDA_OK(cudaEventRecord(t1, a));
    CUDA_OK(cudaEventSynchronize(t1));
    CUDA_OK(cudaEventElapsedTime(&ms, t0, t1));
    EXPECT_GT(ms, 15.0f);
}

TEST(Stream, TheLegacyStreamWaitsForBlockingStreams)
{
    Stream blocking(cudaStreamDefault);
    Device<int> d(std::vector<int>(n, 1));
    int flag = 0, h[n];

    CUDA_OK(cudaLaunchHostFunc(blocking, slow, &flag));
    launch_add(d.p, 4, n, blocking);
    CUDA_OK(cudaMemcpy(h, d.p, bytes, cudaMemcpyDeviceToHost));
    EXPECT_EQ(5, h[0]);
    EXPECT_EQ(1, flag);
}

// The work of a destroyed stream still runs, and the device still waits for it.
TEST(Stream, DestroyedStreamsDrain)
{
    int flag = 0;

    {
        Stream a;
        CUDA_OK(cudaLaunchHostFunc(a, slow, &flag));
    }
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(1, flag);
}

TEST(Stream, PageableCopiesAreStagedOrBlock)
{
    Stream a;
    Device<int> d(n);
    int h[n] = { 5 }, back[n] = {};

    CUDA_OK(cudaMemcpyAsync(d.p, h, bytes, cudaMemcpyHostToDevice, a));
    h[0] = -1;
    CUDA_OK(cudaMemcpyAsync(back, d.p, bytes, cudaMemcpyDeviceToHost, a));
    EXPECT_EQ(5, back[0]);
}

TEST(Stream, WrongDirectionsAreRefused)
{
    Device<int> d(n);
    int h[n] = {};

    CUDA_FAILS(cudaErrorInvalidValue, cudaMemcpy(d.p, h, bytes, cudaMemcpyDeviceToHost));
    CUDA_FAILS(cudaErrorInvalidValue, cudaMemcpy(h, d.p, bytes, cudaMemcpyHostToDevice));
    CUDA_FAILS(cudaErrorInvalidValue, cudaMemcpy(h, h, 4, cudaMemcpyDeviceToDevice));
}

TEST(Stream, BelongsToADevice)
{
    Stream a;
    Event e;
    Device<int> d(std::vector<int>(n, 0));

    CUDA_OK(cudaSetDevice(1));
    launch_add(d.p, 1, n, a);
    CUDA_FAILS(cudaErrorInvalidResourceHandle, cudaGetLastError());
    {
        Stream other;
        CUDA_FAILS(cudaErrorInvalidResourceHandle, cudaEventRecord(e, other));
    }
    CUDA_OK(cudaSetDevice(0));
    launch_add(d.p, 1, n, a);
    CUDA_OK(cudaGetLastError());
    EXPECT_EQ(1, d.get()[0]);
}

TEST(Stream, BadShapesAreRefused)
{
    Device<int> d(n);
    int blocks = 0;

    launch_add_threads(d.p, 1, n, 2048, nullptr);
    CUDA_FAILS(cudaErrorInvalidConfiguration, cudaGetLastError());
    CUDA_OK(cudaGetLastError());
    CUDA_OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, add_function(), 256, 0));
    EXPECT_EQ(8, blocks);
}
