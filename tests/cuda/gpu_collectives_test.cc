/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other collectives, tiers, groups and ncclAllReduce: on the device as on the host.
 */
#include <gtest/gtest.h>

#include "cuda/gpu_case.h"
#include "support/choose.h"

namespace {

enum class Kind { reduce_scatter, all_gather, broadcast, all_to_all };

struct Collective {
    const char *name;
    Kind kind;
    bool sends_shares, receives_shares;
};

const Collective collectives[] = {
    { "reduce_scatter", Kind::reduce_scatter, true, false },
    { "all_gather", Kind::all_gather, false, true },
    { "broadcast", Kind::broadcast, false, false },
    { "all_to_all", Kind::all_to_all, true, true },
};

struct Call {
    const void *send;
    void *recv;
    size_t count;
    dscomm_dtype_t dtype;
    const dscomm_codec_t *codec;
    dscomm_feedback_t *fb;
    dscomm_comm_t *comm;
    dscomm_stream_t *stream;
};

dscomm_status_t make(Kind kind, const Call &c)
{
    switch (kind) {
    case Kind::reduce_scatter:
        return dscomm_reduce_scatter_compressed(c.send, c.recv, c.count, c.dtype, DSCOMM_AVG,
                                                c.codec, c.fb, c.comm, c.stream);
    case Kind::all_gather:
        return dscomm_all_gather_compressed(c.send, c.recv, c.count, c.dtype, c.codec, c.fb, c.comm,
                                            c.stream);
    case Kind::broadcast:
        return dscomm_broadcast(c.send, c.recv, c.count, c.dtype, 1, c.codec, c.comm, c.stream);
    case Kind::all_to_all:
        return dscomm_all_to_all_compressed(c.send, c.recv, c.count, c.dtype, c.codec, c.fb, c.comm,
                                            c.stream);
    }
    return DSCOMM_ERR_INVALID;
}

class Others : public testing::TestWithParam<Collective> {};

void run(const Collective &what, const char *spec, dscomm_dtype_t dtype)
{
    constexpr int n_ranks = 3;
    constexpr size_t count = 5003;
    const GpuWorld world(n_ranks);

    world.each([&](int r) {
        GpuCase c;

        c.spec = spec;
        c.dtype = dtype;
        c.count = what.sends_shares ? n_ranks * count : count;
        c.feedback = what.kind != Kind::broadcast;
        c.momentum = what.kind == Kind::reduce_scatter && dtype == DSCOMM_BFLOAT16 ? 0.9f : 0.0f;
        GpuSides sides(world, c, r);
        const size_t out_bytes = (what.receives_shares ? n_ranks * count : count) * c.elem();
        DeviceArray<uint8_t> recv(out_bytes);

        for (int step = 0; step < 3; step++) {
            const Bytes input = make_input(c, r, step, step == 1);
            Bytes on_device(out_bytes), on_host(out_bytes);

            sides.put(input);
            EXPECT_EQ(
                make(what.kind, { sides.device_send(), recv.get(), count, dtype, dscomm_codec(spec),
                                  sides.device_fb, world.comms[r], world.stream(r) }),
                DSCOMM_OK)
                << dscomm_last_error();
            EXPECT_EQ(
                make(what.kind, { input.data(), on_host.data(), count, dtype, dscomm_codec(spec),
                                  sides.host_fb, world.host->comms[r], nullptr }),
                DSCOMM_OK)
                << dscomm_last_error();
            world.sync(r);
            on_device = recv.read();
            EXPECT_EQ(on_device, on_host) << what.name << " " << spec << " call " << step;
            sides.expect_same_residuals();
        }
        EXPECT_EQ(stats_of(world.comms[r]).nonfinite_elems,
                  stats_of(world.host->comms[r]).nonfinite_elems);
    });
}

TEST_P(Others, have_the_bits_of_the_host)
{
    for (const char *spec : { "int8", "none", "int4:block=32", "topk:0.05" })
        for (dscomm_dtype_t dtype : { DSCOMM_FLOAT32, DSCOMM_BFLOAT16 })
            if (GetParam().kind <= Kind::all_gather || !dscomm_codec(spec)->sums_only)
                run(GetParam(), spec, dtype);
}

INSTANTIATE_TEST_SUITE_P(all, Others, testing::ValuesIn(collectives),
                         [](const auto &info) { return std::string(info.param.name); });

struct TiersCase {
    const char *name, *tiers;
    int n_ranks;
    std::vector<const char *> codecs; /* per tier; one: what algorithm tiered makes of it */
    float momentum = 0.0f;
};

class Tiers : public testing::TestWithParam<TiersCase> {};

/* One call on a device and on the host, both as the case wants it. */
dscomm_status_t tiered_call(const TiersCase &what, const GpuCase &c, dscomm_comm_t *comm,
                            const void *send, void *recv, dscomm_feedback_t *fb,
                            dscomm_stream_t *stream)
{
    const dscomm_codec_t *const codec = dscomm_codec(what.codecs.back());
    std::vector<const dscomm_codec_t *> codecs;

    if (what.codecs.size() == 1)
        return dscomm_allreduce_compressed(send, recv, c.count, c.dtype, c.op, codec, fb, comm,
                                           stream);
    for (const char *spec : what.codecs)
        codecs.push_back(dscomm_codec(spec));
    return chosen_allreduce(comm, tiered_choice(codecs), send, recv, c.count, c.dtype, c.op, codec,
                            fb, stream);
}

TEST_P(Tiers, have_the_bits_of_the_host)
{
    const TiersCase &what = GetParam();
    GpuCase c;

    c.n_ranks = what.n_ranks;
    c.count = 40000;
    c.spec = what.codecs.back();
    c.momentum = what.momentum;
    const GpuWorld world(c.n_ranks);

    world.each([&](int r) {
        GpuSides sides(world, c, r);

        for (dscomm_comm_t *comm : { world.comms[r], world.host->comms[r] }) {
            EXPECT_EQ(dsc_comm_set_tiers(comm, nullptr, what.tiers), DSCOMM_OK);
            comm->algorithm = DSC_ALG_TIERED;
        }
        for (int step = 0; step < 3; step++) {
            const Bytes input = make_input(c, r, step, step == 1);
            Bytes expected(input.size());

            sides.put(input);
            EXPECT_EQ(tiered_call(what, c, world.comms[r], sides.device_send(), sides.device_recv(),
                                  sides.device_fb, world.stream(r)),
                      DSCOMM_OK)
                << dscomm_last_error();
            EXPECT_EQ(tiered_call(what, c, world.host->comms[r], input.data(), expected.data(),
                                  sides.host_fb, nullptr),
                      DSCOMM_OK);
            sides.expect_same_output(expected, step);
            sides.expect_same_residuals();
        }
    });
}

const TiersCase tiers_cases[] = {
    { "3_and_4_of_int8", "0-2|3-6", 7, { "int8", "int8" } },
    { "3_and_4_of_fp16_and_int4", "0-2|3-6", 7, { "fp16", "int4" } },
    { "3_and_4_of_none_and_int8", "0-2|3-6", 7, { "none", "int8" } },
    { "3_and_4_by_word", "0-2|3-6", 7, { "int8" } },
    { "3_and_4_of_none_and_int8_with_momentum", "0-2|3-6", 7, { "none", "int8" }, 0.9f },
    { "3_and_4_of_topk_with_momentum", "0-2|3-6", 7, { "topk:0.02", "topk:0.01,int8" }, 0.9f },
    { "1_and_2_by_word", "0|1-2", 3, { "int4:block=32" } },
    { "three_levels", "0-1|2|3-5/0-2|3-5", 6, { "none", "fp16", "int8" } },
    { "three_levels_by_word", "0-1|2|3-5/0-2|3-5", 6, { "int8" } },
};

INSTANTIATE_TEST_SUITE_P(all, Tiers, testing::ValuesIn(tiers_cases),
                         [](const auto &info) { return std::string(info.param.name); });

/* Ranks of one host are in one tier; what their devices' links are is asked of the topology. */
TEST(TiersOfDevices, are_found)
{
    const GpuWorld world(3);

    for (const dscomm_comm_t *comm : world.comms)
        EXPECT_STREQ(dscomm_comm_tiers(comm), "0-2");
}

TEST(Groups, run_their_calls_in_order)
{
    GpuCase c;

    c.count = 3000;
    const GpuWorld world(2);

    world.each([&](int r) {
        GpuSides a(world, c, r), b(world, c, r);
        const Bytes input = make_input(c, r, 0, false);

        a.put(input);
        b.put(input);
        EXPECT_EQ(dscomm_group_start(), DSCOMM_OK);
        EXPECT_EQ(a.call(), DSCOMM_OK);
        EXPECT_EQ(b.call(), DSCOMM_OK);
        EXPECT_EQ(stats_of(world.comms[r]).calls, 0u);
        EXPECT_EQ(dscomm_group_end(), DSCOMM_OK) << dscomm_last_error();
        a.expect_same_output(a.host_call(input), 0);
        b.expect_same_output(b.host_call(input), 0);
        EXPECT_EQ(stats_of(world.comms[r]).calls, 2u);
    });
}

/* Calls run in the order of issue, whatever their streams. */
TEST(Streams, of_one_communicator_are_ordered)
{
    GpuCase c;

    c.count = 20000;
    const GpuWorld world(2);

    world.each([&](int r) {
        GpuSides sides(world, c, r);
        const Bytes input = make_input(c, r, 0, false);
        cudaStream_t other;

        EXPECT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
        sides.put(input);
        world.sync(r);
        for (int i = 0; i < 6; i++) {
            EXPECT_EQ(dscomm_allreduce_compressed(
                          sides.device_send(), sides.device_recv(), c.count, c.dtype, c.op,
                          dscomm_codec("int8"), sides.device_fb, world.comms[r],
                          dscomm_cuda_stream(i % 2 == 0 ? world.streams[r] : other)),
                      DSCOMM_OK);
            sides.host_call(input);
        }
        EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
        world.sync(r);
        sides.expect_same_residuals();
        EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
    });
}

/* `none` is NCCL's own allreduce unless the order of sums is to be ours. */
TEST(Plain, is_nccl_all_reduce)
{
    dscomm_comm_config_t config = gpu_config();
    GpuCase c;

    config.exact_order = 0;
    c.spec = "none";
    c.count = 3000;
    const GpuWorld world(2, config);

    for (bool feedback : { false, true }) {
        c.feedback = feedback;
        world.each([&](int r) {
            GpuSides sides(world, c, r);
            const Bytes input = make_input(c, r, 0, false);

            sides.put(input);
            EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
            /* of two ranks a sum has one order */
            sides.expect_same_output(sides.host_call(input), 0);
            EXPECT_EQ(stats_of(world.comms[r]).plans, 0u) << "NCCL's";
            EXPECT_EQ(stats_of(world.comms[r]).calls, feedback ? 2u : 1u);
        });
    }
    world.each([&](int r) { /* a residual that is not zero is added by our kernels */
                            GpuSides sides(world, c, r);
                            const Bytes input = make_input(c, r, 0, false);
                            const float left = 0.5f;

                            EXPECT_EQ(dscomm_feedback_write(sides.device_fb, 7, 1, &left),
                                      DSCOMM_OK);
                            EXPECT_EQ(dscomm_feedback_write(sides.host_fb, 7, 1, &left), DSCOMM_OK);
                            sides.put(input);
                            EXPECT_EQ(sides.call(), DSCOMM_OK);
                            sides.expect_same_output(sides.host_call(input), 0);
                            sides.expect_same_residuals();
                            EXPECT_EQ(stats_of(world.comms[r]).plans, 1u);
    });
}

} // namespace
