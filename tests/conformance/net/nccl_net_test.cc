/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transport nccl_net over plugins that are bad, missing, or not the same on all ranks: an error
 * that says what is wrong, or a right result, within the deadline. Ranks are processes; the parent
 * does not use the library, so that each rank reads its own environment.
 */
#include <gtest/gtest.h>

#include <dirent.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "dscomm/dscomm.h"

namespace {

constexpr int kRanks = 2;
constexpr int kTimeoutMs = 3000;
constexpr double kPatience = 20; /* seconds: bounds are about never, the machine may be busy */

using Env = std::map<std::string, std::string>;

/* Of a rank, for the parent. */
struct Outcome {
    int status;
    bool right;    /* all results of calls that succeeded */
    bool finished; /* it has said all this */
    int warnings;
    double seconds;
    char text[1024];
};

struct Shared {
    std::atomic<bool> has_id;
    dscomm_unique_id_t id;
    Outcome outcomes[kRanks];
};

double seconds()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void count_warnings(void *user, dscomm_log_level_t level, const char *)
{
    if (level == DSCOMM_LOG_WARN)
        ++*static_cast<int *>(user);
}

dscomm_status_t join(Shared *shared, int rank, dscomm_comm_t **comm)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.transport = "nccl_net";
    config.timeout_ms = kTimeoutMs;
    if (rank == 0) {
        if (dscomm_unique_id_create(&shared->id) != DSCOMM_OK)
            return DSCOMM_ERR_SYSTEM;
        shared->has_id = true;
    }
    while (!shared->has_id)
        usleep(1000);
    return dscomm_comm_create(kRanks, rank, &shared->id, &config, comm);
}

/* Sums whose every element is known; many messages are under way at a time in the longer ones. */
void call_often(dscomm_comm_t *comm, int rank, Outcome *outcome)
{
    std::vector<float> in(300000), out(in.size());

    for (int round = 0; round < 60 && outcome->status == DSCOMM_OK; round++) {
        const size_t n = round % 3 == 0 ? 100 : round % 3 == 1 ? 20000 : in.size();

        for (size_t i = 0; i < n; i++)
            in[i] = static_cast<float>((i * 7 + static_cast<size_t>(round + rank)) % 1000);
        outcome->status = dscomm_allreduce_compressed(in.data(), out.data(), n, DSCOMM_FLOAT32,
                                                      DSCOMM_SUM, nullptr, nullptr, comm, nullptr);
        for (size_t i = 0; i < n && outcome->status == DSCOMM_OK; i++)
            outcome->right =
                outcome->right &&
                out[i] == static_cast<float>((i * 7 + static_cast<size_t>(round)) % 1000 +
                                             (i * 7 + static_cast<size_t>(round) + 1) % 1000);
    }
}

void run_rank(Shared *shared, int rank)
{
    Outcome *const outcome = &shared->outcomes[rank];
    dscomm_comm_t *comm = nullptr;
    const double start = seconds();

    dscomm_set_log(count_warnings, &outcome->warnings);
    outcome->right = true;
    outcome->status = join(shared, rank, &comm);
    if (outcome->status == DSCOMM_OK)
        call_often(comm, rank, outcome);
    std::snprintf(outcome->text, sizeof(outcome->text), "%s",
                  outcome->status == DSCOMM_OK ? "" : dscomm_last_error());
    dscomm_comm_destroy(comm);
    outcome->seconds = seconds() - start;
    outcome->finished = true;
}

/* Both ranks, each with its environment; its exit status must be 0, whatever became of its calls.
 */
std::vector<Outcome> run(const std::vector<Env> &envs,
                         const std::function<void(Shared *, int)> &body = run_rank)
{
    Shared *const shared = static_cast<Shared *>(
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    std::vector<pid_t> pids;

    EXPECT_NE(MAP_FAILED, static_cast<void *>(shared));
    for (size_t rank = 0; rank < envs.size(); rank++) {
        const pid_t pid = fork();

        if (pid == 0) {
            alarm(60); /* a hang */
            for (const auto &[name, value] : envs[rank])
                setenv(name.c_str(), value.c_str(), 1);
            body(shared, static_cast<int>(rank));
            exit(testing::Test::HasFailure() ? 1 : 0);
        }
        pids.push_back(pid);
    }
    for (const pid_t pid : pids) {
        int status = 0;

        waitpid(pid, &status, 0);
        EXPECT_EQ(0, status) << "a rank hung or crashed, or a check in it failed";
    }
    std::vector<Outcome> outcomes(shared->outcomes, shared->outcomes + envs.size());

    munmap(shared, sizeof(Shared));
    return outcomes;
}

bool has(const Outcome &outcome, const char *text)
{
    return std::strstr(outcome.text, text) != nullptr;
}

Env with_plugin(const char *path)
{
    return { { "DSCOMM_NET_PLUGIN", path } };
}

Env bad_plugin(const char *how)
{
    return { { "DSCOMM_NET_PLUGIN", NET_BAD_PLUGIN },
             { "NET_BAD", how },
             { "NET_BAD_INNER", NET_PLUGIN } };
}

/* ---- good ones ---- */

TEST(NetPlugin, ResultsAreRightAndNothingIsWarnedOf)
{
    for (const char *const path : { NET_PLUGIN, NET_PLAIN_PLUGIN })
        for (const Outcome &o : run({ with_plugin(path), with_plugin(path) })) {
            EXPECT_EQ(DSCOMM_OK, o.status) << o.text;
            EXPECT_TRUE(o.right);
            EXPECT_EQ(0, o.warnings);
        }
}

int n_descriptors()
{
    DIR *const dir = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(dir) != nullptr)
        n++;
    closedir(dir);
    return n;
}

bool is_loaded(const char *path)
{
    std::ifstream maps("/proc/self/maps");
    std::string line;

    while (std::getline(maps, line))
        if (line.find(path) != std::string::npos)
            return true;
    return false;
}

TEST(NetPlugin, IsGoneWithTheLastCommunicator)
{
    for (const char *const path : { NET_PLUGIN, NET_PLAIN_PLUGIN })
        run({ with_plugin(path) }, [path](Shared *, int) {
            int n_first = 0;

            for (int round = 0; round < 20; round++) {
                dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
                dscomm_comm_t *one = nullptr, *two = nullptr;
                dscomm_unique_id_t id;

                config.transport = "nccl_net";
                ASSERT_EQ(DSCOMM_OK, dscomm_unique_id_create(&id));
                ASSERT_EQ(DSCOMM_OK, dscomm_comm_create(1, 0, &id, &config, &one));
                ASSERT_EQ(DSCOMM_OK, dscomm_unique_id_create(&id));
                ASSERT_EQ(DSCOMM_OK, dscomm_comm_create(1, 0, &id, &config, &two));
                dscomm_comm_destroy(one);
                EXPECT_TRUE(is_loaded(path));
                dscomm_comm_destroy(two);
                EXPECT_FALSE(is_loaded(path));
                n_first = round == 0 ? n_descriptors() : n_first;
            }
            EXPECT_EQ(n_first, n_descriptors());
        });
}

/* ---- bad ones ---- */

struct Bad {
    const char *how;
    bool is_harmless;                /* results are right all the same */
    std::vector<const char *> words; /* of the error of one rank at least */
};

class BadPlugin : public testing::TestWithParam<Bad> {};

TEST_P(BadPlugin, IsAnErrorOrDoesNoHarm)
{
    const Bad &bad = GetParam();
    const std::vector<Outcome> outcomes = run({ bad_plugin(bad.how), bad_plugin(bad.how) });
    std::string texts;

    for (const Outcome &o : outcomes) {
        ASSERT_TRUE(o.finished);
        EXPECT_TRUE(o.right) << "wrong data, and no error";
        EXPECT_EQ(bad.is_harmless, o.status == DSCOMM_OK) << o.status << " " << o.text;
        EXPECT_LT(o.seconds, kPatience);
        texts += std::string(o.text) + "\n";
    }
    for (const char *const word : bad.words)
        EXPECT_NE(std::string::npos, texts.find(word)) << word << " is not in:\n" << texts;
}

INSTANTIATE_TEST_SUITE_P(
    , BadPlugin,
    testing::Values(Bad{ "reorder", false, { "rank " } }, Bad{ "unwritten", true, {} },
                    Bad{ "leak", true, {} },
                    Bad{ "size", false, { "damaged", "size", "net plugin bad v12 on " } },
                    Bad{ "flag_first", true, {} }, Bad{ "block_connect", true, {} },
                    Bad{ "close_error", true, {} },
                    Bad{ "handle", false, { "net plugin bad v12 on ", "behind the 128 bytes" } },
                    Bad{ "never_done", false, { "nothing came for 3.0 s", "nccl_net" } },
                    Bad{ "test_error",
                         false,
                         { "lost rank ", "test of net plugin bad v12 on ", "remote error (6)" } },
                    Bad{ "huge_size", false, { "damaged", "size", "net plugin bad v12 on " } },
                    Bad{ "damage", false, { "damaged: checksum", "net plugin bad v12 on " } }),
    [](const auto &p) { return std::string(p.param.how); });

/* ---- none, and several ---- */

/* Both ranks: the same error, at once. */
void expect_refused(const Env &env, int status, const std::vector<const char *> &words)
{
    for (const Outcome &o : run({ env }, [](Shared *shared, int rank) {
             shared->has_id = true; /* it does not come to a meeting */
             dscomm_unique_id_create(&shared->id);
             run_rank(shared, rank);
         })) {
        EXPECT_EQ(status, o.status) << o.text;
        EXPECT_LT(o.seconds, kPatience);
        for (const char *const word : words)
            EXPECT_TRUE(has(o, word)) << word << " is not in: " << o.text;
    }
}

TEST(NetPlugin, WhatIsNoPluginIsNamed)
{
    expect_refused({ { "DSCOMM_NET_PLUGIN", "" } }, DSCOMM_ERR_ENV,
                   { "DSCOMM_NET_PLUGIN=\"\"", "must be", "nccl_net" });
    expect_refused(with_plugin("/nowhere/libnccl-net-none.so"), DSCOMM_ERR_ENV,
                   { "DSCOMM_NET_PLUGIN=\"/nowhere/libnccl-net-none.so\"", "No such file" });
    expect_refused(with_plugin("/proc/self/exe"), DSCOMM_ERR_ENV, { "/proc/self/exe" });
    expect_refused(with_plugin(NO_PLUGIN), DSCOMM_ERR_ENV,
                   { NO_PLUGIN, "no ncclNetPlugin_v6 to v12" });
    expect_refused(bad_plugin("in no known way"), DSCOMM_ERR_SYSTEM,
                   { "net plugin bad of ", "does not start", "invalid usage (5)" });
}

TEST(NetPlugin, ADeviceIsChosenByName)
{
    Env env = with_plugin(NET_PLUGIN);

    env["DSCOMM_NET_DEVICE"] = "no-such-card";
    env["DSCOMM_SOCKET_IFNAME"] = "lo";
    expect_refused(env, DSCOMM_ERR_ENV,
                   { "DSCOMM_NET_DEVICE=\"no-such-card\"", "net plugin DSComm", "one of lo" });
    env["DSCOMM_NET_DEVICE"] = "lo";
    for (const Outcome &o : run({ env, env }))
        EXPECT_EQ(DSCOMM_OK, o.status) << o.text;
}

TEST(NetPlugin, DifferentOnesAreNamedOnAllRanks)
{
    for (const Outcome &o : run({ with_plugin(NET_PLAIN_PLUGIN), with_plugin(NET_PLUGIN) })) {
        EXPECT_EQ(DSCOMM_ERR_MISMATCH, o.status) << o.text;
        EXPECT_TRUE(has(o, "net_plugin: rank 0 has plain, rank 1 has DSComm")) << o.text;
        EXPECT_LT(o.seconds, kPatience);
    }
}

/* One that shrinks and one that does not find out by themselves. */
TEST(NetPlugin, OneThatRefusesTheOtherSideSaysWhy)
{
    Env shrinks = with_plugin(NET_PLUGIN);

    shrinks["DSCOMM_NET_COMPRESS"] = "on";
    std::string texts;

    for (const Outcome &o : run({ with_plugin(NET_PLUGIN), shrinks })) {
        EXPECT_LT(o.status, 0);
        EXPECT_LT(o.seconds, kPatience);
        texts += std::string(o.text) + "\n";
    }
    EXPECT_NE(std::string::npos, texts.find("net plugin DSComm v12")) << texts;
    EXPECT_NE(std::string::npos, texts.find("DSCOMM_NET_COMPRESS")) << texts;
}

} // namespace
