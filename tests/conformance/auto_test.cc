/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codec auto: all ranks choose the same, whatever they measured, see and are, and change it in the
 * same call.
 */
#include "conformance/field_support.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>

#include "dscomm/tuner.h"

#include "support/internal_begin.h"
#include "comm/comm.h"
#include "support/internal_end.h"

namespace {

constexpr uint64_t bad_from = 300, slow_from = 700; /* calls; slow ones go on */

/* ---- what differs from rank to rank ---- */

struct Rank {
    const dscomm_comm_t *comm;
    int rank;
    std::mt19937 random;
    uint64_t bytes_per_s = 20000000;
};

/* Slow links, on which small vectors too are worth compressing. */
void rates_of(void *user, dsc_rates *rates)
{
    auto *const me = static_cast<Rank *>(user);
    const auto worse = (uint32_t)me->rank;
    size_t n = 0;
    const char *const *specs = dsc_tuner_specs(&n);
    std::vector<std::string> all(specs, specs + n);

    memset(rates, 0, sizeof(*rates));
    all.push_back("fp32");
    rates->version = DSC_RATES_VERSION;
    rates->n_tiers = (uint32_t)me->comm->tiers.n_tiers;
    for (uint32_t t = 0; t < rates->n_tiers; t++) {
        dsc_tier_rates &tier = rates->tiers[t];

        tier.kind = (uint32_t)me->comm->tiers.kinds[t];
        tier.message_ns = 1000 + 100 * worse;
        tier.latency_ns = 5000 + 1000 * worse;
        tier.bytes_per_s = tier.bytes_per_s_alone = me->bytes_per_s - 100000 * worse;
        tier.byte_fs = 100000;
    }
    for (const std::string &spec : all)
        for (uint8_t feedback = 0; feedback < 2; feedback++) {
            dsc_codec_speed &speed = rates->speeds[rates->n_speeds++];

            snprintf(speed.spec, sizeof(speed.spec), "%s", spec.c_str());
            speed.feedback = feedback;
            speed.send_fs = speed.add_fs = speed.own_fs = speed.decode_fs = 500000 + 10000 * worse;
        }
    rates->cpus_per_host = 64;
    rates->ranks_per_host = 1;
    rates->call_ns = 10000;
    rates->op_ns = 500;
    rates->overlap = 1;
}

/* What ranks have seen is true of each alone: their clocks run differently, one sees errors. */
uint32_t note_of(void *user, uint64_t call, uint32_t own)
{
    auto *const me = static_cast<Rank *>(user);
    dsc_note note = dsc_note_unpack(own);

    note.ns_per_kib = note.ns_per_kib * (uint64_t)(2 + me->rank) / 2;
    if (call >= bad_from && call < bad_from + 12)
        note.error_ppm = me->rank == 2 ? 500000 : note.error_ppm;
    if (call >= slow_from) {
        note.wait_ppm = 900000;
        note.ns_per_kib = 20000000 + me->random() % 1000000;
    }
    return dsc_note_pack(&note);
}

/* ---- calls, and what a rank has to say of them ---- */

constexpr int n_shapes = 3;
constexpr size_t counts[n_shapes] = { 300, 2000, 4096 };

struct Said {
    uint64_t n_calls, used; /* used: hash of the codecs, call by call */
    uint32_t version;
    uint64_t n_events;
    dsc_guard_event events[DSC_GUARD_EVENTS];
};

void make_calls(Rank &me, dscomm_comm_t *comm, uint64_t n_calls, Said &said)
{
    Floats v(counts[n_shapes - 1]), out(v.size());
    dscomm_feedback_t *fb = nullptr;

    comm->rates_fn = rates_of;
    comm->note_fn = note_of;
    comm->test_user = &me;
    ASSERT_EQ(dscomm_feedback_create(counts[1], nullptr, &fb), DSCOMM_OK);
    for (float &x : v)
        x = (float)(me.random() % 1000) - 500;
    for (uint64_t call = 0; call < n_calls; call++) {
        const size_t shape = call % n_shapes;
        dscomm_call_stats_t stats = {};

        if (me.random() % 200 == 0)
            usleep(me.random() % 300);
        ASSERT_EQ(dscomm_allreduce_compressed(v.data(), out.data(), counts[shape], DSCOMM_FLOAT32,
                                              DSCOMM_SUM, dscomm_codec("auto"),
                                              shape == 1 ? fb : nullptr, comm, nullptr),
                  DSCOMM_OK)
            << dscomm_last_error();
        stats.struct_bytes = sizeof(stats);
        ASSERT_EQ(dscomm_comm_last_call(comm, &stats), DSCOMM_OK);
        said.used = said.used * 31 + dsc_hash_text(stats.codec);
        said.n_calls++;
    }
    const dsc_guard *const guard = dsc_auto_guard(comm);

    said.version = guard->version;
    said.n_events = guard->n_events;
    for (uint64_t i = 0; i < guard->n_events && i < DSC_GUARD_EVENTS; i++)
        said.events[i] = *dsc_guard_at(guard, i);
    dscomm_feedback_destroy(fb);
}

bool any_event(const Said &said, const char *text)
{
    for (const dsc_guard_event &event : said.events)
        if (strstr(event.text, text) != nullptr)
            return true;
    return false;
}

void expect_alike(const Said *said, int n, uint64_t n_calls)
{
    for (int r = 0; r < n; r++) {
        EXPECT_EQ(said[r].n_calls, n_calls) << r;
        EXPECT_EQ(said[r].used, said[0].used) << r;
        EXPECT_EQ(said[r].version, said[0].version) << r;
        ASSERT_EQ(said[r].n_events, said[0].n_events) << r;
        for (size_t i = 0; i < DSC_GUARD_EVENTS; i++) {
            EXPECT_EQ(said[r].events[i].call, said[0].events[i].call) << r;
            EXPECT_STREQ(said[r].events[i].text, said[0].events[i].text) << r;
        }
    }
    EXPECT_GE(said[0].version, 2u);
    EXPECT_LT(said[0].n_events, DSC_GUARD_EVENTS) << "some are lost";
    EXPECT_TRUE(any_event(said[0], "int8 banned from call 352 on"));
    EXPECT_TRUE(any_event(said[0], "wire times of the slowest tier x"));
    EXPECT_TRUE(any_event(said[0], "count 4096 fp32 sum: int8"));
}

/* ---- processes: their CPUs and environments differ too. First: a child must find kernels and
 * environment not yet looked at. ---- */

struct Shared {
    std::atomic<int> id_ready;
    dscomm_unique_id_t id;
    Said said[4];
};

void be_rank(Shared *shared, int n, int rank, uint64_t n_calls)
{
    static const char *const masks[] = { "0", "1", "3", "4294967295" };
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
    dscomm_comm_t *comm = nullptr;

    setenv("DSCOMM_CPU_MASK", masks[rank], 1);
    setenv("DSCOMM_SPIN_US", rank % 2 == 0 ? "0" : "50", 1);
    setenv("DSCOMM_THREADS", rank == 3 ? "2" : "1", 1);
    config.transport = "tcp";
    config.timeout_ms = 30000;
    if (rank == 0) {
        ASSERT_EQ(dscomm_unique_id_create(&shared->id), DSCOMM_OK);
        shared->id_ready = 1;
    }
    while (shared->id_ready == 0)
        usleep(1000);
    ASSERT_EQ(dscomm_comm_create(n, rank, &shared->id, &config, &comm), DSCOMM_OK)
        << dscomm_last_error();
    Rank me = { comm, rank, std::mt19937((unsigned)rank) };

    make_calls(me, comm, n_calls, shared->said[rank]);
    dscomm_comm_destroy(comm);
}

TEST(AutoProcesses, RanksDecideAlike)
{
    constexpr int n = 4;
    constexpr uint64_t n_calls = 1500;
    auto *const shared = static_cast<Shared *>(
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    std::vector<pid_t> pids;

    ASSERT_NE(shared, MAP_FAILED);
    for (int r = 0; r < n; r++) {
        const pid_t pid = fork();

        if (pid == 0) {
            alarm(60);
            be_rank(shared, n, r, n_calls);
            _exit(HasFailure() ? 1 : 0);
        }
        pids.push_back(pid);
    }
    for (const pid_t pid : pids) {
        int status = -1;

        waitpid(pid, &status, 0);
        EXPECT_EQ(status, 0);
    }
    expect_alike(shared->said, n, n_calls);
    munmap(shared, sizeof(Shared));
}

/* ---- threads: many calls ---- */

TEST(Auto, RanksDecideAlike)
{
    constexpr int n = 5;
    constexpr uint64_t n_calls = 10000;
    World w(n);
    std::vector<Said> said(n);

    ASSERT_TRUE(w.ok());
    w.each([&](int r) {
        Rank me = { w.comms[(size_t)r], r, std::mt19937((unsigned)r) };

        make_calls(me, w.comms[(size_t)r], n_calls, said[(size_t)r]);
    });
    expect_alike(said.data(), n, n_calls);
}

/* ---- ways to call ---- */

/* Ranks with slow links, that compress whatever they may. */
struct Slow {
    World w;
    std::vector<Rank> ranks;

    explicit Slow(int n) : w(n)
    {
        for (int r = 0; r < n; r++)
            ranks.push_back({ w.comms[(size_t)r], r, std::mt19937((unsigned)r) });
        for (int r = 0; r < n; r++) {
            w.comms[(size_t)r]->rates_fn = rates_of;
            w.comms[(size_t)r]->test_user = &ranks[(size_t)r];
        }
    }
};

std::string codec_of_last(const dscomm_comm_t *comm)
{
    dscomm_call_stats_t stats = {};

    stats.struct_bytes = sizeof(stats);
    EXPECT_EQ(dscomm_comm_last_call(comm, &stats), DSCOMM_OK) << dscomm_last_error();
    return stats.codec;
}

dscomm_status_t reduce_with(const char *spec, Floats &v, Floats &out, dscomm_comm_t *comm,
                            dscomm_feedback_t *fb = nullptr, dscomm_stream_t *stream = nullptr)
{
    return dscomm_allreduce_compressed(v.data(), out.data(), v.size(), DSCOMM_FLOAT32, DSCOMM_SUM,
                                       dscomm_codec(spec), fb, comm, stream);
}

TEST(Auto, KeepsToItsBudget)
{
    Slow s(3);

    ASSERT_TRUE(s.w.ok());
    s.w.each([&](int r) {
        dscomm_comm_t *const comm = s.w.comms[(size_t)r];
        dscomm_feedback_t *fb = nullptr;
        Floats v(40000, 1.0f), out(40000);

        ASSERT_EQ(dscomm_feedback_create(v.size(), nullptr, &fb), DSCOMM_OK);
        ASSERT_EQ(reduce_with("auto:exact", v, out, comm), DSCOMM_OK) << dscomm_last_error();
        EXPECT_TRUE(codec_of_last(comm) == "none" || codec_of_last(comm) == "lossless");
        ASSERT_EQ(reduce_with("auto:high", v, out, comm), DSCOMM_OK);
        EXPECT_EQ(codec_of_last(comm), "bf16");
        ASSERT_EQ(reduce_with("auto", v, out, comm), DSCOMM_OK);
        EXPECT_EQ(codec_of_last(comm), "int8");
        ASSERT_EQ(reduce_with("auto:aggressive", v, out, comm), DSCOMM_OK);
        EXPECT_NE(codec_of_last(comm), "int8");
        EXPECT_NE(codec_of_last(comm).substr(0, 4), "topk") << "not without feedback";
        ASSERT_EQ(reduce_with("auto:aggressive", v, out, comm, fb), DSCOMM_OK);
        EXPECT_EQ(codec_of_last(comm).substr(0, 4), "topk");
        ASSERT_EQ(reduce_with("auto:0.003", v, out, comm), DSCOMM_OK);
        EXPECT_EQ(codec_of_last(comm), "bf16");
        dscomm_feedback_destroy(fb);
    });
}

TEST(Auto, APlanSaysWhatWasChosen)
{
    Slow s(2);

    ASSERT_TRUE(s.w.ok());
    s.w.each([&](int r) {
        const dscomm_plan_t *plan = nullptr;

        ASSERT_EQ(dscomm_plan_create(s.w.comms[(size_t)r], 5000, DSCOMM_FLOAT32, DSCOMM_AVG,
                                     dscomm_codec("auto"), 0, &plan),
                  DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_NE(std::string(dscomm_plan_explain(plan)).find("codec int8"), std::string::npos)
            << dscomm_plan_explain(plan);
    });
}

TEST(Auto, ACommunicatorExplains)
{
    Slow s(3);
    std::vector<std::string> texts(3);

    ASSERT_TRUE(s.w.ok());
    s.w.each([&](int r) {
        dscomm_comm_t *const comm = s.w.comms[(size_t)r];
        dscomm_tuner_query_t query = DSCOMM_TUNER_QUERY_INIT;
        Floats v(9000, 1.0f), out(9000);
        char *text = nullptr;
        size_t n = 0;
        FILE *const file = open_memstream(&text, &n);

        query.count = v.size();
        EXPECT_EQ(dscomm_comm_explain(comm, &query, DSCOMM_EXPLAIN_TEXT, file),
                  DSCOMM_ERR_BAD_STATE);
        ASSERT_EQ(reduce_with("auto", v, out, comm), DSCOMM_OK);
        EXPECT_EQ(dscomm_comm_explain(comm, &query, DSCOMM_EXPLAIN_TEXT, nullptr),
                  DSCOMM_ERR_INVALID);
        EXPECT_EQ(dscomm_comm_explain(comm, &query, DSCOMM_EXPLAIN_TEXT, file), DSCOMM_OK)
            << dscomm_last_error();
        query.count = 1 << 24;
        EXPECT_EQ(dscomm_comm_explain(comm, &query, DSCOMM_EXPLAIN_JSON, file), DSCOMM_OK);
        fclose(file);
        texts[(size_t)r] = text;
        free(text);
        query.budget = "some";
        EXPECT_EQ(dscomm_comm_explain(comm, &query, DSCOMM_EXPLAIN_TEXT, stderr),
                  DSCOMM_ERR_INVALID);
    });
    EXPECT_NE(texts[0].find("int8"), std::string::npos) << texts[0];
    EXPECT_NE(texts[0].find("connections carry 262144"), std::string::npos) << texts[0];
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_EQ(texts[0], texts[2]);
}

/* Fused or not: no vector shares what a codec makes of a whole segment. */
TEST(Auto, WorksInGroups)
{
    Slow s(4);

    ASSERT_TRUE(s.w.ok());
    s.w.each([&](int r) {
        dscomm_comm_t *const comm = s.w.comms[(size_t)r];
        std::vector<Floats> v, out;
        std::vector<dscomm_feedback_t *> fbs(12, nullptr);

        for (size_t i = 0; i < fbs.size(); i++) {
            v.emplace_back(100 + 50 * i, (float)(i + 1));
            out.emplace_back(v[i].size());
            ASSERT_EQ(dscomm_feedback_create(v[i].size(), nullptr, &fbs[i]), DSCOMM_OK);
        }
        ASSERT_EQ(dscomm_group_start(), DSCOMM_OK);
        for (size_t i = 0; i < v.size(); i++)
            ASSERT_EQ(reduce_with("auto:aggressive", v[i], out[i], comm, fbs[i]), DSCOMM_OK);
        ASSERT_EQ(dscomm_group_end(), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(stats_of(comm).calls, 1u) << "fused";
        for (size_t i = 0; i < v.size(); i++)
            for (const float x : out[i])
                EXPECT_NEAR(x, 4 * (float)(i + 1), 0.1f * 4 * (float)(i + 1));
        for (dscomm_feedback_t *fb : fbs)
            dscomm_feedback_destroy(fb);
    });
}

TEST(Auto, WorksOnStreamsAndOnSplits)
{
    Slow s(4);

    ASSERT_TRUE(s.w.ok());
    s.w.each([&](int r) {
        dscomm_comm_t *const comm = s.w.comms[(size_t)r];
        dscomm_comm_t *half = nullptr;
        dscomm_stream_t *stream = nullptr;
        Floats v(3000, 2.0f), out(3000);

        ASSERT_EQ(dscomm_stream_create(&stream), DSCOMM_OK);
        ASSERT_EQ(reduce_with("auto", v, out, comm, nullptr, stream), DSCOMM_OK);
        ASSERT_EQ(reduce_with("auto", v, v, comm, nullptr, stream), DSCOMM_OK);
        ASSERT_EQ(dscomm_stream_synchronize(stream), DSCOMM_OK) << dscomm_last_error();
        EXPECT_NEAR(out[17], 8, 0.1);
        ASSERT_EQ(dscomm_comm_split(comm, r % 2, r, nullptr, &half), DSCOMM_OK);
        Rank me = { half, r / 2, std::mt19937(1) };
        half->rates_fn = rates_of;
        half->test_user = &me;
        ASSERT_EQ(reduce_with("auto", v, out, half), DSCOMM_OK) << dscomm_last_error();
        EXPECT_NEAR(out[2999], 16, 0.2);
        dscomm_stream_destroy(stream);
        dscomm_comm_destroy(half);
    });
}

/* Without a profile all measure, at the first call. */
TEST(Auto, MeasuresWhatItDoesNotKnow)
{
    setenv("DSCOMM_PROFILE", "none", 1);
    dsc_env_reload();
    {
        World w(3);

        ASSERT_TRUE(w.ok());
        w.each([&](int r) {
            dscomm_comm_t *const comm = w.comms[(size_t)r];
            Floats v(100000, 1.0f), out(100000);

            for (int i = 0; i < 3; i++) {
                ASSERT_EQ(reduce_with("auto", v, out, comm), DSCOMM_OK) << dscomm_last_error();
                EXPECT_NEAR(out[99999], 3, 0.05);
            }
            ASSERT_NE(dsc_auto_guard(comm), nullptr);
            EXPECT_NE(std::string(dsc_guard_at(dsc_auto_guard(comm), 0)->text)
                          .find("count 100000 fp32 sum: "),
                      std::string::npos);
        });
    }
    unsetenv("DSCOMM_PROFILE");
    dsc_env_reload();
}

/* Nobody to talk to, or nothing to say. */
TEST(Auto, NeedsNoChoiceAlone)
{
    World one(1), two(2);
    Floats v(10, 1.5f), out(10), none;

    ASSERT_TRUE(one.ok() && two.ok());
    ASSERT_EQ(reduce_with("auto", v, out, one.comms[0]), DSCOMM_OK);
    EXPECT_EQ(out, v);
    two.each([&](int r) {
        Floats empty;

        ASSERT_EQ(reduce_with("auto", empty, empty, two.comms[(size_t)r]), DSCOMM_OK);
        EXPECT_EQ(dsc_auto_guard(two.comms[(size_t)r]), nullptr);
    });
}

/* ---- refusals ---- */

TEST(Auto, IsRefusedByNameWhereItMakesNoSense)
{
    World w(2);
    Floats v(64, 1.0f), out(128);
    const dscomm_codec_t *const codec = dscomm_codec("auto");
    alignas(16) unsigned char bytes[1024];
    size_t n = 0;

    ASSERT_TRUE(w.ok());
    EXPECT_EQ(dscomm_all_gather_compressed(v.data(), out.data(), 64, DSCOMM_FLOAT32, codec, nullptr,
                                           w.comms[0], nullptr),
              DSCOMM_ERR_INVALID);
    EXPECT_NE(std::string(dscomm_last_error()).find("all_gather with codec auto"),
              std::string::npos);
    EXPECT_EQ(
        dscomm_broadcast(v.data(), out.data(), 64, DSCOMM_FLOAT32, 0, codec, w.comms[0], nullptr),
        DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_encode(codec, bytes, sizeof(bytes), v.data(), 64, &n), DSCOMM_ERR_INVALID);
    EXPECT_NE(std::string(dscomm_last_error()).find("codec auto has no messages"),
              std::string::npos);
    EXPECT_EQ(dscomm_decode(codec, out.data(), 64, bytes, 64), DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_codec_bound(codec, 64), SIZE_MAX - 15);
}

TEST(Auto, SpecsAreBudgets)
{
    for (const char *spec : { "auto:exact", "auto:high", "auto:balanced", "auto:aggressive" })
        EXPECT_STREQ(dscomm_codec_spec(dscomm_codec(spec)), spec);
    EXPECT_EQ(dscomm_codec("auto:0.01"), dscomm_codec("auto:0.010"));
    for (const char *spec : { "auto:", "auto:fine", "auto:2", "auto,int8", "auto:-1",
                              "auto:0.0000001", "auto:high,sr" }) {
        EXPECT_EQ(dscomm_codec(spec), nullptr) << spec;
        EXPECT_NE(std::string(dscomm_last_error()).find("auto takes exact, high"),
                  std::string::npos)
            << dscomm_last_error();
    }
}

TEST(Auto, ABadBudgetInTheEnvironmentIsAnError)
{
    dscomm_unique_id_t id;
    dscomm_comm_t *comm = nullptr;

    setenv("DSCOMM_ERROR_BUDGET", "tiny", 1);
    dsc_env_reload();
    ASSERT_EQ(dscomm_unique_id_create(&id), DSCOMM_OK);
    EXPECT_EQ(dscomm_comm_create(1, 0, &id, nullptr, &comm), DSCOMM_ERR_ENV);
    EXPECT_NE(std::string(dscomm_last_error()).find("DSCOMM_ERROR_BUDGET=\"tiny\""),
              std::string::npos);
    unsetenv("DSCOMM_ERROR_BUDGET");
    dsc_env_reload();
}

} // namespace
