/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA communicators made by splitting: who is in which, that calls on them have the bits of host
 * communicators split alike, and that each lives by itself.
 */
#include <gtest/gtest.h>

#include "cuda/gpu_case.h"
#include "support/internal_begin.h"
#include "comm/comm.h"
#include "support/internal_end.h"

namespace {

/* A rank's parts of both communicators. */
struct Parts {
    dscomm_comm_t *gpu = nullptr, *host = nullptr;

    Parts(const GpuWorld &world, int r, int color, int key)
    {
        EXPECT_EQ(dscomm_comm_split(world.comms[r], color, key, nullptr, &gpu), DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_EQ(dscomm_comm_split(world.host->comms[r], color, key, nullptr, &host), DSCOMM_OK)
            << dscomm_last_error();
    }
    ~Parts()
    {
        EXPECT_EQ(dscomm_comm_destroy(gpu), DSCOMM_OK) << dscomm_last_error();
        dscomm_comm_destroy(host);
    }
    Parts(const Parts &) = delete;
};

void expect_same_calls(const GpuSides &sides, const Parts &parts)
{
    const GpuCase &c = sides.c;
    const dscomm_codec_t *const codec = dscomm_codec(c.spec.c_str());

    for (int step = 0; step < 3; step++) {
        const Bytes input = make_input(c, sides.rank, step, step == 1);
        Bytes on_host(input.size());

        sides.put(input);
        EXPECT_EQ(dscomm_allreduce_compressed(sides.device_send(), sides.device_recv(), c.count,
                                              c.dtype, c.op, codec, sides.device_fb, parts.gpu,
                                              sides.world.stream(sides.rank)),
                  DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_EQ(dscomm_allreduce_compressed(input.data(), on_host.data(), c.count, c.dtype, c.op,
                                              codec, sides.host_fb, parts.host, nullptr),
                  DSCOMM_OK)
            << dscomm_last_error();
        sides.expect_same_output(on_host, step);
        sides.expect_same_residuals();
    }
}

/* Rank 4 is in none; the others by parity, in falling order. */
TEST(Split, by_color_and_key)
{
    const GpuWorld world(6);
    GpuCase c;

    c.count = 5000;
    world.each([&](int r) {
        GpuSides in_part(world, c, r), in_all(world, c, r);
        const Bytes input = make_input(c, r, 7, false);
        {
            Parts parts(world, r, r == 4 ? -1 : r % 2, -r);

            if (r == 4) {
                EXPECT_EQ(parts.gpu, nullptr);
            } else {
                EXPECT_EQ(dscomm_comm_n_ranks(parts.gpu), dscomm_comm_n_ranks(parts.host));
                EXPECT_EQ(dscomm_comm_rank(parts.gpu), dscomm_comm_rank(parts.host));
                expect_same_calls(in_part, parts);
            }
        }
        in_all.put(input);
        EXPECT_EQ(in_all.call(), DSCOMM_OK) << "the old one works on: " << dscomm_last_error();
        in_all.expect_same_output(in_all.host_call(input), 0);
    });
}

TEST(Split, can_be_split_and_captured)
{
    const GpuWorld world(4);
    GpuCase c;

    c.count = 5000;
    world.each([&](int r) {
        GpuSides sides(world, c, r);
        const Parts half(world, r, r / 2, 0);
        dscomm_comm_t *one = nullptr;
        const dscomm_plan_t *plan = nullptr;
        const Bytes input = make_input(c, r, 0, false);
        Bytes on_host(input.size());
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;

        EXPECT_EQ(dscomm_comm_split(half.gpu, r, 0, nullptr, &one), DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_EQ(dscomm_comm_n_ranks(one), 1);
        EXPECT_EQ(dscomm_comm_destroy(one), DSCOMM_OK);
        EXPECT_EQ(
            dscomm_plan_create(half.gpu, c.count, c.dtype, c.op, dscomm_codec("int8"), 1, &plan),
            DSCOMM_OK);
        sides.put(input);
        EXPECT_EQ(cudaStreamBeginCapture(world.streams[r], cudaStreamCaptureModeThreadLocal),
                  cudaSuccess);
        EXPECT_EQ(dscomm_allreduce_compressed(sides.device_send(), sides.device_recv(), c.count,
                                              c.dtype, c.op, dscomm_codec("int8"), sides.device_fb,
                                              half.gpu, world.stream(r)),
                  DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_EQ(cudaStreamEndCapture(world.streams[r], &graph), cudaSuccess);
        EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
        EXPECT_EQ(cudaGraphLaunch(exec, world.streams[r]), cudaSuccess);
        EXPECT_EQ(dscomm_allreduce_compressed(input.data(), on_host.data(), c.count, c.dtype, c.op,
                                              dscomm_codec("int8"), sides.host_fb, half.host,
                                              nullptr),
                  DSCOMM_OK);
        sides.expect_same_output(on_host, 0);
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    });
}

/* Tiers that were given hold for a part, by the places that its ranks have there. */
TEST(Split, keeps_the_tiers_that_were_given)
{
    const GpuWorld world(6);
    GpuCase c;

    c.count = 5000;
    world.each([&](int r) {
        for (dscomm_comm_t *comm : { world.comms[r], world.host->comms[r] })
            EXPECT_EQ(dsc_comm_set_tiers(comm, nullptr, "0-1|2-3|4-5/0-3|4-5"), DSCOMM_OK);
        GpuSides sides(world, c, r);
        const Parts parts(world, r, r == 0 ? 1 : 0, -r);

        EXPECT_STREQ(dscomm_comm_tiers(parts.gpu), dscomm_comm_tiers(parts.host));
        EXPECT_STREQ(dscomm_comm_tiers(parts.gpu), r == 0 ? "0" : "0-1|2-3|4/0-1|2-4/0-4");
        for (dscomm_comm_t *comm : { parts.gpu, parts.host })
            comm->algorithm = DSC_ALG_TIERED;
        expect_same_calls(sides, parts);
    });
}

/* A part that fails leaves the whole alone. */
TEST(Split, fails_alone)
{
    const GpuWorld world(2);
    GpuCase c;

    world.each([&](int r) {
        GpuSides sides(world, c, r);
        const Bytes input = make_input(c, r, 0, false);
        dscomm_comm_t *part = nullptr;

        EXPECT_EQ(dscomm_comm_split(world.comms[r], 0, 0, nullptr, &part), DSCOMM_OK);
        EXPECT_EQ(dscomm_comm_abort(part), DSCOMM_OK);
        for (int i = 0; i < 300 && dscomm_comm_async_error(part, nullptr) == DSCOMM_OK; i++)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        EXPECT_LT(dscomm_comm_async_error(part, nullptr), 0);
        sides.put(input);
        EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
        sides.expect_same_output(sides.host_call(input), 0);
        EXPECT_EQ(dscomm_comm_destroy(part), DSCOMM_OK);
    });
}

TEST(Split, checks_its_arguments)
{
    const GpuWorld world(1);

    world.each([&](int r) {
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
        dscomm_comm_t *part = nullptr;

        config.exact_order = 2;
        EXPECT_EQ(dscomm_comm_split(world.comms[r], 0, 0, nullptr, nullptr), DSCOMM_ERR_INVALID);
        EXPECT_EQ(dscomm_comm_split(world.comms[r], 0, 0, &config, &part), DSCOMM_ERR_INVALID);
        EXPECT_EQ(dscomm_group_start(), DSCOMM_OK);
        EXPECT_EQ(dscomm_comm_split(world.comms[r], 0, 0, nullptr, &part), DSCOMM_ERR_BAD_STATE);
        EXPECT_EQ(dscomm_group_end(), DSCOMM_OK);
        EXPECT_EQ(part, nullptr);
    });
}

/* NCCL refuses a rank that captures; the others wait inside of it, and the watchdog ends that. */
TEST(Split, that_a_rank_cannot_join_ends_at_the_deadline)
{
    dscomm_comm_config_t config = gpu_config();

    config.timeout_ms = 1000;
    const GpuWorld world(2, config);

    world.each([&](int r) {
        dscomm_comm_t *part = nullptr;
        cudaGraph_t graph = nullptr;

        if (r == 1)
            EXPECT_EQ(cudaStreamBeginCapture(world.streams[r], cudaStreamCaptureModeThreadLocal),
                      cudaSuccess);
        EXPECT_LT(dscomm_comm_split(world.comms[r], 0, 0, nullptr, &part), 0);
        EXPECT_EQ(part, nullptr);
        if (r == 1) {
            EXPECT_NE(cudaStreamEndCapture(world.streams[r], &graph), cudaSuccess);
            EXPECT_EQ(graph, nullptr);
            return;
        }
        const char *text = "";

        EXPECT_EQ(dscomm_comm_async_error(world.comms[r], &text), DSCOMM_ERR_TIMEOUT);
        EXPECT_NE(std::string(text).find("inside of NCCL"), std::string::npos) << text;
    });
}

} // namespace
