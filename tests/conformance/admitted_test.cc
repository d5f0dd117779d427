/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tuner admits, a communicator with the same settings takes: whichever candidate is
 * cheapest on some machine, its plan can be made and runs.
 */
#include <gtest/gtest.h>

#include "support/choose.h"
#include "support/world.h"

namespace {

using Options = std::vector<dsc_option>;

constexpr int RANKS = 4;

/* Everything is known and equally good. */
dsc_rates any_rates(int n_tiers)
{
    dsc_rates rates = {};
    size_t n_specs = 0;
    const char *const *const specs = dsc_tuner_specs(&n_specs);

    rates.version = DSC_RATES_VERSION;
    rates.n_tiers = (uint32_t)n_tiers;
    for (int t = 0; t < n_tiers; t++) {
        rates.tiers[t].kind = DSC_TIER_GIVEN;
        rates.tiers[t].latency_ns = 1000;
        rates.tiers[t].bytes_per_s = rates.tiers[t].bytes_per_s_alone = 1000000000;
    }
    for (size_t i = 0; i <= n_specs; i++) {
        dsc_codec_speed *const speed = &rates.speeds[rates.n_speeds++];

        snprintf(speed->spec, sizeof(speed->spec), "%s", i < n_specs ? specs[i] : "fp32");
        speed->dtype = DSCOMM_FLOAT32;
        speed->send_fs = speed->add_fs = speed->own_fs = speed->decode_fs = 1000;
    }
    rates.cpus_per_host = rates.ranks_per_host = RANKS;
    rates.call_ns = 1000;
    return rates;
}

dsc_question question_of(const dscomm_comm_t *comm, size_t bytes, dscomm_dtype_t dtype,
                         bool feedback)
{
    dsc_question q = {};

    q.n_ranks = RANKS;
    q.n_tiers = comm->tiers.n_tiers;
    q.groups = comm->tiers.groups;
    q.count = bytes / (dtype == DSCOMM_FLOAT32 ? 4 : 2);
    q.dtype = dtype;
    q.op = DSCOMM_SUM;
    q.feedback = feedback;
    q.budget.name = DSC_BUDGET_AGGRESSIVE;
    q.message_bytes = dsc_slot_bytes(comm->config.chunk_bytes);
    return q;
}

Options admitted(const dsc_question &q)
{
    const dsc_rates rates = any_rates(q.n_tiers);
    Options all(DSC_OPTIONS_MAX), admitted;
    size_t n = 0, n_long = 0;

    EXPECT_EQ(dsc_tuner_options(&q, &rates, all.data(), &n), DSCOMM_OK) << dscomm_last_error();
    for (size_t i = 0; i < n; i++) {
        const std::string reason = all[i].reason;

        n_long += reason.find("connections carry") != std::string::npos;
        if (all[i].is_admitted)
            admitted.push_back(all[i]);
    }
    EXPECT_GT(admitted.size(), 10u);
    EXPECT_EQ(n_long > 0, q.count >= 1 << 18) << q.count;
    return admitted;
}

dscomm_status_t make_plan(dscomm_comm_t *comm, const dsc_question &q, const dsc_choice &choice)
{
    const uint32_t ticket = dsc_turns_take(&comm->turns);
    dsc_shape shape = dsc_shape_make(DSC_ALLREDUCE, q.count, q.dtype, q.op,
                                     choice.codecs[choice.n_tiers - 1], q.feedback);
    dsc_plan_entry *entry = nullptr;

    shape.choice = choice;
    dsc_turns_wait(&comm->turns, ticket);
    const dscomm_status_t st = dsc_comm_plan(comm, &shape, &entry);
    dsc_turns_end(&comm->turns, ticket);
    return st;
}

std::string text_of(const dsc_option &o)
{
    return std::string(dsc_algorithm_name(o.choice.algorithm)) + " " +
           o.choice.codecs[o.choice.n_tiers - 1]->spec + " chunk " +
           std::to_string(o.choice.chunk_elems) + " tiers " + std::to_string(o.choice.n_tiers);
}

void expect_plans(const char *tiers, size_t bytes, dscomm_dtype_t dtype, bool feedback)
{
    const World w(RANKS);

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];

        ASSERT_EQ(dsc_comm_set_tiers(comm, nullptr, tiers), DSCOMM_OK);
        const dsc_question q = question_of(comm, bytes, dtype, feedback);
        for (const dsc_option &o : admitted(q))
            ASSERT_EQ(make_plan(comm, q, o.choice), DSCOMM_OK)
                << text_of(o) << ": " << dscomm_last_error();
    });
}

TEST(Admitted, PlansCanBeMade)
{
    for (const char *tiers : { "0-1|2-3", "0|1-3" })
        for (size_t bytes : { 1u << 16, 1u << 20, 1u << 23, 1u << 26 })
            expect_plans(tiers, bytes, DSCOMM_FLOAT32, true);
    for (size_t bytes : { 1u << 20, 1u << 26 })
        expect_plans("0-1|2-3", bytes, DSCOMM_BFLOAT16, false);
}

void expect_runs(dscomm_comm_t *comm, const dsc_question &q, const dsc_option &o)
{
    const std::vector<float> in(q.count, 1.0f);
    std::vector<float> out(q.count);

    ASSERT_EQ(chosen_allreduce(comm, o.choice, in.data(), out.data(), q.count, q.dtype, q.op,
                               o.choice.codecs[o.choice.n_tiers - 1], nullptr),
              DSCOMM_OK)
        << text_of(o) << ": " << dscomm_last_error();
    EXPECT_EQ(out[0], RANKS) << text_of(o);
}

TEST(Admitted, PlansRun)
{
    for (size_t bytes : { 4u, 12u, 1028u, 1u << 16, 3u << 20 }) {
        const World w(RANKS);

        w.each([&](int r) {
            dscomm_comm_t *const comm = w.comms[(size_t)r];

            ASSERT_EQ(dsc_comm_set_tiers(comm, nullptr, "0-1|2-3"), DSCOMM_OK);
            const dsc_question q = question_of(comm, bytes, DSCOMM_FLOAT32, false);
            for (const dsc_option &o : admitted(q))
                expect_runs(comm, q, o);
        });
    }
}

/* Connections for which all candidates are too long: the communicator's own rules. */
TEST(Admitted, AutoTakesAnySlots)
{
    for (size_t chunk_bytes : { 1024, 20000 }) {
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

        config.chunk_bytes = chunk_bytes;
        const World w(2, "loopback", config);

        w.each([&](int r) {
            for (size_t count : { 100, 300000 }) {
                const std::vector<float> in(count, 1.0f);
                std::vector<float> out(count);

                ASSERT_EQ(dscomm_allreduce_compressed(in.data(), out.data(), count, DSCOMM_FLOAT32,
                                                      DSCOMM_SUM, dscomm_codec("auto:aggressive"),
                                                      nullptr, w.comms[(size_t)r], nullptr),
                          DSCOMM_OK)
                    << dscomm_last_error();
                EXPECT_EQ(out[count - 1], 2.0f);
            }
        });
    }
}

/* By hand too: with the default settings tiers take every codec, whatever the length. */
TEST(Admitted, TiersTakeEveryCodecByDefault)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
    size_t n_specs = 0;
    const char *const *const specs = dsc_tuner_specs(&n_specs);

    config.algorithm = "tiered";
    const World w(RANKS, "loopback", config);

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];

        ASSERT_EQ(dsc_comm_set_tiers(comm, nullptr, "0-1|2-3"), DSCOMM_OK);
        for (size_t i = 0; i < n_specs; i++)
            for (size_t count : { 1000, 300000, 5000000 }) {
                const dscomm_plan_t *plan = nullptr;

                ASSERT_EQ(dscomm_plan_create(comm, count, DSCOMM_FLOAT32, DSCOMM_SUM,
                                             dscomm_codec(specs[i]), 0, &plan),
                          DSCOMM_OK)
                    << specs[i] << " count " << count << ": " << dscomm_last_error();
            }
    });
}

/* A segment nearly fits: slots are a little longer. Else they are as they were asked for. */
TEST(Admitted, SlotsHoldAChunk)
{
    EXPECT_EQ(dsc_slot_bytes(257024), 262144u);
    EXPECT_EQ(dsc_slot_bytes(262144), 262144u);
    EXPECT_EQ(dsc_slot_bytes(262145), 263168u);
    EXPECT_EQ(dsc_slot_bytes(1024), 1024u);
    EXPECT_EQ(dsc_slot_bytes(4097), 5120u);
    EXPECT_EQ(dsc_slot_bytes(67108864), 67108864u);
    for (const char *spec : { "topk:0.01", "nvfp4", "lossless", "int8,entropy" })
        EXPECT_LE(dscomm_codec(spec)->tile_align, (uint32_t)DSC_LARGEST_UNIT);
}

} // namespace
