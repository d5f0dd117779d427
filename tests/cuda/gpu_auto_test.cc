/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codec auto on devices: all ranks choose the same, and what comes out are the host's bits of what
 * was chosen; captured calls keep their choice.
 */
#include <gtest/gtest.h>

#include <algorithm>

#include "cuda/gpu_case.h"
#include "dscomm/tuner.h"
#include "emu/emu_api.h"
#include "support/choose.h"

#include "support/internal_begin.h"
#include "comm/comm.h"
#include "support/internal_end.h"

namespace {

/* ---- rates that differ from rank to rank ---- */

struct Rates {
    const dscomm_comm_t *comm;
    uint64_t bytes_per_s; /* of the slowest tier; the others are a thousand times as fast */
};

void rates_of(void *user, dsc_rates *rates)
{
    const auto *const me = static_cast<const Rates *>(user);
    const auto worse = (uint32_t)me->comm->rank;

    memset(rates, 0, sizeof(*rates));
    rates->version = DSC_RATES_VERSION;
    rates->n_tiers = (uint32_t)me->comm->tiers.n_tiers;
    for (uint32_t t = 0; t < rates->n_tiers; t++) {
        dsc_tier_rates &tier = rates->tiers[t];
        const uint64_t faster = t + 1 == rates->n_tiers ? 1 : 1000;

        tier.kind = (uint32_t)me->comm->tiers.kinds[t];
        tier.latency_ns = 5000 + 1000 * worse;
        tier.bytes_per_s = tier.bytes_per_s_alone = (me->bytes_per_s - 1000 * worse) * faster;
    }
    for (const char *spec : { "none", "fp32", "bf16", "fp16", "lossless", "int8", "fp8", "mxfp8",
                              "int4:signed", "nvfp4", "mxfp4", "topk:0.01,fp8", "topk:0.01" })
        for (uint8_t feedback = 0; feedback < 2; feedback++) {
            dsc_codec_speed &speed = rates->speeds[rates->n_speeds++];

            snprintf(speed.spec, sizeof(speed.spec), "%s", spec);
            speed.feedback = feedback;
            speed.send_fs = speed.add_fs = speed.own_fs = speed.decode_fs = 5000 + 100 * worse;
        }
    rates->cpus_per_host = rates->ranks_per_host = 1;
    rates->call_ns = 8000;
    rates->op_ns = 500;
    rates->overlap = 1;
}

/* Hosts, too, carry segments of top-k at once. */
dscomm_comm_config_t auto_config()
{
    dscomm_comm_config_t config = gpu_config();

    config.chunk_bytes = 262144;
    return config;
}

/* A world whose ranks have such rates and, on devices and hosts, these tiers. */
struct AutoWorld : GpuWorld {
    std::vector<Rates> rates;

    AutoWorld(int n_ranks, uint64_t bytes_per_s, const char *tiers = "",
              dscomm_comm_config_t config = auto_config())
        : GpuWorld(n_ranks, config), rates((size_t)n_ranks)
    {
        for (size_t r = 0; r < rates.size(); r++) {
            rates[r] = { comms[r], bytes_per_s };
            comms[r]->rates_fn = rates_of;
            comms[r]->test_user = &rates[r];
            if (tiers[0] == '\0')
                continue;
            EXPECT_EQ(dsc_comm_set_tiers(comms[r], nullptr, tiers), DSCOMM_OK);
            EXPECT_EQ(dsc_comm_set_tiers(host->comms[r], nullptr, tiers), DSCOMM_OK);
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

/* All decisions and findings so far. */
std::string log_of(const dscomm_comm_t *comm)
{
    const dsc_guard *const guard = dsc_auto_guard(comm);
    std::string text;

    for (uint64_t i = guard == nullptr                     ? 0
                      : guard->n_events > DSC_GUARD_EVENTS ? guard->n_events - DSC_GUARD_EVENTS
                                                           : 0;
         guard != nullptr && i < guard->n_events; i++) {
        const dsc_guard_event &event = guard->events[i % DSC_GUARD_EVENTS];

        text += std::to_string(event.call) + ": " + event.text + "\n";
    }
    return text;
}

/* A call on the host as the device's last one was. */
Bytes host_call(const GpuSides &sides, const GpuCase &c, const Bytes &input)
{
    const dscomm_comm_t *const device = sides.world.comms[sides.rank];
    const dsc_shape &shape = device->last->shape;
    dsc_choice choice = shape.choice;
    Bytes out(input.size());

    choice.chunk_elems = 0; /* changes no bit */
    EXPECT_EQ(chosen_allreduce(sides.world.host->comms[sides.rank], choice, input.data(),
                               out.data(), c.count, c.dtype, c.op, shape.codec, sides.host_fb),
              DSCOMM_OK)
        << dscomm_last_error();
    return out;
}

/* A call on the device with auto, and one on the host with what was chosen. */
std::string call_both(GpuSides &sides, GpuCase &c, const char *budget, int step)
{
    const Bytes input = make_input(c, sides.rank, step, false);
    dscomm_comm_t *const comm = sides.world.comms[sides.rank];

    c.spec = budget;
    sides.put(input);
    EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
    c.spec = codec_of_last(comm);
    sides.expect_same_output(host_call(sides, c, input), step);
    sides.expect_same_residuals();
    return c.spec;
}

void expect_alike(const std::vector<std::string> &texts)
{
    for (const std::string &text : texts)
        EXPECT_EQ(text, texts[0]);
}

/* ---- choices ---- */

struct ChoiceCase {
    const char *name, *tiers;
    int n_ranks;
    size_t count;
    dscomm_dtype_t dtype;
    bool feedback;
    float momentum;
};

class Choices : public testing::TestWithParam<ChoiceCase> {};

TEST_P(Choices, are_the_same_everywhere_and_have_the_hosts_bits_in_any_order)
{
    const ChoiceCase &what = GetParam();
    const AutoWorld world(what.n_ranks, 2000000, what.tiers);
    std::vector<std::string> used((size_t)what.n_ranks), logs((size_t)what.n_ranks);

    world.each([&](int r) {
        GpuCase c;

        c.n_ranks = what.n_ranks;
        c.count = what.count;
        c.dtype = what.dtype;
        c.feedback = what.feedback;
        c.momentum = what.momentum;
        GpuSides sides(world, c, r);
        int step = 0;

        for (const char *budget : { "auto", "auto:exact", "auto:aggressive", "auto:high", "auto" })
            used[(size_t)r] += call_both(sides, c, budget, step++) + " ";
        logs[(size_t)r] = log_of(world.comms[(size_t)r]);
    });
    expect_alike(used);
    expect_alike(logs);
    if (what.n_ranks == 1) {
        EXPECT_EQ(used[0], "none none none none none ");
        EXPECT_EQ(logs[0], "");
        return;
    }
    EXPECT_EQ(used[0].substr(0, 10), "int8 none ") << logs[0];
    EXPECT_EQ(used[0].substr(used[0].size() - 5), "int8 ") << logs[0];
    EXPECT_NE(logs[0].find("count " + std::to_string(what.count)), std::string::npos) << logs[0];
    if (what.tiers[0] != '\0')
        EXPECT_NE(logs[0].find("tiered"), std::string::npos) << logs[0];
    if (what.feedback)
        EXPECT_NE(used[0].find("topk"), std::string::npos) << logs[0];
}

const ChoiceCase choice_cases[] = {
    { "alone", "", 1, 9000, DSCOMM_FLOAT32, true, 0.0f },
    { "two", "", 2, 9000, DSCOMM_FLOAT32, false, 0.0f },
    { "three_feedback", "", 3, 9000, DSCOMM_FLOAT32, true, 0.0f },
    { "four_bf16", "", 4, 20001, DSCOMM_BFLOAT16, true, 0.0f },
    { "five_momentum", "", 5, 9000, DSCOMM_FLOAT32, true, 0.9f },
    { "four_tiered", "0-1|2-3", 4, 40000, DSCOMM_FLOAT32, true, 0.0f },
    { "seven_uneven", "0-2|3-6", 7, 40000, DSCOMM_FLOAT32, false, 0.0f },
    { "eight", "", 8, 30000, DSCOMM_FLOAT32, true, 0.0f },
};

INSTANTIATE_TEST_SUITE_P(all, Choices, testing::ValuesIn(choice_cases),
                         [](const auto &info) { return std::string(info.param.name); });

TEST(Auto, a_fast_link_needs_no_codec)
{
    const AutoWorld world(2, 900000000000);

    world.each([&](int r) {
        GpuCase c;

        c.count = 9000;
        GpuSides sides(world, c, r);
        EXPECT_EQ(call_both(sides, c, "auto:aggressive", 0), "none");
    });
}

/* Without exact_order that is NCCL's own allreduce. */
TEST(Auto, none_is_ncclAllReduce)
{
    dscomm_comm_config_t config = auto_config();

    config.exact_order = 0;
    const AutoWorld world(3, 2000000, "", config);

    world.each([&](int r) {
        GpuCase c;

        c.spec = "auto:exact";
        c.count = 9000;
        c.n_ranks = 3;
        c.feedback = false;
        GpuSides sides(world, c, r);
        const uint64_t before = stats_of(world.comms[(size_t)r]).plans;

        sides.put(make_input(c, r, 0, false));
        EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(codec_of_last(world.comms[(size_t)r]), "none");
        EXPECT_EQ(stats_of(world.comms[(size_t)r]).plans, before);
    });
}

/* ---- captures ---- */

TEST(Auto, a_capture_keeps_the_choice_that_was_made_before)
{
    const AutoWorld world(3, 2000000);

    world.each([&](int r) {
        dscomm_comm_t *const comm = world.comms[(size_t)r];
        const cudaStream_t stream = world.streams[(size_t)r];
        const dscomm_plan_t *plan = nullptr;
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        GpuCase c;

        c.spec = "auto";
        c.n_ranks = 3;
        c.count = 9000;
        GpuSides sides(world, c, r);

        EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        EXPECT_EQ(sides.call(), DSCOMM_ERR_BAD_STATE);
        EXPECT_NE(std::string(dscomm_last_error()).find("codec auto has not chosen for 9000 fp32"),
                  std::string::npos)
            << dscomm_last_error();
        EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        cudaGraphDestroy(graph);
        ASSERT_EQ(dscomm_plan_create(comm, c.count, c.dtype, c.op, dscomm_codec("auto"), 1, &plan),
                  DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_NE(std::string(dscomm_plan_explain(plan)).find("codec int8"), std::string::npos)
            << dscomm_plan_explain(plan);
        EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
        c.spec = codec_of_last(comm);
        EXPECT_EQ(c.spec, "int8");
        for (int step = 0; step < 3; step++) {
            const Bytes input = make_input(c, r, step, false);

            sides.put(input);
            EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
            sides.expect_same_output(host_call(sides, c, input), step);
            sides.expect_same_residuals();
        }
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    });
}

/* ---- what calls show ---- */

/* Per block a large value and, of which half a step is lost, many small ones: 6 % and more. */
void put_hard_values(const GpuSides &sides, const GpuCase &c, int rank)
{
    std::vector<float> values(c.count);

    for (size_t i = 0; i < values.size(); i++)
        values[i] = i % 64 == 0 ? 127.0f : (float)(rank + 1) * 0.12f;
    sides.put(
        Bytes((const uint8_t *)values.data(), (const uint8_t *)(values.data() + values.size())));
}

/* Makes calls with auto: one letter each, of the codec that was used. */
std::string make_calls(const GpuSides &sides, const dscomm_comm_t *comm, int n)
{
    std::string used;

    for (int i = 0; i < n; i++) {
        EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
        used += codec_of_last(comm)[0];
    }
    return used;
}

size_t first_change(const std::string &used)
{
    return used.find_first_not_of(used[0]);
}

/* Found in the first epoch, it counts from the third one on, in the same call on all ranks. */
TEST(Notes, ban_a_codec_that_loses_too_much)
{
    constexpr int n = 3;
    const AutoWorld world(n, 2000000);
    std::vector<std::string> used(n), logs(n);
    std::vector<double> error(n);

    world.each([&](int r) {
        dscomm_comm_t *const comm = world.comms[(size_t)r];
        dscomm_call_stats_t on_host = {};
        GpuCase c;

        c.spec = "auto";
        c.n_ranks = n;
        c.count = 3000;
        c.feedback = false;
        GpuSides sides(world, c, r);

        put_hard_values(sides, c, r);
        used[(size_t)r] = make_calls(sides, comm, 70);
        logs[(size_t)r] = log_of(comm);
        c.spec = "int8";
        std::vector<uint8_t> input(c.count * 4);
        world.sync(r);
        EXPECT_EQ(
            cudaMemcpy(input.data(), sides.device_send(), input.size(), cudaMemcpyDeviceToHost),
            cudaSuccess);
        sides.host_call(input);
        on_host.struct_bytes = sizeof(on_host);
        EXPECT_EQ(dscomm_comm_last_call(world.host->comms[(size_t)r], &on_host), DSCOMM_OK);
        error[(size_t)r] = on_host.relative_error;
    });
    expect_alike(used);
    expect_alike(logs);
    EXPECT_EQ(used[0][0], 'i');
    EXPECT_EQ(first_change(used[0]), 64u) << used[0];

    /* the largest of all ranks, as hosts see it, rounded down to an eighth of an octave */
    const size_t at = logs[0].find("int8 banned from call 64 on: three notes above twice its "
                                   "nominal error (");
    ASSERT_NE(at, std::string::npos) << logs[0];
    const double ppm = atof(logs[0].c_str() + logs[0].find('(', at) + 1);
    const double largest = 1e6 * *std::max_element(error.begin(), error.end());
    EXPECT_LE(ppm, largest * 1.01);
    EXPECT_GE(ppm, largest * 0.9);
}

/* Links are slower than they were measured to be: the emulated ones are. */
TEST(Notes, change_the_rate_of_a_link_that_drifts)
{
    constexpr int n = 3;
    const AutoWorld world(n, 1000000000); /* predicted below 0.2 ms, emulated in many */
    std::vector<std::string> used(n), logs(n);

    world.each([&](int r) {
        GpuCase c;

        c.spec = "auto";
        c.n_ranks = n;
        c.count = 30000;
        GpuSides sides(world, c, r);
        sides.put(make_input(c, r, 0, false));
        used[(size_t)r] = make_calls(sides, world.comms[(size_t)r], 70);
        logs[(size_t)r] = log_of(world.comms[(size_t)r]);
    });
    expect_alike(used);
    expect_alike(logs);
    EXPECT_NE(logs[0].find("wire times of the slowest tier x 4.000 from call 64 on: 32 calls"),
              std::string::npos)
        << logs[0];
}

/* An epoch's end, too, allocates nothing and waits for nothing; a changed choice is a new plan. */
TEST(Notes, come_without_waiting)
{
    constexpr int n = 3;
    const AutoWorld world(n, 2000000);
    const EmuApi emu;
    EmuCounts before = {}, after = {};
    std::vector<std::string> used(n);
    std::vector<std::unique_ptr<GpuSides>> sides(n);
    GpuCase c;

    if (emu.forbid == nullptr)
        GTEST_SKIP() << "not on the emulator";
    c.spec = "auto";
    c.n_ranks = n;
    c.count = 3000;
    c.feedback = false;
    const auto calls = [&](int n_calls) {
        world.each([&](int r) {
            GpuSides &mine = *sides[(size_t)r];

            used[(size_t)r] += make_calls(mine, world.comms[(size_t)r], n_calls);
        });
    };

    world.each([&](int r) {
        sides[(size_t)r] = std::make_unique<GpuSides>(world, c, r);
        put_hard_values(*sides[(size_t)r], c, r);
        world.sync(r);
    });
    calls(1);
    emu.counts(&before);
    emu.forbid(EMU_ALLOCATE | EMU_SYNCHRONIZE | EMU_CREATE);
    calls(63);
    emu.forbid(0);
    emu.counts(&after);
    EXPECT_EQ(after.forbidden_calls, before.forbidden_calls);
    calls(36);
    expect_alike(used);
    EXPECT_EQ(first_change(used[0]), 64u) << used[0];
    for (int r = 0; r < n; r++) {
        const dscomm_stats_t stats = stats_of(world.comms[(size_t)r]);

        EXPECT_EQ(stats.plans, 2u);
        if (stats.graph_misses == 0)
            continue; /* the tests also run with DSCOMM_CUDA_GRAPHS=0 */
        EXPECT_EQ(stats.graph_misses, 2u);
        EXPECT_EQ(stats.graph_updates, 2u) << "the first calls of both";
        EXPECT_EQ(stats.graph_hits, 98u);
    }
    world.each([&](int r) {
        world.sync(r);
        sides[(size_t)r].reset();
    });
}

/* Other calls, and launches of graphs, between: ranks stay alike, and the guard counts on. */
TEST(Notes, are_of_eager_calls_with_auto_alone)
{
    constexpr int n = 3;
    const AutoWorld world(n, 2000000);
    std::vector<std::string> used(n), logs(n);

    world.each([&](int r) {
        dscomm_comm_t *const comm = world.comms[(size_t)r];
        const cudaStream_t stream = world.streams[(size_t)r];
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        const dscomm_plan_t *plan = nullptr;
        GpuCase c;

        c.spec = "auto";
        c.n_ranks = n;
        c.count = 3000;
        c.feedback = false;
        GpuSides sides(world, c, r);

        put_hard_values(sides, c, r);
        for (const char *spec : { "none", "int4" }) /* making these meets no graphs */
            ASSERT_EQ(
                dscomm_plan_create(comm, c.count, c.dtype, c.op, dscomm_codec(spec), 0, &plan),
                DSCOMM_OK);
        used[(size_t)r] = make_calls(sides, comm, 1);
        EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
        for (int i = 0; i < 60; i++) { /* two calls of the guard's, and one that is not */
            EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
            c.spec = i % 2 == 0 ? "none" : "int4";
            EXPECT_EQ(sides.call(), DSCOMM_OK) << dscomm_last_error();
            c.spec = "auto";
            used[(size_t)r] += make_calls(sides, comm, 1);
        }
        logs[(size_t)r] = log_of(comm);
        world.sync(r);
        cudaGraphExecDestroy(exec);
        cudaGraphDestroy(graph);
    });
    expect_alike(used);
    expect_alike(logs);
    EXPECT_EQ(first_change(used[0]), 32u) << used[0] << logs[0];
    EXPECT_NE(logs[0].find("int8 banned from call 64 on"), std::string::npos) << logs[0];
}

/* ---- rates ---- */

/* No profile fits (the test runs with DSCOMM_PROFILE=none): all measure, at the first call. */
TEST(Auto, measures_what_it_does_not_know)
{
    const GpuWorld world(3);
    std::vector<std::string> used(3), logs(3);

    world.each([&](int r) {
        GpuCase c;

        c.n_ranks = 3;
        c.count = 9000;
        GpuSides sides(world, c, r);
        for (int step = 0; step < 3; step++)
            used[(size_t)r] += call_both(sides, c, "auto", step) + " ";
        logs[(size_t)r] = log_of(world.comms[(size_t)r]);
    });
    expect_alike(used);
    expect_alike(logs);
    EXPECT_NE(logs[0].find("count 9000 fp32 sum feedback: "), std::string::npos) << logs[0];
}

TEST(Auto, a_communicator_explains)
{
    const AutoWorld world(3, 2000000);
    std::vector<std::string> texts(3);

    world.each([&](int r) {
        dscomm_comm_t *const comm = world.comms[(size_t)r];
        dscomm_tuner_query_t query = DSCOMM_TUNER_QUERY_INIT;
        GpuCase c;
        char *text = nullptr;
        size_t n = 0;
        FILE *const file = open_memstream(&text, &n);

        c.n_ranks = 3;
        query.count = c.count;
        GpuSides sides(world, c, r);
        EXPECT_EQ(dscomm_comm_explain(comm, &query, DSCOMM_EXPLAIN_TEXT, file),
                  DSCOMM_ERR_BAD_STATE);
        call_both(sides, c, "auto", 0);
        EXPECT_EQ(dscomm_comm_explain(comm, &query, DSCOMM_EXPLAIN_TEXT, file), DSCOMM_OK)
            << dscomm_last_error();
        fclose(file);
        texts[(size_t)r] = text;
        free(text);
    });
    expect_alike(texts);
    EXPECT_NE(texts[0].find("only for CPUs"), std::string::npos) << texts[0];
    EXPECT_NE(texts[0].find("int8"), std::string::npos) << texts[0];
}

/* ---- refusals ---- */

TEST(Auto, is_refused_by_name_where_it_makes_no_sense)
{
    const GpuWorld world(2);

    world.each([&](int r) {
        DeviceArray<float> v(64), out(128);

        EXPECT_EQ(dscomm_all_gather_compressed(v.get(), out.get(), 64, DSCOMM_FLOAT32,
                                               dscomm_codec("auto"), nullptr,
                                               world.comms[(size_t)r], world.stream(r)),
                  DSCOMM_ERR_INVALID);
        EXPECT_NE(std::string(dscomm_last_error()).find("all_gather with codec auto"),
                  std::string::npos)
            << dscomm_last_error();
    });
}

} // namespace
