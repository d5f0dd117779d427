/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the API is used beyond one blocking call: streams, several communicators, many shapes, plans,
 * odd floating-point modes, one-message windows, resources given back.
 */
#include <gtest/gtest.h>

#include <dirent.h>
#include <sched.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "support/world.h"

#include "support/internal_begin.h"
#include "comm/comm.h"
#include "exec/exec_internal.h"
#include "support/internal_end.h"

namespace {

using Floats = std::vector<float>;

dscomm_status_t reduce(dscomm_comm_t *comm, const Floats &in, Floats &out,
                       const char *codec = "none", dscomm_feedback_t *fb = nullptr,
                       dscomm_stream_t *stream = nullptr)
{
    return dscomm_allreduce_compressed(in.data(), out.data(), in.size(), DSCOMM_FLOAT32, DSCOMM_SUM,
                                       dscomm_codec(codec), fb, comm, stream);
}

class Api : public testing::TestWithParam<const char *> {};

TEST_P(Api, StreamsKeepTheOrderOfIssue)
{
    World w(3, GetParam());

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        dscomm_stream_t *a = nullptr, *b = nullptr;
        Floats v(5000, 1.0f);

        ASSERT_EQ(dscomm_stream_create(&a), DSCOMM_OK);
        ASSERT_EQ(dscomm_stream_create(&b), DSCOMM_OK);
        for (int i = 0; i < 6; i++) /* in place: each call triples what the one before left */
            ASSERT_EQ(reduce(comm, v, v, "none", nullptr, i % 2 ? a : b), DSCOMM_OK);
        ASSERT_EQ(reduce(comm, v, v), DSCOMM_OK); /* blocking, after the six */
        EXPECT_EQ(v, Floats(5000, 2187.0f));
        EXPECT_EQ(dscomm_stream_synchronize(a), DSCOMM_OK);
        EXPECT_EQ(dscomm_stream_synchronize(b), DSCOMM_OK);
        EXPECT_EQ(dscomm_stream_query(a), DSCOMM_OK);
        dscomm_stream_destroy(a);
        dscomm_stream_destroy(b);
    });
}

TEST_P(Api, AStreamHoldsMoreCallsThanItsQueue)
{
    World w(2, GetParam());

    w.each([&](int r) {
        dscomm_stream_t *s = nullptr;
        Floats v(64, 1.0f);
        std::vector<Floats> outs(600, Floats(64));

        ASSERT_EQ(dscomm_stream_create(&s), DSCOMM_OK);
        for (auto &out : outs)
            ASSERT_EQ(reduce(w.comms[(size_t)r], v, out, "int8", nullptr, s), DSCOMM_OK);
        EXPECT_EQ(dscomm_stream_synchronize(s), DSCOMM_OK);
        for (const auto &out : outs)
            EXPECT_EQ(out, Floats(64, 2.0f));
        dscomm_stream_destroy(s);
    });
}

TEST_P(Api, AStreamReportsItsFirstError)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.timeout_ms = 300;
    World w(2, GetParam(), config);
    dscomm_stream_t *s = nullptr;
    Floats v(64, 1.0f), out(64);

    ASSERT_EQ(dscomm_stream_create(&s), DSCOMM_OK);
    ASSERT_EQ(reduce(w.comms[0], v, out, "none", nullptr, s), DSCOMM_OK); /* rank 1 never calls */
    EXPECT_EQ(dscomm_stream_synchronize(s), DSCOMM_ERR_TIMEOUT);
    EXPECT_NE(std::string(dscomm_last_error()).find("rank 1"), std::string::npos)
        << dscomm_last_error();
    EXPECT_EQ(dscomm_stream_synchronize(s), DSCOMM_OK); /* reported once */
    dscomm_stream_destroy(s);
}

/* Communicator A sums ones, B thousands, from two threads per rank in opposite order. */
TEST_P(Api, TwoCommunicatorsDoNotSwapData)
{
    World a(2, GetParam()), b(2, GetParam());

    a.each([&](int r) {
        std::thread other([&] {
            Floats v(3000, 1000.0f), out(3000);

            for (int i = 0; i < 50; i++) {
                ASSERT_EQ(reduce(b.comms[(size_t)r], v, out, "int8"), DSCOMM_OK);
                ASSERT_EQ(out, Floats(3000, 2000.0f));
            }
        });
        Floats v(3000, 1.0f), out(3000);

        for (int i = 0; i < 50; i++) {
            ASSERT_EQ(reduce(a.comms[(size_t)r], v, out, "int8"), DSCOMM_OK);
            ASSERT_EQ(out, Floats(3000, 2.0f));
        }
        other.join();
    });
}

/* More shapes than plans are kept. */
TEST_P(Api, ManyShapes)
{
    World w(3, GetParam());

    w.each([&](int r) {
        for (size_t i = 0; i < 300; i++) {
            const size_t n = i % 3 == 0 ? 1 + i : 100 * i * i % 200000 + 1;
            Floats v(n, 2.0f), out(n);

            ASSERT_EQ(reduce(w.comms[(size_t)r], v, out, i % 2 ? "int8" : "none"), DSCOMM_OK)
                << dscomm_last_error();
            ASSERT_EQ(out, Floats(n, 6.0f)) << n;
        }
    });
}

TEST_P(Api, FlushToZeroOfTheCallerChangesNothing)
{
#if defined(__x86_64__)
    World w(2, GetParam());
    Floats results[2];

    for (int mode = 0; mode < 2; mode++)
        w.each([&](int r) {
            const unsigned before = _mm_getcsr();
            Floats v(4096), out(4096);

            for (size_t i = 0; i < v.size(); i++)
                v[i] = std::ldexp((float)(i % 251) + 1, -145 + (int)(i % 20)) * (r == 0 ? 1 : 3);
            if (mode == 1)
                _mm_setcsr(before | 0x8040); /* FTZ and DAZ */
            for (const char *codec : { "none", "bf16", "int8" })
                EXPECT_EQ(reduce(w.comms[(size_t)r], v, out, codec), DSCOMM_OK);
            EXPECT_EQ(_mm_getcsr() & 0xffc0, (mode == 1 ? before | 0x8040 : before) & 0xffc0);
            _mm_setcsr(before);
            EXPECT_EQ(reduce(w.comms[(size_t)r], v, out, "none"), DSCOMM_OK);
            if (r == 0)
                results[mode] = out;
        });
    EXPECT_EQ(results[0], results[1]);
    EXPECT_NE(results[0][0], 0.0f); /* subnormal sums survive */
#else
    GTEST_SKIP() << "x86 only";
#endif
}

/* Uneven rows of a flat world of 33: the ranks' own messages differ in size. */
TEST(Shapes, GrowingCountsOnUnevenRows)
{
    World w(33);

    w.each([&](int r) {
        for (size_t n : { 9000, 15000, 40000, 100 }) {
            Floats v(n, 1.0f), out(n);

            ASSERT_EQ(reduce(w.comms[(size_t)r], v, out, "int8"), DSCOMM_OK) << dscomm_last_error();
            ASSERT_EQ(out, Floats(n, 33.0f));
        }
    });
}

/* Kept messages of a forced one-shot lie in a ring of chunks that is used many times. */
TEST(Shapes, LargeOneShot)
{
    for (int n_ranks : { 3, 11 }) {
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

        config.algorithm = "oneshot";
        config.chunk_bytes = 4096;
        World w(n_ranks, "loopback", config);

        w.each([&](int r) {
            Floats v(60000), out(v.size());

            for (size_t i = 0; i < v.size(); i++)
                v[i] = (float)(i % 251);
            ASSERT_EQ(reduce(w.comms[(size_t)r], v, out), DSCOMM_OK) << dscomm_last_error();
            for (size_t i = 0; i < v.size(); i++)
                ASSERT_EQ(out[i], v[i] * (float)n_ranks) << i;
        });
    }
}

TEST_P(Api, DestroyWaitsForQueuedCallsAndNoLonger)
{
    World w(2, GetParam());

    w.each([&](int r) {
        dscomm_stream_t *s = nullptr;
        Floats v(1 << 20, 1.0f), out(v.size());

        ASSERT_EQ(dscomm_stream_create(&s), DSCOMM_OK);
        for (int i = 0; i < 3; i++)
            ASSERT_EQ(reduce(w.comms[(size_t)r], v, out, "int8", nullptr, s), DSCOMM_OK);
        const uint64_t start = dsc_now_ns();

        dscomm_comm_destroy(w.comms[(size_t)r]);
        w.comms[(size_t)r] = nullptr;
        EXPECT_LT(dsc_now_ns() - start, 900000000u); /* no lost wake-up */
        EXPECT_EQ(dscomm_stream_synchronize(s), DSCOMM_OK);
        EXPECT_EQ(out, Floats(v.size(), 2.0f));
        dscomm_stream_destroy(s);
    });
}

TEST_P(Api, AbortOfAnIdleRankReachesTheOthers)
{
    World w(2, GetParam());
    const Floats v(1000, 1.0f);

    w.each([&](int r) {
        Floats mine(1000);

        ASSERT_EQ(reduce(w.comms[(size_t)r], v, mine), DSCOMM_OK);
    });
    w.each([&](int r) {
        Floats mine(1000);

        if (r == 1) {
            EXPECT_EQ(dscomm_comm_abort(w.comms[1]), DSCOMM_OK);
            EXPECT_EQ(dscomm_comm_async_error(w.comms[1], nullptr), DSCOMM_ERR_ABORTED);
            return;
        }
        const uint64_t start = dsc_now_ns();

        EXPECT_EQ(reduce(w.comms[0], v, mine), DSCOMM_ERR_ABORTED) << dscomm_last_error();
        EXPECT_LT(dsc_now_ns() - start, 1000000000u);
    });
}

TEST_P(Api, APlanAfterAFailureIsRefused)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.timeout_ms = 300;
    World w(2, GetParam(), config);
    const dscomm_plan_t *plan = nullptr;
    dscomm_stream_t *s = nullptr;
    Floats v(64, 1.0f), out(64);

    ASSERT_EQ(dscomm_stream_create(&s), DSCOMM_OK);
    ASSERT_EQ(reduce(w.comms[0], v, out, "none", nullptr, s), DSCOMM_OK);
    EXPECT_EQ(dscomm_plan_create(w.comms[0], 64, DSCOMM_FLOAT32, DSCOMM_SUM, nullptr, 0, &plan),
              DSCOMM_ERR_BAD_STATE);
    EXPECT_EQ(plan, nullptr);
    dscomm_stream_destroy(s);
}

INSTANTIATE_TEST_SUITE_P(, Api, testing::Values("loopback", "shm", "tcp"),
                         [](const auto &p) { return std::string(p.param); });

/* ---- one message in flight: the smallest window must not deadlock ---- */

TEST(Window, OneMessageIsEnough)
{
    setenv("DSCOMM_WINDOW", "1", 1);
    dsc_env_reload();
    for (const char *transport : { "loopback", "shm", "tcp" })
        for (int n : { 2, 3, 5, 9, 12 })
            for (const char *algorithm : { "twoshot", "oneshot" }) {
                dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

                config.chunk_bytes = 1024;
                config.algorithm = algorithm;
                config.n_threads = n == 3 ? 3 : 1;
                config.timeout_ms = 10000;
                World w(n, transport, config);

                w.each([&](int r) {
                    Floats v(40000, 1.0f), out(40000);

                    for (const char *codec : { "int8", "none" }) {
                        ASSERT_EQ(reduce(w.comms[(size_t)r], v, out, codec), DSCOMM_OK)
                            << transport << " " << n << " " << algorithm << dscomm_last_error();
                        ASSERT_EQ(out, Floats(40000, (float)n));
                    }
                });
            }
    unsetenv("DSCOMM_WINDOW");
    dsc_env_reload();
}

/* The first CPUs that this thread may use, from the `first`-th on, n of them. */
void use_cpus(int first, int n)
{
    cpu_set_t allowed, mine;

    ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    CPU_ZERO(&mine);
    for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && seen++ >= first && CPU_COUNT(&mine) < n)
            CPU_SET(cpu, &mine);
    ASSERT_EQ(sched_setaffinity(0, sizeof(mine), &mine), 0);
}

/* Three ranks on two CPUs: the one that may use both takes them from the others. */
TEST(Spinning, OverlappingCpuSetsAreShared)
{
    struct {
        int first, n;
        bool spins;
    } const alone[] = { { 0, 1, true }, { 1, 1, true } },
            crowded[] = { { 0, 2, false }, { 0, 1, false }, { 1, 1, false } };
    const auto check = [](const auto &ranks) {
        const int n = (int)(sizeof(ranks) / sizeof(ranks[0]));
        std::vector<std::thread> threads;
        dscomm_unique_id_t id;

        ASSERT_EQ(dscomm_unique_id_create(&id), DSCOMM_OK);
        for (int r = 0; r < n; r++)
            threads.emplace_back([&, r] {
                dscomm_comm_t *comm = nullptr;

                use_cpus(ranks[r].first, ranks[r].n);
                ASSERT_EQ(dscomm_comm_create(n, r, &id, nullptr, &comm), DSCOMM_OK)
                    << dscomm_last_error();
                EXPECT_EQ(comm->exec->params.spin_ns > 0, ranks[r].spins) << "rank " << r;
                dscomm_comm_destroy(comm);
            });
        for (auto &t : threads)
            t.join();
    };
    cpu_set_t allowed;

    ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    if (CPU_COUNT(&allowed) < 2)
        GTEST_SKIP() << "one CPU only";
    check(alone);
    check(crowded);
}

/* All slots of a rank take at most 32 MiB: 20 ranks cannot have four of 251 KiB per peer. */
TEST(Window, IsShorterForManyRanks)
{
    for (const int n : { 2, 20 }) {
        World w(n, "loopback");

        w.each([&](int r) {
            Floats v(1000, 1.0f), out(1000);

            ASSERT_EQ(reduce(w.comms[(size_t)r], v, out), DSCOMM_OK) << dscomm_last_error();
            const dsc_conn *const conn = dsc_net_conn(w.comms[(size_t)r]->net, (r + 1) % n);

            ASSERT_NE(conn, nullptr);
            EXPECT_EQ(conn->n_slots, n == 2 ? 4u : 3u);
        });
    }
}

/* NaNs have one form on the wire and in the result, also where the input is sent as it lies. */
TEST_P(Api, NansComeOutInOneForm)
{
    World w(2, GetParam());

    w.each([&](int r) {
        Floats v(100000, 1.0f), out(100000);
        const uint32_t odd_nan = 0xffabcdefu;

        for (const size_t i : { size_t{ 0 }, size_t{ 50001 }, size_t{ 99999 } })
            std::memcpy(&v[i], &odd_nan, sizeof(odd_nan));
        ASSERT_EQ(reduce(w.comms[(size_t)r], v, out), DSCOMM_OK) << dscomm_last_error();
        for (size_t i = 0; i < out.size(); i++)
            if (i == 0 || i == 50001 || i == 99999) {
                uint32_t bits;

                std::memcpy(&bits, &out[i], sizeof(bits));
                ASSERT_EQ(bits, 0x7fc00000u) << i;
            } else {
                ASSERT_EQ(out[i], 2.0f) << i;
            }
    });
}

TEST(Plan, IsMadeAheadAndExplained)
{
    World w(2);

    w.each([&](int r) {
        const dscomm_plan_t *plan = nullptr, *again = nullptr;

        ASSERT_EQ(dscomm_plan_create(w.comms[(size_t)r], 1 << 20, DSCOMM_FLOAT32, DSCOMM_SUM,
                                     dscomm_codec("int8"), 1, &plan),
                  DSCOMM_OK);
        ASSERT_EQ(dscomm_plan_create(w.comms[(size_t)r], 1 << 20, DSCOMM_FLOAT32, DSCOMM_SUM,
                                     dscomm_codec("int8"), 1, &again),
                  DSCOMM_OK);
        EXPECT_EQ(plan, again);
        EXPECT_EQ(stats_of(w.comms[(size_t)r]).plans, 1u);
        std::string text = dscomm_plan_explain(plan);

        for (const char *word :
             { "twoshot", "int8", "1048576", "ratio 3.9", "chunks of 64256 elements" })
            EXPECT_NE(text.find(word), std::string::npos) << text;
        ASSERT_EQ(dscomm_plan_create(w.comms[(size_t)r], 1 << 20, DSCOMM_FLOAT32, DSCOMM_SUM,
                                     dscomm_codec("none"), 1, &plan),
                  DSCOMM_OK);
        text = dscomm_plan_explain(plan);
        EXPECT_NE(text.find("chunks of 32256 elements"), std::string::npos) << text;
    });
}

/* Faster tiers send float32, which makes chunks short, whatever the call's codec is. */
TEST(Plan, ChunksFitTheWidestTier)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.algorithm = "tiered";
    World w(4, "loopback", config);

    w.each([&](int r) {
        const dscomm_plan_t *plan = nullptr;

        ASSERT_EQ(dsc_comm_set_tiers(w.comms[(size_t)r], nullptr, "0-1|2-3"), DSCOMM_OK);
        ASSERT_EQ(dscomm_plan_create(w.comms[(size_t)r], 1 << 20, DSCOMM_FLOAT32, DSCOMM_SUM,
                                     dscomm_codec("int8"), 1, &plan),
                  DSCOMM_OK);
        EXPECT_LE(plan->max_msg_bytes, w.comms[(size_t)r]->chunk_elems * sizeof(float) / 2 + 1024);
    });
}

/* 65535 chunks of 1024 bytes are not enough: they are enlarged and no longer fit in the slots. */
TEST(Plan, TooManyChunksAreALimitThatIsExplained)
{
    for (const char *transport : { "loopback", "shm", "tcp" }) {
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

        config.chunk_bytes = 1024;
        World w(2, transport, config);

        w.each([&](int r) {
            dscomm_comm_t *const comm = w.comms[(size_t)r];
            const dscomm_plan_t *plan = nullptr;
            const Floats v(100, 1.0f);
            Floats out(100);

            EXPECT_EQ(reduce(comm, v, out), DSCOMM_OK) << dscomm_last_error();
            EXPECT_EQ(dscomm_plan_create(comm, 70000000, DSCOMM_FLOAT32, DSCOMM_SUM,
                                         dscomm_codec("none"), 0, &plan),
                      DSCOMM_ERR_LIMIT);
            const std::string text = dscomm_last_error();
            for (const char *part : { "count 70000000 needs messages of ",
                                      " bytes, connections "
                                      "have 1024; set DSCOMM_CHUNK_BYTES to at least ",
                                      " on all ranks" })
                EXPECT_NE(text.find(part), std::string::npos) << text;
            EXPECT_EQ(plan, nullptr);
            EXPECT_EQ(reduce(comm, v, out), DSCOMM_ERR_BAD_STATE);
        });
    }
}

/* A message of nvfp4 has at least 65536 elements, where there are as many; slots may be too small.
 */
TEST(Plan, SegmentsThatDoNotFitInSlotsAreALimitThatIsExplained)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.chunk_bytes = 4096;
    World w(2, "loopback", config);

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        const dscomm_plan_t *plan = nullptr;

        EXPECT_EQ(dscomm_plan_create(comm, 5000, DSCOMM_FLOAT32, DSCOMM_SUM, dscomm_codec("nvfp4"),
                                     0, &plan),
                  DSCOMM_OK)
            << dscomm_last_error();
        plan = nullptr;
        EXPECT_EQ(dscomm_plan_create(comm, 1000000, DSCOMM_FLOAT32, DSCOMM_SUM,
                                     dscomm_codec("nvfp4"), 0, &plan),
                  DSCOMM_ERR_LIMIT);
        /* 16 + 4096 + 32768 */
        EXPECT_NE(std::string(dscomm_last_error())
                      .find("messages of 36880 bytes, connections have 4096; set "
                            "DSCOMM_CHUNK_BYTES to at least 36880"),
                  std::string::npos)
            << dscomm_last_error();
        EXPECT_EQ(plan, nullptr);
    });
}

TEST(Plan, ThatTheCallerHoldsIsNotEvicted)
{
    World w(1);
    const dscomm_plan_t *held = nullptr, *other = nullptr;
    Floats v(1000), out(1000);

    ASSERT_EQ(dscomm_plan_create(w.comms[0], 777, DSCOMM_FLOAT32, DSCOMM_SUM, nullptr, 0, &held),
              DSCOMM_OK);
    for (size_t n = 1; n <= 600; n++) {
        v.resize(n);
        ASSERT_EQ(reduce(w.comms[0], v, out), DSCOMM_OK);
    }
    EXPECT_NE(std::string(dscomm_plan_explain(held)).find("777"), std::string::npos);
    for (size_t n = 2000; n < 2255; n++)
        ASSERT_EQ(dscomm_plan_create(w.comms[0], n, DSCOMM_FLOAT32, DSCOMM_SUM, nullptr, 0, &other),
                  DSCOMM_OK);
    EXPECT_EQ(dscomm_plan_create(w.comms[0], 5000, DSCOMM_FLOAT32, DSCOMM_SUM, nullptr, 0, &other),
              DSCOMM_ERR_LIMIT);
    EXPECT_EQ(dscomm_plan_create(w.comms[0], 777, DSCOMM_FLOAT32, DSCOMM_SUM, nullptr, 0, &other),
              DSCOMM_OK); /* known, and the communicator works */
    EXPECT_EQ(other, held);
}

TEST(Plan, ArgumentsAreCheckedAsInACall)
{
    World w(1);
    const dscomm_plan_t *plan = nullptr;

    EXPECT_EQ(
        dscomm_plan_create(w.comms[0], SIZE_MAX, DSCOMM_FLOAT32, DSCOMM_SUM, nullptr, 0, &plan),
        DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_plan_create(w.comms[0], 8, DSCOMM_FLOAT32, DSCOMM_MAX, nullptr, 1, &plan),
              DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_plan_create(w.comms[0], (size_t)1 << 44, DSCOMM_FLOAT32, DSCOMM_SUM, nullptr,
                                 0, &plan),
              DSCOMM_OK); /* quick: chunks grow with the count */
}

/* Workers that compute for longer than the deadline are not a peer that is missing. */
TEST(Deadline, OwnWorkIsNoWait)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.n_threads = 2;
    config.chunk_bytes = 67108864;
    World w(1, "loopback", config);
    Floats v((size_t)1 << 25, 1.0f), out(v.size());

    w.comms[0]->exec->params.timeout_ms = 1;
    EXPECT_EQ(reduce(w.comms[0], v, out), DSCOMM_OK) << dscomm_last_error();
}

/* ---- D19: everything is given back ---- */

int n_entries(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;

    while (readdir(dir) != nullptr)
        n++;
    closedir(dir);
    return n;
}

/* A joined thread may stay in /proc for a moment: waits until it is gone. */
int n_threads_settled(int expected)
{
    for (int i = 0; i < 1000 && n_entries("/proc/self/task") > expected; i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return n_entries("/proc/self/task");
}

int n_shared_mappings()
{
    std::ifstream maps("/proc/self/maps");
    std::string line;
    int n = 0;

    while (std::getline(maps, line))
        n += line.find("dscomm") != std::string::npos && line.find(".so") == std::string::npos;
    return n;
}

TEST(Resources, D19_TwoHundredRoundsLeaveNothing)
{
    int fds = 0, threads = 0, mappings = 0;
    size_t live[DSC_MEM_N_TAGS] = {};

    for (int round = 0; round < 200; round++) {
        const char *const transports[] = { "loopback", "shm", "tcp" };
        {
            World w(2, transports[round % 3]);

            w.each([&](int r) {
                Floats v(1000, 1.0f), out(1000);

                ASSERT_EQ(reduce(w.comms[(size_t)r], v, out, "int8"), DSCOMM_OK);
            });
        }
        if (round < 5) { /* lazy things have happened by then */
            fds = n_entries("/proc/self/fd");
            threads = n_entries("/proc/self/task");
            mappings = n_shared_mappings();
            for (int t = 0; t < DSC_MEM_N_TAGS; t++)
                live[t] = dsc_mem_live((dsc_mem_tag)t);
            continue;
        }
        ASSERT_EQ(n_entries("/proc/self/fd"), fds) << "round " << round;
        ASSERT_LE(n_threads_settled(threads), threads) << "round " << round;
        ASSERT_EQ(n_shared_mappings(), mappings) << "round " << round;
        for (int t = 0; t < DSC_MEM_N_TAGS; t++)
            ASSERT_EQ(dsc_mem_live((dsc_mem_tag)t), live[t]) << "tag " << t << " round " << round;
    }
}

} // namespace
