/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on CUDA communicators have the bits of calls on host ones: outputs, residuals and counts,
 * for every codec, type, size, alignment and number of ranks, whether a call is enqueued, replayed
 * or captured by the caller.
 */
#include <gtest/gtest.h>

#include <set>

#include "cuda/gpu_case.h"
#include "support/internal_begin.h"
#include "codec/codec.h"
#include "support/internal_end.h"

namespace {

/* Registered codecs that have kernels, or those that run on CPUs alone. */
std::vector<std::string> specs(bool with_kernels)
{
    size_t n = 0;
    const char *const *all = dsc_codec_test_specs(&n);
    std::vector<std::string> chosen;

    for (size_t i = 0; i < n; i++) {
        const dscomm_codec_t *const codec = dscomm_codec(all[i]);

        if (with_kernels != codec->variable)
            chosen.emplace_back(all[i]);
    }
    return chosen;
}

/* A case drawn from a seed; pairs of dimensions meet over the codecs. */
GpuCase draw(const std::string &spec, uint32_t seed)
{
    static const size_t counts[] = { 1, 255, 257, 1000, 4097, 9000, 20011 };
    const dscomm_codec_t *const codec = dscomm_codec(spec.c_str());
    std::mt19937 random(seed * 7919u + 17u);
    GpuCase c;

    c.spec = spec;
    c.seed = seed;
    c.n_ranks = 1 + (int)(random() % 8);
    c.count = counts[random() % 7];
    c.dtype = (dscomm_dtype_t)(random() % 3);
    c.op = (dscomm_op_t)(random() % (codec->sums_only ? 2 : 4));
    c.feedback = random() % 4 != 0 && c.op <= DSCOMM_AVG && !codec->stochastic;
    c.residual = random() % 4 == 0 ? DSCOMM_RESIDUAL_BF16 : DSCOMM_RESIDUAL_FP32;
    c.shadow = c.residual == DSCOMM_RESIDUAL_BF16 || random() % 4 != 0;
    c.in_place = random() % 3 == 0;
    c.shift = random() % 2 == 0 ? 0 : random() % 9;
    c.momentum = c.feedback && c.shadow == 1 && random() % 2 == 0 ? 0.9f : 0.0f;
    return c;
}

dscomm_comm_config_t config_for(const GpuCase &c)
{
    dscomm_comm_config_t config = gpu_config();

    config.preserve_input = c.seed % 2; /* copies before and behind the call */
    if (dscomm_codec(c.spec.c_str())->tile_align > 256)
        config.chunk_bytes = 65536 * 4; /* a segment */
    return config;
}

void run_case(const GpuCase &c, int n_calls)
{
    const GpuWorld world(c.n_ranks, config_for(c));

    world.each([&](int r) {
        if (world.status[r] < 0) {
            ADD_FAILURE() << "rank " << r << ": " << world.error[r];
            return;
        }
        GpuSides sides(world, c, r);

        for (int step = 0; step < n_calls; step++) {
            const Bytes input = make_input(c, r, step, step == 1);

            sides.put(input);
            EXPECT_EQ(sides.call(), DSCOMM_OK) << c << ": " << dscomm_last_error();
            sides.expect_same_output(sides.host_call(input), step);
            sides.expect_same_residuals();
        }
        const dscomm_stats_t gpu = stats_of(world.comms[r]), cpu = stats_of(world.host->comms[r]);

        EXPECT_EQ(gpu.calls, cpu.calls) << c;
        EXPECT_EQ(gpu.nonfinite_elems, cpu.nonfinite_elems) << c;
        EXPECT_EQ(gpu.payload_tx_bytes, cpu.payload_tx_bytes) << c;
    });
}

class Codecs : public testing::TestWithParam<std::string> {};

TEST_P(Codecs, have_the_bits_of_the_host)
{
    for (uint32_t seed = 0; seed < 3; seed++)
        run_case(draw(GetParam(), seed), 3);
}

/* A short one, which runs in more orders of threads. */
TEST_P(Codecs, have_them_in_any_order)
{
    run_case(draw(GetParam(), 3), 3);
}

TEST(Unsupported, is_refused_with_the_reason)
{
    const GpuWorld world(1);
    size_t n_refused = 0;

    world.each([&](int r) {
        for (const std::string &spec : specs(false)) {
            const dscomm_codec_t *const codec = dscomm_codec(spec.c_str());
            GpuCase c;

            c.spec = spec;
            c.n_ranks = 1;
            GpuSides sides(world, c, r);

            const dscomm_plan_t *plan = nullptr;

            EXPECT_EQ(sides.call(), DSCOMM_ERR_UNSUPPORTED) << spec;
            EXPECT_EQ(dscomm_plan_create(world.comms[r], 10, c.dtype, c.op, codec, 1, &plan),
                      DSCOMM_ERR_UNSUPPORTED);
            EXPECT_NE(std::string(dscomm_last_error()).find(spec), std::string::npos);
            n_refused++;
        }
    });
    EXPECT_GT(n_refused, 0u);
}

INSTANTIATE_TEST_SUITE_P(all, Codecs, testing::ValuesIn(specs(true)), [](const auto &info) {
    std::string name = info.param;

    for (char &ch : name)
        ch = isalnum((unsigned char)ch) ? ch : '_';
    return name;
});

class Ranks : public testing::TestWithParam<int> {};

TEST_P(Ranks, of_any_number)
{
    for (size_t count : { (size_t)0, (size_t)3, (size_t)300, (size_t)20000 }) {
        GpuCase c;

        c.n_ranks = GetParam();
        c.count = count;
        run_case(c, 2);
    }
}

INSTANTIATE_TEST_SUITE_P(all, Ranks, testing::Range(1, 9));

} // namespace
