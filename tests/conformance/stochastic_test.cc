/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stochastic rounding: right on average, and the same numbers in every replay. That they are the
 * documented ones is model_test.cc's matter.
 */
#include "conformance/field_support.h"

namespace {

constexpr size_t kCount = 20011;

std::vector<Floats> normal_rows(int n_ranks, size_t count)
{
    std::vector<Floats> rows((size_t)n_ranks, Floats(count));
    uint32_t state = 1;

    for (auto &row : rows) {
        for (float &x : row) {
            x = 0.0f;
            for (int i = 0; i < 12; i++) /* a sum of uniform numbers */
                x += (float)((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-24f - 0.5f;
        }
    }
    return rows;
}

/* Outputs of rank 0, call by call, with the same input. */
std::vector<Floats> outputs_of(const World &w, const char *codec, size_t count, int n_calls)
{
    std::vector<std::vector<Floats>> outputs;
    std::vector<Floats> first;

    run(w, { DSCOMM_FLOAT32, DSCOMM_AVG, codec, false },
        std::vector<std::vector<Floats>>((size_t)n_calls, normal_rows(w.n, count)), &outputs);
    for (const auto &call : outputs)
        first.push_back(call[0]);
    return first;
}

TEST(Stochastic, FeedbackIsRefused)
{
    World w(1);
    dscomm_feedback_t *fb = nullptr;
    float x[4] = { 1, 2, 3, 4 };

    ASSERT_EQ(dscomm_feedback_create(4, nullptr, &fb), DSCOMM_OK);
    EXPECT_EQ(dscomm_allreduce_compressed(x, x, 4, DSCOMM_FLOAT32, DSCOMM_SUM,
                                          dscomm_codec("int8,sr"), fb, w.comms[0], nullptr),
              DSCOMM_ERR_INVALID);
    const std::string text = dscomm_last_error();
    EXPECT_NE(text.find("codec int8,sr with a feedback object"), std::string::npos) << text;
    EXPECT_NE(text.find("leave out ,sr or pass NULL"), std::string::npos) << text;
    EXPECT_EQ(dscomm_allreduce_compressed(x, x, 4, DSCOMM_FLOAT32, DSCOMM_SUM,
                                          dscomm_codec("int8,sr"), nullptr, w.comms[0], nullptr),
              DSCOMM_OK);
    dscomm_feedback_destroy(fb);
}

/* The same number of call: the same bits, whatever carries, cuts and computes. */
TEST(Stochastic, ReplayGivesTheSameBits)
{
    for (const char *codec : { "int8,sr", "int4,sr", "int4:block=32,sr" }) {
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
        World first(4, "loopback", config);
        const auto want = outputs_of(first, codec, kCount, 3);

        EXPECT_NE(want[0], want[1]) << codec << ": a call draws as the one before";
        for (const char *transport : { "loopback", "shm", "tcp" }) {
            config.n_threads = transport[0] == 't' ? 3 : 1;
            config.chunk_bytes = transport[0] == 's' ? 2048 : 0;
            World again(4, transport, config);
            EXPECT_EQ(outputs_of(again, codec, kCount, 3), want) << codec << " " << transport;
        }
    }
}

TEST(Stochastic, SeedChangesTheDraws)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
    World zero(2, "loopback", config);

    config.seed = 5;
    World five(2, "loopback", config);
    EXPECT_NE(outputs_of(zero, "int4,sr", 1000, 1), outputs_of(five, "int4,sr", 1000, 1));
}

/* Relative error of the mean of the first n outputs. */
double error_of_mean(const std::vector<Floats> &outputs, size_t n)
{
    const auto rows = normal_rows(2, outputs[0].size());
    double err = 0.0, norm = 0.0;

    for (size_t i = 0; i < outputs[0].size(); i++) {
        const double want = ((double)rows[0][i] + (double)rows[1][i]) / 2;
        double mean = 0.0;

        for (size_t t = 0; t < n; t++)
            mean += (double)outputs[t][i] / (double)n;
        err += (mean - want) * (mean - want);
        norm += want * want;
    }
    return std::sqrt(err / norm);
}

/* 16 times the calls, a quarter of the error; nearest rounding repeats its own. */
TEST(Stochastic, ErrorOfTheMeanFallsWithTheRoot)
{
    World w(2);

    for (const char *codec : { "int8,sr", "int4,sr" }) {
        const auto outputs = outputs_of(w, codec, 4096, 256);
        const double one = error_of_mean(outputs, 1), some = error_of_mean(outputs, 16),
                     many = error_of_mean(outputs, 256);

        EXPECT_NEAR(one / some, 4.0, 0.4) << codec;
        EXPECT_NEAR(some / many, 4.0, 0.4) << codec;
    }
    const auto outputs = outputs_of(w, "int4", 4096, 16);
    EXPECT_NEAR(error_of_mean(outputs, 16), error_of_mean(outputs, 1), 1e-9);
}

} // namespace
