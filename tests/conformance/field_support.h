/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the reports from the field: vectors whose sums are exact in a codec, and calls on all ranks.
 */
#ifndef DSC_FIELD_SUPPORT_H
#define DSC_FIELD_SUPPORT_H

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "support/world.h"

#include "support/internal_begin.h"
#include "codec/codec.h"
#include "codec/topk.h"
#include "support/internal_end.h"

using Floats = std::vector<float>;

inline std::vector<std::string> all_specs()
{
    size_t n = 0;
    const char *const *specs = dsc_codec_test_specs(&n);

    return { specs, specs + n };
}

/* ---- vectors whose sums are exact ---- */

inline bool has_prefix(const std::string &spec, const char *prefix)
{
    return spec.rfind(prefix, 0) == 0;
}

/*
 * By family: full scale in every 16 elements, so that scales are powers of two times the ranks.
 * Where scales are powers of two without the ranks (mx...), a value whose sums over 2, 3, 4 and 8
 * ranks have codes.
 */
inline float full_code_of(const std::string &spec)
{
    const auto *codec = dscomm_codec(spec.c_str());

    if (codec->values != nullptr)
        return full_code_of(codec->values->spec);
    return has_prefix(spec, "int4:signed") ? 8.0f
           : has_prefix(spec, "int4")      ? 7.0f
           : has_prefix(spec, "fp8:e5m2")  ? 56.0f /* 57344 * 2^-10: sums fit fp16 data */
           : has_prefix(spec, "fp8")       ? 448.0f
           : has_prefix(spec, "mx")        ? 4.0f
           : has_prefix(spec, "nvfp4")     ? 2688.0f
                                           : 127.0f;
}

/*
 * What of v a codec can send at once, in pieces of any granules: for top-k one element in `step`, a
 * multiple of 256 of which it keeps at least one, the rest 0. Other codecs send all.
 */
inline Floats carried(const std::string &spec, Floats v)
{
    const auto *codec = dscomm_codec(spec.c_str());
    size_t step = 256;

    if (!codec->sums_only)
        return v;
    while (step * dsc_topk_kept(codec, 65536) < 65536)
        step *= 2;
    for (size_t i = 0; i < v.size(); i++)
        v[i] = i % step == 0 ? v[i] : 0.0f;
    return v;
}

inline float probe_code(const std::string &spec, size_t i)
{
    static const float e4m3[] = { 0,   1,   -1,   2.5f, -2.5f, 7,   -7,   30,
                                  -30, 240, -240, .5f,  -.5f,  112, -112, 3.25f };
    const auto *codec = dscomm_codec(spec.c_str());
    static const float e2m1[] = { 0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6 };
    static const float powers[] = { 0, 1, -1, 2, -2, 4, -4 };

    if (codec->inner != nullptr) { /* equal values in a group: rotated they are one, and zeros */
        const size_t group = i / DSC_HADAMARD_GROUP, per_block = codec->block / DSC_HADAMARD_GROUP;

        return group % per_block == 0 ? full_code_of(spec) : probe_code(codec->inner->spec, group);
    }
    if (i % 16 == 0)
        return full_code_of(spec);
    /* The scale is negative: codes from -8 to 7, and 0 is -0. */
    if (has_prefix(spec, "int4:signed")) {
        const float code = (float)((i * 11) % 16) - 7.0f;

        return code != 0.0f ? code : 1.0f;
    }
    if (has_prefix(spec, "int4"))
        return (float)((i * 11) % 15) - 7.0f;
    if (has_prefix(spec, "fp8:e5m2"))
        return ((float)((i * 5 + 3) % 16) * 0.5f - 3.5f) * 0x1p-10f;
    if (has_prefix(spec, "fp8"))
        return e4m3[(i * 5 + 3) % 16];
    if (has_prefix(spec, "mx"))
        return powers[(i * 5 + 3) % 7];
    if (has_prefix(spec, "nvfp4"))
        return e2m1[(i * 5 + 3) % 16] * 448.0f;
    return (float)((i * 37) % 255) - 127.0f;
}

inline bool has_blocks(const std::string &spec)
{
    return dscomm_codec(spec.c_str())->block > 1;
}

inline bool takes_feedback(const std::string &spec)
{
    return !dscomm_codec(spec.c_str())->stochastic;
}

inline Floats probe(const std::string &spec, size_t n, int n_ranks)
{
    Floats v(n);
    const int span = n_ranks > 2 ? 64 / n_ranks : 64; /* bf16 sums stay within 8 bits */

    for (size_t i = 0; i < n; i++)
        if (dscomm_codec(spec.c_str())->inner != nullptr && i / 32 == n / 32)
            v[i] = 0.0f; /* a group that ends early has no exact values but zeros */
        else if (has_blocks(spec) || dscomm_codec(spec.c_str())->lossless)
            v[i] = probe_code(spec, i);
        else if (spec == "fp16")
            v[i] = n_ranks == 2 ? (float)(i % 2001) - 1000.0f : (float)(i % 401) - 200.0f;
        else
            v[i] = (float)(i % (size_t)(2 * span + 1)) - (float)span;
    return carried(spec, v);
}

/* Elements that one NaN may take with it, whatever the codec: a block or segment, 256 at least. */
inline size_t unit_of(const std::string &spec)
{
    return std::max<size_t>(256, dscomm_codec(spec.c_str())->block);
}

inline Floats times(const Floats &v, int n)
{
    Floats out(v);

    for (float &x : out)
        x *= (float)n;
    return out;
}

struct Call {
    dscomm_dtype_t dtype = DSCOMM_FLOAT32;
    dscomm_op_t op = DSCOMM_SUM;
    const char *codec = "none";
    bool feedback = false;
};

struct Result {
    Floats out;
    Floats residual;
    dscomm_status_t status;
    uint64_t nonfinite;
};

/* Values as elements of a data type and back, through the library's conversions. */
inline std::vector<uint8_t> to_bytes(const Floats &v, dscomm_dtype_t dtype)
{
    std::vector<uint8_t> bytes(v.size() * dsc_dtype_bytes(dtype));

    dsc_dtype_store(dtype, bytes.data(), v.data(), v.size());
    return bytes;
}

inline Floats to_floats(const std::vector<uint8_t> &bytes, dscomm_dtype_t dtype)
{
    Floats v(bytes.size() / dsc_dtype_bytes(dtype));

    dsc_dtype_load(dtype, v.data(), bytes.data(), v.size());
    return v;
}

/* Calls with the inputs[call][rank]; results[rank] of the last call, outputs checked equal. */
inline std::vector<Result> run(const World &w, const Call &call,
                               const std::vector<std::vector<Floats>> &inputs,
                               std::vector<std::vector<Floats>> *outputs = nullptr)
{
    std::vector<Result> results((size_t)w.n);

    if (outputs != nullptr)
        outputs->assign(inputs.size(), std::vector<Floats>((size_t)w.n));
    w.each([&](int r) {
        const size_t n = inputs[0][0].size();
        Result &res = results[(size_t)r];
        dscomm_feedback_t *fb = nullptr;

        if (call.feedback) {
            ASSERT_EQ(dscomm_feedback_create(n, nullptr, &fb), DSCOMM_OK);
        }
        for (size_t t = 0; t < inputs.size(); t++) {
            const auto in = to_bytes(inputs[t][(size_t)r], call.dtype);
            std::vector<uint8_t> out(in.size());

            res.status = dscomm_allreduce_compressed(in.data(), out.data(), n, call.dtype, call.op,
                                                     dscomm_codec(call.codec), fb,
                                                     w.comms[(size_t)r], nullptr);
            EXPECT_EQ(res.status, DSCOMM_OK) << dscomm_last_error();
            res.out = to_floats(out, call.dtype);
            if (outputs != nullptr)
                (*outputs)[t][(size_t)r] = res.out;
        }
        res.nonfinite = stats_of(w.comms[(size_t)r]).nonfinite_elems;
        res.residual.resize(n);
        if (fb != nullptr) {
            EXPECT_EQ(dscomm_feedback_read(fb, 0, n, res.residual.data()), DSCOMM_OK);
        }
        dscomm_feedback_destroy(fb);
    });
    for (int r = 1; r < w.n; r++)
        EXPECT_EQ(memcmp(results[0].out.data(), results[(size_t)r].out.data(),
                         results[0].out.size() * sizeof(float)),
                  0)
            << "ranks differ, codec " << call.codec;
    return results;
}

inline std::vector<Floats> same(const Floats &v, int n)
{
    return std::vector<Floats>((size_t)n, v);
}

#endif
