/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The formats of OCP MX against the definition of their types: every code under every scale, every
 * tie with its neighbours, scales of all exponents; and against a table that another implementation
 * computed.
 */
#include <gtest/gtest.h>

#include <cfloat>
#include <fstream>
#include <map>

#include "unit/codec_test_support.h"

namespace {

constexpr size_t kBlock = 32;

struct Type {
    const char *spec;
    int mbits, bias;
    uint32_t largest, sign; /* codes */
    const char *table;      /* its name in the table of floats */

    bool is_packed() const
    {
        return sign == 8;
    }
    bool is_integer() const
    {
        return mbits == 7;
    }
    /* Exact: a value has at most 7 significant bits. Not of codes that are no numbers. */
    double value(uint32_t code) const
    {
        if (is_integer())
            return static_cast<int8_t>(code) / 64.0;
        const uint32_t size = code & (sign - 1);
        const int exponent = static_cast<int>(size >> mbits);
        const int mantissa = static_cast<int>(size & ((1u << mbits) - 1u));
        const double v = exponent == 0
                             ? std::ldexp(mantissa, 1 - bias - mbits)
                             : std::ldexp((1 << mbits) + mantissa, exponent - bias - mbits);
        return (code & sign) != 0 ? -v : v;
    }
    /* With Inf and NaN. */
    double any_value(uint32_t code) const
    {
        const uint32_t size = code & (sign - 1);
        if (is_integer() || size <= largest)
            return value(code);
        const bool is_inf = mbits == 2 && size == largest + 1;
        return is_inf ? std::copysign(HUGE_VAL, value(code)) : std::nan("");
    }
    double full() const
    {
        return value(largest);
    }
    /* Nearest of all codes, the even one of two. */
    uint32_t nearest(double x) const
    {
        uint32_t best = 0;
        for (uint32_t code = 1; code <= largest; code++) {
            const double here = std::fabs(value(code) - std::fabs(x));
            const double there = std::fabs(value(best) - std::fabs(x));
            if (here < there || (here == there && code % 2 == 0))
                best = code;
        }
        if (is_integer())
            return (std::signbit(x) ? 256 - best : best) & 0xff;
        return best | (std::signbit(x) ? sign : 0);
    }
};

const Type types[] = { { "mxfp8", 3, 7, 0x7e, 0x80, "e4m3" },
                       { "mxfp8:e5m2", 2, 15, 0x7b, 0x80, "e5m2" },
                       { "mxfp4", 1, 1, 7, 8, "e2m1" },
                       { "mxint8", 7, 0, 127, 0x80, "" } };

class Mx : public ::testing::TestWithParam<Type> {
  protected:
    const Type &type = GetParam();
    const dscomm_codec_t *floor = dscomm_codec(type.spec);
    const dscomm_codec_t *ceil = dscomm_codec((std::string(type.spec) + ",ceil").c_str());

    static size_t codes_at(size_t n)
    {
        return dsc_round_up(dsc_ceil_div(n, kBlock), 16);
    }
    uint32_t code(Message &m, size_t i) const
    {
        const uint8_t *codes = m.at(codes_at(m.get()->n));
        return type.is_packed() ? codes[i / 2] >> (4 * (i % 2)) & 15 : codes[i];
    }
    void put_code(Message &m, size_t i, uint32_t value) const
    {
        uint8_t *const codes = m.at(codes_at(m.get()->n));
        if (!type.is_packed())
            codes[i] = static_cast<uint8_t>(value);
        else if (i % 2 == 0)
            codes[i / 2] = static_cast<uint8_t>((codes[i / 2] & 0xf0) | (value & 15));
        else
            codes[i / 2] = static_cast<uint8_t>((codes[i / 2] & 0x0f) | (value & 15) << 4);
    }
    /* Codes of x, in blocks whose first element makes the scale 1. */
    std::vector<uint32_t> codes_of(const dscomm_codec_t *codec, const floats &x) const
    {
        const size_t n_blocks = dsc_ceil_div(x.size(), kBlock - 1);
        floats all(n_blocks * kBlock, 0.0f);
        for (size_t b = 0; b < n_blocks; b++)
            all[b * kBlock] = static_cast<float>(type.full());
        for (size_t i = 0; i < x.size(); i++)
            all[i / (kBlock - 1) * kBlock + i % (kBlock - 1) + 1] = x[i];
        Message m(codec, all.size());
        encode(codec, m, all);
        std::vector<uint32_t> codes;
        for (size_t i = 0; i < x.size(); i++)
            codes.push_back(code(m, i / (kBlock - 1) * kBlock + i % (kBlock - 1) + 1));
        for (size_t b = 0; b < n_blocks; b++)
            EXPECT_EQ(*m.at(b), 127) << "scale 1";
        return codes;
    }
};

INSTANTIATE_TEST_SUITE_P(Types, Mx, ::testing::ValuesIn(types), [](const auto &type) {
    std::string name = type.param.spec;
    name.erase(std::remove(name.begin(), name.end(), ':'), name.end());
    return name;
});

TEST_P(Mx, EveryCodeUnderEveryScale)
{
    const uint32_t n_codes = 2 * type.sign;
    const size_t n = 256 * size_t(n_codes) / std::min<size_t>(n_codes, kBlock) * kBlock;
    const size_t per_scale = n / 256;
    Message m(floor, n);
    for (size_t b = 0; b < n / kBlock; b++)
        *m.at(b) = static_cast<uint8_t>(b / (per_scale / kBlock));
    for (size_t i = 0; i < n; i++)
        put_code(m, i, static_cast<uint32_t>(i % n_codes));
    const floats d = decode(floor, m), d_ceil = decode(ceil, m);
    floats sum(n, 0.0f);
    floor->ops->decode_add(floor, m.get(), 0, n, sum.data());
    for (size_t i = 0; i < n; i++) {
        const int scale = static_cast<int>(i / per_scale);
        const double exact =
            std::ldexp(type.any_value(static_cast<uint32_t>(i % n_codes)), scale - 127);
        const bool is_nan = scale == 255 || std::isnan(exact);
        ASSERT_EQ(bits(d[i]), is_nan ? 0x7fc00000u : bits(static_cast<float>(exact)))
            << "scale " << scale << " code " << i % n_codes;
        ASSERT_EQ(bits(d[i]), bits(d_ceil[i]));
        ASSERT_TRUE(is_nan ? std::isnan(sum[i]) : sum[i] == d[i]);
    }
}

TEST_P(Mx, EveryTieAndItsNeighbours)
{
    floats x;
    for (uint32_t code = 0; code < type.largest; code++) {
        const float middle = static_cast<float>((type.value(code) + type.value(code + 1)) / 2);
        const float exact = static_cast<float>(type.value(code));
        for (const float at : { middle, exact })
            for (const float near : { std::nextafter(at, -1.0f), at, std::nextafter(at, FLT_MAX) })
                x.push_back(near), x.push_back(-near);
    }
    for (const auto *codec : { floor, ceil }) {
        const auto codes = codes_of(codec, x);
        for (size_t i = 0; i < x.size(); i++)
            ASSERT_EQ(codes[i], type.nearest(x[i])) << codec->spec << " " << x[i];
    }
}

/* Single elements of all exponents, on and beside what a power of two can take. */
TEST_P(Mx, ScaleOfEveryExponent)
{
    int top, exponent;
    const double fraction = std::frexp(type.full(), &top); /* full = fraction * 2^top */
    const auto edge = bits(static_cast<float>(type.full())) & 0x7fffffu;
    for (uint32_t e = 27; e < 255; e++) {
        for (const uint32_t mantissa :
             { 0u, 1u, edge - 1, edge, std::min(edge + 1, 0x7fffffu), 0x7fffffu }) {
            const float amax = from_bits(e << 23 | mantissa);
            const double part = std::frexp(double(amax), &exponent);
            const int down = exponent - top, up = part > fraction ? down + 1 : down;
            Message f(floor, 3), c(ceil, 3);
            encode(floor, f, { amax, -amax, 0.0f });
            encode(ceil, c, { amax, -amax, 0.0f });
            ASSERT_EQ(*f.at(0), down + 127) << amax;
            ASSERT_EQ(*c.at(0), std::min(up, 127) + 127) << amax;
            for (size_t i = 0; i < 2; i++) { /* nearest() saturates */
                const double x = i == 0 ? double(amax) : -double(amax);
                ASSERT_EQ(code(f, i), type.nearest(std::ldexp(x, -down))) << amax;
                ASSERT_EQ(code(c, i), type.nearest(std::ldexp(x, -std::min(up, 127)))) << amax;
            }
        }
    }
}

TEST_P(Mx, AnyNumberGoesToTheNearestCode)
{
    std::mt19937 gen(5);
    for (int round = 0; round < 400; round++) {
        floats x(kBlock);
        for (float &v : x)
            v = from_bits((gen() & 0x83ffffffu) | (40 + gen() % 200 / 100 * 100) << 23);
        Message m(floor, x.size());
        encode(floor, m, x);
        for (size_t i = 0; i < x.size(); i++)
            ASSERT_EQ(code(m, i), type.nearest(std::ldexp(double(x[i]), 127 - *m.at(0)))) << x[i];
    }
}

TEST_P(Mx, PoisonTinyAndZeroBlocks)
{
    for (const auto *codec : { floor, ceil }) {
        floats x(4 * kBlock, static_cast<float>(type.full()));
        x[40] = kInf, x[41] = kNan;
        std::fill(x.begin() + 64, x.begin() + 96, -0.0f);
        std::fill(x.begin() + 96, x.end(), -std::nextafter(0x1p-100f, 0.0f));
        Message m(codec, x.size());
        floats d(x.size());
        encode(codec, m, x, d.data());
        EXPECT_EQ(std::vector<uint8_t>(m.at(0), m.at(4)), (std::vector<uint8_t>{ 127, 255, 0, 0 }));
        for (size_t i = 0; i < x.size(); i++) {
            ASSERT_EQ(code(m, i), i < 32 ? type.largest : 0u) << i;
            ASSERT_EQ(bits(d[i]), i < 32 ? bits(x[i]) : i < 64 ? 0x7fc00000u : 0u) << i;
        }
        EXPECT_TRUE(same_bits(decode(codec, m), d));
    }
}

/* Rounded down, the scale leaves the largest numbers to saturate; what is missing is fed back. */
TEST(CodecMx, FloorSaturatesAndCeilDoesNot)
{
    const floats x = { 511.0f, -500.0f, 1.0f };
    EXPECT_TRUE(same_bits(round_trip(dscomm_codec("mxfp8"), x), { 448.0f, -448.0f, 1.0f }));
    EXPECT_TRUE(same_bits(round_trip(dscomm_codec("mxfp8,ceil"), x), { 512.0f, -512.0f, 1.0f }));
    EXPECT_TRUE(same_bits(round_trip(dscomm_codec("mxfp4"), { 7.9f, 1.2f }), { 6.0f, 1.0f }));
    EXPECT_TRUE(same_bits(round_trip(dscomm_codec("mxfp4,ceil"), { 7.9f, 1.2f }), { 8.0f, 1.0f }));
}

/* The next power of two would be poison: the largest numbers of mxint8 saturate in either mode. */
TEST(CodecMx, ScalesEndAt2To127)
{
    for (const char *spec : { "mxint8", "mxint8,ceil" }) {
        Message m(dscomm_codec(spec), 2);
        encode(dscomm_codec(spec), m, { FLT_MAX, -FLT_MAX });
        EXPECT_EQ(*m.at(0), 254);
        EXPECT_EQ(*m.at(16), 127);
        EXPECT_EQ(*m.at(17), 129);
        EXPECT_TRUE(std::isfinite(decode(dscomm_codec(spec), m)[0]));
    }
    /* Elsewhere the largest float rounds up to Inf: an element, not poison. */
    EXPECT_TRUE(same_bits(round_trip(dscomm_codec("mxfp8,ceil"), { FLT_MAX, 0x1p127f }),
                          { kInf, 0x1p127f }));
}

TEST(CodecMx, MessagesByHand)
{
    Message four(dscomm_codec("mxfp4"), 9);
    encode(dscomm_codec("mxfp4"), four,
           { 12.0f, -12.0f, 1.0f, 3.0f, -0.0f, 0.25f, -5.0f, 8.0f, -0.5f });
    const std::vector<uint8_t> want4 = { 0x80, 0, 0, 0, 0, 0,    0,    0,    0,    0,    0,
                                         0,    0, 0, 0, 0, 0xf7, 0x31, 0x08, 0x6c, 0x08, 0,
                                         0,    0, 0, 0, 0, 0,    0,    0,    0,    0 };
    EXPECT_EQ(four.bytes(), want4);
    Message eight(dscomm_codec("mxint8"), 4);
    encode(dscomm_codec("mxint8"), eight, { 1.5f, -1.0f, 0x1p-7f, -0x1.8p-6f });
    const std::vector<uint8_t> want8 = { 127, 0,    0, 0,    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                         96,  0xc0, 0, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 };
    EXPECT_EQ(eight.bytes(), want8);
}

/* ---- the table ---- */

std::map<std::string, std::string> read_table()
{
    std::map<std::string, std::string> rows;
    std::ifstream file(DSC_SMALL_FLOATS);
    for (std::string line; std::getline(file, line);)
        if (line.rfind("type=", 0) == 0) /* type=e4m3 values=00000000... */
            rows[line.substr(5, line.find('=', 5) - 5)] = line.substr(line.find('=', 5) + 1);
    return rows;
}

uint32_t hex_at(const std::string &text, size_t at, size_t digits)
{
    return static_cast<uint32_t>(std::stoul(text.substr(at, digits), nullptr, 16));
}

class MxFloat : public Mx {};

INSTANTIATE_TEST_SUITE_P(Types, MxFloat, ::testing::ValuesIn(types, types + 3),
                         [](const auto &type) { return std::string(type.param.table); });

TEST_P(MxFloat, AnotherImplementationAgrees)
{
    auto rows = read_table();
    const std::string values = rows[std::string(type.table) + " values"];
    ASSERT_EQ(values.size(), 8 * 2 * type.sign);
    Message m(floor, 2 * type.sign);
    std::memset(m.at(0), 127, codes_at(m.get()->n));
    for (uint32_t c = 0; c < 2 * type.sign; c++)
        put_code(m, c, c);
    const floats d = decode(floor, m);
    for (size_t c = 0; c < d.size(); c++)
        ASSERT_EQ(bits(d[c]), hex_at(values, 8 * c, 8)) << c;

    const std::string rounds = rows[std::string(type.table) + " rounds"]; /* 3a800000:00,... */
    floats x;
    ASSERT_EQ(rounds.size() % 12, 11u);
    for (size_t at = 0; at < rounds.size(); at += 12)
        x.push_back(from_bits(hex_at(rounds, at, 8)));
    const auto codes = codes_of(floor, x);
    for (size_t i = 0; i < x.size(); i++)
        ASSERT_EQ(codes[i], hex_at(rounds, 12 * i + 9, 2)) << x[i];
}

TEST(CodecMx, AnotherImplementationAgreesOnScales)
{
    const dscomm_codec_t *codec = dscomm_codec("mxint8");
    const std::string values = read_table()["e8m0 values"];
    ASSERT_EQ(values.size(), 8u * 256u);
    Message m(codec, 256 * kBlock);
    std::memset(m.at(256), 64, 256 * kBlock); /* 64 / 64 */
    for (size_t s = 0; s < 256; s++)
        *m.at(s) = static_cast<uint8_t>(s);
    const floats d = decode(codec, m);
    for (size_t s = 0; s < 256; s++)
        ASSERT_EQ(bits(d[s * kBlock]), hex_at(values, 8 * s, 8)) << s;
}

} /* namespace */
