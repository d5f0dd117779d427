/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Specs, sizes and the public functions.
 */
#include <gtest/gtest.h>

#include "unit/codec_test_support.h"

namespace {

TEST(CodecParse, EqualSpecsGiveOnePointer)
{
    EXPECT_EQ(dscomm_codec("int8"), dscomm_codec("int8"));
    EXPECT_EQ(dscomm_codec("int8:block=256"), dscomm_codec("int8"));
    EXPECT_NE(dscomm_codec("int8:block=128"), dscomm_codec("int8"));
    EXPECT_STREQ(dscomm_codec_spec(dscomm_codec("int8:block=256")), "int8");
    EXPECT_STREQ(dscomm_codec_spec(dscomm_codec("int8:block=32")), "int8:block=32");
    EXPECT_EQ(dscomm_codec("int8:block=32")->block, 32u);
    EXPECT_EQ(dscomm_codec("int4:block=64"), dscomm_codec("int4"));
    EXPECT_STREQ(dscomm_codec_spec(dscomm_codec("int4:block=64")), "int4");
    EXPECT_STREQ(dscomm_codec_spec(dscomm_codec("fp8:e4m3")), "fp8");
    EXPECT_NE(dscomm_codec("fp8:e5m2"), dscomm_codec("fp8"));
    EXPECT_STREQ(dscomm_codec_spec(dscomm_codec("mxfp8:e4m3")), "mxfp8");
    EXPECT_STREQ(dscomm_codec_spec(dscomm_codec("mxfp8:e4m3,ceil")), "mxfp8,ceil");
    EXPECT_STREQ(dscomm_codec_spec(dscomm_codec("mxfp8:e5m2,ceil")), "mxfp8:e5m2,ceil");
    EXPECT_NE(dscomm_codec("mxfp4,ceil"), dscomm_codec("mxfp4"));
}

TEST(CodecParse, ErrorsNameSpecAndAllowedValues)
{
    const struct {
        const char *spec;
        std::vector<const char *> says;
    } bad[] = {
        { "int9",
          { "\"int9\"", "none fp32 fp16 bf16 int8[:block=N][,hadamard|,sr|,entropy]",
            "mxfp8[:e5m2][,ceil] mxfp4[,ceil] mxint8[,ceil] nvfp4", "N one of 16 32 64 128 256" } },
        { "int8 ", { "\"int8 \"", "allowed", "int8[:block=N]" } },
        { " int8", { "\" int8\"", "allowed" } },
        { "INT8", { "\"INT8\"", "allowed" } },
        { "", { "\"\"", "allowed", "none fp32" } },
        { "int8:block=100", { "\"int8:block=100\"", "16 32 64 128 256" } },
        { "int8:block=0256", { "\"int8:block=0256\"", "16 32 64 128 256" } },
        { "int8:block=", { "\"int8:block=\"", "block=N" } },
        { "int8:block=64,sr,sr", { "\"int8:block=64,sr,sr\"", "block=N" } },
        { "int8,hadamard,sr", { "int8 takes block=N", ",hadamard or ,sr" } },
        { "int8:", { "\"int8:\"", "block=N" } },
        { "bf16:block=16", { "\"bf16:block=16\"", "bf16 takes no options" } },
        { "none,sr", { "\"none,sr\"", "none takes no options" } },
        { "int4:block=8", { "\"int4:block=8\"", "int4 takes block=N", "16 32 64 128 256" } },
        { "fp8:e3m4", { "\"fp8:e3m4\"", "fp8 takes e4m3, the default, or e5m2" } },
        { "fp8:block=16", { "\"fp8:block=16\"", "fp8 takes e4m3" } },
        { "fp8,sr", { "\"fp8,sr\"", "fp8 takes e4m3" } },
        { "int8,hadamard,hadamard", { "int8 takes block=N", ",hadamard" } },
        { "int4:signed,sr", { "int4 takes block=N", "or signed" } },
        { "int4:signed,hadamard", { "int4 takes block=N", "or signed" } },
        { "int8:signed", { "int8 takes block=N" } },
        { "int4:hadamard", { "int4 takes block=N", ",hadamard" } },
        { "fp8,", { "fp8 takes e4m3" } },
        { "bf16,hadamard", { "bf16 takes no options" } },
        { "e5m2", { "\"e5m2\"", "allowed", "fp8[:e5m2]" } },
        { "mxfp8,floor", { "\"mxfp8,floor\"", "mxfp8 takes e4m3, the default, or e5m2", ",ceil" } },
        { "mxfp8:e4m3x", { "\"mxfp8:e4m3x\"", "mxfp8 takes" } },
        { "mxfp8:,ceil", { "\"mxfp8:,ceil\"", "mxfp8 takes" } },
        { "mxfp4:e2m1", { "\"mxfp4:e2m1\"", "mxfp4 takes ,ceil" } },
        { "mxint8,", { "\"mxint8,\"", "mxint8 takes ,ceil" } },
        { "int8,entropy,sr", { "int8 takes block=N", ",hadamard or ,sr or ,entropy" } },
        { "int4,entropy", { "int4 takes block=N" } },
        { "lossless:bf16", { "\"lossless:bf16\"", "lossless takes no options" } },
        { "nvfp4,ceil", { "\"nvfp4,ceil\"", "nvfp4 takes no options" } },
        { "fp88:", { "\"fp88:\"", "is not known" } },
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
    EXPECT_NE(std::string(dscomm_last_error()).find("int8[:block=N]"), std::string::npos);
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
        { "int4", 0, 0 },
        { "int4", 1, 32 },
        { "int4", 32, 32 },
        { "int4", 33, 48 },
        { "int4", 512, 272 },
        { "int4", 513, 304 },
        { "int4:block=16", 1000, 640 },
        { "int4:block=256", 1000, 528 },
        { "fp8", 1000, 1024 },
        { "fp8:e5m2", 1025, 1072 },
        { "mxfp8", 0, 0 },
        { "mxfp8", 1, 32 },
        { "mxfp8,ceil", 512, 528 },
        { "mxfp8:e5m2", 513, 560 },
        { "mxfp4", 1000, 544 },
        { "mxint8", 1000, 1040 },
        { "nvfp4", 0, 0 },
        { "nvfp4", 1, 48 },
        { "nvfp4", 1000, 592 },
        { "nvfp4", 65536, 36880 },
        { "nvfp4", 5 * 65536, 32 + 5 * 36864 },
    };
    for (const auto &c : cases)
        EXPECT_EQ(dscomm_codec_bound(dscomm_codec(c.spec), c.n), c.bytes) << c.spec << " " << c.n;
}

TEST(CodecSize, HugeCountsDoNotWrap)
{
    for (const char *spec : { "fp32", "bf16", "int8", "int8:block=16", "fp8", "mxfp8" }) {
        const dscomm_codec_t *codec = dscomm_codec(spec);
        EXPECT_GT(dscomm_codec_bound(codec, size_t(1) << 40), size_t(1) << 40) << spec;
        for (size_t n : { SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4, SIZE_MAX / 16 + 1 })
            EXPECT_GE(dscomm_codec_bound(codec, n), SIZE_MAX / 16) << spec;
    }
}

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

} /* namespace */
