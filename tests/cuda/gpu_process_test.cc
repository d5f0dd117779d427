/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as processes, each with a device of its own. Without arguments this starts itself as three
 * ranks; one of them may kill itself in the middle, and the others must say so in time.
 */
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>

#include "cuda/gpu_case.h"
#include "support/nccl_id.h"
#include "support/processes.h"

namespace {

constexpr int kRanks = 3;

#define NEED(condition)                                                                  \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "rank %d: %s: %s\n", rank, #condition, dscomm_last_error()); \
            return 1;                                                                    \
        }                                                                                \
    } while (0)

/* Inputs are rank + 1 everywhere: the sum of 3 ranks is 6 and has codes without error. */
int make_calls(int rank, dscomm_comm_t *comm, cudaStream_t stream, bool dies)
{
    constexpr size_t n = 20000;
    const std::vector<float> mine(n, (float)(rank + 1));
    std::vector<float> out(n);
    float *device = nullptr;
    const char *text = "";

    NEED(cudaMalloc((void **)&device, n * sizeof(float)) == cudaSuccess);
    for (int i = 0; i < 4; i++) {
        NEED(cudaMemcpy(device, mine.data(), n * sizeof(float), cudaMemcpyHostToDevice) ==
             cudaSuccess);
        if (dies && i == 2 && rank == 1)
            kill(getpid(), SIGKILL);
        if (dscomm_allreduce_compressed(device, device, n, DSCOMM_FLOAT32, DSCOMM_SUM,
                                        dscomm_codec("int8"), nullptr, comm,
                                        dscomm_cuda_stream(stream)) != DSCOMM_OK)
            break;
        cudaStreamSynchronize(stream);
        if (dscomm_comm_async_error(comm, nullptr) != DSCOMM_OK)
            break;
        NEED(cudaMemcpy(out.data(), device, n * sizeof(float), cudaMemcpyDeviceToHost) ==
             cudaSuccess);
        NEED(dies && i == 2 ? true : out == std::vector<float>(n, 6.0f));
    }
    NEED(dies || cudaFree(device) == cudaSuccess);
    if (!dies)
        return dscomm_comm_async_error(comm, &text) == DSCOMM_OK ? 0 : 1;
    for (int tries = 0; tries < 1000 && dscomm_comm_async_error(comm, &text) == DSCOMM_OK; tries++)
        usleep(10000);
    NEED(dscomm_comm_async_error(comm, &text) < 0);
    fprintf(stderr, "rank %d was told: %s\n", rank, text);
    NEED(strstr(text, "rank") != nullptr);
    return 0;
}

int rank_main(int rank, const char *id, bool dies)
{
    dscomm_comm_config_t config = gpu_config();
    dscomm_comm_t *comm = nullptr;
    cudaStream_t stream;
    ncclUniqueId unique;
    ncclComm_t nccl;

    config.timeout_ms = dies ? 2000 : 20000;
    NEED(nccl_id::from_hex(id, &unique));
    NEED(cudaSetDevice(rank) == cudaSuccess);
    NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    NEED(ncclCommInitRank(&nccl, kRanks, unique, rank) == ncclSuccess);
    NEED(dscomm_comm_create_nccl(nccl, &config, &comm) == DSCOMM_OK);
    const int rc = make_calls(rank, comm, stream, dies);

    NEED(dscomm_comm_destroy(comm) == DSCOMM_OK);
    if (!dies) /* else it was aborted, which frees it */
        NEED(ncclCommDestroy(nccl) == ncclSuccess);
    NEED(cudaStreamDestroy(stream) == cudaSuccess);
    return rc;
}

std::vector<int> run_ranks(const char *mode)
{
    ncclUniqueId id;

    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    return processes::run_ranks(kRanks, { nccl_id::to_hex(id), mode });
}

TEST(Processes, reduce)
{
    EXPECT_EQ(run_ranks("lives"), std::vector<int>(kRanks, 0));
}

TEST(Processes, tell_of_one_that_dies)
{
    EXPECT_EQ(run_ranks("dies"), (std::vector<int>{ 0, 1000 + SIGKILL, 0 }));
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "--rank") == 0)
        return rank_main(atoi(argv[2]), argv[3], strcmp(argv[4], "dies") == 0);
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
