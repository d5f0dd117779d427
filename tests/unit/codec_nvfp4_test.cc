/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvfp4 against its definition: two levels of scales, segments of 65536 elements.
 */
#include <gtest/gtest.h>

#include <cfloat>

#include "unit/codec_test_support.h"

namespace {

constexpr size_t kBlock = 16, kSegment = 65536;
const float e2m1[] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };

/* Of a code of E4M3 that is a number. */
double e4m3(uint32_t code)
{
    const int exponent = static_cast<int>(code >> 3 & 15), mantissa = static_cast<int>(code & 7);
    const double v =
        exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
    return (code & 0x80) != 0 ? -v : v;
}

/* The nearest code, even of two, for 0 <= x; beyond 448 its code. */
uint32_t e4m3_code(float x)
{
    uint32_t best = 0;
    for (uint32_t code = 1; code <= 0x7e; code++) {
        const double here = std::fabs(e4m3(code) - double(x)),
                     there = std::fabs(e4m3(best) - double(x));
        if (here < there || (here == there && code % 2 == 0))
            best = code;
    }
    return best;
}

uint32_t e2m1_code(float x)
{
    uint32_t best = 0;
    for (uint32_t code = 1; code < 8; code++) {
        const double here = std::fabs(double(e2m1[code]) - std::fabs(double(x)));
        const double there = std::fabs(double(e2m1[best]) - std::fabs(double(x)));
        if (here < there || (here == there && code % 2 == 0))
            best = code;
    }
    return best | (std::signbit(x) ? 8u : 0u);
}

class CodecNvfp4 : public ::testing::Test {
  protected:
    const dscomm_codec_t *codec = dscomm_codec("nvfp4");

    /* Where the parts of a message begin. */
    static size_t scales_at(size_t n)
    {
        return dsc_round_up(4 * dsc_ceil_div(n, kSegment), 16);
    }
    static size_t codes_at(size_t n)
    {
        return scales_at(n) + dsc_round_up(dsc_ceil_div(n, kBlock), 16);
    }
    static uint32_t code(Message &m, size_t i)
    {
        return *m.at(codes_at(m.get()->n) + i / 2) >> (4 * (i % 2)) & 15;
    }
};

TEST_F(CodecNvfp4, MessageByHand)
{
    floats x(18, 0.0f), d(18);
    const float first[] = { 2688, -1344, 672, 224, -0.0f, 112, 1120, -448 };
    std::copy(first, first + 8, x.begin());
    x[16] = 6.0f, x[17] = -2.5f;
    Message m(codec, x.size());
    encode(codec, m, x, d.data());
    std::vector<uint8_t> want(48, 0);
    want[2] = 0x80, want[3] = 0x3f;                                     /* 1.0f */
    want[16] = 0x7e, want[17] = 0x38;                                   /* 448, 1 */
    want[32] = 0xd7, want[33] = 0x13, want[34] = 0x08, want[35] = 0xa4; /* 2.5 goes to 2 */
    want[40] = 0xc7;
    EXPECT_EQ(m.bytes(), want);
    EXPECT_TRUE(same_bits(decode(codec, m), d));
    EXPECT_EQ(d[1], -1344.0f);
    EXPECT_EQ(d[6], 896.0f);
    EXPECT_EQ(d[17], -2.0f);
    EXPECT_EQ(codec->ops->message_bytes(codec, 140001), 16u + 8752u + 70016u);
}

/* D = code * (block scale * segment scale), both products rounded to float. */
TEST_F(CodecNvfp4, EveryCodeUnderEveryScale)
{
    for (const float segment : { 1.0f, -0.37f, 1e-45f, 0x1.234568p-99f, 0.0f, FLT_MAX }) {
        const size_t n = 256 * kBlock;
        Message m(codec, n);
        std::memcpy(m.at(0), &segment, sizeof(segment));
        for (size_t b = 0; b < 256; b++) {
            *m.at(16 + b) = static_cast<uint8_t>(b);
            for (size_t i = 0; i < 8; i++) /* codes 0 to 15 */
                *m.at(16 + 256 + 8 * b + i) = static_cast<uint8_t>(0x10 + 0x22 * i);
        }
        const floats d = decode(codec, m);
        for (size_t i = 0; i < n; i++) {
            const auto b = static_cast<uint32_t>(i / kBlock), c = static_cast<uint32_t>(i % 16);
            const float scale = static_cast<float>(e4m3(b)) * segment;
            float want = (c < 8 ? e2m1[c] : -e2m1[c - 8]) * scale;
            if ((b & 0x7f) == 0x7f || std::isnan(want))
                want = from_bits(0x7fc00000u);
            ASSERT_EQ(bits(d[i]), bits(want)) << segment << " block scale " << b << " code " << c;
        }
    }
}

TEST_F(CodecNvfp4, StepsAreRoundedOnceEach)
{
    std::mt19937 gen(9);
    for (int round = 0; round < 200; round++) {
        floats x(40 * kBlock);
        for (size_t i = 0; i < x.size(); i++) /* blocks of different sizes, some below any scale */
            x[i] = std::ldexp(from_bits((gen() & 0x80ffffffu) | 0x3f000000u),
                              round % 160 - 80 - static_cast<int>(i / kBlock) / 2);
        float amax = 0.0f;
        for (float v : x)
            amax = std::max(amax, std::fabs(v));
        const float outer = amax / 2688.0f, inverse = 2688.0f / amax;
        Message m(codec, x.size());
        encode(codec, m, x);
        ASSERT_EQ(bits(load<float>(m, 0)), bits(outer));
        for (size_t b = 0; b < 40; b++) {
            float top = 0.0f;
            for (size_t i = 0; i < kBlock; i++)
                top = std::max(top, std::fabs(x[b * kBlock + i]));
            const float scaled = top * inverse;
            const uint32_t s = top < 0x1p-100f ? 0 : e4m3_code(scaled / 6.0f);
            ASSERT_EQ(*m.at(scales_at(x.size()) + b), s) << round << " block " << b;
            const float scale = static_cast<float>(e4m3(s)) * outer;
            const float inv = scale > 0.0f ? 1.0f / scale : 0.0f;
            for (size_t i = b * kBlock; i < (b + 1) * kBlock; i++)
                ASSERT_EQ(code(m, i), s == 0 ? 0u : e2m1_code(x[i] * inv)) << round << " " << x[i];
        }
    }
}

TEST_F(CodecNvfp4, PoisonDoesNotCountForTheSegment)
{
    floats x(5 * kBlock, 6.0f), r(x.size(), 0.25f);
    x[20] = kInf, x[40] = kNan, x[50] = FLT_MAX / 2, x[51] = -kInf;
    Message m(codec, x.size());
    floats d(x.size());
    encode(codec, m, x, d.data());
    EXPECT_EQ(bits(load<float>(m, 0)), bits(6.0f / 2688.0f));
    for (size_t b = 0; b < 5; b++)
        EXPECT_EQ(*m.at(16 + b), b == 0 || b == 4 ? 0x7e : 0x7f) << b;
    for (size_t i = 0; i < x.size(); i++) {
        const bool is_poison = i / kBlock != 0 && i / kBlock != 4;
        ASSERT_EQ(std::isnan(d[i]), is_poison) << i;
        ASSERT_EQ(code(m, i), is_poison ? 0u : 7u) << i;
    }
    /* With feedback the sums count: an infinite sum of finite numbers too. */
    x.assign(x.size(), 6.0f), r[0] = FLT_MAX, x[0] = FLT_MAX;
    floats kept(x.size());
    codec->ops->encode_feedback(codec, m.get(), 0, x.size(), x.data(), r.data(), 1.0f, kept.data(),
                                DSC_KEEP_OLD);
    EXPECT_EQ(*m.at(16), 0x7f);
    EXPECT_EQ(bits(load<float>(m, 0)), bits(6.25f / 2688.0f));
    EXPECT_EQ(kept[0], FLT_MAX);
}

TEST_F(CodecNvfp4, TinyBlocksAreZerosAndStayInTheResidual)
{
    const float tiny = std::nextafter(0x1p-100f, 0.0f);
    for (const float beside : { tiny, 1.0f }) {
        floats v(2 * kBlock, -0.0f), r(v.size(), 0.0f), r_out(v.size(), 5.0f);
        v[0] = beside, v[16] = -tiny;
        Message m(codec, v.size());
        codec->ops->encode_feedback(codec, m.get(), 0, v.size(), v.data(), r.data(), 1.0f,
                                    r_out.data(), 0);
        EXPECT_EQ(load<uint32_t>(m, 0), beside == tiny ? 0u : bits(1.0f / 2688.0f));
        EXPECT_EQ(*m.at(17), 0);
        EXPECT_EQ(code(m, 16), 0u);
        EXPECT_EQ(r_out[16], -tiny);
        if (beside == tiny) {
            EXPECT_EQ(r_out[0], tiny);
        }
    }
    floats all(2 * kBlock, 0x1p-100f);
    EXPECT_TRUE(same_bits(round_trip(codec, all), all));
}

/* Each segment is as if it were alone, whatever spans a message is written and read in. */
TEST_F(CodecNvfp4, SegmentsAreIndependent)
{
    const size_t n = 2 * kSegment + 1000;
    floats x = normal(n, 3);
    for (size_t i = kSegment; i < 2 * kSegment; i++)
        x[i] *= 1000.0f;
    x[5] = kNan;
    Message whole(codec, n), parts(codec, n);
    floats d(n), again(n), acc(n, 0.0f);
    encode(codec, whole, x, d.data());
    for (size_t at = 0; at < n; at += kSegment) {
        const size_t len = std::min(kSegment, n - at);
        const floats part(x.begin() + static_cast<ptrdiff_t>(at),
                          x.begin() + static_cast<ptrdiff_t>(at + len));
        const floats alone = round_trip(codec, part);
        codec->ops->encode(codec, parts.get(), at, len, part.data(), nullptr);
        codec->ops->decode(codec, whole.get(), at, len, again.data() + at, 0);
        codec->ops->decode_add(codec, whole.get(), at, len, acc.data() + at);
        ASSERT_TRUE(same_bits(alone, floats(d.begin() + static_cast<ptrdiff_t>(at),
                                            d.begin() + static_cast<ptrdiff_t>(at + len))));
    }
    EXPECT_EQ(whole.bytes(), parts.bytes());
    EXPECT_TRUE(same_bits(d, again));
    EXPECT_TRUE(same_bits(d, decode(codec, whole)));
    for (size_t i = 0; i < n; i++)
        ASSERT_TRUE(std::isnan(d[i]) ? std::isnan(acc[i]) : acc[i] == d[i]) << i;
}

/* A scale that was rounded down leaves its largest number beyond code 6. */
TEST_F(CodecNvfp4, Saturates)
{
    floats x(2 * kBlock, 0.0f);
    x[0] = 2688.0f, x[16] = -6.0f * 17.0f / 16.0f; /* scale 17/16 is a tie and goes to 1 */
    Message m(codec, x.size());
    encode(codec, m, x);
    EXPECT_EQ(*m.at(17), 0x38);
    EXPECT_EQ(code(m, 16), 15u);
    EXPECT_EQ(decode(codec, m)[16], -6.0f);
}

} /* namespace */
