/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of plans, by hand: what is counted, what waits for what, which speeds hold. */
#include "unit/tuner_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace {

using namespace tuner_test;

/* ---- arithmetic ---- */

TEST(Cost, MulDivIsExactAndSaturates)
{
    EXPECT_EQ(dsc_mul_div(10, 3, 4), 7u);
    EXPECT_EQ(dsc_mul_div(UINT64_MAX, 1, 1), UINT64_MAX);
    EXPECT_EQ(dsc_mul_div(UINT64_MAX, 1000, 1), UINT64_MAX);
    EXPECT_EQ(dsc_mul_div(0, UINT64_MAX, 1), 0u);
    EXPECT_EQ(dsc_mul_div(5, 0, 7), 0u);
    for (double a : { 1.0, 999.0, 123456789.0, 987654321987.0 })
        for (double c : { 1.0, 7.0, 117000000.0, 800000000000.0 }) {
            const double want = std::min(a * 1e9 / c, std::pow(2, 64));
            EXPECT_NEAR(double(dsc_mul_div(uint64_t(a), 1000000000, uint64_t(c))), want,
                        1 + 1e-9 * want);
        }
}

/* ---- simple plans, by hand ---- */

TEST(Cost, TwoShotOfTwoRanksWithoutOverlap)
{
    const size_t n = 1 << 20;
    const auto options = options_of(plain_question(2, n), plain_rates(1000000000));
    const struct dsc_option o = find(options, "none", DSC_ALG_TWO_SHOT, 1);

    /* Up and down half the vector each way; a latency per stage. */
    EXPECT_EQ(o.tx_bytes[0], 4 * n);
    EXPECT_EQ(o.wire_ns[0], 4 * n);
    EXPECT_EQ(o.latency_ns, 2000u);
    EXPECT_EQ(o.codec_ns, (n / 2 * (100 + 200 + 400 + 800)) / 1000);
    EXPECT_EQ(o.total_ns, o.wire_ns[0] + o.latency_ns + o.codec_ns);
}

TEST(Cost, OneShotSendsTheWholeVectorToAll)
{
    const size_t n = 1 << 16;
    const auto options = options_of(plain_question(4, n), plain_rates(1000000000));
    const struct dsc_option o = find(options, "none", DSC_ALG_ONE_SHOT, 1);

    EXPECT_EQ(o.tx_bytes[0], 3 * 4 * n);
    EXPECT_EQ(o.latency_ns, 1000u);
    EXPECT_EQ(o.codec_ns, (n * 100 + 3 * n * 200 + n * 800) / 1000);
}

TEST(Cost, BruckTakesAStepPerDoubling)
{
    const auto options = options_of(plain_question(16, 4096), plain_rates(1000000000));

    EXPECT_EQ(find(options, "none", DSC_ALG_ONE_SHOT, 1).latency_ns, 4000u);
    EXPECT_EQ(find(options, "none", DSC_ALG_TWO_SHOT, 1).latency_ns, 2000u);
}

TEST(Cost, OverlapTakesTheBusiestResourceAndTheEnds)
{
    const size_t n = 16 << 20;
    struct dsc_rates rates = plain_rates(1000000000);

    rates.overlap = 1;
    const auto options = options_of(plain_question(2, n), rates);
    const struct dsc_option o = find(options, "none", DSC_ALG_TWO_SHOT, 1);

    EXPECT_GT(o.total_ns, o.wire_ns[0] + o.latency_ns);
    EXPECT_LT(o.total_ns, o.wire_ns[0] + o.latency_ns + o.codec_ns / 30);
    rates.tiers[0].bytes_per_s *= 1000; /* now the CPU is the busiest */
    const auto fast = options_of(plain_question(2, n), rates);
    const struct dsc_option f = find(fast, "none", DSC_ALG_TWO_SHOT, 1);
    EXPECT_GT(f.total_ns, f.cpu_ns);
    EXPECT_LT(f.total_ns, f.cpu_ns + f.latency_ns + f.wire_ns[0]);
}

TEST(Cost, RanksThatShareCpusTakeLonger)
{
    const size_t n = 1 << 20;
    struct dsc_rates rates = plain_rates(1000000000);
    struct dsc_question q = plain_question(2, n);
    const uint64_t alone = find(options_of(q, rates), "none", DSC_ALG_TWO_SHOT, 1).codec_ns;

    q.ranks_per_host = 3;
    EXPECT_EQ(find(options_of(q, rates), "none", DSC_ALG_TWO_SHOT, 1).codec_ns, 3 * alone);
    rates.ranks_per_host = 3; /* speeds were measured so */
    EXPECT_EQ(find(options_of(q, rates), "none", DSC_ALG_TWO_SHOT, 1).codec_ns, alone);
}

TEST(Cost, DriftScalesTheWire)
{
    struct dsc_question q = plain_question(2, 1 << 20);
    const struct dsc_rates rates = plain_rates(1000000000);
    const uint64_t before = find(options_of(q, rates), "none", DSC_ALG_TWO_SHOT, 1).wire_ns[0];

    q.scale_ppm[0] = 1500000;
    EXPECT_EQ(find(options_of(q, rates), "none", DSC_ALG_TWO_SHOT, 1).wire_ns[0], before * 3 / 2);
}

TEST(Cost, EachStageCostsCpu)
{
    struct dsc_rates rates = plain_rates(1000000000);
    const auto cpu_ns = [&](enum dsc_algorithm algorithm) {
        return find(options_of(plain_question(4, 4096), rates), "none", algorithm, 1).cpu_ns;
    };
    const uint64_t one = cpu_ns(DSC_ALG_ONE_SHOT), two = cpu_ns(DSC_ALG_TWO_SHOT);

    rates.stage_ns = 7000;
    EXPECT_EQ(cpu_ns(DSC_ALG_ONE_SHOT), one + 7000);
    EXPECT_EQ(cpu_ns(DSC_ALG_TWO_SHOT), two + 14000);
}

TEST(Cost, HeadersAreSent)
{
    const size_t n = 1 << 20;
    struct dsc_rates rates = plain_rates(1000000000);

    rates.header_bytes = 32;
    const auto options = options_of(plain_question(2, n), rates);
    const struct dsc_option o = find(options, "none", DSC_ALG_TWO_SHOT, 1);

    EXPECT_EQ(o.tx_bytes[0], 4 * n + 32 * o.messages / 2); /* as many come as go */
    EXPECT_EQ(o.wire_ns[0], o.tx_bytes[0]);
}

/* Vectors that caches hold half of are moved at half of each cost. */
TEST(Cost, BytesOfLargeCallsAreMovedFromMemory)
{
    const size_t n = 1 << 14;
    struct dsc_rates rates = plain_rates(1000000000);
    const auto moved_ns = [&] {
        const struct dsc_option o =
            find(options_of(plain_question(2, n), rates), "none", DSC_ALG_TWO_SHOT, 1);

        return o.cpu_ns - o.codec_ns;
    };

    rates.tiers[0].byte_fs = 400000;
    rates.tiers[0].far_byte_fs = 600000;
    rates.cache_bytes = 4 * 8 * n; /* in and out, of one rank, are a quarter of it */
    EXPECT_EQ(moved_ns(), 8 * n * 4 / 10);
    rates.cache_bytes = 8 * n;
    EXPECT_EQ(moved_ns(), 8 * n * 6 / 10);
    rates.cache_bytes = 8 * n * 4 / 3;
    EXPECT_NEAR(double(moved_ns()), double(8 * n * 5 / 10), 8);
    rates.tiers[0].far_byte_fs = 0; /* not measured */
    EXPECT_EQ(moved_ns(), 8 * n * 4 / 10);
}

/* ---- who waits for whom ---- */

/* A call of one chunk with overlap: its parts come one after another. */
struct dsc_option one_chunk(const struct dsc_rates &rates, size_t n)
{
    return find(options_of(plain_question(2, n), rates), "none", DSC_ALG_TWO_SHOT, 1);
}

TEST(Cost, BytesThatTheCpuMovesAreNotWaitedForAgain)
{
    const size_t n = 1 << 14; /* 8 bytes of each element on the wire, there and back */
    struct dsc_rates rates = plain_rates(1000000000);

    rates.overlap = 1;
    rates.tiers[0].byte_fs = 400000; /* sent and received: 0.8 ns of the wire's 1 ns */
    const struct dsc_option slow = one_chunk(rates, n);
    EXPECT_EQ(slow.cpu_ns, slow.codec_ns + 4 * n * 2 * 4 / 10);
    EXPECT_NEAR(double(slow.total_ns), double(slow.cpu_ns + slow.wire_ns[0] / 5 + slow.latency_ns),
                4);
    rates.tiers[0].byte_fs = 500000; /* the CPU is what the wire waits for */
    const struct dsc_option even = one_chunk(rates, n);
    EXPECT_NEAR(double(even.total_ns), double(even.cpu_ns + even.latency_ns), 4);
}

TEST(Cost, SharedMemoryIsWrittenAndReadByCodecs)
{
    struct dsc_rates rates = plain_rates(1000000000);

    for (const uint32_t overlap : { 0u, 1u }) {
        rates.overlap = overlap;
        rates.tiers[0].by_memory = 0;
        const struct dsc_option link = one_chunk(rates, 1 << 14);
        rates.tiers[0].by_memory = 1;
        const struct dsc_option memory = one_chunk(rates, 1 << 14);

        EXPECT_EQ(memory.wire_ns[0], link.wire_ns[0]);
        EXPECT_EQ(link.total_ns, link.codec_ns + link.wire_ns[0] + link.latency_ns);
        /* Not less than the memory carries while all ranks copy. */
        EXPECT_EQ(memory.total_ns,
                  std::max(memory.codec_ns, overlap * memory.wire_ns[0]) +
                      (overlap != 0 && memory.wire_ns[0] > memory.codec_ns ? memory.codec_ns : 0) +
                      memory.latency_ns);
    }
}

TEST(Cost, ACpuThatRanksShareWorksForOneWhileTheOtherWaits)
{
    struct dsc_rates rates = plain_rates(1000000000);
    const size_t n = 1 << 14;

    rates.overlap = 1;
    const struct dsc_option alone = one_chunk(rates, n);
    rates.ranks_per_host = 2; /* speeds are those of ranks that share: of one alone they are half */
    const struct dsc_option wire = one_chunk(rates, n);
    EXPECT_EQ(wire.codec_ns, alone.codec_ns);
    EXPECT_EQ(wire.total_ns, alone.total_ns - alone.codec_ns / 2);
    rates.ranks_per_host = 50; /* now the CPU is as busy as the link, or so */
    struct dsc_question q = plain_question(2, n);
    q.ranks_per_host = 100;
    const struct dsc_option cpu = find(options_of(q, rates), "none", DSC_ALG_TWO_SHOT, 1);
    EXPECT_EQ(cpu.codec_ns, 2 * alone.codec_ns);
    /* Both are busy: half of the shorter time, as far as it is as long, is in the longer's way. */
    const double a = double(std::max(cpu.cpu_ns, cpu.wire_ns[0]));
    const double b = double(std::min(cpu.cpu_ns, cpu.wire_ns[0]));
    EXPECT_NEAR(double(cpu.total_ns), a + b * b / (2 * a), 1);
}

TEST(Cost, OnlyTheWayOfAMessageIsWaitedFor)
{
    struct dsc_rates rates = plain_rates(1000000000);

    rates.tiers[0].latency_ns = 20000;
    rates.tiers[0].message_ns = 3000; /* sent, and taken */
    rates.stage_ns = 5000;            /* asleep, and awake again */
    EXPECT_EQ(one_chunk(rates, 1 << 14).latency_ns, 2u * (20000 - 2 * 3000 - 5000));
    rates.stage_ns = 20000;
    EXPECT_EQ(one_chunk(rates, 1 << 14).latency_ns, 0u);
}

TEST(Cost, ASumOnTheWayUpComesFromOneVectorAndGoesToAnother)
{
    struct dsc_rates rates = plain_rates(1000000000);
    const size_t n = 1 << 20;

    rates.n_tiers = 2;
    rates.tiers[1] = rates.tiers[0];
    const std::vector<int> groups = host_groups(2, 2);
    struct dsc_question q = question_of(4, groups, n, "balanced");
    q.dtype = DSCOMM_FLOAT32;
    /* Half is sent; a half is summed (one message); its half is sent on, the other one is owned
     * and gets the other host's; then a quarter and a half come back. */
    EXPECT_EQ(find(options_of(q, rates), "none", DSC_ALG_TWO_SHOT, 2).codec_ns,
              (n / 2 * 100 + n / 2 * (200 + 2 * 800) + n / 4 * 100 + n / 4 * (200 + 400) +
               (n / 4 + n / 2) * 800) /
                  1000);
}

/* ---- vectors that caches do not hold ---- */

struct dsc_rates far_rates()
{
    struct dsc_rates rates = plain_rates(1000000000);

    for (uint32_t s = 0; s < rates.n_speeds; s++) {
        struct dsc_codec_speed *const speed = &rates.speeds[s];
        speed->far_send_fs = 3 * speed->send_fs;
        speed->far_own_fs = 3 * speed->own_fs;
        speed->far_decode_fs = 3 * speed->decode_fs;
    }
    return rates;
}

uint64_t codec_ns(const struct dsc_rates &rates, size_t n, const char *spec, int ranks_per_host)
{
    struct dsc_question q = plain_question(2, n);

    q.ranks_per_host = ranks_per_host;
    return find(options_of(q, rates), spec, DSC_ALG_TWO_SHOT, 1).codec_ns;
}

TEST(Cost, VectorsBeyondTheCacheTakeTheSpeedsOfMemory)
{
    const size_t n = 1 << 20;
    struct dsc_rates rates = far_rates();
    const uint64_t near_ns = n / 2 * (100 + 200 + 400 + 800) / 1000;
    const uint64_t far_ns = n / 2 * (300 + 200 + 1200 + 2400) / 1000; /* messages stay near */

    EXPECT_EQ(codec_ns(rates, n, "none", 1), near_ns) << "cache not known";
    rates.cache_bytes = 16 * n; /* 4 bytes in, 4 out: half of it */
    EXPECT_EQ(codec_ns(rates, n, "none", 1), near_ns);
    rates.cache_bytes = 8 * n * 4 / 3; /* three quarters of it */
    EXPECT_NEAR(double(codec_ns(rates, n, "none", 1)), double(near_ns + far_ns) / 2,
                1e-5 * double(far_ns));
    for (const uint64_t cache : { 8 * n, 4 * n, n / n }) {
        rates.cache_bytes = cache;
        EXPECT_EQ(codec_ns(rates, n, "none", 1), far_ns) << cache;
    }
}

TEST(Cost, RanksAndResidualsShareTheCache)
{
    const size_t n = 1 << 20;
    struct dsc_rates rates = far_rates();

    rates.cpus_per_host = rates.ranks_per_host = 4;
    rates.cache_bytes = 16 * n;
    const uint64_t near_ns = codec_ns(rates, n, "none", 1);
    EXPECT_GT(codec_ns(rates, n, "int8", 1), near_ns) << "a residual in, one out";
    EXPECT_GT(codec_ns(rates, n, "none", 2), near_ns) << "vectors of two ranks";
    rates.cache_bytes = 32 * n;
    EXPECT_EQ(codec_ns(rates, n, "int8", 1), near_ns);
    EXPECT_EQ(codec_ns(rates, n, "none", 2), near_ns);
}

TEST(Cost, SpeedsOfMemoryThatWereNotMeasuredAreThoseOfCaches)
{
    struct dsc_rates rates = plain_rates(1000000000);
    const uint64_t near_ns = codec_ns(rates, 1 << 20, "none", 1);

    rates.cache_bytes = 1;
    EXPECT_EQ(codec_ns(rates, 1 << 20, "none", 1), near_ns);
}

TEST(Reason, NamesThePriceOfACodecWhereThereIsOne)
{
    struct dsc_rates rates = plain_rates(100000000);
    struct dsc_question q = plain_question(2, 1 << 20);
    const auto reason = [&] { return std::string(choose(q, rates).reason); };

    EXPECT_EQ(reason().find("of codec"), std::string::npos) << reason(); /* all take as long */
    for (uint32_t s = 0; s < rates.n_speeds; s++)
        if (std::string(rates.speeds[s].spec) == "int8")
            rates.speeds[s].send_fs += 100000;
    EXPECT_NE(reason().find(" for 0.052 ms of codec;"), std::string::npos) << reason();
}

} /* namespace */
