/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole collective call done twice, operation by operation: by the host's dsc_compute_op(), and
 * by the kernels, which get the same messages. Messages and outputs must be equal byte for byte;
 * partial sums and residuals too, but that a NaN may be any NaN there.
 */
#ifndef DSC_TEST_STAGE_CASE_H
#define DSC_TEST_STAGE_CASE_H

#include <cstdint>
#include <string>
#include <vector>

#include "dscomm/codec.h"
#include "dscomm/dscomm.h"

enum class Data { plain, zeros, specials, tiny, huge, ties };
enum class Feedback { none, fp32, bf16, one_vector };
enum class Collective { allreduce, reduce_scatter, all_gather, broadcast, all_to_all };

struct StageCase {
    std::vector<std::string> specs = { "int8" }; /* one, or one per tier */
    Collective collective = Collective::allreduce;
    int n_ranks = 2;
    size_t count = 1000; /* as callers give it */
    dscomm_dtype_t dtype = DSCOMM_FLOAT32;
    dscomm_op_t op = DSCOMM_SUM;
    bool one_shot = false, in_place = false, known_zero = false;
    bool hostile = false; /* messages arrive as other bytes */
    Feedback feedback = Feedback::none;
    float beta = 1.0f, momentum = 0.0f; /* momentum: of feedback with two vectors */
    Data data = Data::plain;
    size_t chunk_elems = 4096;
    size_t send_shift = 0, recv_shift = 0; /* elements that the vectors start behind 256 bytes */
    uint32_t parity = 0, seed = 1;

    std::string text() const;
};

/* Fails the running test where the two differ. */
void run_stage_case(const StageCase &c);

#endif
