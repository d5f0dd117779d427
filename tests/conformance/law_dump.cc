/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs one golden-style case (a line as in tests/golden/calls.txt, results ignored) and dumps
 * inputs, outputs and residuals for tests/model/law.py and law_test.py, which judge them without
 * this code.
 *
 *     law_dump DIR MODE TRANSPORT LINE     MODE: random, dyadic (multiples of 1/8), constant
 */
#include <sys/stat.h>

#include <cstdio>
#include <cstring>
#include <random>

#include "support/choose.h"
#include "support/golden_calls.h"
#include "support/world.h"

namespace {

struct Job {
    std::string dir, mode, transport;
    GoldenCall c;
};

void write_file(const Job &job, const std::string &name, const void *bytes, size_t n)
{
    FILE *f = fopen((job.dir + "/" + name).c_str(), "wb");

    if (f == nullptr || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        perror(name.c_str());
        exit(2);
    }
}

void write_meta(const Job &job)
{
    static const char *const ops[] = { "sum", "avg", "max", "min" };
    char text[512];
    const int n = snprintf(
        text, sizeof(text),
        "ranks=%d\ncalls=%d\ncount=%zu\ndtype=%s\nop=%s\nmode=%s\nrdtype=%s\nshadow=%d\nalgo=%s\n"
        "momentum=%.9g\n",
        job.c.n_ranks, job.c.calls, job.c.count, dsc_dtype_name(job.c.dtype), ops[job.c.op],
        job.mode == "dyadic" ? "dyadic" : "random", job.c.bf16_residual ? "bf16" : "fp32",
        job.c.shadow, job.c.algo.c_str(), (double)job.c.momentum);

    write_file(job, "meta.txt", text, (size_t)n);
}

/* One rank's input of one call, as float32. */
std::vector<float> make_input(const Job &job, int rank, int call)
{
    std::mt19937_64 random(job.c.seed * 1000003u + (uint64_t)rank * 7919u +
                           (job.mode == "constant" ? 0u : (uint64_t)call * 104729u));
    std::mt19937_64 scales(job.c.seed); /* per element, equal on all ranks and calls */
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> eighths(-800, 800);
    std::vector<float> v(job.c.count);

    for (size_t i = 0; i < v.size(); i++)
        if (job.mode == "dyadic")
            v[i] = i % 16 == 0 ? 127.0f : (float)eighths(random) / 8;
        else
            v[i] = normal(random) * (job.mode == "constant" ? 1.0f : std::exp(normal(scales)));
    return v;
}

std::vector<uint8_t> input_bits(const Job &job, int rank, int call)
{
    const auto v = make_input(job, rank, call);
    std::vector<uint8_t> bytes(v.size() * dsc_dtype_bytes(job.c.dtype));

    dsc_dtype_store(job.c.dtype, bytes.data(), v.data(), v.size());
    for (const auto &in : job.c.inject)
        if (in.call == call && in.rank == rank && in.index < v.size())
            memcpy(&bytes[in.index * dsc_dtype_bytes(job.c.dtype)], &in.bits,
                   dsc_dtype_bytes(job.c.dtype));
    return bytes;
}

std::string numbered(const char *what, int a, int b = -1)
{
    return std::string(what) + "_" + std::to_string(a) + (b < 0 ? "" : "_" + std::to_string(b)) +
           ".bin";
}

dscomm_feedback_t *make_feedback(const GoldenCall &c)
{
    dscomm_feedback_config_t config = DSCOMM_FEEDBACK_CONFIG_INIT;
    dscomm_feedback_t *fb = nullptr;
    const float zero = 0.0f;

    config.beta = c.beta;
    config.type = c.bf16_residual ? DSCOMM_RESIDUAL_BF16 : DSCOMM_RESIDUAL_FP32;
    config.shadow = c.shadow;
    config.momentum = c.momentum;
    EXPECT_EQ(dscomm_feedback_create(c.count, &config, &fb), DSCOMM_OK);
    EXPECT_EQ(dscomm_feedback_write(fb, 0, 1, &zero), DSCOMM_OK); /* not known to be zero */
    return fb;
}

void run_rank(const Job &job, int rank, dscomm_comm_t *comm)
{
    const GoldenCall &c = job.c;
    dscomm_feedback_t *fb = make_feedback(c);
    std::vector<const dscomm_codec_t *> codecs;
    std::vector<float> residual(c.count);
    const std::string tiers = tiers_text_of(c.n_tiers, c.n_ranks, c.groups.data());

    for (int t = 0; t < c.n_tiers; t++)
        codecs.push_back(dscomm_codec(c.codecs[c.codecs.size() == 1 ? 0 : (size_t)t].c_str()));

    dsc_choice choice = tiered_choice(codecs);

    if (c.algo == "oneshot")
        choice.algorithm = DSC_ALG_ONE_SHOT;
    ASSERT_EQ(dsc_comm_set_tiers(comm, nullptr, tiers.c_str()), DSCOMM_OK) << dscomm_last_error();
    for (int t = 0; t < c.calls; t++) {
        const auto in = input_bits(job, rank, t);
        std::vector<uint8_t> out(in.size());

        if (c.momentum > 0.0f) {
            dscomm_feedback_read_momentum(fb, 0, c.count, residual.data());
            write_file(job, numbered("mom", t, rank), residual.data(), residual.size() * 4);
        }
        ASSERT_EQ(chosen_allreduce(comm, choice, in.data(), out.data(), c.count, c.dtype, c.op,
                                   codecs.back(), fb),
                  DSCOMM_OK)
            << dscomm_last_error();
        dscomm_feedback_read(fb, 0, c.count, residual.data());
        write_file(job, numbered("in", t, rank), in.data(), in.size());
        write_file(job, numbered("res", t, rank), residual.data(), residual.size() * 4);
        if (rank == 0)
            write_file(job, numbered("out", t), out.data(), out.size());
    }
    write_file(job, numbered("res", rank), residual.data(), residual.size() * 4);
    dscomm_feedback_destroy(fb);
}

} // namespace

int main(int argc, char **argv)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    testing::InitGoogleTest(&argc, argv);
    if (argc != 5) {
        fprintf(stderr, "usage: law_dump DIR MODE TRANSPORT LINE\n");
        return 2;
    }
    const Job job = { argv[1], argv[2], argv[3], parse_golden_call(argv[4]) };

    config.chunk_bytes = job.c.chunk != 0 ? job.c.chunk * sizeof(float) : 4096;
    for (const auto &spec : job.c.codecs) /* its shortest chunk has to fit */
        if (const auto *codec = dscomm_codec(spec.c_str()); codec->tile_align > 256)
            config.chunk_bytes =
                std::max<size_t>(config.chunk_bytes,
                                 codec->tile_align * sizeof(float) + (codec->variable ? 1024 : 0));
    World w(job.c.n_ranks, job.transport.c_str(), config);

    write_meta(job);
    if (w.ok())
        w.each([&](int r) { run_rank(job, r, w.comms[(size_t)r]); });
    return testing::Test::HasFailure() ? 1 : 0;
}
