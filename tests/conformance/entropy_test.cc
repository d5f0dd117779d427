/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls whose messages have no fixed size: lossless gives the bits of none, int8,entropy those of
 * int8, in fewer bytes; a message that is not what it says ends the call on all ranks.
 */
#include "conformance/field_support.h"

namespace {

/* Gradients of a kind: zeros in runs, magnitudes over many octaves, a NaN in the second call. */
std::vector<std::vector<Floats>> gradient_calls(size_t n, int n_ranks)
{
    std::vector<std::vector<Floats>> calls(3, std::vector<Floats>((size_t)n_ranks, Floats(n)));

    for (size_t t = 0; t < calls.size(); t++)
        for (int r = 0; r < n_ranks; r++)
            for (size_t i = 0; i < n; i++) {
                const auto h = (uint32_t)(i * 2654435761u + t * 40503u + (uint32_t)r * 97u);

                calls[t][(size_t)r][i] =
                    i / 500 % 5 == 0 ? -0.0f
                    : i / 300 % 4 == 0
                        ? 0.0f
                        : std::ldexp((float)(h >> 8) * 0x1p-24f - 0.5f, -(int)(h >> 3 & 7));
            }
    if (n > 300)
        calls[1][0][300] = NAN;
    return calls;
}

struct Pair {
    const char *packed, *plain;
};

void expect_equal_calls(World &w, const Pair &pair, const Call &shape, size_t n)
{
    const auto inputs = gradient_calls(n, w.n);
    std::vector<Result> results[2];
    uint64_t sent[2];

    for (int k : { 0, 1 }) {
        Call call = shape;
        const uint64_t before = stats_of(w.comms[0]).payload_tx_bytes;

        call.codec = k == 0 ? pair.packed : pair.plain;
        results[k] = run(w, call, inputs);
        sent[k] = stats_of(w.comms[0]).payload_tx_bytes - before;
    }
    for (int r = 0; r < w.n; r++) {
        const Result &a = results[0][(size_t)r], &b = results[1][(size_t)r];

        EXPECT_EQ(memcmp(a.out.data(), b.out.data(), n * sizeof(float)), 0)
            << pair.packed << " rank " << r << " count " << n;
        EXPECT_EQ(memcmp(a.residual.data(), b.residual.data(), n * sizeof(float)), 0)
            << pair.packed << " residual of rank " << r << " count " << n;
    }
    if (n > 10000) {
        EXPECT_LT(sent[0], sent[1] * 9 / 10) << pair.packed << " dtype " << shape.dtype;
        EXPECT_GT(sent[0], sent[1] / 10);
    }
}

TEST(Entropy, SameBitsAsTheCodecThatIsPacked)
{
    for (int n_ranks : { 1, 2, 3, 10 }) {
        for (const char *algorithm : { "twoshot", "oneshot" }) {
            dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

            config.algorithm = algorithm;
            config.n_threads = n_ranks == 3 ? 2 : 1;
            World w(n_ranks, n_ranks == 2 ? "tcp" : "loopback", config);

            for (const auto dtype : { DSCOMM_FLOAT32, DSCOMM_FLOAT16, DSCOMM_BFLOAT16 })
                for (const bool feedback : { false, true })
                    for (const Pair &pair :
                         { Pair{ "lossless", "none" }, Pair{ "int8,entropy", "int8" } })
                        for (size_t n : { size_t{ 1 }, size_t{ 5000 }, size_t{ 70001 } })
                            expect_equal_calls(
                                w, pair,
                                { dtype, feedback ? DSCOMM_AVG : DSCOMM_SUM, "", feedback },
                                n_ranks == 1 ? std::min<size_t>(n, 5000) : n);
        }
    }
}

/* ---- ranks that send nonsense ---- */

/* How a rank's messages are spoilt after they have been encoded. */
void (*spoil)(uint8_t *message);
size_t said_too_much;

void spoil_whole(const dsc_msg *msg, size_t end)
{
    if (end == msg->n && spoil != nullptr)
        spoil(msg->bytes);
}

void spoiling_encode(const dsc_codec *codec, const dsc_msg *msg, size_t first, size_t n,
                     const float *x, float *decoded)
{
    dsc_entropy_ops.encode(codec, msg, first, n, x, decoded);
    spoil_whole(msg, first + n);
}

void spoiling_encode_feedback(const dsc_codec *codec, const dsc_msg *msg, size_t first, size_t n,
                              const float *v, const float *r, float beta, float *r_out,
                              unsigned flags)
{
    dsc_entropy_ops.encode_feedback(codec, msg, first, n, v, r, beta, r_out, flags);
    spoil_whole(msg, first + n);
}

/* Of what it has encoded itself: what came from others it asks for with their sizes as limit. */
size_t spoiling_used_bytes(const dsc_codec *codec, const dsc_msg *msg, size_t limit)
{
    const bool is_own = limit == dsc_codec_message_bytes(codec, msg->n);

    return dsc_entropy_ops.used_bytes(codec, msg, limit) + (is_own ? said_too_much : 0);
}

/* A codec with the spec of the real one, so that the plans of all ranks are the same. */
dsc_codec spoilt_codec(const char *spec, dsc_codec_ops *ops)
{
    dsc_codec codec = *dscomm_codec(spec);

    *ops = dsc_entropy_ops;
    ops->encode = spoiling_encode;
    ops->encode_feedback = spoiling_encode_feedback;
    ops->used_bytes = spoiling_used_bytes;
    codec.ops = ops;
    codec.by_dtype = false;
    return codec;
}

void expect_refused(const char *transport, const char *algorithm, const char *spec,
                    const char *text, int n_threads)
{
    const size_t n = 30000; /* messages of at most four segments: m[16] is behind their table */
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
    dsc_codec_ops ops;
    const dsc_codec bad = spoilt_codec(spec, &ops);

    config.algorithm = algorithm;
    config.timeout_ms = 5000;
    config.n_threads = n_threads;
    World w(3, transport, config);
    std::vector<std::string> said(3);
    std::vector<dscomm_feedback_t *> fbs(3);
    Floats in(n);

    for (size_t i = 0; i < n; i++)
        in[i] = 0.37f * (float)(i % 1000);
    w.each([&](int r) {
        Floats out(n);

        ASSERT_EQ(dscomm_feedback_create(n, nullptr, &fbs[(size_t)r]), DSCOMM_OK);
        EXPECT_EQ(dscomm_allreduce_compressed(in.data(), out.data(), n, DSCOMM_FLOAT32, DSCOMM_SUM,
                                              dscomm_codec(spec), fbs[(size_t)r],
                                              w.comms[(size_t)r], nullptr),
                  DSCOMM_OK);
    });
    w.each([&](int r) {
        Floats out(n), before(n), after(n);
        const dscomm_codec_t *codec = r == 1 ? &bad : dscomm_codec(spec);
        const auto call = [&] {
            return dscomm_allreduce_compressed(in.data(), out.data(), n, DSCOMM_FLOAT32, DSCOMM_SUM,
                                               codec, fbs[(size_t)r], w.comms[(size_t)r], nullptr);
        };

        dscomm_feedback_read(fbs[(size_t)r], 0, n, before.data());
        const bool is_told = call() < 0;

        said[(size_t)r] = dscomm_last_error();
        dscomm_feedback_read(fbs[(size_t)r], 0, n, after.data());
        if (is_told)
            EXPECT_EQ(before, after) << "residual of rank " << r;
        else /* its last message was what it had left to do: the next call tells it */
            EXPECT_TRUE(r == 1 && call() < 0) << spec << " rank " << r;
        dscomm_feedback_destroy(fbs[(size_t)r]);
    });
    const std::string both = said[0] + said[2];

    EXPECT_NE(both.find("message from rank 1"), std::string::npos) << both;
    EXPECT_NE(both.find(text), std::string::npos) << both;
}

struct Nonsense {
    void (*spoil)(uint8_t *message);
    size_t said_too_much;
    const char *text;
};

TEST(Entropy, AMessageThatIsNotWhatItSaysEndsTheCall)
{
    const Nonsense kinds[] = {
        { nullptr, 16, "what its segments add up to" },
        /* The first word behind the table, the mask's: a method that there is not, then its size.
         */
        { [](uint8_t *m) { m[16] |= 3; }, 0, "unknown method" },
        { [](uint8_t *m) { m[19] = 0xff; }, 0, "ends behind its segment" },
    };

    for (const auto &k : kinds) {
        spoil = k.spoil;
        said_too_much = k.said_too_much;
        for (const char *algorithm : { "twoshot", "oneshot" })
            for (const char *spec : { "lossless", "int8,entropy" }) {
                expect_refused("loopback", algorithm, spec, k.text, 1);
                expect_refused("tcp", algorithm, spec, k.text, 2);
            }
        expect_refused("shm", "twoshot", "lossless", k.text, 1);
    }
    spoil = nullptr;
    said_too_much = 0;
}

} // namespace
