/* SPDX-License-Identifier: Apache-2.0 */
/*
 * int8 against numbers worked out by hand.
 */
#include <gtest/gtest.h>

#include <cfloat>

#include "unit/codec_test_support.h"

namespace {

TEST(CodecInt8, MessageByHand)
{
    const dscomm_codec_t *codec = dscomm_codec("int8");
    Message m(codec, 8);
    floats d(8);
    encode(codec, m, { 127.0f, -127.0f, 0.5f, 1.5f, -0.5f, -2.5f, 63.4f, -0.0f }, d.data());

    const std::vector<uint8_t> want = { 0,  0, 0x80, 0x3f, 0, 0,   0,    0, 0, 0, 0,
                                        0,  0, 0,    0,    0, 127, 0x81, 0, 2, 0, 0xfe,
                                        63, 0, 0,    0,    0, 0,   0,    0, 0, 0 };
    EXPECT_EQ(m.bytes(), want);
    EXPECT_TRUE(same_bits(d, { 127.0f, -127.0f, 0.0f, 2.0f, 0.0f, -2.0f, 63.0f, 0.0f }));
    EXPECT_TRUE(same_bits(decode(codec, m), d));
}

TEST(CodecInt8, ScalesFollowTheirBlocks)
{
    const dscomm_codec_t *codec = dscomm_codec("int8:block=16");
    floats x(33, 0.0f);
    x[3] = 254.0f, x[20] = -0.127f, x[32] = 1e-30f;
    Message m(codec, x.size());
    encode(codec, m, x);
    EXPECT_EQ(load<float>(m, 0), 2.0f);
    EXPECT_EQ(load<float>(m, 4), 0.127f / 127.0f);
    EXPECT_EQ(load<float>(m, 8), 1e-30f / 127.0f);
    EXPECT_EQ(load<uint32_t>(m, 12), 0u);
    EXPECT_EQ(load<int8_t>(m, 16 + 3), 127);
    EXPECT_EQ(load<int8_t>(m, 16 + 20), -127);
    EXPECT_EQ(load<int8_t>(m, 16 + 32), 127);
}

/* Blocks that broke others: zeros, minus zeros, 1e-36, one subnormal. */
TEST(CodecInt8, TinyBlocksAreZerosAndStayInTheResidual)
{
    const dscomm_codec_t *codec = dscomm_codec("int8");
    floats v(1024, 0.0f), r(1024, 0.0f), r_out(1024, 1.0f);
    for (size_t i = 0; i < 256; i++) {
        v[256 + i] = -0.0f;
        v[512 + i] = i % 2 == 0 ? 1e-36f : -1e-36f;
    }
    v[800] = 1e-45f;
    Message m(codec, v.size());
    codec->ops->encode_feedback(codec, m.get(), 0, v.size(), v.data(), r.data(), 1.0f, r_out.data(),
                                0);
    EXPECT_TRUE(same_bits(decode(codec, m), floats(1024, 0.0f)));
    EXPECT_EQ(m.bytes(), std::vector<uint8_t>(m.size(), 0));
    for (size_t i = 0; i < v.size(); i++)
        ASSERT_EQ(bits(r_out[i]), bits(v[i] + r[i])) << i;
}

TEST(CodecInt8, BoundaryOfTinyBlocks)
{
    const dscomm_codec_t *codec = dscomm_codec("int8");
    const float limit = std::ldexp(1.0f, -100);
    EXPECT_TRUE(
        same_bits(round_trip(codec, { std::nextafter(limit, 0.0f), limit / 2 }), { 0.0f, 0.0f }));
    const floats d = round_trip(codec, { limit, -limit / 2 });
    EXPECT_NEAR(d[0] / limit, 1.0f, 1e-6f);
    EXPECT_NEAR(d[1] / limit, -64.0f / 127.0f, 1e-6f); /* 63.5 is a tie */
}

TEST(CodecInt8, NeverSendsMinus128)
{
    const dscomm_codec_t *codec = dscomm_codec("int8:block=16");
    floats x(16, 0.0f);
    for (uint32_t u = 0x0d800000u; u < 0x7f800000u; u += 65537u * 3u) {
        const float amax = from_bits(u);
        for (size_t i = 0; i < x.size(); i++)
            x[i] = i % 2 == 0 ? -amax : std::nextafter(amax, 0.0f);
        Message m(codec, x.size());
        encode(codec, m, x);
        for (size_t i = 0; i < x.size(); i++)
            ASSERT_EQ(load<int8_t>(m, 16 + i), i % 2 == 0 ? -127 : 127) << std::hex << u;
    }
}

TEST(CodecInt8, DecoderTakesMinus128AsANumber)
{
    const dscomm_codec_t *codec = dscomm_codec("int8");
    for (size_t n : { size_t(1), size_t(256) }) {
        Message m(codec, n);
        encode(codec, m, floats(n, 127.0f));
        *m.at(16) = 0x80;
        EXPECT_EQ(decode(codec, m)[0], -128.0f) << n;
    }
}

TEST(CodecInt8, EveryCodeRoundTrips)
{
    for (const float amax : { 127.0f, 1.0f, 0.3f, 1e-30f, 3e38f }) {
        const dscomm_codec_t *codec = dscomm_codec("int8");
        const float scale = amax / 127.0f;
        floats x(256, 0.0f);
        for (int q = -127; q <= 127; q++)
            x[static_cast<size_t>(q + 127)] = static_cast<float>(q) * scale;
        x[0] = -amax, x[255] = amax;
        Message m(codec, x.size());
        encode(codec, m, x);
        const floats d = decode(codec, m);
        for (int q = -127; q <= 127; q++) {
            const size_t i = static_cast<size_t>(q + 127);
            ASSERT_EQ(load<int8_t>(m, 16 + i), q) << amax;
            ASSERT_EQ(bits(d[i]), bits(static_cast<float>(q) * scale)) << amax << " " << q;
        }
    }
}

TEST(CodecInt8, NonFiniteBlockIsPoisonOthersAreNot)
{
    const dscomm_codec_t *codec = dscomm_codec("int8");
    for (const float bad : { kNan, kInf, -kInf, from_bits(0xffc12345u) }) {
        floats x(600, 1.0f);
        x[300] = bad;
        Message m(codec, x.size());
        encode(codec, m, x);
        EXPECT_EQ(load<uint32_t>(m, 4), 0x7fc00000u);
        const floats d = decode(codec, m);
        for (size_t i = 0; i < x.size(); i++) {
            const bool is_hit = i >= 256 && i < 512;
            ASSERT_EQ(bits(d[i]), is_hit ? 0x7fc00000u : bits(1.0f)) << i;
            if (is_hit) {
                ASSERT_EQ(load<int8_t>(m, 16 + i), 0) << i;
            }
        }
    }
}

TEST(CodecInt8, ScaleWithAllExponentBitsIsPoison)
{
    const dscomm_codec_t *codec = dscomm_codec("int8");
    for (const uint32_t scale :
         { 0x7f800000u, 0xff800000u, 0x7f800001u, 0xffc00000u, 0x7fffffffu }) {
        for (size_t n : { size_t(3), size_t(256), size_t(257) }) {
            Message m(codec, n);
            encode(codec, m, floats(n, 2.0f));
            std::memcpy(m.at(0), &scale, sizeof(scale));
            floats acc(n, 1.0f);
            codec->ops->decode_add(codec, m.get(), 0, n, acc.data());
            EXPECT_EQ(bits(decode(codec, m)[0]), 0x7fc00000u) << std::hex << scale;
            EXPECT_TRUE(std::isnan(acc[0]));
            if (n == 257) {
                EXPECT_EQ(acc[256], 3.0f);
            }
        }
    }
}

/* One vector of residuals: what was in it survives a poison block and an overflowing element. */
TEST(CodecInt8, KeepLeavesResidualWhereDIsNotFinite)
{
    const dscomm_codec_t *codec = dscomm_codec("int8");
    floats v(768, 1.0f), r(768, 0.25f);
    v[5] = kInf;
    v[300] = FLT_MAX;
    for (size_t i = 0; i < r.size(); i++)
        r[i] += static_cast<float>(i) / 1024.0f;
    const floats before = r;
    Message m(codec, v.size());
    codec->ops->encode_feedback(codec, m.get(), 0, v.size(), v.data(), r.data(), 1.0f, r.data(),
                                DSC_KEEP_OLD);
    const floats d = decode(codec, m);
    for (size_t i = 0; i < r.size(); i++) {
        ASSERT_TRUE(std::isfinite(r[i])) << i;
        const float x = v[i] + before[i];
        ASSERT_EQ(bits(r[i]), bits(std::isfinite(d[i]) ? x - d[i] : before[i])) << i;
    }
}

/* nearest, g = [127, .5, .25]: after four calls everything was delivered and nothing is left. */
TEST(CodecInt8, FeedbackDeliversAllInTheEnd)
{
    const dscomm_codec_t *codec = dscomm_codec("int8");
    const floats g = { 127.0f, 0.5f, 0.25f };
    floats r(3, 0.0f), sum(3, 0.0f);
    for (int call = 0; call < 4; call++) {
        Message m(codec, 3);
        codec->ops->encode_feedback(codec, m.get(), 0, 3, g.data(), r.data(), 1.0f, r.data(), 0);
        codec->ops->decode_add(codec, m.get(), 0, 3, sum.data());
    }
    EXPECT_EQ(sum, (floats{ 508.0f, 2.0f, 1.0f }));
    EXPECT_EQ(r, (floats{ 0.0f, 0.0f, 0.0f }));
}

} /* namespace */
