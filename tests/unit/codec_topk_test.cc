/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Top-k: messages by hand, the selection against a full sort, what is no valid message.
 */
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <thread>

#include "unit/codec_test_support.h"

#include "support/internal_begin.h"
#include "codec/topk_select.h"
#include "support/internal_end.h"

namespace {

using indices = std::vector<uint16_t>;

/* ---- specs ---- */

TEST(TopKParse, EqualMeaningsGiveOnePointer)
{
    const std::vector<std::vector<const char *>> same = {
        { "topk:0.01", "topk:.01", "topk:0.0100", "topk:0.010000000", "topk:00.01",
          "topk:0.01,fp16", "topk:0.0100000000000000" },
        { "topk:1", "topk:1.", "topk:1.0", "topk:1.000000000000" },
        { "topk:0.000000001" },
        { "topk:0.001,int8", "topk:0.0010,int8" },
        { "topk:k=7,fp8", "topk:k=007,fp8" },
        { "topk:k=65536" },
        { "topk:0.01,position", "topk:.01,position", "topk:0.01,fp16,position" },
        { "topk:k=7,fp8,position", "topk:k=07,fp8,position" },
        { "topk:0.01,reuse", "topk:.01,reuse", "topk:0.01,fp16,reuse" },
        { "topk:k=7,fp8,position,reuse" },
    };
    for (const auto &specs : same)
        for (const char *spec : specs) {
            ASSERT_NE(dscomm_codec(spec), nullptr) << dscomm_last_error();
            EXPECT_EQ(dscomm_codec(spec), dscomm_codec(specs[0])) << spec;
            EXPECT_STREQ(dscomm_codec_spec(dscomm_codec(spec)), specs[0]) << spec;
        }
    EXPECT_NE(dscomm_codec("topk:0.01"), dscomm_codec("topk:0.01,int8"));
    EXPECT_NE(dscomm_codec("topk:k=1"), dscomm_codec("topk:1"));
    EXPECT_NE(dscomm_codec("topk:0.01"), dscomm_codec("topk:0.01,position"));
}

TEST(TopKParse, ErrorsNameSpecAndAllowedValues)
{
    const char *const ratio = "a ratio from 0.000000001 to 1 with at most 9 decimals";
    const char *const count = "k=N, N from 1 to 65536";
    const char *const values =
        "values fp16 (the default), int8 or fp8, then perhaps position, then reuse";
    const struct {
        const char *spec, *says;
    } bad[] = {
        { "topk", ratio },
        { "topk:", ratio },
        { "topk,int8", ratio },
        { "topk:0", ratio },
        { "topk:0.0", ratio },
        { "topk:0.0000000001", ratio },
        { "topk:1e-10", ratio },
        { "topk:1e-3", ratio },
        { "topk:nan", ratio },
        { "topk:inf", ratio },
        { "topk:-0.1", ratio },
        { "topk:2", ratio },
        { "topk:10", ratio },
        { "topk:1.000000001", ratio },
        { "topk:.", ratio },
        { "topk:0.01 ", ratio },
        { "topk: 0.01", ratio },
        { "topk:0,01", ratio },
        { "topk:99999999999999999999999", ratio },
        { "topk:0.01.1", ratio },
        { "topk:k=", count },
        { "topk:k=0", count },
        { "topk:k=65537", count },
        { "topk:k=-1", count },
        { "topk:k=4294967297", count },
        { "topk:k=1.5", count },
        { "topk:0.01,", values },
        { "topk:0.01,int4", values },
        { "topk:k=5,fp8:e5m2", values },
        { "topk:0.01,int8,int8", values },
        { "topk:0.01,position,int8", values },
        { "topk:0.01,position,position", values },
        { "topk:0.01,positio", values },
        { "topk:0.01,reuse,position", values },
        { "topk:0.01,reuse,reuse", values },
    };
    for (const auto &b : bad) {
        EXPECT_EQ(dscomm_codec(b.spec), nullptr) << b.spec;
        for (const std::string &text : { std::string("\"") + b.spec + "\"", std::string(b.says) })
            EXPECT_NE(std::string(dscomm_last_error()).find(text), std::string::npos)
                << "'" << dscomm_last_error() << "' lacks '" << text << "'";
    }
}

/* All threads find the same codecs, and what they are made of when they find them. */
TEST(TopKParse, AnyThread)
{
    std::vector<std::vector<const dscomm_codec_t *>> found(8);
    std::vector<std::thread> threads;
    for (auto &mine : found)
        threads.emplace_back([&mine] {
            for (int i = 0; i < 40; i++)
                mine.push_back(dscomm_codec(("topk:k=" + std::to_string(900 + i)).c_str()));
        });
    for (auto &t : threads)
        t.join();
    for (const auto &mine : found)
        EXPECT_EQ(mine, found[0]);
    for (size_t i = 0; i < found[0].size(); i++)
        EXPECT_EQ(dsc_topk_kept(found[0][i], 65536), 900 + i);
}

void parse_without_end()
{
    const dscomm_codec_t *codec = dscomm_codec("topk:0.01");
    dscomm_status_t st = DSCOMM_OK;
    for (int n = 1; st == DSCOMM_OK && n < 2 * DSC_INTERNED_MAX; n++) {
        const dscomm_codec_t *other = nullptr;
        st = dscomm_codec_parse(("topk:k=" + std::to_string(n) + ",fp8").c_str(), &other);
    }
    fprintf(stderr, "%s\n", dscomm_last_error());
    exit(st == DSCOMM_ERR_LIMIT && dscomm_codec("topk:0.0100") == codec ? 0 : 1);
}

/* In a process of its own, since the limit holds for its whole life. */
TEST(TopKParseDeathTest, SpecsWithoutEndAreRefused)
{
    EXPECT_EXIT(parse_without_end(), ::testing::ExitedWithCode(0),
                "topk:k=[0-9]+,fp8.*at most 256");
}

/* ---- sizes ---- */

TEST(TopKSize, ByHand)
{
    const struct {
        const char *spec;
        size_t n, bytes;
    } sizes[] = {
        { "topk:0.01", 1, 16 + 16 },
        { "topk:0.01", 100, 16 + 16 },
        { "topk:0.01", 101, 16 + 16 },
        { "topk:0.07", 100, 16 + 16 }, /* 7, not 8: 0.07 * 100 is more than 7 in double */
        { "topk:0.09", 100, 32 + 32 },
        { "topk:0.01", 65536, 1312 + 1312 }, /* 656 */
        { "topk:0.01", 65537, 2624 + 32 },
        { "topk:0.01", 3 * 65536 + 5000, 3 * 2624 + 112 + 112 },
        { "topk:0.01,int8", 65536, 16 + 656 + 1312 },
        { "topk:k=300,fp8", 1000, 16 + 304 + 608 },
        { "topk:k=300,fp8", 200, 16 + 208 + 400 },
        { "topk:0.000000001", 65536, 32 },
        { "topk:1", 65536, 4 * 65536 },
    };
    for (const auto &s : sizes)
        EXPECT_EQ(dscomm_codec_bound(dscomm_codec(s.spec), s.n), s.bytes) << s.spec << " " << s.n;
    const size_t n = 64 << 20;
    EXPECT_LE(dscomm_codec_bound(dscomm_codec("topk:0.01"), n), n * 4 * 3 / 100);
    EXPECT_LE(dscomm_codec_bound(dscomm_codec("topk:0.001,int8"), n), n * 4 / 200);
}

TEST(TopKSize, ByPosition)
{
    const struct {
        const char *spec;
        size_t n;
        dsc_place place;
        size_t kept;
    } sizes[] = {
        { "topk:k=100,position", 65536, { 0, 0 }, 100 },
        { "topk:k=100,position", 65536, { 0, 1 }, 100 },
        { "topk:k=100,position", 65536, { 0, 4 }, 100 },
        { "topk:k=100,position", 65536, { 1, 4 }, 110 },
        { "topk:k=100,position", 65536, { 3, 4 }, 130 },
        { "topk:k=100,position", 65536, { 1, 33 }, 101 },    /* 100.9375 */
        { "topk:k=1,position", 65536, { 1, 2 }, 2 },         /* 1.3 */
        { "topk:k=65536,position", 65536, { 1, 2 }, 65536 }, /* there are no more */
        { "topk:0.01,position", 65536, { 1, 2 }, 853 },      /* 656 * 1.3 = 852.8 */
        { "topk:0.01,position", 100, { 1, 2 }, 2 },
        { "topk:0.01", 65536, { 1, 2 }, 656 }, /* without the option places do not matter */
    };
    for (const auto &s : sizes) {
        dsc_codec made;

        EXPECT_EQ(dsc_topk_kept(dsc_codec_at(dscomm_codec(s.spec), s.place, &made), s.n), s.kept)
            << s.spec << " " << s.place.position << " of " << s.place.members;
    }
}

/* ---- selection ---- */

/* Ascending indices of the k largest magnitudes by a stable sort; empty if one is not finite. */
indices sorted_choice(const floats &x, size_t k)
{
    std::vector<uint32_t> order(x.size());
    const auto key = [&](uint32_t i) { return bits(x[i]) & 0x7fffffffu; };
    for (float v : x)
        if (!std::isfinite(v))
            return {};
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return key(a) > key(b); });
    indices chosen(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k));
    std::sort(chosen.begin(), chosen.end());
    return chosen;
}

indices choice(const floats &v, const floats &r, float beta, size_t k, uint32_t *last = nullptr)
{
    const dsc_top_source src = { v.data(), r.empty() ? nullptr : r.data(), beta };
    indices index(k);
    return dsc_top_select(index.data(), &src, v.size(), k, last) ? index : indices();
}

floats sum_of(const floats &v, const floats &r, float beta)
{
    floats x = v;
    for (size_t i = 0; i < x.size() && !r.empty(); i++) {
        const volatile float kept = beta * r[i];
        x[i] = v[i] + kept;
    }
    return x;
}

/* Inputs for which the guess is right, too low, too high, or of no use. */
const std::vector<std::function<floats(size_t, unsigned)>> makers = {
    [](size_t n, unsigned seed) { return normal(n, seed); },
    [](size_t n, unsigned seed) { return wild(n, seed); },
    [](size_t n, unsigned) { return floats(n, -1.0f); }, /* all equal: lowest indices */
    [](size_t n, unsigned) { return floats(n, 0.0f); },
    [](size_t n, unsigned seed) { /* few steps, many ties */
                                  floats x = normal(n, seed);
                                  for (float &v : x)
                                      v = std::rint(v);
                                  return x;
    },
    [](size_t n, unsigned seed) { /* most are zero */
                                  floats x = normal(n, seed);
                                  for (size_t i = 0; i < n; i++)
                                      x[i] = i % 97 == 3 ? x[i] : -0.0f;
                                  return x;
    },
    [](size_t n, unsigned) { /* what the sample sees is small, the rest is large */
                             floats x(n);
                             for (size_t i = 0; i < n; i++)
                                 x[i] = i % 512 < 16 ? 1e-3f : 1.0f + static_cast<float>(i % 1000);
                             return x;
    },
    [](size_t n, unsigned) { /* and the other way round */
                             floats x(n);
                             for (size_t i = 0; i < n; i++)
                                 x[i] = i % 512 < 16 ? 1.0f + static_cast<float>(i % 1000) : 1e-3f;
                             return x;
    },
    [](size_t n, unsigned) { /* keys that differ in their last bit only */
                             floats x(n);
                             for (size_t i = 0; i < n; i++)
                                 x[i] =
                                     from_bits(0x3f800000u + static_cast<uint32_t>(i * 7919 % 3) +
                                               (i % 2 != 0 ? 0x80000000u : 0));
                             return x;
    },
    [](size_t n, unsigned seed) { /* subnormal numbers and the largest */
                                  std::mt19937 gen(seed);
                                  floats x(n);
                                  for (float &v : x)
                                      v = from_bits(gen() % 3 != 0 ? gen() & 0x807fffffu
                                                                   : 0x7f7fffffu - gen() % 3);
                                  return x;
    },
};

TEST(TopKSelect, IsThatOfAFullSort)
{
    for (size_t n : { 1, 2, 63, 64, 65, 257, 4095, 4097, 8192, 9001, 65535, 65536 })
        for (size_t k :
             { (size_t)1, (size_t)2, n / 1000 + 1, n / 100 + 1, n / 10 + 1, n / 2 + 1, n })
            for (size_t m = 0; m < makers.size() && k <= n; m++) {
                const floats v = makers[m](n, static_cast<unsigned>(n + k));
                const floats r = normal(n, 3, 0.5f);
                EXPECT_EQ(choice(v, {}, 0.0f, k), sorted_choice(v, k)) << n << " " << k << " " << m;
                EXPECT_EQ(choice(v, r, 0.9f, k), sorted_choice(sum_of(v, r, 0.9f), k))
                    << n << " " << k << " " << m << " with a residual";
            }
}

/* Whatever the threshold of before is: that of these values, near it, far off, nonsense. */
TEST(TopKSelect, AnyThresholdOfBeforeFindsTheSame)
{
    for (size_t n : { 100, 4097, 65536 })
        for (size_t k : { (size_t)1, n / 100 + 1, n / 5 + 1, n })
            for (size_t m = 0; m < makers.size(); m++) {
                const floats v = makers[m](n, static_cast<unsigned>(n + k));
                const indices right = sorted_choice(v, k);
                uint32_t found = 0;

                EXPECT_EQ(choice(v, {}, 0.0f, k, &found), right);
                for (uint32_t i : right) /* what was found is the smallest of these */
                    EXPECT_GE(bits(v[i]) & 0x7fffffffu, found);
                for (uint32_t last :
                     { found, found + 1, found - 1, found + 400000, found - 400000, found * 2, 1u,
                       0x80000u, 0x80001u, 0x7f700000u, 0x7f7fffffu, 0x7f800000u, 0xffffffffu }) {
                    uint32_t at = last;

                    EXPECT_EQ(choice(v, {}, 0.0f, k, &at), right)
                        << n << " " << k << " " << m << " from " << last;
                    EXPECT_EQ(at, found) << n << " " << k << " " << m << " from " << last;
                }
            }
}

/* One in each place that a pass or its tail looks at, however the selection goes on from there. */
TEST(TopKSelect, NoNonFiniteElementIsMissed)
{
    for (size_t n : { 1, 100, 4097, 9001, 65536 })
        for (size_t m = 0; m < makers.size(); m++)
            for (float bad : { kInf, -kInf, kNan, -kNan, from_bits(0x7f800001u) }) {
                floats x = makers[m](n, 5), zero(n, 0.0f);
                const size_t at = (n - 1) * m / (makers.size() - 1);
                x[at] = bad;
                for (size_t k : { (size_t)1, n / 100 + 1, n }) {
                    EXPECT_EQ(choice(x, {}, 0.0f, k), indices()) << n << " " << m << " " << at;
                    EXPECT_EQ(choice(zero, x, 1.0f, k), indices()) << n << " " << m << " " << at;
                }
            }
    EXPECT_EQ(choice({ 3e38f }, { 3e38f }, 1.0f, 1), indices()) << "the sum overflows";
}

/* ---- messages ---- */

TEST(TopKMessage, ByHand)
{
    const auto *codec = dscomm_codec("topk:k=3");
    Message m(codec, 7, 1);
    encode(codec, m, { 1, -2, 0, 2, 5, -2, 2 });
    const std::vector<uint8_t> want = {
        0, 0xbc, 0, 0x3c, 0, 0x41, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, /* halves of them, since E is 1 */
        1, 0,    3, 0,    4, 0,    0, 0, 0, 0, 0, 0, 0, 0, 0, 0
    };
    EXPECT_EQ(m.bytes(), want);
    EXPECT_TRUE(same_bits(decode(codec, m), { 0, -2, 0, 2, 5, 0, 0 }));
}

TEST(TopKMessage, PoisonIsCanonical)
{
    for (const char *spec : { "topk:k=300", "topk:k=300,int8", "topk:k=300,fp8" }) {
        const auto *codec = dscomm_codec(spec);
        Message m(codec, 65536 + 1000);
        floats x = normal(65536 + 1000, 1);
        x[70] = kNan;
        encode(codec, m, x);
        const size_t at = dscomm_codec_bound(codec->values, 300);
        for (uint16_t i = 0; i < 300; i++)
            ASSERT_EQ(load<uint16_t>(m, at + 2u * i), i);
        if (codec->values == dscomm_codec("fp16")) {
            EXPECT_EQ(load<uint16_t>(m, 598), 0x7e00);
        } else {
            EXPECT_EQ(load<uint32_t>(m, 0), 0x7fc00000u);
            EXPECT_EQ(load<uint32_t>(m, 4), 0x7fc00000u);
            EXPECT_EQ(*m.at(16), 0);
        }
        const floats d = decode(codec, m);
        EXPECT_EQ(std::count_if(d.begin(), d.begin() + 65536,
                                [](float v) { return bits(v) == 0x7fc00000u; }),
                  65536);
        EXPECT_EQ(std::count_if(d.begin() + 65536, d.end(), [](float v) { return v != 0; }), 300)
            << "the other segment is whole";
    }
}

/* Bytes of a peer: whatever the indices are, nothing outside and the whole segment is NaN. */
TEST(TopKMessage, OddIndicesPoisonTheSegment)
{
    const auto *codec = dscomm_codec("topk:k=3,int8");
    const indices odd[] = {
        { 1, 1, 2 }, { 2, 1, 3 }, { 0, 1, 7 }, { 65535, 1, 2 }, { 0, 65535, 6 }
    };
    for (const auto &index : odd) {
        Message m(codec, 7);
        encode(codec, m, { 1, 2, 3, 4, 5, 6, 7 });
        std::memcpy(m.at(32), index.data(), 6);
        floats acc(7, 1.0f);
        codec->ops->decode_add(codec, m.get(), 0, 7, acc.data());
        for (float x : decode(codec, m))
            EXPECT_EQ(bits(x), 0x7fc00000u);
        for (float x : acc)
            EXPECT_TRUE(std::isnan(x));
        EXPECT_FALSE(codec->ops->stays_finite(codec, m.get(), 0, 7, 1.0f));
    }
}

/* -0 + 0 is 0, where nothing was sent; and -0 where -0 was. */
TEST(TopKMessage, AddingKeepsTheRulesOfZero)
{
    const auto *codec = dscomm_codec("topk:k=2");
    Message m(codec, 5);
    encode(codec, m, { 0.0f, -0.0f, 0.0f, 0.0f, 0.0f });
    floats acc(5, -0.0f);
    codec->ops->decode_add(codec, m.get(), 0, 5, acc.data());
    EXPECT_TRUE(same_bits(acc, { 0.0f, -0.0f, 0.0f, 0.0f, 0.0f }));
}

/* ---- segments ---- */

/* Any cut at segments gives the whole message, its elements, and what is left, in place or not. */
TEST(TopKSegments, SpansMakeTheWholeMessage)
{
    for (const char *spec : { "topk:0.01", "topk:0.003,int8", "topk:k=5000,fp8" })
        for (size_t n : { 65536, 65537, 4 * 65536 - 1, 3 * 65536 + 700 }) {
            const auto *codec = dscomm_codec(spec);
            const floats v = normal(n, 1), r = normal(n, 2, 0.3f);
            Message whole(codec, n), parts(codec, n);
            floats r_whole(n), r_parts = r, d(n), acc(n, 1.0f);
            codec->ops->encode_feedback(codec, whole.get(), 0, n, v.data(), r.data(), 0.9f,
                                        r_whole.data(), DSC_STREAM);
            for (size_t at = 0, len = 0; at < n; at += len) {
                len = std::min(n - at, 65536 * (1 + at / 65536 % 2));
                codec->ops->encode_feedback(codec, parts.get(), at, len, v.data() + at,
                                            r_parts.data() + at, 0.9f, r_parts.data() + at,
                                            DSC_KEEP_OLD);
                codec->ops->decode(codec, whole.get(), at, len, d.data() + at, 0);
                codec->ops->decode_add(codec, whole.get(), at, len, acc.data() + at);
            }
            EXPECT_EQ(whole.bytes(), parts.bytes()) << spec << " " << n;
            EXPECT_TRUE(same_bits(r_whole, r_parts)) << spec << " " << n;
            const floats x = sum_of(v, r, 0.9f), all = decode(codec, whole);
            EXPECT_TRUE(same_bits(all, d));
            for (size_t i = 0; i < n; i++) {
                ASSERT_EQ(bits(r_whole[i]), bits(x[i] - d[i])) << i;
                ASSERT_EQ(acc[i], 1.0f + d[i]) << i;
            }
        }
}

/* In place, an element that becomes Inf and a poison segment keep the residual that they had. */
TEST(TopKSegments, OldResidualStaysWhereNothingFiniteArrives)
{
    const auto *codec = dscomm_codec("topk:0.01");
    const size_t n = 2 * 65536;
    floats v = normal(n, 1), r = normal(n, 2, 0.3f);
    v[5000] = 70000.0f, v[65536 + 9] = kInf;
    const floats before = r;
    Message m(codec, n);
    codec->ops->encode_feedback(codec, m.get(), 0, n, v.data(), r.data(), 1.0f, r.data(),
                                DSC_KEEP_OLD | DSC_STREAM);
    EXPECT_EQ(decode(codec, m)[5000], kInf);
    EXPECT_EQ(r[5000], before[5000]);
    EXPECT_EQ(r[5001], v[5001] + before[5001]);
    EXPECT_TRUE(std::equal(r.begin() + 65536, r.end(), before.begin() + 65536));
}

} /* namespace */
