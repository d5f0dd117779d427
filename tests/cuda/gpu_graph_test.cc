/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA graphs: the library's own, which a call replays, and the caller's, which calls are captured
 * into. Replays have the bits of calls, draw new random numbers, count, and do nothing that a
 * replay must not do.
 */
#include <gtest/gtest.h>

#include <atomic>

#include "cuda/gpu_case.h"
#include "emu/emu_api.h"

namespace {

constexpr int kRanks = 3;

GpuCase small_case(const char *spec = "int8", bool feedback = true)
{
    GpuCase c;

    c.spec = spec;
    c.n_ranks = kRanks;
    c.count = 9000;
    c.feedback = feedback;
    return c;
}

/* The tests also run with DSCOMM_CUDA_GRAPHS=0. */
bool has_own_graphs()
{
    const char *const text = getenv("DSCOMM_CUDA_GRAPHS");

    return text == nullptr || text[0] != '0';
}

const dscomm_plan_t *make_plan(const GpuWorld &world, const GpuCase &c, int r)
{
    const dscomm_plan_t *plan = nullptr;

    EXPECT_EQ(dscomm_plan_create(world.comms[r], c.count, c.dtype, c.op,
                                 dscomm_codec(c.spec.c_str()), c.feedback, &plan),
              DSCOMM_OK)
        << dscomm_last_error();
    return plan;
}

/* A graph of the caller with n calls in it. */
struct UserGraph {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;

    UserGraph(const GpuSides &sides, int n_calls)
    {
        const cudaStream_t stream = sides.world.streams[sides.rank];

        EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        for (int i = 0; i < n_calls; i++)
            EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    }
    ~UserGraph()
    {
        if (exec != nullptr)
            cudaGraphExecDestroy(exec);
        if (graph != nullptr)
            cudaGraphDestroy(graph);
    }
    UserGraph(const UserGraph &) = delete;
};

TEST(UserGraphs, three_launches_are_three_calls)
{
    for (const char *spec : { "int8", "int4", "fp16", "none", "topk:0.05,position,reuse" }) {
        GpuCase c = small_case(spec);

        c.momentum = strncmp(spec, "int", 3) == 0 ? 0.0f : 0.9f;
        const GpuWorld world(kRanks);

        world.each([&](int r) {
            GpuSides sides(world, c, r);

            make_plan(world, c, r);
            UserGraph user(sides, 1);
            for (int step = 0; step < 3; step++) {
                const Bytes input = make_input(c, r, step, step == 1);

                sides.put(input);
                EXPECT_EQ(cudaGraphLaunch(user.exec, world.streams[r]), cudaSuccess);
                sides.expect_same_output(sides.host_call(input), step);
                sides.expect_same_residuals();
            }
            EXPECT_EQ(stats_of(world.comms[r]).calls, 3u);
            EXPECT_EQ(stats_of(world.comms[r]).nonfinite_elems,
                      stats_of(world.host->comms[r]).nonfinite_elems);
            EXPECT_EQ(stats_of(world.comms[r]).payload_tx_bytes,
                      stats_of(world.host->comms[r]).payload_tx_bytes);
        });
    }
}

/* Stochastic rounding draws by the number of the call, which replays advance. */
TEST(UserGraphs, replays_draw_new_numbers)
{
    const GpuCase c = small_case("int8,sr", false);
    const GpuWorld world(kRanks);

    world.each([&](int r) {
        GpuSides sides(world, c, r);
        const Bytes input = make_input(c, r, 0, false);
        Bytes first;

        make_plan(world, c, r);
        UserGraph user(sides, 1);
        for (int step = 0; step < 3; step++) {
            sides.put(input);
            EXPECT_EQ(cudaGraphLaunch(user.exec, world.streams[r]), cudaSuccess);
            const Bytes out = sides.output();

            EXPECT_EQ(out, sides.host_call(input)) << "launch " << step;
            EXPECT_TRUE(step == 0 || out != first);
            first = step == 0 ? out : first;
        }
    });
}

/* Two calls in one graph, and calls of the host between its launches. */
TEST(UserGraphs, mix_with_calls_of_the_host)
{
    const GpuCase c = small_case();
    const GpuWorld world(kRanks);

    world.each([&](int r) {
        GpuSides sides(world, c, r);
        const Bytes input = make_input(c, r, 0, false);

        make_plan(world, c, r);
        UserGraph user(sides, 2);
        sides.put(input);
        for (int step = 0; step < 3; step++) {
            EXPECT_EQ(cudaGraphLaunch(user.exec, world.streams[r]), cudaSuccess);
            sides.host_call(input);
            sides.expect_same_output(sides.host_call(input), step);
            EXPECT_EQ(sides.call(), DSCOMM_OK);
            sides.expect_same_output(sides.host_call(input), step);
            sides.expect_same_residuals();
        }
        EXPECT_EQ(stats_of(world.comms[r]).calls, 9u);
    });
}

TEST(UserGraphs, need_a_plan)
{
    const GpuCase c = small_case();
    const GpuWorld world(kRanks);

    world.each([&](int r) {
        GpuSides sides(world, c, r);
        cudaGraph_t graph = nullptr;

        EXPECT_EQ(cudaStreamBeginCapture(world.streams[r], cudaStreamCaptureModeThreadLocal),
                  cudaSuccess);
        EXPECT_EQ(sides.call(), DSCOMM_ERR_BAD_STATE);
        EXPECT_NE(std::string(dscomm_last_error()).find("dscomm_plan_create()"), std::string::npos)
            << dscomm_last_error();
        EXPECT_EQ(cudaStreamEndCapture(world.streams[r], &graph), cudaSuccess);
        cudaGraphDestroy(graph);
        EXPECT_EQ(sides.call(), DSCOMM_OK) << "the communicator stays usable";
        world.sync(r);
    });
}

TEST(UserGraphs, hold_their_communicator)
{
    const GpuCase c = small_case();
    const GpuWorld world(kRanks);

    world.each([&](int r) {
        GpuSides sides(world, c, r);

        make_plan(world, c, r);
        {
            UserGraph user(sides, 1);

            EXPECT_EQ(dscomm_comm_destroy(world.comms[r]), DSCOMM_ERR_BAD_STATE);
            EXPECT_NE(std::string(dscomm_last_error()).find("graphs"), std::string::npos);
            sides.put(make_input(c, r, 0, false));
            EXPECT_EQ(cudaGraphLaunch(user.exec, world.streams[r]), cudaSuccess) << "still usable";
            world.sync(r);
        }
    }); /* and the world ends, graphs gone */
}

TEST(OwnGraphs, are_replayed_and_updated)
{
    const GpuCase c = small_case();
    const GpuWorld world(kRanks);

    world.each([&](int r) {
        GpuSides a(world, c, r), b(world, c, r);

        for (int i = 0; i < 3; i++)
            EXPECT_EQ(a.call(), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(b.call(), DSCOMM_OK);
        EXPECT_EQ(b.call(), DSCOMM_OK);
        EXPECT_EQ(a.call(), DSCOMM_OK);
        world.sync(r);
        const dscomm_stats_t stats = stats_of(world.comms[r]);
        const bool graphs = has_own_graphs();

        EXPECT_EQ(stats.graph_misses, graphs ? 1u : 0u);
        EXPECT_EQ(stats.graph_updates, graphs ? 3u : 0u);
        EXPECT_EQ(stats.graph_hits, graphs ? 3u : 0u);
        EXPECT_EQ(stats.plans, 1u);
        EXPECT_EQ(stats.calls, 6u);
    });
}

/* After the first call nothing is allocated, made or waited for, whichever way a call runs. */
TEST(Replay, does_nothing_that_it_must_not)
{
    const EmuApi emu;
    const GpuCase c = small_case();
    const GpuWorld world(kRanks);
    std::atomic<int> ready{ 0 }, done{ 0 };
    EmuCounts before, after;

    if (emu.forbid == nullptr)
        GTEST_SKIP() << "needs the emulator";
    world.each([&](int r) {
        GpuSides sides(world, c, r);

        EXPECT_EQ(sides.call(), DSCOMM_OK);
        UserGraph user(sides, 1);
        world.sync(r);
        if (++ready == kRanks) {
            emu.counts(&before);
            emu.forbid(EMU_ALLOCATE | EMU_SYNCHRONIZE | EMU_CREATE);
            ready++;
        }
        while (ready != kRanks + 1)
            std::this_thread::yield();
        for (int i = 0; i < 3; i++) {
            EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
            EXPECT_EQ(cudaGraphLaunch(user.exec, world.streams[r]), cudaSuccess);
        }
        if (++done == kRanks) {
            emu.forbid(0);
            emu.counts(&after);
            done++;
        }
        while (done != kRanks + 1)
            std::this_thread::yield();
        world.sync(r);
        EXPECT_EQ(stats_of(world.comms[r]).calls, 7u);
    });
    EXPECT_EQ(after.allocations, before.allocations);
    EXPECT_EQ(after.synchronizations, before.synchronizations);
    EXPECT_EQ(after.creations, before.creations);
    EXPECT_EQ(after.forbidden_calls, 0u);
}

/* What one rank enqueues and the others replay does not fit: NCCL's rule, and nobody hangs. */
TEST(Replay, of_some_ranks_alone_is_noticed)
{
    dscomm_comm_config_t config = gpu_config();
    const GpuCase c = small_case();

    config.timeout_ms = 3000;
    const GpuWorld world(kRanks, config);
    std::atomic<int> n_failed{ 0 };

    world.each([&](int r) {
        GpuSides sides(world, c, r);
        int tries = 0;

        make_plan(world, c, r);
        if (r == 0) {
            UserGraph user(sides, 1);

            EXPECT_EQ(cudaGraphLaunch(user.exec, world.streams[r]), cudaSuccess);
            cudaStreamSynchronize(world.streams[r]);
        } else if (has_own_graphs()) {
            const dscomm_plan_t *plan = nullptr;

            /* a plan is made, by an exchange that is not captured */
            EXPECT_LT(dscomm_plan_create(world.comms[r], c.count + 1, c.dtype, c.op,
                                         dscomm_codec("int8"), 1, &plan),
                      0);
        } else {
            EXPECT_EQ(sides.call(), DSCOMM_OK) << "it is enqueued";
            cudaStreamSynchronize(world.streams[r]);
        }
        while (dscomm_comm_async_error(world.comms[r], nullptr) == DSCOMM_OK && ++tries < 600)
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        n_failed += dscomm_comm_async_error(world.comms[r], nullptr) < 0;
    });
    EXPECT_EQ(n_failed, kRanks);
}

} // namespace
