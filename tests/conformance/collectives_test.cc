/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What holds for every collective: any count, any address, in place or not, nothing beyond the
 * vectors touched; arguments checked; a failed call gives its input back; and what holds between
 * them. The model's bits are in model_test.cc.
 */
#include "conformance/field_support.h"

#include <cstdlib>

#include "support/collectives.h"
#include "support/transports.h"

namespace {

std::vector<Collective> collectives()
{
    return all_collectives();
}

/*
 * A rank's input whose result is exact in a codec: each share is a probe, times a power of two that
 * tells it from other shares and, where sums would not be exact then, not from those of other
 * ranks.
 */
Floats pattern(const Collective &c, const std::string &spec, size_t count, int n_ranks, int rank)
{
    const Floats p = probe(spec, count, n_ranks);
    Floats v(c.send_count(count, n_ranks));

    for (size_t i = 0; i < v.size(); i++)
        v[i] = std::ldexp(p[i % count], -(int)(i / count) - (c.reduces ? 0 : n_ranks * rank));
    return v;
}

std::vector<Floats> patterns(const Collective &c, const std::string &spec, size_t count, int n)
{
    std::vector<Floats> all;

    for (int r = 0; r < n; r++)
        all.push_back(pattern(c, spec, count, n, r));
    return all;
}

/* A rank's two vectors in one allocation each, `shift` bytes in, canaries around. */
struct Placed {
    static constexpr size_t around = 64;
    std::vector<uint8_t> first, second;
    uint8_t *send, *recv;
    size_t send_bytes, recv_bytes;

    Placed(const Collective &c, const std::vector<uint8_t> &input, size_t count, size_t elem, int n,
           int rank, size_t shift, bool in_place)
        : send_bytes(input.size()), recv_bytes(c.recv_count(count, n) * elem)
    {
        const ptrdiff_t offset = c.in_place_offset(count, rank) * (ptrdiff_t)elem;

        first.assign(around + shift + std::max(send_bytes, recv_bytes) + around, 0xa5);
        second.assign(around + shift + recv_bytes + around, 0xa5);
        send = first.data() + around + shift + (in_place && offset < 0 ? -offset : 0);
        recv = in_place ? send + offset : second.data() + around + shift;
        if (send_bytes > 0)
            memcpy(send, input.data(), send_bytes);
    }

    /* Bytes that belong to neither vector are as they were. */
    bool intact(const std::vector<uint8_t> &memory) const
    {
        for (const uint8_t &byte : memory)
            if (!(&byte >= send && &byte < send + send_bytes) &&
                !(&byte >= recv && &byte < recv + recv_bytes) && byte != 0xa5)
                return false;
        return true;
    }
};

struct Shape {
    std::string spec;
    dscomm_dtype_t dtype;
    size_t count, shift; /* bytes */
    bool in_place;
};

void check_placed(const World &w, const Collective &c, const Shape &s)
{
    const bool plain = s.dtype == DSCOMM_FLOAT32 || has_blocks(s.spec);
    const size_t elem = dsc_dtype_bytes(s.dtype);
    const auto values = patterns(c, plain ? s.spec : "bf16", s.count, w.n);

    w.each([&](int r) {
        const auto input = to_bytes(values[(size_t)r], s.dtype);
        Placed p(c, input, s.count, elem, w.n, r, s.shift, s.in_place);
        const auto expected = to_bytes(c.expect(values, s.count, r), s.dtype);

        ASSERT_EQ(c.call({ p.send, p.recv, s.count, s.dtype, DSCOMM_SUM,
                           dscomm_codec(s.spec.c_str()), nullptr, w.comms[(size_t)r], nullptr }),
                  DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), p.recv))
            << c.name << " " << s.spec << " count " << s.count << " rank " << r << " shift "
            << s.shift << (s.in_place ? " in place" : "");
        EXPECT_TRUE(p.intact(p.first) && p.intact(p.second)) << c.name << " count " << s.count;
        if (!s.in_place && !input.empty()) {
            EXPECT_EQ(memcmp(p.send, input.data(), input.size()), 0) << "input changed";
        }
    });
}

class Every : public testing::TestWithParam<const char *> {};

/* Codecs are the same on every transport. Those that are refused: TopKIsForSumsAndTheirHalves. */
std::vector<std::string> specs_for(const Collective &c, const std::string &transport)
{
    std::vector<std::string> specs;

    if (transport != "loopback")
        return { "none", "int8" };
    for (const auto &spec : all_specs())
        if (c.is_of_sums || !dscomm_codec(spec.c_str())->sums_only)
            specs.push_back(spec);
    return specs;
}

TEST_P(Every, D5_D6_D7_AnyCountAndAddress)
{
    for (int n : { 1, 2, 3 }) {
        World w(n, GetParam());

        for (const auto &c : collectives())
            for (const auto &spec : specs_for(c, GetParam()))
                for (size_t count : { 0, 1, 255, 1001 })
                    for (auto dtype : { DSCOMM_FLOAT32, DSCOMM_FLOAT16, DSCOMM_BFLOAT16 })
                        for (bool in_place : { false, true })
                            check_placed(w, c,
                                         { spec, dtype, count, count == 1001 ? 4u : 0u, in_place });
    }
}

TEST_P(Every, LargeAndManyRanks)
{
    for (int n : { 4, 9 }) {
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

        config.n_threads = n == 4 ? 3 : 1;
        World w(n, GetParam(), config);

        for (const auto &c : collectives())
            for (bool in_place : { false, true })
                for (const char *spec : { "none", "int8" })
                    check_placed(w, c,
                                 { spec, DSCOMM_FLOAT32, n == 4 ? 150003u : 20003u, 0, in_place });
    }
}

TEST_P(Every, CountZeroSendsNoPayload)
{
    World w(3, GetParam());

    for (const auto &c : collectives())
        w.each([&](int r) {
            dscomm_feedback_t *fb = nullptr;

            ASSERT_EQ(dscomm_feedback_create(0, nullptr, &fb), DSCOMM_OK);
            for (auto *feedback : { (dscomm_feedback_t *)nullptr, c.takes_feedback ? fb : nullptr })
                EXPECT_EQ(c.call({ nullptr, nullptr, 0, DSCOMM_FLOAT32, DSCOMM_SUM,
                                   dscomm_codec("int8"), feedback, w.comms[(size_t)r], nullptr }),
                          DSCOMM_OK)
                    << c.name << ": " << dscomm_last_error();
            EXPECT_EQ(stats_of(w.comms[(size_t)r]).payload_tx_bytes, 0u) << c.name;
            dscomm_feedback_destroy(fb);
        });
}

/* A window of one message and many chunks: nothing deadlocks. */
TEST_P(Every, OneMessageInFlightIsEnough)
{
    setenv("DSCOMM_WINDOW", "1", 1);
    dsc_env_reload();
    for (int n : { 2, 3, 9 }) {
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

        config.chunk_bytes = 1024;
        World w(n, GetParam(), config);

        for (const auto &c : collectives())
            w.each([&](int r) {
                const size_t count = 9001, sent = c.send_count(count, n);
                Floats in(sent, 1.0f), out(c.recv_count(count, n));
                dscomm_feedback_t *fb = nullptr;

                ASSERT_EQ(dscomm_feedback_create(sent, nullptr, &fb), DSCOMM_OK);
                ASSERT_EQ(c.call({ in.data(), out.data(), count, DSCOMM_FLOAT32, DSCOMM_SUM,
                                   dscomm_codec("int8"), c.takes_feedback ? fb : nullptr,
                                   w.comms[(size_t)r], nullptr }),
                          DSCOMM_OK)
                    << c.name << " " << n << ": " << dscomm_last_error();
                EXPECT_EQ(out, Floats(out.size(), c.reduces ? (float)n : 1.0f)) << c.name;
                dscomm_feedback_destroy(fb);
            });
    }
    unsetenv("DSCOMM_WINDOW");
    dsc_env_reload();
}

/* preserve_input: after a deadline the input is as it was, wherever in-place puts it. */
TEST_P(Every, AFailedCallInPlaceGivesItsInputBack)
{
    for (const auto &c : collectives()) {
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
        const size_t count = 5000;

        config.timeout_ms = 300;
        config.preserve_input = 1;
        World w(2, GetParam(), config);
        const auto values = patterns(c, "int8", count, 2);
        const auto run = [&](int r, Placed &p, dscomm_feedback_t *fb) {
            return c.call({ p.send, p.recv, count, DSCOMM_FLOAT32, DSCOMM_SUM, dscomm_codec("int8"),
                            c.takes_feedback ? fb : nullptr, w.comms[(size_t)r], nullptr });
        };

        w.each([&](int r) {
            const auto input = to_bytes(values[(size_t)r], DSCOMM_FLOAT32);
            const size_t sent = c.send_count(count, 2);
            Placed p(c, input, count, 4, 2, r, 0, true), q(p);
            Floats before(sent, 0.25f), after(sent);
            dscomm_feedback_t *fb = nullptr;

            ASSERT_EQ(dscomm_feedback_create(sent, nullptr, &fb), DSCOMM_OK);
            ASSERT_EQ(run(r, p, fb), DSCOMM_OK) << c.name << ": " << dscomm_last_error();
            ASSERT_EQ(dscomm_feedback_write(fb, 0, sent, before.data()), DSCOMM_OK);
            if (r == 1) {
                Placed again(c, input, count, 4, 2, r, 0, true);

                EXPECT_EQ(run(r, again, fb), DSCOMM_ERR_TIMEOUT) << c.name;
                EXPECT_EQ(memcmp(again.send, input.data(), input.size()), 0) << c.name;
                EXPECT_TRUE(again.intact(again.first)) << c.name;
                ASSERT_EQ(dscomm_feedback_read(fb, 0, sent, after.data()), DSCOMM_OK);
                EXPECT_EQ(before, after) << c.name;
            }
            dscomm_feedback_destroy(fb);
        });
    }
}

/* ---- the halves and the whole ---- */

/*
 * As ZeRO uses them: reduce-scatter, then all-gather of the sum, has the allreduce's bits. Unless
 * the codec draws: another call draws other numbers.
 */
TEST_P(Every, HalvesTogetherAreTheAllreduce)
{
    const int n = 3;
    const size_t count = 5 * 256;
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.algorithm = "twoshot";
    World w(n, GetParam(), config);

    for (const auto &spec : all_specs()) {
        if (!takes_feedback(spec))
            continue;
        w.each([&](int r) {
            dscomm_comm_t *const comm = w.comms[(size_t)r];
            const auto *const codec = dscomm_codec(spec.c_str());
            dscomm_feedback_t *whole = nullptr, *up = nullptr, *down = nullptr;
            Floats in(count * n), out(count * n), share(count), gathered(count * n);

            ASSERT_EQ(dscomm_feedback_create(count * n, nullptr, &whole), DSCOMM_OK);
            ASSERT_EQ(dscomm_feedback_create(count * n, nullptr, &up), DSCOMM_OK);
            ASSERT_EQ(dscomm_feedback_create(count, nullptr, &down), DSCOMM_OK);
            for (int call = 0; call < 4; call++) {
                for (size_t i = 0; i < in.size(); i++) /* no subnormal in fp16, scaled or not */
                    in[i] = 1.0f + 0.4f * (float)std::sin((double)(i * (size_t)(r + 2)) + call);
                ASSERT_EQ(dscomm_allreduce_compressed(in.data(), out.data(), in.size(),
                                                      DSCOMM_FLOAT32, DSCOMM_SUM, codec, whole,
                                                      comm, nullptr),
                          DSCOMM_OK);
                ASSERT_EQ(dscomm_reduce_scatter_compressed(in.data(), share.data(), count,
                                                           DSCOMM_FLOAT32, DSCOMM_SUM, codec, up,
                                                           comm, nullptr),
                          DSCOMM_OK);
                ASSERT_EQ(dscomm_all_gather_compressed(share.data(), gathered.data(), count,
                                                       DSCOMM_FLOAT32, codec, down, comm, nullptr),
                          DSCOMM_OK);
                EXPECT_EQ(memcmp(out.data(), gathered.data(), out.size() * sizeof(float)), 0)
                    << spec << " call " << call << " rank " << r;
            }
            dscomm_feedback_destroy(whole);
            dscomm_feedback_destroy(up);
            dscomm_feedback_destroy(down);
        });
    }
}

/* RDMA there is in the virtual machine of tests/vm/run.py, and nothing else is new there. */
std::vector<const char *> transports()
{
    if (std::getenv("DSC_VM") != nullptr)
        return { "verbs" };
    return and_net_plugin({ "loopback", "shm", "tcp" });
}

INSTANTIATE_TEST_SUITE_P(, Every, testing::ValuesIn(transports()),
                         [](const auto &p) { return std::string(p.param); });

/* Only the owner sees a sum that is not finite; everybody keeps r for its 256 elements. */
TEST(ReduceScatter, SendersHearOfWhatIsNotFinite)
{
    const int n = 3;
    const size_t count = 1000, bad = 2 * count + 300; /* in the share of rank 2, second run */
    World w(n);

    w.each([&](int r) {
        Floats in(count * n), out(count), before(in.size()), after(in.size());
        dscomm_feedback_t *fb = nullptr;

        ASSERT_EQ(dscomm_feedback_create(in.size(), nullptr, &fb), DSCOMM_OK);
        for (int call = 0; call < 2; call++) {
            for (size_t i = 0; i < in.size(); i++)
                in[i] = (float)std::sin((double)(i * (size_t)(r + 2)) + call);
            if (call == 1 && r == 0)
                in[bad] = INFINITY;
            ASSERT_EQ(dscomm_feedback_read(fb, 0, in.size(), before.data()), DSCOMM_OK);
            ASSERT_EQ(dscomm_reduce_scatter_compressed(in.data(), out.data(), count, DSCOMM_FLOAT32,
                                                       DSCOMM_SUM, dscomm_codec("bf16"), fb,
                                                       w.comms[(size_t)r], nullptr),
                      DSCOMM_OK);
        }
        ASSERT_EQ(dscomm_feedback_read(fb, 0, in.size(), after.data()), DSCOMM_OK);
        for (size_t i = 2 * count; i < 3 * count; i++) {
            const bool kept = i >= 2 * count + 256 && i < 2 * count + 512;

            if (kept) {
                EXPECT_EQ(before[i], after[i]) << "rank " << r << " element " << i;
            }
        }
        if (r != 2) {
            EXPECT_NE(Floats(before.begin() + 2 * count, before.begin() + 2 * count + 256),
                      Floats(after.begin() + 2 * count, after.begin() + 2 * count + 256));
        }
        EXPECT_EQ(stats_of(w.comms[(size_t)r]).nonfinite_elems, r == 2 ? 1u : 0u);
        dscomm_feedback_destroy(fb);
    });
}

/* ---- arguments ---- */

TEST(EveryArgument, IsChecked)
{
    World w(2);

    for (const auto &c : collectives())
        w.each([&](int r) {
            dscomm_comm_t *const comm = w.comms[(size_t)r];
            const auto *const codec = dscomm_codec("int8");
            Floats a(400, 1.0f), b(400);
            dscomm_feedback_t *fb = nullptr;
            const auto call = [&](const void *send, void *recv, size_t count, int dtype,
                                  dscomm_feedback_t *f) {
                return c.call({ send, recv, count, (dscomm_dtype_t)dtype, DSCOMM_SUM, codec, f,
                                comm, nullptr });
            };
            const auto names = [&](const char *what) {
                EXPECT_NE(std::string(dscomm_last_error()).find(what), std::string::npos)
                    << c.name << ": " << dscomm_last_error();
            };
            /* in the middle of the longer vector, but not where in-place wants it */
            float *const inside = a.data() + 1;

            ASSERT_EQ(dscomm_feedback_create(77, nullptr, &fb), DSCOMM_OK);
            const bool sends = r == 0 || std::string(c.name) != "broadcast"; /* the root alone */

            if (sends) {
                EXPECT_EQ(call(nullptr, b.data(), 100, 0, nullptr), DSCOMM_ERR_INVALID);
                names("send is NULL");
                EXPECT_EQ(call(a.data(), inside, 100, 0, nullptr), DSCOMM_ERR_INVALID);
                names("overlap");
                EXPECT_EQ(call((uint8_t *)a.data() + 2, b.data(), 100, 0, nullptr),
                          DSCOMM_ERR_INVALID);
                names("not aligned to its 4-byte elements");
            }
            EXPECT_EQ(call(a.data(), nullptr, 100, 0, nullptr), DSCOMM_ERR_INVALID);
            names("recv is NULL");
            EXPECT_EQ(call(a.data(), b.data(), 100, 7, nullptr), DSCOMM_ERR_INVALID);
            names("dtype 7, must be");
            if (c.takes_feedback) {
                EXPECT_EQ(call(a.data(), b.data(), 100, 0, fb), DSCOMM_ERR_INVALID);
                names("of 77 elements");
                names(std::to_string(c.send_count(100, 2)).c_str());
            }
            EXPECT_EQ(call(a.data(), b.data(), SIZE_MAX, 0, nullptr), DSCOMM_ERR_INVALID);
            names("count 18446744073709551615, at most");
            EXPECT_EQ(call(a.data(), b.data(), 100, 0, nullptr), DSCOMM_OK) << dscomm_last_error();
            dscomm_feedback_destroy(fb);
        });
}

/* What top-k leaves out counts as 0 in a sum; where nothing is summed it would be a wrong value. */
TEST(EveryArgument, TopKIsForSumsAndTheirHalves)
{
    World w(2);

    for (const auto &c : collectives())
        for (const char *spec : { "topk:0.01", "topk:k=65536,int8" })
            for (size_t count : { 0, 300 })
                w.each([&](int r) {
                    const Floats in(600, 1.0f);
                    Floats out(600, 5.0f);
                    const auto st =
                        c.call({ in.data(), out.data(), count, DSCOMM_FLOAT32, DSCOMM_SUM,
                                 dscomm_codec(spec), nullptr, w.comms[(size_t)r], nullptr });

                    ASSERT_EQ(st, c.is_of_sums ? DSCOMM_OK : DSCOMM_ERR_INVALID) << c.name;
                    if (c.is_of_sums)
                        return;
                    for (const char *text : { c.name, spec, "for allreduce, reduce_scatter and" })
                        EXPECT_NE(std::string(dscomm_last_error()).find(text), std::string::npos)
                            << dscomm_last_error();
                    EXPECT_EQ(out, Floats(600, 5.0f));
                });
}

TEST(EveryArgument, CodecsThatTheOperationOrFeedbackForbids)
{
    World w(2);

    for (const auto &c : collectives())
        w.each([&](int r) {
            const Floats in(600, 1.0f);
            Floats out(600, 5.0f);
            dscomm_feedback_t *fb = nullptr;
            const auto call = [&](const char *spec, dscomm_op_t op, dscomm_feedback_t *f) {
                return c.call({ in.data(), out.data(), 300, DSCOMM_FLOAT32, op, dscomm_codec(spec),
                                f, w.comms[(size_t)r], nullptr });
            };

            ASSERT_EQ(dscomm_feedback_create(c.send_count(300, 2), nullptr, &fb), DSCOMM_OK);
            if (c.takes_feedback) {
                EXPECT_EQ(call("int4,sr", DSCOMM_SUM, fb), DSCOMM_ERR_INVALID) << c.name;
                EXPECT_NE(std::string(dscomm_last_error()).find("leave out ,sr"),
                          std::string::npos);
            }
            if (c.reduces) {
                EXPECT_EQ(call("topk:0.01", DSCOMM_MAX, nullptr), DSCOMM_ERR_INVALID) << c.name;
                EXPECT_NE(std::string(dscomm_last_error()).find("sum and avg alone"),
                          std::string::npos);
            }
            EXPECT_EQ(out, Floats(600, 5.0f));
            EXPECT_EQ(call("int4,sr", DSCOMM_SUM, nullptr), DSCOMM_OK) << dscomm_last_error();
            dscomm_feedback_destroy(fb);
        });
}

TEST(Broadcast, RootIsCheckedAndMayBeAnyRank)
{
    World w(3);

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];

        for (int root : { -1, 3 }) {
            float x = 1.0f;

            EXPECT_EQ(dscomm_broadcast(&x, &x, 1, DSCOMM_FLOAT32, root, nullptr, comm, nullptr),
                      DSCOMM_ERR_INVALID);
            EXPECT_NE(std::string(dscomm_last_error()).find("must be 0 to 2"), std::string::npos);
        }
        for (int root : { 0, 1, 2 }) {
            const Floats mine(5000, (float)root + 0.5f);
            Floats out(5000);

            ASSERT_EQ(dscomm_broadcast(r == root ? mine.data() : nullptr, out.data(), 5000,
                                       DSCOMM_FLOAT32, root, nullptr, comm, nullptr),
                      DSCOMM_OK)
                << dscomm_last_error();
            EXPECT_EQ(out, mine);
        }
    });
}

} // namespace
