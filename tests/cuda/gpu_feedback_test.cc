/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Feedback objects in device memory behave as those in host memory, whoever ends their calls; and
 * the law of error feedback holds on the device.
 */
#include <gtest/gtest.h>

#include <cmath>

#include "cuda/gpu_case.h"

namespace {

std::vector<float> ramp(size_t n)
{
    std::vector<float> v(n);

    for (size_t i = 0; i < n; i++)
        v[i] = (float)i * 0.25f - 100.0f;
    return v;
}

void expect_equal(const dscomm_feedback_t *device, const dscomm_feedback_t *host)
{
    EXPECT_EQ(GpuSides::residual(device), GpuSides::residual(host));
}

class Types : public testing::TestWithParam<dscomm_residual_type_t> {};

TEST_P(Types, have_the_functions_of_the_host)
{
    constexpr size_t n = 5001;
    dscomm_feedback_config_t config = DSCOMM_FEEDBACK_CONFIG_INIT;
    dscomm_feedback_t *pair[2] = { nullptr, nullptr };
    std::vector<uint8_t> exported[2];
    const std::vector<float> values = ramp(n);
    const float bad = std::nanf("");

    config.type = GetParam();
    ASSERT_EQ(dscomm_feedback_create_cuda(n, &config, &pair[0]), DSCOMM_OK);
    ASSERT_EQ(dscomm_feedback_create(n, &config, &pair[1]), DSCOMM_OK);
    expect_equal(pair[0], pair[1]);
    for (int i = 0; i < 2; i++) {
        dscomm_feedback_t *const fb = pair[i];
        size_t written = 0;

        EXPECT_EQ(dscomm_feedback_rollback(fb), DSCOMM_ERR_BAD_STATE);
        EXPECT_EQ(dscomm_feedback_write(fb, 10, n - 20, values.data()), DSCOMM_OK);
        EXPECT_EQ(dscomm_feedback_write(fb, 0, 1, &bad), DSCOMM_ERR_INVALID);
        EXPECT_EQ(dscomm_feedback_write(fb, n, 1, values.data()), DSCOMM_ERR_INVALID);
        EXPECT_EQ(dscomm_feedback_scale(fb, 0.5f), DSCOMM_OK);
        exported[i].resize(dscomm_feedback_export_bytes(fb));
        EXPECT_EQ(dscomm_feedback_export(fb, exported[i].data(), exported[i].size(), &written),
                  DSCOMM_OK);
        EXPECT_EQ(written, exported[i].size());
    }
    EXPECT_EQ(exported[0], exported[1]);
    expect_equal(pair[0], pair[1]);
    EXPECT_EQ(dscomm_feedback_reset(pair[0]), DSCOMM_OK);
    EXPECT_EQ(GpuSides::residual(pair[0]), std::vector<float>(n, 0.0f));
    EXPECT_EQ(dscomm_feedback_import(pair[0], exported[1].data(), exported[1].size()), DSCOMM_OK);
    expect_equal(pair[0], pair[1]);
    exported[0].back() ^= 1;
    EXPECT_EQ(dscomm_feedback_import(pair[0], exported[0].data(), exported[0].size()),
              DSCOMM_ERR_CORRUPT);
    dscomm_feedback_destroy(pair[0]);
    dscomm_feedback_destroy(pair[1]);
}

INSTANTIATE_TEST_SUITE_P(both, Types, testing::Values(DSCOMM_RESIDUAL_FP32, DSCOMM_RESIDUAL_BF16));

TEST(Momentum, has_the_functions_of_the_host)
{
    constexpr size_t n = 3001;
    dscomm_feedback_config_t config = DSCOMM_FEEDBACK_CONFIG_INIT;
    dscomm_feedback_t *pair[2] = { nullptr, nullptr };
    std::vector<uint8_t> exported[2];
    const std::vector<float> values = ramp(n);

    config.momentum = 0.9f;
    ASSERT_EQ(dscomm_feedback_create_cuda(n, &config, &pair[0]), DSCOMM_OK) << dscomm_last_error();
    ASSERT_EQ(dscomm_feedback_create(n, &config, &pair[1]), DSCOMM_OK);
    for (int i = 0; i < 2; i++) {
        size_t written = 0;

        EXPECT_EQ(GpuSides::velocity(pair[i]), std::vector<float>(n, 0.0f));
        EXPECT_EQ(dscomm_feedback_write_momentum(pair[i], 7, n - 7, values.data()), DSCOMM_OK);
        EXPECT_EQ(dscomm_feedback_scale(pair[i], 0.5f), DSCOMM_OK);
        exported[i].resize(dscomm_feedback_export_bytes(pair[i]));
        EXPECT_EQ(dscomm_feedback_export(pair[i], exported[i].data(), exported[i].size(), &written),
                  DSCOMM_OK);
    }
    EXPECT_EQ(GpuSides::velocity(pair[0])[8], values[1] * 0.5f);
    EXPECT_EQ(exported[0], exported[1]);
    EXPECT_EQ(dscomm_feedback_reset(pair[0]), DSCOMM_OK);
    EXPECT_EQ(GpuSides::velocity(pair[0]), std::vector<float>(n, 0.0f));
    EXPECT_EQ(dscomm_feedback_import(pair[0], exported[1].data(), exported[1].size()), DSCOMM_OK);
    EXPECT_EQ(GpuSides::velocity(pair[0]), GpuSides::velocity(pair[1]));
    dscomm_feedback_destroy(pair[0]);
    dscomm_feedback_destroy(pair[1]);
}

/* A residual of zeros with momentum is not left to ncclAllReduce(), which knows no u. */
TEST(Momentum, is_there_from_the_first_call_on)
{
    dscomm_comm_config_t config = gpu_config();
    GpuCase c;

    config.exact_order = 0;
    c.spec = "none";
    c.momentum = 0.5f;
    const GpuWorld world(2, config);

    world.each([&](int r) {
        GpuSides sides(world, c, r);

        for (int step = 0; step < 3; step++) {
            const Bytes input = make_input(c, r, step, step == 1);

            sides.put(input);
            EXPECT_EQ(sides.call(), DSCOMM_OK);
            sides.expect_same_output(sides.host_call(input), step);
            sides.expect_same_residuals();
        }
    });
}

/* What an owner has sent and what overflows in the output's type keeps its u: 0.01, then 60000. */
TEST(Momentum, stays_where_the_output_is_not_finite)
{
    GpuCase c;

    c.spec = "topk:0.05";
    c.dtype = DSCOMM_FLOAT16;
    c.momentum = 0.9f;
    c.count = 20000; /* a two-shot */
    const GpuWorld world(2);

    world.each([&](int r) {
        GpuSides sides(world, c, r);

        for (int step = 0; step < 3; step++) {
            const uint16_t value = step == 1 ? 0x7b53 : 0x211f;
            Bytes input = make_input(c, r, step, false);

            for (size_t i : { 5, 19900 }) /* one per owner */
                std::memcpy(&input[i * 2], &value, 2);
            sides.put(input);
            EXPECT_EQ(sides.call(), DSCOMM_OK);
            sides.expect_same_output(sides.host_call(input), step);
            sides.expect_same_residuals();
            if (step == 1) {
                EXPECT_GT(GpuSides::velocity(sides.device_fb)[5], 0.0f);
                EXPECT_LT(GpuSides::velocity(sides.device_fb)[5], 0.011f);
            }
        }
        EXPECT_EQ(stats_of(world.comms[r]).nonfinite_elems, 2u);
    });
}

TEST(Rollback, undoes_one_call)
{
    GpuCase c;

    c.n_ranks = 2;
    c.count = 3000;
    const GpuWorld world(2);

    world.each([&](int r) {
        GpuSides sides(world, c, r);
        const Bytes input = make_input(c, r, 0, false);

        sides.put(input);
        EXPECT_EQ(sides.call(), DSCOMM_OK);
        world.sync(r);
        const std::vector<float> first = GpuSides::residual(sides.device_fb);

        EXPECT_EQ(sides.call(), DSCOMM_OK);
        world.sync(r);
        EXPECT_NE(GpuSides::residual(sides.device_fb), first);
        EXPECT_EQ(dscomm_feedback_rollback(sides.device_fb), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(GpuSides::residual(sides.device_fb), first);
        EXPECT_EQ(dscomm_feedback_rollback(sides.device_fb), DSCOMM_ERR_BAD_STATE) << "once";
        EXPECT_EQ(sides.call(), DSCOMM_OK);
        world.sync(r);
        EXPECT_EQ(dscomm_feedback_commit(sides.device_fb), DSCOMM_OK);
        EXPECT_EQ(dscomm_feedback_rollback(sides.device_fb), DSCOMM_ERR_BAD_STATE);
    });
}

/* A call that failed counts for nothing: neither for rollback nor for what comes after it. */
void fail_and_go_on(const char *spec)
{
    GpuCase c;

    c.spec = spec;
    c.momentum = 0.9f;
    c.count = 3000;
    const GpuWorld first(2), second(2);

    first.each([&](int r) {
        GpuSides old(first, c, r), fresh(first, c, r); /* the latter's first call fails */
        const Bytes input = make_input(c, r, 0, false);
        const auto again = [&](const GpuSides &sides) {
            EXPECT_EQ(dscomm_allreduce_compressed(sides.device_send(), sides.device_recv(), c.count,
                                                  c.dtype, c.op, dscomm_codec(c.spec.c_str()),
                                                  sides.device_fb, second.comms[r],
                                                  second.stream(r)),
                      DSCOMM_OK)
                << dscomm_last_error();
            second.sync(r);
        };

        old.put(input);
        fresh.put(input);
        EXPECT_EQ(old.call(), DSCOMM_OK);
        first.sync(r);
        const std::vector<float> residual = GpuSides::residual(old.device_fb),
                                 velocity = GpuSides::velocity(old.device_fb);

        if (r == 0) { /* rank 1 does not come */
            EXPECT_EQ(old.call(), DSCOMM_OK);
            EXPECT_EQ(fresh.call(), DSCOMM_OK);
            std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
        dscomm_comm_abort(first.comms[r]);
        for (int i = 0; i < 300 && dscomm_comm_async_error(first.comms[r], nullptr) >= 0; i++)
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
        cudaStreamSynchronize(first.streams[r]);
        EXPECT_EQ(GpuSides::residual(old.device_fb), residual);
        EXPECT_EQ(GpuSides::velocity(old.device_fb), velocity);
        if (r == 0) {
            EXPECT_EQ(dscomm_feedback_rollback(old.device_fb), DSCOMM_ERR_BAD_STATE);
        }
        again(old);
        EXPECT_NE(GpuSides::velocity(old.device_fb), velocity);
        EXPECT_EQ(dscomm_feedback_rollback(old.device_fb), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(GpuSides::residual(old.device_fb), residual);
        EXPECT_EQ(GpuSides::velocity(old.device_fb), velocity);
        again(fresh);
        fresh.host_call(input);
        fresh.expect_same_residuals();
    });
}

TEST(Rollback, goes_on_after_a_call_that_failed)
{
    for (const char *spec : { "topk:0.05", "int8" }) {
        SCOPED_TRACE(spec);
        fail_and_go_on(spec);
    }
}

/* A * sum of outputs + sum of residuals == sum of inputs, on data whose sums are exact. */
TEST(Law, holds_exactly_on_dyadic_data)
{
    for (dscomm_op_t op : { DSCOMM_SUM, DSCOMM_AVG }) {
        constexpr int n_ranks = 4, n_calls = 6;
        constexpr size_t n = 3000;
        GpuCase c;

        c.n_ranks = n_ranks;
        c.count = n;
        c.op = op;
        c.spec = "mxint8";
        const GpuWorld world(n_ranks);
        std::vector<std::vector<double>> balance(n_ranks, std::vector<double>(n));

        world.each([&](int r) {
            GpuSides sides(world, c, r);
            std::mt19937 random((uint32_t)r + 5u);

            for (int step = 0; step < n_calls; step++) {
                std::vector<float> x(n);
                Bytes input(n * 4);

                for (size_t i = 0; i < n; i++)
                    x[i] = (float)((int)(random() % 4096) - 2048) * 0.0078125f;
                std::memcpy(input.data(), x.data(), input.size());
                sides.put(input);
                EXPECT_EQ(sides.call(), DSCOMM_OK);
                const Bytes out = sides.output();

                for (size_t i = 0; i < n; i++) {
                    float o;

                    std::memcpy(&o, &out[i * 4], 4);
                    balance[r][i] += (double)x[i];
                    if (r == 0)
                        balance[r][i] -= (double)o * (op == DSCOMM_AVG ? n_ranks : 1);
                }
            }
            const std::vector<float> left = GpuSides::residual(sides.device_fb);

            for (size_t i = 0; i < n; i++)
                balance[r][i] -= (double)left[i];
        });
        for (size_t i = 0; i < n; i++) {
            double sum = 0;

            for (int r = 0; r < n_ranks; r++)
                sum += balance[r][i];
            ASSERT_EQ(sum, 0.0) << "element " << i << ", op " << op;
        }
    }
}

/* A NaN is seen by all ranks, counted alike, and forgotten by the next call. */
TEST(Nan, poisons_one_call)
{
    GpuCase c;

    c.n_ranks = 3;
    c.count = 4000;
    const GpuWorld world(3);
    std::vector<uint64_t> counted(3);

    world.each([&](int r) {
        GpuSides sides(world, c, r);
        Bytes input = make_input(c, r, 0, false);
        const float nan = std::nanf("");

        sides.put(input);
        EXPECT_EQ(sides.call(), DSCOMM_OK);
        world.sync(r);
        const std::vector<float> before = GpuSides::residual(sides.device_fb);

        if (r == 1)
            std::memcpy(&input[777 * 4], &nan, 4);
        sides.put(input);
        EXPECT_EQ(sides.call(), DSCOMM_OK);
        const Bytes out = sides.output();
        const std::vector<float> after = GpuSides::residual(sides.device_fb);
        float at;

        std::memcpy(&at, &out[777 * 4], 4);
        EXPECT_TRUE(std::isnan(at));
        EXPECT_EQ(after[777], before[777]);
        for (float x : after)
            EXPECT_TRUE(std::isfinite(x));
        counted[r] = stats_of(world.comms[r]).nonfinite_elems;
        sides.put(make_input(c, r, 1, false));
        EXPECT_EQ(sides.call(), DSCOMM_OK);
        world.sync(r);
        EXPECT_EQ(stats_of(world.comms[r]).nonfinite_elems, counted[r]) << "clean again";
    });
    EXPECT_GT(counted[0], 0u);
    EXPECT_EQ(counted[0], counted[1]);
    EXPECT_EQ(counted[0], counted[2]);
}

} // namespace
