/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The single-kernel two-shot with all ranks in one launch: the host's bits over many epochs, in
 * replayed graphs and for every way a vector may lie; and waits that end in an error.
 */
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "cuda/two_shot_case.h"

namespace {

bool is_supported(const std::string &spec)
{
    GpuCase c;

    c.spec = spec;
    struct dscomm_plan *const plan = make_plan(c, 0);
    const bool is = dsc_gpu_two_shot_supports(plan) == DSCOMM_OK;

    dsc_plan_destroy(plan);
    return is;
}

std::vector<std::string> all_specs()
{
    size_t n = 0;
    const char *const *specs = dsc_codec_test_specs(&n);

    return { specs, specs + n };
}

std::vector<std::string> supported_specs()
{
    std::vector<std::string> specs = all_specs();

    specs.erase(std::remove_if(specs.begin(), specs.end(),
                               [](const std::string &s) { return !is_supported(s); }),
                specs.end());
    return specs;
}

void run_case(const GpuCase &c, int n_calls)
{
    const VirtualRanks device(c);
    HostRanks host(c);

    for (int step = 0; step < n_calls && !testing::Test::HasFailure(); step++) {
        device.put(step, step == 1);
        device.launch();
        host.call(step, step == 1);
        for (const auto &rank : device.ranks)
            rank->expect_equal(host, static_cast<uint64_t>(step) + 1);
        EXPECT_EQ(device.control().epoch, static_cast<uint32_t>(step) + 1) << c;
    }
}

/* Each dimension is drawn for itself, so that pairs meet over the codecs. */
GpuCase draw(const std::string &spec, uint32_t seed)
{
    static const size_t counts[] = { 1, 255, 257, 1000, 4097, 9000, 20011 };
    std::mt19937 random(seed * 7919u + 17u);
    GpuCase c;

    c.spec = spec;
    c.seed = seed;
    c.n_ranks = 2 + static_cast<int>(random() % 7);
    c.count = counts[random() % 7];
    c.dtype = static_cast<dscomm_dtype_t>(random() % 3);
    c.op = static_cast<dscomm_op_t>(random() % 4);
    c.feedback = random() % 4 != 0 && c.op <= DSCOMM_AVG && spec.find(",sr") == std::string::npos;
    c.residual = random() % 4 == 0 ? DSCOMM_RESIDUAL_BF16 : DSCOMM_RESIDUAL_FP32;
    c.shadow = c.residual == DSCOMM_RESIDUAL_BF16 || random() % 4 != 0 ? 1 : 0;
    c.in_place = random() % 3 == 0;
    c.shift = random() % 2 == 0 ? 0 : random() % 9;
    return c;
}

class TwoShotCodecs : public testing::TestWithParam<std::string> {};

TEST_P(TwoShotCodecs, HaveTheBitsOfTheHost)
{
    for (uint32_t seed = 0; seed < 2; seed++)
        run_case(draw(GetParam(), seed), 3);
}

INSTANTIATE_TEST_SUITE_P(All, TwoShotCodecs, testing::ValuesIn(supported_specs()),
                         [](const auto &info) {
                             std::string name = info.param;

                             for (char &ch : name)
                                 ch = isalnum(static_cast<unsigned char>(ch)) ? ch : '_';
                             return name;
                         });

/* One rank alone still encodes; fp32 does not lose anything by that, as the host does not. */
TEST(TwoShot, AnyNumberOfRanks)
{
    for (int n = 1; n <= 8; n++)
        for (size_t count : { 3u, 3000u, 40000u }) {
            GpuCase c;

            c.n_ranks = n;
            c.count = count;
            c.spec = n == 1 ? "fp32" : "int8";
            c.op = n == 1 ? DSCOMM_SUM : DSCOMM_AVG;
            run_case(c, 2);
        }
}

TEST(TwoShot, ManyEpochs)
{
    GpuCase c;

    c.n_ranks = 3;
    c.count = 9001;
    run_case(c, 20);
}

/* Flags are compared by their difference, and tickets count on. */
TEST(TwoShot, EpochsWrap)
{
    GpuCase c;

    c.n_ranks = 2;
    c.count = 5000;
    const VirtualRanks device(c);
    HostRanks host(c);
    const uint32_t n_blocks = device.two_shot->n_blocks * 2;
    const uint32_t first = 0u - 3;
    const dsc_two_shot_control control = { first, first * n_blocks, 0, 0 };
    const std::vector<uint32_t> flags(device.two_shot->args.ranks[0].work.n_tiles * 3, first);

    EXPECT_EQ(cudaMemcpy(device.two_shot->args.control, &control, sizeof(control),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
    for (int r = 0; r < 2; r++)
        EXPECT_EQ(cudaMemcpy(device.two_shot->args.arenas[r], flags.data(),
                             std::min<size_t>(flags.size() * 4, 256), cudaMemcpyHostToDevice),
                  cudaSuccess);
    for (int step = 0; step < 6; step++) {
        device.put(step, false);
        device.launch();
        host.call(step, false);
        for (const auto &rank : device.ranks)
            rank->expect_equal(host, static_cast<uint64_t>(step) + 1);
    }
    EXPECT_EQ(device.control().epoch, 3u);
}

/* Fewer blocks than tiles: each has several, of its own and of others. */
TEST(TwoShot, BlocksTakeTurns)
{
    GpuCase c;

    c.n_ranks = 3;
    c.count = 100000;
    const VirtualRanks device(c);
    HostRanks host(c);

    EXPECT_GT(device.two_shot->args.ranks[0].work.n_tiles, 20u);
    device.two_shot->n_blocks = 4;
    for (int step = 0; step < 3; step++) {
        device.put(step, step == 2);
        device.launch();
        host.call(step, step == 2);
        for (const auto &rank : device.ranks)
            rank->expect_equal(host, static_cast<uint64_t>(step) + 1);
    }
}

TEST(TwoShot, GraphReplaysGoOn)
{
    GpuCase c;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    c.n_ranks = 4;
    c.count = 7001;
    c.spec = "int8";
    const VirtualRanks device(c);
    HostRanks host(c);

    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(dsc_gpu_two_shot_run(device.two_shot, device.calls().data(), stream), cudaSuccess);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    for (int step = 0; step < 5; step++) {
        device.put(step, false);
        EXPECT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
        EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        host.call(step, false);
        for (const auto &rank : device.ranks)
            rank->expect_equal(host, static_cast<uint64_t>(step) + 1);
    }
    EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

/* What a call delivered and what it kept is what was put in: sum of inputs = outputs + residuals.
 */
TEST(TwoShot, FeedbackConserves)
{
    constexpr int kSteps = 6;
    GpuCase c;

    c.n_ranks = 4;
    c.count = 3000;
    c.spec = "int4";
    const VirtualRanks device(c);
    std::vector<double> in(c.count), out(c.count);

    for (int step = 0; step < kSteps; step++) {
        device.put(step, false);
        for (int r = 0; r < c.n_ranks; r++) {
            const Bytes bytes = make_input(c, r, step, false);

            for (size_t i = 0; i < c.count; i++)
                in[i] += reinterpret_cast<const float *>(bytes.data())[i];
        }
        device.launch();
        const Bytes bytes = device.ranks[0]->recv.read(c.count * 4);

        for (size_t i = 0; i < c.count; i++)
            out[i] += reinterpret_cast<const float *>(bytes.data())[i];
    }
    double lost = 0;

    for (const auto &rank : device.ranks) {
        const Bytes kept = rank->residual[rank->feedback.read()[0].parity]->read();

        for (size_t i = 0; i < c.count; i++)
            out[i] += reinterpret_cast<const float *>(kept.data())[i];
    }
    for (size_t i = 0; i < c.count; i++)
        lost = std::max(lost, std::abs(in[i] - out[i]));
    EXPECT_LT(lost, 1e-3);
}

/* ---- what cannot be done ---- */

TEST(TwoShotRefuses, SegmentsByName)
{
    for (const char *spec : { "topk:0.01", "nvfp4", "int8,entropy" }) {
        GpuCase c;

        c.spec = spec;
        struct dscomm_plan *const plan = make_plan(c, 0);

        EXPECT_EQ(dsc_gpu_two_shot_supports(plan), DSCOMM_ERR_UNSUPPORTED) << spec;
        EXPECT_NE(std::string(dscomm_last_error()).find(spec), std::string::npos)
            << dscomm_last_error();
        dsc_plan_destroy(plan);
    }
    EXPECT_GE(supported_specs().size(), 12u);
}

TEST(TwoShotRefuses, MoreRanksThanArenas)
{
    GpuCase c;

    c.n_ranks = 9;
    struct dscomm_plan *const plan = make_plan(c, 0);

    EXPECT_EQ(dsc_gpu_two_shot_supports(plan), DSCOMM_ERR_UNSUPPORTED);
    EXPECT_NE(std::string(dscomm_last_error()).find("9 ranks"), std::string::npos);
    dsc_plan_destroy(plan);
}

TEST(TwoShotRefuses, CardsThatDoNotFit)
{
    GpuCase c;
    const VirtualRanks device(c);
    std::vector<dsc_two_shot_card> cards = device.cards;

    cards[1].host++;
    EXPECT_EQ(dsc_gpu_two_shot_connect(device.two_shot, cards.data()), DSCOMM_ERR_UNSUPPORTED);
    EXPECT_NE(std::string(dscomm_last_error()).find("rank 1"), std::string::npos);
    cards = device.cards;
    cards[1].arena_bytes -= 256;
    EXPECT_EQ(dsc_gpu_two_shot_connect(device.two_shot, cards.data()), DSCOMM_ERR_MISMATCH);
    cards = device.cards;
    cards[1].process++; /* then its handle, which is empty, must be opened */
    EXPECT_EQ(dsc_gpu_two_shot_connect(device.two_shot, cards.data()), DSCOMM_ERR_UNSUPPORTED);
}

/* ---- waits that end ---- */

void expect_calls_given_up(const DeviceRank &rank, const dsc_gpu_two_shot *ts, uint32_t n)
{
    dsc_two_shot_control control = {};

    EXPECT_EQ(cudaMemcpy(&control, ts->args.control, sizeof(control), cudaMemcpyDeviceToHost),
              cudaSuccess);
    EXPECT_NE(control.failed, 0u);
    EXPECT_EQ(control.epoch, n) << "launches end";
    EXPECT_EQ(rank.feedback.read()[0].parity, 0u);
    EXPECT_EQ(rank.feedback.read()[0].n_calls, n);
    EXPECT_EQ(rank.feedback.read()[0].last_wrote, DSC_GPU_GIVEN_UP);
    EXPECT_EQ(rank.state.read()[0].blocks_done, 0u);
    EXPECT_EQ(rank.state.read()[0].sequence, 0u);
}

/* A launch per rank, on streams of their own. */
struct Launches {
    const GpuCase c;
    std::vector<std::unique_ptr<DeviceRank>> ranks;
    std::vector<dsc_gpu_two_shot *> two_shots;
    std::vector<cudaStream_t> streams;

    Launches(const GpuCase &test_case, uint64_t timeout_ns)
        : c(test_case), two_shots(static_cast<size_t>(c.n_ranks)),
          streams(static_cast<size_t>(c.n_ranks))
    {
        std::vector<dsc_two_shot_card> cards(two_shots.size());

        for (size_t r = 0; r < cards.size(); r++) {
            struct dscomm_plan *const plan = make_plan(c, static_cast<int>(r));

            ranks.push_back(std::make_unique<DeviceRank>(c, static_cast<int>(r)));
            EXPECT_EQ(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking), cudaSuccess);
            EXPECT_EQ(dsc_gpu_two_shot_create(&plan, 1, timeout_ns, nullptr, &two_shots[r]),
                      DSCOMM_OK);
            EXPECT_EQ(dsc_gpu_two_shot_card(two_shots[r], 0, 1, 2, &cards[r]), DSCOMM_OK);
            dsc_plan_destroy(plan);
        }
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        for (auto *ts : two_shots)
            EXPECT_EQ(dsc_gpu_two_shot_connect(ts, cards.data()), DSCOMM_OK);
    }

    ~Launches()
    {
        for (size_t r = 0; r < two_shots.size(); r++) {
            EXPECT_EQ(cudaStreamDestroy(streams[r]), cudaSuccess);
            dsc_gpu_two_shot_destroy(two_shots[r]);
        }
    }
    Launches(const Launches &) = delete;

    void put(int step) const
    {
        for (size_t r = 0; r < ranks.size(); r++)
            ranks[r]->put(make_input(c, static_cast<int>(r), step, false));
    }
    void launch() const
    {
        for (size_t r = 0; r < ranks.size(); r++)
            EXPECT_EQ(dsc_gpu_two_shot_run(two_shots[r], &ranks[r]->call, streams[r]), cudaSuccess);
        EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
};

TEST(TwoShot, ALaunchPerRank)
{
    GpuCase c;

    c.count = 30000;
    const Launches device(c, kLongNs);
    HostRanks host(c);

    for (int step = 0; step < 4; step++) {
        device.put(step);
        device.launch();
        host.call(step, false);
        for (const auto &rank : device.ranks)
            rank->expect_equal(host, static_cast<uint64_t>(step) + 1);
    }
}

/* What rank 1 posts to rank 0 goes to memory that nobody looks at. */
TEST(TwoShotWaits, FindAPostThatIsMissing)
{
    GpuCase c;

    c.count = 20000;
    const Launches device(c, 500000000u);
    const VirtualRanks elsewhere(c);

    device.two_shots[1]->args.arenas[0] = elsewhere.two_shot->own[0];
    device.put(0);
    device.launch();
    for (int r = 0; r < 2; r++) {
        const dsc_gpu_board &board = *device.ranks[static_cast<size_t>(r)]->board;

        EXPECT_EQ(DSC_STUCK_PEER(board.stuck), 1 - r);
        EXPECT_TRUE(DSC_STUCK_STAGE(board.stuck) == DSC_GPU_FINAL ||
                    DSC_STUCK_STAGE(board.stuck) == DSC_GPU_DECODE);
        expect_calls_given_up(*device.ranks[static_cast<size_t>(r)],
                              device.two_shots[static_cast<size_t>(r)], 1);
    }

    /* and nothing runs after that: it would wait again */
    for (const auto &rank : device.ranks)
        rank->board->stuck = 0;
    device.launch();
    for (size_t r = 0; r < 2; r++) {
        EXPECT_EQ(device.ranks[r]->board->stuck, 0u);
        expect_calls_given_up(*device.ranks[r], device.two_shots[r], 2);
    }
}

TEST(TwoShotWaits, EndAtTheAbortWord)
{
    GpuCase c;

    c.count = 20000;
    const Launches device(c, kLongNs);
    DeviceRank &rank = *device.ranks[0]; /* alone */

    device.put(0);
    EXPECT_EQ(dsc_gpu_two_shot_run(device.two_shots[0], &rank.call, device.streams[0]),
              cudaSuccess);
    EXPECT_EQ(cudaStreamQuery(device.streams[0]), cudaErrorNotReady);
    __atomic_store_n(&rank.board->aborted, 1, __ATOMIC_RELEASE);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(rank.board->stuck, 0u);
    expect_calls_given_up(rank, device.two_shots[0], 1);
}

} // namespace
