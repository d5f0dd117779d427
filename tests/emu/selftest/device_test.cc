// SPDX-License-Identifier: Apache-2.0
// Devices: what the runtime, the driver's functions and NVML say of them is the same.
#include "emu/selftest/selftest.h"
#include <cuda.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

TEST(Devices, IsNamedForWhatItIs)
{
    cudaDeviceProp p;

    CUDA_OK(cudaGetDeviceProperties(&p, 0));
    EXPECT_STREQ("cudaemu", p.name);
    CUDA_FAILS(cudaErrorInvalidDevice, cudaGetDeviceProperties(&p, 99));
    CUDA_FAILS(cudaErrorInvalidDevice, cudaSetDevice(-1));
}

TEST(Devices, BusIdsLeadBack)
{
    char bus[16];
    int n = 0, device = -1;

    CUDA_OK(cudaGetDeviceCount(&n));
    for (int i = 0; i < n; i++) {
        CUDA_OK(cudaDeviceGetPCIBusId(bus, sizeof(bus), i));
        CUDA_OK(cudaDeviceGetByPCIBusId(&device, bus));
        EXPECT_EQ(i, device);
    }
    CUDA_FAILS(cudaErrorInvalidDevice, cudaDeviceGetByPCIBusId(&device, "0000:99:00.0"));
}

TEST(Devices, DriverFunctionsSeeTheSameMemory)
{
    Device<int> d(100);
    cudaDriverEntryPointQueryResult found;
    void *f = nullptr;
    CUdeviceptr base = 0;
    size_t bytes = 0;

    CUDA_OK(cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &f, 13000, 0, &found));
    ASSERT_EQ(cudaDriverEntryPointSuccess, found);
    const auto range = reinterpret_cast<CUresult (*)(CUdeviceptr *, size_t *, CUdeviceptr)>(f);
    EXPECT_EQ(CUDA_SUCCESS, range(&base, &bytes, reinterpret_cast<CUdeviceptr>(d.p + 50)));
    EXPECT_EQ(reinterpret_cast<CUdeviceptr>(d.p), base);
    EXPECT_EQ(400u, bytes);
    CUDA_OK(cudaGetDriverEntryPointByVersion("cuNoSuchFunction", &f, 13000, 0, &found));
    EXPECT_EQ(cudaDriverEntryPointSymbolNotFound, found);
}

template <class F> static F nvml(void *library, const char *name)
{
    void *f = dlsym(library, name);

    EXPECT_NE(nullptr, f) << name;
    return reinterpret_cast<F>(f);
}

// tests/support/fake_nvml.c
TEST(Devices, NvmlKnowsTheDevices)
{
    struct Pci {
        char bus_legacy[16];
        unsigned numbers[5];
        char bus[32];
    };
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(nullptr, library) << dlerror();
    const auto init = nvml<int (*)()>(library, "nvmlInit_v2");
    const auto count = nvml<int (*)(unsigned *)>(library, "nvmlDeviceGetCount_v2");
    const auto device = nvml<int (*)(unsigned, void **)>(library, "nvmlDeviceGetHandleByIndex_v2");
    const auto pci = nvml<int (*)(void *, Pci *)>(library, "nvmlDeviceGetPciInfo_v3");
    const auto state = nvml<int (*)(void *, unsigned, int *)>(library, "nvmlDeviceGetNvLinkState");
    unsigned n = 0;
    int n_runtime = 0, is_active = 1;

    ASSERT_EQ(0, init());
    EXPECT_EQ(0, count(&n));
    CUDA_OK(cudaGetDeviceCount(&n_runtime));
    ASSERT_EQ(static_cast<unsigned>(n_runtime), n);
    for (unsigned i = 0; i < n; i++) {
        void *handle = nullptr;
        Pci info;
        int found = -1;

        ASSERT_EQ(0, device(i, &handle));
        ASSERT_EQ(0, pci(handle, &info));
        CUDA_OK(cudaDeviceGetByPCIBusId(&found, info.bus));
        EXPECT_EQ(static_cast<int>(i), found);
        EXPECT_EQ(0, state(handle, 0, &is_active));
        EXPECT_EQ(0, is_active) << "no links unless asked for";
        setenv("CUDAEMU_NVLINKS", "18", 1);
        EXPECT_EQ(0, init());
        EXPECT_EQ(0, state(handle, 17, &is_active));
        EXPECT_EQ(1, is_active);
        unsetenv("CUDAEMU_NVLINKS");
        EXPECT_EQ(0, init());
    }
    dlclose(library);
}
