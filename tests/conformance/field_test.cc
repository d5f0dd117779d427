/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports from the field, each as a check with exact values (D1, D2, ... in docs/testing.md). They
 * walk the codec registry, so that a new codec is held to them too.
 */
#include <csignal>
#include <sys/time.h>

#include "conformance/field_support.h"
#include "support/golden_calls.h" /* crc32_of */

namespace {

TEST(Field, D1_ZeroAndTinyBlocks)
{
    World w(2);

    for (const auto &spec : all_specs())
        for (bool feedback : { false, true }) {
            if (feedback && !takes_feedback(spec))
                continue;
            Floats plus(600, 0.0f), minus(600, -0.0f), tiny(600), lone(600, 0.0f);

            for (size_t i = 0; i < tiny.size(); i++)
                tiny[i] = i % 2 ? -1e-36f : 1e-36f;
            lone[7] = 1e-45f;
            for (const auto &v : { plus, minus, tiny, lone }) {
                const auto res =
                    run(w, { DSCOMM_FLOAT32, DSCOMM_SUM, spec.c_str(), feedback }, { same(v, 2) });

                for (size_t i = 0; i < v.size(); i++) {
                    ASSERT_TRUE(std::isfinite(res[0].out[i])) << spec << " " << i;
                    ASSERT_LE(std::fabs(res[0].out[i] - 2 * v[i]), 2 * std::fabs(v[i])) << spec;
                    ASSERT_TRUE(std::isfinite(res[0].residual[i])) << spec;
                }
            }
        }
}

TEST(Field, D2_OneNonFiniteValueIsNewsAndLeavesNoTrace)
{
    World w(2);

    for (const auto &spec : all_specs())
        for (float bad : { INFINITY, -INFINITY, NAN }) {
            const size_t unit = unit_of(spec);
            const Floats v = probe(spec, 4 * unit, 2);
            Floats hurt(v);
            std::vector<std::vector<Floats>> outputs;

            hurt[5] = bad;
            run(w, { DSCOMM_FLOAT32, DSCOMM_SUM, spec.c_str(), takes_feedback(spec) },
                { { hurt, v }, { v, v } }, &outputs);
            EXPECT_FALSE(std::isfinite(outputs[0][0][5])) << spec;
            for (size_t i = unit; i < v.size(); i++) /* other blocks */
                ASSERT_EQ(outputs[0][0][i], 2 * v[i]) << spec << " " << i;
            EXPECT_EQ(outputs[1][0], times(v, 2)) << spec;
        }
}

/* The report's own numbers: all ones, which every codec but int4 carries exactly; that one 7. Of
 * ones, top-k carries as many as it keeps. */
TEST(Field, D2_OnesAroundOneOverflow)
{
    World w(2);

    for (const auto &spec : all_specs())
        for (float bad : { INFINITY, NAN }) {
            const float one = spec.rfind("int4", 0) == 0 ? 7.0f : 1.0f;
            const size_t unit = unit_of(spec);
            const Floats ones = carried(spec, Floats(unit * 3, one)), twos = times(ones, 2);
            std::vector<std::vector<Floats>> outputs;
            Floats hurt(ones);

            hurt[5] = bad;
            run(w, { DSCOMM_BFLOAT16, DSCOMM_SUM, spec.c_str(), takes_feedback(spec) },
                { { hurt, ones }, { ones, ones } }, &outputs);
            EXPECT_FALSE(std::isfinite(outputs[0][0][5])) << spec;
            for (size_t i = unit; i < ones.size(); i++)
                ASSERT_EQ(outputs[0][0][i], twos[i]) << spec << " " << i;
            EXPECT_EQ(outputs[1][0], twos) << spec;
        }
}

TEST(Field, D3_Bf16DataThroughFp16AndItsOverflow)
{
    World w(2);
    Floats big(8, 1.0f);

    big[0] = 1e30f;
    {
        const auto res = run(w, { DSCOMM_BFLOAT16, DSCOMM_SUM, "fp16", false }, { same(big, 2) });

        EXPECT_TRUE(std::isinf(res[0].out[0]));
        EXPECT_EQ(res[0].nonfinite, 1u); /* counted */
        for (size_t i = 1; i < big.size(); i++)
            EXPECT_EQ(res[0].out[i], 2.0f);
    }
    const Floats forty(4, 40000.0f);

    EXPECT_EQ(run(w, { DSCOMM_FLOAT32, DSCOMM_SUM, "fp16", false }, { same(forty, 2) })[0].out,
              Floats(4, 80000.0f));
    EXPECT_EQ(run(w, { DSCOMM_FLOAT16, DSCOMM_SUM, "fp16", false }, { same(forty, 2) })[0].out,
              Floats(4, INFINITY)); /* documented: as NCCL gives */
}

TEST(Field, D10_FeedbackIsExactAfterFourCalls)
{
    /* Full scale, a tie that goes down first, and what is too small at first. */
    const struct {
        const char *spec;
        Floats g;
    } cases[] = {
        { "int8", { 127, .5f, .25f } },     { "int4", { 7, .5f, .25f } },
        { "fp8", { 448, 17, 0x1p-11f } },   { "fp8:e5m2", { 57344, 4.5f, 0x1p-18f } },
        { "mxfp8", { 448, 17, 0x1p-11f } }, { "mxfp8:e5m2,ceil", { 57344, 4.5f, 0x1p-18f } },
        { "mxfp4", { 6, 1.25f, .25f } },    { "mxint8", { 1.5f, 0x1p-7f, 0x1p-8f } },
        { "nvfp4", { 2688, 560, 112 } }
    };
    World w(2);

    for (const auto &c : cases) {
        std::vector<std::vector<Floats>> outputs;
        Floats sum(3, 0.0f);
        const auto res = run(w, { DSCOMM_FLOAT32, DSCOMM_SUM, c.spec, true },
                             std::vector<std::vector<Floats>>(4, same(c.g, 2)), &outputs);

        EXPECT_NE(outputs[0][0], times(c.g, 2)) << c.spec << ": nothing was left out";
        for (const auto &call : outputs)
            for (size_t i = 0; i < 3; i++)
                sum[i] += call[0][i];
        EXPECT_EQ(sum, times(c.g, 8)) << c.spec;
        EXPECT_EQ(res[0].residual, Floats(3, 0.0f)) << c.spec;
        EXPECT_EQ(res[1].residual, Floats(3, 0.0f)) << c.spec;
    }
}

/* One of three elements goes at a time: what waits is added up and comes in full. */
TEST(Field, D10_TopKSendsInTurn)
{
    World w(2);

    for (const char *spec : { "topk:k=1", "topk:k=1,int8", "topk:k=1,fp8", "topk:0.333333333" }) {
        const Floats g = { 4, 2, 1 };
        std::vector<std::vector<Floats>> outputs;
        Floats sum(3, 0.0f);
        const auto res = run(w, { DSCOMM_FLOAT32, DSCOMM_SUM, spec, true },
                             std::vector<std::vector<Floats>>(12, same(g, 2)), &outputs);

        EXPECT_EQ(outputs[0][0], (Floats{ 8, 0, 0 })) << spec;
        for (const auto &call : outputs)
            for (size_t i = 0; i < 3; i++)
                sum[i] += call[0][i];
        for (size_t i = 0; i < 3; i++) {
            EXPECT_GT(sum[i], 0.0f) << spec << ": element " << i << " never came";
            EXPECT_EQ(sum[i] + res[0].residual[i] + res[1].residual[i], 24 * g[i]) << spec;
        }
    }
}

/* D11: the last element of a segment, of a piece, of a vector of several segments. */
TEST(Field, D11_IndicesReachTheEndOfEverySegment)
{
    World w(2);
    const size_t n = 5 * 65536 + 77;
    Floats v(n, 0.0f);

    for (size_t i : { (size_t)0, (size_t)65535, (size_t)65536, (size_t)131071, (size_t)163840,
                      (size_t)229375, n - 78, n - 77, n - 1 })
        v[i] = i % 2 == 0 ? 3.0f : -3.0f;
    for (const char *spec : { "topk:0.01", "topk:0.001,int8", "topk:k=4,fp8", "topk:k=60000" })
        for (auto op : { DSCOMM_SUM, DSCOMM_AVG })
            EXPECT_EQ(run(w, { DSCOMM_FLOAT32, op, spec, false }, { same(v, 2) })[0].out,
                      times(v, op == DSCOMM_SUM ? 2 : 1))
                << spec;
}

TEST(Field, D12_SameBitsOnAllRanksAndRepeats)
{
    World w(4);

    for (const auto &spec : all_specs())
        for (size_t bytes : { 1024, 65532, 65536, 65540, 1 << 20, 4 << 20 }) {
            if (!takes_feedback(spec)) /* every call draws anew: stochastic_test.cc */
                continue;
            uint32_t first = 0;
            std::vector<Floats> in((size_t)w.n, Floats(bytes / 4));
            uint64_t state = 42;

            for (auto &row : in)
                for (float &x : row) {
                    state = state * 6364136223846793005u + 1442695040888963407u;
                    x = (float)(int32_t)(state >> 32) * 1e-9f;
                }
            for (int repeat = 0; repeat < 3; repeat++) {
                const auto res =
                    run(w, { DSCOMM_FLOAT32, DSCOMM_SUM, spec.c_str(), false }, { in });
                const uint32_t crc = crc32_of(res[0].out.data(), bytes);

                first = repeat == 0 ? crc : first;
                EXPECT_EQ(crc, first) << spec << " " << bytes;
            }
        }
}

/* Of a codec's encode of equal values: their largest error. */
float step_of(const std::string &spec)
{
    if (dscomm_codec(spec.c_str())->stochastic)
        return 0.2f; /* int4 may round 7 to 6 */
    return has_prefix(spec, "mxfp4") ? 0.25f : has_prefix(spec, "mxfp8") ? 0.125f : 0x1p-6f;
}

/* Exact where a codec is; others within the steps of two encodes of equal values, in whole groups.
 */
TEST(Field, D13_AverageIsWiderThanFp16)
{
    World w(8);

    for (const auto &spec : all_specs()) {
        const auto *codec = dscomm_codec(spec.c_str());
        const bool is_exact = codec->lossless || spec == "fp16";
        const Call call = { DSCOMM_FLOAT16, DSCOMM_AVG, spec.c_str(), false };
        /* 4 bits round 60000 up to 65536, which is more than an fp16 output can be. */
        const float large = has_prefix(spec, "mxfp4") ? 48000.0f : 60000.0f;
        std::vector<Floats> ranks;

        for (float a : { 0x1p-24f, large }) {
            const Floats v = carried(
                spec, Floats(320, to_floats(to_bytes({ a }, DSCOMM_FLOAT16), DSCOMM_FLOAT16)[0]));
            const Floats out = run(w, call, { same(v, 8) })[0].out;

            if (is_exact) {
                EXPECT_EQ(out, v) << spec;
            }
            for (size_t i = 0; i < out.size(); i++)
                ASSERT_NEAR(out[i] / a, v[i] / a, step_of(spec)) << spec;
        }
        for (int r = 0; r < 8; r++)
            ranks.push_back(carried(spec, Floats(320, (float)r)));
        const Floats out = run(w, call, { ranks })[0].out;
        const Floats want = carried(spec, Floats(320, 3.5f));
        for (size_t i = 0; i < out.size(); i++)
            ASSERT_NEAR(out[i], want[i], is_exact ? 0.0f : 3.5f * step_of(spec)) << spec;
    }
}

void on_alarm(int)
{
}

/* A signal every millisecond, handler without SA_RESTART, through set-up and 1000 calls. */
class D16_Signals : public testing::TestWithParam<const char *> {};

TEST_P(D16_Signals, DoNotDisturb)
{
    struct sigaction action = {}, old = {};
    const itimerval every_ms = { { 0, 1000 }, { 0, 1000 } }, off = {};

    action.sa_handler = on_alarm;
    sigaction(SIGALRM, &action, &old);
    setitimer(ITIMER_REAL, &every_ms, nullptr);
    {
        World w(2, GetParam());
        const Floats v = probe("int8", 1000, 2), expected = times(v, 2);

        w.each([&](int r) {
            Floats out(v.size());

            for (int i = 0; i < 1000; i++) {
                ASSERT_EQ(dscomm_allreduce_compressed(
                              v.data(), out.data(), v.size(), DSCOMM_FLOAT32, DSCOMM_SUM,
                              dscomm_codec("int8"), nullptr, w.comms[(size_t)r], nullptr),
                          DSCOMM_OK)
                    << dscomm_last_error();
                ASSERT_EQ(out, expected);
            }
        });
    }
    setitimer(ITIMER_REAL, &off, nullptr);
    sigaction(SIGALRM, &old, nullptr);
}

INSTANTIATE_TEST_SUITE_P(, D16_Signals, testing::Values("loopback", "shm", "tcp"),
                         [](const auto &p) { return std::string(p.param); });

} // namespace
