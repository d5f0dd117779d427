/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grouped calls: small allreduces run as one, what each gets is what it would get from one call on
 * the packed vector, residuals stay with their objects, and ranks that disagree find out.
 */
#include "conformance/field_support.h"
#include "support/collectives.h"

namespace {

struct Tensor {
    size_t count;
    const char *codec = "int8";
    bool feedback = true;
    dscomm_dtype_t dtype = DSCOMM_FLOAT32;
    float momentum = 0.0f;
};

/* The tensors of one rank. Values are exact in int8 and in none. */
struct Group {
    std::vector<Tensor> tensors;
    std::vector<Floats> in, out;
    std::vector<dscomm_feedback_t *> feedback;

    explicit Group(const std::vector<Tensor> &t) : tensors(t)
    {
        for (const Tensor &tensor : tensors) {
            dscomm_feedback_t *fb = nullptr;

            in.push_back(probe("int8", tensor.count, 1));
            out.emplace_back(tensor.count, -1.0f);
            if (tensor.feedback) {
                dscomm_feedback_config_t config = DSCOMM_FEEDBACK_CONFIG_INIT;

                config.momentum = tensor.momentum;
                EXPECT_EQ(dscomm_feedback_create(tensor.count, &config, &fb), DSCOMM_OK);
            }
            feedback.push_back(fb);
        }
    }
    Group(const Group &) = delete;
    ~Group()
    {
        for (auto *fb : feedback)
            dscomm_feedback_destroy(fb);
    }

    dscomm_status_t issue(size_t i, dscomm_comm_t *comm, dscomm_stream_t *stream = nullptr,
                          bool in_place = false)
    {
        return dscomm_allreduce_compressed(in[i].data(), in_place ? in[i].data() : out[i].data(),
                                           tensors[i].count, tensors[i].dtype, DSCOMM_SUM,
                                           dscomm_codec(tensors[i].codec), feedback[i], comm,
                                           stream);
    }
    dscomm_status_t run(dscomm_comm_t *comm, dscomm_stream_t *stream = nullptr)
    {
        EXPECT_EQ(dscomm_group_start(), DSCOMM_OK);
        for (size_t i = 0; i < tensors.size(); i++)
            EXPECT_EQ(issue(i, comm, stream), DSCOMM_OK) << dscomm_last_error();
        return dscomm_group_end();
    }
};

class Grouped : public testing::TestWithParam<const char *> {};

TEST_P(Grouped, D6_CountsZeroFiveZero)
{
    for (int n : { 1, 2, 3 }) {
        World w(n, GetParam());

        w.each([&](int r) {
            dscomm_comm_t *const comm = w.comms[(size_t)r];
            Group empty({ { 0 }, { 0 } }), some({ { 0 }, { 5 }, { 0 } });

            ASSERT_EQ(empty.run(comm), DSCOMM_OK) << dscomm_last_error();
            EXPECT_EQ(stats_of(comm).payload_tx_bytes, 0u);
            ASSERT_EQ(some.run(comm), DSCOMM_OK) << dscomm_last_error();
            EXPECT_EQ(some.out[1], times(some.in[1], n));
            ASSERT_EQ(dscomm_group_start(), DSCOMM_OK);
            ASSERT_EQ(dscomm_group_end(), DSCOMM_OK); /* nothing in it */
        });
    }
}

/* u = m*u + g is not forgotten on the way through a group; collectives without sums refuse it. */
TEST_P(Grouped, MomentumIsKept)
{
    World w(2, GetParam());

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        const Tensor tensor = { 300, "int8", true, DSCOMM_FLOAT32, 0.5f };
        Group group({ tensor, tensor });
        Floats wide(600);

        for (float factor : { 1.0f, 1.5f, 1.75f }) {
            ASSERT_EQ(group.run(comm), DSCOMM_OK) << dscomm_last_error();
            for (size_t i = 0; i < 300; i++)
                ASSERT_EQ(group.out[1][i], 2 * factor * group.in[1][i]) << i << " " << factor;
        }
        EXPECT_EQ(dscomm_all_gather_compressed(group.in[0].data(), wide.data(), 300, DSCOMM_FLOAT32,
                                               dscomm_codec("int8"), group.feedback[0], comm,
                                               nullptr),
                  DSCOMM_ERR_INVALID);
        EXPECT_NE(std::string(dscomm_last_error()).find("momentum"), std::string::npos);
    });
}

/* One plan and one call for all that agree; each tensor has blocks of its own. */
TEST_P(Grouped, SmallOnesBecomeOneCall)
{
    const int n = 3;
    World w(n, GetParam());

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        std::vector<Tensor> tensors;

        for (size_t i = 0; i < 40; i++) /* 1 to 3901 elements, tiny ones beside large values */
            tensors.push_back({ 100 * i + 1 });
        Group g(tensors);

        for (float &x : g.in[7])
            x *= 0x1p-40f; /* would vanish in a neighbour's block */
        for (int round = 0; round < 3; round++) {
            ASSERT_EQ(g.run(comm), DSCOMM_OK) << dscomm_last_error();
            for (size_t i = 0; i < tensors.size(); i++)
                EXPECT_EQ(g.out[i], times(g.in[i], n)) << i;
        }
        EXPECT_EQ(stats_of(comm).calls, 3u);
        EXPECT_EQ(stats_of(comm).plans, 1u);
    });
}

TEST_P(Grouped, ClassesLargeOnesAndOtherCollectives)
{
    const int n = 2;
    World w(n, GetParam());

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        dscomm_stream_t *stream = nullptr;
        Group g({ { 100 },
                  { 300000 },
                  { 200, "none" },
                  { 300 },
                  { 50, "none", false },
                  { 7 },
                  { 20, "none" } });
        Floats share(10, 2.0f), gathered(20);

        ASSERT_EQ(dscomm_stream_create(&stream), DSCOMM_OK);
        for (auto *s : { (dscomm_stream_t *)nullptr, stream }) {
            const uint64_t before = stats_of(comm).calls;

            ASSERT_EQ(dscomm_group_start(), DSCOMM_OK);
            ASSERT_EQ(dscomm_all_gather_compressed(share.data(), gathered.data(), 10,
                                                   DSCOMM_FLOAT32, nullptr, nullptr, comm, s),
                      DSCOMM_OK);
            ASSERT_EQ(g.run(comm, s), DSCOMM_OK) << dscomm_last_error(); /* nested */
            EXPECT_EQ(stats_of(comm).calls, before);
            ASSERT_EQ(dscomm_group_end(), DSCOMM_OK) << dscomm_last_error();
            if (s != nullptr) {
                ASSERT_EQ(dscomm_stream_synchronize(s), DSCOMM_OK) << dscomm_last_error();
            }
            /* gather; {100, 300, 7}; 300000; {200, 20} with feedback; 50 without */
            EXPECT_EQ(stats_of(comm).calls, before + 5);
            EXPECT_EQ(gathered, Floats(20, 2.0f));
            for (size_t i = 0; i < g.in.size(); i++) {
                EXPECT_EQ(g.out[i], times(g.in[i], n)) << i;
                g.out[i].assign(g.out[i].size(), 0.0f);
            }
        }
        dscomm_stream_destroy(stream);
    });
}

/* What a group leaves in residuals is what one call on the packed vector does. */
TEST_P(Grouped, ResidualsStayWithTheirObjects)
{
    const int n = 2;
    const std::vector<Tensor> tensors{ { 1000 }, { 24 }, { 512 } };
    const size_t places[] = { 0, 1024, 1280 }; /* on blocks of 256 */
    World w(n, GetParam());

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        Group g(tensors);
        Floats packed(1792), sum(packed.size());
        dscomm_feedback_t *whole = nullptr;

        ASSERT_EQ(dscomm_feedback_create(packed.size(), nullptr, &whole), DSCOMM_OK);
        for (int call = 0; call < 3; call++) {
            for (size_t t = 0; t < 3; t++)
                for (size_t i = 0; i < tensors[t].count; i++) {
                    g.in[t][i] = (float)std::sin((double)(i * (t + 2)) + 3 * r + call);
                    packed[places[t] + i] = g.in[t][i];
                }
            ASSERT_EQ(g.run(comm), DSCOMM_OK) << dscomm_last_error();
            ASSERT_EQ(dscomm_allreduce_compressed(packed.data(), sum.data(), packed.size(),
                                                  DSCOMM_FLOAT32, DSCOMM_SUM, dscomm_codec("int8"),
                                                  whole, comm, nullptr),
                      DSCOMM_OK);
            for (size_t t = 0; t < 3; t++) {
                Floats mine(tensors[t].count), expected(mine);

                EXPECT_EQ(memcmp(g.out[t].data(), &sum[places[t]], 4 * mine.size()), 0);
                ASSERT_EQ(dscomm_feedback_read(g.feedback[t], 0, mine.size(), mine.data()),
                          DSCOMM_OK);
                ASSERT_EQ(dscomm_feedback_read(whole, places[t], mine.size(), expected.data()),
                          DSCOMM_OK);
                EXPECT_EQ(mine, expected) << "call " << call << " tensor " << t;
            }
        }
        EXPECT_EQ(dscomm_feedback_rollback(g.feedback[1]), DSCOMM_OK);
        dscomm_feedback_destroy(whole);
    });
}

TEST_P(Grouped, MinBytesExemptsSmallTensors)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.min_bytes = 400;
    World w(2, GetParam(), config);

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        Group g({ { 99, "int4", false }, { 100, "int4", false } });

        for (auto &v : g.in)
            for (size_t i = 0; i < v.size(); i++)
                v[i] = 1.0f + (float)i / 7;
        ASSERT_EQ(g.run(comm), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(g.out[0], times(g.in[0], 2));
        EXPECT_NE(g.out[1], times(g.in[1], 2));
    });
}

/* Which numbers an element draws depends on its place in the vector: no group may change that. */
TEST_P(Grouped, StochasticCodecsAreNotFused)
{
    const std::vector<Tensor> tensors{ { 300, "int4,sr", false }, { 500, "int4,sr", false } };
    std::vector<Floats> out[2][2]; /* [in a group][rank] */
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.seed = 5;
    for (bool grouped : { false, true }) {
        World w(2, GetParam(), config);

        w.each([&](int r) {
            dscomm_comm_t *const comm = w.comms[(size_t)r];
            Group g(tensors);

            for (auto &v : g.in)
                for (size_t i = 0; i < v.size(); i++)
                    v[i] = (float)std::sin((double)i + r);
            for (size_t i = 0; !grouped && i < tensors.size(); i++)
                ASSERT_EQ(g.issue(i, comm), DSCOMM_OK) << dscomm_last_error();
            if (grouped) {
                ASSERT_EQ(g.run(comm), DSCOMM_OK) << dscomm_last_error();
            }
            EXPECT_EQ(stats_of(comm).calls, 2u);
            out[grouped][r] = g.out;
        });
    }
    EXPECT_EQ(out[0][0], out[1][0]);
    EXPECT_EQ(out[0][1], out[1][1]);
}

/* Whatever fuses: what each tensor gets is what one call on the packed vector gives it. */
TEST_P(Grouped, EveryCodecThatFuses)
{
    const size_t counts[] = { 1000, 24, 515 };
    World w(2, GetParam());

    for (const auto &spec : all_specs()) {
        const auto *const codec = dscomm_codec(spec.c_str());

        if (codec->tile_align > 256 || codec->stochastic)
            continue;
        w.each([&](int r) {
            dscomm_comm_t *const comm = w.comms[(size_t)r];
            Group g({ { counts[0], spec.c_str() },
                      { counts[1], spec.c_str() },
                      { counts[2], spec.c_str() } });
            const uint64_t before = stats_of(comm).calls;
            Floats packed;

            for (auto &v : g.in) {
                for (size_t i = 0; i < v.size(); i++)
                    v[i] = (float)std::sin((double)(packed.size() + i) + 3 * r);
                packed.insert(packed.end(), v.begin(), v.end());
                packed.resize(dsc_round_up(packed.size(), codec->block), 0.0f);
            }
            Floats sum(packed.size());

            ASSERT_EQ(g.run(comm), DSCOMM_OK) << spec << ": " << dscomm_last_error();
            EXPECT_EQ(stats_of(comm).calls, before + 1) << spec;
            ASSERT_EQ(dscomm_allreduce_compressed(packed.data(), sum.data(), packed.size(),
                                                  DSCOMM_FLOAT32, DSCOMM_SUM, codec, nullptr, comm,
                                                  nullptr),
                      DSCOMM_OK);
            size_t at = 0;

            for (const auto &out : g.out) {
                EXPECT_EQ(memcmp(out.data(), &sum[at], out.size() * sizeof(float)), 0) << spec;
                at = dsc_round_up(at + out.size(), codec->block);
            }
        });
    }
}

TEST_P(Grouped, D14_ADifferentSplitOfTheSameTotalIsNoticed)
{
    for (const auto &[most, odd, field] :
         { std::tuple{ std::vector<Tensor>{ { 300, "none" }, { 500, "none" } },
                       std::vector<Tensor>{ { 500, "none" }, { 300, "none" } }, "sizes" },
           std::tuple{ std::vector<Tensor>{ { 300 }, { 500 } },
                       std::vector<Tensor>{ { 300 }, { 500 }, { 1 } }, "tensors" } }) {
        World w(3, GetParam());

        w.each([&, &most = most, &odd = odd, &field = field](int r) {
            Group g(r == 1 ? odd : most);
            const auto before = g.in;

            EXPECT_EQ(g.run(w.comms[(size_t)r]), DSCOMM_ERR_MISMATCH);
            EXPECT_NE(std::string(dscomm_last_error()).find(field), std::string::npos)
                << dscomm_last_error();
            for (const auto &out : g.out)
                EXPECT_EQ(out, Floats(out.size(), -1.0f)) << "recv was written";
        });
    }
}

/* Packed calls that fail leave inputs, also in place, and residuals. */
TEST_P(Grouped, AFailedGroupLeavesNoTrace)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.timeout_ms = 300;
    World w(2, GetParam(), config);
    Group g({ { 300 }, { 500 } });
    const auto before = g.in;
    const Floats r500(500, 0.5f);
    Floats after(500);

    ASSERT_EQ(dscomm_feedback_write(g.feedback[1], 0, 500, r500.data()), DSCOMM_OK);
    ASSERT_EQ(dscomm_group_start(), DSCOMM_OK);
    for (size_t i = 0; i < 2; i++)
        ASSERT_EQ(g.issue(i, w.comms[0], nullptr, true), DSCOMM_OK);
    EXPECT_EQ(dscomm_group_end(), DSCOMM_ERR_TIMEOUT);
    EXPECT_NE(std::string(dscomm_last_error()).find("rank 1"), std::string::npos);
    EXPECT_EQ(g.in, before);
    ASSERT_EQ(dscomm_feedback_read(g.feedback[1], 0, 500, after.data()), DSCOMM_OK);
    EXPECT_EQ(after, r500);
    ASSERT_EQ(dscomm_group_start(), DSCOMM_OK);
    EXPECT_EQ(g.issue(0, w.comms[0]), DSCOMM_ERR_BAD_STATE);
    EXPECT_EQ(dscomm_group_end(), DSCOMM_OK);
}

INSTANTIATE_TEST_SUITE_P(, Grouped, testing::Values("loopback", "shm", "tcp"),
                         [](const auto &p) { return std::string(p.param); });

TEST(Group, MisuseIsNamed)
{
    World w(1);
    dscomm_stream_t *stream = nullptr;
    Group g({ { 10 }, { 20 } });

    EXPECT_EQ(dscomm_group_end(), DSCOMM_ERR_BAD_STATE);
    EXPECT_NE(std::string(dscomm_last_error()).find("without a group start"), std::string::npos);
    ASSERT_EQ(dscomm_stream_create(&stream), DSCOMM_OK);
    ASSERT_EQ(dscomm_group_start(), DSCOMM_OK);
    EXPECT_EQ(dscomm_allreduce_compressed(nullptr, g.out[0].data(), 10, DSCOMM_FLOAT32, DSCOMM_SUM,
                                          nullptr, nullptr, w.comms[0], nullptr),
              DSCOMM_ERR_INVALID); /* at once; the group goes on */
    EXPECT_EQ(g.issue(0, w.comms[0]), DSCOMM_OK);
    EXPECT_EQ(g.issue(1, w.comms[0], stream), DSCOMM_ERR_INVALID);
    EXPECT_NE(std::string(dscomm_last_error()).find("stream"), std::string::npos);
    EXPECT_EQ(dscomm_allreduce_compressed(g.in[0].data(), g.in[1].data(), 10, DSCOMM_FLOAT32,
                                          DSCOMM_SUM, dscomm_codec("int8"), g.feedback[0],
                                          w.comms[0], nullptr),
              DSCOMM_ERR_INVALID); /* two residuals for one object: one would be lost */
    EXPECT_NE(std::string(dscomm_last_error()).find("is that of call 0"), std::string::npos);
    EXPECT_EQ(dscomm_group_end(), DSCOMM_OK);
    EXPECT_EQ(g.out[0], g.in[0]);
    EXPECT_EQ(g.out[1], Floats(20, -1.0f));
    /* a communicator that goes takes its kept calls with it */
    ASSERT_EQ(dscomm_group_start(), DSCOMM_OK);
    EXPECT_EQ(g.issue(1, w.comms[0]), DSCOMM_OK);
    dscomm_comm_destroy(w.comms[0]);
    w.comms[0] = nullptr;
    EXPECT_EQ(dscomm_group_end(), DSCOMM_OK);
    dscomm_stream_destroy(stream);
}

} // namespace
