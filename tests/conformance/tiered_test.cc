/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Algorithm `tiered` by the public API, over tiers of all kinds of shapes: exact on vectors that
 * codecs represent, the same bits on all ranks. The bits themselves are compared with the model in
 * model_test.cc and law_test.py, real hosts and DSCOMM_TIERS in process_test.cc.
 */
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "support/choose.h"
#include "support/world.h"

namespace {

using Floats = std::vector<float>;

struct Layout {
    const char *name, *tiers, *shown;
    int n_ranks, n_tiers;
};

const Layout layouts[] = {
    { "3_and_4", "0-2|3-6", "0-2|3-6/0-6", 7, 2 },
    { "1_and_6", "0|1-6", "0|1-6/0-6", 7, 2 },
    { "5_and_2", "0-4|5-6", "0-4|5-6/0-6", 7, 2 },
    { "1_1_1_and_5", "0|1|2|3-7", "0|1|2|3-7/0-7", 8, 2 },
    { "crossed", "0,3,5|1,2,4,6", "0,3,5|1-2,4,6/0-6", 7, 2 },
    { "three_levels", "0-1|2|3-5/0-2|3-5", "0-1|2|3-5/0-2|3-5/0-5", 6, 3 },
    { "three_levels_of_8", "0-2|3|4-5|6|7/0-3|4-7", "0-2|3|4-5|6|7/0-3|4-7/0-7", 8, 3 },
};

/* Whole multiples of what int8 and int4 with a scale of absmax/127 and absmax/7 represent. */
Floats probe(const std::string &codec, size_t n)
{
    const int top = codec.compare(0, 4, "int4") == 0 ? 7 : 127, step = top == 7 ? 11 : 37;
    Floats v(n);

    for (size_t i = 0; i < n; i++)
        v[i] = (float)(i % 16 == 0 ? top : (int)(i * (size_t)step % (size_t)(2 * top + 1)) - top);
    return v;
}

struct TieredWorld : World {
    TieredWorld(const Layout &layout, const char *transport = "loopback", int n_threads = 0)
        : World(layout.n_ranks, transport, config_of(n_threads))
    {
        for (dscomm_comm_t *comm : comms) {
            EXPECT_EQ(dsc_comm_set_tiers(comm, nullptr, layout.tiers), DSCOMM_OK);
            EXPECT_STREQ(dscomm_comm_tiers(comm), layout.shown);
        }
    }
    static dscomm_comm_config_t config_of(int n_threads)
    {
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

        config.algorithm = "tiered";
        config.n_threads = n_threads;
        return config;
    }
};

class Tiered : public testing::TestWithParam<Layout> {};

/* Every rank has the same vector, so the sum is n times it, to the bit; with feedback, again. */
void expect_exact(dscomm_comm_t *comm, const std::string &codec, size_t count, bool in_place)
{
    const Floats v = probe(codec, count);
    const float n = (float)dscomm_comm_n_ranks(comm);
    dscomm_feedback_t *fb = nullptr;

    ASSERT_EQ(dscomm_feedback_create(count, nullptr, &fb), DSCOMM_OK);
    for (int step = 0; step < 2; step++) {
        Floats in = v, out(count, -1.0f);
        float *const recv = in_place ? in.data() : out.data();

        ASSERT_EQ(dscomm_allreduce_compressed(in.data(), recv, count, DSCOMM_FLOAT32, DSCOMM_SUM,
                                              dscomm_codec(codec.c_str()), fb, comm, nullptr),
                  DSCOMM_OK)
            << dscomm_last_error();
        for (size_t i = 0; i < count; i++)
            ASSERT_EQ(recv[i], n * v[i]) << codec << " count " << count << " element " << i;
        if (!in_place) {
            EXPECT_EQ(in, v) << "input changed";
        }
    }
    Floats residual(count);

    ASSERT_EQ(dscomm_feedback_read(fb, 0, count, residual.data()), DSCOMM_OK);
    EXPECT_EQ(residual, Floats(count, 0.0f));
    dscomm_feedback_destroy(fb);
}

TEST_P(Tiered, IsExactOnProbeVectors)
{
    const TieredWorld w(GetParam());

    w.each([&](int r) {
        for (const char *codec : { "int8", "int8:block=16", "int4", "int4:block=32", "none" })
            for (size_t count : { 1, 3, 100, 1000, 1023, 4097, 20001 })
                expect_exact(w.comms[(size_t)r], codec, count, count % 2 == 0);
    });
}

TEST_P(Tiered, IsExactOnLongVectorsOfAllTransports)
{
    for (const char *transport : { "loopback", "shm", "tcp" }) {
        const TieredWorld w(GetParam(), transport, 2);

        w.each([&](int r) { expect_exact(w.comms[(size_t)r], "int8", 100003, true); });
    }
}

/* A few elements of any bits in ordinary data. */
Floats noise(int rank, size_t n)
{
    std::mt19937 random((unsigned)rank + 7u);
    std::normal_distribution<float> normal;
    Floats v(n);

    for (float &x : v)
        x = normal(random);
    v[(size_t)rank * 11 % n] = rank % 2 == 0 ? NAN : INFINITY;
    return v;
}

TEST_P(Tiered, EndsWithTheSameBitsOnAllRanks)
{
    const TieredWorld w(GetParam());

    for (const char *codec :
         { "int8", "int4:block=32", "fp8", "mxfp4", "topk:0.05", "int8,entropy" }) {
        for (size_t count : { 2, 999, 30001 }) {
            std::vector<Floats> out((size_t)w.n, Floats(count));

            w.each([&](int r) {
                const Floats in = noise(r, count);

                EXPECT_EQ(dscomm_allreduce_compressed(
                              in.data(), out[(size_t)r].data(), count, DSCOMM_FLOAT32, DSCOMM_AVG,
                              dscomm_codec(codec), nullptr, w.comms[(size_t)r], nullptr),
                          DSCOMM_OK)
                    << dscomm_last_error();
            });
            for (int r = 1; r < w.n; r++)
                EXPECT_EQ(memcmp(out[0].data(), out[(size_t)r].data(), count * 4), 0)
                    << codec << " count " << count << " rank " << r;
        }
    }
}

/* What runs says so, and the slowest tier alone has the call's codec. */
TEST_P(Tiered, PlanTellsTiersAndCodecs)
{
    const TieredWorld w(GetParam());

    w.each([&](int r) {
        const dscomm_plan_t *plan = nullptr;

        ASSERT_EQ(dscomm_plan_create(w.comms[(size_t)r], 5000, DSCOMM_FLOAT32, DSCOMM_SUM,
                                     dscomm_codec("int8"), 1, &plan),
                  DSCOMM_OK);
        const std::string text = dscomm_plan_explain(plan);
        const std::string codecs = GetParam().n_tiers == 2 ? "fp32;int8" : "fp32;fp32;int8";

        EXPECT_EQ(text.find("tiered allreduce"), 0u) << text;
        EXPECT_NE(text.find("codec " + codecs + ","), std::string::npos) << text;
        EXPECT_NE(text.find(std::string("tiers ") + GetParam().shown + ","), std::string::npos)
            << text;
    });
}

INSTANTIATE_TEST_SUITE_P(, Tiered, testing::ValuesIn(layouts),
                         [](const auto &p) { return std::string(p.param.name); });

/* On one tier there is nothing to do by tiers: the bits of twoshot. */
TEST(TieredFlat, IsTwoShot)
{
    const Layout flat = { "flat", "flat", "0-3", 4, 1 };
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.algorithm = "twoshot";
    const TieredWorld tiered(flat);
    const World two_shot(4, "loopback", config);

    tiered.each([&](int r) {
        const Floats in = noise(r, 5000);
        Floats a(5000), b(5000);

        EXPECT_EQ(dscomm_allreduce_compressed(in.data(), a.data(), 5000, DSCOMM_FLOAT32, DSCOMM_SUM,
                                              dscomm_codec("int8"), nullptr,
                                              tiered.comms[(size_t)r], nullptr),
                  DSCOMM_OK);
        EXPECT_EQ(dscomm_allreduce_compressed(in.data(), b.data(), 5000, DSCOMM_FLOAT32, DSCOMM_SUM,
                                              dscomm_codec("int8"), nullptr,
                                              two_shot.comms[(size_t)r], nullptr),
                  DSCOMM_OK);
        EXPECT_EQ(memcmp(a.data(), b.data(), 5000 * 4), 0);
    });
}

/* Only allreduces that ask for it go by tiers: auto and twoshot have the bits they always had. */
TEST(TieredFlat, OtherAlgorithmsDoNotLookAtTiers)
{
    for (const char *algorithm : { "auto", "twoshot", "oneshot" }) {
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

        config.algorithm = algorithm;
        const World w(4, "loopback", config);

        w.each([&](int r) {
            const dscomm_plan_t *plan = nullptr;

            ASSERT_EQ(dsc_comm_set_tiers(w.comms[(size_t)r], nullptr, "0-1|2-3"), DSCOMM_OK);
            ASSERT_EQ(dscomm_plan_create(w.comms[(size_t)r], 50000, DSCOMM_FLOAT32, DSCOMM_SUM,
                                         dscomm_codec("int8"), 0, &plan),
                      DSCOMM_OK);
            EXPECT_EQ(plan->params.n_tiers, 1);
        });
    }
}

/* The halves and the rest have no tiers, whatever the algorithm. */
TEST(TieredFlat, OtherCollectivesAreAsTheyAre)
{
    const TieredWorld w(layouts[0]);

    w.each([&](int r) {
        Floats in(7 * 100, 1.0f), out(7 * 100);

        EXPECT_EQ(dscomm_reduce_scatter_compressed(in.data(), out.data(), 100, DSCOMM_FLOAT32,
                                                   DSCOMM_SUM, dscomm_codec("int8"), nullptr,
                                                   w.comms[(size_t)r], nullptr),
                  DSCOMM_OK);
        EXPECT_EQ(out[99], 7.0f);
        EXPECT_EQ(dscomm_broadcast(in.data(), in.data(), 700, DSCOMM_FLOAT32, 3,
                                   dscomm_codec("none"), w.comms[(size_t)r], nullptr),
                  DSCOMM_OK);
    });
}

/* A split communicator keeps the algorithm, and what was said of its ranks' tiers. */
TEST(TieredFlat, SplitKeepsAlgorithmAndTiers)
{
    const TieredWorld w(layouts[6]); /* 0-2|3|4-5|6|7/0-3|4-7 */

    w.each([&](int r) {
        dscomm_comm_t *half = nullptr, *other = nullptr;

        ASSERT_EQ(dscomm_comm_split(w.comms[(size_t)r], r % 2, -r, nullptr, &half), DSCOMM_OK);
        EXPECT_EQ(half->algorithm, DSC_ALG_TIERED);
        EXPECT_STREQ(dscomm_comm_tiers(half), r % 2 == 0 ? "0|1|2-3/0-1|2-3/0-3" /* 6 4 2 0 */
                                                         : "0-1|2-3/0-3");       /* 7 5 3 1 */
        ASSERT_EQ(dscomm_comm_split(w.comms[(size_t)r], r / 7, r, nullptr, &other), DSCOMM_OK);
        EXPECT_STREQ(dscomm_comm_tiers(other), r == 7 ? "0" : "0-2|3|4-5|6/0-3|4-6/0-6");
        dscomm_comm_destroy(half);
        dscomm_comm_destroy(other);
    });
}

/* Tiers that were found, not given, are found anew: these ranks are on one host. */
TEST(TieredFlat, SplitFindsTiers)
{
    const World w(4);

    w.each([&](int r) {
        dscomm_comm_t *part = nullptr;

        EXPECT_STREQ(dscomm_comm_tiers(w.comms[(size_t)r]), "0-3");
        EXPECT_EQ(w.comms[(size_t)r]->tiers.kinds[0], DSC_TIER_HOST);
        ASSERT_EQ(dscomm_comm_split(w.comms[(size_t)r], r % 2, r, nullptr, &part), DSCOMM_OK);
        EXPECT_STREQ(dscomm_comm_tiers(part), "0-1");
        dscomm_comm_destroy(part);
    });
}

} // namespace
