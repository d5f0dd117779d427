/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promises that every codec makes (contraction, spans, sizes, the feedback equation), for all
 * registered specs. Equality of instruction sets is tests/check's matter.
 */
#include <gtest/gtest.h>

#include <cfloat>

#include "unit/codec_test_support.h"

namespace {

class EveryCodec : public ::testing::TestWithParam<const char *> {
  protected:
    const dscomm_codec_t *codec = dscomm_codec(GetParam());
    std::vector<size_t> counts = { 0, 1, 2, 15, 16, 17, 255, 256, 257, 1000, 2048, 5003 };

    void SetUp() override
    {
        if (codec->variable) /* more than one segment */
            counts.insert(counts.end(), { DSC_ENTROPY_SEGMENT, 2 * DSC_ENTROPY_SEGMENT + 77 });
    }
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
    EXPECT_NE(codec->ops->message_bytes, nullptr);
    EXPECT_NE(codec->ops->encode, nullptr);
    EXPECT_NE(codec->ops->encode_feedback, nullptr);
    EXPECT_NE(codec->ops->decode, nullptr);
    EXPECT_NE(codec->ops->decode_add, nullptr);
    EXPECT_GE(codec->block, 1u);
    EXPECT_EQ(codec->ops->used_bytes != nullptr, codec->variable);
    EXPECT_TRUE(256 % codec->tile_align == 0 || 65536 % codec->tile_align == 0);
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
        Message a(codec, n);
        size_t written = 1;
        for (const floats &x : { floats(n, kNan), normal(n, 1) }) {
            EXPECT_EQ(dscomm_encode(codec, a.at(0), a.size(), x.data(), n, &written), DSCOMM_OK);
            if (codec->variable) {
                EXPECT_LE(written, dscomm_codec_bound(codec, n));
                EXPECT_EQ(written % 16, 0u);
            } else {
                EXPECT_EQ(written, dscomm_codec_bound(codec, n));
            }
        }
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
    EXPECT_LE(e, 1.25e-6 * codec->e0_ppm);
    EXPECT_GE(e, 0.4e-6 * codec->e0_ppm);
    if (codec->lossless) {
        for (unsigned seed = 0; seed < 20; seed++)
            EXPECT_TRUE(same_bits(round_trip(codec, wild(3001, seed)), wild(3001, seed)));
    }
    EXPECT_EQ(codec->lossless, codec->e0_ppm == 0);
}

bool all_finite(const floats &x, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        if (!std::isfinite(x[i]))
            return false;
    return true;
}

TEST_P(EveryCodec, ErrorIsNeverLargerThanTheBlock)
{
    for (unsigned seed = 0; seed < 40; seed++) {
        const floats x = seed % 2 == 0 ? wild(2051, seed) : normal(2051, seed, 1e-6f);
        const floats d = round_trip(codec, x);
        for (size_t first = 0; first < x.size(); first += codec->block) {
            double err = 0.0, norm = 0.0;
            const size_t end = std::min(x.size(), first + codec->block);
            if (codec->inner != nullptr && !all_finite(d, first, end))
                continue; /* the error of what became Inf is in the others as well */
            for (size_t i = first; i < end; i++) {
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

/* Streamed stores are an affair of speed: the same bytes, wherever r_out begins and ends. */
TEST_P(EveryCodec, StreamingChangesNothing)
{
    for (size_t n : counts) {
        for (size_t shift : { 0, 1, 3 }) {
            floats v = wild(n, 15), r = normal(n, 16), want(n + 16, 5.0f), got(n + 16, 5.0f);
            if (n > 100)
                v[n / 2] = kNan;
            for (const unsigned flags : { 0u, DSC_KEEP_OLD }) {
                Message plain(codec, n), streamed(codec, n);
                codec->ops->encode_feedback(codec, plain.get(), 0, n, v.data(), r.data(), 0.9f,
                                            want.data() + shift, flags);
                codec->ops->encode_feedback(codec, streamed.get(), 0, n, v.data(), r.data(), 0.9f,
                                            got.data() + shift, flags | DSC_STREAM);
                EXPECT_EQ(plain.bytes(), streamed.bytes()) << n;
                EXPECT_TRUE(same_bits(want, got)) << n << " shift " << shift;
            }
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
                                        shared.data(), DSC_KEEP_OLD);
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
    codec->ops->encode_feedback(codec, m.get(), 0, v.size(), v.data(), r.data(), 1.0f, r.data(),
                                DSC_KEEP_OLD);
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

/* The shortcut that leaves elements uncounted must never miss one: values up to the largest float,
 * where a*D overflows in some blocks only, and bytes that no encoder would send. */
TEST_P(EveryCodec, DecodeOutputCountsWhatDecodeGives)
{
    std::mt19937 gen(21);
    const size_t n = 4096 + 33;
    for (int round = 0; round < 40; round++) {
        Message m(codec, n);
        encode(codec, m, normal(n, 22 + round, std::ldexp(1.0f, 118 + round % 9)));
        if (round % 2 == 1)
            for (int i = 0; i < 20; i++)
                *m.at(gen() % m.size()) = static_cast<uint8_t>(gen());
        const floats d = decode(codec, m);
        for (float a : { 1.0f, 3.0f, 64.0f }) {
            size_t bad = 0;
            for (float x : d)
                bad += !std::isfinite(a * x);
            for (unsigned flags : { 0u, DSC_STREAM }) {
                floats got(n, 5.0f);
                EXPECT_EQ(dsc_codec_decode_output(codec, m.get(), 0, n, got.data(), a, flags), bad)
                    << round;
                EXPECT_TRUE(same_bits(d, got)) << round;
            }
        }
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
                codec->ops->decode(codec, whole.get(), at, len, d_parts.data() + at, 0);
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
        const floats good = carried(codec, floats(1024, full_code(codec)));
        floats v = good, r(1024, 0.0f), r_next(1024);
        v[5] = bad;
        Message m(codec, v.size());
        codec->ops->encode_feedback(codec, m.get(), 0, v.size(), v.data(), r.data(), 1.0f,
                                    r_next.data(), DSC_KEEP_OLD);
        const floats d = decode(codec, m);
        for (size_t i = 0; i < d.size(); i++) {
            if (i == 5) {
                EXPECT_FALSE(std::isfinite(d[i]));
            } else if (i >= codec->block) {
                ASSERT_EQ(d[i], good[i]) << i;
            }
        }
        v[5] = good[5];
        codec->ops->encode_feedback(codec, m.get(), 0, v.size(), v.data(), r_next.data(), 1.0f,
                                    r.data(), DSC_KEEP_OLD);
        EXPECT_EQ(decode(codec, m), good);
    }
}

} /* namespace */
