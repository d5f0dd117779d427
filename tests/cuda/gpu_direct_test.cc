/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls as one kernel over peer memory, DSCOMM_CUDA_DIRECT=1, with ranks as threads: that they are
 * one kernel, whose waits end when a rank does not come or gives up, and that memory is freed when
 * nobody uses it any more. Their bits: gpu_call and others run again with this setting.
 */
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>

#include "cuda/gpu_case.h"
#include "emu/emu_api.h"
#include "support/internal_begin.h"
#include "comm/comm.h"
#include "support/internal_end.h"

namespace {

using Clock = std::chrono::steady_clock;

dscomm_comm_config_t direct_config(int timeout_ms = 20000)
{
    dscomm_comm_config_t config = gpu_config();

    config.algorithm = "twoshot";
    config.timeout_ms = timeout_ms;
    return config;
}

GpuCase small_case(int n_ranks, const char *spec = "int8")
{
    GpuCase c;

    c.spec = spec;
    c.n_ranks = n_ranks;
    c.count = 5003;
    return c;
}

/* Waits for the communicator to fail; OK: it did not. */
dscomm_status_t failure(const GpuWorld &world, int r, std::string *text_out)
{
    const char *text = "";
    dscomm_status_t st = DSCOMM_OK;

    for (int tries = 0; st == DSCOMM_OK && tries < 1000; tries++) {
        st = dscomm_comm_async_error(world.comms[r], &text);
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    *text_out = st < 0 ? text : "";
    return st;
}

double seconds_since(Clock::time_point start)
{
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/* Lines of the log while it lives. */
struct Log {
    std::mutex lock;
    std::vector<std::string> lines;

    Log()
    {
        dscomm_set_log(
            [](void *user, dscomm_log_level_t, const char *line) {
                auto *const log = static_cast<Log *>(user);
                const std::lock_guard<std::mutex> guard(log->lock);

                log->lines.emplace_back(line);
            },
            this);
    }
    ~Log()
    {
        dscomm_set_log(nullptr, nullptr);
    }
    int count(const std::string &text)
    {
        const std::lock_guard<std::mutex> guard(lock);
        int n = 0;

        for (const std::string &line : lines)
            n += line.find(text) != std::string::npos;
        return n;
    }
};

TEST(Direct, a_call_is_one_kernel)
{
    constexpr int n_ranks = 3, n_calls = 4;
    const EmuApi emu;
    const GpuCase c = small_case(n_ranks);
    const GpuWorld world(n_ranks, direct_config());
    EmuCounts before, after;

    if (emu.counts == nullptr)
        GTEST_SKIP() << "needs the emulator";
    world.each([&](int r) {
        const dscomm_plan_t *plan = nullptr;

        EXPECT_EQ(dscomm_plan_create(world.comms[r], c.count, c.dtype, c.op, dscomm_codec("int8"),
                                     1, &plan),
                  DSCOMM_OK)
            << dscomm_last_error();
    });
    emu.counts(&before);
    world.each([&](int r) {
        const GpuSides sides(world, c, r);

        for (int step = 0; step < n_calls; step++) {
            const Bytes input = make_input(c, r, step, step == 1);

            sides.put(input);
            EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
            sides.expect_same_output(sides.host_call(input), step);
            sides.expect_same_residuals();
        }
    });
    emu.counts(&after);
    EXPECT_EQ(after.launches - before.launches + after.graph_kernels - before.graph_kernels,
              (uint64_t)n_ranks * n_calls);
}

/* What cannot be one kernel goes over NCCL, and a line says why. */
TEST(Direct, other_calls_go_over_nccl)
{
    const char *const specs[] = { "nvfp4", "topk:0.01" };

    for (const char *spec : specs) {
        Log log;
        const GpuCase c = small_case(2, spec);
        dscomm_comm_config_t config = direct_config();

        config.chunk_bytes = 65536 * 4;
        const GpuWorld world(2, config);

        world.each([&](int r) {
            const GpuSides sides(world, c, r);
            const Bytes input = make_input(c, r, 0, false);

            sides.put(input);
            EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
            sides.expect_same_output(sides.host_call(input), 0);
        });
        EXPECT_EQ(log.count(std::string("not as one kernel: codec ") + spec), 2);
        EXPECT_EQ(log.count("ERROR"), 0);
    }
}

/* The residual is as it was, and each rank names who did not come. */
TEST(Direct, names_the_rank_that_does_not_come)
{
    const GpuCase c = small_case(3);
    const GpuWorld world(3, direct_config(1500));

    world.each([&](int r) {
        const GpuSides sides(world, c, r);
        std::string text;

        sides.put(make_input(c, r, 0, false));
        EXPECT_EQ(sides.call(), DSCOMM_OK);
        world.sync(r);
        const std::vector<float> before = GpuSides::residual(sides.device_fb);
        const auto start = Clock::now();

        if (r == 2)
            std::this_thread::sleep_for(std::chrono::milliseconds(4000));
        EXPECT_EQ(sides.call(), DSCOMM_OK) << "it is enqueued";
        cudaStreamSynchronize(world.streams[r]);
        const dscomm_status_t st = failure(world, r, &text);

        EXPECT_LT(seconds_since(start), 8);
        EXPECT_EQ(sides.call(), DSCOMM_ERR_BAD_STATE);
        EXPECT_EQ(GpuSides::residual(sides.device_fb), before);
        EXPECT_EQ(stats_of(world.comms[r]).calls, 1u);
        /* whoever is first to give up knows for whom; the others may hear of that before */
        EXPECT_TRUE(st == DSCOMM_ERR_PEER_LOST || (r != 2 && st == DSCOMM_ERR_TIMEOUT)) << text;
        if (st == DSCOMM_ERR_TIMEOUT)
            EXPECT_NE(text.find("call 2 has waited 1.5 s for rank 2, at FINAL"), std::string::npos)
                << text;
        else
            EXPECT_NE(text.find("has given up"), std::string::npos) << text;
    });
}

/* Long before anybody's deadline. */
TEST(Direct, an_abort_ends_the_waits_of_all)
{
    const GpuCase c = small_case(3);
    const GpuWorld world(3, direct_config(60000));

    world.each([&](int r) {
        const GpuSides sides(world, c, r);
        std::string text;
        const auto start = Clock::now();

        EXPECT_EQ(sides.call(), DSCOMM_OK);
        world.sync(r);
        if (r == 0) {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            EXPECT_EQ(dscomm_comm_abort(world.comms[r]), DSCOMM_OK);
        } else {
            EXPECT_EQ(sides.call(), DSCOMM_OK);
            cudaStreamSynchronize(world.streams[r]);
        }
        const dscomm_status_t st = failure(world, r, &text);

        EXPECT_EQ(st, r == 0 ? DSCOMM_ERR_ABORTED : DSCOMM_ERR_PEER_LOST) << text;
        if (r != 0)
            EXPECT_NE(text.find("has given up"), std::string::npos) << text;
        EXPECT_LT(seconds_since(start), 20);
    });
}

size_t used_memory()
{
    size_t all = 0, unused = 0;

    EXPECT_EQ(cudaMemGetInfo(&unused, &all), cudaSuccess);
    return all - unused;
}

/* Whatever order ranks come in: only when all have left. */
TEST(Direct, memory_of_dropped_plans_is_freed)
{
    constexpr int n_ranks = 2, n_rounds = 12;
    const GpuCase c = small_case(n_ranks);
    const GpuWorld world(n_ranks, direct_config());

    world.each([&](int r) {
        const GpuSides sides(world, c, r);
        size_t after_two = 0;

        for (int i = 0; i < n_rounds; i++) {
            const Bytes input = make_input(c, r, i, false);

            sides.put(input);
            EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
            sides.expect_same_output(sides.host_call(input), i);
            std::this_thread::sleep_for(std::chrono::milliseconds((i + r) % 2 * 20));
            dsc_comm_drop_plans(world.comms[r]); /* as evictions do */
            after_two = i == 1 ? used_memory() : after_two;
        }
        EXPECT_LE(used_memory(), after_two + (4u << 20)) << "rank " << r;
        std::this_thread::sleep_for(std::chrono::milliseconds(r * 200)); /* and then destroys */
    });
}

TEST(Direct, all_is_freed_in_the_end)
{
    std::vector<size_t> before(2), after(2);
    const auto used = [](int device) {
        EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
        return used_memory();
    };

    for (int r = 0; r < 2; r++)
        before[r] = used(r);
    {
        const GpuCase c = small_case(2);
        const GpuWorld world(2, direct_config());

        world.each([&](int r) {
            const GpuSides sides(world, c, r);

            EXPECT_EQ(sides.call(), DSCOMM_OK);
            world.sync(r);
        });
    }
    for (int r = 0; r < 2; r++)
        after[r] = used(r);
    EXPECT_EQ(after, before);
}

/* It holds a plan that was dropped. */
TEST(Direct, a_graph_of_the_caller_goes_on)
{
    const GpuCase c = small_case(2);
    const GpuWorld world(2, direct_config());

    world.each([&](int r) {
        const GpuSides sides(world, c, r);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;

        sides.put(make_input(c, r, 0, false));
        EXPECT_EQ(sides.call(), DSCOMM_OK);
        sides.host_call(make_input(c, r, 0, false));
        EXPECT_EQ(cudaStreamBeginCapture(world.streams[r], cudaStreamCaptureModeThreadLocal),
                  cudaSuccess);
        EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(cudaStreamEndCapture(world.streams[r], &graph), cudaSuccess);
        EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
        dsc_comm_drop_plans(world.comms[r]);
        EXPECT_EQ(dscomm_comm_destroy(world.comms[r]), DSCOMM_ERR_BAD_STATE);
        for (int step = 1; step < 4; step++) {
            const Bytes input = make_input(c, r, step, false);

            sides.put(input);
            EXPECT_EQ(cudaGraphLaunch(exec, world.streams[r]), cudaSuccess);
            sides.expect_same_output(sides.host_call(input), step);
            sides.expect_same_residuals();
        }
        EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
        EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    });
}

} // namespace
