/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as processes that die, never come, or find a small /dev/shm (D15, D19, D20). The parent
 * uses the library only in its children, so that fork() is safe.
 */
#include <gtest/gtest.h>

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "dscomm/dscomm.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMaxRanks = 8;

/* What children and parent share. */
struct Shared {
    std::atomic<int> id_ready;
    dscomm_unique_id_t id;
    std::atomic<int> joined;
    std::atomic<int> calls[kMaxRanks];
    double seconds[kMaxRanks]; /* from the kill, or from the start, to the error */
    int status[kMaxRanks];
    char text[kMaxRanks][1024];
    std::atomic<int64_t> killed_ns; /* 0: not yet */
    std::atomic<pid_t> worker;      /* of rank 1; 0: none */
};

int64_t now_ns()
{
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch())
        .count();
}

class Processes : public testing::Test {
  protected:
    void SetUp() override
    {
        shared = static_cast<Shared *>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        ASSERT_NE(shared, MAP_FAILED);
        new (shared) Shared();
    }
    void TearDown() override
    {
        for (pid_t pid : pids) /* none is left, whatever happened */
            if (pid > 0 && kill(pid, SIGKILL) == 0)
                waitpid(pid, nullptr, 0);
        if (shared->worker > 0)
            kill(shared->worker, SIGKILL);
        munmap(shared, sizeof(Shared));
    }

    void start(int rank, const std::function<int()> &main)
    {
        const pid_t pid = fork();

        ASSERT_GE(pid, 0);
        if (pid == 0) {
            alarm(60); /* a lost child ends by itself */
            _exit(main());
        }
        if ((int)pids.size() <= rank)
            pids.resize((size_t)rank + 1);
        pids[(size_t)rank] = pid;
    }

    /* Exit code, or -signal. */
    int wait_for(int rank)
    {
        int status = 0;

        waitpid(pids[(size_t)rank], &status, 0);
        pids[(size_t)rank] = 0;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    }

    dscomm_comm_t *join(int n, int rank, const char *transport, int timeout_ms)
    {
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
        dscomm_comm_t *comm = nullptr;

        config.transport = transport;
        config.timeout_ms = timeout_ms;
        if (rank == 0) {
            if (dscomm_unique_id_create(&shared->id) != DSCOMM_OK)
                return nullptr;
            shared->id_ready = 1;
        }
        while (shared->id_ready == 0)
            usleep(1000);
        note(rank, dscomm_comm_create(n, rank, &shared->id, &config, &comm));
        return comm;
    }

    void note(int rank, dscomm_status_t st)
    {
        shared->status[rank] = st;
        snprintf(shared->text[rank], sizeof(shared->text[rank]), "%s", dscomm_last_error());
    }

    /* A process that outlives its parent and does nothing, as a data loader's. */
    void fork_worker()
    {
        const pid_t pid = fork();

        if (pid == 0) {
            sleep(30);
            _exit(0);
        }
        shared->worker = pid;
    }

    /* Calls until an error; 0: the error came. */
    int call_for_ever(int n, int rank, const char *transport, bool forks = false)
    {
        dscomm_comm_t *comm = join(n, rank, transport, 5000);
        std::vector<float> v(200000, 1.0f), out(v.size());
        dscomm_status_t st = DSCOMM_OK;

        if (comm == nullptr)
            return 3;
        shared->joined++;
        while (st == DSCOMM_OK) {
            st = dscomm_allreduce_compressed(v.data(), out.data(), v.size(), DSCOMM_FLOAT32,
                                             DSCOMM_SUM, dscomm_codec("int8"), nullptr, comm,
                                             nullptr);
            if (++shared->calls[rank] == 1 && forks)
                fork_worker();
        }
        shared->seconds[rank] = (double)(now_ns() - shared->killed_ns) / 1e9;
        note(rank, st);
        dscomm_comm_destroy(comm);
        return 0;
    }

    Shared *shared = nullptr;
    std::vector<pid_t> pids;
};

int n_shm_objects()
{
    DIR *dir = opendir("/dev/shm");
    int n = 0;

    for (const dirent *e = readdir(dir); e != nullptr; e = readdir(dir))
        n += strstr(e->d_name, "dscomm") != nullptr;
    closedir(dir);
    return n;
}

class Kill : public Processes, public testing::WithParamInterface<const char *> {};

TEST_P(Kill, D15_SurvivorsNameTheDeadRankWithinASecond)
{
    const int objects = n_shm_objects();

    for (int round = 0; round < 3; round++) {
        new (shared) Shared();
        for (int r = 0; r < 3; r++)
            start(r, [&, r] { return call_for_ever(3, r, GetParam()); });
        for (int i = 0; i < 20000 && shared->calls[1] < 20 + round * 7; i++)
            usleep(1000);
        ASSERT_GE(shared->calls[1], 20);
        shared->killed_ns = now_ns();
        kill(pids[1], SIGKILL);
        EXPECT_EQ(wait_for(1), -SIGKILL);
        for (int r : { 0, 2 }) {
            EXPECT_EQ(wait_for(r), 0);
            EXPECT_EQ(shared->status[r], DSCOMM_ERR_PEER_LOST) << shared->text[r];
            EXPECT_NE(strstr(shared->text[r], "rank 1"), nullptr) << shared->text[r];
            EXPECT_LT(shared->seconds[r], 1.0);
        }
        pids.clear();
    }
    EXPECT_EQ(n_shm_objects(), objects);
}

/* The worker has been given every descriptor of the rank, and must not keep its sockets open. */
TEST_P(Kill, D15_AForkedWorkerDoesNotHideADeath)
{
    for (int r = 0; r < 3; r++)
        start(r, [&, r] { return call_for_ever(3, r, GetParam(), r == 1); });
    for (int i = 0; i < 20000 && shared->calls[1] < 20; i++)
        usleep(1000);
    ASSERT_GE(shared->calls[1], 20);
    ASSERT_GT(shared->worker, 0);
    shared->killed_ns = now_ns();
    kill(pids[1], SIGKILL);
    EXPECT_EQ(wait_for(1), -SIGKILL);
    for (int r : { 0, 2 }) {
        EXPECT_EQ(wait_for(r), 0);
        EXPECT_EQ(shared->status[r], DSCOMM_ERR_PEER_LOST) << shared->text[r];
        EXPECT_NE(strstr(shared->text[r], "rank 1"), nullptr) << shared->text[r];
        EXPECT_LT(shared->seconds[r], 1.0);
    }
    EXPECT_EQ(kill(shared->worker, 0), 0) << "it still lives";
}

TEST_P(Kill, D15_AStoppedRankIsADeadlineThatNamesIt)
{
    for (int r = 0; r < 3; r++)
        start(r, [&, r] {
            dscomm_comm_t *comm = join(3, r, GetParam(), 1000);
            float v = 1.0f;

            shared->joined++;
            if (r == 1)
                for (;;)
                    pause(); /* never calls */
            const int64_t begin = now_ns();

            note(r, dscomm_allreduce_compressed(&v, &v, 1, DSCOMM_FLOAT32, DSCOMM_SUM, nullptr,
                                                nullptr, comm, nullptr));
            shared->seconds[r] = (double)(now_ns() - begin) / 1e9;
            dscomm_comm_destroy(comm);
            return 0;
        });
    for (int r : { 0, 2 }) {
        EXPECT_EQ(wait_for(r), 0);
        EXPECT_EQ(shared->status[r], DSCOMM_ERR_TIMEOUT) << shared->text[r];
        EXPECT_NE(strstr(shared->text[r], "rank 1"), nullptr) << shared->text[r];
        EXPECT_LT(shared->seconds[r], 2.5);
    }
}

INSTANTIATE_TEST_SUITE_P(, Kill, testing::Values("shm", "tcp"),
                         [](const auto &p) { return std::string(p.param); });

TEST_F(Processes, D15_ARankThatNeverComesIsNamed)
{
    const int64_t begin = now_ns();

    for (int r = 0; r < 2; r++)
        start(r, [&, r] {
            dscomm_comm_t *comm = join(3, r, "auto", 2000);

            shared->seconds[r] = (double)(now_ns() - begin) / 1e9;
            return comm == nullptr ? 7 : 0;
        });
    for (int r = 0; r < 2; r++) {
        EXPECT_EQ(wait_for(r), 7);
        EXPECT_EQ(shared->status[r], DSCOMM_ERR_TIMEOUT) << shared->text[r];
        EXPECT_NE(strstr(shared->text[r], "rank 2"), nullptr) << shared->text[r];
        EXPECT_GE(shared->seconds[r], 1.9);
        EXPECT_LT(shared->seconds[r], 3.2);
    }
}

/* Ranks that are told to be on different hosts do not share memory, and say why. */
TEST_F(Processes, HostIdTellsHostsApart)
{
    for (int r = 0; r < 2; r++)
        start(r, [&, r] {
            float v = 1.0f;

            setenv("DSCOMM_HOST_ID", r == 0 ? "host-a" : "host-b", 1);
            dscomm_comm_t *comm = join(2, r, "shm", 3000);

            if (comm != nullptr)
                note(r, dscomm_allreduce_compressed(&v, &v, 1, DSCOMM_FLOAT32, DSCOMM_SUM, nullptr,
                                                    nullptr, comm, nullptr));
            dscomm_comm_destroy(comm);
            return 0;
        });
    for (int r = 0; r < 2; r++) {
        EXPECT_EQ(wait_for(r), 0);
        EXPECT_LT(shared->status[r], 0);
        EXPECT_NE(strstr(shared->text[r], "host-a"), nullptr) << shared->text[r];
        EXPECT_NE(strstr(shared->text[r], "host-b"), nullptr) << shared->text[r];
    }
}

/* ---- D20: /dev/shm of 1 MiB, seen only by the children ---- */

bool private_small_shm()
{
    return unshare(CLONE_NEWNS) == 0 &&
           mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") == 0;
}

TEST_F(Processes, D20_SmallSharedMemoryIsNoBusError)
{
    if (geteuid() != 0)
        GTEST_SKIP() << "needs root for a private /dev/shm";
    start(0, [&] {
        if (!private_small_shm())
            return 77;
        /* A process of its own per rank, all in this mount namespace. */
        pid_t ranks[4];
        int failed = 0;

        for (int r = 0; r < 4; r++)
            if ((ranks[r] = fork()) == 0) {
                std::vector<float> v(1 << 20, 1.0f), out(v.size());
                dscomm_comm_t *comm = join(4, r, "auto", 10000);
                const dscomm_status_t st =
                    comm == nullptr ? DSCOMM_ERR_SYSTEM
                                    : dscomm_allreduce_compressed(v.data(), out.data(), v.size(),
                                                                  DSCOMM_FLOAT32, DSCOMM_SUM,
                                                                  nullptr, nullptr, comm, nullptr);

                note(r, st);
                dscomm_comm_destroy(comm);
                _exit(st == DSCOMM_OK && out[v.size() - 1] == 4.0f ? 0 : 1);
            }
        for (int r = 0; r < 4; r++) {
            int status = 0;

            waitpid(ranks[r], &status, 0);
            failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        }
        return failed;
    });
    const int code = wait_for(0);

    if (code == 77)
        GTEST_SKIP() << "cannot make a private /dev/shm";
    EXPECT_EQ(code, 0) << shared->text[0] << " / " << shared->text[1];
}

/* ---- D19: descriptors ---- */

TEST_F(Processes, D19_TooFewDescriptorsAreNamed)
{
    start(0, [&] {
        const rlimit few = { 24, 24 };
        std::vector<std::thread> threads;

        if (setrlimit(RLIMIT_NOFILE, &few) != 0)
            return 2;
        for (int r = 0; r < 8; r++)
            threads.emplace_back([&, r] {
                dscomm_comm_t *comm = join(8, r, "tcp", 3000);
                std::vector<float> v(100000, 1.0f);

                if (comm != nullptr)
                    note(r,
                         dscomm_allreduce_compressed(v.data(), v.data(), v.size(), DSCOMM_FLOAT32,
                                                     DSCOMM_SUM, nullptr, nullptr, comm, nullptr));
                dscomm_comm_destroy(comm);
            });
        for (auto &t : threads)
            t.join();
        return 0;
    });
    bool named = false;

    EXPECT_EQ(wait_for(0), 0);
    for (int r = 0; r < 8; r++) {
        EXPECT_LT(shared->status[r], 0);
        named = named || (strstr(shared->text[r], "RLIMIT_NOFILE") != nullptr &&
                          strstr(shared->text[r], "24") != nullptr);
    }
    EXPECT_TRUE(named) << shared->text[0];
}

} // namespace
