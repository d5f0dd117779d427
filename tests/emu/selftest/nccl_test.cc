// SPDX-License-Identifier: Apache-2.0
// The stand-in for NCCL: every case of nccl_cases.cc with ranks as threads and as processes, and
// what one caller alone can do.
#include "emu/selftest/nccl_ranks.h"
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>

struct Ranks : testing::TestWithParam<NamedCase> {
    Ranks() // cases that wait for nobody end soon
    {
        const char *name = GetParam().name;

        if (!strcmp(name, "not_all_ranks_come"))
            setenv("EMU_NCCL_TIMEOUT_MS", "1000", 1);
    }
    ~Ranks()
    {
        unsetenv("EMU_NCCL_TIMEOUT_MS");
    }
};

TEST_P(Ranks, AsThreads)
{
    for (const std::string &f : run_threads(GetParam()))
        ADD_FAILURE() << f;
}

TEST_P(Ranks, AsProcesses)
{
    for (const std::string &f : run_processes(GetParam()))
        ADD_FAILURE() << f;
}

INSTANTIATE_TEST_SUITE_P(Nccl, Ranks, testing::ValuesIn(rank_cases),
                         [](const auto &info) { return std::string(info.param.name); });

// ---- one thread, several ranks ----
TEST(Nccl, OneThreadDrivesAllRanks)
{
    const int n = 3;
    ncclComm_t comms[n];
    cudaStream_t streams[n];
    int *p[n], v = 0;

    ASSERT_EQ(ncclSuccess, ncclCommInitAll(comms, n, nullptr));
    for (int r = 0; r < n; r++) {
        const int one = r + 1;
        int device = -1;

        ASSERT_EQ(ncclSuccess, ncclCommCuDevice(comms[r], &device));
        EXPECT_EQ(r, device);
        ASSERT_EQ(cudaSuccess, cudaSetDevice(r));
        ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
        ASSERT_EQ(ncclSuccess, ncclMemAlloc(reinterpret_cast<void **>(&p[r]), sizeof(int)));
        ASSERT_EQ(cudaSuccess, cudaMemcpy(p[r], &one, sizeof(int), cudaMemcpyHostToDevice));
    }
    ASSERT_EQ(ncclSuccess, ncclGroupStart());
    for (int r = 0; r < n; r++)
        EXPECT_EQ(ncclSuccess,
                  ncclAllReduce(p[r], p[r], 1, ncclInt32, ncclSum, comms[r], streams[r]));
    ASSERT_EQ(ncclSuccess, ncclGroupEnd());
    for (int r = 0; r < n; r++) {
        ASSERT_EQ(cudaSuccess, cudaSetDevice(r));
        ASSERT_EQ(cudaSuccess, cudaStreamSynchronize(streams[r]));
        ASSERT_EQ(cudaSuccess, cudaMemcpy(&v, p[r], sizeof(int), cudaMemcpyDeviceToHost));
        EXPECT_EQ(6, v);
        EXPECT_EQ(ncclSuccess, ncclMemFree(p[r]));
        EXPECT_EQ(ncclSuccess, ncclCommDestroy(comms[r]));
        EXPECT_EQ(cudaSuccess, cudaStreamDestroy(streams[r]));
    }
    EXPECT_EQ(cudaSuccess, cudaSetDevice(0));
}

TEST(Nccl, ArgumentsAreChecked)
{
    ncclUniqueId id;
    ncclComm_t comm = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    int version = 0, on_host = 0, *p = nullptr;
    void *handle = nullptr;

    EXPECT_EQ(ncclSuccess, ncclGetVersion(&version));
    EXPECT_EQ(NCCL_VERSION_CODE, version);
    ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id));
    EXPECT_EQ(ncclInvalidArgument, ncclCommInitRank(&comm, 1, id, 1));
    EXPECT_STREQ("emunccl: call: rank 1; 0 to 0 are allowed", ncclGetLastError(nullptr));
    EXPECT_EQ(ncclInvalidArgument, ncclCommInitRank(&comm, 0, id, 0));
    config.magic = 0;
    EXPECT_EQ(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    ASSERT_EQ(ncclSuccess, ncclCommInitRank(&comm, 1, id, 0));
    ASSERT_EQ(cudaSuccess, cudaMalloc(reinterpret_cast<void **>(&p), 64));
    EXPECT_EQ(ncclInvalidArgument, ncclSend(&on_host, 1, ncclInt32, 0, comm, nullptr));
    EXPECT_EQ(ncclInvalidArgument, ncclSend(p, 17, ncclInt32, 0, comm, nullptr));
    EXPECT_EQ(ncclInvalidArgument, ncclSend(p, 1, ncclInt32, 1, comm, nullptr));
    EXPECT_EQ(ncclInvalidArgument,
              ncclSend(p, 1, static_cast<ncclDataType_t>(99), 0, comm, nullptr));
    EXPECT_EQ(ncclInvalidArgument, ncclSend(p, 1, ncclInt32, 0, nullptr, nullptr));
    EXPECT_EQ(ncclInvalidArgument,
              ncclAllReduce(p, p, 1, ncclInt32, static_cast<ncclRedOp_t>(9), comm, nullptr));
    EXPECT_EQ(ncclInvalidUsage, ncclGroupEnd());
    EXPECT_EQ(ncclSuccess, ncclGroupStart()); // a wrong call spoils its group
    EXPECT_EQ(ncclInvalidArgument, ncclSend(p, 1, ncclInt32, 5, comm, nullptr));
    EXPECT_EQ(ncclInvalidArgument, ncclGroupEnd());
    EXPECT_EQ(ncclInvalidArgument, ncclCommRegister(comm, &on_host, 4, &handle));
    EXPECT_EQ(ncclSuccess, ncclCommRegister(comm, p, 64, &handle));
    EXPECT_EQ(ncclSuccess, ncclCommDeregister(comm, handle));
    EXPECT_EQ(ncclSuccess, ncclCommDestroy(comm));
    EXPECT_EQ(cudaSuccess, cudaFree(p));
}

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "--rank") == 0)
        return rank_main(argv + 2);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
