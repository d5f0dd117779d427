/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Once a plan exists, calls do not allocate, lock or read the environment: a preloaded library
 * counts over all threads during 1000 calls on every transport.
 */
#include <gtest/gtest.h>

#include <dlfcn.h>

#include <atomic>
#include <cmath>

#include "support/collectives.h"
#include "support/count_calls.h"
#include "support/world.h"

namespace {

struct Case {
    const char *transport;
    int n_threads;
    size_t count;
    const char *collective = "allreduce";
    bool grouped = false;
    const char *codec = "int8";
    float momentum = 0.0f;
};

Collective find_collective(const char *name)
{
    for (const auto &c : all_collectives())
        if (std::string(c.name) == name)
            return c;
    throw std::invalid_argument(name);
}

/* Two halves as one call. */
void call_grouped(const float *in, float *out, size_t n, dscomm_comm_t *comm,
                  dscomm_stream_t *stream)
{
    dscomm_group_start();
    for (size_t half = 0; half < 2; half++)
        dscomm_allreduce_compressed(in + half * (n / 2), out + half * (n / 2), n / 2,
                                    DSCOMM_FLOAT32, DSCOMM_SUM, dscomm_codec("int8"), nullptr, comm,
                                    stream);
    dscomm_group_end();
}

class Alloc : public testing::TestWithParam<Case> {};

TEST_P(Alloc, NothingInAThousandCalls)
{
    auto *const count_start = (dsc_count_start_fn *)dlsym(RTLD_DEFAULT, "dsc_count_start");
    auto *const count_stop = (dsc_count_stop_fn *)dlsym(RTLD_DEFAULT, "dsc_count_stop");
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    const auto *const codec = dscomm_codec(GetParam().codec);
    dscomm_feedback_config_t feedback_config = DSCOMM_FEEDBACK_CONFIG_INIT;

    feedback_config.momentum = GetParam().momentum;
    ASSERT_NE(count_start, nullptr) << "run under the preloaded counter";
    ASSERT_NE(count_stop, nullptr);
    config.n_threads = GetParam().n_threads;
    World w(3, GetParam().transport, config);
    const Collective coll = find_collective(GetParam().collective);
    const size_t n = GetParam().count, sent = coll.send_count(n, 3);
    std::vector<dscomm_feedback_t *> fbs(3);
    std::vector<dscomm_stream_t *> streams(3);
    std::vector<std::vector<float>> in(3), out(3);

    w.each([&](int r) {
        const size_t i = (size_t)r;

        in[i].assign(sent, 0.37f);
        out[i].resize(coll.recv_count(n, 3));
        if (coll.takes_feedback) {
            ASSERT_EQ(dscomm_feedback_create(sent, &feedback_config, &fbs[i]), DSCOMM_OK);
        }
        ASSERT_EQ(dscomm_stream_create(&streams[i]), DSCOMM_OK);
    });
    const auto calls = [&](int r, int k) {
        const size_t i = (size_t)r;

        for (int c = 0; c < k; c++) { /* every other through the stream */
            dscomm_stream_t *const stream = c % 2 ? streams[i] : nullptr;

            if (GetParam().grouped)
                call_grouped(in[i].data(), out[i].data(), n, w.comms[i], stream);
            else
                coll.call({ in[i].data(), out[i].data(), n, DSCOMM_FLOAT32, DSCOMM_SUM, codec,
                            fbs[i], w.comms[i], stream });
        }
        dscomm_stream_synchronize(streams[i]);
    };
    std::atomic<int> ready{ 0 }, go{ 0 }, done{ 0 };
    std::vector<std::thread> threads;

    for (int r = 0; r < 3; r++)
        threads.emplace_back([&, r] {
            calls(r, 10);
            ready++;
            while (go == 0)
                std::this_thread::yield();
            calls(r, 1000);
            done++;
            while (go == 1) /* the thread's end is not part of it */
                std::this_thread::yield();
        });
    while (ready < 3)
        std::this_thread::yield();
    count_start();
    go = 1;
    while (done < 3)
        std::this_thread::yield();
    const long n_counted = count_stop();

    go = 2;
    for (auto &t : threads)
        t.join();
    EXPECT_EQ(n_counted, 0) << "the counter has printed which";
    for (int r = 0; r < 3; r++) {
        EXPECT_EQ(stats_of(w.comms[(size_t)r]).calls, 1010u);
        EXPECT_TRUE(std::isfinite(out[(size_t)r][0]));
        dscomm_stream_destroy(streams[(size_t)r]);
        dscomm_feedback_destroy(fbs[(size_t)r]);
    }
}

INSTANTIATE_TEST_SUITE_P(
    , Alloc,
    testing::Values(Case{ "loopback", 1, 2000 }, Case{ "loopback", 2, 200000 },
                    Case{ "shm", 1, 2000 }, Case{ "shm", 2, 200000 }, Case{ "tcp", 1, 2000 },
                    Case{ "tcp", 2, 200000 }, Case{ "shm", 1, 2000, "reduce_scatter" },
                    Case{ "tcp", 2, 60000, "reduce_scatter" }, Case{ "shm", 1, 2000, "all_gather" },
                    Case{ "tcp", 2, 60000, "all_gather" }, Case{ "tcp", 2, 60000, "broadcast" },
                    Case{ "shm", 1, 2000, "all_to_all" }, Case{ "tcp", 2, 60000, "all_to_all" },
                    Case{ "shm", 2, 200000, "allreduce", false, "topk:0.01", 0.9f },
                    Case{ "tcp", 1, 60000, "reduce_scatter", false, "topk:0.01", 0.9f },
                    Case{ "tcp", 2, 60000, "allreduce", false, "lossless" },
                    Case{ "shm", 1, 60000, "allreduce", false, "int8,entropy" }),
    [](const auto &p) {
        return std::string(p.param.transport) + "_" + std::to_string(p.param.n_threads) +
               "threads_" + p.param.collective + (p.param.momentum > 0.0f ? "_momentum" : "") +
               (dscomm_codec(p.param.codec) == dscomm_codec("lossless") ||
                        p.param.codec == std::string("int8,entropy")
                    ? "_packed"
                    : "");
    });

} // namespace
