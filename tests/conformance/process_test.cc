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
#include "support/transports.h"

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

    dscomm_comm_t *join(int n, int rank, const char *transport, int timeout_ms,
                        const char *algorithm = nullptr)
    {
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
        dscomm_comm_t *comm = nullptr;

        config.algorithm = algorithm;
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
    int call_for_ever(int n, int rank, const char *transport, bool forks = false,
                      const char *algorithm = nullptr)
    {
        dscomm_comm_t *comm = join(n, rank, transport, 5000, algorithm);
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
    if (GetParam() == std::string("shm")) { /* of others beside this test */
        EXPECT_EQ(n_shm_objects(), objects);
    }
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

INSTANTIATE_TEST_SUITE_P(, Kill, testing::ValuesIn(and_net_plugin({ "shm", "tcp" })),
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

/* ---- tiers: the environment is read once per process ---- */

constexpr size_t kTieredCount = 10007;

/* 127 in every block of 16, integers between: int8 has them exactly, sums of them too. */
float probe(size_t i)
{
    return i % 16 == 0 ? 127.0f : (float)(int)(i * 37 % 255) - 127.0f;
}

/* What a rank of a tiered communicator saw; status 0: n times the probe, to the bit, three times.
 */
int call_tiered(dscomm_comm_t *comm, int n, std::string *tiers_out)
{
    std::vector<float> v(kTieredCount);

    *tiers_out = dscomm_comm_tiers(comm);
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < v.size(); i++)
            v[i] = probe(i);
        if (dscomm_allreduce_compressed(v.data(), v.data(), v.size(), DSCOMM_FLOAT32, DSCOMM_SUM,
                                        dscomm_codec("int8"), nullptr, comm, nullptr) != DSCOMM_OK)
            return 1;
        for (size_t i = 0; i < v.size(); i++)
            if (v[i] != (float)n * probe(i))
                return 2;
    }
    return 0;
}

class Tiers : public Processes {
  protected:
    /* Ranks of which each is told its variables first. Returns what each wrote: tiers or an error.
     */
    std::vector<std::string> run(int n, const std::function<void(int)> &set_variables)
    {
        std::vector<std::string> texts;

        for (int r = 0; r < n; r++)
            start(r, [&, r] {
                std::string tiers;

                set_variables(r);
                dscomm_comm_t *const comm = join(n, r, "auto", 2000, "tiered");

                shared->joined++;
                for (int i = 0; i < 3000 && shared->joined < n; i++)
                    usleep(1000); /* rank 0 has the rendezvous: it stays until all had an answer */
                if (comm == nullptr)
                    return 3;
                const int rc = call_tiered(comm, n, &tiers);

                snprintf(shared->text[r], sizeof(shared->text[r]), "%s", tiers.c_str());
                dscomm_comm_destroy(comm);
                return rc;
            });
        for (int r = 0; r < n; r++)
            exits.push_back(wait_for(r));
        for (int r = 0; r < n; r++)
            texts.emplace_back(shared->text[r]);
        return texts;
    }

    std::vector<int> exits;
};

TEST_F(Tiers, AreAsDSCOMM_TIERSGivesThem)
{
    for (const char *given : { "0-2|3-6", "0|1-6", "0-4|5-6/0-6", "0-1|2|3|4-6/0-2|3-6", "flat" }) {
        new (shared) Shared();
        exits.clear();
        const auto texts = run(7, [&](int) { setenv("DSCOMM_TIERS", given, 1); });

        for (int r = 0; r < 7; r++) {
            EXPECT_EQ(exits[(size_t)r], 0) << given << " rank " << r;
            EXPECT_EQ(texts[(size_t)r].find(strcmp(given, "flat") == 0 ? "0-6" : given), 0u)
                << texts[(size_t)r];
        }
    }
}

/* Shared memory within hosts, TCP between them: nobody needs to say what is where. */
TEST_F(Tiers, AreFoundByHost)
{
    const auto texts =
        run(7, [&](int r) { setenv("DSCOMM_HOST_ID", r % 3 == 0 ? "host-a" : "host-b", 1); });

    for (int r = 0; r < 7; r++) {
        EXPECT_EQ(exits[(size_t)r], 0) << r;
        EXPECT_EQ(texts[(size_t)r], "0,3,6|1-2,4-5/0-6");
    }
}

TEST_F(Tiers, ThatRanksAreGivenDifferentlyAreNamed)
{
    const auto texts =
        run(3, [&](int r) { setenv("DSCOMM_TIERS", r == 1 ? "0-1|2" : "0|1-2", 1); });

    for (int r = 0; r < 3; r++) {
        EXPECT_EQ(exits[(size_t)r], 3);
        EXPECT_EQ(shared->status[r], DSCOMM_ERR_MISMATCH) << texts[(size_t)r];
        for (const char *part : { "tiers", "0-1|2/0-2", "0|1-2/0-2" })
            EXPECT_NE(texts[(size_t)r].find(part), std::string::npos) << texts[(size_t)r];
    }
}

/* Two ways to write the same tiers agree. */
TEST_F(Tiers, ThatAreWrittenDifferentlyAgree)
{
    run(4, [&](int r) { setenv("DSCOMM_TIERS", r == 1 ? "1,0|2,3/0-3" : "0-1|2-3", 1); });
    EXPECT_EQ(exits, std::vector<int>(4, 0));
}

TEST_F(Tiers, ThatAreMalformedAreNamed)
{
    const auto texts = run(3, [&](int) { setenv("DSCOMM_TIERS", "0-1|3", 1); });

    for (int r = 0; r < 3; r++) {
        EXPECT_EQ(exits[(size_t)r], 3);
        EXPECT_EQ(shared->status[r], DSCOMM_ERR_ENV);
        for (const char *part : { "DSCOMM_TIERS", "0-1|3", "no such rank" })
            EXPECT_NE(texts[(size_t)r].find(part), std::string::npos) << texts[(size_t)r];
    }
}

/* In a tiered plan a rank has few peers: those that have none of the dead one's messages to wait
 * for are told, on one host and from host to host. */
TEST_F(Tiers, D15_ADeadRankIsAnErrorOnAllRanks)
{
    for (int victim : { 1, 6 }) {
        new (shared) Shared();
        for (int r = 0; r < 7; r++)
            start(r, [&, r] {
                setenv("DSCOMM_HOST_ID", r < 3 ? "host-a" : "host-b", 1);
                return call_for_ever(7, r, "auto", false, "tiered");
            });
        for (int i = 0; i < 20000 && shared->calls[victim] < 10; i++)
            usleep(1000);
        ASSERT_GE(shared->calls[victim], 10);
        shared->killed_ns = now_ns();
        kill(pids[(size_t)victim], SIGKILL);
        for (int r = 0; r < 7; r++) {
            EXPECT_EQ(wait_for(r), r == victim ? -SIGKILL : 0);
            if (r == victim)
                continue;
            const std::string name = "rank " + std::to_string(victim);

            EXPECT_EQ(shared->status[r], DSCOMM_ERR_PEER_LOST) << shared->text[r];
            EXPECT_NE(strstr(shared->text[r], name.c_str()), nullptr) << shared->text[r];
            EXPECT_LT(shared->seconds[r], 2.0);
        }
        pids.clear();
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
