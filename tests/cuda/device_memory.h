/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of a device, real or emulated, that tests fill and read back.
 */
#ifndef DSC_TEST_DEVICE_MEMORY_H
#define DSC_TEST_DEVICE_MEMORY_H

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

template <class T> class DeviceArray {
  public:
    explicit DeviceArray(size_t n)
    {
        allocate(n);
    }
    explicit DeviceArray(const std::vector<T> &v) : DeviceArray(v.size())
    {
        set(v);
    }
    ~DeviceArray()
    {
        (void)cudaFree(p_);
    }
    DeviceArray(const DeviceArray &) = delete;
    DeviceArray &operator=(const DeviceArray &) = delete;

    T *get() const
    {
        return p_;
    }
    /* The first elements; memory grows where they do not fit. */
    void set(const std::vector<T> &v)
    {
        if (v.size() > n_) {
            (void)cudaFree(p_);
            allocate(2 * v.size());
        }
        EXPECT_EQ(cudaMemcpy(p_, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice),
                  cudaSuccess);
    }
    std::vector<T> read(size_t n) const
    {
        std::vector<T> v(n);

        EXPECT_EQ(cudaMemcpy(v.data(), p_, n * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
        return v;
    }
    std::vector<T> read() const
    {
        return read(n_);
    }

  private:
    void allocate(size_t n)
    {
        n_ = n;
        EXPECT_EQ(cudaMalloc(reinterpret_cast<void **>(&p_), (n > 0 ? n : 1) * sizeof(T)),
                  cudaSuccess);
    }

    T *p_ = nullptr;
    size_t n_ = 0;
};

#endif
