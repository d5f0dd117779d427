/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single messages of tests/golden/messages.txt: the encoder writes the model's bytes, the decoder
 * gives the model's values, and what must be refused is refused.
 */
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <sstream>

#include "unit/codec_test_support.h"

namespace {

using Bytes = std::vector<uint8_t>;
using Fields = std::map<std::string, std::string>;

/* A line of key=value; the values hold no blanks. */
Fields parse_line(const std::string &line)
{
    std::istringstream words(line);
    std::string word;
    Fields fields;
    while (words >> word)
        fields[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
    return fields;
}

Bytes bytes_of(const std::string &hex)
{
    Bytes out;
    for (size_t i = 0; hex != "-" && i < hex.size(); i += 2)
        out.push_back(static_cast<uint8_t>(std::stoul(hex.substr(i, 2), nullptr, 16)));
    return out;
}

floats floats_of(const std::string &hex)
{
    const Bytes raw = bytes_of(hex);
    floats x(raw.size() / sizeof(float));
    if (!x.empty())
        std::memcpy(x.data(), raw.data(), raw.size());
    return x;
}

struct Case {
    explicit Case(const Fields &f)
        : expect(f.at("expect")), codec(dscomm_codec(f.at("codec").c_str())),
          n(std::stoul(f.at("n"))), exponent(std::stoi(f.at("E"))),
          bytes(bytes_of(f.at("message"))), decoded(floats_of(f.at("decoded"))),
          has_input(f.at("input") != "-" || n == 0), input(floats_of(f.at("input")))
    {
    }

    std::string expect;
    const dscomm_codec_t *codec;
    size_t n;
    int exponent;
    Bytes bytes;
    floats decoded;
    bool has_input;
    floats input;
};

void expect_refused(const Case &c)
{
    std::vector<uint8_t> memory(c.bytes.size() + 16);
    uint8_t *const src = memory.data() + (16 - reinterpret_cast<uintptr_t>(memory.data()) % 16);
    floats d(c.n);
    std::copy(c.bytes.begin(), c.bytes.end(), src);
    EXPECT_EQ(dscomm_decode(c.codec, d.data(), c.n, src, c.bytes.size()), DSCOMM_ERR_CORRUPT);
}

void expect_decoded(const Case &c)
{
    Message m(c.codec, c.n, c.exponent);
    ASSERT_LE(c.bytes.size(), m.size());
    if (!c.codec->variable) {
        ASSERT_EQ(c.bytes.size(), m.size());
    }
    std::copy(c.bytes.begin(), c.bytes.end(), m.at(0));
    EXPECT_TRUE(same_bits(decode(c.codec, m), c.decoded));
}

TEST(CodecGolden, Messages)
{
    std::ifstream file(DSC_GOLDEN_MESSAGES);
    std::map<std::string, int> n_of;
    std::string line;
    while (std::getline(file, line)) {
        SCOPED_TRACE(line.substr(0, 200));
        const Case c(parse_line(line));
        ASSERT_NE(c.codec, nullptr);
        n_of[c.expect]++;
        if (c.expect == "refuse") {
            expect_refused(c);
            continue;
        }
        expect_decoded(c);
        if (c.expect == "ok" && c.has_input && c.input.size() == c.n) {
            Message m(c.codec, c.n, c.exponent);
            encode(c.codec, m, c.input);
            EXPECT_EQ(m.bytes(), c.bytes);
            n_of["encoded"]++;
        }
    }
    EXPECT_GT(n_of["ok"], 200);
    EXPECT_GT(n_of["encoded"], 150);
    EXPECT_GT(n_of["refuse"], 80);
    EXPECT_GT(n_of["poison"], 30);
}

} /* namespace */
