/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports from the field, each as a check with exact values (D1, D2, ... in docs/testing.md). They
 * walk the codec registry, so that a new codec is held to them too.
 */
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <sys/time.h>

#include "support/golden_calls.h" /* crc32_of */
#include "support/world.h"

#include "support/internal_begin.h"
#include "codec/codec.h"
#include "support/internal_end.h"

namespace {

using Floats = std::vector<float>;

std::vector<std::string> all_specs()
{
    size_t n = 0;
    const char *const *specs = dsc_codec_test_specs(&n);

    return { specs, specs + n };
}

/* ---- vectors whose sums are exact ---- */

Floats probe(const std::string &spec, size_t n, int n_ranks)
{
    Floats v(n);
    const int span = n_ranks > 2 ? 64 / n_ranks : 64; /* bf16 sums stay within 8 bits */

    for (size_t i = 0; i < n; i++)
        if (spec.rfind("int8", 0) == 0 || spec == "none" || spec == "fp32")
            v[i] = i % 16 == 0 ? 127.0f : (float)((i * 37) % 255) - 127.0f;
        else if (spec == "fp16")
            v[i] = n_ranks == 2 ? (float)(i % 2001) - 1000.0f : (float)(i % 401) - 200.0f;
        else
            v[i] = (float)(i % (size_t)(2 * span + 1)) - (float)span;
    return v;
}

Floats times(const Floats &v, int n)
{
    Floats out(v);

    for (float &x : out)
        x *= (float)n;
    return out;
}

struct Call {
    dscomm_dtype_t dtype = DSCOMM_FLOAT32;
    dscomm_op_t op = DSCOMM_SUM;
    const char *codec = "none";
    bool feedback = false;
};

struct Result {
    Floats out;
    Floats residual;
    dscomm_status_t status;
    uint64_t nonfinite;
};

/* Values as elements of a data type and back, through the library's conversions. */
std::vector<uint8_t> to_bytes(const Floats &v, dscomm_dtype_t dtype)
{
    std::vector<uint8_t> bytes(v.size() * dsc_dtype_bytes(dtype));

    dsc_dtype_store(dtype, bytes.data(), v.data(), v.size());
    return bytes;
}

Floats to_floats(const std::vector<uint8_t> &bytes, dscomm_dtype_t dtype)
{
    Floats v(bytes.size() / dsc_dtype_bytes(dtype));

    dsc_dtype_load(dtype, v.data(), bytes.data(), v.size());
    return v;
}

/* Calls with the inputs[call][rank]; results[rank] of the last call, outputs checked equal. */
std::vector<Result> run(const World &w, const Call &call,
                        const std::vector<std::vector<Floats>> &inputs,
                        std::vector<std::vector<Floats>> *outputs = nullptr)
{
    std::vector<Result> results((size_t)w.n);

    if (outputs != nullptr)
        outputs->assign(inputs.size(), std::vector<Floats>((size_t)w.n));
    w.each([&](int r) {
        const size_t n = inputs[0][0].size();
        Result &res = results[(size_t)r];
        dscomm_feedback_t *fb = nullptr;

        if (call.feedback) {
            ASSERT_EQ(dscomm_feedback_create(n, nullptr, &fb), DSCOMM_OK);
        }
        for (size_t t = 0; t < inputs.size(); t++) {
            const auto in = to_bytes(inputs[t][(size_t)r], call.dtype);
            std::vector<uint8_t> out(in.size());

            res.status = dscomm_allreduce_compressed(in.data(), out.data(), n, call.dtype, call.op,
                                                     dscomm_codec(call.codec), fb,
                                                     w.comms[(size_t)r], nullptr);
            EXPECT_EQ(res.status, DSCOMM_OK) << dscomm_last_error();
            res.out = to_floats(out, call.dtype);
            if (outputs != nullptr)
                (*outputs)[t][(size_t)r] = res.out;
        }
        res.nonfinite = stats_of(w.comms[(size_t)r]).nonfinite_elems;
        res.residual.resize(n);
        if (fb != nullptr) {
            EXPECT_EQ(dscomm_feedback_read(fb, 0, n, res.residual.data()), DSCOMM_OK);
        }
        dscomm_feedback_destroy(fb);
    });
    for (int r = 1; r < w.n; r++)
        EXPECT_EQ(memcmp(results[0].out.data(), results[(size_t)r].out.data(),
                         results[0].out.size() * sizeof(float)),
                  0)
            << "ranks differ, codec " << call.codec;
    return results;
}

std::vector<Floats> same(const Floats &v, int n)
{
    return std::vector<Floats>((size_t)n, v);
}

TEST(Field, D1_ZeroAndTinyBlocks)
{
    World w(2);

    for (const auto &spec : all_specs())
        for (bool feedback : { false, true }) {
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
            const Floats v = probe(spec, 1024, 2);
            Floats hurt(v);
            std::vector<std::vector<Floats>> outputs;

            hurt[5] = bad;
            run(w, { DSCOMM_FLOAT32, DSCOMM_SUM, spec.c_str(), true }, { { hurt, v }, { v, v } },
                &outputs);
            EXPECT_FALSE(std::isfinite(outputs[0][0][5])) << spec;
            for (size_t i = 256; i < v.size(); i++) /* other blocks */
                ASSERT_EQ(outputs[0][0][i], 2 * v[i]) << spec << " " << i;
            EXPECT_EQ(outputs[1][0], times(v, 2)) << spec;
        }
}

/* The report's own numbers: all ones, which every codec here carries exactly. */
TEST(Field, D2_OnesAroundOneOverflow)
{
    World w(2);
    const Floats ones(256 * 3, 1.0f), twos(ones.size(), 2.0f);

    for (const auto &spec : all_specs())
        for (float bad : { INFINITY, NAN }) {
            std::vector<std::vector<Floats>> outputs;
            Floats hurt(ones);

            hurt[5] = bad;
            run(w, { DSCOMM_BFLOAT16, DSCOMM_SUM, spec.c_str(), true },
                { { hurt, ones }, { ones, ones } }, &outputs);
            EXPECT_FALSE(std::isfinite(outputs[0][0][5])) << spec;
            for (size_t i = 256; i < ones.size(); i++)
                ASSERT_EQ(outputs[0][0][i], 2.0f) << spec << " " << i;
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

/* D5 and D7: odd counts and odd addresses, canaries around, input untouched. */
void check_placed(const World &w, const std::string &spec, dscomm_dtype_t dtype, size_t n,
                  size_t send_shift, size_t recv_shift, bool in_place)
{
    const size_t canary = 64;
    /* What is exact in a 16-bit type as well as in the codec. */
    const bool plain = dtype == DSCOMM_FLOAT32 || spec.rfind("int8", 0) == 0;
    const Floats v = probe(plain ? spec : "bf16", n, w.n);
    const auto bits = to_bytes(v, dtype), expected = to_bytes(times(v, w.n), dtype);

    w.each([&](int r) {
        std::vector<uint8_t> in(send_shift + bits.size() + canary, 0xa5),
            out(recv_shift + bits.size() + canary, 0x5a);
        uint8_t *send = in.data() + send_shift;
        uint8_t *recv = in_place ? send : out.data() + recv_shift;

        memcpy(send, bits.data(), bits.size());
        ASSERT_EQ(dscomm_allreduce_compressed(send, recv, n, dtype, DSCOMM_SUM,
                                              dscomm_codec(spec.c_str()), nullptr,
                                              w.comms[(size_t)r], nullptr),
                  DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_EQ(memcmp(recv, expected.data(), expected.size()), 0)
            << spec << " count " << n << " rank " << r << " shifts " << send_shift << recv_shift;
        for (size_t i = 0; i < canary; i++)
            ASSERT_EQ(recv[bits.size() + i], in_place ? 0xa5 : 0x5a) << "canary behind";
        for (size_t i = 0; i < (in_place ? send_shift : recv_shift); i++)
            ASSERT_EQ((in_place ? in : out)[i], in_place ? 0xa5 : 0x5a) << "canary before";
        if (!in_place) {
            EXPECT_EQ(memcmp(send, bits.data(), bits.size()), 0) << "input changed";
        }
    });
}

TEST(Field, D5_OddCounts)
{
    for (int n_ranks : { 2, 3, 4, 8 }) {
        World w(n_ranks);

        for (const auto &spec : all_specs())
            for (size_t n : { 1, 2, 15, 127, 128, 129, 4095, 4097, 100003 })
                check_placed(w, spec, DSCOMM_FLOAT32, n, 0, 0, false);
    }
}

TEST(Field, D5_TenMillionElements)
{
    for (int n_ranks : { 2, 3, 4, 8 }) {
        World w(n_ranks);

        check_placed(w, "int8", DSCOMM_FLOAT32, 10556587, 0, 0, false);
    }
}

TEST(Field, D7_MisalignedPointers)
{
    World w(2);

    for (const auto &spec : all_specs())
        for (auto dtype : { DSCOMM_FLOAT32, DSCOMM_FLOAT16, DSCOMM_BFLOAT16 }) {
            const size_t elem = dsc_dtype_bytes(dtype);

            for (size_t n : { 1001, 20001 }) {
                check_placed(w, spec, dtype, n, elem, elem, false);
                check_placed(w, spec, dtype, n, 0, elem, false);
                check_placed(w, spec, dtype, n, elem, 0, false);
                check_placed(w, spec, dtype, n, elem, 0, true);
            }
        }
}

TEST(Field, D7_AddressesBetweenElementsAreRefused)
{
    World w(1);
    std::vector<uint8_t> memory(64);

    EXPECT_EQ(dscomm_allreduce_compressed(memory.data() + 1, memory.data() + 1, 4, DSCOMM_FLOAT32,
                                          DSCOMM_SUM, nullptr, nullptr, w.comms[0], nullptr),
              DSCOMM_ERR_INVALID);
}

TEST(Field, D6_CountZeroAndOneRank)
{
    World w(3);

    for (const auto &spec : all_specs())
        for (auto op : { DSCOMM_SUM, DSCOMM_AVG, DSCOMM_MAX, DSCOMM_MIN }) {
            w.each([&](int r) {
                const uint64_t before = stats_of(w.comms[(size_t)r]).payload_tx_bytes;

                EXPECT_EQ(dscomm_allreduce_compressed(nullptr, nullptr, 0, DSCOMM_FLOAT32, op,
                                                      dscomm_codec(spec.c_str()), nullptr,
                                                      w.comms[(size_t)r], nullptr),
                          DSCOMM_OK)
                    << dscomm_last_error();
                EXPECT_EQ(before, stats_of(w.comms[(size_t)r]).payload_tx_bytes);
            });
            const Floats p = probe(spec, 1000, 3);

            EXPECT_EQ(
                run(w, { DSCOMM_FLOAT32, DSCOMM_SUM, spec.c_str(), false }, { same(p, 3) })[0].out,
                times(p, 3))
                << spec;
        }
    World one(1);

    for (const auto &spec : all_specs())
        for (auto dtype : { DSCOMM_FLOAT32, DSCOMM_FLOAT16, DSCOMM_BFLOAT16 }) {
            Floats x = { -0.0f, 1.0f, -3.25f, 1e-3f, INFINITY };

            x = to_floats(to_bytes(x, dtype), dtype);
            const auto res = run(one, { dtype, DSCOMM_AVG, spec.c_str(), false }, { { x } });

            EXPECT_EQ(memcmp(res[0].out.data(), x.data(), x.size() * sizeof(float)), 0) << spec;
        }
}

TEST(Field, D10_FeedbackOfInt8IsExactAfterFourCalls)
{
    World w(2);
    const Floats g = { 127, .5f, .25f };
    std::vector<std::vector<Floats>> outputs;
    Floats sum(3, 0.0f);
    const auto res = run(w, { DSCOMM_FLOAT32, DSCOMM_SUM, "int8", true },
                         std::vector<std::vector<Floats>>(4, same(g, 2)), &outputs);

    for (const auto &call : outputs)
        for (size_t i = 0; i < 3; i++)
            sum[i] += call[0][i];
    EXPECT_EQ(sum, Floats({ 1016, 4, 2 }));
    EXPECT_EQ(res[0].residual, Floats(3, 0.0f));
    EXPECT_EQ(res[1].residual, Floats(3, 0.0f));
}

TEST(Field, D12_SameBitsOnAllRanksAndRepeats)
{
    World w(4);

    for (const auto &spec : all_specs())
        for (size_t bytes : { 1024, 65532, 65536, 65540, 1 << 20, 4 << 20 }) {
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

TEST(Field, D13_AverageIsWiderThanFp16)
{
    World w(8);

    for (const char *spec : { "none", "fp16" }) {
        const Call call = { DSCOMM_FLOAT16, DSCOMM_AVG, spec, false };
        std::vector<Floats> ranks;

        for (float a : { 0x1p-24f, 60000.0f }) {
            const Floats v(300, to_floats(to_bytes({ a }, DSCOMM_FLOAT16), DSCOMM_FLOAT16)[0]);

            EXPECT_EQ(run(w, call, { same(v, 8) })[0].out, v) << spec;
        }
        for (int r = 0; r < 8; r++)
            ranks.push_back(Floats(300, (float)r));
        EXPECT_EQ(run(w, call, { ranks })[0].out, Floats(300, 3.5f)) << spec;
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
