/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless and int8,entropy: the values of the codecs whose messages they pack, how small and how
 * fast, and what a damaged message leads to.
 */
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "unit/codec_test_support.h"

#include "support/internal_begin.h"
#include "codec/huffman.h"
#include "codec/huffman_code.h"
#include "support/internal_end.h"

namespace {

using Bytes = std::vector<uint8_t>;

constexpr size_t kHeaderBytes = 64;

floats gradients(const std::string &name)
{
    std::ifstream file(DSC_GRADIENTS + name + ".grad", std::ios::binary);
    floats x(4 * 65536);
    file.seekg(kHeaderBytes);
    file.read(reinterpret_cast<char *>(x.data()),
              static_cast<std::streamsize>(x.size() * sizeof(float)));
    return file ? x : floats();
}

const dscomm_codec_t *lossless(dscomm_dtype_t dtype)
{
    return dsc_codec_resolve(dscomm_codec("lossless"), dtype);
}

/* Zeros in runs and alone, one exponent, many, NaN and Inf: what packs in different ways. */
std::vector<floats> vectors()
{
    std::vector<floats> out = { floats(9000, 0.0f),
                                floats(9000, -1.5f),
                                floats(20001, kNan),
                                normal(20001, 1),
                                wild(20001, 2),
                                floats(1, 3.0f),
                                {} };
    for (unsigned every : { 2, 15, 16, 17, 300 }) {
        floats x = normal(17000, every);
        for (size_t i = 0; i < x.size(); i++)
            x[i] = i % every == 0 || i / 100 % 7 == 0 ? 0.0f : i % 1013 == 0 ? -0.0f : x[i];
        out.push_back(x);
    }
    out.back()[77] = kInf;
    out.back()[8192] = -kNan;
    return out;
}

/* ---- the values of what is packed ---- */

TEST(CodecEntropy, DecodesToWhatThePackedCodecDecodesTo)
{
    const struct {
        const dscomm_codec_t *packed, *plain;
    } pairs[] = { { dscomm_codec("lossless"), dscomm_codec("fp32") },
                  { lossless(DSCOMM_FLOAT16), dscomm_codec("fp16") },
                  { lossless(DSCOMM_BFLOAT16), dscomm_codec("bf16") },
                  { dscomm_codec("int8,entropy"), dscomm_codec("int8") },
                  { dscomm_codec("int8:block=16,entropy"), dscomm_codec("int8:block=16") } };
    for (const auto &p : pairs) {
        for (const floats &x : vectors()) {
            for (int exponent : { 0, 4 }) {
                const floats r = normal(x.size(), 3, 0.1f);
                floats r_packed(x.size()), r_plain(x.size());
                Message packed(p.packed, x.size(), exponent), plain(p.plain, x.size(), exponent);
                p.packed->ops->encode_feedback(p.packed, packed.get(), 0, x.size(), x.data(),
                                               r.data(), 0.9f, r_packed.data(), DSC_KEEP_OLD);
                p.plain->ops->encode_feedback(p.plain, plain.get(), 0, x.size(), x.data(), r.data(),
                                              0.9f, r_plain.data(), DSC_KEEP_OLD);
                EXPECT_TRUE(same_bits(r_packed, r_plain)) << p.packed->spec << x.size();
                EXPECT_TRUE(same_bits(decode(p.packed, packed), decode(p.plain, plain)));
                EXPECT_LE(packed.bytes().size(), packed.size());
            }
        }
    }
}

/* Noise packs into nothing less: raw planes, a table, headers, and no more than that. */
TEST(CodecEntropy, NoiseCostsNoMoreThanItsHeaders)
{
    std::mt19937 gen(5);
    floats x(4 * 8192);
    for (float &v : x) /* any bits but NaN and Inf */
        v = from_bits(static_cast<uint32_t>(gen()) & 0xbfffffff);
    Message m(dscomm_codec("lossless"), x.size());
    encode(dscomm_codec("lossless"), m, x);
    EXPECT_LE(m.bytes().size(), x.size() * sizeof(float) + 16 + 4 * 21 + 15);
    EXPECT_LE(m.size(), x.size() * sizeof(float) + 16 + 4 * 21 + 15);
    EXPECT_TRUE(same_bits(decode(dscomm_codec("lossless"), m), x));
}

/* ---- planes ---- */

/* One symbol twice as rare as the next, so that Huffman's own tree has codes of up to 19 bits. */
Bytes steep_plane()
{
    Bytes plane;
    for (size_t n = 1, symbol = 40; plane.size() < DSC_PLANE_MAX; n = n * 8 / 5 + 1, symbol += 3)
        plane.insert(plane.end(), std::min(n, DSC_PLANE_MAX - plane.size()),
                     static_cast<uint8_t>(symbol));
    std::mt19937 gen(1);
    std::shuffle(plane.begin(), plane.end(), gen);
    return plane;
}

TEST(CodecEntropy, CodesAreLimitedAndComplete)
{
    const Bytes plane = steep_plane();
    uint32_t counts[DSC_SYMBOLS] = {};
    uint8_t lengths[DSC_SYMBOLS];
    size_t used = 0, longest = 0;
    for (uint8_t b : plane)
        counts[b]++;
    dsc_code_lengths(lengths, counts);
    for (int s = 0; s < DSC_SYMBOLS; s++) {
        EXPECT_EQ(lengths[s] != 0, counts[s] != 0) << s;
        used += lengths[s] != 0 ? size_t{ DSC_CODE_SPACE } >> lengths[s] : 0;
        longest = std::max<size_t>(longest, lengths[s]);
    }
    EXPECT_EQ(used, size_t{ DSC_CODE_SPACE });
    EXPECT_EQ(longest, size_t{ DSC_CODE_BITS_MAX });
}

TEST(CodecEntropy, PlanesComeBack)
{
    std::mt19937 gen(9);
    for (size_t n : { size_t{ 1 }, size_t{ 63 }, size_t{ 64 }, size_t{ 97 }, size_t{ 1000 },
                      size_t{ 8191 }, size_t{ DSC_PLANE_MAX } }) {
        for (unsigned kinds : { 1, 2, 3, 40, 256 }) {
            Bytes plane(n), packed(n + 8, 0xa5), back(n);
            for (uint8_t &b : plane) /* the smaller of two: not all equally often */
                b = static_cast<uint8_t>(std::min(gen() % kinds, gen() % kinds) * (256 / kinds));
            enum dsc_plane_method method;
            const size_t used = dsc_plane_pack(packed.data(), &method, plane.data(), n);
            ASSERT_LE(used, n);
            for (size_t i = n; i < packed.size(); i++)
                ASSERT_EQ(packed[i], 0xa5) << "wrote past " << n;
            const Bytes exact(packed.data(), packed.data() + used); /* for the sanitizer */
            EXPECT_EQ(dsc_plane_unpack(back.data(), n, method, exact.data(), used), nullptr);
            EXPECT_EQ(back, plane) << n << " of " << kinds << " kinds, method " << method;
        }
    }
}

/* ---- damage ---- */

dscomm_status_t decode_bytes(const dscomm_codec_t *codec, size_t n, const Bytes &bytes)
{
    Bytes memory(bytes.size() + 16);
    uint8_t *const src = memory.data() + (16 - reinterpret_cast<uintptr_t>(memory.data()) % 16);
    floats d(n);
    std::copy(bytes.begin(), bytes.end(), src);
    return dscomm_decode(codec, d.data(), n, src, bytes.size());
}

void ignore_line(void *, dscomm_log_level_t, const char *)
{
}

TEST(CodecEntropy, DamageIsRefusedOrDecodedAndNeverLeavesTheMessage)
{
    std::mt19937 gen(13);
    dscomm_set_log(ignore_line, nullptr);
    for (const char *spec : { "lossless", "int8,entropy" }) {
        const auto *codec = dscomm_codec(spec);
        const floats x = normal(9001, 4);
        Message m(codec, x.size());
        encode(codec, m, x);
        const Bytes good = m.bytes();
        size_t n_refused = 0;
        EXPECT_EQ(decode_bytes(codec, x.size(), good), DSCOMM_OK);
        for (int round = 0; round < 3000; round++) {
            Bytes bad = good;
            const size_t at = round < 500 ? static_cast<size_t>(round) : gen() % bad.size();
            bad[at] = static_cast<uint8_t>(bad[at] ^ 1u << gen() % 8);
            const dscomm_status_t st = decode_bytes(codec, x.size(), bad);
            EXPECT_TRUE(st == DSCOMM_OK || st == DSCOMM_ERR_CORRUPT);
            n_refused += st != DSCOMM_OK;
        }
        EXPECT_GT(n_refused, 50u) << spec;
        for (size_t len = 0; len < good.size(); len += 1 + len / 7)
            EXPECT_EQ(decode_bytes(codec, x.size(), Bytes(good.begin(), good.begin() + len)),
                      DSCOMM_ERR_CORRUPT);
        Bytes longer = good;
        longer.resize(good.size() + 16);
        EXPECT_EQ(decode_bytes(codec, x.size(), longer), DSCOMM_ERR_CORRUPT);
    }
    dscomm_set_log(nullptr, nullptr);
}

/* In a call: the segment is NaN, and who has sent it is told. */
TEST(CodecEntropy, AFlawNamesTheSourceAndPoisonsItsSegment)
{
    const auto *codec = dscomm_codec("lossless");
    const floats x = normal(20000, 6);
    Message m(codec, x.size());
    encode(codec, m, x);
    *m.at(4) = 0; /* the second segment's length */
    *m.at(5) = 0;
    struct dsc_flaw flaw = {};
    struct dsc_msg msg = *m.get();
    msg.flaw = &flaw;
    msg.source = 7;
    floats d(x.size()), acc(x.size(), 1.0f);
    codec->ops->decode(codec, &msg, 0, x.size(), d.data(), 0);
    codec->ops->decode_add(codec, &msg, 0, x.size(), acc.data());
    ASSERT_NE(flaw.what, nullptr);
    EXPECT_NE(std::string(flaw.what).find("segment"), std::string::npos);
    EXPECT_EQ(flaw.source, 7);
    for (size_t i = 0; i < x.size(); i++) {
        if (i < 8192) {
            ASSERT_EQ(bits(d[i]), bits(x[i])) << i;
        } else if (i < 2 * 8192) {
            ASSERT_EQ(bits(d[i]), 0x7fc00000u) << i;
            ASSERT_TRUE(std::isnan(acc[i]));
        }
    }
}

/* ---- how small, how fast ---- */

TEST(CodecEntropy, RatioOnGradients)
{
    const struct {
        const dscomm_codec_t *codec;
        double least; /* input bytes over message bytes, of each file */
        size_t elem_bytes;
    } figures[] = { { dscomm_codec("lossless"), 1.5, 4 },
                    { lossless(DSCOMM_BFLOAT16), 1.85, 2 },
                    { lossless(DSCOMM_FLOAT16), 1.35, 2 },
                    { dscomm_codec("int8,entropy"), 5.0, 4 } };
    for (const std::string name : { "lm", "cnn" }) {
        const floats x = gradients(name);
        ASSERT_FALSE(x.empty());
        for (const auto &f : figures) {
            Message m(f.codec, x.size());
            encode(f.codec, m, x);
            const double ratio = double(x.size() * f.elem_bytes) / double(m.bytes().size());
            EXPECT_GE(ratio, f.least) << f.codec->spec << " " << name << " " << f.elem_bytes;
            EXPECT_LE(ratio, f.least * 1.5) << "a bound that says nothing";
        }
    }
}

#if defined(NDEBUG) && defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)

/* GB of input per second, the best of some rounds: a third of what is wanted of an idle core. */
template <typename Step> double gbps(size_t bytes, Step step)
{
    double best = 0.0;
    for (int round = 0; round < 15; round++) {
        const auto start = std::chrono::steady_clock::now();
        step();
        const std::chrono::duration<double> t = std::chrono::steady_clock::now() - start;
        best = std::max(best, double(bytes) / t.count() * 1e-9);
    }
    return best;
}

TEST(CodecEntropy, SpeedOnGradients)
{
    const floats x = gradients("lm");
    ASSERT_FALSE(x.empty());
    const struct {
        const dscomm_codec_t *codec;
        size_t bytes;
        double encode, decode;
    } figures[] = { { dscomm_codec("lossless"), x.size() * 4, 1.5 / 3, 1.5 / 3 },
                    { lossless(DSCOMM_BFLOAT16), x.size() * 2, 0.8 / 3, 1.5 / 3 } };
    for (const auto &f : figures) {
        Message m(f.codec, x.size());
        floats d(x.size());
        EXPECT_GE(gbps(f.bytes, [&] { encode(f.codec, m, x); }), f.encode) << f.bytes;
        EXPECT_GE(gbps(f.bytes,
                       [&] { f.codec->ops->decode(f.codec, m.get(), 0, x.size(), d.data(), 0); }),
                  f.decode)
            << f.bytes;
    }
}

#endif

} /* namespace */
