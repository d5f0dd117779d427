/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs against numbers worked out by hand, and the promises every codec makes (contraction,
 * spans, sizes), for all registered specs. Equality of instruction sets is tests/check's matter.
 */
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/internal_begin.h"
#include "codec/codec.h"
#include "codec/kernels.h"
#include "support/internal_end.h"

namespace {

using floats = std::vector<float>;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t bits(float x)
{
    uint32_t u;
    std::memcpy(&u, &x, sizeof(u));
    return u;
}

float from_bits(uint32_t u)
{
    float x;
    std::memcpy(&x, &u, sizeof(x));
    return x;
}

bool same_bits(const floats &a, const floats &b)
{
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/* A message in aligned memory that starts as rubbish, so that unwritten bytes show. */
class Message {
  public:
    Message(const dscomm_codec_t *codec, size_t n, int exponent = 0)
        : bytes_(codec->ops->message_bytes(codec, n) + 64, 0xa5)
    {
        const size_t skip = 16 - reinterpret_cast<uintptr_t>(bytes_.data()) % 16;
        used_ = codec->ops->message_bytes(codec, n);
        msg_ = { bytes_.data() + skip, n, exponent };
    }
    Message(const Message &) = delete;
    Message &operator=(const Message &) = delete;

    const dsc_msg *get() const
    {
        return &msg_;
    }
    uint8_t *at(size_t i)
    {
        return msg_.bytes + i;
    }
    std::vector<uint8_t> bytes() const
    {
        return { msg_.bytes, msg_.bytes + used_ };
    }
    size_t size() const
    {
        return used_;
    }

  private:
    std::vector<uint8_t> bytes_;
    size_t used_ = 0;
    dsc_msg msg_ = {};
};

void encode(const dscomm_codec_t *codec, Message &m, const floats &x, float *decoded = nullptr)
{
    codec->ops->encode(codec, m.get(), 0, x.size(), x.data(), decoded);
}

floats decode(const dscomm_codec_t *codec, const Message &m)
{
    floats d(m.get()->n, 1.0f);
    codec->ops->decode(codec, m.get(), 0, d.size(), d.data());
    return d;
}

floats round_trip(const dscomm_codec_t *codec, const floats &x, int exponent = 0)
{
    Message m(codec, x.size(), exponent);
    encode(codec, m, x);
    return decode(codec, m);
}

template <typename T> T load(const Message &m, size_t byte)
{
    T v;
    std::memcpy(&v, m.get()->bytes + byte, sizeof(v));
    return v;
}

floats normal(size_t n, unsigned seed, float scale = 1.0f)
{
    std::mt19937 gen(seed);
    std::normal_distribution<float> dist(0.0f, scale);
    floats x(n);
    for (float &v : x)
        v = dist(gen);
    return x;
}

/* Magnitudes from 2^-140 to 2^120, signs, zeros; every block its own range. */
floats wild(size_t n, unsigned seed)
{
    std::mt19937 gen(seed);
    floats x(n);
    for (size_t i = 0; i < n; i++) {
        const int middle = static_cast<int>(i / 48 * 37 % 260) - 140;
        const float m = static_cast<float>(gen() % 2000) / 1000.0f - 1.0f;
        x[i] = gen() % 7 == 0 ? -0.0f : std::ldexp(m, middle + static_cast<int>(gen() % 12));
    }
    return x;
}

/* ---- specs ---- */

TEST(CodecParse, EqualSpecsGiveOnePointer)
{
    EXPECT_EQ(dscomm_codec("int8"), dscomm_codec("int8"));
    EXPECT_EQ(dscomm_codec("int8:block=256"), dscomm_codec("int8"));
    EXPECT_NE(dscomm_codec("int8:block=128"), dscomm_codec("int8"));
    EXPECT_STREQ(dscomm_codec_spec(dscomm_codec("int8:block=256")), "int8");
    EXPECT_STREQ(dscomm_codec_spec(dscomm_codec("int8:block=32")), "int8:block=32");
    EXPECT_EQ(dscomm_codec("int8:block=32")->block, 32u);
}

TEST(CodecParse, ErrorsNameSpecAndAllowedValues)
{
    const struct {
        const char *spec;
        std::vector<const char *> says;
    } bad[] = {
        { "int9", { "\"int9\"", "none fp32 fp16 bf16 int8 int8:block=N", "16 32 64 128 256" } },
        { "int8 ", { "\"int8 \"", "allowed", "int8:block=N" } },
        { " int8", { "\" int8\"", "allowed" } },
        { "INT8", { "\"INT8\"", "allowed" } },
        { "", { "\"\"", "allowed", "none fp32" } },
        { "int8:block=100", { "\"int8:block=100\"", "16 32 64 128 256" } },
        { "int8:block=0256", { "\"int8:block=0256\"", "16 32 64 128 256" } },
        { "int8:block=", { "\"int8:block=\"", "block=N" } },
        { "int8:block=64,sr", { "\"int8:block=64,sr\"", "block=N" } },
        { "int8:", { "\"int8:\"", "block=N" } },
        { "bf16:block=16", { "\"bf16:block=16\"", "bf16 takes no options" } },
        { "none,sr", { "\"none,sr\"", "none takes no options" } },
        { "int8\n", { "\"int8?\"", "allowed" } },
    };
    for (const auto &b : bad) {
        const dscomm_codec_t *codec = dscomm_codec("bf16");
        EXPECT_EQ(dscomm_codec_parse(b.spec, &codec), DSCOMM_ERR_INVALID) << b.spec;
        EXPECT_EQ(codec, dscomm_codec("bf16")) << "output touched";
        EXPECT_EQ(dscomm_codec(b.spec), nullptr) << b.spec;
        for (const char *text : b.says)
            EXPECT_NE(std::string(dscomm_last_error()).find(text), std::string::npos)
                << "'" << dscomm_last_error() << "' lacks '" << text << "'";
    }
}

TEST(CodecParse, NullAndEndlessSpecs)
{
    const dscomm_codec_t *codec = nullptr;
    EXPECT_EQ(dscomm_codec_parse(nullptr, &codec), DSCOMM_ERR_INVALID);
    EXPECT_NE(std::string(dscomm_last_error()).find("int8:block=N"), std::string::npos);
    EXPECT_EQ(dscomm_codec_parse("int8", nullptr), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_codec(nullptr), nullptr);

    const std::string endless(100000, 'x');
    EXPECT_EQ(dscomm_codec(endless.c_str()), nullptr);
    EXPECT_NE(std::string(dscomm_last_error()).find("xxx...\""), std::string::npos);
    EXPECT_NE(std::string(dscomm_last_error()).find("allowed"), std::string::npos);
}

/* ---- sizes ---- */

TEST(CodecSize, ByHand)
{
    const struct {
        const char *spec;
        size_t n, bytes;
    } cases[] = {
        { "fp32", 0, 0 },
        { "fp32", 1, 16 },
        { "fp32", 4, 16 },
        { "none", 5, 32 },
        { "fp16", 8, 16 },
        { "fp16", 9, 32 },
        { "bf16", 1, 16 },
        { "int8", 0, 0 },
        { "int8", 1, 32 },
        { "int8", 256, 272 },
        { "int8", 257, 288 },
        { "int8", 1024, 1040 },
        { "int8", 1025, 1072 },
        { "int8:block=16", 64, 80 },
        { "int8:block=16", 65, 112 },
    };
    for (const auto &c : cases)
        EXPECT_EQ(dscomm_codec_bound(dscomm_codec(c.spec), c.n), c.bytes) << c.spec << " " << c.n;
}

TEST(CodecSize, HugeCountsDoNotWrap)
{
    for (const char *spec : { "fp32", "bf16", "int8", "int8:block=16" }) {
        const dscomm_codec_t *codec = dscomm_codec(spec);
        EXPECT_GT(dscomm_codec_bound(codec, size_t(1) << 40), size_t(1) << 40) << spec;
        for (size_t n : { SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4, SIZE_MAX / 16 + 1 })
            EXPECT_GE(dscomm_codec_bound(codec, n), SIZE_MAX / 16) << spec;
    }
}

/* ---- int8 by hand ---- */

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
    codec->ops->encode_feedback(codec, m.get(), 0, v.size(), v.data(), r.data(), 1.0f, r.data(), 1);
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

/* ---- casts by hand ---- */

TEST(CodecCast, Fp16ByHand)
{
    const dscomm_codec_t *codec = dscomm_codec("fp16");
    const struct {
        float x;
        uint16_t wire;
    } cases[] = {
        { 1.0f, 0x3c00 },
        { -0.0f, 0x8000 },
        { 65504.0f, 0x7bff },
        { 65519.0f, 0x7bff },
        { 65520.0f, 0x7c00 },
        { -70000.0f, 0xfc00 },
        { 0x1p-14f, 0x0400 },
        { 0x1p-24f, 0x0001 },
        { 0x1p-25f, 0x0000 },
        { 0x1.8p-25f, 1 },
        { 0x1.8p-24f, 2 },
        { 0x1.ffcp-15f, 0x0400 },
        { 1e-45f, 0 },
        { kInf, 0x7c00 },
        { -kInf, 0xfc00 },
        { kNan, 0x7e00 },
        { from_bits(0xff800001u), 0x7e00 },
        { 1.00048828125f, 0x3c00 },
        { 1.00146484375f, 0x3c02 },
        { 1e30f, 0x7c00 },
    };
    for (const auto &c : cases) {
        Message m(codec, 1);
        encode(codec, m, { c.x });
        EXPECT_EQ(load<uint16_t>(m, 0), c.wire) << c.x;
        EXPECT_EQ(load<uint16_t>(m, 2), 0u);
    }
}

TEST(CodecCast, Fp16ExponentWidensTheRange)
{
    const dscomm_codec_t *codec = dscomm_codec("fp16");
    EXPECT_EQ(round_trip(codec, { 80000.0f })[0], kInf);
    EXPECT_EQ(round_trip(codec, { 80000.0f }, 1)[0], 80000.0f);
    EXPECT_EQ(round_trip(codec, { 65504.0f * 8 }, 3)[0], 65504.0f * 8);
    EXPECT_EQ(round_trip(codec, { 65536.0f * 8 }, 3)[0], kInf);
    EXPECT_EQ(bits(round_trip(codec, { kNan }, 3)[0]), 0x7fc00000u);
    Message m(codec, 1, 3);
    encode(codec, m, { 8.0f });
    EXPECT_EQ(load<uint16_t>(m, 0), 0x3c00);
}

TEST(CodecCast, Bf16ByHand)
{
    const dscomm_codec_t *codec = dscomm_codec("bf16");
    const uint32_t cases[][2] = {
        { 0x3f800000, 0x3f80 }, { 0x3f808000, 0x3f80 }, { 0x3f818000, 0x3f82 },
        { 0x3f808001, 0x3f81 }, { 0x00000001, 0x0000 }, { 0x00008001, 0x0001 },
        { 0x807fffff, 0x8080 }, { 0x7f7fffff, 0x7f80 }, { 0x7f7f7fff, 0x7f7f },
        { 0xff800000, 0xff80 }, { 0x7f800001, 0x7fc0 }, { 0xffffffff, 0x7fc0 },
    };
    for (const auto &c : cases) {
        Message m(codec, 1);
        encode(codec, m, { from_bits(c[0]) });
        EXPECT_EQ(load<uint16_t>(m, 0), c[1]) << std::hex << c[0];
    }
}

TEST(CodecCast, AllWireValuesRoundTrip)
{
    const struct {
        const char *spec;
        uint16_t inf, nan;
    } cases[] = { { "fp16", 0x7c00, 0x7e00 }, { "bf16", 0x7f80, 0x7fc0 } };
    for (const auto &c : cases) {
        const dscomm_codec_t *codec = dscomm_codec(c.spec);
        Message m(codec, 65536), back(codec, 65536);
        for (uint32_t i = 0; i < 65536; i++) {
            const uint16_t h = static_cast<uint16_t>(i);
            std::memcpy(m.at(2 * i), &h, sizeof(h));
        }
        encode(codec, back, decode(codec, m));
        for (uint32_t i = 0; i < 65536; i++) {
            const bool is_nan = (i & 0x7fff) > c.inf;
            ASSERT_EQ(load<uint16_t>(back, 2 * i), is_nan ? c.nan : i) << c.spec;
        }
    }
}

TEST(CodecCast, Fp32KeepsAllButNanPayloads)
{
    const floats x = { 1.0f, -0.0f, 1e-45f, FLT_MAX, kInf, -kInf, from_bits(0xff812345u) };
    floats want = x;
    want[6] = from_bits(0x7fc00000u);
    EXPECT_TRUE(same_bits(round_trip(dscomm_codec("fp32"), x), want));
    EXPECT_TRUE(same_bits(round_trip(dscomm_codec("none"), x), want));
}

/* ---- what every codec promises ---- */

class EveryCodec : public ::testing::TestWithParam<const char *> {
  protected:
    const dscomm_codec_t *codec = dscomm_codec(GetParam());
    const std::vector<size_t> counts = { 0, 1, 2, 15, 16, 17, 255, 256, 257, 1000, 2048, 5003 };
};

std::vector<const char *> all_specs()
{
    size_t n = 0;
    const char *const *specs = dsc_codec_test_specs(&n);
    return { specs, specs + n };
}

std::string test_name(const ::testing::TestParamInfo<const char *> &info)
{
    std::string name = info.param;
    for (char &c : name)
        c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
    return name;
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryCodec, ::testing::ValuesIn(all_specs()), test_name);

TEST_P(EveryCodec, RowIsComplete)
{
    ASSERT_NE(codec, nullptr);
    EXPECT_STREQ(codec->spec, GetParam());
    EXPECT_EQ(std::string(codec->spec).rfind(codec->ops->family, 0), 0u);
    EXPECT_NE(codec->ops->message_bytes, nullptr);
    EXPECT_NE(codec->ops->encode, nullptr);
    EXPECT_NE(codec->ops->encode_feedback, nullptr);
    EXPECT_NE(codec->ops->decode, nullptr);
    EXPECT_NE(codec->ops->decode_add, nullptr);
    EXPECT_GE(codec->block, 1u);
    EXPECT_TRUE(256 % codec->tile_align == 0 || codec->tile_align == 65536);
}

TEST_P(EveryCodec, SizeIsAFunctionOfCountAndGrows)
{
    size_t last = 0;
    for (size_t n = 0; n < 3000; n++) {
        const size_t bytes = dscomm_codec_bound(codec, n);
        ASSERT_EQ(bytes % 16, 0u) << n;
        ASSERT_GE(bytes, last) << n;
        last = bytes;
    }
    for (size_t n : counts) {
        Message a(codec, n), b(codec, n);
        size_t written = 1;
        EXPECT_EQ(dscomm_encode(codec, a.at(0), a.size(), floats(n, kNan).data(), n, &written),
                  DSCOMM_OK);
        EXPECT_EQ(written, dscomm_codec_bound(codec, n));
        EXPECT_EQ(dscomm_encode(codec, b.at(0), b.size(), normal(n, 1).data(), n, &written),
                  DSCOMM_OK);
        EXPECT_EQ(written, dscomm_codec_bound(codec, n));
        EXPECT_EQ(*a.at(a.size()), 0xa5) << "wrote past its size";
    }
}

/* Claims of the registry: lossless means lossless, e0 is the error on ordinary data. */
TEST_P(EveryCodec, ErrorIsAsDeclared)
{
    const floats x = normal(100003, 2, 0.01f);
    const floats d = round_trip(codec, x);
    double err = 0.0, norm = 0.0;
    for (size_t i = 0; i < x.size(); i++) {
        err += std::pow(double(x[i]) - double(d[i]), 2);
        norm += std::pow(double(x[i]), 2);
    }
    const double e = std::sqrt(err / norm);
    EXPECT_LE(e, codec->e0 * 1.25);
    EXPECT_GE(e, codec->e0 * 0.4);
    if (codec->lossless) {
        for (unsigned seed = 0; seed < 20; seed++)
            EXPECT_TRUE(same_bits(round_trip(codec, wild(3001, seed)), wild(3001, seed)));
    }
    EXPECT_EQ(codec->lossless, codec->e0 == 0.0);
}

TEST_P(EveryCodec, ErrorIsNeverLargerThanTheBlock)
{
    for (unsigned seed = 0; seed < 40; seed++) {
        const floats x = seed % 2 == 0 ? wild(2051, seed) : normal(2051, seed, 1e-6f);
        const floats d = round_trip(codec, x);
        for (size_t first = 0; first < x.size(); first += codec->block) {
            double err = 0.0, norm = 0.0;
            for (size_t i = first; i < std::min(x.size(), first + codec->block); i++) {
                if (!std::isfinite(d[i])) /* fp16 beyond its range: counted elsewhere */
                    continue;
                err += std::pow(double(x[i]) - double(d[i]), 2);
                norm += std::pow(double(x[i]), 2);
            }
            ASSERT_LE(err, norm) << "seed " << seed << " block at " << first;
        }
    }
}

TEST_P(EveryCodec, EncodeReportsWhatDecodeGives)
{
    for (size_t n : counts) {
        for (int exponent : { 0, 3 }) {
            floats x = wild(n, 7);
            if (n > 100)
                x[n / 2] = kNan, x[n / 3] = -kInf;
            Message m(codec, n, exponent), m2(codec, n, exponent);
            floats d(n), in_place = x;
            encode(codec, m, x, d.data());
            encode(codec, m2, in_place, in_place.data());
            EXPECT_TRUE(same_bits(d, decode(codec, m))) << n;
            EXPECT_TRUE(same_bits(in_place, d)) << n;
            EXPECT_EQ(m.bytes(), m2.bytes());
        }
    }
}

/* x = v + beta*r, D = decode(encode(x)), r' = x - D, step by step. */
TEST_P(EveryCodec, FeedbackIsTheOneEquation)
{
    for (size_t n : counts) {
        for (float beta : { 1.0f, 0.875f, 0.9f }) {
            const floats v = normal(n, 3), r = normal(n, 4, 0.01f);
            floats x(n), d(n), want(n), shared = r, r_out(n);
            for (size_t i = 0; i < n; i++) {
                const volatile float kept = beta * r[i];
                x[i] = v[i] + kept;
            }
            Message step(codec, n), one(codec, n), two(codec, n);
            encode(codec, step, x, d.data());
            for (size_t i = 0; i < n; i++)
                want[i] = x[i] - d[i];
            codec->ops->encode_feedback(codec, one.get(), 0, n, v.data(), r.data(), beta,
                                        r_out.data(), 0);
            codec->ops->encode_feedback(codec, two.get(), 0, n, v.data(), shared.data(), beta,
                                        shared.data(), 1);
            EXPECT_EQ(step.bytes(), one.bytes()) << n;
            EXPECT_EQ(step.bytes(), two.bytes()) << n;
            EXPECT_TRUE(same_bits(want, r_out)) << n;
            EXPECT_TRUE(same_bits(want, shared)) << n;
        }
    }
}

TEST_P(EveryCodec, KeptResidualIsNeverNonFinite)
{
    floats v = wild(3000, 5), r = normal(3000, 6);
    v[10] = kNan, v[700] = kInf, v[2999] = -kInf, v[1500] = FLT_MAX;
    const floats before = r;
    Message m(codec, v.size());
    codec->ops->encode_feedback(codec, m.get(), 0, v.size(), v.data(), r.data(), 1.0f, r.data(), 1);
    const floats d = decode(codec, m);
    for (size_t i = 0; i < r.size(); i++) {
        ASSERT_TRUE(std::isfinite(r[i])) << i;
        if (!std::isfinite(d[i])) {
            ASSERT_EQ(bits(r[i]), bits(before[i])) << i;
        }
    }
    EXPECT_FALSE(std::isfinite(d[10]));
}

TEST_P(EveryCodec, DecodeAddIsDecodeThenAdd)
{
    for (size_t n : counts) {
        Message m(codec, n);
        encode(codec, m, wild(n, 8));
        floats acc = normal(n, 9);
        floats want = acc;
        const floats d = decode(codec, m);
        for (size_t i = 0; i < n; i++)
            want[i] += d[i];
        codec->ops->decode_add(codec, m.get(), 0, n, acc.data());
        EXPECT_TRUE(same_bits(want, acc)) << n;
    }
}

/* Any cut into spans gives the whole message's bytes, padding included, and its elements. */
TEST_P(EveryCodec, SpansMakeTheWholeMessage)
{
    std::mt19937 gen(11);
    const size_t align = codec->tile_align;
    for (size_t n : counts) {
        for (int exponent : { 0, 2 }) {
            const floats v = wild(n, 12), r = normal(n, 13);
            Message whole(codec, n, exponent), parts(codec, n, exponent);
            floats r_whole(n), r_parts(n), d_parts(n), acc_whole(n, 1.0f), acc_parts(n, 1.0f);
            codec->ops->encode_feedback(codec, whole.get(), 0, n, v.data(), r.data(), 1.0f,
                                        r_whole.data(), 0);
            codec->ops->decode_add(codec, whole.get(), 0, n, acc_whole.data());
            for (size_t at = 0, len = 0; at < n; at += len) {
                len = std::min(n - at, align * (1 + gen() % (1 + 600 / align)));
                codec->ops->encode_feedback(codec, parts.get(), at, len, v.data() + at,
                                            r.data() + at, 1.0f, r_parts.data() + at, 0);
                codec->ops->decode(codec, whole.get(), at, len, d_parts.data() + at);
                codec->ops->decode_add(codec, whole.get(), at, len, acc_parts.data() + at);
            }
            EXPECT_EQ(whole.bytes(), parts.bytes()) << n;
            EXPECT_TRUE(same_bits(r_whole, r_parts)) << n;
            EXPECT_TRUE(same_bits(decode(codec, whole), d_parts)) << n;
            EXPECT_TRUE(same_bits(acc_whole, acc_parts)) << n;
        }
    }
}

/* Each tile size a caller might choose, encode alone. */
TEST_P(EveryCodec, EveryTileSizeGivesTheSameBytes)
{
    const size_t n = 1531;
    const floats x = normal(n, 14);
    Message whole(codec, n);
    encode(codec, whole, x);
    for (size_t tile = codec->tile_align; tile < n + codec->tile_align; tile += codec->tile_align) {
        Message m(codec, n);
        for (size_t at = 0; at < n; at += tile)
            codec->ops->encode(codec, m.get(), at, std::min(tile, n - at), x.data() + at, nullptr);
        ASSERT_EQ(m.bytes(), whole.bytes()) << tile;
    }
}

/* One bad element: others exact, its unit not finite, and the next call is clean again. */
TEST_P(EveryCodec, NonFiniteInputIsNewsForOneCall)
{
    for (const float bad : { kInf, kNan }) {
        floats v(1024, 127.0f), r(1024, 0.0f), r_next(1024);
        v[5] = bad;
        Message m(codec, v.size());
        codec->ops->encode_feedback(codec, m.get(), 0, v.size(), v.data(), r.data(), 1.0f,
                                    r_next.data(), 1);
        const floats d = decode(codec, m);
        for (size_t i = 0; i < d.size(); i++) {
            if (i == 5) {
                EXPECT_FALSE(std::isfinite(d[i]));
            } else if (i >= codec->block) {
                ASSERT_EQ(d[i], 127.0f) << i;
            }
        }
        v[5] = 127.0f;
        codec->ops->encode_feedback(codec, m.get(), 0, v.size(), v.data(), r_next.data(), 1.0f,
                                    r.data(), 1);
        EXPECT_EQ(decode(codec, m), floats(1024, 127.0f));
    }
}

/* ---- public functions ---- */

TEST(CodecPublic, RefusesBadArguments)
{
    const dscomm_codec_t *codec = dscomm_codec("int8");
    alignas(16) uint8_t msg[64] = {};
    float x[16] = {};
    size_t written = 77;
    char *const odd = reinterpret_cast<char *>(x) + 1;

    EXPECT_EQ(dscomm_encode(nullptr, msg, 64, x, 16, &written), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_encode(codec, nullptr, 64, x, 16, &written), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_encode(codec, msg, 64, nullptr, 16, &written), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_encode(codec, msg, 64, x, 16, nullptr), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_encode(codec, msg + 4, 60, x, 16, &written), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_encode(codec, msg, 64, reinterpret_cast<float *>(odd), 15, &written),
              DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_encode(codec, msg, 31, x, 16, &written), DSCOMM_ERR_INVALID);
    EXPECT_NE(std::string(dscomm_last_error()).find("needs 32"), std::string::npos);
    EXPECT_EQ(dscomm_encode(codec, msg, SIZE_MAX, x, SIZE_MAX, &written), DSCOMM_ERR_INVALID);
    EXPECT_EQ(written, 77u);

    EXPECT_EQ(dscomm_decode(nullptr, x, 16, msg, 32), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_decode(codec, nullptr, 16, msg, 32), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_decode(codec, x, 16, nullptr, 32), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_decode(codec, x, 16, msg + 8, 32), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_decode(codec, x, 16, msg, 31), DSCOMM_ERR_CORRUPT);
    EXPECT_EQ(dscomm_decode(codec, x, 16, msg, 48), DSCOMM_ERR_CORRUPT);
    EXPECT_NE(std::string(dscomm_last_error()).find("48 bytes"), std::string::npos);
}

TEST(CodecPublic, NothingIsOrdinary)
{
    size_t written = 77;
    EXPECT_EQ(dscomm_encode(dscomm_codec("int8"), nullptr, 0, nullptr, 0, &written), DSCOMM_OK);
    EXPECT_EQ(written, 0u);
    EXPECT_EQ(dscomm_decode(dscomm_codec("int8"), nullptr, 0, nullptr, 0), DSCOMM_OK);
}

/* ---- data types ---- */

TEST(CodecDtype, NoneIsTheCastOfTheDataType)
{
    const dscomm_codec_t *none = dscomm_codec("none");
    EXPECT_EQ(dsc_codec_resolve(none, DSCOMM_FLOAT32), dscomm_codec("fp32"));
    EXPECT_EQ(dsc_codec_resolve(none, DSCOMM_FLOAT16), dscomm_codec("fp16"));
    EXPECT_EQ(dsc_codec_resolve(none, DSCOMM_BFLOAT16), dscomm_codec("bf16"));
    EXPECT_EQ(dsc_codec_resolve(dscomm_codec("fp32"), DSCOMM_FLOAT16), dscomm_codec("fp32"));
    EXPECT_EQ(dsc_codec_resolve(dscomm_codec("int8"), DSCOMM_BFLOAT16), dscomm_codec("int8"));
}

/* Elements that are aligned as elements only. */
TEST(CodecDtype, LoadAndStore)
{
    const floats x = { 1.0f,     -2.5f, 40000.0f, -0.0f, from_bits(0xffc00001u),
                       0x1p-24f, kInf,  80000.0f, 3.0f };
    const struct {
        dscomm_dtype_t dtype;
        std::vector<uint32_t> want;
    } cases[] = {
        { DSCOMM_FLOAT16, { 0x3c00, 0xc100, 0x78e2, 0x8000, 0x7e00, 1, 0x7c00, 0x7c00, 0x4200 } },
        { DSCOMM_BFLOAT16,
          { 0x3f80, 0xc020, 0x471c, 0x8000, 0x7fc0, 0x3380, 0x7f80, 0x479c, 0x4040 } },
        { DSCOMM_FLOAT32,
          { 0x3f800000, 0xc0200000, 0x471c4000, 0x80000000, 0x7fc00000, 0x33800000, 0x7f800000,
            0x479c4000, 0x40400000 } },
    };
    for (const auto &c : cases) {
        const size_t size = dsc_dtype_bytes(c.dtype);
        std::vector<char> memory(64 + size);
        char *const at = memory.data() + size;
        dsc_dtype_store(c.dtype, at, x.data(), x.size());
        for (size_t i = 0; i < x.size(); i++) {
            uint32_t u = 0;
            std::memcpy(&u, at + i * size, size);
            EXPECT_EQ(u, c.want[i]) << dsc_dtype_name(c.dtype) << " " << i;
        }
        floats back(x.size());
        dsc_dtype_load(c.dtype, back.data(), at, back.size());
        EXPECT_EQ(back[0], 1.0f);
        EXPECT_EQ(back[1], -2.5f);
        EXPECT_EQ(bits(back[3]), bits(-0.0f));
        EXPECT_TRUE(std::isnan(back[4]));
        EXPECT_EQ(back[5], 0x1p-24f);
        EXPECT_EQ(back[8], 3.0f);
    }
}

} /* namespace */
