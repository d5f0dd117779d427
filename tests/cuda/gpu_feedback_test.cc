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

TEST(Momentum, is_for_host_memory)
{
    dscomm_feedback_config_t config = DSCOMM_FEEDBACK_CONFIG_INIT;
    dscomm_feedback_t *fb = nullptr;

    config.momentum = 0.9f;
    EXPECT_EQ(dscomm_feedback_create_cuda(10, &config, &fb), DSCOMM_ERR_UNSUPPORTED);
    EXPECT_NE(std::string(dscomm_last_error()).find("momentum 0.9"), std::string::npos);
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
