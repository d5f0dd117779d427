/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp8 against the definition of its two types: every code, every rounding tie with its neighbours,
 * each compared with a search over all codes in double precision.
 */
#include <gtest/gtest.h>

#include <cfloat>

#include "unit/codec_test_support.h"

namespace {

constexpr size_t kBlock = 256;

struct Type {
    const char *spec;
    int mbits, bias;
    uint32_t largest; /* code */

    /* Exact: a value has at most 4 significant bits. */
    double value(uint32_t code) const
    {
        const int exponent = static_cast<int>(code >> mbits);
        const int mantissa = static_cast<int>(code & ((1u << mbits) - 1u));
        if (exponent == 0)
            return std::ldexp(mantissa, 1 - bias - mbits);
        return std::ldexp((1 << mbits) + mantissa, exponent - bias - mbits);
    }
    /* Nearest of all codes, the even one of two. */
    uint32_t nearest(float x) const
    {
        uint32_t best = 0;
        for (uint32_t code = 1; code <= largest; code++) {
            const double here = std::fabs(value(code) - std::fabs(double(x)));
            const double there = std::fabs(value(best) - std::fabs(double(x)));
            if (here < there || (here == there && code % 2 == 0))
                best = code;
        }
        return best | (std::signbit(x) ? 0x80u : 0u);
    }
};

class Fp8 : public ::testing::TestWithParam<Type> {
  protected:
    const dscomm_codec_t *codec = dscomm_codec(GetParam().spec);

    /* Codes of x, in blocks whose first element makes the scale 1. */
    std::vector<uint8_t> codes_of(const floats &x) const
    {
        const size_t n_blocks = dsc_ceil_div(x.size(), kBlock - 1);
        floats full(n_blocks * kBlock, 0.0f);
        for (size_t b = 0; b < n_blocks; b++)
            full[b * kBlock] = full_code(codec);
        for (size_t i = 0; i < x.size(); i++)
            full[i / (kBlock - 1) * kBlock + i % (kBlock - 1) + 1] = x[i];

        Message m(codec, full.size());
        encode(codec, m, full);
        std::vector<uint8_t> codes;
        for (size_t i = 0; i < x.size(); i++)
            codes.push_back(*m.at(dsc_round_up(4 * n_blocks, 16) + i / (kBlock - 1) * kBlock +
                                  i % (kBlock - 1) + 1));
        EXPECT_EQ(load<float>(m, 0), 1.0f);
        return codes;
    }
};

INSTANTIATE_TEST_SUITE_P(Types, Fp8,
                         ::testing::Values(Type{ "fp8", 3, 7, 0x7e },
                                           Type{ "fp8:e5m2", 2, 15, 0x7b }),
                         [](const auto &type) { return type.param.mbits == 3 ? "e4m3" : "e5m2"; });

TEST_P(Fp8, EveryCodeDecodes)
{
    const Type &type = GetParam();
    for (const float scale : { 1.0f, -0.37f, 1e-45f, 0.0f, FLT_MAX }) {
        Message m(codec, kBlock);
        encode(codec, m, floats(kBlock, 0.0f));
        std::memcpy(m.at(0), &scale, sizeof(scale));
        for (uint32_t code = 0; code < kBlock; code++)
            *m.at(16 + code) = static_cast<uint8_t>(code);
        const floats d = decode(codec, m);
        for (uint32_t code = 0; code < kBlock; code++) {
            const uint32_t size = code & 0x7f;
            const bool is_inf = type.mbits == 2 && size == 0x7c;
            float want = is_inf ? kInf : static_cast<float>(type.value(size));
            want = (code < 0x80 ? want : -want) * scale;
            if (size > type.largest + is_inf || std::isnan(want))
                want = from_bits(0x7fc00000u);
            ASSERT_EQ(bits(d[code]), bits(want)) << std::hex << code << " scale " << scale;
        }
    }
}

TEST_P(Fp8, EveryTieAndItsNeighbours)
{
    const Type &type = GetParam();
    floats x;
    for (uint32_t code = 0; code < type.largest; code++) {
        const float middle = static_cast<float>((type.value(code) + type.value(code + 1)) / 2);
        const float exact = static_cast<float>(type.value(code));
        for (const float at : { middle, exact })
            for (const float near : { std::nextafter(at, -1.0f), at, std::nextafter(at, FLT_MAX) })
                x.push_back(near), x.push_back(-near);
    }
    const std::vector<uint8_t> codes = codes_of(x);
    for (size_t i = 0; i < x.size(); i++)
        ASSERT_EQ(codes[i], type.nearest(x[i])) << x[i];
}

TEST_P(Fp8, AnyNumberGoesToTheNearestCode)
{
    floats x;
    std::mt19937 gen(5);
    while (x.size() < 20000) {
        const float any = from_bits(gen() & 0xbfffffffu); /* below 2 */
        const float large = any * full_code(codec) / 2;
        x.push_back(any), x.push_back(large);
    }
    const std::vector<uint8_t> codes = codes_of(x);
    for (size_t i = 0; i < x.size(); i++)
        ASSERT_EQ(codes[i], GetParam().nearest(x[i])) << x[i];
}

TEST_P(Fp8, CodesRoundTripAtAnyScale)
{
    const Type &type = GetParam();
    for (const float amax : { full_code(codec), 1.0f, 0.3f, 0x1p-100f, 3e38f }) {
        const float scale = amax / full_code(codec);
        floats x(kBlock);
        for (uint32_t code = 0; code < kBlock; code++) {
            const uint32_t size = std::min(code & 0x7f, type.largest);
            x[code] = static_cast<float>(type.value(size)) * scale * (code < 0x80 ? 1.0f : -1.0f);
        }
        x[type.largest] = amax;
        Message m(codec, kBlock);
        encode(codec, m, x);
        for (uint32_t code = 0; code < kBlock; code++)
            ASSERT_EQ(*m.at(16 + code), std::min(code & 0x7f, type.largest) | (code & 0x80))
                << amax;
    }
}

/* Ties at scales that are no powers of two: which way they go hangs on each rounding on the way. */
TEST_P(Fp8, ScaleAndInverseAreRoundedOnceEach)
{
    const Type &type = GetParam();
    const float full = full_code(codec);
    std::mt19937 gen(7);
    for (int round = 0; round < 200; round++) {
        const float amax = from_bits(0x30000000u + gen() % 0x20000000u);
        const float scale = amax / full, inv = full / amax;
        floats x(kBlock, amax);
        for (size_t i = 1; i < kBlock; i++) {
            const uint32_t code = gen() % type.largest;
            const double tie = (type.value(code) + type.value(code + 1)) / 2;
            x[i] = from_bits(bits(static_cast<float>(tie * amax / full)) + gen() % 3 - 1);
        }
        Message m(codec, kBlock);
        encode(codec, m, x);
        ASSERT_EQ(bits(load<float>(m, 0)), bits(scale)) << amax;
        for (size_t i = 0; i < kBlock; i++)
            ASSERT_EQ(*m.at(16 + i), type.nearest(x[i] * inv)) << x[i] << " of " << amax;
    }
}

/* The block's largest element is the largest code, whatever it is: never beyond, never NaN. */
TEST_P(Fp8, LargestElementIsTheLargestCode)
{
    const uint32_t largest = GetParam().largest;
    for (uint32_t u = 0x0d800000u; u < 0x7f800000u; u += 65537u * 3u) {
        Message m(codec, 3);
        encode(codec, m, { from_bits(u), -from_bits(u), std::nextafter(from_bits(u), 0.0f) });
        ASSERT_EQ(*m.at(16), largest) << std::hex << u;
        ASSERT_EQ(*m.at(17), largest | 0x80u) << std::hex << u;
        ASSERT_EQ(*m.at(18), largest) << std::hex << u;
    }
}

TEST_P(Fp8, PoisonAndTinyBlocks)
{
    floats x(1000, full_code(codec));
    x[300] = kNan;
    std::fill(x.begin() + 512, x.end(), -0.0f); /* two blocks of zeros, sent without a sign */
    x[999] = 0x1p-101f;
    Message m(codec, x.size());
    encode(codec, m, x);
    EXPECT_EQ(load<float>(m, 0), 1.0f);
    EXPECT_EQ(load<uint32_t>(m, 4), 0x7fc00000u);
    EXPECT_EQ(load<uint64_t>(m, 8), 0u);
    const floats d = decode(codec, m);
    for (size_t i = 256; i < x.size(); i++) {
        ASSERT_EQ(*m.at(16 + i), 0) << i;
        ASSERT_EQ(bits(d[i]), i < 512 ? 0x7fc00000u : 0u) << i;
    }
    for (const uint32_t scale : { 0x7f800000u, 0xff800000u, 0x7f800001u, 0xffffffffu }) {
        std::memcpy(m.at(0), &scale, sizeof(scale));
        EXPECT_EQ(bits(decode(codec, m)[7]), 0x7fc00000u) << std::hex << scale;
    }
}

/* D4: codes of e4m3 as hardware tables give them. */
TEST(CodecFp8, D4_KnownCodesOfE4m3)
{
    const dscomm_codec_t *codec = dscomm_codec("fp8");
    const struct {
        float x;
        uint8_t code;
    } cases[] = {
        { 1.0f, 0x38 },    { 1.0625f, 0x38 },   { 1.1875f, 0x3a },  { 300.0f, 0x79 },
        { 304.0f, 0x7a },  { 0x1p-9f, 0x01 },   { 0x1p-10f, 0x00 }, { 0x1.8p-10f, 0x01 },
        { -0.0f, 0x80 },   { -0x1p-11f, 0x80 }, { 448.0f, 0x7e },   { -448.0f, 0xfe },
        { 0x1p-6f, 0x08 }, { 0x1.ep-7f, 0x08 },
    };
    for (const auto &c : cases) {
        Message m(codec, 2);
        encode(codec, m, { 448.0f, c.x });
        EXPECT_EQ(*m.at(17), c.code) << c.x;
    }
    EXPECT_EQ(dscomm_codec("fp8:e4m3"), codec);
}

TEST(CodecFp8, D4_KnownCodesOfE5m2)
{
    const dscomm_codec_t *codec = dscomm_codec("fp8:e5m2");
    Message m(codec, 4);
    encode(codec, m, { 57344.0f, 1.0f, -1.125f, 0x1p-16f });
    EXPECT_EQ(*m.at(16), 0x7b);
    EXPECT_EQ(*m.at(17), 0x3c);
    EXPECT_EQ(*m.at(18), 0xbc);
    EXPECT_EQ(*m.at(19), 0x01);
}

} /* namespace */
