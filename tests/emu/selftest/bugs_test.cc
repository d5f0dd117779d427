// SPDX-License-Identifier: Apache-2.0
// Planted bugs of each kind: every one must be seen, under every order of threads, with and without
// AddressSanitizer.
#include "emu/selftest/selftest.h"
#include "emu/emu_api.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int n_floats = 1003; // not a multiple of the alignment: there is slack behind

static float *device_floats()
{
    float *p = nullptr;

    if (cudaMalloc(reinterpret_cast<void **>(&p), n_floats * sizeof(float)) != cudaSuccess)
        exit(3);
    return p;
}

// In the child: 0 when the device ended with this error.
[[noreturn]] static void end_with(cudaError_t want)
{
    const cudaError_t e = cudaDeviceSynchronize();

    fprintf(stderr, "ended with %s\n", cudaGetErrorName(e));
    _exit(e == want ? 0 : 2);
}

// A sanitizer ends the process its own way.
static bool is_caught(int status)
{
    return has_asan || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static bool is_segv(int status)
{
    return has_asan || (WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

TEST(BugsDeathTest, KernelWritesPastTheEnd)
{
    EXPECT_EXIT(
        {
            launch_bug(Bug::GLOBAL, device_floats(), 4096);
            end_with(cudaErrorIllegalAddress);
        },
        is_caught,
        "bad_global.*access outside any live device.*block 0,0,0 thread|use-after-poison|SEGV");
}

TEST(BugsDeathTest, KernelWritesIntoTheSlack)
{
    EXPECT_EXIT(
        {
            float *p = device_floats();
            launch_bug(Bug::GLOBAL, p, n_floats - 54); // ten of 64 threads
            cudaDeviceSynchronize();
            cudaFree(p);
            end_with(cudaSuccess);
        },
        is_caught, "write outside allocation|use-after-poison");
}

TEST(BugsDeathTest, KernelReadsPastTheEnd)
{
    EXPECT_EXIT(
        {
            launch_bug(Bug::READ, device_floats(), 2048);
            end_with(cudaErrorIllegalAddress);
        },
        is_caught, "access outside any live device|use-after-poison|SEGV");
}

TEST(BugsDeathTest, StaticSharedMemoryOverrun)
{
    EXPECT_EXIT(
        {
            launch_bug(Bug::STATIC_SHARED, device_floats(), 0);
            end_with(cudaErrorIllegalAddress);
        },
        is_caught, "bad_static_shared.*shared memory overrun");
}

TEST(BugsDeathTest, DynamicSharedMemoryOverrun)
{
    EXPECT_EXIT(
        {
            launch_bug(Bug::DYNAMIC_SHARED, device_floats(), 0);
            end_with(cudaErrorIllegalAddress);
        },
        is_caught, "bad_dynamic_shared.*shared memory overrun");
}

TEST(BugsDeathTest, SharedMemoryIsNeverClean)
{
    Device<int> out(64);

    launch_bug(Bug::INITIAL, out.p, 0);
    for (int v : out.get())
        EXPECT_EQ(static_cast<int>(0xCDCDCDCDu), v);
}

TEST(BugsDeathTest, FreshMemoryIsNeverClean)
{
    Device<uint32_t> fresh(100);

    for (uint32_t v : fresh.get())
        EXPECT_EQ(0xCBCBCBCBu, v);
}

TEST(BugsDeathTest, KernelUsesFreedMemory)
{
    EXPECT_EXIT(
        {
            float *p = device_floats();
            cudaFree(p);
            launch_bug(Bug::GLOBAL, p, 0);
            end_with(cudaErrorIllegalAddress);
        },
        is_caught, "access outside any live device allocation.*FREED|SEGV");
}

TEST(BugsDeathTest, DoubleFreeAndCopyFromFreedMemory)
{
    EXPECT_EXIT(
        {
            float *p = device_floats();
            float v;
            cudaFree(p);
            const cudaError_t copied = cudaMemcpy(&v, p, sizeof(v), cudaMemcpyDeviceToHost);
            const cudaError_t freed = cudaFree(p);
            _exit(copied == cudaErrorInvalidValue && freed == cudaErrorInvalidValue ? 0 : 2);
        },
        is_caught, "memcpy source.*outside any live.*\n.*bad or double free");
}

TEST(BugsDeathTest, CopyPastTheEnd)
{
    float *p = device_floats();

    CUDA_FAILS(cudaErrorInvalidValue, cudaMemset(p, 0, n_floats * sizeof(float) + 1));
    CUDA_OK(cudaFree(p));
}

TEST(BugsDeathTest, HostDereferencesDeviceMemory)
{
    EXPECT_EXIT(
        {
            fprintf(stderr, "%f\n", static_cast<double>(device_floats()[3]));
            _exit(4);
        },
        is_segv, "HOST DEREFERENCE OF DEVICE MEMORY.*offset 12");
}

// Where there are keys, the child goes without.
TEST(BugsDeathTest, HostDereferencesWithoutProtectionKeys)
{
    setenv("CUDAEMU_NO_PKU", "1", 1);
    EXPECT_EXIT(
        {
            device_floats()[0] = 1.0f;
            _exit(4);
        },
        is_segv, "HOST DEREFERENCE OF DEVICE MEMORY.*offset 0");
    unsetenv("CUDAEMU_NO_PKU");
}

TEST(BugsDeathTest, HostFunctionDereferencesDeviceMemory)
{
    EXPECT_EXIT(
        {
            cudaLaunchHostFunc(
                nullptr, [](void *p) { *static_cast<float *>(p) = 1.0f; }, device_floats());
            end_with(cudaSuccess);
        },
        is_segv, "HOST DEREFERENCE OF DEVICE MEMORY");
}

TEST(BugsDeathTest, KernelGetsAHostPointer)
{
    EXPECT_EXIT(
        {
            static float on_host[64];
            launch_bug(Bug::GLOBAL, on_host, 0);
            end_with(cudaErrorIllegalAddress);
        },
        is_caught, "argument 0 is the plain host address");
}

TEST(BugsDeathTest, KernelGetsMemoryOfADeviceThatIsNoPeer)
{
    EXPECT_EXIT(
        {
            float *p = device_floats();
            cudaSetDevice(1);
            launch_bug(Bug::GLOBAL, p, 0);
            end_with(cudaErrorIllegalAddress);
        },
        is_caught, "memory of device 0, which device 1 has no peer access to");
}

TEST(BugsDeathTest, MisalignedVectorLoad)
{
    EXPECT_EXIT(
        {
            launch_bug(Bug::ALIGN, device_floats(), 0);
            end_with(cudaErrorIllegalAddress);
        },
        is_caught, "misaligned address");
}

TEST(BugsDeathTest, DivergentBarrier)
{
    EXPECT_EXIT(
        {
            launch_bug(Bug::DIVERGENCE, device_floats(), 0);
            end_with(cudaErrorLaunchTimeout);
        },
        is_caught,
        "DEADLOCK in .*bad_divergence.*48 threads at a block barrier, 16 at a warp operation");
}

TEST(BugsDeathTest, ShuffleOutsideItsMask)
{
    EXPECT_EXIT(
        {
            launch_bug(Bug::SHUFFLE, device_floats(), 0);
            end_with(cudaErrorIllegalAddress);
        },
        is_caught, "shuffle reads a lane outside the mask");
}

// No order shows every missing barrier; this one shows in two of three.
TEST(BugsDeathTest, MissingBarrier)
{
    Device<int> out(64);
    int n_wrong = 0;

    launch_bug(Bug::BARRIER, out.p, 0);
    const std::vector<int> v = out.get();
    for (int i = 0; i < 64; i++)
        n_wrong += v[static_cast<size_t>(i)] != (i + 33) % 64;
    EXPECT_GT(n_wrong, 20) << "with thread order " << thread_order();
}

// The host looks at results before it has synchronized: with CUDAEMU_LAZY=1 they surely are not
// there.
[[noreturn]] static void read_too_early()
{
    const int n = 64;
    int *d, *h;
    cudaStream_t s;

    if (cudaMalloc(reinterpret_cast<void **>(&d), n * sizeof(int)) != cudaSuccess ||
        cudaMallocHost(reinterpret_cast<void **>(&h), n * sizeof(int)) != cudaSuccess ||
        cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) != cudaSuccess)
        _exit(3);
    cudaMemsetAsync(d, 0, n * sizeof(int), s);
    launch_add(d, 7, n, s);
    cudaMemcpyAsync(h, d, n * sizeof(int), cudaMemcpyDeviceToHost, s);
    usleep(30000); // far longer than the work takes
    const int early = h[0];
    cudaStreamSynchronize(s);
    fprintf(stderr, "early %x then %d\n", static_cast<unsigned>(early), h[0]);
    _exit(0);
}

TEST(BugsDeathTest, HostReadsBeforeItSynchronized)
{
    const bool was_lazy = is_lazy();

    setenv("CUDAEMU_LAZY", "1", 1);
    EXPECT_EXIT(read_too_early(), testing::ExitedWithCode(0), "early cbcbcbcb then 7");
    if (!was_lazy)
        unsetenv("CUDAEMU_LAZY");
}

TEST(BugsDeathTest, UnmarkedKernelWhoseBlocksWait)
{
    setenv("CUDAEMU_SPIN_MS", "300", 1); // for the child
    EXPECT_EXIT(
        {
            Device<uint32_t> arrived(std::vector<uint32_t>{ 0 });
            launch_meet_unmarked(arrived.p, 2, nullptr);
            end_with(cudaErrorLaunchTimeout);
        },
        is_caught, "DEADLOCK in .*meet_unmarked.*32 asleep.*EMU_KERNEL_RESIDENT");
    unsetenv("CUDAEMU_SPIN_MS");
}

TEST(BugsDeathTest, UseOfADestroyedStream)
{
    Device<int> d(std::vector<int>(64, 0));
    cudaStream_t s;

    CUDA_OK(cudaStreamCreate(&s));
    CUDA_OK(cudaStreamDestroy(s));
    launch_add(d.p, 1, 64, s);
    CUDA_FAILS(cudaErrorInvalidResourceHandle, cudaGetLastError());
    CUDA_FAILS(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(s));
    CUDA_FAILS(cudaErrorInvalidResourceHandle, cudaStreamDestroy(s));
    EXPECT_EQ(0, d.get()[0]);
}

TEST(BugsDeathTest, CallsThatTheTestForbids)
{
    const EmuApi emu;
    EmuCounts before, after;
    Stream s;
    void *p = nullptr;

    ASSERT_NE(nullptr, emu.counts);
    emu.counts(&before);
    emu.forbid(EMU_ALLOCATE | EMU_SYNCHRONIZE);
    CUDA_FAILS(cudaErrorNotPermitted, cudaMalloc(&p, 64));
    CUDA_FAILS(cudaErrorNotPermitted, cudaHostAlloc(&p, 64, 0));
    CUDA_FAILS(cudaErrorNotPermitted, cudaStreamSynchronize(s));
    CUDA_FAILS(cudaErrorNotPermitted, cudaDeviceSynchronize());
    emu.forbid(0);
    emu.counts(&after);
    EXPECT_EQ(before.forbidden_calls + 4, after.forbidden_calls);
    CUDA_OK(cudaStreamSynchronize(s));
}
