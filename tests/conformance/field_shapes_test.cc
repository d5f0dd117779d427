/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports from the field about counts and addresses (D5, D6, D7 in docs/testing.md), for every
 * codec of the registry.
 */
#include "conformance/field_support.h"

namespace {

/* D5 and D7: odd counts and odd addresses, canaries around, input untouched. */
void check_placed(const World &w, const std::string &spec, dscomm_dtype_t dtype, size_t n,
                  size_t send_shift, size_t recv_shift, bool in_place)
{
    const size_t canary = 64;
    /* What is exact in a 16-bit type as well as in the codec. */
    const bool plain = dtype == DSCOMM_FLOAT32 || has_blocks(spec);
    const Floats v = probe(plain ? spec : "bf16", n, w.n);
    const auto bits = to_bytes(v, dtype), expected = to_bytes(times(v, w.n), dtype);

    w.each([&](int r) {
        std::vector<uint8_t> in(send_shift + bits.size() + canary, 0xa5),
            out(recv_shift + bits.size() + canary, 0x5a);
        uint8_t *send = in.data() + send_shift;
        uint8_t *recv = in_place ? send : out.data() + recv_shift;

        memcpy(send, bits.data(), bits.size());
        ASSERT_EQ(dscomm_allreduce_compressed(send, recv, n, dtype, DSCOMM_SUM,
                                              dscomm_codec(spec.c_str()), nullptr,
                                              w.comms[(size_t)r], nullptr),
                  DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_EQ(memcmp(recv, expected.data(), expected.size()), 0)
            << spec << " count " << n << " rank " << r << " shifts " << send_shift << recv_shift;
        for (size_t i = 0; i < canary; i++)
            ASSERT_EQ(recv[bits.size() + i], in_place ? 0xa5 : 0x5a) << "canary behind";
        for (size_t i = 0; i < (in_place ? send_shift : recv_shift); i++)
            ASSERT_EQ((in_place ? in : out)[i], in_place ? 0xa5 : 0x5a) << "canary before";
        if (!in_place) {
            EXPECT_EQ(memcmp(send, bits.data(), bits.size()), 0) << "input changed";
        }
    });
}

TEST(Field, D5_OddCounts)
{
    for (int n_ranks : { 2, 3, 4, 8 }) {
        World w(n_ranks);

        for (const auto &spec : all_specs())
            for (size_t n : { 1, 2, 15, 127, 128, 129, 4095, 4097, 100003 })
                check_placed(w, spec, DSCOMM_FLOAT32, n, 0, 0, false);
    }
}

TEST(Field, D5_TenMillionElements)
{
    for (int n_ranks : { 2, 3, 4, 8 }) {
        World w(n_ranks);

        check_placed(w, "int8", DSCOMM_FLOAT32, 10556587, 0, 0, false);
    }
    World w(3);

    for (const char *spec : { "int4", "fp8", "fp8:e5m2", "topk:0.01", "topk:0.001,int8", "mxfp8",
                              "mxfp4", "mxint8", "nvfp4" })
        check_placed(w, spec, DSCOMM_FLOAT32, 10556587, 0, 0, false);
}

TEST(Field, D7_MisalignedPointers)
{
    World w(2);

    for (const auto &spec : all_specs())
        for (auto dtype : { DSCOMM_FLOAT32, DSCOMM_FLOAT16, DSCOMM_BFLOAT16 }) {
            const size_t elem = dsc_dtype_bytes(dtype);

            for (size_t n : { 1001, 20001 }) {
                check_placed(w, spec, dtype, n, elem, elem, false);
                check_placed(w, spec, dtype, n, 0, elem, false);
                check_placed(w, spec, dtype, n, elem, 0, false);
                check_placed(w, spec, dtype, n, elem, 0, true);
            }
        }
}

TEST(Field, D7_AddressesBetweenElementsAreRefused)
{
    World w(1);
    std::vector<uint8_t> memory(64);

    EXPECT_EQ(dscomm_allreduce_compressed(memory.data() + 1, memory.data() + 1, 4, DSCOMM_FLOAT32,
                                          DSCOMM_SUM, nullptr, nullptr, w.comms[0], nullptr),
              DSCOMM_ERR_INVALID);
}

/* What top-k leaves out is 0, which would win against every negative maximum. */
TEST(Field, MaxAndMinOfTopKAreRefused)
{
    World w(2);

    for (const char *spec : { "topk:0.01", "topk:k=65536,int8" })
        for (auto op : { DSCOMM_MAX, DSCOMM_MIN })
            for (size_t n : { 0, 300 })
                w.each([&](int r) {
                    const Floats in(300, 1.0f);
                    Floats out(300, 5.0f);

                    EXPECT_EQ(dscomm_allreduce_compressed(in.data(), out.data(), n, DSCOMM_FLOAT32,
                                                          op, dscomm_codec(spec), nullptr,
                                                          w.comms[(size_t)r], nullptr),
                              DSCOMM_ERR_INVALID);
                    for (const char *text : { op == DSCOMM_MAX ? "max" : "min", spec, "sum" })
                        EXPECT_NE(std::string(dscomm_last_error()).find(text), std::string::npos)
                            << dscomm_last_error();
                    EXPECT_EQ(out, Floats(300, 5.0f));
                });
    const Floats p = probe("topk:0.01", 300, 2);

    EXPECT_EQ(run(w, { DSCOMM_FLOAT32, DSCOMM_SUM, "topk:0.01", false }, { same(p, 2) })[0].out,
              times(p, 2))
        << "the communicator goes on";
}

TEST(Field, D6_CountZeroAndOneRank)
{
    World w(3);

    for (const auto &spec : all_specs())
        for (auto op : { DSCOMM_SUM, DSCOMM_AVG, DSCOMM_MAX, DSCOMM_MIN }) {
            if (dscomm_codec(spec.c_str())->sums_only && op >= DSCOMM_MAX)
                continue; /* refused, see MaxAndMinOfTopKAreRefused */
            w.each([&](int r) {
                const uint64_t before = stats_of(w.comms[(size_t)r]).payload_tx_bytes;

                EXPECT_EQ(dscomm_allreduce_compressed(nullptr, nullptr, 0, DSCOMM_FLOAT32, op,
                                                      dscomm_codec(spec.c_str()), nullptr,
                                                      w.comms[(size_t)r], nullptr),
                          DSCOMM_OK)
                    << dscomm_last_error();
                EXPECT_EQ(before, stats_of(w.comms[(size_t)r]).payload_tx_bytes);
            });
            const Floats p = probe(spec, 1000, 3);

            EXPECT_EQ(
                run(w, { DSCOMM_FLOAT32, DSCOMM_SUM, spec.c_str(), false }, { same(p, 3) })[0].out,
                times(p, 3))
                << spec;
        }
    World one(1);

    for (const auto &spec : all_specs())
        for (auto dtype : { DSCOMM_FLOAT32, DSCOMM_FLOAT16, DSCOMM_BFLOAT16 }) {
            Floats x = { -0.0f, 1.0f, -3.25f, 1e-3f, INFINITY };

            x = to_floats(to_bytes(x, dtype), dtype);
            const auto res = run(one, { dtype, DSCOMM_AVG, spec.c_str(), false }, { { x } });

            EXPECT_EQ(memcmp(res[0].out.data(), x.data(), x.size() * sizeof(float)), 0) << spec;
        }
}

} // namespace
