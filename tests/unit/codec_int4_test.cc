/* SPDX-License-Identifier: Apache-2.0 */
/*
 * int4 against numbers worked out by hand: nibbles, scales that are rounded up, every code.
 */
#include <gtest/gtest.h>

#include <cfloat>

#include "unit/codec_test_support.h"

namespace {

constexpr size_t kCodesAt = 16; /* of messages with at most 8 blocks */

/* The value of a code as a decoder sees it. */
int as_number(unsigned nibble)
{
    return nibble < 8 ? static_cast<int>(nibble) : static_cast<int>(nibble) - 16;
}

TEST(CodecInt4, MessageByHand)
{
    const dscomm_codec_t *codec = dscomm_codec("int4");
    Message m(codec, 9);
    floats d(9);
    encode(codec, m, { 7.0f, -7.0f, 0.5f, 1.5f, -0.5f, -2.5f, 6.4f, -0.0f, -6.5f }, d.data());

    const std::vector<uint8_t> want = { 0x80, 0x3f, 0, 0, 0, 0,    0,    0,    0,    0,    0,
                                        0,    0,    0, 0, 0, 0x97, 0x20, 0xe0, 0x06, 0x0a, 0,
                                        0,    0,    0, 0, 0, 0,    0,    0,    0,    0 };
    EXPECT_EQ(m.bytes(), want);
    EXPECT_TRUE(same_bits(d, { 7.0f, -7.0f, 0.0f, 2.0f, 0.0f, -2.0f, 6.0f, 0.0f, -6.0f }));
    EXPECT_TRUE(same_bits(decode(codec, m), d));
}

/* All 256 bytes, under a scale of 1 and one that is not a power of two. */
TEST(CodecInt4, EveryByteDecodes)
{
    const dscomm_codec_t *codec = dscomm_codec("int4");
    for (const uint16_t scale : { uint16_t(0x3f80), uint16_t(0xbe92), uint16_t(0x0001) }) {
        Message m(codec, 512);
        encode(codec, m, floats(512, 0.0f));
        for (size_t b = 0; b < 8; b++)
            std::memcpy(m.at(2 * b), &scale, sizeof(scale));
        for (size_t i = 0; i < 256; i++)
            *m.at(kCodesAt + i) = static_cast<uint8_t>(i);
        const floats d = decode(codec, m);
        const float s = from_bits(static_cast<uint32_t>(scale) << 16);
        for (size_t i = 0; i < 512; i++) {
            const unsigned byte = static_cast<unsigned>(i / 2);
            const int q = as_number(i % 2 == 0 ? byte & 15 : byte >> 4);
            ASSERT_EQ(bits(d[i]), bits(static_cast<float>(q) * s)) << i << " scale " << scale;
        }
    }
}

TEST(CodecInt4, EveryCodeAndTieEncodes)
{
    const dscomm_codec_t *codec = dscomm_codec("int4");
    for (int half = -13; half <= 13; half++) {
        const float middle = static_cast<float>(half) / 2;
        for (const float x :
             { middle, std::nextafter(middle, -8.0f), std::nextafter(middle, 8.0f) }) {
            Message m(codec, 3);
            encode(codec, m, { 7.0f, x, -7.0f });
            const int q = as_number(*m.at(kCodesAt) >> 4);
            ASSERT_EQ(q, static_cast<int>(std::nearbyint(x))) << x;
            ASSERT_EQ(*m.at(kCodesAt) & 15, 7);
            ASSERT_EQ(*m.at(kCodesAt + 1), 9) << "unused half";
        }
    }
}

/* amax / 7 up to the next bfloat16: never below, less than one step above; codes +-7. */
TEST(CodecInt4, ScaleIsRoundedUp)
{
    const dscomm_codec_t *codec = dscomm_codec("int4:block=16");
    for (uint32_t u = 0x0d800000u; u < 0x7f800000u; u += 65537u * 3u) {
        const float amax = from_bits(u);
        Message m(codec, 2);
        encode(codec, m, { amax, -amax });
        const uint32_t scale = load<uint16_t>(m, 0);
        ASSERT_GE(from_bits(scale << 16), amax / 7.0f) << std::hex << u;
        ASSERT_LT(from_bits((scale - 1) << 16), amax / 7.0f) << std::hex << u;
        ASSERT_EQ(*m.at(16), 0x97) << std::hex << u;
    }
}

/* Ties at scales that are no powers of two: the inverse is that of the scale, rounded once. */
TEST(CodecInt4, InverseIsOfTheScale)
{
    const dscomm_codec_t *codec = dscomm_codec("int4");
    std::mt19937 gen(7);
    for (int round = 0; round < 1000; round++) {
        const float amax = from_bits(0x30000000u + gen() % 0x20000000u);
        floats x(64, amax);
        Message m(codec, x.size());
        encode(codec, m, x);
        const float scale = from_bits(static_cast<uint32_t>(load<uint16_t>(m, 0)) << 16);
        const float inv = 1.0f / scale;
        for (size_t i = 1; i < x.size(); i++) {
            const float tie = (static_cast<float>(gen() % 7) + 0.5f) * scale;
            x[i] = std::min(from_bits(bits(tie) + gen() % 3 - 1), amax);
        }
        encode(codec, m, x);
        for (size_t i = 0; i < x.size(); i++) {
            const int q = *m.at(kCodesAt + i / 2) >> (4 * (i % 2)) & 15;
            ASSERT_EQ(q, static_cast<int>(std::nearbyint(x[i] * inv))) << x[i] << " of " << amax;
        }
    }
}

TEST(CodecInt4, ScalesFollowTheirBlocks)
{
    const dscomm_codec_t *codec = dscomm_codec("int4:block=32");
    floats x(65, 0.0f);
    x[3] = 14.0f, x[40] = -7.0f * 0x1p-60f, x[64] = 7.0f * 0x1p90f;
    Message m(codec, x.size());
    encode(codec, m, x);
    EXPECT_EQ(load<uint16_t>(m, 0), 0x4000);
    EXPECT_EQ(load<uint16_t>(m, 2), bits(0x1p-60f) >> 16);
    EXPECT_EQ(load<uint16_t>(m, 4), bits(0x1p90f) >> 16);
    EXPECT_EQ(load<uint16_t>(m, 6), 0u);
    EXPECT_EQ(*m.at(kCodesAt + 1), 0x70);
    EXPECT_EQ(*m.at(kCodesAt + 20), 0x09);
    EXPECT_EQ(*m.at(kCodesAt + 32), 0x07);
    EXPECT_TRUE(same_bits(decode(codec, m), x));
}

TEST(CodecInt4, TinyBlocksAreZerosAndStayInTheResidual)
{
    const dscomm_codec_t *codec = dscomm_codec("int4");
    const floats v = { std::nextafter(0x1p-100f, 0.0f), -1e-45f, -0.0f }, r(3, 0.0f);
    floats r_out(3, 1.0f);
    Message m(codec, 3);
    codec->ops->encode_feedback(codec, m.get(), 0, 3, v.data(), r.data(), 1.0f, r_out.data(), 0);
    EXPECT_EQ(m.bytes(), std::vector<uint8_t>(32, 0));
    EXPECT_TRUE(same_bits(r_out, { v[0], v[1], 0.0f }));
    encode(codec, m, { 0x1p-100f });
    EXPECT_EQ(*m.at(kCodesAt), 7);
}

TEST(CodecInt4, BadBlocksAndScalesArePoison)
{
    const dscomm_codec_t *codec = dscomm_codec("int4");
    for (const float bad : { kNan, kInf, -kInf }) {
        floats x(150, 7.0f);
        x[100] = bad;
        Message m(codec, x.size());
        encode(codec, m, x);
        EXPECT_EQ(load<uint16_t>(m, 2), 0x7fc0);
        const floats d = decode(codec, m);
        for (size_t i = 0; i < x.size(); i++)
            ASSERT_EQ(bits(d[i]), i / 64 == 1 ? 0x7fc00000u : bits(7.0f)) << i;
        for (size_t i = 0; i < 32; i++)
            ASSERT_EQ(*m.at(kCodesAt + 32 + i), 0) << i;
    }
    for (const uint16_t scale : { 0x7f80, 0xff80, 0x7f81, 0x7fc0, 0xffff }) {
        Message m(codec, 3);
        encode(codec, m, floats(3, 2.0f));
        std::memcpy(m.at(0), &scale, sizeof(scale));
        EXPECT_TRUE(same_bits(decode(codec, m), floats(3, from_bits(0x7fc00000u)))) << scale;
    }
}

/* 7 times a scale that was rounded up may be beyond the largest float: Inf, not NaN. */
TEST(CodecInt4, NextToTheLargestFloat)
{
    const dscomm_codec_t *codec = dscomm_codec("int4");
    const floats d = round_trip(codec, { FLT_MAX, -FLT_MAX, 1.0f });
    EXPECT_TRUE(same_bits(d, { kInf, -kInf, 0.0f }));
}

/* The extreme is -8 whatever its sign; 8 on the other side is clamped. */
TEST(CodecInt4Signed, MessageByHand)
{
    const dscomm_codec_t *codec = dscomm_codec("int4:signed");
    const struct {
        floats x, d;
        uint16_t scale;
        std::vector<uint8_t> codes;
    } cases[] = {
        { { 8, -7, 0.5f, -1.5f, 7 }, { 8, -7, -0.0f, -2, 7 }, 0xbf80, { 0x78, 0x20, 0x09 } },
        { { -8, 7, 0.5f, -1.5f, -7 }, { -8, 7, 0, -2, -7 }, 0x3f80, { 0x78, 0xe0, 0x09 } },
        { { -8, 8, 7.5f }, { -7, 8, 8 }, 0xbf80, { 0x87, 0x08 } }, /* equal: the positive one */
        { { -8, 7.5f, 7.75f }, { -8, 7, 7 }, 0x3f80, { 0x78, 0x07 } },
    };
    for (const auto &c : cases) {
        Message m(codec, c.x.size());
        encode(codec, m, c.x);
        EXPECT_EQ(load<uint16_t>(m, 0), c.scale);
        for (size_t i = 0; i < c.codes.size(); i++)
            EXPECT_EQ(*m.at(kCodesAt + i), c.codes[i]) << i;
        EXPECT_TRUE(same_bits(decode(codec, m), c.d));
    }
}

/* Away from zero to a bfloat16, for both signs: the extreme is never beyond -8. */
TEST(CodecInt4Signed, ScaleIsRoundedAwayFromZero)
{
    const dscomm_codec_t *codec = dscomm_codec("int4:signed");
    for (const float amax : { 1.0f, 1.001f, 7.99f, 0x1p-100f, 3e38f })
        for (const float extreme : { amax, -amax }) {
            Message m(codec, 1);
            floats d(1);
            encode(codec, m, { extreme }, d.data());
            const float scale = from_bits(static_cast<uint32_t>(load<uint16_t>(m, 0)) << 16);
            EXPECT_EQ(std::signbit(scale), extreme > 0) << extreme;
            EXPECT_GE(std::fabs(scale) * 8, amax);
            EXPECT_LT(std::fabs(scale) * 8, amax * (1 + 0x1p-7f));
            EXPECT_EQ(*m.at(kCodesAt), 8);
        }
}

} /* namespace */
