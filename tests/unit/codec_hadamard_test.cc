/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rotated codecs against numbers worked out by hand, and what they are for: outliers.
 */
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>

#include "unit/codec_test_support.h"

namespace {

double relative_error(const char *spec, const floats &x)
{
    const floats d = round_trip(dscomm_codec(spec), x);
    double err = 0.0, norm = 0.0;

    for (size_t i = 0; i < x.size(); i++) {
        err += std::pow(double(x[i]) - double(d[i]), 2);
        norm += std::pow(double(x[i]), 2);
    }
    return std::sqrt(err / norm);
}

/* Normal values, one in `every` of them `factor` times as large. */
floats with_outliers(size_t every, float factor)
{
    floats x = normal(100000, 31);

    for (size_t i = every / 2; i < x.size(); i += every)
        x[i] *= factor;
    return x;
}

/* Two elements: rotated they are 1 + 6, 1 - 6, and so on in all 16 pairs of the group. */
TEST(CodecHadamard, MessageByHand)
{
    const dscomm_codec_t *codec = dscomm_codec("int4,hadamard");
    Message m(codec, 2);
    floats d(2);
    encode(codec, m, { 1.0f, 6.0f }, d.data());

    std::vector<uint8_t> want(32, 0);
    want[0] = 0x80, want[1] = 0x3f; /* scale 1 */
    for (size_t i = 16; i < 32; i++)
        want[i] = 0xb7; /* 7, -5 */
    EXPECT_EQ(m.bytes(), want);
    EXPECT_TRUE(same_bits(d, { 1.0f, 6.0f }));
}

/* Element i of the matrix's row j is -1 to the number of bits that i and j share. */
TEST(CodecHadamard, UnitVectorsAreRowsOfTheMatrix)
{
    for (size_t j = 0; j < 32; j++) {
        floats x(32, 0.0f), rotated(32), back(32);
        x[j] = 3.0f;
        dsc_kernels_get()->hadamard_rotate(rotated.data(), x.data(), 32);
        for (size_t i = 0; i < 32; i++)
            ASSERT_EQ(rotated[i], __builtin_parity(unsigned(i & j)) != 0 ? -3.0f : 3.0f) << i;
        dsc_kernels_get()->hadamard_restore(back.data(), rotated.data(), 32);
        ASSERT_TRUE(same_bits(back, x)) << j;
    }
}

TEST(CodecHadamard, PaddingIsSent)
{
    for (const char *spec : { "int8", "int4", "fp8", "int8:block=16", "int4:block=128" }) {
        const auto *inner = dscomm_codec(spec);
        const auto *codec = dscomm_codec((std::string(spec) + ",hadamard").c_str());
        ASSERT_NE(codec, nullptr) << spec;
        for (size_t n : { 0, 1, 31, 32, 33, 1000 })
            EXPECT_EQ(dscomm_codec_bound(codec, n), dscomm_codec_bound(inner, (n + 31) / 32 * 32));
    }
}

/* One bad element: its group of 32, or its block of groups. */
TEST(CodecHadamard, PoisonTakesWholeGroups)
{
    for (const char *spec : { "int4:block=16,hadamard", "int4,hadamard", "fp8,hadamard" }) {
        const dscomm_codec_t *codec = dscomm_codec(spec);
        for (const float bad : { kNan, kInf, -kInf }) {
            floats x = normal(1000, 32);
            x[600] = bad;
            const floats d = round_trip(codec, x);
            const size_t first = 600 - 600 % codec->block;
            for (size_t i = 0; i < x.size(); i++)
                ASSERT_EQ(bits(d[i]) == 0x7fc00000u, i >= first && i < first + codec->block) << i;
        }
    }
}

/* A rotated value beyond the largest float is poison, although all inputs are finite. */
TEST(CodecHadamard, OverflowIsPoison)
{
    const floats d = round_trip(dscomm_codec("int8,hadamard"), floats(300, FLT_MAX));
    for (size_t i = 0; i < 256; i++)
        ASSERT_EQ(bits(d[i]), 0x7fc00000u) << i;
}

/* What it is for, and where it does harm: docs/codecs.md has the table. */
TEST(CodecHadamard, HelpsWithModerateOutliersOnly)
{
    const floats moderate = with_outliers(100, 10.0f), extreme = with_outliers(1000, 1000.0f);

    EXPECT_LT(2 * relative_error("int4,hadamard", moderate), relative_error("int4", moderate));
    EXPECT_GT(relative_error("int4,hadamard", extreme), relative_error("int4", extreme));
}

} // namespace
