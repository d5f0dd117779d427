/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Algorithm `tiered` on tiers and vectors that nobody would choose: drawn at random, groups of one,
 * fewer elements than ranks, more ranks in a group than a tier joins at once, one rank alone.
 */
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "support/choose.h"
#include "support/world.h"

namespace {

using Floats = std::vector<float>;
using Random = std::mt19937;

int draw(Random &random, int least, int most)
{
    return std::uniform_int_distribution<int>(least, most)(random);
}

/* Groups of groups, any ranks together; the last tier has one group. */
std::vector<int> draw_groups(Random &random, int n_ranks, int n_tiers)
{
    std::vector<int> groups;

    for (int t = 0; t < n_tiers; t++) {
        std::vector<int> joined((size_t)n_ranks); /* of each group of the tier before */
        const int most = t == n_tiers - 1 ? 0 : draw(random, 0, n_ranks - 1);

        for (int &group : joined)
            group = draw(random, 0, most);
        for (int r = 0; r < n_ranks; r++) {
            const int below = t == 0 ? r : groups[(size_t)((t - 1) * n_ranks + r)];

            groups.push_back(joined[(size_t)below]);
        }
    }
    return groups;
}

struct Call {
    size_t count;
    const char *codec;
    dscomm_op_t op;
    bool in_place, feedback;
};

Call draw_call(Random &random)
{
    static const size_t counts[] = { 0, 1, 2, 3, 7, 255, 256, 257, 1000, 4095, 65537, 131073 };
    static const char *const codecs[] = { "none",  "fp32",  "bf16",      "int8",    "int4:block=16",
                                          "nvfp4", "mxfp4", "topk:0.02", "lossless" };
    Call call = { counts[(size_t)draw(random, 0, 11)], codecs[(size_t)draw(random, 0, 8)],
                  DSCOMM_SUM, draw(random, 0, 1) == 1, draw(random, 0, 1) == 1 };

    if (strncmp(call.codec, "topk", 4) != 0)
        call.op = (dscomm_op_t)draw(random, 0, 3);
    if (call.op != DSCOMM_SUM && call.op != DSCOMM_AVG)
        call.feedback = false;
    return call;
}

Floats input_of(const Call &call, int rank)
{
    Random random((unsigned)(call.count * 64 + (size_t)rank));
    Floats v(call.count);

    for (float &x : v)
        x = (float)draw(random, -1000, 1000) / 8.0f;
    return v;
}

Floats run_on(dscomm_comm_t *comm, const Call &call)
{
    Floats in = input_of(call, comm->rank), out(call.in_place ? in : Floats(call.count));
    dscomm_feedback_t *feedback = nullptr;

    if (call.feedback) {
        EXPECT_EQ(dscomm_feedback_create(call.count, nullptr, &feedback), DSCOMM_OK);
    }
    EXPECT_EQ(dscomm_allreduce_compressed(call.in_place ? out.data() : in.data(), out.data(),
                                          call.count, DSCOMM_FLOAT32, call.op,
                                          dscomm_codec(call.codec), feedback, comm, nullptr),
              DSCOMM_OK)
        << dscomm_last_error();
    dscomm_feedback_destroy(feedback);
    return out;
}

/* Eighths up to 125 have exact sums in float32, whatever the order. */
void expect_exact(const Call &call, int n_ranks, const Floats &out)
{
    std::vector<Floats> in;

    for (int r = 0; r < n_ranks; r++)
        in.push_back(input_of(call, r));
    for (size_t i = 0; i < call.count; i++) {
        float sum = 0.0f, most = in[0][i], least = in[0][i];

        for (const Floats &v : in) {
            sum += v[i];
            most = std::max(most, v[i]);
            least = std::min(least, v[i]);
        }
        if (call.op == DSCOMM_AVG)
            ASSERT_NEAR(out[i], sum / (float)n_ranks, 1e-4f) << i;
        else
            ASSERT_EQ(out[i], call.op == DSCOMM_SUM   ? sum
                              : call.op == DSCOMM_MAX ? most
                                                      : least)
                << i;
    }
}

void expect_same_bits(const World &w, const Call &call, const std::string &tiers)
{
    const std::string what = std::string(call.codec) + " count " + std::to_string(call.count) +
                             " op " + std::to_string((int)call.op) + " of " + tiers;
    std::vector<Floats> out((size_t)w.n);

    SCOPED_TRACE(what);
    w.each([&](int r) { out[(size_t)r] = run_on(w.comms[(size_t)r], call); });
    for (int r = 1; r < w.n && call.count > 0; r++)
        ASSERT_EQ(memcmp(out[0].data(), out[(size_t)r].data(), call.count * sizeof(float)), 0)
            << "rank " << r;
    if (dscomm_codec(call.codec)->lossless)
        expect_exact(call, w.n, out[0]);
}

dscomm_comm_config_t tiered_config()
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.algorithm = "tiered";
    return config;
}

void set_tiers(const World &w, const std::string &tiers)
{
    w.each([&](int r) {
        ASSERT_EQ(dsc_comm_set_tiers(w.comms[(size_t)r], nullptr, tiers.c_str()), DSCOMM_OK)
            << tiers << ": " << dscomm_last_error();
    });
}

TEST(TieredShapes, DrawnAtRandom)
{
    for (unsigned seed = 0; seed < 12; seed++) {
        Random random(seed);
        const int n = draw(random, 2, 11), n_tiers = draw(random, 2, 4);
        const World w(n, seed % 3 == 0 ? "shm" : "loopback", tiered_config());
        const std::string tiers = tiers_text_of(n_tiers, n, draw_groups(random, n, n_tiers).data());

        set_tiers(w, tiers);
        for (int i = 0; i < 12; i++)
            expect_same_bits(w, draw_call(random), tiers);
    }
}

/* A group of so many is rows and columns, with a tier below and one above. */
TEST(TieredShapes, GroupsThatAreRowsAndColumns)
{
    const int n = DSC_VIRTUAL_TIER + 7;
    const World w(n, "loopback", tiered_config());

    std::string ones = "0-1"; /* the last tier joins more than DSC_VIRTUAL_TIER groups */

    ASSERT_TRUE(w.ok());
    for (int r = 2; r < n; r++)
        ones += "|" + std::to_string(r);
    for (const std::string &tiers :
         { std::string("0-1|2|3-37|38"), std::string("0-1|2-35|36-38/0-35|36-38"), ones }) {
        set_tiers(w, tiers);
        for (const char *codec : { "none", "int8", "topk:0.02" })
            for (size_t count : { 5, 1000, 20011 })
                expect_same_bits(w, { count, codec, DSCOMM_SUM, false, true }, tiers);
    }
}

TEST(TieredShapes, OneRank)
{
    const World w(1, "loopback", tiered_config());

    for (const char *tiers : { "0", "flat", "" }) {
        ASSERT_EQ(dsc_comm_set_tiers(w.comms[0], std::vector<dsc_tier_facts>(1).data(), tiers),
                  DSCOMM_OK)
            << tiers;
        for (const char *codec : { "none", "int8" })
            for (size_t count : { 0, 1, 1000 })
                expect_same_bits(w, { count, codec, DSCOMM_AVG, true, true }, tiers);
    }
}

} // namespace
