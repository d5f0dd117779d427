// SPDX-License-Identifier: Apache-2.0
// What the self-test's files share: launchers of the kernels (selftest_launch.cu), checks, and
// memory.
#ifndef DSC_EMU_SELFTEST_H
#define DSC_EMU_SELFTEST_H

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <stdint.h>
#include <vector>

#define CUDA_OK(expr) ASSERT_STREQ("cudaSuccess", cudaGetErrorName(expr))
// A call that must fail with one error, which is then cleared.
#define CUDA_FAILS(want, expr)                                        \
    do {                                                              \
        EXPECT_STREQ(cudaGetErrorName(want), cudaGetErrorName(expr)); \
        static_cast<void>(cudaGetLastError());                        \
    } while (0)

// ---- launchers ----
enum class Cast { HALF, BFLOAT16, E4M3 };
void launch_quant(const float *x, float *r, int8_t *q, float *scale, int n, cudaStream_t s);
void launch_cast(Cast type, const float *x, void *y, int n, unsigned *negatives, cudaStream_t s);
void launch_scalar_ops(const uint32_t *in, uint32_t *out, int n, cudaStream_t s);
void launch_warp_ops(const uint32_t *in, uint32_t *out, cudaStream_t s);
void launch_atomic_ops(uint32_t *words, unsigned long long *wide, int blocks, int threads,
                       cudaStream_t s);
void launch_add(int *p, int v, int n, cudaStream_t s);
void launch_add_threads(int *p, int v, int n, int threads, cudaStream_t s);
void launch_mul(int *p, int v, int n, cudaStream_t s);
void launch_add_step(int *p, int n, cudaStream_t s);
void launch_meet(uint32_t *arrived, uint32_t n_parties, uint32_t rounds, uint64_t *done, int blocks,
                 int threads, cudaStream_t s);
void launch_meet_unmarked(uint32_t *arrived, int blocks, cudaStream_t s);
cudaError_t set_step(int v);
cudaError_t get_step(int *v);
const void *add_function();

enum class Bug {
    GLOBAL,
    READ,
    STATIC_SHARED,
    DYNAMIC_SHARED,
    DIVERGENCE,
    SHUFFLE,
    BARRIER,
    INITIAL,
    ALIGN
};
void launch_bug(Bug bug, void *p, int n); // on the legacy stream, 64 threads

// ---- memory ----
template <class T> struct Device { // of the current device, freed at the end
    T *p = nullptr;
    size_t n;

    explicit Device(size_t count) : n(count)
    {
        EXPECT_EQ(cudaSuccess, cudaMalloc(reinterpret_cast<void **>(&p), n * sizeof(T)));
    }
    explicit Device(const std::vector<T> &v) : Device(v.size())
    {
        EXPECT_EQ(cudaSuccess, cudaMemcpy(p, v.data(), n * sizeof(T), cudaMemcpyHostToDevice));
    }
    ~Device()
    {
        if (p)
            cudaFree(p);
    }
    Device(const Device &) = delete;

    void fill(int byte)
    {
        EXPECT_EQ(cudaSuccess, cudaMemset(p, byte, n * sizeof(T)));
        EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
    }
    std::vector<T> get() const // waits for the device
    {
        std::vector<T> v(n);

        EXPECT_EQ(cudaSuccess, cudaDeviceSynchronize());
        EXPECT_EQ(cudaSuccess, cudaMemcpy(v.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
};

template <class T> struct Pinned {
    T *p = nullptr;

    explicit Pinned(size_t n)
    {
        EXPECT_EQ(cudaSuccess, cudaMallocHost(reinterpret_cast<void **>(&p), n * sizeof(T)));
    }
    ~Pinned()
    {
        cudaFreeHost(p);
    }
    Pinned(const Pinned &) = delete;
};

struct Stream {
    cudaStream_t s = nullptr;

    explicit Stream(unsigned flags = cudaStreamNonBlocking)
    {
        EXPECT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&s, flags));
    }
    ~Stream()
    {
        cudaStreamDestroy(s);
    }
    Stream(const Stream &) = delete;
    operator cudaStream_t() const
    {
        return s;
    }
};

struct Event {
    cudaEvent_t e = nullptr;

    explicit Event(unsigned flags = cudaEventDisableTiming)
    {
        EXPECT_EQ(cudaSuccess, cudaEventCreateWithFlags(&e, flags));
    }
    ~Event()
    {
        cudaEventDestroy(e);
    }
    Event(const Event &) = delete;
    operator cudaEvent_t() const
    {
        return e;
    }
};

#if defined(__SANITIZE_ADDRESS__)
static constexpr bool has_asan = true;
#else
static constexpr bool has_asan = false;
#endif
bool is_lazy();
const char *thread_order(); // CUDAEMU_SCHED

#endif
