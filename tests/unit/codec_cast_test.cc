/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts and data types against numbers worked out by hand.
 */
#include <gtest/gtest.h>

#include <cfloat>

#include "unit/codec_test_support.h"

namespace {

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
