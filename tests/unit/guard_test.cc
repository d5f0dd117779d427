/* SPDX-License-Identifier: Apache-2.0 */
/* The guard: what is found in an epoch, from when on it counts, and where the limits are. */
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "support/internal_begin.h"
#include "tuner/tuner.h"
#include "support/internal_end.h"

namespace {

constexpr uint32_t million = 1000000;

struct Fed {
    dsc_guard guard;
    dsc_guard_call call = {};
    uint32_t wait_ppm = 600000;
    bool on_wire = true; /* is what is predicted */

    explicit Fed(const char *spec = "int8", uint32_t e0_ppm = 8000)
    {
        dsc_guard_init(&guard);
        call.codec = dscomm_codec(spec);
        call.number = 4;
        call.e0_ppm = e0_ppm;
        call.bytes = 1 << 20;
        call.predicted_ns = 1000000;
    }
    void feed(int n, uint32_t error_ppm, uint32_t residual_ppm = 0, uint64_t ns = 0,
              bool overflow = false)
    {
        const dsc_note note = { error_ppm, residual_ppm, ns * 1024 / call.bytes, wait_ppm,
                                overflow };

        call.wire_ns = on_wire ? call.predicted_ns : 0;
        for (int i = 0; i < n; i++)
            dsc_guard_feed(&guard, dsc_note_pack(&note), &call);
    }
    void to_epoch(uint64_t epoch)
    {
        while (guard.calls < epoch * DSC_EPOCH_CALLS)
            feed(1, 0);
    }
    std::string last() const
    {
        return guard.n_events == 0 ? "" : dsc_guard_at(&guard, guard.n_events - 1)->text;
    }
};

/* Codes of notes are rounded down: a value that is safely above, and one that is not. */
constexpr uint32_t above = 17600, below = 15900; /* of 2 * 8000 */

TEST(Guard, TwoBadNotesAreNone)
{
    Fed f;

    f.feed(2, above);
    f.to_epoch(10);
    EXPECT_EQ(f.guard.version, 0u);
    EXPECT_EQ(f.guard.now.limit_ppm, DSC_NO_LIMIT);
    EXPECT_EQ(f.guard.n_events, 0u);
}

TEST(Guard, ThreeBadNotesBanTheCodecFromTheSecondNextEpochOn)
{
    Fed f;

    f.to_epoch(3);
    f.feed(1, above);
    f.feed(5, below);
    f.feed(1, above);
    f.feed(10, below);
    EXPECT_EQ(f.guard.n_events, 0u);
    f.feed(1, above);
    EXPECT_EQ(f.guard.n_events, 1u);
    EXPECT_NE(f.last().find("int8 banned from call 160 on"), std::string::npos) << f.last();
    f.to_epoch(5);
    EXPECT_EQ(f.guard.now.limit_ppm, 8000u);
    EXPECT_EQ(f.guard.version, 1u);
}

TEST(Guard, UntilThenDecisionsStay)
{
    Fed f;

    f.feed(3, above);
    f.feed(2 * DSC_EPOCH_CALLS - 4, 0);
    EXPECT_EQ(f.guard.calls, 63u);
    EXPECT_EQ(f.guard.now.limit_ppm, DSC_NO_LIMIT);
    EXPECT_EQ(f.guard.version, 0u);
    f.feed(1, 0);
    EXPECT_EQ(f.guard.now.limit_ppm, 8000u);
    EXPECT_EQ(f.guard.version, 1u);
    f.to_epoch(9); /* and nothing changes any more */
    EXPECT_EQ(f.guard.version, 1u);
}

/* The last call of an epoch still belongs to it, the first of the next one does not. */
TEST(Guard, TheLastCallOfAnEpochCountsInIt)
{
    for (const int before : { 29, 30 }) {
        Fed f;

        f.feed(before, 0);
        f.feed(3, above);
        f.to_epoch(2);
        EXPECT_EQ(f.guard.now.limit_ppm, before == 29 ? 8000u : DSC_NO_LIMIT);
        f.to_epoch(3);
        EXPECT_EQ(f.guard.now.limit_ppm, 8000u);
    }
}

TEST(Guard, BadNotesAgeAfterThirtyTwo)
{
    for (const int between : { 30, 31 }) {
        Fed f;

        f.feed(2, above);
        f.feed(between - 1, 0);
        f.feed(1, above); /* the 32nd note since the first bad one, or the 33rd */
        EXPECT_EQ(f.guard.n_events, between == 30 ? 1u : 0u) << between;
    }
}

TEST(Guard, NotesOfOverflowsAndOfLosslessCallsSayNothingOfCodecs)
{
    Fed f, lossless("none", 0);

    f.feed(50, above, 0, 0, true);
    lossless.feed(50, above);
    EXPECT_EQ(f.guard.n_events + lossless.guard.n_events, 0u);
}

TEST(Guard, ABanWidens)
{
    Fed f("int4:signed", 90000);

    f.feed(3, 200000);
    f.to_epoch(2);
    EXPECT_EQ(f.guard.now.limit_ppm, 90000u);
    EXPECT_NE(dsc_guard_banned(&f.guard) & dsc_tuner_bit(dscomm_codec("int4:signed")), 0u);
    EXPECT_EQ(dsc_guard_banned(&f.guard) & dsc_tuner_bit(dscomm_codec("int8")), 0u);
    f.call.codec = dscomm_codec("int8");
    f.call.e0_ppm = dscomm_codec("int8")->e0_ppm;
    f.feed(3, 200000);
    f.to_epoch(4);
    EXPECT_EQ(f.guard.now.limit_ppm, f.call.e0_ppm);
    EXPECT_NE(dsc_guard_banned(&f.guard) & dsc_tuner_bit(dscomm_codec("int8")), 0u);
    EXPECT_EQ(dsc_guard_banned(&f.guard) & dsc_tuner_bit(dscomm_codec("none")), 0u);
    EXPECT_EQ(dsc_guard_banned(&f.guard) & dsc_tuner_bit(dscomm_codec("lossless")), 0u);
    /* a note about what is banned already changes nothing */
    f.call.e0_ppm = 90000;
    f.feed(20, 300000);
    f.to_epoch(8);
    EXPECT_EQ(f.guard.version, 2u);
}

/* ---- growth ---- */

void epoch_of(Fed &f, uint32_t residual_ppm)
{
    f.feed(DSC_EPOCH_CALLS, 0, residual_ppm);
}

TEST(Guard, GrowthOverThreeEpochsBans)
{
    Fed f;

    for (const uint32_t residual : { 20000, 30000, 40000 })
        epoch_of(f, residual);
    EXPECT_EQ(f.guard.n_events, 1u) << "each is above the one before, 0 at first";
    EXPECT_NE(f.last().find("grew over three epochs"), std::string::npos);
    EXPECT_NE(f.last().find("from call 128 on"), std::string::npos) << f.last();
    epoch_of(f, 50000);
    EXPECT_EQ(f.guard.now.limit_ppm, 8000u);
}

TEST(Guard, TwoEpochsOfGrowthDoNot)
{
    Fed f;

    for (const uint32_t residual : { 20000, 30000, 30000, 40000, 50000, 20000, 30000, 40000 })
        epoch_of(f, residual);
    EXPECT_EQ(f.guard.n_events, 0u);
}

/* 2 * 0.008 / (1 - 0.008^2) = 0.016: residuals get there by themselves. */
TEST(Guard, GrowthTowardsItsBoundIsNoNews)
{
    Fed f, topk("topk:0.01", 900000);

    for (uint32_t residual = 2000; residual < 15000; residual += 1500)
        epoch_of(f, residual);
    EXPECT_EQ(f.guard.n_events, 0u);
    for (uint32_t residual = million; residual < 9 * million; residual += million)
        epoch_of(topk, residual);
    EXPECT_EQ(topk.guard.n_events, 0u);
    for (uint32_t residual = 10 * million; residual < 20 * million; residual += 2 * million)
        epoch_of(topk, residual);
    EXPECT_EQ(topk.guard.n_events, 1u);
}

TEST(Guard, EpochsWithoutNotesOfACodecAreLeftOut)
{
    Fed f;
    dsc_guard_call other = f.call;

    other.number = 5;
    for (const uint32_t residual : { 20000, 30000, 40000 }) {
        epoch_of(f, residual);
        for (int i = 0; i < DSC_EPOCH_CALLS; i++)
            dsc_guard_feed(&f.guard, 0, &other);
    }
    EXPECT_EQ(f.guard.n_events, 1u);
}

/* ---- drift ---- */

/* A time that notes have exactly: 8192 ns per KiB. */
constexpr uint64_t observed = 8192 * 1024; /* of a MiB */

void drift_of(Fed &f, uint64_t predicted_ns)
{
    f.call.predicted_ns = predicted_ns;
    f.feed(DSC_EPOCH_CALLS, 0, 0, observed);
}

TEST(Guard, ThirtyPercentIsDrift)
{
    struct {
        uint64_t kib, predicted_ns; /* 10 of it are 10 * 8192 ns */
        bool drifts;
    } cases[] = {
        { 10, 81920, false }, { 13, 81920, true },  { 13, 81921, false },
        { 7, 81920, true },   { 7, 81919, false },  { 20, 81920, true },
        { 5, 81920, true },   { 12, 81920, false }, { 8, 81920, false },
    };

    for (const auto &c : cases) {
        Fed f;

        f.call.bytes = c.kib * 1024;
        f.call.predicted_ns = c.predicted_ns;
        f.feed(DSC_EPOCH_CALLS, 0, 0, 8192 * c.kib);
        EXPECT_EQ(f.guard.n_events, c.drifts ? 1u : 0u) << c.kib << " " << c.predicted_ns;
    }
}

TEST(Guard, DriftScalesTheSlowestTierTwoEpochsLater)
{
    Fed f;

    drift_of(f, observed / 2);
    EXPECT_EQ(f.guard.now.scale_ppm, million);
    drift_of(f, observed / 2); /* known already: no second time */
    EXPECT_NEAR(f.guard.now.scale_ppm, 2 * million, 2000);
    EXPECT_EQ(f.guard.version, 1u);
    EXPECT_EQ(f.guard.n_events, 1u);
    drift_of(f, observed); /* as predicted now */
    drift_of(f, observed);
    EXPECT_EQ(f.guard.version, 1u);
    drift_of(f, 2 * observed); /* and back */
    drift_of(f, 2 * observed);
    EXPECT_NEAR(f.guard.now.scale_ppm, million, 2000);
    EXPECT_EQ(f.guard.version, 2u);
}

TEST(Guard, WhatCpusTakeIsNoDriftOfLinks)
{
    for (const bool waits : { true, false }) {
        Fed longer, less;

        longer.wait_ppm = waits ? 300000 : 100000;
        longer.on_wire = false;
        drift_of(longer, observed / 2);
        EXPECT_EQ(longer.guard.n_events, waits ? 1u : 0u);
        less.wait_ppm = 0;
        less.on_wire = waits;
        drift_of(less, observed * 2);
        EXPECT_EQ(less.guard.n_events, waits ? 1u : 0u);
    }
}

TEST(Guard, CallsThatAreMostlyLatencySayNothingOfRates)
{
    for (const bool is_latency : { true, false }) {
        Fed f;

        f.call.latency_ns = observed / 2 + (is_latency ? 1 : 0);
        drift_of(f, observed / 2);
        EXPECT_EQ(f.guard.n_events, is_latency ? 0u : 1u);
    }
}

TEST(Guard, ScalesStayWithinBounds)
{
    Fed f;

    for (int i = 0; i < 20; i++)
        drift_of(f, 1);
    EXPECT_EQ(f.guard.now.scale_ppm, 100 * million);
    for (int i = 0; i < 20; i++)
        drift_of(f, UINT64_MAX);
    EXPECT_EQ(f.guard.now.scale_ppm, million / 10);
}

TEST(Guard, FewTimesTellNothing)
{
    for (const int n : { 7, 8 }) {
        Fed f;

        f.call.predicted_ns = observed / 2;
        f.feed(n, 0, 0, observed);
        f.feed(DSC_EPOCH_CALLS - n, 0, 0, 0);
        EXPECT_EQ(f.guard.n_events, n == 8 ? 1u : 0u);
    }
    Fed other; /* nor those of calls that the tuner did not choose */
    drift_of(other, 0);
    EXPECT_EQ(other.guard.n_events, 0u);
}

/* ---- robustness ---- */

TEST(Guard, EventsAreARing)
{
    Fed f;

    for (int i = 0; i < 1000; i++)
        dsc_guard_say(&f.guard, "event %d", i);
    EXPECT_EQ(f.guard.n_events, 1000u);
    EXPECT_STREQ(dsc_guard_at(&f.guard, 999)->text, "event 999");
    EXPECT_STREQ(dsc_guard_at(&f.guard, 1000 - DSC_GUARD_EVENTS)->text, "event 936");
}

/* Where 32-bit and 64-bit call numbers wrap nothing happens: epochs divide both. */
TEST(Guard, CallNumbersWrap)
{
    for (const uint64_t start : { UINT64_C(0xffffffc0), UINT64_MAX - 63 }) {
        Fed f, plain;

        f.guard.calls = start;
        for (int i = 0; i < 300; i++) {
            const uint32_t error = i == 40 || i == 50 || i == 60 ? above : 0;

            f.feed(1, error);
            plain.feed(1, error);
            EXPECT_EQ(f.guard.version, plain.guard.version) << i;
            EXPECT_EQ(f.guard.now.limit_ppm, plain.guard.now.limit_ppm) << i;
        }
        EXPECT_EQ(f.guard.version, 1u);
    }
}

/* Told an epoch later, it holds the same before each epoch, and says the same. */
TEST(Guard, LateNotesChangeThingsInTheSameCall)
{
    constexpr uint64_t n_epochs = 60;
    std::mt19937 random(5);
    Fed now, late;
    std::vector<std::pair<uint32_t, uint64_t>> epochs; /* error, time */

    late.guard.is_late = true;
    for (uint64_t e = 0; e < n_epochs; e++)
        epochs.emplace_back(random() % 16 == 0 ? above : below, 400000u << random() % 4);
    for (uint64_t e = 0; e < n_epochs; e++) {
        now.feed(DSC_EPOCH_CALLS, epochs[e].first, 0, epochs[e].second);
        if (e == 0)
            continue;
        late.feed(DSC_EPOCH_CALLS, epochs[e - 1].first, 0, epochs[e - 1].second);
        ASSERT_EQ(late.guard.now.scale_ppm, now.guard.now.scale_ppm) << e;
        ASSERT_EQ(late.guard.now.limit_ppm, now.guard.now.limit_ppm) << e;
        ASSERT_EQ(late.guard.version, now.guard.version) << e;
    }
    late.feed(DSC_EPOCH_CALLS, epochs.back().first, 0, epochs.back().second);
    EXPECT_GT(now.guard.version, 5u);
    ASSERT_EQ(late.guard.n_events, now.guard.n_events);
    ASSERT_GT(now.guard.n_events, 5u);
    for (uint64_t i = 0; i < now.guard.n_events && i < DSC_GUARD_EVENTS; i++)
        EXPECT_STREQ(dsc_guard_at(&late.guard, i)->text, dsc_guard_at(&now.guard, i)->text);
}

/* Any bits, any predictions: state stays within bounds, and two machines stay alike. */
TEST(Guard, AnyNotesAreHarmless)
{
    std::mt19937_64 random(11);
    Fed a, b;

    for (int i = 0; i < 100000; i++) {
        dsc_guard_call call = {};
        const auto bits = (uint32_t)random();

        call.codec = dscomm_codec("int8");
        call.number = (int)(random() % 12);
        call.e0_ppm = (uint32_t)(random() % 1100000);
        call.predicted_ns = random() >> (random() % 64);
        call.bytes = (random() % (UINT64_C(1) << 46)) >> (random() % 46);
        dsc_guard_feed(&a.guard, bits, &call);
        dsc_guard_feed(&b.guard, bits, &call);
        ASSERT_GE(a.guard.now.scale_ppm, million / 10);
        ASSERT_LE(a.guard.now.scale_ppm, 100 * million);
        ASSERT_GT(a.guard.now.limit_ppm, 0u);
    }
    EXPECT_GT(a.guard.version, 2u);
    EXPECT_EQ(memcmp(&a.guard, &b.guard, sizeof(a.guard)), 0);
}

} // namespace
