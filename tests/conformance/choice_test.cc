/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may be chosen about a call (struct dsc_choice): what is chosen is what runs, plans of
 * different choices live side by side, and ranks that choose differently are told in what.
 */
#include <gtest/gtest.h>

#include "support/choose.h"
#include "support/world.h"

namespace {

using Floats = std::vector<float>;

constexpr size_t COUNT = 3000;

Floats input_of(int rank)
{
    Floats v(COUNT);

    for (size_t i = 0; i < COUNT; i++)
        v[i] = (float)((i * 37 + (size_t)rank * 101) % 1999) * 0.37f - 300.0f;
    return v;
}

/* A sum with int8 under a choice, as the tuner will issue it. */
dscomm_status_t call(dscomm_comm_t *comm, const dsc_choice &choice, Floats *out)
{
    const Floats in = input_of(comm->rank);

    out->assign(COUNT, 0.0f);
    return chosen_allreduce(comm, choice, in.data(), out->data(), COUNT, DSCOMM_FLOAT32, DSCOMM_SUM,
                            dscomm_codec("int8"), nullptr);
}

Floats public_call(dscomm_comm_t *comm, const char *codec)
{
    const Floats in = input_of(comm->rank);
    Floats out(COUNT);

    EXPECT_EQ(dscomm_allreduce_compressed(in.data(), out.data(), COUNT, DSCOMM_FLOAT32, DSCOMM_SUM,
                                          dscomm_codec(codec), nullptr, comm, nullptr),
              DSCOMM_OK);
    return out;
}

const dscomm_plan *last_plan(const dscomm_comm_t *comm)
{
    return comm->last->plan;
}

TEST(Choice, OfNothingIsTheCommunicatorsRules)
{
    World w(3);

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        const Floats expected = public_call(comm, "int8");
        Floats out;

        EXPECT_EQ(call(comm, dsc_choice{}, &out), DSCOMM_OK);
        EXPECT_EQ(out, expected);
        EXPECT_EQ(comm->n_plans, 1);
        EXPECT_EQ(last_plan(comm)->params.algorithm, DSC_ALG_ONE_SHOT);
    });
}

TEST(Choice, OfAlgorithmAndChunkIsWhatRuns)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.algorithm = "twoshot";
    World w(3), two_shot(3, "loopback", config);

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        dsc_choice choice = {};
        Floats out;

        choice.algorithm = DSC_ALG_TWO_SHOT;
        EXPECT_EQ(call(comm, choice, &out), DSCOMM_OK);
        EXPECT_EQ(out, public_call(two_shot.comms[(size_t)r], "int8"));
        EXPECT_EQ(last_plan(comm)->params.algorithm, DSC_ALG_TWO_SHOT);
        choice.chunk_elems = 512;
        EXPECT_EQ(call(comm, choice, &out), DSCOMM_OK);
        EXPECT_EQ(last_plan(comm)->chunk_elems, 512u);
        choice.algorithm = DSC_ALG_ONE_SHOT;
        EXPECT_EQ(call(comm, choice, &out), DSCOMM_OK);
        EXPECT_EQ(out, public_call(comm, "int8")); /* by size a one-shot too */
        EXPECT_EQ(comm->n_plans, 4);
    });
}

/* The codec of a choice goes before the call's, also where there is only one tier. */
TEST(Choice, OfACodecIsWhatRuns)
{
    World w(3);

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        const Floats expected = public_call(comm, "int4:block=32");
        dsc_choice choice = {};
        Floats out;

        choice.codecs[0] = dscomm_codec("int4:block=32");
        EXPECT_EQ(call(comm, choice, &out), DSCOMM_OK);
        EXPECT_EQ(out, expected);
        EXPECT_NE(std::string(last_plan(comm)->descriptor).find("codec=int4:block=32"),
                  std::string::npos);
    });
}

/* Rank 1 chooses otherwise than the rest. */
void expect_named(const dsc_choice &most, const dsc_choice &other, const char *text)
{
    World w(3);

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        Floats out;

        EXPECT_EQ(call(comm, r == 1 ? other : most, &out), DSCOMM_ERR_MISMATCH);
        EXPECT_NE(std::string(dscomm_last_error()).find(text), std::string::npos)
            << dscomm_last_error();
    });
}

TEST(Choice, ThatRanksDoNotShareIsNamed)
{
    dsc_choice a = {}, b = {};

    a.algorithm = DSC_ALG_TWO_SHOT;
    b = a;
    b.algorithm = DSC_ALG_ONE_SHOT;
    expect_named(a, b, "algorithm: rank ");
    b = a;
    b.codecs[0] = dscomm_codec("bf16");
    expect_named(a, b, "codec: rank ");
    b = a;
    a.chunk_elems = 256;
    b.chunk_elems = 512;
    expect_named(a, b, "chunk: rank ");
}

} // namespace
