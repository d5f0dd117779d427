// SPDX-License-Identifier: Apache-2.0
// Two processes share device memory: one writes what the other reads, and two kernels, one in each,
// wait for each other.
#include "emu/selftest/selftest.h"
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const int n = 64, n_blocks = 3;
static const uint32_t n_rounds = 8;

// What both processes find in the shared memory.
struct Shared {
    int numbers[n];
    uint32_t arrived[n_rounds];
    uint64_t done[2];
};

// ---- the other process ----
static int work_on(Shared *s)
{
    launch_add(s->numbers, 1, n, nullptr);
    launch_meet(s->arrived, 2, n_rounds, &s->done[1], n_blocks, 32, nullptr);
    return cudaDeviceSynchronize() == cudaSuccess ? 0 : 4;
}

int ipc_child(const char *hex)
{
    cudaIpcMemHandle_t handle;
    void *p = nullptr;

    for (size_t i = 0; i < sizeof(handle); i++) {
        unsigned byte;

        if (sscanf(hex + 2 * i, "%2x", &byte) != 1)
            return 2;
        reinterpret_cast<unsigned char *>(&handle)[i] = static_cast<unsigned char>(byte);
    }
    if (cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
        return 3;
    const int status = work_on(static_cast<Shared *>(p));
    return cudaIpcCloseMemHandle(p) == cudaSuccess ? status : 5;
}

// ---- this one ----
static pid_t start_child(const cudaIpcMemHandle_t &handle)
{
    char hex[2 * sizeof(handle) + 1];

    for (size_t i = 0; i < sizeof(handle); i++)
        snprintf(hex + 2 * i, 3, "%02x", reinterpret_cast<const unsigned char *>(&handle)[i]);
    const pid_t pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "emu_selftest", "--ipc", hex, nullptr);
        _exit(127);
    }
    return pid;
}

TEST(Process, SharesMemoryAndKernelsMeet)
{
    Device<Shared> shared(1);
    cudaIpcMemHandle_t handle;
    int status = 1;
    void *p;

    shared.fill(0);
    CUDA_OK(cudaIpcGetMemHandle(&handle, shared.p));
    CUDA_FAILS(cudaErrorDeviceUninitialized, cudaIpcOpenMemHandle(&p, handle, 0)); // its own
    const pid_t pid = start_child(handle);
    launch_meet(shared.p->arrived, 2, n_rounds, &shared.p->done[0], n_blocks, 32, nullptr);
    CUDA_OK(cudaDeviceSynchronize());
    ASSERT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
    const Shared got = shared.get()[0];
    EXPECT_EQ(1, got.numbers[n - 1]);
    EXPECT_EQ(n_rounds, got.done[0]);
    EXPECT_EQ(n_rounds, got.done[1]);
}

TEST(Process, HandlesAreChecked)
{
    cudaIpcMemHandle_t handle;
    Pinned<int> h(4);
    void *p;

    memset(&handle, 0x5a, sizeof(handle));
    CUDA_FAILS(cudaErrorInvalidValue, cudaIpcOpenMemHandle(&p, handle, 0));
    CUDA_FAILS(cudaErrorInvalidValue, cudaIpcGetMemHandle(&handle, h.p)); // host memory
}
