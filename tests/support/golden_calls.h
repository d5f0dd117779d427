/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads tests/golden/calls.txt: whole calls with the results that the Python model gives. Also the
 * input generator, described in docs/wire_format.md.
 */
#ifndef DSC_TEST_GOLDEN_CALLS_H
#define DSC_TEST_GOLDEN_CALLS_H

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dscomm/dscomm.h"

struct Injection {
    int call, rank;
    size_t index;
    uint32_t bits;
};

struct GoldenCall {
    std::string line; /* for messages */
    std::string layout;
    int n_ranks, n_tiers;
    std::vector<int> groups; /* [n_tiers][n_ranks] */
    std::vector<std::string> codecs;
    dscomm_op_t op;
    dscomm_dtype_t dtype;
    std::string algo;
    std::string coll; /* "allreduce" if the line has none */
    int root;
    size_t count, chunk;
    size_t send_count, recv_count; /* elements of a rank's vectors */
    bool gets_share;               /* `out` has an entry per rank for each call */
    int calls;
    float beta;
    bool feedback, bf16_residual, shadow, known_zero;
    uint32_t seed;
    std::vector<Injection> inject;
    float momentum; /* of the feedback object */
    std::vector<uint32_t> out, res, mom;
    std::vector<uint64_t> sent;
};

/* Entry of c.out for one rank's output of one call. */
size_t golden_out_index(const GoldenCall &c, int rank, int call);

GoldenCall parse_golden_call(const std::string &line);
std::vector<GoldenCall> read_golden_calls(const std::string &path);

/* Bits of rank's input in one call, as elements of the case's data type. */
std::vector<uint8_t> golden_input(const GoldenCall &c, int rank, int call);

uint32_t crc32_of(const void *bytes, size_t n);

#endif
