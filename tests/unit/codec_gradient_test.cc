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

} /* namespace */
