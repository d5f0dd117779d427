/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks run calls as one kernel, with ranks as processes: their settings, hosts, GPUs and
 * links, and what happens if one of them has no memory for it or dies. Without arguments this
 * starts itself as several ranks, once per situation.
 */
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unistd.h>

#include "cuda/gpu_case.h"
#include "support/nccl_id.h"
#include "support/processes.h"

namespace {

constexpr size_t kCount = 20011;

/* What a rank's environment is, and what it is to log. */
struct Situation {
    const char *name;
    std::vector<std::pair<const char *, const char *>> environment;
    std::vector<std::pair<const char *, const char *>> of_rank_2; /* besides */
    const char *says; /* a line of every rank has it; NULL: none */
    bool is_direct;
};

const Situation situations[] = {
    { "off", { { "DSCOMM_CUDA_DIRECT", "0" } }, {}, nullptr, false },
    { "on", { { "DSCOMM_CUDA_DIRECT", "1" } }, {}, "as one kernel of", true },
    { "two_hosts",
      { { "DSCOMM_CUDA_DIRECT", "1" } },
      { { "DSCOMM_HOST_ID", "elsewhere" } },
      "no calls as one kernel: rank 0: rank 2 is on another host",
      false },
    { "no_peer_access",
      { { "DSCOMM_CUDA_DIRECT", "1" }, { "CUDAEMU_P2P", "0" } },
      {},
      "no calls as one kernel: rank 0: no peer access to the GPU of rank 1",
      false },
    { "too_little_memory",
      { { "DSCOMM_CUDA_DIRECT", "1" } },
      { { "CUDAEMU_MEM_MB", "2" } },
      "not as one kernel: rank 2: no 2097152 bytes of device memory for peers",
      false },
    { "no_fabric",
      { { "DSCOMM_CUDA_DIRECT", "auto" } },
      {},
      "no calls as one kernel: rank 0: the GPU of rank 1 is in no NVLink domain with this one",
      false },
    { "fabric",
      { { "DSCOMM_CUDA_DIRECT", "auto" }, { "CUDAEMU_NVLINKS", "4" } },
      {},
      "as one kernel of",
      true },
    { "above_the_limit",
      { { "DSCOMM_CUDA_DIRECT", "auto" },
        { "DSCOMM_CUDA_DIRECT_BYTES", "80043" },
        { "CUDAEMU_NVLINKS", "4" } },
      {},
      nullptr,
      false },
};

#define NEED(condition)                                                                  \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "rank %d: %s: %s\n", rank, #condition, dscomm_last_error()); \
            return 1;                                                                    \
        }                                                                                \
    } while (0)

std::mutex log_lock;
std::string log_text;

void keep_line(void *, dscomm_log_level_t, const char *line)
{
    const std::lock_guard<std::mutex> guard(log_lock);

    log_text += line;
    log_text += '\n';
}

bool log_has(const char *text)
{
    const std::lock_guard<std::mutex> guard(log_lock);

    return log_text.find(text) != std::string::npos;
}

struct Rank {
    int n_ranks = 3;
    dscomm_comm_t *comm = nullptr;
    cudaStream_t stream = nullptr;
    ncclComm_t nccl = nullptr;
    float *device = nullptr;
};

int join(int rank, const char *id, int timeout_ms, Rank *out)
{
    dscomm_comm_config_t config = gpu_config();
    ncclUniqueId unique;

    config.algorithm = "twoshot";
    config.timeout_ms = timeout_ms;
    NEED(nccl_id::from_hex(id, &unique));
    NEED(cudaSetDevice(rank) == cudaSuccess);
    NEED(cudaStreamCreateWithFlags(&out->stream, cudaStreamNonBlocking) == cudaSuccess);
    NEED(cudaMalloc((void **)&out->device, kCount * sizeof(float)) == cudaSuccess);
    NEED(ncclCommInitRank(&out->nccl, out->n_ranks, unique, rank) == ncclSuccess);
    NEED(dscomm_comm_create_nccl(out->nccl, &config, &out->comm) == DSCOMM_OK);
    return 0;
}

int leave(int rank, const Rank &me, bool has_failed)
{
    NEED(dscomm_comm_destroy(me.comm) == DSCOMM_OK);
    NEED(has_failed || ncclCommDestroy(me.nccl) == ncclSuccess);
    NEED(cudaFree(me.device) == cudaSuccess);
    return 0;
}

dscomm_status_t call(const Rank &me)
{
    return dscomm_allreduce_compressed(me.device, me.device, kCount, DSCOMM_FLOAT32, DSCOMM_SUM,
                                       dscomm_codec("mxint8"), nullptr, me.comm,
                                       dscomm_cuda_stream(me.stream));
}

/* Inputs are rank + 1 everywhere, which has codes without error, as the sum has. */
int make_calls(int rank, const Rank &me, int n)
{
    const std::vector<float> mine(kCount, (float)(rank + 1));
    const float sum = (float)(me.n_ranks * (me.n_ranks + 1) / 2);
    std::vector<float> out(kCount);

    for (int i = 0; i < n; i++) {
        NEED(cudaMemcpy(me.device, mine.data(), kCount * sizeof(float), cudaMemcpyHostToDevice) ==
             cudaSuccess);
        NEED(call(me) == DSCOMM_OK);
        NEED(cudaStreamSynchronize(me.stream) == cudaSuccess);
        NEED(cudaMemcpy(out.data(), me.device, kCount * sizeof(float), cudaMemcpyDeviceToHost) ==
             cudaSuccess);
        NEED(out == std::vector<float>(kCount, sum));
    }
    return 0;
}

int rank_in(const Situation &s, int rank, int n_ranks, const char *id)
{
    Rank me;

    me.n_ranks = n_ranks;
    for (const auto &variable : s.environment)
        setenv(variable.first, variable.second, 1);
    if (rank == 2)
        for (const auto &variable : s.of_rank_2)
            setenv(variable.first, variable.second, 1);
    NEED(join(rank, id, 20000, &me) == 0);
    NEED(make_calls(rank, me, 4) == 0);
    NEED(s.says == nullptr || log_has(s.says));
    NEED(log_has("as one kernel of") == s.is_direct);
    NEED(!log_has("ERROR"));
    return leave(rank, me, false);
}

/* It is a setting that all share. */
int rank_that_differs(int rank, const char *id)
{
    Rank me;

    setenv("DSCOMM_CUDA_DIRECT", rank == 2 ? "auto" : "1", 1);
    NEED(join(rank, id, 20000, &me) != 0);
    NEED(strstr(dscomm_last_error(), "cuda_direct: rank 0 has 1, rank 2 has auto"));
    NEED(ncclCommDestroy(me.nccl) == ncclSuccess);
    return 0;
}

/* Rank 1 is killed, or stays away, before its third call. */
int rank_with_loss(int rank, const char *id, bool dies)
{
    const char *text = "";
    Rank me;

    setenv("DSCOMM_CUDA_DIRECT", "1", 1);
    NEED(join(rank, id, 2000, &me) == 0);
    NEED(make_calls(rank, me, 2) == 0);
    NEED(log_has("as one kernel of"));
    if (dies && rank == 1)
        kill(getpid(), SIGKILL);
    if (rank == 1)
        sleep(6);
    NEED(rank == 1 || call(me) == DSCOMM_OK);
    cudaStreamSynchronize(me.stream);
    for (int i = 0; i < 1000 && dscomm_comm_async_error(me.comm, &text) == DSCOMM_OK; i++)
        usleep(rank == 1 ? 0 : 10000);
    NEED(rank == 1 || strstr(text, "for rank 1, at FINAL") || strstr(text, "has given up"));
    const bool has_failed = dscomm_comm_async_error(me.comm, nullptr) < 0;

    NEED(leave(rank, me, true) == 0);
    return has_failed || ncclCommAbort(me.nccl) == ncclSuccess ? 0 : 1;
}

int rank_main(int rank, const char *id, const char *mode, int n_ranks)
{
    setenv("DSCOMM_LOG_LEVEL", "info", 1);
    dscomm_set_log(keep_line, nullptr);
    for (const Situation &s : situations)
        if (strcmp(s.name, mode) == 0) {
            const int rc = rank_in(s, rank, n_ranks, id);

            if (rc != 0)
                fprintf(stderr, "rank %d has logged:\n%s", rank, log_text.c_str());
            return rc;
        }
    if (strcmp(mode, "differ") == 0)
        return rank_that_differs(rank, id);
    return rank_with_loss(rank, id, strcmp(mode, "dies") == 0);
}

std::vector<int> run_ranks(const char *mode, int n_ranks = 3)
{
    ncclUniqueId id;

    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    return processes::run_ranks(n_ranks, { nccl_id::to_hex(id), mode, std::to_string(n_ranks) });
}

class Situations : public testing::TestWithParam<Situation> {};

TEST_P(Situations, choose_alike_on_all_ranks)
{
    EXPECT_EQ(run_ranks(GetParam().name), std::vector<int>(3, 0));
}

INSTANTIATE_TEST_SUITE_P(all, Situations, testing::ValuesIn(situations),
                         [](const auto &info) { return std::string(info.param.name); });

TEST(Ranks, that_differ)
{
    EXPECT_EQ(run_ranks("differ"), std::vector<int>(3, 0));
}

TEST(Ranks, of_any_number)
{
    for (int n = 2; n <= 8; n++)
        EXPECT_EQ(run_ranks("on", n), std::vector<int>((size_t)n, 0)) << n << " ranks";
}

TEST(Loss, of_a_rank_that_dies)
{
    EXPECT_EQ(run_ranks("dies"), (std::vector<int>{ 0, 1000 + SIGKILL, 0 }));
}

TEST(Loss, of_a_rank_that_stays_away)
{
    EXPECT_EQ(run_ranks("stays_away"), std::vector<int>(3, 0));
}

} // namespace

int main(int argc, char **argv)
{
    if (argc == 6 && strcmp(argv[1], "--rank") == 0)
        return rank_main(atoi(argv[2]), argv[3], argv[4], atoi(argv[5]));
    testing::InitGoogleTest(&argc, argv);
    return RUN_ALL_TESTS();
}
