/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nothing fails in silence: ranks that disagree, messages that are lost or damaged, ranks that die
 * or never call. Every rank gets an error within a bounded time that names what is wrong, and the
 * residual is as it was.
 */
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <cstring>

#include "support/collectives.h"
#include "support/transports.h"
#include "support/world.h"

#include "support/internal_begin.h"
#include "transport/transport.h"
#include "support/internal_end.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start)
{
    return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Args {
    size_t collective = 0; /* of all_collectives() */
    int root = 0;
    size_t count = 1000;
    dscomm_dtype_t dtype = DSCOMM_FLOAT32;
    dscomm_op_t op = DSCOMM_SUM;
    const char *codec = "int8";
    bool feedback = false;
};

struct Outcome {
    dscomm_status_t status;
    std::string text;
    double seconds;
};

Outcome call(dscomm_comm_t *comm, const Args &a)
{
    const auto start = Clock::now();
    const Collective coll = all_collectives()[a.collective];
    const size_t sent = coll.send_count(a.count, dscomm_comm_n_ranks(comm));
    std::vector<float> in(sent + 1, 1.0f),
        out(coll.recv_count(a.count, dscomm_comm_n_ranks(comm)) + 1);
    dscomm_feedback_t *fb = nullptr;
    Outcome o;

    if (a.feedback) {
        EXPECT_EQ(dscomm_feedback_create(sent, nullptr, &fb), DSCOMM_OK);
    }
    o.status = coll.call({ in.data(), out.data(), a.count, a.dtype, a.op, dscomm_codec(a.codec), fb,
                           comm, nullptr, a.root });
    o.text = dscomm_last_error();
    o.seconds = seconds_since(start);
    dscomm_feedback_destroy(fb);
    return o;
}

/* Calls that succeed before the one that does not: they decide who is connected by then. */
using WarmUp = std::vector<Args>;

/* Rank `odd` calls with other arguments than the rest. */
void expect_mismatch(int n, const char *transport, const char *algorithm, int odd, const Args &most,
                     const Args &other, const char *field, const char *value, const char *odd_value,
                     const WarmUp &warm_up = { Args() })
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
    std::vector<Outcome> outcomes((size_t)n);

    config.algorithm = algorithm;
    config.timeout_ms = 5000;
    World w(n, transport, config);

    for (const Args &a : warm_up)
        w.each([&](int r) { EXPECT_EQ(call(w.comms[(size_t)r], a).status, DSCOMM_OK); });
    w.each([&](int r) {
        outcomes[(size_t)r] = call(w.comms[(size_t)r], r == odd ? other : most);
        EXPECT_EQ(dscomm_comm_async_error(w.comms[(size_t)r], nullptr), DSCOMM_ERR_MISMATCH);
        EXPECT_EQ(call(w.comms[(size_t)r], most).status, DSCOMM_ERR_BAD_STATE); /* refuses */
    });
    for (const auto &o : outcomes) {
        EXPECT_EQ(o.status, DSCOMM_ERR_MISMATCH) << transport << " " << field << ": " << o.text;
        EXPECT_NE(o.text.find(field), std::string::npos) << o.text;
        EXPECT_NE(o.text.find(value), std::string::npos) << o.text;
        EXPECT_NE(o.text.find(odd_value), std::string::npos) << o.text;
        EXPECT_LT(o.seconds, 2.5);
    }
}

class Mismatch : public testing::TestWithParam<const char *> {};

TEST_P(Mismatch, D14_NamesFieldAndBothValuesOnEveryRank)
{
    for (int n : { 2, 3, 4 }) {
        Args a, b;

        b.count = 998;
        expect_mismatch(n, GetParam(), "auto", 1, a, b, "count", "1000", "998");
        b = a;
        b.dtype = DSCOMM_FLOAT16;
        expect_mismatch(n, GetParam(), "auto", n - 1, a, b, "dtype", "fp32", "fp16");
        b = a;
        b.op = DSCOMM_MAX;
        expect_mismatch(n, GetParam(), "twoshot", 0, a, b, "op", "sum", "max");
        b = a;
        b.codec = "bf16";
        expect_mismatch(n, GetParam(), "twoshot", 1, a, b, "codec", "int8", "bf16");
        a.codec = "int8:block=128";
        b.codec = "int8:block=64";
        expect_mismatch(n, GetParam(), "twoshot", 1, a, b, "codec", "block=128", "block=64");
        b = a;
        b.feedback = true;
        expect_mismatch(n, GetParam(), "auto", 0, a, b, "feedback", "has 0", "has 1");
    }
}

TEST_P(Mismatch, D14_OfEveryCollective)
{
    const auto all = all_collectives();

    for (size_t k = 1; k < all.size(); k++) {
        Args a, b;

        a.collective = k;
        b = a;
        b.count = 998;
        expect_mismatch(3, GetParam(), "auto", 1, a, b, "count", "1000", "998");
        b.count = 0;
        expect_mismatch(3, GetParam(), "auto", 2, a, b, "count", "1000", "has 0");
        b = a;
        b.dtype = DSCOMM_BFLOAT16;
        expect_mismatch(3, GetParam(), "auto", 0, a, b, "dtype", "fp32", "bf16");
        b = a;
        b.codec = "fp8";
        expect_mismatch(4, GetParam(), "auto", 1, a, b, "codec", "int8", "fp8");
        if (all[k].takes_feedback) {
            b = a;
            b.feedback = true;
            expect_mismatch(3, GetParam(), "auto", 1, a, b, "feedback", "has 0", "has 1");
        }
        b = a;
        b.collective = k - 1;
        expect_mismatch(3, GetParam(), "auto", 2, a, b, "collective", all[k].name, all[k - 1].name);
        expect_mismatch(2, GetParam(), "auto", 0, a, b, "collective", all[k].name, all[k - 1].name);
    }
}

/* Both take themselves, or each other, for the root; with few elements there is one piece only. */
TEST_P(Mismatch, D14_RootOfABroadcast)
{
    const auto all = all_collectives();
    Args a, b;

    while (std::string(all[a.collective].name) != "broadcast")
        a.collective++;
    for (size_t count : { 1, 1000, 100000 })
        for (int n : { 2, 3, 4 })
            for (int odd : { 0, 1, n - 1 }) {
                a.count = count;
                b = a;
                b.root = n - 1;
                expect_mismatch(n, GetParam(), "auto", odd, a, b, "root", "has 0",
                                ("has " + std::to_string(n - 1)).c_str());
            }
}

TEST_P(Mismatch, D14_CountsWhosePlansUseDifferentPeers)
{
    Args big, none, one;

    big.count = 100000;
    none.count = 0;
    one.count = 1; /* only its owner, the last rank, is a peer */
    for (const WarmUp &warm_up : { WarmUp{ Args() }, WarmUp{}, WarmUp{ one } }) {
        const auto expect = [&](int n, const char *algorithm, int odd, const Args &most,
                                const Args &other, const char *value, const char *odd_value) {
            expect_mismatch(n, GetParam(), algorithm, odd, most, other, "count", value, odd_value,
                            warm_up);
        };

        expect(3, "twoshot", 1, big, none, "100000", "has 0");
        expect(4, "twoshot", 2, none, big, "has 0", "100000");
        for (int odd : { 0, 1, 3 }) {
            expect(4, "twoshot", odd, big, one, "100000", "has 1");
            expect(4, "twoshot", odd, one, big, "has 1", "100000");
        }
        expect(7, "twoshot", 2, one, big, "has 1", "100000");
        expect(12, "oneshot", 5, big, one, "100000", "has 1");
    }
}

TEST_P(Mismatch, ARankThatMissedACall)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.timeout_ms = 1500;
    World w(2, GetParam(), config);
    std::vector<Outcome> outcomes(2);
    Args a;

    w.each([&](int r) { call(w.comms[(size_t)r], a); });
    w.each([&](int r) {
        if (r == 1) {
            outcomes[1] = call(w.comms[1], a); /* one call; rank 0 makes two */
            return;
        }
        call(w.comms[0], a);
        outcomes[0] = call(w.comms[0], a);
    });
    EXPECT_EQ(outcomes[1].status, DSCOMM_OK);
    EXPECT_EQ(outcomes[0].status, DSCOMM_ERR_TIMEOUT) << outcomes[0].text;
    EXPECT_NE(outcomes[0].text.find("rank 1"), std::string::npos) << outcomes[0].text;
    EXPECT_GE(outcomes[0].seconds, 1.4);
    EXPECT_LT(outcomes[0].seconds, 2.5);
}

/* Whose deadline passes first is chance; the one that does not answer is named by all. */
TEST_P(Mismatch, ASilentRankIsNamedByAll)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.timeout_ms = 700;
    config.algorithm = "twoshot";
    World w(6, GetParam(), config);
    std::vector<Outcome> outcomes(6);
    Args a;

    a.count = 100000;
    w.each([&](int r) { call(w.comms[(size_t)r], a); });
    w.each([&](int r) {
        if (r != 3)
            outcomes[(size_t)r] = call(w.comms[(size_t)r], a);
    });
    for (int r : { 0, 1, 2, 4, 5 }) {
        EXPECT_EQ(outcomes[(size_t)r].status, DSCOMM_ERR_TIMEOUT) << outcomes[(size_t)r].text;
        EXPECT_NE(outcomes[(size_t)r].text.find("for rank 3"), std::string::npos)
            << outcomes[(size_t)r].text;
        EXPECT_LT(outcomes[(size_t)r].seconds, 2.0);
    }
}

TEST_P(Mismatch, AbortEndsTheCallOnAllRanks)
{
    World w(3, GetParam());
    std::vector<Outcome> outcomes(3);

    w.each([&](int r) { call(w.comms[(size_t)r], Args()); });
    w.each([&](int r) {
        if (r == 2) { /* does not call, but aborts */
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            EXPECT_EQ(dscomm_comm_abort(w.comms[0]), DSCOMM_OK);
            return;
        }
        outcomes[(size_t)r] = call(w.comms[(size_t)r], Args());
    });
    for (int r : { 0, 1 }) {
        EXPECT_EQ(outcomes[(size_t)r].status, DSCOMM_ERR_ABORTED) << outcomes[(size_t)r].text;
        EXPECT_LT(outcomes[(size_t)r].seconds, 1.2);
        EXPECT_GE(outcomes[(size_t)r].seconds, 0.15);
    }
}

TEST_P(Mismatch, ARankThatLeavesIsNamed)
{
    World w(3, GetParam());
    std::vector<Outcome> outcomes(3);

    w.each([&](int r) { call(w.comms[(size_t)r], Args()); });
    w.each([&](int r) {
        if (r == 1) {
            dscomm_comm_destroy(w.comms[1]);
            w.comms[1] = nullptr;
            return;
        }
        outcomes[(size_t)r] = call(w.comms[(size_t)r], Args());
    });
    for (int r : { 0, 2 }) {
        EXPECT_EQ(outcomes[(size_t)r].status, DSCOMM_ERR_PEER_LOST) << outcomes[(size_t)r].text;
        EXPECT_NE(outcomes[(size_t)r].text.find("rank 1"), std::string::npos);
        EXPECT_LT(outcomes[(size_t)r].seconds, 1.0);
    }
}

INSTANTIATE_TEST_SUITE_P(, Mismatch,
                         testing::ValuesIn(and_net_plugin({ "loopback", "shm", "tcp" })),
                         [](const auto &p) { return std::string(p.param); });

/* ---- injected faults ---- */

struct Fault : testing::Test {
    void TearDown() override
    {
        set(DSC_FAULT_NONE, -1, -1);
    }
    static void set(dsc_fault_kind kind, int rank, int64_t nth, int delay_ms = 0)
    {
        dsc_fault fault = {};

        fault.kind = kind;
        fault.rank = rank;
        fault.nth = nth;
        fault.delay_ms = delay_ms;
        dsc_loopback_set_fault(&fault);
    }
};

struct FaultRun {
    std::vector<Outcome> outcomes;
    bool inputs_kept = true;
};

/* The residual, and behind it the momentum. */
std::vector<float> all_of(dscomm_feedback_t *fb, float momentum)
{
    const size_t n = dscomm_feedback_count(fb);
    std::vector<float> values(momentum > 0.0f ? 2 * n : n);

    EXPECT_EQ(dscomm_feedback_read(fb, 0, n, values.data()), DSCOMM_OK);
    if (momentum > 0.0f) {
        EXPECT_EQ(dscomm_feedback_read_momentum(fb, 0, n, values.data() + n), DSCOMM_OK);
    }
    return values;
}

/* Two good calls with feedback, then one with the fault, in place with preserve_input. */
FaultRun run_with_fault(dsc_fault_kind kind, int64_t nth, int timeout_ms, float momentum = 0.0f)
{
    const size_t n = 40000;
    const auto *const codec = dscomm_codec(momentum > 0.0f ? "topk:0.01" : "int8");
    dscomm_feedback_config_t feedback_config = DSCOMM_FEEDBACK_CONFIG_INIT;
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
    FaultRun run;

    config.timeout_ms = timeout_ms;
    config.chunk_bytes = momentum > 0.0f ? 1 << 18 : 4096;
    config.preserve_input = 1;
    feedback_config.momentum = momentum;
    World w(3, "loopback", config);

    run.outcomes.resize(3);
    std::vector<dscomm_feedback_t *> fbs(3);
    std::vector<std::vector<float>> before(3, std::vector<float>(n)), after(before), data(before);

    w.each([&](int r) {
        for (size_t i = 0; i < n; i++)
            data[(size_t)r][i] = (float)std::sin(1.0 + (double)i * (r + 1));
        std::vector<float> out(n);

        ASSERT_EQ(dscomm_feedback_create(n, &feedback_config, &fbs[(size_t)r]), DSCOMM_OK);
        for (int k = 0; k < 2; k++)
            ASSERT_EQ(dscomm_allreduce_compressed(data[(size_t)r].data(), out.data(), n,
                                                  DSCOMM_FLOAT32, DSCOMM_SUM, codec, fbs[(size_t)r],
                                                  w.comms[(size_t)r], nullptr),
                      DSCOMM_OK);
        before[(size_t)r] = all_of(fbs[(size_t)r], momentum);
    });
    Fault::set(kind, 1, nth, 300);
    w.each([&](int r) {
        const auto start = Clock::now();
        const auto copy = data[(size_t)r];
        Outcome &o = run.outcomes[(size_t)r];

        o.status = dscomm_allreduce_compressed(data[(size_t)r].data(), data[(size_t)r].data(), n,
                                               DSCOMM_FLOAT32, DSCOMM_SUM, codec, fbs[(size_t)r],
                                               w.comms[(size_t)r], nullptr);
        o.text = dscomm_last_error();
        o.seconds = seconds_since(start);
        after[(size_t)r] = all_of(fbs[(size_t)r], momentum);
        if (o.status != DSCOMM_OK) {
            EXPECT_EQ(before[(size_t)r], after[(size_t)r]) << "residual of rank " << r;
            EXPECT_EQ(data[(size_t)r], copy) << "input of rank " << r;
        }
        dscomm_feedback_destroy(fbs[(size_t)r]);
    });
    return run;
}

TEST_F(Fault, ADroppedMessageIsADeadlineThatNamesTheRank)
{
    for (int64_t nth : { 0, 7, 20 }) {
        const auto run = run_with_fault(DSC_FAULT_DROP, nth, 1000);
        bool named = false;

        for (const auto &o : run.outcomes) { /* who does not need the message may finish */
            EXPECT_TRUE(o.status == DSCOMM_ERR_TIMEOUT || o.status == DSCOMM_OK) << o.text;
            EXPECT_LT(o.seconds, 2.5);
            named = named || (o.status == DSCOMM_ERR_TIMEOUT &&
                              o.text.find("for rank 1") != std::string::npos);
        }
        EXPECT_TRUE(named) << nth;
    }
}

TEST_F(Fault, MomentumStaysAsItWas)
{
    int n_failed = 0;

    for (int64_t nth : { 0, 1, 3 })
        for (const auto &o : run_with_fault(DSC_FAULT_DROP, nth, 500, 0.9f).outcomes)
            n_failed += o.status != DSCOMM_OK;
    EXPECT_GE(n_failed, 3);
}

TEST_F(Fault, ADamagedMessageIsNoticed)
{
    const auto run = run_with_fault(DSC_FAULT_CORRUPT, 3, 5000);

    for (const auto &o : run.outcomes) {
        EXPECT_LT(o.status, 0);
        EXPECT_LT(o.seconds, 2.5);
    }
}

TEST_F(Fault, AKilledRankIsNamedWithinASecond)
{
    const auto run = run_with_fault(DSC_FAULT_KILL, 5, 5000);

    for (int r : { 0, 2 }) {
        EXPECT_EQ(run.outcomes[(size_t)r].status, DSCOMM_ERR_PEER_LOST)
            << run.outcomes[(size_t)r].text;
        EXPECT_NE(run.outcomes[(size_t)r].text.find("rank 1"), std::string::npos);
        EXPECT_LT(run.outcomes[(size_t)r].seconds, 1.0);
    }
}

TEST_F(Fault, ADelayedMessageChangesNothing)
{
    const auto run = run_with_fault(DSC_FAULT_DELAY, 4, 5000);

    for (const auto &o : run.outcomes)
        EXPECT_EQ(o.status, DSCOMM_OK) << o.text;
}

/* ---- arguments: found before anything is touched, the communicator stays usable ---- */

TEST(Arguments, AreCheckedAndNamed)
{
    World w(2);

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        dscomm_feedback_t *fb = nullptr;
        std::vector<float> a(100, 1.0f), b(100);
        const auto *const int8 = dscomm_codec("int8");
        const auto reduce = [&](const void *send, void *recv, size_t n, int dtype, int op,
                                dscomm_feedback_t *f) {
            return dscomm_allreduce_compressed(send, recv, n, (dscomm_dtype_t)dtype,
                                               (dscomm_op_t)op, int8, f, comm, nullptr);
        };
        const auto names = [](const char *what) {
            return std::string(dscomm_last_error()).find(what) != std::string::npos;
        };

        ASSERT_EQ(dscomm_feedback_create(99, nullptr, &fb), DSCOMM_OK);
        EXPECT_EQ(reduce(nullptr, b.data(), 100, 0, 0, nullptr), DSCOMM_ERR_INVALID);
        EXPECT_TRUE(names("send is NULL"));
        EXPECT_EQ(reduce(a.data(), nullptr, 100, 0, 0, nullptr), DSCOMM_ERR_INVALID);
        EXPECT_TRUE(names("recv is NULL"));
        EXPECT_EQ(reduce(a.data(), a.data() + 1, 99, 0, 0, nullptr), DSCOMM_ERR_INVALID);
        EXPECT_TRUE(names("overlap"));
        EXPECT_EQ(reduce(a.data(), b.data(), 100, 7, 0, nullptr), DSCOMM_ERR_INVALID);
        EXPECT_TRUE(names("dtype 7"));
        EXPECT_EQ(reduce(a.data(), b.data(), 100, 0, 9, nullptr), DSCOMM_ERR_INVALID);
        EXPECT_TRUE(names("op 9"));
        EXPECT_EQ(reduce(a.data(), b.data(), 100, 0, DSCOMM_MAX, fb), DSCOMM_ERR_INVALID);
        EXPECT_TRUE(names("max"));
        EXPECT_EQ(reduce(a.data(), b.data(), 100, 0, 0, fb), DSCOMM_ERR_INVALID);
        EXPECT_TRUE(names("99") && names("100"));
        EXPECT_EQ(reduce(a.data(), b.data(), SIZE_MAX, 0, 0, nullptr), DSCOMM_ERR_INVALID);
        EXPECT_EQ(dscomm_allreduce_compressed(a.data(), b.data(), 1, DSCOMM_FLOAT32, DSCOMM_SUM,
                                              int8, nullptr, nullptr, nullptr),
                  DSCOMM_ERR_INVALID);
        EXPECT_EQ(reduce(a.data(), b.data(), 100, 0, 0, nullptr), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(b[50], 2.0f);
        dscomm_feedback_destroy(fb);
    });
}

} // namespace
