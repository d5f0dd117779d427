/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library against the executable specification: outputs of every call, residuals of every rank
 * and bytes sent, bit for bit, for all golden calls. Again with other windows, thread counts and
 * transports, which must not change a bit.
 */
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>

#include "support/choose.h"
#include "support/golden_calls.h"
#include "support/transports.h"
#include "support/world.h"

namespace {

dscomm_feedback_t *make_feedback(const GoldenCall &c)
{
    dscomm_feedback_config_t config = DSCOMM_FEEDBACK_CONFIG_INIT;
    dscomm_feedback_t *fb = nullptr;
    const float zero = 0.0f;

    if (!c.feedback)
        return nullptr;
    config.beta = c.beta;
    config.type = c.bf16_residual ? DSCOMM_RESIDUAL_BF16 : DSCOMM_RESIDUAL_FP32;
    config.shadow = c.shadow;
    config.momentum = c.momentum;
    EXPECT_EQ(dscomm_feedback_create(c.send_count, &config, &fb), DSCOMM_OK);
    if (!c.known_zero && c.count > 0) { /* zeros, but not known to be */
        EXPECT_EQ(dscomm_feedback_write(fb, 0, 1, &zero), DSCOMM_OK);
    }
    return fb;
}

std::vector<const dscomm_codec_t *> codecs_of(const GoldenCall &c)
{
    std::vector<const dscomm_codec_t *> codecs;

    for (int t = 0; t < c.n_tiers; t++)
        codecs.push_back(dscomm_codec(c.codecs[c.codecs.size() == 1 ? 0 : (size_t)t].c_str()));
    return codecs;
}

/* chunk: that of the messages, which the communicator makes half as long for 4 bytes an element. */
void set_plan(const GoldenCall &c, dscomm_comm_t *comm, size_t chunk)
{
    const std::string tiers = tiers_text_of(c.n_tiers, c.n_ranks, c.groups.data());
    bool is_wide = false;

    for (const dscomm_codec_t *codec : codecs_of(c))
        is_wide =
            is_wide || dsc_codec_message_bytes(dsc_codec_resolve(codec, c.dtype), 256) == 1024;
    ASSERT_EQ(dsc_comm_set_tiers(comm, nullptr, tiers.c_str()), DSCOMM_OK) << dscomm_last_error();
    comm->chunk_elems = is_wide ? 2 * chunk : chunk;
}

/* Exact partial sums below, the call's codec on the slowest tier: what `tiered` does by itself. */
bool is_what_tiered_does(const GoldenCall &c)
{
    const auto codecs = codecs_of(c);

    return c.algo == "tiered" && c.n_tiers > 1 &&
           std::all_of(codecs.begin(), codecs.end() - 1,
                       [](const dscomm_codec_t *codec) { return codec == dscomm_codec("fp32"); });
}

dscomm_status_t allreduce(const GoldenCall &c, dscomm_comm_t *comm, dscomm_feedback_t *fb,
                          const void *send, void *recv)
{
    const dscomm_codec_t *const codec = dscomm_codec(c.codecs.back().c_str());
    dsc_choice choice = tiered_choice(codecs_of(c));

    if (c.algo == "oneshot")
        choice.algorithm = DSC_ALG_ONE_SHOT;
    if (!is_what_tiered_does(c))
        return chosen_allreduce(comm, choice, send, recv, c.count, c.dtype, c.op, codec, fb);
    comm->algorithm = DSC_ALG_TIERED;
    return dscomm_allreduce_compressed(send, recv, c.count, c.dtype, c.op, codec, fb, comm,
                                       nullptr);
}

dscomm_status_t issue(const GoldenCall &c, dscomm_comm_t *comm, dscomm_feedback_t *fb,
                      const void *send, void *recv)
{
    const dscomm_codec_t *const codec = dscomm_codec(c.codecs.back().c_str());

    if (c.coll == "reduce_scatter")
        return dscomm_reduce_scatter_compressed(send, recv, c.count, c.dtype, c.op, codec, fb, comm,
                                                nullptr);
    if (c.coll == "all_gather")
        return dscomm_all_gather_compressed(send, recv, c.count, c.dtype, codec, fb, comm, nullptr);
    if (c.coll == "broadcast")
        return dscomm_broadcast(send, recv, c.count, c.dtype, c.root, codec, comm, nullptr);
    if (c.coll == "all_to_all")
        return dscomm_all_to_all_compressed(send, recv, c.count, c.dtype, codec, fb, comm, nullptr);
    return allreduce(c, comm, fb, send, recv);
}

/* A rank's vectors, apart or in one. */
struct Buffers {
    std::vector<uint8_t> in, out;
    uint8_t *send, *recv;

    Buffers(const GoldenCall &c, const std::vector<uint8_t> &input, int rank, bool in_place)
    {
        const size_t elem = c.dtype == DSCOMM_FLOAT32 ? 4 : 2;
        const size_t share = (size_t)rank * c.count * elem;

        in = input;
        out.assign(c.recv_count * elem, 0x5a);
        send = in.data();
        recv = out.data();
        if (!in_place)
            return;
        if (c.send_count >= c.recv_count) {
            recv = send + (c.send_count > c.recv_count ? share : 0);
            return;
        }
        send = recv + share;
        memcpy(send, input.data(), input.size());
    }
};

/* One rank's part of a golden call. chunk 0: as in the file, by default one message per piece. */
void run_rank(const GoldenCall &c, int rank, dscomm_comm_t *comm, size_t chunk, bool in_place)
{
    dscomm_feedback_t *fb = make_feedback(c);
    const size_t elem = c.dtype == DSCOMM_FLOAT32 ? 4 : 2;
    const bool check_sent = chunk == 0;
    std::vector<float> residual(c.send_count);
    uint64_t before = 0, after = 0;

    if (chunk == 0)
        chunk = c.chunk != 0 ? c.chunk : std::max<size_t>({ c.send_count, c.recv_count, 256 });
    set_plan(c, comm, chunk);
    for (int t = 0; t < c.calls; t++) {
        const std::vector<uint8_t> input = golden_input(c, rank, t);
        Buffers b(c, input, rank, in_place);

        before = stats_of(comm).payload_tx_bytes;
        ASSERT_EQ(issue(c, comm, fb, b.send, b.recv), DSCOMM_OK) << dscomm_last_error() << "\n"
                                                                 << c.line;
        after = stats_of(comm).payload_tx_bytes;
        EXPECT_EQ(crc32_of(b.recv, c.recv_count * elem), c.out.at(golden_out_index(c, rank, t)))
            << "output of call " << t << " rank " << rank << "\n"
            << c.line;
        if (!in_place) {
            EXPECT_EQ(b.in, input) << "input changed\n" << c.line;
        }
    }
    if (check_sent && c.calls > 0) {
        EXPECT_EQ(after - before, c.sent[(size_t)rank]) << c.line;
    }
    if (c.feedback) {
        ASSERT_EQ(dscomm_feedback_read(fb, 0, c.send_count, residual.data()), DSCOMM_OK);
        EXPECT_EQ(crc32_of(residual.data(), c.send_count * 4), c.res[(size_t)rank])
            << "residual of rank " << rank << "\n"
            << c.line;
    }
    if (c.momentum > 0.0f) {
        ASSERT_EQ(dscomm_feedback_read_momentum(fb, 0, c.send_count, residual.data()), DSCOMM_OK);
        EXPECT_EQ(crc32_of(residual.data(), c.send_count * 4), c.mom[(size_t)rank])
            << "momentum of rank " << rank << "\n"
            << c.line;
    }
    dscomm_feedback_destroy(fb);
}

bool is_stochastic(const GoldenCall &c)
{
    for (const auto &spec : c.codecs)
        if (dscomm_codec(spec.c_str())->stochastic)
            return true;
    return false;
}

/*
 * Cases of one layout share a world: joining costs more than most calls. Stochastic ones have one
 * of their own, with their seed: they draw by the number of the call on the communicator.
 */
void run_all(const char *transport, int n_threads, size_t chunk, bool in_place, int max_ranks)
{
    std::map<std::pair<int, std::string>, std::vector<GoldenCall>> by_world;
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.n_threads = n_threads;
    for (auto &c : read_golden_calls(DSC_GOLDEN_CALLS))
        by_world[{ c.n_ranks, is_stochastic(c) ? c.line : "" }].push_back(c);
    ASSERT_GE(by_world.size(), 9u);
    for (const auto &[key, calls] : by_world) {
        const int n = key.first;

        if (n > max_ranks)
            continue;
        config.seed = calls.front().seed;
        World world(n, transport, config);

        ASSERT_TRUE(world.ok());
        world.each([&](int r) {
            for (const auto &c : calls)
                run_rank(c, r, world.comms[(size_t)r], chunk, in_place);
        });
    }
}

TEST(Model, Loopback)
{
    run_all("loopback", 1, 0, false, 100);
}

TEST(Model, LoopbackInPlaceSmallChunks)
{
    run_all("loopback", 1, 256, true, 12);
}

TEST(Model, LoopbackThreeThreads)
{
    run_all("loopback", 3, 512, false, 8);
}

TEST(Model, Shm)
{
    run_all("shm", 1, 768, false, 9);
}

class ModelOver : public testing::TestWithParam<const char *> {};

TEST_P(ModelOver, InPlaceTwoThreads)
{
    run_all(GetParam(), 2, 512, true, 9);
}

INSTANTIATE_TEST_SUITE_P(, ModelOver, testing::ValuesIn(and_net_plugin({ "tcp" })),
                         [](const auto &p) { return std::string(p.param); });

TEST(Model, Verbs)
{
    if (std::getenv("DSC_VM") == nullptr)
        GTEST_SKIP() << "needs the virtual machine of tests/vm/run.py";
    run_all("verbs", 1, 512, false, 5);
}

} // namespace
