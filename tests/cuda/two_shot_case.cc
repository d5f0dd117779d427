/* SPDX-License-Identifier: Apache-2.0 */
/*
 * See two_shot_case.h.
 */
#include "cuda/two_shot_case.h"

#include <cstring>

namespace {

constexpr uint32_t kEntries = 4; /* of the ring */

Bytes zeros(size_t n)
{
    return Bytes(n > 0 ? n : 1);
}

size_t residual_bytes(const GpuCase &c)
{
    return c.count * (c.residual == DSCOMM_RESIDUAL_BF16 ? 2 : 4);
}

/* Float32 of a residual's bytes. */
std::vector<float> floats(const GpuCase &c, const Bytes &bytes)
{
    std::vector<float> r(c.count);

    for (size_t i = 0; i < c.count; i++) {
        uint32_t bits = 0;

        if (c.residual == DSCOMM_RESIDUAL_BF16)
            std::memcpy(reinterpret_cast<uint8_t *>(&bits) + 2, &bytes[2 * i], 2);
        else
            std::memcpy(&bits, &bytes[4 * i], 4);
        std::memcpy(&r[i], &bits, 4);
    }
    return r;
}

template <class T>
void expect_same(const std::vector<T> &host, const std::vector<T> &device, const std::string &what)
{
    ASSERT_EQ(host.size(), device.size()) << what;
    for (size_t i = 0; i < host.size(); i++)
        ASSERT_EQ(std::memcmp(&host[i], &device[i], sizeof(T)), 0)
            << what << ", " << i << " of " << host.size();
}

} // namespace

struct dscomm_plan *make_plan(const GpuCase &c, int rank)
{
    struct dscomm_plan *plan = nullptr;
    dsc_plan_params p = {};

    p.collective = DSC_ALLREDUCE;
    p.n_ranks = c.n_ranks;
    p.rank = rank;
    p.count = c.count;
    p.dtype = c.dtype;
    p.op = c.op;
    p.feedback = c.feedback;
    p.algorithm = DSC_ALG_TWO_SHOT;
    p.chunk_elems = 2048;
    p.n_tiers = 1;
    p.codecs[0] = dscomm_codec(c.spec.c_str());
    EXPECT_EQ(dsc_plan_build(&p, &plan), DSCOMM_OK) << dscomm_last_error();
    return plan;
}

/* ---- a rank on the device ---- */

DeviceRank::DeviceRank(const GpuCase &test_case, int r)
    : c(test_case), rank(r), send(zeros((c.count + c.shift) * c.elem())),
      recv(zeros((c.count + c.shift) * c.elem())),
      feedback(std::vector<dsc_gpu_feedback>{ { 0, 1, 0, 0 } }),
      ring(std::vector<dsc_gpu_stats>(kEntries))
{
    EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void **>(&board), sizeof(*board),
                            cudaHostAllocMapped | cudaHostAllocPortable),
              cudaSuccess);
    std::memset(board, 0, sizeof(*board));
    state.set({ { 0, 0, 0, kEntries - 1, ring.get(), board } });
    call.send = send.get() + c.shift * c.elem();
    call.recv = (c.in_place ? send : recv).get() + c.shift * c.elem();
    call.state = state.get();
    call.n_ranks = static_cast<uint32_t>(c.n_ranks);
    call.rank = static_cast<uint32_t>(rank);
    call.dtype = c.dtype;
    call.op = c.op;
    if (!c.feedback)
        return;
    for (int i = 0; i <= c.shadow; i++)
        residual[i] = std::make_unique<DeviceArray<uint8_t>>(zeros(residual_bytes(c)));
    call.residual[0] = residual[0]->get();
    call.residual[1] = residual[c.shadow]->get();
    call.residual_type = c.residual;
    call.feedback = feedback.get();
    call.beta = 1.0f;
}

DeviceRank::~DeviceRank()
{
    cudaFreeHost(board);
}

void DeviceRank::put(const Bytes &input) const
{
    EXPECT_EQ(cudaMemcpy(send.get() + c.shift * c.elem(), input.data(), input.size(),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
}

void DeviceRank::expect_equal(const HostRanks &host, uint64_t number) const
{
    const size_t r = static_cast<size_t>(rank), skip = c.shift * c.elem();
    const dsc_gpu_stats stats = ring.read()[number % kEntries];
    const dsc_gpu_feedback fb = feedback.read()[0];
    const Bytes out = (c.in_place ? send : recv).read((c.count + c.shift) * c.elem());
    const std::string at = testing::PrintToString(c) + ": rank " + std::to_string(rank) +
                           ", call " + std::to_string(number);

    expect_same(host.outputs[r], Bytes(out.begin() + static_cast<long>(skip), out.end()),
                at + ", output byte");
    EXPECT_EQ(stats.number, number) << at;
    EXPECT_EQ(stats.n_nonfinite, host.n_nonfinite[r]) << at;
    EXPECT_EQ(board->stuck, 0u) << at;
    if (c.feedback)
        expect_same(GpuSides::residual(host.feedback[r]),
                    floats(c, residual[c.shadow == 1 ? fb.parity : 0]->read()), at + ", residual");
}

/* ---- the host ---- */

static dscomm_comm_config_t host_config()
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.algorithm = "twoshot";
    config.chunk_bytes = 8192;
    config.timeout_ms = 60000;
    return config;
}

HostRanks::HostRanks(const GpuCase &test_case)
    : c(test_case), world(c.n_ranks, "loopback", host_config()), feedback(c.n_ranks),
      outputs(c.n_ranks), n_nonfinite(c.n_ranks)
{
    dscomm_feedback_config_t config = DSCOMM_FEEDBACK_CONFIG_INIT;

    config.type = c.residual;
    config.shadow = c.shadow;
    for (auto &fb : feedback)
        if (c.feedback)
            EXPECT_EQ(dscomm_feedback_create(c.count, &config, &fb), DSCOMM_OK)
                << dscomm_last_error();
}

HostRanks::~HostRanks()
{
    for (auto *fb : feedback)
        dscomm_feedback_destroy(fb);
}

void HostRanks::call(int step, bool with_specials)
{
    world.each([&](int rank) {
        const size_t r = static_cast<size_t>(rank);
        const Bytes input = make_input(c, rank, step, with_specials);
        const uint64_t before = stats_of(world.comms[r]).nonfinite_elems;

        outputs[r] = Bytes(c.count * c.elem());
        EXPECT_EQ(dscomm_allreduce_compressed(input.data(), outputs[r].data(), c.count, c.dtype,
                                              c.op, dscomm_codec(c.spec.c_str()), feedback[r],
                                              world.comms[r], nullptr),
                  DSCOMM_OK)
            << dscomm_last_error();
        n_nonfinite[r] = stats_of(world.comms[r]).nonfinite_elems - before;
    });
}

/* ---- one launch ---- */

VirtualRanks::VirtualRanks(const GpuCase &test_case, uint64_t timeout_ns)
    : c(test_case), cards(static_cast<size_t>(c.n_ranks))
{
    std::vector<struct dscomm_plan *> plans;

    for (int r = 0; r < c.n_ranks; r++) {
        plans.push_back(make_plan(c, r));
        ranks.push_back(std::make_unique<DeviceRank>(c, r));
    }
    EXPECT_EQ(dsc_gpu_two_shot_create(plans.data(), c.n_ranks, timeout_ns, nullptr, &two_shot),
              DSCOMM_OK)
        << dscomm_last_error();
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int r = 0; r < c.n_ranks; r++)
        EXPECT_EQ(dsc_gpu_two_shot_card(two_shot, r, 1, 2, &cards[static_cast<size_t>(r)]),
                  DSCOMM_OK);
    EXPECT_EQ(dsc_gpu_two_shot_connect(two_shot, cards.data()), DSCOMM_OK) << dscomm_last_error();
    for (auto *plan : plans)
        dsc_plan_destroy(plan);
}

VirtualRanks::~VirtualRanks()
{
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    dsc_gpu_two_shot_destroy(two_shot);
}

std::vector<dsc_gpu_call> VirtualRanks::calls() const
{
    std::vector<dsc_gpu_call> all;

    for (const auto &rank : ranks)
        all.push_back(rank->call);
    return all;
}

void VirtualRanks::put(int step, bool with_specials) const
{
    for (int r = 0; r < c.n_ranks; r++)
        ranks[static_cast<size_t>(r)]->put(make_input(c, r, step, with_specials));
}

void VirtualRanks::launch() const
{
    EXPECT_EQ(dsc_gpu_two_shot_run(two_shot, calls().data(), nullptr), cudaSuccess);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

dsc_two_shot_control VirtualRanks::control() const
{
    dsc_two_shot_control control = {};

    EXPECT_EQ(cudaMemcpy(&control, two_shot->args.control, sizeof(control), cudaMemcpyDeviceToHost),
              cudaSuccess);
    return control;
}
