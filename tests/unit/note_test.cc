/* SPDX-License-Identifier: Apache-2.0 */
/* Notes: coding of their fields, merging, and that any 32 bits are one. */
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <random>
#include <sstream>

#include "support/internal_begin.h"
#include "core/core.h"
#include "support/internal_end.h"

namespace {

uint32_t packed(uint64_t error, uint64_t residual, uint64_t ns, uint32_t wait, bool overflow)
{
    const dsc_note note = { error, residual, ns, wait, overflow };

    return dsc_note_pack(&note);
}

TEST(Note, SizesComeBackWithinAStepRoundedDown)
{
    const double step = std::exp2(1.0 / 8);

    for (uint64_t v = 1; v < UINT64_C(200000000); v += 1 + v / 7) {
        const auto back = dsc_note_unpack(packed(v, v, v, 0, false));

        for (const uint64_t got : { back.error_ppm, back.residual_ppm, back.ns_per_kib }) {
            EXPECT_LE(got, v);
            EXPECT_GE((double)got + 2, (double)v / step) << v;
        }
    }
}

TEST(Note, NothingIsZeroBits)
{
    EXPECT_EQ(packed(0, 0, 0, 0, false), 0u);
    const auto none = dsc_note_unpack(0);
    EXPECT_EQ(none.error_ppm | none.residual_ppm | none.ns_per_kib | none.wait_ppm, 0u);
    EXPECT_FALSE(none.overflow);
}

TEST(Note, TooLargeIsTheLargest)
{
    const uint32_t most = packed(UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT32_MAX, true);

    EXPECT_EQ(most, 0xff01ffffu); /* the longest time is the least code */
    EXPECT_EQ(dsc_note_unpack(most).wait_ppm, 1000000u);
    EXPECT_GT(dsc_note_unpack(most).error_ppm, UINT64_C(200000000));
}

/* The least time wins, the most of all else. */
TEST(Note, MergesFieldByField)
{
    const uint32_t a = packed(9000, 100, 800, 900000, false);
    const uint32_t b = packed(5000, 700, 3000, 100000, true);
    const auto m = dsc_note_unpack(dsc_note_merge(a, b));

    EXPECT_EQ(m.error_ppm, dsc_note_unpack(a).error_ppm);
    EXPECT_EQ(m.residual_ppm, dsc_note_unpack(b).residual_ppm);
    EXPECT_EQ(m.ns_per_kib, dsc_note_unpack(a).ns_per_kib);
    EXPECT_EQ(m.wait_ppm, dsc_note_unpack(a).wait_ppm);
    EXPECT_TRUE(m.overflow);
    /* who knows no time takes that of who does */
    EXPECT_EQ(dsc_note_merge(0, b), b);
}

/* The same list is read by the second decoder, tests/golden/decode.py. */
TEST(Note, FieldsAreThoseOfTheGoldenFile)
{
    std::ifstream file(DSC_GOLDEN_NOTES);
    std::string line;
    int n = 0;

    ASSERT_TRUE(file.is_open());
    while (std::getline(file, line)) {
        uint64_t bits, error, residual, ns, wait, overflow;
        std::istringstream fields(line);

        if (line[0] == '#')
            continue;
        fields >> std::hex >> bits >> std::dec >> error >> residual >> ns >> wait >> overflow;
        ASSERT_TRUE(fields) << line;
        const auto note = dsc_note_unpack((uint32_t)bits);
        EXPECT_EQ(note.error_ppm, error) << line;
        EXPECT_EQ(note.residual_ppm, residual) << line;
        EXPECT_EQ(note.ns_per_kib, ns) << line;
        EXPECT_EQ(note.wait_ppm, wait) << line;
        EXPECT_EQ(note.overflow, overflow != 0) << line;
        n++;
    }
    EXPECT_GE(n, 20);
}

/* Whatever order ranks hear of each other in, and however often, it ends the same. */
TEST(Note, MergingIsAMaximumOfAnyBits)
{
    std::mt19937 random(7);

    for (int i = 0; i < 20000; i++) {
        const uint32_t a = random(), b = random(), c = random();
        const uint32_t ab = dsc_note_merge(a, b);

        EXPECT_EQ(ab, dsc_note_merge(b, a));
        EXPECT_EQ(dsc_note_merge(ab, c), dsc_note_merge(a, dsc_note_merge(b, c)));
        EXPECT_EQ(dsc_note_merge(ab, a), ab);
        const auto read = dsc_note_unpack(a);
        EXPECT_LE(read.error_ppm, UINT64_C(300000000));
        EXPECT_LE(read.ns_per_kib, UINT64_C(1) << 32);
        EXPECT_LE(read.wait_ppm, 1000000u);
    }
}

} // namespace
