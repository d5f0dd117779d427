/* SPDX-License-Identifier: Apache-2.0 */
/* The tuner: budgets, costs that come from plans, and what is chosen where. */
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <map>

#include "unit/tuner_support.h"

namespace {

using namespace tuner_test;

constexpr size_t kElems = 16u << 20; /* 32 MiB of bf16 */

/* ---- budgets ---- */

TEST(Budget, Texts)
{
    const std::map<std::string, std::pair<int, uint32_t>> good = {
        { "exact", { DSC_BUDGET_EXACT, 0 } },       { "high", { DSC_BUDGET_HIGH, 0 } },
        { "balanced", { DSC_BUDGET_BALANCED, 0 } }, { "aggressive", { DSC_BUDGET_AGGRESSIVE, 0 } },
        { "0", { DSC_BUDGET_NUMBER, 0 } },          { "0.01", { DSC_BUDGET_NUMBER, 10000 } },
        { ".5", { DSC_BUDGET_NUMBER, 500000 } },    { "1", { DSC_BUDGET_NUMBER, 1000000 } },
        { "0.000001", { DSC_BUDGET_NUMBER, 1 } },
    };
    for (const auto &[text, want] : good) {
        struct dsc_budget b = {};
        char shown[32];
        ASSERT_TRUE(dsc_budget_parse(text.c_str(), &b)) << text;
        EXPECT_EQ(int(b.name), want.first) << text;
        EXPECT_EQ(b.ppm, want.second) << text;
        struct dsc_budget again = {};
        ASSERT_TRUE(dsc_budget_parse(dsc_budget_text(&b, shown, sizeof(shown)), &again)) << shown;
        EXPECT_EQ(again.ppm, b.ppm);
        EXPECT_EQ(again.name, b.name);
    }
    for (const char *const bad : { "", ".", "high ", "HIGH", "1.000001", "2", "-1", "1e-3",
                                   "0.0000001", "0.01x", "99999999999999999999", "0.5.5" }) {
        struct dsc_budget b = { DSC_BUDGET_HIGH, 7 };
        EXPECT_FALSE(dsc_budget_parse(bad, &b)) << bad;
        EXPECT_EQ(b.ppm, 7u) << bad << ": touched";
    }
}

TEST(Budget, NamedOnesListFamilies)
{
    const std::map<std::string, std::string> least = {
        { "none", "exact" },          { "lossless", "exact" },      { "fp16", "high" },
        { "bf16", "high" },           { "int8", "balanced" },       { "int8:block=16", "balanced" },
        { "fp8:e5m2", "balanced" },   { "mxfp8,ceil", "balanced" }, { "int4:signed", "aggressive" },
        { "mxfp4", "aggressive" },    { "nvfp4", "aggressive" },    { "topk:0.01", "aggressive" },
        { "topk:k=3", "aggressive" },
    };
    const std::vector<std::string> order = { "exact", "high", "balanced", "aggressive" };
    for (const auto &[spec, first] : least) {
        bool admitted = false;
        for (const std::string &name : order) {
            struct dsc_budget b = {};
            ASSERT_TRUE(dsc_budget_parse(name.c_str(), &b));
            admitted = admitted || name == first;
            EXPECT_EQ(dsc_budget_refuses(&b, dscomm_codec(spec.c_str()), true) == nullptr, admitted)
                << spec << " " << name;
        }
    }
    struct dsc_budget b = {};
    ASSERT_TRUE(dsc_budget_parse("aggressive", &b));
    EXPECT_STREQ(dsc_budget_refuses(&b, dscomm_codec("topk:0.01"), false), "top-k needs feedback");
    EXPECT_NE(dsc_budget_refuses(&b, dscomm_codec("mxint8"), true), nullptr)
        << "in no list: for numbers alone";
}

TEST(Budget, NumbersGoByTheNominalError)
{
    for (const char *const spec : { "bf16", "int8", "mxint8", "int4", "topk:0.01" }) {
        const dscomm_codec_t *const codec = dscomm_codec(spec);
        const struct dsc_budget just = { DSC_BUDGET_NUMBER, codec->e0_ppm };
        const struct dsc_budget below = { DSC_BUDGET_NUMBER, codec->e0_ppm - 1 };
        EXPECT_EQ(dsc_budget_refuses(&just, codec, true), nullptr) << spec;
        EXPECT_NE(dsc_budget_refuses(&below, codec, true), nullptr) << spec;
    }
    const struct dsc_budget all = { DSC_BUDGET_NUMBER, 1000000 };
    EXPECT_NE(dsc_budget_refuses(&all, dscomm_codec("topk:0.01"), false), nullptr);
    const struct dsc_budget nothing = { DSC_BUDGET_NUMBER, 0 };
    EXPECT_EQ(dsc_budget_refuses(&nothing, dscomm_codec("none"), false), nullptr);
    EXPECT_EQ(dsc_budget_refuses(&nothing, dscomm_codec("lossless"), false), nullptr);
}

/* ---- tiers ---- */

TEST(Tiers, OnlyTheSlowTierIsCompressed)
{
    struct dsc_rates rates = plain_rates(118000000);

    rates.n_tiers = 2;
    rates.tiers[1] = rates.tiers[0];
    rates.tiers[0] = { DSC_TIER_HOST, 200, 800, 20000000000, 20000000000, 0 };
    const std::vector<int> groups = host_groups(2, 2);
    struct dsc_question q = question_of(4, groups, 1 << 24, "balanced");

    q.dtype = DSCOMM_FLOAT32;
    const auto options = options_of(q, rates);
    const struct dsc_option flat = find(options, "none", DSC_ALG_TWO_SHOT, 1);
    const struct dsc_option tiered = find(options, "none", DSC_ALG_TWO_SHOT, 2);

    /* A quarter to each of 3, 2 of them on the other host, up and down; or half of a half. */
    EXPECT_EQ(flat.tx_bytes[1], 2u * 2 * 4 * (1 << 24) / 4);
    EXPECT_EQ(tiered.tx_bytes[1], 2u * 4 * (1 << 24) / 4);
    const struct dsc_decision d = choose(q, rates);
    EXPECT_EQ(spec_of(d.option), "int8");
    EXPECT_EQ(d.option.choice.n_tiers, 2);
    EXPECT_STREQ(d.option.choice.codecs[0]->spec, "fp32");
    EXPECT_NE(std::string(d.reason).find("tier 1 (tcp, 118 MB/s per rank)"), std::string::npos)
        << d.reason;
}

TEST(Tiers, UnevenGroupsCostWhatTheSlowestRankTakes)
{
    struct dsc_rates rates = plain_rates(118000000);

    rates.n_tiers = 2;
    rates.tiers[1] = rates.tiers[0];
    rates.tiers[0] = { DSC_TIER_HOST, 200, 800, 20000000000, 20000000000, 0 };
    const std::vector<int> groups = { 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0 }; /* 6 + 1 */
    struct dsc_question q = question_of(7, groups, 7 << 16, "balanced");

    q.dtype = DSCOMM_FLOAT32;
    const struct dsc_option o = find(options_of(q, rates), "none", DSC_ALG_TWO_SHOT, 2);
    /* The lone rank sends half of every piece up and owns the other half, which goes to six. */
    EXPECT_GT(o.tx_bytes[1], 4u * (7 << 16) * 9 / 10);
}

TEST(Tiers, WhatWasNotMeasuredIsNotGuessed)
{
    struct dsc_rates rates = plain_rates(118000000);

    rates.n_tiers = 2;
    rates.tiers[1] = { DSC_TIER_RDMA, 0, 0, 0, 0, 0 };
    const std::vector<int> groups = host_groups(2, 2);
    const struct dsc_question q = question_of(4, groups, 1 << 20, "balanced");

    for (const struct dsc_option &o : options_of(q, rates)) {
        EXPECT_EQ(o.total_ns, DSC_UNKNOWN_NS);
        EXPECT_FALSE(o.is_admitted);
    }
    const struct dsc_decision d = choose(q, rates);
    EXPECT_EQ(d.option.choice.n_tiers, 0) << "nothing is chosen";
    EXPECT_NE(std::string(d.reason).find("tier 1 was not measured"), std::string::npos) << d.reason;
}

TEST(Tiers, QuestionsThatDoNotFitAreRefused)
{
    const struct dsc_rates rates = plain_rates(1);
    const std::vector<int> groups = host_groups(2, 2), odd = { 0, 9, 0, 0, 0, 0, 0, 0 };
    struct dsc_question q = question_of(4, groups, 100, "exact");
    std::vector<struct dsc_option> options(DSC_OPTIONS_MAX);
    size_t n = 77;

    dscomm_set_log([](void *, dscomm_log_level_t, const char *) {}, nullptr);
    EXPECT_EQ(dsc_tuner_options(&q, &rates, options.data(), &n), DSCOMM_ERR_INVALID);
    EXPECT_STREQ(dscomm_last_error(), "rates of 1 tiers for 2 tiers");
    struct dsc_rates two = rates;
    two.n_tiers = 2;
    q.groups = odd.data();
    EXPECT_EQ(dsc_tuner_options(&q, &two, options.data(), &n), DSCOMM_ERR_INVALID);
    EXPECT_STREQ(dscomm_last_error(), "group 9 of rank 1, must be 0 to 3");
    EXPECT_EQ(n, 77u);
    dscomm_set_log(nullptr, nullptr);
}

/* ---- the seed's table: one frozen device, bf16 data, overlap off ---- */

struct Seed {
    const char *where;
    double gb_per_s;
    enum dsc_tier_kind kind;
    uint32_t latency_ns;
    const char *budget;
    const char *want;
};

const Seed kSeed[] = {
    { "one device domain", 800, DSC_TIER_FABRIC, 2000, "high",
      "none" }, /* bf16 as it is: 16 bits */
    { "slower domain", 385, DSC_TIER_FABRIC, 2000, "balanced", "int8" },
    { "across nodes", 200, DSC_TIER_RDMA, 10000, "aggressive", "topk:0.01,fp8" },
};

struct dsc_rates seed_rates(const Seed &s, double gb_per_s, double memory = 4300)
{
    return frozen_device({ { s.kind, gb_per_s, s.latency_ns } }, memory);
}

TEST(Seed, Table)
{
    for (const Seed &s : kSeed) {
        const struct dsc_decision d =
            choose(question_of(8, {}, kElems, s.budget), seed_rates(s, s.gb_per_s));
        EXPECT_EQ(spec_of(d.option), s.want) << s.where << ": " << d.reason;
    }
    EXPECT_EQ(dsc_codec_resolve(dscomm_codec("none"), DSCOMM_BFLOAT16), dscomm_codec("bf16"));
}

/* INT8 and FP8 have one size and one speed: what is taken is preference, and it says so. */
TEST(Seed, Int8BeforeFp8IsPreference)
{
    const Seed &s = kSeed[1];
    struct dsc_rates rates = seed_rates(s, s.gb_per_s);
    const struct dsc_question q = question_of(8, {}, kElems, s.budget);
    const struct dsc_decision d = choose(q, rates);

    EXPECT_TRUE(d.is_preference);
    EXPECT_NE(std::string(d.reason).find("preferred to fp8"), std::string::npos) << d.reason;
    for (uint32_t i = 0; i < rates.n_speeds; i++) /* a faster FP8 is taken for its cost */
        if (std::string(rates.speeds[i].spec) == "fp8")
            rates.speeds[i].send_fs = rates.speeds[i].own_fs = rates.speeds[i].decode_fs = 300;
    EXPECT_EQ(chosen(q, rates), "fp8");
    EXPECT_FALSE(choose(q, rates).is_preference);
}

/* The least of [low, high) where is_less(x) turns false. */
template <typename F> double crossover(double low, double high, F is_below)
{
    EXPECT_TRUE(is_below(low));
    EXPECT_FALSE(is_below(high));
    for (int i = 0; i < 40; i++) {
        const double mid = (low + high) / 2;
        (is_below(mid) ? low : high) = mid;
    }
    return high;
}

/* Of memory traffic per element on 8 ranks: 7/8 send, 7/8 add, 1/8 own, 7/8 decode. */
double codec_ps(const std::string &spec, double memory_gbps)
{
    for (const Moved &m : frozen_kernels())
        if (spec == m.spec)
            return (7 * m.send + 7 * m.add + m.own + 7 * m.decode) / 8 * 1000 / memory_gbps;
    return 0;
}

struct Flip {
    const char *budget;
    const char *fewer, *preferred;       /* fewer bytes on slow links; taken on fast ones */
    double fewer_bytes, preferred_bytes; /* per element of a message */
};

/*
 * The rate of the link where both cost the same, but for the 2 % that preference takes: 14/8
 * messages' elements in wire, codecs, and the fixed time of two latencies and the call.
 */
double crossover_by_hand(const Flip &f, double memory)
{
    const double fixed_ps = (2 * 10000 + 5000) * 1e3 / double(kElems);
    const double wire = 1.75 * 1000 * (f.preferred_bytes - 1.02 * f.fewer_bytes);

    return wire /
           (1.02 * codec_ps(f.fewer, memory) - codec_ps(f.preferred, memory) + 0.02 * fixed_ps);
}

TEST(Seed, ChoicesFlipWhereTheArithmeticSays)
{
    const Flip flips[] = {
        { "balanced", "int8", "none", 1 + 4 / 256.0, 2 },
        { "aggressive", "topk:0.01,fp8", "int4:signed", 0.01 * (1 + 2 + 4 / 256.0),
          0.5 + 2 / 64.0 },
    };
    for (const Flip &f : flips)
        for (double memory : { 4300.0, 1500.0, 900.0 }) {
            const struct dsc_question q = question_of(8, {}, kElems, f.budget);
            const double at = crossover(10, 20000, [&](double gbps) {
                return chosen(q, seed_rates(kSeed[2], gbps, memory)) == f.fewer;
            });
            EXPECT_NEAR(at / crossover_by_hand(f, memory), 1, 0.03) << f.fewer << " " << memory;
            EXPECT_EQ(chosen(q, seed_rates(kSeed[2], at * 1.001, memory)), f.preferred) << memory;
        }
}

TEST(Seed, ChoicesFlipWithTheCodecsSpeed)
{
    const struct dsc_question q = question_of(8, {}, kElems, "balanced");
    const auto rates_at = [&](double factor) {
        struct dsc_rates rates = seed_rates(kSeed[1], 385);
        for (uint32_t i = 0; i < rates.n_speeds; i++)
            if (std::string(rates.speeds[i].spec) != "none")
                for (uint32_t *fs : { &rates.speeds[i].send_fs, &rates.speeds[i].add_fs,
                                      &rates.speeds[i].own_fs, &rates.speeds[i].decode_fs })
                    *fs = uint32_t(*fs * factor);
        return rates;
    };
    EXPECT_EQ(chosen(q, rates_at(1)), "int8");
    const double at = crossover(1, 50, [&](double x) { return chosen(q, rates_at(x)) == "int8"; });
    EXPECT_EQ(chosen(q, rates_at(at * 1.01)), "none");
    /* Wire saved against codec time, as in the table's own figures. */
    const auto options = options_of(q, rates_at(at));
    const struct dsc_option coded = find(options, "int8", DSC_ALG_TWO_SHOT, 1);
    const struct dsc_option plain = find(options, "none", DSC_ALG_TWO_SHOT, 1);
    EXPECT_NEAR(double(coded.total_ns) / double(plain.total_ns), 0.98, 0.01);
}

TEST(Seed, NoBelowTheCrossoverSize)
{
    for (const Seed &s : kSeed) {
        if (std::string(s.want) == "none")
            continue;
        const struct dsc_rates rates = seed_rates(s, s.gb_per_s);
        EXPECT_EQ(chosen(question_of(8, {}, 1024, s.budget), rates), "none") << s.where;
        const double at = crossover(1024, double(kElems), [&](double n) {
            return chosen(question_of(8, {}, size_t(n), s.budget), rates) == "none";
        });
        EXPECT_GT(at, 4096) << s.where;
        EXPECT_LT(at, 4 << 20) << s.where;
    }
}

/* Overlapped, the memory's time is beside the wire's: int4 keeps the link busy for less than top-k
 * keeps the memory. That is where the table of the device without overlap is wrong. */
TEST(Seed, OverlapDisagrees)
{
    struct dsc_rates rates = seed_rates(kSeed[2], 200);

    rates.overlap = 1;
    EXPECT_EQ(chosen(question_of(8, {}, kElems, "aggressive"), rates), "int4:signed");
}

/* ---- the rest ---- */

TEST(Tuner, WhatMayNotBeChosen)
{
    struct dsc_question q = question_of(8, {}, kElems, "aggressive");
    const struct dsc_rates rates = seed_rates(kSeed[2], 1);

    EXPECT_EQ(chosen(q, rates), "topk:0.01,fp8");
    q.banned = dsc_tuner_bit(dscomm_codec("topk:0.01,fp8"));
    EXPECT_EQ(chosen(q, rates), "topk:0.01");
    q.banned |= dsc_tuner_bit(dscomm_codec("topk:0.01"));
    EXPECT_EQ(chosen(q, rates), "int4:signed");
    q.banned = 0;
    q.op = DSCOMM_MAX;
    q.feedback = false;
    EXPECT_EQ(chosen(q, rates), "int4:signed");
    EXPECT_EQ(dsc_tuner_bit(dscomm_codec("int8:block=16")), 0u);
}

TEST(Tuner, SharedMemoryIsNoLinkToSpare)
{
    for (const bool in_memory : { true, false }) {
        struct dsc_question q = plain_question(2, 1 << 24);

        q.in_memory = in_memory;
        EXPECT_EQ(chosen(q, plain_rates(1000000000)), in_memory ? "none" : "int8");
    }
}

/* What feedback costs is no cost of `none`: there is nothing to feed back. */
TEST(Tuner, NoneLeavesTheResidualAlone)
{
    struct dsc_rates rates = plain_rates(1000000000);
    struct dsc_question q = plain_question(2, 1 << 24);

    EXPECT_EQ(chosen(q, rates), "int8");
    for (uint32_t i = 0; i < 3; i++) {
        rates.speeds[3 + i] = rates.speeds[i];
        rates.speeds[3 + i].feedback = 1;
        rates.speeds[3 + i].send_fs *= 1000;
    }
    rates.n_speeds = 6;
    q.feedback = true;
    EXPECT_EQ(chosen(q, rates), "none");
}

/* Of chunks that cost the same the one whose messages are two TCP segments. */
TEST(Tuner, ChunksByTheLengthOfMessages)
{
    struct dsc_rates rates = plain_rates(1000000000);

    struct dsc_question q = plain_question(2, 1 << 24);
    EXPECT_EQ(choose(q, rates).option.choice.chunk_elems, 64256u);
    q.budget.name = DSC_BUDGET_EXACT;
    EXPECT_EQ(choose(q, rates).option.choice.chunk_elems, 32256u);
}

/* What a program asks about one codec, candidates or not. */
TEST(Tuner, OneCodecAlone)
{
    struct dsc_question q = question_of(8, {}, kElems, "exact");
    const struct dsc_rates rates = seed_rates(kSeed[2], 200);

    q.codec = dscomm_codec("int8");
    for (const struct dsc_option &o : options_of(q, rates))
        EXPECT_EQ(spec_of(o), "int8");
    EXPECT_EQ(chosen(q, rates), "int8");
    q.codec = dscomm_codec("int8:block=16");
    EXPECT_NE(std::string(choose(q, rates).reason).find("the speed of int8:block=16 is not known"),
              std::string::npos);
}

TEST(Tuner, OneRankOrNoElements)
{
    const struct dsc_rates rates = plain_rates(1000);

    for (const struct dsc_question &q : { plain_question(1, 1000), plain_question(4, 0) }) {
        const struct dsc_decision d = choose(q, rates);
        EXPECT_EQ(d.option.choice.algorithm, DSC_ALG_AUTO);
        EXPECT_EQ(spec_of(d.option), "none");
    }
}

TEST(Tuner, AnswersAreEqualAndSorted)
{
    const std::vector<int> groups = host_groups(2, 4);
    struct dsc_rates rates =
        frozen_device({ { DSC_TIER_HOST, 20, 1000 }, { DSC_TIER_TCP, 1, 30000 } });

    for (size_t count : { 1u, 255u, 4096u, 100003u, 1u << 22 })
        for (uint32_t overlap : { 0u, 1u }) {
            rates.overlap = overlap;
            const struct dsc_question q = question_of(8, groups, count, "aggressive");
            const auto a = options_of(q, rates), b = options_of(q, rates);
            ASSERT_EQ(a.size(), b.size());
            ASSERT_GT(a.size(), 20u);
            for (size_t i = 0; i < a.size(); i++) {
                EXPECT_EQ(memcmp(&a[i], &b[i], sizeof(a[i])), 0);
                EXPECT_TRUE(i == 0 || a[i - 1].total_ns <= a[i].total_ns);
            }
        }
}

/* Every allocation may fail: a status, nothing left behind, and the same answer afterwards. */
TEST(Tuner, OutOfMemory)
{
    const std::vector<int> groups = host_groups(2, 2);
    const struct dsc_rates rates =
        frozen_device({ { DSC_TIER_HOST, 20, 1000 }, { DSC_TIER_TCP, 1, 30000 } });
    const struct dsc_question q = question_of(4, groups, 4096, "aggressive");
    const struct dsc_decision want = choose(q, rates);
    const size_t live = dsc_mem_live(DSC_MEM_PLAN) + dsc_mem_live(DSC_MEM_TUNER);
    int64_t n_failed = 0, n_tried = 0;

    dscomm_set_log([](void *, dscomm_log_level_t, const char *) {}, nullptr);
    for (int64_t k = 1; n_failed == n_tried; k = k * 9 / 8 + 1, n_tried++) {
        struct dsc_decision got = {};
        dsc_mem_fail_after(k);
        const dscomm_status_t st = dsc_tuner_choose(&q, &rates, &got);
        dsc_mem_fail_after(-1);
        n_failed += st == DSCOMM_ERR_NO_MEMORY;
        if (st == DSCOMM_OK) /* k is beyond the last one */
            EXPECT_STREQ(got.reason, want.reason);
        EXPECT_EQ(dsc_mem_live(DSC_MEM_PLAN) + dsc_mem_live(DSC_MEM_TUNER), live) << k;
    }
    EXPECT_GT(n_failed, 20);
    dscomm_set_log(nullptr, nullptr);
}

/* A decision is made within a call: 64 MiB of float32 on 8 ranks. Loose: the machine may be busy.
 */
TEST(Tuner, IsFast)
{
    const struct dsc_rates rates = seed_rates(kSeed[2], 200);
    const struct dsc_question q = question_of(8, {}, 16 << 20, "aggressive");
    double best_ms = 1e9;

    EXPECT_GE(options_of(q, rates).size(), 30u);
    for (int i = 0; i < 5; i++) {
        const auto start = std::chrono::steady_clock::now();
        (void)choose(q, rates);
        best_ms = std::min(best_ms, std::chrono::duration<double, std::milli>(
                                        std::chrono::steady_clock::now() - start)
                                        .count());
    }
    EXPECT_LT(best_ms, 60);
}

} /* namespace */
