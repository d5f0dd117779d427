/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as processes that open each other's memory by CUDA's IPC handles. Without arguments this
 * runs all tests; one of them starts it again as three ranks.
 */
#include <gtest/gtest.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include "cuda/two_shot_case.h"
#include "support/processes.h"

namespace {

constexpr int kRanks = 3, kCalls = 5;
constexpr int kWaitMs = 60000;

/* Memory that all processes have. */
struct Meeting {
    dsc_two_shot_card cards[kRanks];
    uint32_t arrived;
};

/* False: not all came in time. round: from 1 on. */
bool meet(Meeting *m, uint32_t round)
{
    __atomic_add_fetch(&m->arrived, 1, __ATOMIC_ACQ_REL);
    for (int i = 0; i < kWaitMs; i++) {
        if (__atomic_load_n(&m->arrived, __ATOMIC_ACQUIRE) >= round * kRanks)
            return true;
        usleep(1000);
    }
    return false;
}

GpuCase process_case()
{
    GpuCase c;

    c.n_ranks = kRanks;
    c.count = 20011;
    c.shift = 1;
    return c;
}

#define NEED(condition)                                                                  \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "rank %d: %s: %s\n", rank, #condition, dscomm_last_error()); \
            return 1;                                                                    \
        }                                                                                \
    } while (0)

int run_calls(int rank, Meeting *m, dsc_gpu_two_shot *ts, const GpuCase &c, bool dies)
{
    const DeviceRank device(c, rank);
    HostRanks host(c);

    for (int step = 0; step < kCalls; step++) {
        host.call(step, step == 2);
        device.put(make_input(c, rank, step, step == 2));
        NEED(step > 0 || meet(m, 3)); /* from here on nobody waits for the host's side of others */
        if (dies && step == 2 && rank == 1)
            kill(getpid(), SIGKILL);
        NEED(dsc_gpu_two_shot_run(ts, &device.call, nullptr) == cudaSuccess);
        NEED(cudaDeviceSynchronize() == cudaSuccess);
        if (dies && step >= 2) { /* whoever waits for the dead one says so, or for one who did */
            NEED(device.board->stuck != 0);
            NEED(device.ring.read()[(step + 1) % 4].number == 0);
            return 0;
        }
        device.expect_equal(host, static_cast<uint64_t>(step) + 1);
        NEED(!testing::Test::HasFailure());
    }
    return 0;
}

int rank_main(int rank, int fd, bool dies)
{
    Meeting *const m = static_cast<Meeting *>(
        mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    const GpuCase c = process_case();
    struct dscomm_plan *const plan = make_plan(c, rank);
    dsc_gpu_two_shot *ts = nullptr;

    NEED(m != MAP_FAILED);
    NEED(cudaSetDevice(rank) == cudaSuccess);
    NEED(dsc_gpu_two_shot_create(&plan, 1, dies ? 3000000000u : kLongNs, nullptr, &ts) ==
         DSCOMM_OK);
    NEED(cudaDeviceSynchronize() == cudaSuccess);
    NEED(dsc_gpu_two_shot_card(ts, 0, 1, static_cast<uint64_t>(getpid()), &m->cards[rank]) ==
         DSCOMM_OK);
    NEED(meet(m, 1));
    NEED(dsc_gpu_two_shot_connect(ts, m->cards) == DSCOMM_OK);
    NEED(meet(m, 2));
    NEED(run_calls(rank, m, ts, c, dies) == 0);
    dsc_gpu_two_shot_disconnect(ts);
    NEED(dies || meet(m, 4));
    dsc_gpu_two_shot_destroy(ts);
    dsc_plan_destroy(plan);
    return 0;
}

std::vector<int> run_ranks(const char *mode)
{
    const int fd = memfd_create("two_shot", 0); /* children inherit it */

    EXPECT_EQ(ftruncate(fd, sizeof(Meeting)), 0);
    const std::vector<int> result = processes::run_ranks(kRanks, { std::to_string(fd), mode });

    close(fd);
    return result;
}

TEST(TwoShotProcesses, ShareMemory)
{
    EXPECT_EQ(run_ranks("lives"), std::vector<int>(kRanks, 0));
}

TEST(TwoShotProcesses, TellOfOneThatDies)
{
    EXPECT_EQ(run_ranks("dies"), (std::vector<int>{ 0, 1000 + SIGKILL, 0 }));
}

} // namespace

int main(int argc, char **argv)
{
    testing::InitGoogleTest(&argc, argv);
    if (argc == 5 && strcmp(argv[1], "--rank") == 0)
        return rank_main(atoi(argv[2]), atoi(argv[3]), strcmp(argv[4], "dies") == 0);
    return RUN_ALL_TESTS();
}
