/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the single-kernel two-shot, and the same calls on host communicators: outputs,
 * residuals and counts must be equal bit for bit.
 */
#ifndef DSC_TEST_TWO_SHOT_CASE_H
#define DSC_TEST_TWO_SHOT_CASE_H

#include <memory>
#include <string>
#include <vector>

#include "cuda/gpu_case.h"
#include "support/internal_begin.h"
#include "cuda/peer_two_shot.h"
#include "support/internal_end.h"

constexpr uint64_t kLongNs = 60000000000u; /* for waits that end */

/* Owned by the caller. */
struct dscomm_plan *make_plan(const GpuCase &c, int rank);

/* What one rank has on the device. */
struct DeviceRank {
    const GpuCase &c;
    const int rank;
    DeviceArray<uint8_t> send, recv;
    std::unique_ptr<DeviceArray<uint8_t>> residual[2];
    DeviceArray<dsc_gpu_feedback> feedback;
    DeviceArray<dsc_gpu_stats> ring;
    DeviceArray<dsc_gpu_state> state{ 1 };
    dsc_gpu_board *board = nullptr; /* in host memory */
    dsc_gpu_call call = {};

    DeviceRank(const GpuCase &test_case, int r);
    ~DeviceRank();
    DeviceRank(const DeviceRank &) = delete;

    void put(const Bytes &input) const;
    /* After a call that ended; number: from 1 on. */
    void expect_equal(const struct HostRanks &host, uint64_t number) const;
};

/* All ranks on the host, and what their last call gave. */
struct HostRanks {
    const GpuCase &c;
    World world;
    std::vector<dscomm_feedback_t *> feedback;
    std::vector<Bytes> outputs;
    std::vector<uint64_t> n_nonfinite; /* of that call */

    explicit HostRanks(const GpuCase &test_case);
    ~HostRanks();
    HostRanks(const HostRanks &) = delete;

    void call(int step, bool with_specials);
};

/* All ranks of a case in one launch. */
struct VirtualRanks {
    const GpuCase c;
    std::vector<std::unique_ptr<DeviceRank>> ranks;
    std::vector<dsc_two_shot_card> cards;
    dsc_gpu_two_shot *two_shot = nullptr;

    explicit VirtualRanks(const GpuCase &test_case, uint64_t timeout_ns = kLongNs);
    ~VirtualRanks();
    VirtualRanks(const VirtualRanks &) = delete;

    std::vector<dsc_gpu_call> calls() const;
    void put(int step, bool with_specials) const;
    void launch() const;
    dsc_two_shot_control control() const;
};

#endif
