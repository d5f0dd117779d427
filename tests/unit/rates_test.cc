/* SPDX-License-Identifier: Apache-2.0 */
/* rates: ranges of what comes from outside, the worst of several ranks, bytes. */
#include "support/internal_begin.h"
#include "tuner/tuner.h"
#include "support/internal_end.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>

namespace {

using Wire = std::array<uint8_t, DSC_RATES_WIRE_BYTES>;

struct dsc_codec_speed speed_of(const char *spec, uint32_t fs, bool feedback = false)
{
    struct dsc_codec_speed speed = {};

    snprintf(speed.spec, sizeof(speed.spec), "%s", spec);
    speed.dtype = DSCOMM_FLOAT32;
    speed.feedback = feedback;
    speed.send_fs = fs;
    speed.add_fs = fs + 1;
    speed.own_fs = fs + 2;
    speed.decode_fs = fs + 3;
    speed.far_send_fs = 2 * fs;
    speed.far_own_fs = 2 * fs + 1;
    speed.far_decode_fs = 2 * fs + 2;
    return speed;
}

/* A shared host of two ranks beyond which there is a slow link. */
struct dsc_rates example()
{
    struct dsc_rates rates = {};

    rates.version = DSC_RATES_VERSION;
    rates.n_tiers = 2;
    rates.tiers[0] = { DSC_TIER_HOST, 300, 1500, 9000000000, 5000000000, 110, 1 };
    rates.tiers[1] = { DSC_TIER_TCP, 9000, 40000, 118000000, 117000000, 800, 0 };
    rates.n_speeds = 3;
    rates.speeds[0] = speed_of("int8", 400);
    rates.speeds[1] = speed_of("int8", 700, true);
    rates.speeds[2] = speed_of("topk:0.01", 1500);
    rates.cpus_per_host = 2;
    rates.ranks_per_host = 2;
    rates.call_ns = 2500;
    rates.op_ns = 150;
    rates.overlap = 1;
    rates.header_bytes = 32;
    rates.stage_ns = 4000;
    rates.cache_bytes = 16 << 20;
    return rates;
}

class Rates : public testing::Test {
  protected:
    void SetUp() override
    {
        dscomm_set_log([](void *, dscomm_log_level_t, const char *) {}, nullptr);
    }

    void TearDown() override
    {
        dscomm_set_log(nullptr, nullptr);
    }

    static std::string fault(const struct dsc_rates &rates)
    {
        char text[200] = "";

        const bool ok = dsc_rates_check(&rates, text, sizeof(text));

        EXPECT_EQ(ok, text[0] == '\0');
        return text;
    }

    static Wire wire_of(const struct dsc_rates &rates)
    {
        Wire wire;

        wire.fill(0xAA);
        dsc_rates_wire_put(&rates, wire.data());
        return wire;
    }
};

TEST_F(Rates, BytesGiveTheSameRates)
{
    const struct dsc_rates rates = example();
    struct dsc_rates got;

    ASSERT_EQ(dsc_rates_wire_get(wire_of(rates).data(), 1, &got), DSCOMM_OK);
    EXPECT_EQ(wire_of(got), wire_of(rates));
    EXPECT_EQ(got.tiers[1].latency_ns, 40000u);
    EXPECT_EQ(got.tiers[0].bytes_per_s_alone, 9000000000u);
    EXPECT_STREQ(got.speeds[2].spec, "topk:0.01");
    EXPECT_EQ(got.speeds[1].decode_fs, 703u);
    EXPECT_EQ(got.overlap, 1u);
}

TEST_F(Rates, BytesAreLittleEndianAndFixed)
{
    const Wire wire = wire_of(example());
    const uint8_t version_and_tiers[8] = { 3, 0, 0, 0, 2, 0, 0, 0 };
    const uint8_t latency[8] = { 0xDC, 0x05, 0, 0, 0, 0, 0, 0 }; /* 1500 */

    EXPECT_EQ(wire.size(), 4368u);
    EXPECT_EQ(memcmp(wire.data(), version_and_tiers, 8), 0);
    EXPECT_EQ(memcmp(wire.data() + 48 + 8, latency, 8), 0);
    EXPECT_EQ(memcmp(wire.data() + 48 + 8 * 44, "int8\0", 5), 0);
}

TEST_F(Rates, ValuesOutOfRangeAreNamed)
{
    struct dsc_rates r = example();

    r.version = 1;
    EXPECT_EQ(fault(r), "version is 1, must be 3 to 3");
    r = example();
    r.n_tiers = DSC_TIERS_MAX + 1;
    EXPECT_EQ(fault(r), "n_tiers is 9, must be 0 to 8");
    r = example();
    r.n_speeds = UINT32_MAX;
    EXPECT_EQ(fault(r), "n_speeds is 4294967295, must be 0 to 64");
    r = example();
    r.tiers[1].latency_ns = 0;
    EXPECT_EQ(fault(r), "tiers[1].latency_ns is 0, must be 1 to 10000000000");
    r = example();
    r.tiers[0].bytes_per_s = UINT64_MAX;
    EXPECT_EQ(fault(r),
              "tiers[0].bytes_per_s is 18446744073709551615, must be 1 to 1000000000000000");
    r = example();
    r.tiers[1].kind = 99;
    EXPECT_EQ(fault(r), "tiers[1].kind is 99, must be 0 to 5");
    r = example();
    r.speeds[0].dtype = 7;
    EXPECT_EQ(fault(r), "speeds[0].dtype is 7, must be 0 to 2");
    r = example();
    r.speeds[2].own_fs = 0;
    EXPECT_EQ(fault(r), "speeds[2].own_fs is 0, must be 1 to 1000000000");
    r = example();
    r.cpus_per_host = 0;
    EXPECT_EQ(fault(r), "cpus_per_host is 0, must be 1 to 65536");
}

TEST_F(Rates, SpecsAreTexts)
{
    struct dsc_rates r = example();

    memset(r.speeds[1].spec, 'x', sizeof(r.speeds[1].spec));
    EXPECT_EQ(fault(r), "speeds[1].spec is no codec's text of 1 to 31 characters");
    r = example();
    r.speeds[1].spec[31] = 'x'; /* behind the end */
    EXPECT_NE(fault(r), "");
    r = example();
    r.speeds[1].spec[0] = '\n';
    EXPECT_NE(fault(r), "");
    r = example();
    memset(r.speeds[1].spec, 0, sizeof(r.speeds[1].spec));
    EXPECT_NE(fault(r), "");
    r = example();
    r.speeds[1].feedback = 0;
    EXPECT_EQ(fault(r), "speeds[0] and speeds[1] are both of int8");
}

TEST_F(Rates, WhatIsBeyondTheCountsIsNotLookedAt)
{
    struct dsc_rates r = example();

    r.n_tiers = 1;
    r.tiers[1].kind = 99;
    r.n_speeds = 1;
    r.speeds[1].send_fs = 0;
    EXPECT_EQ(fault(r), "");
}

TEST_F(Rates, BadBytesOfAPeerNameTheRank)
{
    Wire wire = wire_of(example());
    struct dsc_rates got = example();

    got.call_ns = 77;
    wire[4] = 9; /* n_tiers */
    EXPECT_EQ(dsc_rates_wire_get(wire.data(), 3, &got), DSCOMM_ERR_CORRUPT);
    EXPECT_STREQ(dscomm_last_error(), "rates of rank 3: n_tiers is 9, must be 0 to 8");
    EXPECT_EQ(got.call_ns, 77u);
}

TEST_F(Rates, AnyBytesAreRefusedOrCheckOut)
{
    std::mt19937 random(7);
    int n_taken = 0;

    for (int i = 0; i < 5000; i++) {
        Wire wire = wire_of(example());
        struct dsc_rates got;
        const unsigned n = random() % 3;

        for (unsigned k = 0; k < n; k++)
            wire[random() % (i % 2 ? 200 : wire.size())] = static_cast<uint8_t>(random());
        if (dsc_rates_wire_get(wire.data(), 0, &got) < 0)
            continue;
        n_taken++;
        ASSERT_EQ(fault(got), "");
        ASSERT_EQ(wire_of(got), wire);
    }
    EXPECT_GT(n_taken, 1000);
    EXPECT_LT(n_taken, 5000);
}

TEST_F(Rates, TheWorstOfBoth)
{
    struct dsc_rates a = example(), b = example();

    b.tiers[0].latency_ns = 1000;      /* better */
    b.tiers[0].bytes_per_s = 4000000;  /* worse */
    b.tiers[1].bytes_per_s_alone += 5; /* better */
    b.tiers[1].byte_fs = 900;          /* worse */
    b.tiers[1].message_ns = 9001;
    b.speeds[1].add_fs = 5000;
    b.speeds[0].send_fs = 1;
    b.cpus_per_host = 1;
    b.ranks_per_host = 4;
    b.call_ns = 2501;
    b.op_ns = 149;
    b.overlap = 0;
    b.cache_bytes = 8 << 20;
    b.header_bytes = 40;
    b.tiers[0].by_memory = 0; /* then it is a link */
    b.speeds[0].far_own_fs = 5000;
    b.speeds[1].far_own_fs = 0; /* not measured there */
    ASSERT_EQ(dsc_rates_merge(&a, &b), DSCOMM_OK);

    struct dsc_rates want = example();
    want.tiers[0].bytes_per_s = 4000000;
    want.tiers[1].byte_fs = 900;
    want.tiers[1].message_ns = 9001;
    want.speeds[1].add_fs = 5000;
    want.cpus_per_host = 1;
    want.ranks_per_host = 4;
    want.call_ns = 2501;
    want.overlap = 0;
    want.cache_bytes = 8 << 20;
    want.header_bytes = 40;
    want.tiers[0].by_memory = 0;
    want.speeds[0].far_own_fs = 5000;
    EXPECT_EQ(wire_of(a), wire_of(want));
}

TEST_F(Rates, MergingInAnyOrderGivesTheSameNumbers)
{
    std::mt19937 random(1);
    std::array<struct dsc_rates, 4> ranks;

    for (auto &r : ranks) {
        r = example();
        r.tiers[1].bytes_per_s = 1 + random() % 1000;
        r.tiers[0].latency_ns = 1 + random() % 1000;
        r.speeds[2].send_fs = 1 + random() % 1000;
        r.op_ns = random() % 1000;
    }
    struct dsc_rates forth = ranks[0], back = ranks[3];
    for (int i = 1; i < 4; i++) {
        ASSERT_EQ(dsc_rates_merge(&forth, &ranks[i]), DSCOMM_OK);
        ASSERT_EQ(dsc_rates_merge(&back, &ranks[3 - i]), DSCOMM_OK);
    }
    EXPECT_EQ(wire_of(forth), wire_of(back));
}

TEST_F(Rates, CodecsThatARankDoesNotKnowAreDropped)
{
    struct dsc_rates a = example(), b = example();

    b.speeds[0] = b.speeds[2]; /* topk alone, at another place */
    b.speeds[0].send_fs = 9999;
    b.n_speeds = 1;
    ASSERT_EQ(dsc_rates_merge(&a, &b), DSCOMM_OK);
    ASSERT_EQ(a.n_speeds, 1u);
    EXPECT_STREQ(a.speeds[0].spec, "topk:0.01");
    EXPECT_EQ(a.speeds[0].send_fs, 9999u);
    EXPECT_EQ(a.speeds[0].add_fs, 1501u);
    EXPECT_EQ(a.speeds[1].spec[0], '\0');
    EXPECT_EQ(dsc_rates_speed(&a, "topk:0.01", DSCOMM_FLOAT32, false), &a.speeds[0]);
    EXPECT_EQ(dsc_rates_speed(&a, "topk:0.01", DSCOMM_FLOAT32, true), nullptr);
    EXPECT_EQ(dsc_rates_speed(&a, "topk:0.01", DSCOMM_FLOAT16, false), nullptr);
    EXPECT_EQ(dsc_rates_speed(&a, "topk:0.0", DSCOMM_FLOAT32, false), nullptr);
    EXPECT_EQ(dsc_rates_speed(&a, "int8", DSCOMM_FLOAT32, false), nullptr);
}

TEST_F(Rates, ARankAloneInItsGroupTakesTheTiersRatesOfOthers)
{
    struct dsc_rates a = example(), b = example(), none = example();
    const struct dsc_tier_rates kind_alone = { DSC_TIER_HOST, 0, 0, 0, 0, 0 };

    a.tiers[0] = kind_alone;
    ASSERT_EQ(dsc_rates_merge(&a, &b), DSCOMM_OK);
    EXPECT_EQ(wire_of(a), wire_of(example()));
    b.tiers[0] = kind_alone;
    ASSERT_EQ(dsc_rates_merge(&a, &b), DSCOMM_OK);
    EXPECT_EQ(wire_of(a), wire_of(example()));
    none.tiers[0] = kind_alone;
    ASSERT_EQ(dsc_rates_merge(&none, &b), DSCOMM_OK);
    EXPECT_EQ(none.tiers[0].bytes_per_s, 0u);
}

TEST_F(Rates, OtherTiersAndBadValuesAreNotMerged)
{
    struct dsc_rates a = example(), b = example();

    b.n_tiers = 1;
    EXPECT_EQ(dsc_rates_merge(&a, &b), DSCOMM_ERR_MISMATCH);
    b = example();
    b.tiers[1].kind = DSC_TIER_RDMA;
    EXPECT_EQ(dsc_rates_merge(&a, &b), DSCOMM_ERR_MISMATCH);
    EXPECT_STREQ(dscomm_last_error(), "rates of tier 1 are of kind 4 and of kind 3");
    b = example();
    b.n_speeds = 1000;
    EXPECT_EQ(dsc_rates_merge(&a, &b), DSCOMM_ERR_INVALID);
    EXPECT_EQ(wire_of(a), wire_of(example()));
}

} // namespace
