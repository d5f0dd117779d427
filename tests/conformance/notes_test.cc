/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Notes: after a call all ranks hold the same, whatever way the messages go; and what they say of
 * the call before is true.
 */
#include "conformance/field_support.h"

#include <atomic>
#include <random>

#include "support/internal_begin.h"
#include "comm/comm.h"
#include "support/internal_end.h"

namespace {

dscomm_call_stats_t last_call(const dscomm_comm_t *comm)
{
    dscomm_call_stats_t stats = {};

    stats.struct_bytes = sizeof(stats);
    EXPECT_EQ(dscomm_comm_last_call(comm, &stats), DSCOMM_OK) << dscomm_last_error();
    return stats;
}

/* ---- all hold the same ---- */

/* In each call another field of another rank is the largest. */
uint32_t planted(int rank, uint64_t call)
{
    std::mt19937 random((unsigned)(call * 1000 + (uint64_t)rank));

    return random();
}

uint32_t plant(void *user, uint64_t call, uint32_t)
{
    return planted((int)(intptr_t)user, call);
}

struct Way {
    const char *transport, *algorithm;
    int n;
    size_t count;
    const char *codec = "int8";
};

std::vector<Way> ways()
{
    std::vector<Way> all;

    for (const char *transport : { "loopback", "shm", "tcp" })
        for (const size_t count : { 0, 1, 3, 1000, 70000 }) {
            all.push_back({ transport, "oneshot", 4, count });
            all.push_back({ transport, "twoshot", 4, count });
            all.push_back({ transport, "twoshot", 4, count, "none" });
        }
    for (const size_t count : { 0, 1, 5, 3000 }) {
        all.push_back({ "loopback", "oneshot", 11, count });
        all.push_back({ "loopback", "twoshot", 11, count });
        all.push_back({ "loopback", "tiered", 7, count });
        all.push_back({ "loopback", "twoshot", 35, count }); /* rows and columns */
    }
    all.push_back({ "shm", "oneshot", 1, 100 });
    return all;
}

void call_on_all(const World &w, size_t count, const char *codec)
{
    w.each([&](int r) {
        Floats v(count, 1.0f), out(count);

        ASSERT_EQ(dscomm_allreduce_compressed(v.data(), out.data(), count, DSCOMM_FLOAT32,
                                              DSCOMM_SUM, dscomm_codec(codec), nullptr,
                                              w.comms[(size_t)r], nullptr),
                  DSCOMM_OK)
            << dscomm_last_error();
    });
}

void check_way(const Way &way)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.algorithm = way.algorithm;
    World w(way.n, way.transport, config);
    ASSERT_TRUE(w.ok());
    for (int r = 0; r < w.n; r++) {
        if (std::string(way.algorithm) == "tiered") {
            ASSERT_EQ(dsc_comm_set_tiers(w.comms[(size_t)r], nullptr, "0-2|3-6"), DSCOMM_OK);
        }
        w.comms[(size_t)r]->note_fn = plant;
        w.comms[(size_t)r]->test_user = (void *)(intptr_t)r;
    }
    for (uint64_t call = 0; call < 3; call++) {
        uint32_t all = 0;

        for (int r = 0; r < w.n; r++)
            all = dsc_note_merge(all, planted(r, call));
        call_on_all(w, way.count, way.codec);
        for (int r = 0; r < w.n; r++)
            EXPECT_EQ(last_call(w.comms[(size_t)r]).note, all)
                << way.transport << " " << way.algorithm << " " << way.n << " ranks, count "
                << way.count << ", call " << call << ", rank " << r;
    }
}

TEST(Notes, AllRanksHoldTheSameAfterACall)
{
    for (const Way &way : ways())
        check_way(way);
}

/* Of other collectives nothing is told, and they leave what is known of an allreduce alone. */
TEST(Notes, OnlyAllreducesTell)
{
    World w(3);

    ASSERT_TRUE(w.ok());
    call_on_all(w, 1000, "int8");
    const uint32_t own = w.comms[1]->own_note;
    EXPECT_NE(own, 0u);
    w.each([&](int r) {
        Floats v(300, 1.0f);

        ASSERT_EQ(dscomm_broadcast(v.data(), v.data(), 300, DSCOMM_FLOAT32, 0, nullptr,
                                   w.comms[(size_t)r], nullptr),
                  DSCOMM_OK);
        EXPECT_EQ(last_call(w.comms[(size_t)r]).note, 0u);
    });
    EXPECT_EQ(w.comms[1]->own_note, own);
}

/* ---- and it is true ---- */

Floats normal(size_t n, unsigned seed)
{
    std::mt19937 random(seed);
    std::normal_distribution<float> draw;
    Floats v(n);

    for (float &x : v)
        x = draw(random);
    return v;
}

double relative(const Floats &a, const Floats &b)
{
    double difference = 0, size = 0;

    for (size_t i = 0; i < a.size(); i++) {
        difference += std::pow((double)a[i] - b[i], 2);
        size += std::pow((double)a[i], 2);
    }
    return std::sqrt(difference / size);
}

Floats decoded(const dscomm_codec_t *codec, const Floats &v)
{
    std::vector<uint8_t> bytes(dscomm_codec_bound(codec, v.size()) + 16);
    Floats out(v.size());
    size_t n = 0;
    auto *const at = (uint8_t *)(((uintptr_t)bytes.data() + 15) & ~(uintptr_t)15);

    EXPECT_EQ(dscomm_encode(codec, at, bytes.size() - 16, v.data(), v.size(), &n), DSCOMM_OK);
    EXPECT_EQ(dscomm_decode(codec, out.data(), out.size(), at, n), DSCOMM_OK);
    return out;
}

struct Seen {
    const char *spec;
    dscomm_dtype_t dtype;
    bool feedback;
    int shadow;
};

/* The error is that of the codec, whichever way it is come by: by decoding, or from residuals. */
void check_error(const Seen &c)
{
    const size_t n = 200000;
    World w(2);
    const Floats v = normal(n, 3);
    const double expected = relative(v, decoded(dscomm_codec(c.spec), v));

    ASSERT_TRUE(w.ok());
    w.each([&](int r) {
        dscomm_feedback_config_t config = DSCOMM_FEEDBACK_CONFIG_INIT;
        dscomm_feedback_t *fb = nullptr;
        auto send = to_bytes(v, c.dtype);
        std::vector<uint8_t> recv(send.size());

        config.shadow = c.shadow;
        if (c.feedback) {
            ASSERT_EQ(dscomm_feedback_create(n, &config, &fb), DSCOMM_OK);
        }
        ASSERT_EQ(dscomm_allreduce_compressed(send.data(), recv.data(), n, c.dtype, DSCOMM_SUM,
                                              dscomm_codec(c.spec), fb, w.comms[(size_t)r],
                                              nullptr),
                  DSCOMM_OK)
            << dscomm_last_error();
        const auto seen = last_call(w.comms[(size_t)r]);
        EXPECT_STREQ(seen.codec, c.spec);
        EXPECT_NEAR(seen.relative_error, expected, 0.1 * expected) << c.spec;
        if (c.feedback) {
            EXPECT_NEAR(seen.residual_ratio, expected, 0.1 * expected) << c.spec;
        } else {
            EXPECT_EQ(seen.residual_ratio, 0) << c.spec;
        }
        /* and so it is told to the others */
        const auto told = dsc_note_unpack(w.comms[(size_t)r]->own_note);
        EXPECT_NEAR((double)told.error_ppm, seen.relative_error * 1e6, 0.1 * expected * 1e6);
        EXPECT_GT(told.ns_per_kib, 0u);
        EXPECT_FALSE(told.overflow);
        dscomm_feedback_destroy(fb);
    });
}

TEST(Notes, TheErrorSeenIsTheCodecs)
{
    for (const Seen &c :
         { Seen{ "int8", DSCOMM_FLOAT32, false, 1 }, Seen{ "int8", DSCOMM_FLOAT32, true, 1 },
           Seen{ "int8", DSCOMM_FLOAT32, true, 0 }, Seen{ "int8", DSCOMM_BFLOAT16, true, 1 },
           Seen{ "int4", DSCOMM_FLOAT16, false, 1 }, Seen{ "mxfp4", DSCOMM_FLOAT32, true, 1 },
           Seen{ "int8,hadamard", DSCOMM_FLOAT32, false, 1 },
           Seen{ "bf16", DSCOMM_FLOAT32, false, 1 } })
        check_error(c);
}

TEST(Notes, LosslessHasNoError)
{
    World w(2);

    ASSERT_TRUE(w.ok());
    for (const char *spec : { "none", "fp32", "lossless" }) {
        call_on_all(w, 50000, spec);
        EXPECT_EQ(last_call(w.comms[0]).relative_error, 0) << spec;
        EXPECT_EQ(dsc_note_unpack(w.comms[0]->own_note).error_ppm, 0u) << spec;
    }
}

TEST(Notes, TheOutputIsSeen)
{
    const size_t n = 300000;
    World w(3);

    ASSERT_TRUE(w.ok());
    for (const char *algorithm : { "twoshot", "oneshot" })
        w.each([&](int r) {
            dscomm_comm_t *const comm = w.comms[(size_t)r];
            Floats v = normal(n, 1), out(n);

            comm->algorithm =
                strcmp(algorithm, "oneshot") == 0 ? DSC_ALG_ONE_SHOT : DSC_ALG_TWO_SHOT;
            dsc_comm_drop_plans(comm);
            for (size_t i = 0; i < n; i += 4)
                v[i] = 0;
            ASSERT_EQ(dscomm_allreduce_compressed(v.data(), out.data(), n, DSCOMM_FLOAT32,
                                                  DSCOMM_SUM, nullptr, nullptr, comm, nullptr),
                      DSCOMM_OK);
            const auto seen = last_call(comm);
            EXPECT_NEAR(seen.output_zero_share, 0.25, 0.001);
            EXPECT_NEAR(seen.output_sum_of_squares, 9 * 0.75 * (double)n, 0.1 * 7 * (double)n);
            EXPECT_GE(seen.sampled_outputs, n / 150);
            EXPECT_LE(seen.sampled_outputs, n / 30);
        });
}

TEST(Notes, OverflowIsTold)
{
    World w(2);

    ASSERT_TRUE(w.ok());
    w.each([&](int r) {
        Floats v(5000, 1.0f), out(5000);

        if (r == 0)
            v[4999] = INFINITY;
        ASSERT_EQ(dscomm_allreduce_compressed(v.data(), out.data(), v.size(), DSCOMM_FLOAT32,
                                              DSCOMM_SUM, dscomm_codec("int8"), nullptr,
                                              w.comms[(size_t)r], nullptr),
                  DSCOMM_OK);
        EXPECT_GT(last_call(w.comms[(size_t)r]).nonfinite_elems, 0u);
        EXPECT_TRUE(dsc_note_unpack(w.comms[(size_t)r]->own_note).overflow);
    });
    call_on_all(w, 5000, "int8");
    EXPECT_TRUE(dsc_note_unpack(last_call(w.comms[1]).note).overflow);
    EXPECT_FALSE(dsc_note_unpack(w.comms[1]->own_note).overflow);
}

/* Sizes whose squares leave float32's range. */
TEST(Notes, TheErrorIsRelativeAtAnySize)
{
    for (const float size : { 1e-25f, 1e25f }) {
        World w(2);

        ASSERT_TRUE(w.ok());
        w.each([&](int r) {
            Floats v = normal(20000, 5), out(20000);

            for (float &x : v)
                x *= size;
            ASSERT_EQ(dscomm_allreduce_compressed(v.data(), out.data(), v.size(), DSCOMM_FLOAT32,
                                                  DSCOMM_SUM, dscomm_codec("int8"), nullptr,
                                                  w.comms[(size_t)r], nullptr),
                      DSCOMM_OK);
            EXPECT_NEAR(last_call(w.comms[(size_t)r]).relative_error, 0.0065, 0.003) << size;
        });
    }
}

/* Whoever asks while calls end gets the figures of one of them. */
TEST(Notes, MayBeAskedAtAnyTime)
{
    World w(2);
    std::atomic<bool> stop{ false };

    ASSERT_TRUE(w.ok());
    call_on_all(w, 100, "int8");
    std::thread asker([&] {
        while (!stop) {
            const auto seen = last_call(w.comms[0]);

            EXPECT_EQ(strcmp(seen.codec, seen.payload_tx_bytes == 0 ? "none" : "int8"), 0);
        }
    });
    for (int i = 0; i < 200; i++)
        call_on_all(w, i % 2 == 0 ? 0 : 100, i % 2 == 0 ? "none" : "int8");
    stop = true;
    asker.join();
}

TEST(Notes, TheQueryChecksItsArguments)
{
    World w(1);
    dscomm_call_stats_t stats = {};

    ASSERT_TRUE(w.ok());
    EXPECT_EQ(dscomm_comm_last_call(nullptr, &stats), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_comm_last_call(w.comms[0], nullptr), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_comm_last_call(w.comms[0], &stats), DSCOMM_ERR_INVALID);
    stats.struct_bytes = sizeof(stats);
    EXPECT_EQ(dscomm_comm_last_call(w.comms[0], &stats), DSCOMM_ERR_BAD_STATE);
}

} // namespace
