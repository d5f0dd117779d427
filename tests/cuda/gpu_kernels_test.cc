/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels against the host, bit for bit: every codec, with data types, operations, sizes,
 * alignments, residuals and data drawn from a seed that is printed with a failure.
 */
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "cuda/device_memory.h"
#include "cuda/stage_case.h"

#include "support/internal_begin.h"
#include "codec/codec.h"
#include "support/internal_end.h"

#include "kernels/stage.h"

namespace {

/* Registered, but without kernels. */
const std::vector<std::string> without_kernels = { "lossless", "int8,entropy" };

std::vector<std::string> all_specs()
{
    size_t n;
    const char *const *specs = dsc_codec_test_specs(&n);
    std::vector<std::string> all(specs, specs + n);

    for (const char *more : { "topk:1", "topk:k=1", "topk:0.3,int8", "topk:0.6,fp8",
                              "topk:0.9,position", "topk:k=5000,int8,position" })
        all.emplace_back(more);
    all.erase(std::remove_if(all.begin(), all.end(),
                             [](const std::string &s) {
                                 return std::count(without_kernels.begin(), without_kernels.end(),
                                                   s) > 0;
                             }),
              all.end());
    return all;
}

template <class T, size_t n> T pick(std::mt19937 &random, const T (&from)[n])
{
    return from[random() % n];
}

/* Cases of a codec: each dimension is drawn for itself, so that pairs meet. */
StageCase draw_case(const std::string &spec, uint32_t seed)
{
    static const size_t sizes[] = { 1, 7, 255, 257, 1000, 2047, 4096, 6001, 9000 };
    static const Data datas[] = { Data::plain, Data::plain, Data::specials, Data::specials,
                                  Data::ties,  Data::zeros, Data::tiny,     Data::huge };
    static const Feedback feedbacks[] = { Feedback::none, Feedback::fp32, Feedback::fp32,
                                          Feedback::bf16, Feedback::one_vector };
    std::mt19937 random(seed);
    const dscomm_codec_t *codec = dscomm_codec(spec.c_str());
    StageCase c;

    c.seed = seed;
    c.specs = { spec };
    c.n_ranks = 2 + static_cast<int>(random() % 7);
    c.count = pick(random, sizes);
    c.dtype = static_cast<dscomm_dtype_t>(random() % 3);
    c.op = static_cast<dscomm_op_t>(random() % (codec->sums_only ? 2 : 4));
    c.data = pick(random, datas);
    c.one_shot = random() % 3 == 0;
    if (!c.one_shot && random() % 3 == 0 && c.n_ranks >= 4)
        c.specs = { spec, spec };
    if ((c.op == DSCOMM_SUM || c.op == DSCOMM_AVG) && !codec->stochastic)
        c.feedback = pick(random, feedbacks);
    c.known_zero = random() % 8 == 0 && c.feedback != Feedback::none;
    c.beta = random() % 2 == 0 ? 1.0f : 0.875f;
    c.in_place = random() % 3 == 0;
    c.chunk_elems = codec->tile_align > 256 ? codec->tile_align : random() % 2 == 0 ? 2048 : 8192;
    c.send_shift = random() % 2 == 0 ? 0 : random() % 9;
    c.recv_shift = random() % 2 == 0 ? 0 : random() % 9;
    c.parity = random() % 2;
    if (c.feedback == Feedback::fp32 || c.feedback == Feedback::bf16)
        c.momentum = random() % 2 == 0 ? 0.0f : 0.9f;
    return c;
}

TEST(KernelsOf, KnownCodecs)
{
    for (const auto &spec : all_specs())
        EXPECT_EQ(dsc_gpu_supports(dscomm_codec(spec.c_str())), DSCOMM_OK) << spec;
    for (const auto &spec : without_kernels)
        EXPECT_EQ(dsc_gpu_supports(dscomm_codec(spec.c_str())), DSCOMM_ERR_UNSUPPORTED) << spec;
}

TEST(KernelsOf, OtherCodecsAreRefusedByName)
{
    struct dsc_codec codec = *dscomm_codec("int8");

    for (const char *spec : { "int8,other", "int8:block=256,other", "int9", "int", "int8:e4m3x" }) {
        strcpy(codec.spec, spec);
        EXPECT_EQ(dsc_gpu_supports(&codec), DSCOMM_ERR_UNSUPPORTED) << spec;
        EXPECT_NE(std::string(dscomm_last_error()).find(std::string("codec ") + spec + " "),
                  std::string::npos)
            << dscomm_last_error();
    }
    EXPECT_EQ(dsc_gpu_supports(nullptr), DSCOMM_ERR_INVALID);
}

/* A rank may have nothing to do in a call's last stage. */
TEST(KernelsOf, CallsWithoutTilesEnd)
{
    DeviceArray<dsc_gpu_state> state(std::vector<dsc_gpu_state>{ { 7, 3, 0, 0, nullptr } });
    DeviceArray<dsc_gpu_feedback> feedback(std::vector<dsc_gpu_feedback>{ { 1, 0 } });
    dsc_gpu_work work = {};
    dsc_gpu_call call = {};

    call.state = state.get();
    call.feedback = feedback.get();
    for (uint32_t flags : { 0u, DSC_GPU_WORK_LAST }) {
        work.flags = flags;
        const dsc_gpu_prepared launch =
            dsc_gpu_prepare(DSC_GPU_DECODE, dscomm_codec("topk:0.01"), &work, &call);

        EXPECT_EQ(dsc_gpu_launch(&launch, nullptr), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(state.read()[0].sequence, flags == 0 ? 7u : 8u);
        EXPECT_EQ(state.read()[0].n_nonfinite, flags == 0 ? 3u : 0u);
        EXPECT_EQ(feedback.read()[0].parity, flags == 0 ? 1u : 0u);
    }
}

class Kernels : public testing::TestWithParam<std::string> {};

TEST_P(Kernels, EqualTheHost)
{
    for (uint32_t seed = 1; seed <= 16; seed++) {
        run_stage_case(draw_case(GetParam(), seed));
        if (HasFailure())
            return;
    }
}

TEST_P(Kernels, EqualTheHostOnLongVectors)
{
    static const size_t sizes[] = { 65535, 65537, 200001 };
    static const Data datas[] = { Data::plain, Data::ties, Data::specials }; /* the last: poison */

    for (uint32_t i = 0; i < 3; i++) {
        StageCase c = draw_case(GetParam(), 100 + i);

        c.n_ranks = 2;
        c.specs = { GetParam() };
        c.count = sizes[i];
        c.data = datas[i];
        c.one_shot = i == 2;
        c.chunk_elems = 65536;
        run_stage_case(c);
        if (HasFailure())
            return;
    }
}

/* Bytes of a peer decide neither where is read nor where is written. */
TEST_P(Kernels, EqualTheHostOnHostileMessages)
{
    for (uint32_t i = 0; i < 5; i++) {
        StageCase c = draw_case(GetParam(), 400 + i);

        c.hostile = true;
        run_stage_case(c);
        if (HasFailure())
            return;
    }
}

TEST_P(Kernels, EqualTheHostInOtherCollectives)
{
    const dscomm_codec_t *codec = dscomm_codec(GetParam().c_str());

    for (uint32_t i = 0; i < 8; i++) {
        StageCase c = draw_case(GetParam(), 300 + i);

        c.collective = static_cast<Collective>(1 + i % 4);
        if (codec->sums_only && i % 4 >= 2)
            continue;
        if (c.collective != Collective::reduce_scatter)
            c.op = DSCOMM_SUM;
        if (c.collective >= Collective::broadcast)
            c.feedback = Feedback::none;
        c.known_zero = c.known_zero && c.feedback != Feedback::none;
        if (c.collective != Collective::reduce_scatter)
            c.momentum = 0.0f;
        c.specs = { GetParam() };
        c.count = std::min(c.count, static_cast<size_t>(4096));
        if (codec->stochastic) /* the host draws for pairs of elements */
            c.count += c.count % 2;
        c.in_place = false;
        run_stage_case(c);
        if (HasFailure())
            return;
    }
}

/* Marks of what is not finite, their message, and what is restored by them. */
TEST(KernelsOf, MarkedResults)
{
    for (uint32_t i = 0; i < 6; i++) {
        StageCase c;

        c.collective = Collective::reduce_scatter;
        c.specs = { i % 2 == 0 ? "int8" : "fp16" };
        c.data = Data::specials;
        c.seed = 500 + i;
        c.n_ranks = 3;
        c.count = 9001;
        c.dtype = i < 3 ? DSCOMM_FLOAT32 : DSCOMM_FLOAT16;
        c.feedback = i % 3 == 0 ? Feedback::fp32 : i % 3 == 1 ? Feedback::bf16 : Feedback::none;
        c.momentum = c.feedback != Feedback::none && i % 2 == 0 ? 0.9f : 0.0f;
        c.chunk_elems = 6144;
        run_stage_case(c);
    }
}

TEST_P(Kernels, EqualTheHostAlone)
{
    StageCase c = draw_case(GetParam(), 200);

    c.n_ranks = 1;
    c.specs = { GetParam() };
    run_stage_case(c);
}

INSTANTIATE_TEST_SUITE_P(All, Kernels, testing::ValuesIn(all_specs()), [](const auto &info) {
    std::string name = info.param;

    std::replace_if(
        name.begin(), name.end(), [](char ch) { return !isalnum(ch); }, '_');
    return name;
});

} // namespace
