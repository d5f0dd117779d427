/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of codecs share: messages in memory, data, bits.
 */
#ifndef DSC_CODEC_TEST_SUPPORT_H
#define DSC_CODEC_TEST_SUPPORT_H

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "support/internal_begin.h"
#include "codec/codec.h"
#include "codec/kernels.h"
#include "codec/topk.h"
#include "support/internal_end.h"

using floats = std::vector<float>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline uint32_t bits(float x)
{
    uint32_t u;
    std::memcpy(&u, &x, sizeof(u));
    return u;
}

inline float from_bits(uint32_t u)
{
    float x;
    std::memcpy(&x, &u, sizeof(x));
    return x;
}

inline bool same_bits(const floats &a, const floats &b)
{
    return a.size() == b.size() &&
           (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/* A message in aligned memory that starts as rubbish, so that unwritten bytes show. */
class Message {
  public:
    Message(const dscomm_codec_t *codec, size_t n, int exponent = 0, dsc_draw draw = {})
        : codec_(codec), bytes_(codec->ops->message_bytes(codec, n) + 64, 0xa5)
    {
        const size_t skip = 16 - reinterpret_cast<uintptr_t>(bytes_.data()) % 16;
        msg_.bytes = bytes_.data() + skip;
        msg_.n = n;
        msg_.exponent = exponent;
        msg_.draw = draw;
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
    /* What has been encoded. */
    std::vector<uint8_t> bytes() const
    {
        return { msg_.bytes, msg_.bytes + dsc_codec_used_bytes(codec_, &msg_) };
    }
    /* Of memory: all that a message of n elements can take. */
    size_t size() const
    {
        return codec_->ops->message_bytes(codec_, msg_.n);
    }

  private:
    const dscomm_codec_t *codec_;
    std::vector<uint8_t> bytes_;
    dsc_msg msg_ = {};
};

inline void encode(const dscomm_codec_t *codec, Message &m, const floats &x,
                   float *decoded = nullptr)
{
    codec->ops->encode(codec, m.get(), 0, x.size(), x.data(), decoded);
}

inline floats decode(const dscomm_codec_t *codec, const Message &m)
{
    floats d(m.get()->n, 1.0f);
    codec->ops->decode(codec, m.get(), 0, d.size(), d.data(), 0);
    return d;
}

inline floats round_trip(const dscomm_codec_t *codec, const floats &x, int exponent = 0)
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

inline floats normal(size_t n, unsigned seed, float scale = 1.0f)
{
    std::mt19937 gen(seed);
    std::normal_distribution<float> dist(0.0f, scale);
    floats x(n);
    for (float &v : x)
        v = dist(gen);
    return x;
}

/* Magnitudes from 2^-140 to 2^120, signs, zeros; every block its own range. */
inline floats wild(size_t n, unsigned seed)
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

inline bool starts_with(const char *text, const char *prefix)
{
    return std::strncmp(text, prefix, std::strlen(prefix)) == 0;
}

/* A vector of these is carried exactly: the largest code, under scales of 1. */
inline float full_code(const dscomm_codec_t *codec)
{
    if (codec->values != nullptr)
        return full_code(codec->values);

    static const struct {
        const char *prefix;
        float value;
    } table[] = { { "int4:signed", 8.0f }, { "int4", 7.0f },           { "fp8:e5m2", 57344.0f },
                  { "fp8", 448.0f },       { "mxfp8:e5m2", 57344.0f }, { "mxfp8", 448.0f },
                  { "mxfp4", 6.0f },       { "mxint8", 127.0f / 64 },  { "nvfp4", 2688.0f } };
    for (const auto &row : table)
        if (starts_with(codec->spec, row.prefix))
            return row.value;
    return 127.0f;
}

/* What of v a codec can send at once: for top-k, so many elements as it keeps of a segment. */
inline floats carried(const dscomm_codec_t *codec, floats v)
{
    const size_t step = codec->sums_only ? 65536 / dsc_topk_kept(codec, 65536) + 1 : 1;
    for (size_t i = 0; i < v.size(); i++)
        v[i] = i % step == 0 ? v[i] : 0.0f;
    return v;
}

#endif
