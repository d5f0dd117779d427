// SPDX-License-Identifier: Apache-2.0
// Memory: kinds, asynchronous allocation, mapped host memory, and peers.
#include "emu/selftest/selftest.h"
#include <stdlib.h>
#include <string.h>

static const int n = 64;
static const size_t bytes = n * sizeof(int);

TEST(Memory, PointersAreKnown)
{
    Device<int> d(n);
    Pinned<int> h(n);
    cudaPointerAttributes p;
    int local = 0;

    CUDA_OK(cudaPointerGetAttributes(&p, d.p + 3));
    EXPECT_EQ(cudaMemoryTypeDevice, p.type);
    EXPECT_EQ(0, p.device);
    CUDA_OK(cudaPointerGetAttributes(&p, h.p));
    EXPECT_EQ(cudaMemoryTypeHost, p.type);
    CUDA_OK(cudaPointerGetAttributes(&p, &local));
    EXPECT_EQ(cudaMemoryTypeUnregistered, p.type);
}

TEST(Memory, AsynchronousAllocation)
{
    Stream a;
    int *p = nullptr, row[n], back[n];

    for (int i = 0; i < n; i++)
        row[i] = i;
    CUDA_OK(cudaMallocAsync(reinterpret_cast<void **>(&p), bytes, a));
    CUDA_OK(cudaMemcpyAsync(p, row, bytes, cudaMemcpyHostToDevice, a));
    launch_add(p, 1, n, a);
    CUDA_OK(cudaMemcpyAsync(back, p, bytes, cudaMemcpyDeviceToHost, a));
    CUDA_OK(cudaFreeAsync(p, a));
    CUDA_OK(cudaStreamSynchronize(a));
    EXPECT_EQ(64, back[63]);
    CUDA_FAILS(cudaErrorInvalidValue, cudaMemcpy(row, p, 4, cudaMemcpyDeviceToHost));
}

TEST(Memory, CopiesAndMemsetsOfNull)
{
    Stream a;
    Device<int> d(n);
    int row[n] = {};
    cudaGraph_t graph;
    cudaGraphNode_t node;

    CUDA_FAILS(cudaErrorInvalidValue, cudaMemcpy(d.p, nullptr, bytes, cudaMemcpyHostToDevice));
    CUDA_FAILS(cudaErrorInvalidValue, cudaMemcpy(nullptr, d.p, bytes, cudaMemcpyDeviceToHost));
    CUDA_FAILS(cudaErrorInvalidValue,
               cudaMemcpyAsync(d.p, nullptr, bytes, cudaMemcpyDeviceToDevice, a));
    CUDA_FAILS(cudaErrorInvalidValue, cudaMemcpyAsync(nullptr, row, bytes, cudaMemcpyDefault, a));
    CUDA_FAILS(cudaErrorInvalidValue, cudaMemsetAsync(nullptr, 0, bytes, a));
    // the member of a structure that is not there
    CUDA_FAILS(cudaErrorInvalidValue,
               cudaMemcpy(d.p, reinterpret_cast<void *>(64), bytes, cudaMemcpyHostToDevice));
    CUDA_OK(cudaGraphCreate(&graph, 0));
    CUDA_FAILS(cudaErrorInvalidValue, cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, d.p,
                                                               nullptr, bytes, cudaMemcpyDefault));
    CUDA_OK(cudaGraphDestroy(graph));
    CUDA_OK(cudaMemcpy(d.p, nullptr, 0, cudaMemcpyHostToDevice));
    CUDA_OK(cudaMemcpy(d.p, row, bytes, cudaMemcpyHostToDevice));
    CUDA_OK(cudaStreamSynchronize(a));
}

TEST(Memory, TwoDimensionalCopy)
{
    Stream a;
    Device<int> from(std::vector<int>{ 0, 1, 2, 3, 4, 5, 6, 7 }), to(std::vector<int>(8, -1));

    CUDA_OK(cudaMemcpy2DAsync(to.p, 8, from.p, 16, 4, 2, cudaMemcpyDeviceToDevice, a));
    EXPECT_EQ((std::vector<int>{ 0, -1, 4, -1, -1, -1, -1, -1 }), to.get());
}

TEST(Memory, KernelsReachPinnedAndRegisteredMemory)
{
    Pinned<int> h(n);
    void *alias = nullptr;
    int *row = static_cast<int *>(aligned_alloc(4096, 4096));

    memset(h.p, 0, bytes);
    memset(row, 0, bytes);
    CUDA_OK(cudaHostGetDevicePointer(&alias, h.p, 0));
    launch_add(static_cast<int *>(alias), 3, n, nullptr);
    CUDA_OK(cudaHostRegister(row, 4096, cudaHostRegisterMapped));
    CUDA_FAILS(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(row, 4096, 0));
    launch_add(row, 4, n, nullptr);
    CUDA_OK(cudaDeviceSynchronize());
    EXPECT_EQ(3, h.p[5]);
    EXPECT_EQ(4, row[5]);
    CUDA_OK(cudaHostUnregister(row));
    CUDA_FAILS(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(row));
    free(row);
}

TEST(Memory, LimitPerDevice)
{
    size_t left = 0, total = 0;
    void *p = nullptr;

    CUDA_OK(cudaMemGetInfo(&left, &total));
    CUDA_FAILS(cudaErrorMemoryAllocation, cudaMalloc(&p, left + 1));
    CUDA_FAILS(cudaErrorMemoryAllocation, cudaMalloc(&p, SIZE_MAX - 100));
}

TEST(Memory, PeersMustBeEnabled)
{
    Device<int> d(std::vector<int>(n, 0));

    CUDA_OK(cudaSetDevice(1));
    CUDA_FAILS(cudaErrorInvalidDevice, cudaDeviceEnablePeerAccess(1, 0));
    CUDA_OK(cudaDeviceEnablePeerAccess(0, 0));
    CUDA_FAILS(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(0, 0));
    launch_add(d.p, 2, n, nullptr);
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaDeviceDisablePeerAccess(0));
    CUDA_OK(cudaSetDevice(0));
    EXPECT_EQ(2, d.get()[0]);
}
