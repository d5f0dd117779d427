/* SPDX-License-Identifier: Apache-2.0 */
/* measuring a communicator: all ranks get the same rates, in time, and calls go on after it. */
#include "support/internal_begin.h"
#include "comm/measure.h"
#include "support/internal_end.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "support/world.h"

namespace {

using Wire = std::array<uint8_t, DSC_RATES_WIRE_BYTES>;

Wire wire_of(const struct dsc_rates &rates)
{
    Wire wire;

    dsc_rates_wire_put(&rates, wire.data());
    return wire;
}

struct Result {
    std::vector<struct dsc_rates> rates;
    std::vector<dscomm_status_t> status;
    std::vector<std::string> error;
    double ms = 0;
};

Result measure(const World &world, int budget_ms,
               const std::vector<struct dsc_measure_codec> &codecs)
{
    Result r;
    const auto start = std::chrono::steady_clock::now();

    r.rates.resize(world.n);
    r.status.resize(world.n);
    r.error.resize(world.n);
    world.each([&](int rank) {
        struct dscomm_comm *const comm = world.comms[rank];
        const struct dsc_measure what = { codecs.data(), codecs.size() };
        const uint32_t ticket = dsc_turns_take(&comm->turns);

        dsc_turns_wait(&comm->turns, ticket);
        r.status[rank] = dsc_comm_measure(comm, &what, budget_ms, &r.rates[rank]);
        r.error[rank] = dscomm_last_error();
        dsc_turns_end(&comm->turns, ticket);
    });
    r.ms =
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    return r;
}

std::vector<struct dsc_measure_codec> few_codecs()
{
    return { { dscomm_codec("none"), DSCOMM_FLOAT32, false },
             { dscomm_codec("int8"), DSCOMM_FLOAT32, true },
             { dscomm_codec("bf16"), DSCOMM_BFLOAT16, false },
             { dscomm_codec("lossless"), DSCOMM_FLOAT32, false },
             { dscomm_codec("topk:0.01"), DSCOMM_FLOAT32, true } };
}

void expect_good(const Result &r)
{
    char text[200];

    for (size_t rank = 0; rank < r.rates.size(); rank++) {
        ASSERT_EQ(r.status[rank], DSCOMM_OK) << rank << ": " << r.error[rank];
        EXPECT_TRUE(dsc_rates_check(&r.rates[rank], text, sizeof(text))) << text;
        EXPECT_EQ(wire_of(r.rates[rank]), wire_of(r.rates[0])) << "rank " << rank;
    }
}

void expect_sums(const World &world)
{
    world.each([&](int rank) {
        std::vector<float> v(10000, static_cast<float>(rank + 1));
        const float sum = static_cast<float>(world.n * (world.n + 1)) / 2;

        ASSERT_EQ(dscomm_allreduce_compressed(v.data(), v.data(), v.size(), DSCOMM_FLOAT32,
                                              DSCOMM_SUM, nullptr, nullptr, world.comms[rank],
                                              nullptr),
                  DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_EQ(v[0], sum);
        EXPECT_EQ(v[9999], sum);
    });
}

class Measure : public testing::TestWithParam<const char *> {
  protected:
    void SetUp() override
    {
        dscomm_set_log([](void *, dscomm_log_level_t, const char *) {}, nullptr);
    }
    void TearDown() override
    {
        dscomm_set_log(nullptr, nullptr);
    }
};

TEST_P(Measure, AllRanksGetTheSameRates)
{
    for (const int n : { 2, 3, 4 }) {
        const World world(n, GetParam());
        ASSERT_TRUE(world.ok());
        expect_sums(world);
        const Result r = measure(world, 200, few_codecs());
        expect_good(r);
        const struct dsc_rates &rates = r.rates[0];
        ASSERT_EQ(rates.n_tiers, 1u);
        EXPECT_EQ(rates.tiers[0].kind, static_cast<uint32_t>(DSC_TIER_HOST));
        EXPECT_GT(rates.tiers[0].bytes_per_s, 1000000u);
        EXPECT_GT(rates.tiers[0].bytes_per_s_alone, 1000000u);
        EXPECT_GT(rates.tiers[0].latency_ns, 50u);
        EXPECT_LT(rates.tiers[0].latency_ns, 100000000u);
        EXPECT_GT(rates.tiers[0].message_ns, 10u);
        EXPECT_EQ(rates.ranks_per_host, static_cast<uint32_t>(n));
        EXPECT_EQ(rates.cpus_per_host, static_cast<uint32_t>(dsc_cpu_allowed()));
        /* a busy machine may have had no time for the last ones */
        ASSERT_GT(rates.n_speeds, 0u);
        ASSERT_LE(rates.n_speeds, few_codecs().size());
        for (uint32_t i = 0; i < rates.n_speeds; i++)
            EXPECT_STREQ(rates.speeds[i].spec, few_codecs()[i].codec->spec);
        expect_sums(world);
    }
}

TEST_P(Measure, MeasuringTwiceAndCallsBetweenWork)
{
    const World world(3, GetParam());
    ASSERT_TRUE(world.ok());
    for (int i = 0; i < 3; i++) {
        expect_good(measure(world, 60, { { dscomm_codec("int8"), DSCOMM_FLOAT32, false } }));
        expect_sums(world);
    }
}

TEST_P(Measure, TheTimeIsKept)
{
    const World world(4, GetParam());
    struct dsc_measure_codec all[DSC_SPEEDS_MAX];
    const size_t n = dsc_measure_all(all);
    ASSERT_TRUE(world.ok());
    const Result r = measure(world, 300, { all, all + n });
    expect_good(r);
    EXPECT_LT(r.ms, 3000) << "ten times what was asked for, as machines are busy";
    EXPECT_GT(r.rates[0].n_speeds, 0u);
}

INSTANTIATE_TEST_SUITE_P(Transports, Measure, testing::Values("loopback", "shm", "tcp"));

/* Numbers that are smaller than the number of ranks too. */
TEST(MeasureAgreed, LeastMostAndMeanOfAllRanks)
{
    constexpr int n = 8;
    const World world(n, "loopback");
    std::vector<struct dsc_agreed> agreed(n);
    std::vector<dscomm_status_t> status(n);

    ASSERT_TRUE(world.ok());
    world.each([&](int rank) {
        struct dscomm_comm *const comm = world.comms[rank];
        struct dsc_meter meter = {};
        const uint32_t ticket = dsc_turns_take(&comm->turns);

        meter.comm = comm;
        dsc_turns_wait(&comm->turns, ticket);
        status[rank] = dsc_meter_agree(&meter, static_cast<uint64_t>(rank), &agreed[rank]);
        dsc_turns_end(&comm->turns, ticket);
    });
    for (int rank = 0; rank < n; rank++) {
        EXPECT_EQ(status[rank], DSCOMM_OK);
        EXPECT_EQ(agreed[rank].least, 1u) << "of those above 0";
        EXPECT_EQ(agreed[rank].most, 7u);
        EXPECT_EQ(agreed[rank].mean, 28u / n);
    }
}

TEST(MeasureAlone, OneRankHasCodecsAndNoLinks)
{
    const World world(1);
    ASSERT_TRUE(world.ok());
    const Result r = measure(world, 20000, few_codecs());
    expect_good(r);
    ASSERT_EQ(r.rates[0].n_speeds, few_codecs().size());
    for (const auto &codec : few_codecs())
        EXPECT_NE(dsc_rates_speed(&r.rates[0], codec.codec->spec, codec.dtype, codec.feedback),
                  nullptr)
            << codec.codec->spec;
    /* what is packed takes longer than a copy, on any machine */
    EXPECT_GT(r.rates[0].speeds[3].send_fs, 2 * r.rates[0].speeds[0].send_fs);
    /* vectors in memory are timed too, where it is known what is beyond the caches */
    for (uint32_t i = 0; i < r.rates[0].n_speeds; i++) {
        const struct dsc_codec_speed &speed = r.rates[0].speeds[i];
        for (const uint32_t far_fs : { speed.far_send_fs, speed.far_own_fs, speed.far_decode_fs })
            EXPECT_EQ(far_fs != 0, r.rates[0].cache_bytes != 0) << speed.spec;
    }
}

TEST(MeasureErrors, ARankInAnotherCallIsNamed)
{
    dscomm_set_log([](void *, dscomm_log_level_t, const char *) {}, nullptr);
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
    config.timeout_ms = 2000;
    const World world(2, "loopback", config);
    std::vector<dscomm_status_t> status(2);
    ASSERT_TRUE(world.ok());
    expect_sums(world);
    world.each([&](int rank) {
        struct dscomm_comm *const comm = world.comms[rank];
        struct dsc_rates rates;
        const struct dsc_measure what = { nullptr, 0 };
        std::vector<float> v(1000, 1.0f);

        if (rank == 0) {
            const uint32_t ticket = dsc_turns_take(&comm->turns);

            dsc_turns_wait(&comm->turns, ticket);
            status[0] = dsc_comm_measure(comm, &what, 50, &rates);
            dsc_turns_end(&comm->turns, ticket);
        } else {
            status[1] = dscomm_allreduce_compressed(v.data(), v.data(), v.size(), DSCOMM_FLOAT32,
                                                    DSCOMM_SUM, nullptr, nullptr, comm, nullptr);
        }
    });
    EXPECT_LT(status[0], 0);
    EXPECT_LT(status[1], 0);
    for (int r = 0; r < 2; r++)
        EXPECT_LT(dscomm_comm_async_error(world.comms[r], nullptr), 0) << "both have failed";
    dscomm_set_log(nullptr, nullptr);
}

TEST(MeasureErrors, ARankThatNeverComesIsATimeout)
{
    dscomm_set_log([](void *, dscomm_log_level_t, const char *) {}, nullptr);
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
    config.timeout_ms = 300;
    const World world(2, "tcp", config);
    dscomm_status_t status = DSCOMM_OK;
    std::string error;
    ASSERT_TRUE(world.ok());
    expect_sums(world);
    world.each([&](int rank) {
        struct dscomm_comm *const comm = world.comms[rank];
        const struct dsc_measure what = { nullptr, 0 };
        struct dsc_rates rates;

        if (rank == 1)
            return;
        const uint32_t ticket = dsc_turns_take(&comm->turns);
        dsc_turns_wait(&comm->turns, ticket);
        status = dsc_comm_measure(comm, &what, 50, &rates);
        error = dscomm_last_error();
        dsc_turns_end(&comm->turns, ticket);
    });
    EXPECT_EQ(status, DSCOMM_ERR_TIMEOUT);
    EXPECT_NE(error.find("rank 0 waits for rank 1"), std::string::npos) << error;
    dscomm_set_log(nullptr, nullptr);
}

} // namespace
