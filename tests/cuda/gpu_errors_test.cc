/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong on CUDA communicators: arguments, ranks that disagree, ranks that are gone.
 */
#include <gtest/gtest.h>

#include "cuda/gpu_case.h"

namespace {

bool last_error_says(const std::string &text)
{
    return std::string(dscomm_last_error()).find(text) != std::string::npos;
}

GpuCase plain_case(int n_ranks)
{
    GpuCase c;

    c.n_ranks = n_ranks;
    c.count = 5000;
    c.feedback = false;
    return c;
}

TEST(Arguments, are_checked_before_anything_is_touched)
{
    const GpuWorld world(2);
    const GpuCase c = plain_case(2);

    world.each([&](int r) {
        GpuSides sides(world, c, r);
        std::vector<float> host(c.count);
        dscomm_feedback_t *fb = nullptr;
        const dscomm_codec_t *int8 = dscomm_codec("int8");
        auto *const send = (float *)sides.device_send(), *const recv = (float *)sides.device_recv();
        const auto call = [&](const void *from, void *to, dscomm_feedback_t *feedback) {
            return dscomm_allreduce_compressed(from, to, c.count, DSCOMM_FLOAT32, DSCOMM_SUM, int8,
                                               feedback, world.comms[r], world.stream(r));
        };

        EXPECT_EQ(call(host.data(), recv, nullptr), DSCOMM_ERR_INVALID);
        EXPECT_TRUE(last_error_says("send") && last_error_says("host memory"))
            << dscomm_last_error();
        EXPECT_EQ(call(send, host.data(), nullptr), DSCOMM_ERR_INVALID);
        EXPECT_TRUE(last_error_says("recv") && last_error_says("host memory"));
        EXPECT_EQ(dscomm_feedback_create(c.count, nullptr, &fb), DSCOMM_OK);
        EXPECT_EQ(call(send, recv, fb), DSCOMM_ERR_INVALID);
        EXPECT_TRUE(last_error_says("dscomm_feedback_create_cuda()")) << dscomm_last_error();
        dscomm_feedback_destroy(fb);
        EXPECT_EQ(dscomm_feedback_create_cuda(c.count, nullptr, &fb), DSCOMM_OK);
        EXPECT_EQ(dscomm_allreduce_compressed(host.data(), host.data(), c.count, DSCOMM_FLOAT32,
                                              DSCOMM_SUM, int8, fb, world.host->comms[r], nullptr),
                  DSCOMM_ERR_INVALID);
        EXPECT_TRUE(last_error_says("cuda memory")) << dscomm_last_error();
        dscomm_feedback_destroy(fb);
        EXPECT_EQ(call(send + 1, send, nullptr), DSCOMM_ERR_INVALID) << "overlap";
        EXPECT_EQ(cudaSetDevice(1 - r), cudaSuccess);
        EXPECT_EQ(call(send, recv, nullptr), DSCOMM_ERR_INVALID);
        EXPECT_TRUE(last_error_says("current device")) << dscomm_last_error();
        EXPECT_EQ(cudaSetDevice(r), cudaSuccess);
        EXPECT_EQ(sides.call(), DSCOMM_OK) << "still usable: " << dscomm_last_error();
        world.sync(r);
        EXPECT_EQ(stats_of(world.comms[r]).calls, 1u);
    });
}

TEST(Arguments, of_creation)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
    dscomm_comm_t *comm = nullptr;
    ncclUniqueId id;
    ncclComm_t nccl;

    EXPECT_EQ(dscomm_comm_create_nccl(nullptr, nullptr, &comm), DSCOMM_ERR_INVALID);
    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    ASSERT_EQ(ncclCommInitRank(&nccl, 1, id, 0), ncclSuccess);
    EXPECT_EQ(dscomm_comm_create_nccl(nccl, nullptr, nullptr), DSCOMM_ERR_INVALID);
    config.exact_order = 2;
    EXPECT_EQ(dscomm_comm_create_nccl(nccl, &config, &comm), DSCOMM_ERR_INVALID);
    EXPECT_TRUE(last_error_says("exact_order 2"));
    EXPECT_EQ(ncclCommDestroy(nccl), ncclSuccess);
}

/* All ranks tell the same: the field and both values. */
TEST(Mismatch, of_settings)
{
    const GpuWorld world(3, gpu_config(), [](int r, dscomm_comm_config_t *config) {
        config->chunk_bytes = r == 2 ? 4096 : 8192;
    });

    for (int r = 0; r < 3; r++) {
        EXPECT_EQ(world.status[r], DSCOMM_ERR_MISMATCH);
        EXPECT_EQ(world.error[r],
                  "ranks disagree on chunk_bytes: rank 0 has 8192, rank 2 has 4096");
    }
}

TEST(Mismatch, of_calls)
{
    const GpuWorld world(3);
    std::vector<std::string> errors(3);

    world.each([&](int r) {
        GpuCase c = plain_case(3);

        c.count = r == 1 ? 4998 : 5000;
        c.op = r == 1 ? DSCOMM_AVG : DSCOMM_SUM;
        GpuSides sides(world, c, r);

        EXPECT_EQ(sides.call(), DSCOMM_ERR_MISMATCH);
        errors[r] = dscomm_last_error();
        EXPECT_EQ(sides.call(), DSCOMM_ERR_BAD_STATE);
        EXPECT_TRUE(last_error_says("disagree on count"));
    });
    for (int r = 0; r < 3; r++) {
        EXPECT_NE(errors[r].find("count: rank 0 has 5000, rank 1 has 4998"), std::string::npos)
            << errors[r];
        EXPECT_NE(errors[r].find("op: rank 0 has sum, rank 1 has avg"), std::string::npos);
    }
}

/* A rank that never comes to its call: the others say so, and where they were, within the deadline.
 */
TEST(Deadline, of_a_call)
{
    dscomm_comm_config_t config = gpu_config();
    GpuCase c = plain_case(3);

    c.feedback = true;
    config.timeout_ms = 1500;
    const GpuWorld world(3, config);

    world.each([&](int r) {
        GpuSides sides(world, c, r);
        const char *text = nullptr;
        dscomm_status_t st = DSCOMM_OK;

        sides.put(make_input(c, r, 0, false));
        EXPECT_EQ(sides.call(), DSCOMM_OK);
        world.sync(r);
        const std::vector<float> before = GpuSides::residual(sides.device_fb);

        if (r == 2) { /* gone, as far as the others can see */
            std::this_thread::sleep_for(std::chrono::milliseconds(4000));
            dscomm_comm_abort(world.comms[r]);
        } else {
            EXPECT_EQ(sides.call(), DSCOMM_OK) << "it is enqueued";
            cudaStreamSynchronize(world.streams[r]);
        }
        for (int tries = 0; st == DSCOMM_OK && tries < 400; tries++) {
            st = dscomm_comm_async_error(world.comms[r], &text);
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        ASSERT_LT(st, 0);
        if (r == 2)
            return;
        const std::string all = text;

        /* the first whose deadline passes; the others may hear of its abort before */
        EXPECT_TRUE(st == DSCOMM_ERR_TIMEOUT || st == DSCOMM_ERR_PEER_LOST) << all;
        EXPECT_NE(all.find("rank " + std::to_string(r)), std::string::npos) << all;
        if (st == DSCOMM_ERR_TIMEOUT) {
            EXPECT_NE(all.find("no progress for "), std::string::npos) << all;
            EXPECT_NE(all.find("step 3 of"), std::string::npos) << all;
            EXPECT_NE(all.find("ENCODE, exchanging with rank"), std::string::npos) << all;
        }
        EXPECT_EQ(sides.call(), DSCOMM_ERR_BAD_STATE);
        EXPECT_EQ(GpuSides::residual(sides.device_fb), before) << "an aborted call does not end";
        EXPECT_EQ(dscomm_feedback_rollback(sides.device_fb), DSCOMM_ERR_BAD_STATE);
        EXPECT_EQ(stats_of(world.comms[r]).calls, 1u);
    });
}

/* Calls in place that fail, enqueued or in a graph of the caller: both, as they run one by one. */
void fail_in_place(bool preserves, bool captures)
{
    dscomm_comm_config_t config = gpu_config();
    GpuCase c = plain_case(2);

    c.feedback = true;
    c.in_place = true;
    c.shift = 1;
    config.timeout_ms = 800;
    config.preserve_input = preserves;
    const GpuWorld world(2, config);

    world.each([&](int r) {
        GpuSides sides(world, c, r);
        const Bytes input = make_input(c, r, 1, false);
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;

        sides.put(make_input(c, r, 0, false));
        EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
        sides.expect_same_output(sides.host_call(make_input(c, r, 0, false)), 0);
        sides.put(input);
        world.sync(r);
        if (r == 1) { /* does not come */
            std::this_thread::sleep_for(std::chrono::milliseconds(2000));
            dscomm_comm_abort(world.comms[r]);
            for (int i = 0; i < 300 && dscomm_comm_async_error(world.comms[r], nullptr) >= 0; i++)
                std::this_thread::sleep_for(std::chrono::milliseconds(10));
            return;
        }
        if (captures)
            EXPECT_EQ(cudaStreamBeginCapture(world.streams[r], cudaStreamCaptureModeThreadLocal),
                      cudaSuccess);
        EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
        if (captures) {
            EXPECT_EQ(cudaStreamEndCapture(world.streams[r], &graph), cudaSuccess);
            EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
            EXPECT_EQ(cudaGraphLaunch(exec, world.streams[r]), cudaSuccess);
        }
        cudaStreamSynchronize(world.streams[r]);
        EXPECT_LT(dscomm_comm_async_error(world.comms[r], nullptr), 0);
        EXPECT_EQ(sides.output() == input, preserves);
        if (captures) {
            cudaGraphExecDestroy(exec);
            cudaGraphDestroy(graph);
        }
    });
}

TEST(PreserveInput, gives_back_what_a_failed_call_has_overwritten)
{
    for (bool preserves : { true, false })
        for (bool captures : { false, true })
            fail_in_place(preserves, captures);
}

/* A rank never joins: the others do not wait for ever, and leave nothing behind that does. */
TEST(Deadline, of_creation)
{
    ncclUniqueId id;
    std::vector<std::thread> threads;

    ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    for (int r = 0; r < 2; r++)
        threads.emplace_back([&id, r] {
            dscomm_comm_config_t config = gpu_config();
            dscomm_comm_t *comm = nullptr;
            ncclComm_t nccl;

            config.timeout_ms = 500;
            EXPECT_EQ(cudaSetDevice(r), cudaSuccess);
            EXPECT_EQ(ncclCommInitRank(&nccl, 2, id, r), ncclSuccess);
            if (r == 1) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1500));
                ncclCommAbort(nccl);
                return;
            }
            EXPECT_EQ(dscomm_comm_create_nccl(nccl, &config, &comm), DSCOMM_ERR_TIMEOUT);
            EXPECT_TRUE(last_error_says("rank 0 has waited ")) << dscomm_last_error();
        });
    for (auto &t : threads)
        t.join();
}

/* NCCL's handle goes away under the thread that makes plans. */
TEST(Abort, while_plans_are_made)
{
    for (int round = 0; round < 12; round++) {
        dscomm_comm_config_t config = gpu_config();

        config.timeout_ms = 300; /* NCCL tells nobody of an abort: the other rank waits so long */
        const GpuWorld world(2, config);

        world.each([&](int r) {
            const dscomm_plan_t *plan = nullptr;
            dscomm_status_t st = DSCOMM_OK;
            std::thread aborter([&] {
                std::this_thread::sleep_for(std::chrono::microseconds(1300 * (round + 1)));
                if (r == round % 2)
                    dscomm_comm_abort(world.comms[r]);
            });

            for (size_t n = 1; st == DSCOMM_OK && n < 200; n++)
                st = dscomm_plan_create(world.comms[r], 64 * n, DSCOMM_FLOAT32, DSCOMM_SUM,
                                        dscomm_codec("int8"), 0, &plan);
            EXPECT_LT(st, 0);
            aborter.join();
        });
    }
}

TEST(Abort, ends_a_call)
{
    const GpuCase c = plain_case(2);
    const GpuWorld world(2);

    world.each([&](int r) {
        GpuSides sides(world, c, r);
        dscomm_status_t st = DSCOMM_OK;

        EXPECT_EQ(sides.call(), DSCOMM_OK);
        world.sync(r);
        if (r == 0) {
            EXPECT_EQ(sides.call(), DSCOMM_OK); /* rank 1 does not come */
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        }
        EXPECT_EQ(dscomm_comm_abort(world.comms[r]), DSCOMM_OK);
        cudaStreamSynchronize(world.streams[r]);
        for (int tries = 0; st == DSCOMM_OK && tries < 300; tries++) {
            st = dscomm_comm_async_error(world.comms[r], nullptr);
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        }
        EXPECT_TRUE(st == DSCOMM_ERR_ABORTED || st == DSCOMM_ERR_PEER_LOST);
        EXPECT_EQ(sides.call(), DSCOMM_ERR_BAD_STATE);
    });
}

} // namespace
