/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one encode loses of gradients out of training (docs/gradient_data.md), which have zeros,
 * outliers and layers of different size.
 */
#include <gtest/gtest.h>

#include <fstream>

#include "unit/codec_test_support.h"

namespace {

constexpr size_t kHeaderBytes = 64;

/* All ranks' values of a file, one after the other. */
floats gradients(const std::string &name)
{
    std::ifstream file(DSC_GRADIENTS + name + ".grad", std::ios::binary | std::ios::ate);
    const auto bytes = static_cast<size_t>(std::max<std::streamoff>(file.tellg(), 0));
    if (bytes <= kHeaderBytes)
        return {};
    floats x((bytes - kHeaderBytes) / sizeof(float));
    file.seekg(kHeaderBytes);
    file.read(reinterpret_cast<char *>(x.data()),
              static_cast<std::streamsize>(x.size() * sizeof(float)));
    return x;
}

double relative_error(const floats &x, const floats &d)
{
    double err = 0.0, norm = 0.0;
    for (size_t i = 0; i < x.size(); i++) {
        err += std::pow(double(x[i]) - double(d[i]), 2);
        norm += std::pow(double(x[i]), 2);
    }
    return std::sqrt(err / norm);
}

TEST(CodecGradient, ErrorOfOneEncode)
{
    const struct {
        const char *spec;
        double largest;
    } bounds[] = {
        { "int8", 0.01 },        { "fp8", 0.03 },
        { "fp8:e5m2", 0.06 },    { "int4", 0.13 },
        { "mxfp8", 0.035 },      { "mxfp8,ceil", 0.035 },
        { "mxfp8:e5m2", 0.065 }, { "mxfp8:e5m2,ceil", 0.065 },
        { "mxfp4", 0.16 },       { "mxfp4,ceil", 0.16 },
        { "mxint8", 0.01 },      { "mxint8,ceil", 0.01 },
        { "nvfp4", 0.12 },
    };
    for (const std::string name : { "lm", "cnn" }) {
        const floats x = gradients(name);
        ASSERT_EQ(x.size(), 4u * 65536u) << name;
        for (const auto &b : bounds) {
            const double e = relative_error(x, round_trip(dscomm_codec(b.spec), x));
            EXPECT_LE(e, b.largest) << b.spec << " " << name;
            EXPECT_GE(e, b.largest / 3) << b.spec << " " << name << ": a bound that says nothing";
        }
    }
}

/* Every spec of the registry's list and every block size with every option. */
std::vector<std::string> all_specs()
{
    size_t n = 0;
    const char *const *const list = dsc_codec_test_specs(&n);
    std::vector<std::string> specs(list, list + n);

    for (const char *const block : { "16", "32", "64", "128", "256" })
        for (const char *const option : { "", ",hadamard", ",sr", ",entropy" })
            for (const std::string base : { "int8:block=", "int4:block=" })
                if (base + option != "int4:block=,entropy")
                    specs.push_back(base + block + option);
    return specs;
}

/* The figure that error budgets and the accuracy guard go by. */
TEST(CodecGradient, NominalErrorIsThatOfGradientsRoundedUp)
{
    for (const std::string name : { "lm", "cnn" }) {
        const floats x = gradients(name);
        ASSERT_EQ(x.size(), 4u * 65536u) << name;
        for (const std::string &spec : all_specs()) {
            const dscomm_codec_t *const codec = dscomm_codec(spec.c_str());
            const double ppm = 1e6 * relative_error(x, round_trip(codec, x));
            EXPECT_LE(ppm, codec->e0_ppm) << spec << " " << name;
            EXPECT_GE(ppm, codec->e0_ppm / 4.0) << spec << " " << name;
        }
    }
}

/* The figure that the tuner takes for sizes it cannot know beforehand. */
TEST(CodecGradient, NominalFillOfVariableCodecs)
{
    for (const char *const spec : { "lossless", "int8,entropy" })
        for (const std::string name : { "lm", "cnn" }) {
            const floats x = gradients(name);
            const dscomm_codec_t *const codec = dscomm_codec(spec);
            std::vector<uint8_t> bytes(dscomm_codec_bound(codec, x.size()) + 16);
            uint8_t *const at =
                bytes.data() + (16 - reinterpret_cast<uintptr_t>(bytes.data()) % 16);
            size_t used = 0;

            ASSERT_EQ(dscomm_encode(codec, at, bytes.size() - 16, x.data(), x.size(), &used),
                      DSCOMM_OK);
            const double ppm = 1e6 * double(used) / double(dscomm_codec_bound(codec, x.size()));
            EXPECT_LE(ppm, codec->fill_ppm) << spec << " " << name;
            EXPECT_GE(ppm, codec->fill_ppm / 2.0) << spec << " " << name;
        }
}

} /* namespace */
