/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans of all ranks of one call fit each other: every message that is sent is received, in the
 * same place of its connection's order; every element has exactly one lossy role on every rank.
 */
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <tuple>

#include "support/internal_begin.h"
#include "plan/pieces.h"
#include "plan/plan.h"
#include "support/internal_end.h"

namespace {

struct Destroy {
    void operator()(dscomm_plan *p) const
    {
        dsc_plan_destroy(p);
    }
};
using Plan = std::unique_ptr<dscomm_plan, Destroy>;

struct Shape {
    std::string name;
    int n_ranks;
    std::vector<std::vector<int>> tiers; /* group of each rank, fastest tier first */
};

std::vector<Shape> shapes()
{
    std::vector<Shape> all;

    for (int n : { 2, 3, 4, 5, 7, 8, 9, 16, 33, 40, 70 })
        all.push_back({ "flat" + std::to_string(n), n, { std::vector<int>((size_t)n, 0) } });
    all.push_back({ "3+4", 7, { { 0, 0, 0, 1, 1, 1, 1 }, { 0, 0, 0, 0, 0, 0, 0 } } });
    all.push_back({ "1+6", 7, { { 0, 1, 1, 1, 1, 1, 1 }, { 0, 0, 0, 0, 0, 0, 0 } } });
    all.push_back({ "1+1+1+5", 8, { { 0, 1, 2, 3, 3, 3, 3, 3 }, { 0, 0, 0, 0, 0, 0, 0, 0 } } });
    all.push_back(
        { "2x2x2",
          8,
          { { 0, 0, 1, 1, 2, 2, 3, 3 }, { 0, 0, 0, 0, 1, 1, 1, 1 }, std::vector<int>(8, 0) } });
    all.push_back({ "interleaved", 6, { { 0, 1, 1, 0, 1, 0 }, { 0, 0, 0, 0, 0, 0 } } });
    return all;
}

/* A collective on a flat set of ranks; count: of the whole vector. */
Plan build_flat(dsc_collective collective, dsc_algorithm algorithm, int n_ranks, int rank,
                size_t count, size_t chunk, bool feedback = false, int root = 0)
{
    dsc_plan_params params = {};
    dscomm_plan *plan = nullptr;

    params.collective = collective;
    params.n_ranks = n_ranks;
    params.rank = rank;
    params.root = root;
    params.count = count;
    params.feedback = feedback;
    params.algorithm = algorithm;
    params.chunk_elems = chunk;
    params.n_tiers = 1;
    params.codecs[0] = dscomm_codec("int8");
    EXPECT_EQ(dsc_plan_build(&params, &plan), DSCOMM_OK) << dscomm_last_error();
    return Plan(plan);
}

Plan build(const Shape &shape, int rank, size_t count, dsc_algorithm algorithm, size_t chunk,
           const char *codec = "int8")
{
    std::vector<int> groups;
    dsc_plan_params params = {};
    dscomm_plan *plan = nullptr;

    for (const auto &tier : shape.tiers)
        groups.insert(groups.end(), tier.begin(), tier.end());
    params.n_ranks = shape.n_ranks;
    params.rank = rank;
    params.count = count;
    params.op = DSCOMM_SUM;
    params.algorithm = algorithm;
    params.chunk_elems = chunk;
    params.n_tiers = (int)shape.tiers.size();
    params.groups = groups.data();
    for (int t = 0; t < params.n_tiers; t++)
        params.codecs[t] = dscomm_codec(codec);
    EXPECT_EQ(dsc_plan_build(&params, &plan), DSCOMM_OK) << dscomm_last_error();
    return Plan(plan);
}

using Line = std::map<uint32_t, std::tuple<int, int, uint32_t>>; /* index -> stage, chunk, bytes */
using Traffic = std::map<std::pair<int, int>, Line>;             /* (from, to) */

void add_messages(const dscomm_plan &plan, const dsc_plan_msg *msgs, uint32_t n, bool sending,
                  Traffic &traffic)
{
    for (uint32_t i = 0; i < n; i++) {
        const int me = plan.params.rank, peer = plan.peers[msgs[i].conn];
        Line &line = traffic[sending ? std::make_pair(me, peer) : std::make_pair(peer, me)];

        EXPECT_TRUE(line.emplace(msgs[i].index,
                                 std::make_tuple(msgs[i].stage, msgs[i].chunk, msgs[i].bytes))
                        .second)
            << "index used twice";
    }
}

void expect_meeting(const Traffic &sent, const Traffic &received, const std::string &what)
{
    EXPECT_EQ(sent, received) << what;
    for (const auto &[pair, line] : sent) {
        EXPECT_EQ(line.size(), line.rbegin()->first + 1u) << "a hole in the order, " << what;
        EXPECT_NE(pair.first, pair.second);
    }
}

class PlanShapes : public testing::TestWithParam<Shape> {};

TEST_P(PlanShapes, MessagesMeet)
{
    for (auto algorithm : { DSC_ALG_TWO_SHOT, DSC_ALG_ONE_SHOT })
        for (size_t count : { 0, 1, 255, 256, 257, 5000, 40001 })
            for (size_t chunk : { 256, 1024, 65536 }) {
                Traffic sent, received;

                if (algorithm == DSC_ALG_TWO_SHOT && count == 0)
                    continue;
                for (int r = 0; r < GetParam().n_ranks; r++) {
                    const Plan p = build(GetParam(), r, count, algorithm, chunk);

                    add_messages(*p, p->sends, p->n_sends, true, sent);
                    add_messages(*p, p->recvs, p->n_recvs, false, received);
                }
                expect_meeting(sent, received,
                               std::to_string(count) + " chunk " + std::to_string(chunk));
            }
}

TEST_P(PlanShapes, OneLossyRolePerElementAndRank)
{
    for (size_t count : { 1, 256, 5000, 9001 })
        for (int r = 0; r < GetParam().n_ranks; r++) {
            const Plan p = build(GetParam(), r, count, DSC_ALG_TWO_SHOT, 512);
            std::vector<int> roles(count), outputs(count);

            for (uint32_t i = 0; i < p->n_ops; i++) {
                const dsc_op &op = p->ops[i];

                for (size_t e = op.start; e < op.start + op.n; e++) {
                    roles[e] += op.kind == DSC_OP_SEND || op.kind == DSC_OP_FINAL;
                    outputs[e] += op.kind == DSC_OP_DECODE || op.kind == DSC_OP_FINAL;
                }
            }
            EXPECT_EQ(roles, std::vector<int>(count, 1)) << "rank " << r;
            EXPECT_EQ(outputs, std::vector<int>(count, 1)) << "rank " << r;
        }
}

TEST_P(PlanShapes, AllRanksDescribeTheCallAlike)
{
    std::string first;

    for (int r = 0; r < GetParam().n_ranks; r++) {
        const Plan p = build(GetParam(), r, 5000, DSC_ALG_TWO_SHOT, 512);

        if (r == 0)
            first = p->descriptor;
        EXPECT_EQ(first, p->descriptor);
        EXPECT_EQ(p->hash, dsc_hash_text(first.c_str()));
    }
}

INSTANTIATE_TEST_SUITE_P(, PlanShapes, testing::ValuesIn(shapes()), [](const auto &p) {
    std::string name = p.param.name;

    for (char &c : name)
        c = isalnum((unsigned char)c) ? c : '_';
    return name;
});

TEST(Plan, HalvesMeetAndCoverTheirVectors)
{
    for (auto collective : { DSC_REDUCE_SCATTER, DSC_ALL_GATHER })
        for (int n : { 2, 3, 7, 40 })
            for (size_t count : { 1, 255, 1000, 20001 })
                for (bool feedback : { false, true }) {
                    Traffic sent, received;
                    std::string first;

                    for (int r = 0; r < n; r++) {
                        const Plan p = build_flat(collective, DSC_ALG_TWO_SHOT, n, r,
                                                  count * (size_t)n, 512, feedback);
                        std::vector<int> encoded(count * (size_t)n), made(encoded);

                        for (uint32_t i = 0; i < p->n_ops; i++) {
                            const auto kind = p->ops[i].kind;

                            if (kind == DSC_OP_RESTORE || kind == DSC_OP_DECODE) { /* flat */
                                ASSERT_EQ(p->ops[i].n_sends, 0u) << "of " << n << " ranks";
                            }
                            for (size_t e = p->ops[i].start; e < p->ops[i].start + p->ops[i].n;
                                 e++) {
                                encoded[e] += kind == DSC_OP_SEND || kind == DSC_OP_FINAL;
                                made[e] += kind == DSC_OP_RESULT || kind == DSC_OP_FINAL ||
                                           kind == DSC_OP_DECODE;
                            }
                        }
                        for (size_t e = 0; e < encoded.size(); e++) {
                            const bool own = e / count == (size_t)r;
                            const bool up = collective == DSC_REDUCE_SCATTER;

                            ASSERT_EQ(encoded[e], own != up) << e;
                            ASSERT_EQ(made[e], own || !up) << e;
                        }
                        first = r == 0 ? p->descriptor : first;
                        EXPECT_EQ(first, p->descriptor);
                        add_messages(*p, p->sends, p->n_sends, true, sent);
                        add_messages(*p, p->recvs, p->n_recvs, false, received);
                    }
                    expect_meeting(sent, received, first);
                }
}

/* Everybody hears from everybody, else a call with other arguments might go unnoticed. */
void expect_all_pairs(const Traffic &sent, int n, const std::string &what)
{
    EXPECT_EQ(sent.size(), (size_t)(n * (n - 1))) << what;
}

TEST(Plan, BroadcastMeetsAndCovers)
{
    for (int n : { 2, 3, 7, 40 })
        for (size_t count : { 1, 1000, 20001 })
            for (int root : { 0, 1, n - 1 }) {
                Traffic sent, received;
                std::string what;

                for (int r = 0; r < n; r++) {
                    const Plan p =
                        build_flat(DSC_BROADCAST, DSC_ALG_DIRECT, n, r, count, 256, false, root);
                    std::vector<int> made(count);

                    for (uint32_t i = 0; i < p->n_ops; i++) {
                        const dsc_op &op = p->ops[i];

                        EXPECT_EQ(op.kind == DSC_OP_FINAL && r != root, false);
                        for (size_t e = op.start; e < op.start + op.n; e++)
                            made[e]++;
                    }
                    EXPECT_EQ(made, std::vector<int>(count, 1)) << "rank " << r;
                    what = p->descriptor;
                    add_messages(*p, p->sends, p->n_sends, true, sent);
                    add_messages(*p, p->recvs, p->n_recvs, false, received);
                }
                expect_meeting(sent, received, what);
                expect_all_pairs(sent, n, what);
            }
}

TEST(Plan, AllToAllMeetsAndCovers)
{
    for (int n : { 2, 3, 7, 40 })
        for (size_t share : { 1, 255, 1000, 5001 }) {
            const size_t count = share * (size_t)n;
            Traffic sent, received;
            std::string what;

            for (int r = 0; r < n; r++) {
                const Plan p = build_flat(DSC_ALL_TO_ALL, DSC_ALG_DIRECT, n, r, count, 256);
                std::vector<int> taken(count), made(count);

                for (uint32_t i = 0; i < p->n_ops; i++) {
                    const dsc_op &op = p->ops[i];

                    for (size_t e = op.start; e < op.start + op.n; e++) {
                        taken[e] += op.kind != DSC_OP_DECODE;
                        made[e] += op.kind != DSC_OP_SEND;
                    }
                    /* in place: what lay here has left before */
                    for (uint32_t k = op.first_dep; k < op.first_dep + op.n_deps; k++)
                        EXPECT_EQ(p->ops[p->deps[k]].start, op.start);
                    EXPECT_EQ(op.n_deps, op.kind == DSC_OP_DECODE ? 1u : 0u);
                }
                EXPECT_EQ(taken, std::vector<int>(count, 1));
                EXPECT_EQ(made, std::vector<int>(count, 1));
                what = p->descriptor;
                add_messages(*p, p->sends, p->n_sends, true, sent);
                add_messages(*p, p->recvs, p->n_recvs, false, received);
            }
            expect_meeting(sent, received, what);
            expect_all_pairs(sent, n, what);
        }
}

TEST(Plan, CutsAreEqualSharesOf256)
{
    EXPECT_EQ(dsc_cut(0, 1000, 3, 1), 256u);
    EXPECT_EQ(dsc_cut(0, 1000, 3, 2), 512u);
    EXPECT_EQ(dsc_cut(0, 1000, 3, 3), 1000u);
    EXPECT_EQ(dsc_cut(512, 513, 2, 1), 512u); /* the first piece is empty */
    EXPECT_EQ(dsc_cut(0, (size_t)1 << 50, 7, 7), (size_t)1 << 50);
}

TEST(Plan, ManyChunksAreEnlargedToFitTheHeader)
{
    const Shape two = { "flat2", 2, { { 0, 0 } } };
    const size_t count = (size_t)1 << 33; /* beyond 2^31, and 131072 chunks of 65536 */
    const Plan p = build(two, 0, count, DSC_ALG_TWO_SHOT, 65536);
    uint64_t covered = 0;

    for (uint32_t i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == DSC_OP_FINAL || p->ops[i].kind == DSC_OP_DECODE)
            covered += p->ops[i].n;
    EXPECT_EQ(covered, count);
    EXPECT_EQ(p->chunk_elems % 256, 0u);
    EXPECT_LE(count / p->chunk_elems, 65535u);
}

/* A scale of nvfp4 is about 65536 elements: no chunk is shorter, none ends within them. */
TEST(Plan, ChunksAreWholeSegments)
{
    const Shape two = { "flat2", 2, { { 0, 0 } } };

    for (const auto algorithm : { DSC_ALG_ONE_SHOT, DSC_ALG_TWO_SHOT, DSC_ALG_LOCAL }) {
        for (size_t chunk : { 0, 256, 65536, 65537 }) {
            const Plan p = build(algorithm == DSC_ALG_LOCAL ? Shape{ "1", 1, { { 0 } } } : two, 0,
                                 500001, algorithm, chunk, "nvfp4");
            EXPECT_EQ(p->chunk_elems, chunk > 65536 ? 131072u : 65536u) << chunk;
        }
    }
    const Plan p = build(two, 0, 500001, DSC_ALG_TWO_SHOT, 256, "mxfp4");
    EXPECT_EQ(p->chunk_elems, 256u);
}

TEST(Plan, GroupsMustNest)
{
    const int groups[] = { 0, 0, 1, /* ranks 0 and 1 together */
                           0, 1, 1 /* then apart */ };
    dsc_plan_params params = {};
    dscomm_plan *plan = nullptr;

    params.n_ranks = 3;
    params.count = 10;
    params.algorithm = DSC_ALG_TWO_SHOT;
    params.n_tiers = 2;
    params.groups = groups;
    params.codecs[0] = params.codecs[1] = dscomm_codec("int8");
    EXPECT_EQ(dsc_plan_build(&params, &plan), DSCOMM_ERR_INVALID);
    EXPECT_NE(strstr(dscomm_last_error(), "ranks 0 and 1"), nullptr) << dscomm_last_error();
    EXPECT_EQ(plan, nullptr);
}

TEST(Plan, BuildSurvivesEveryFailedAllocation)
{
    const Shape shape = shapes()[11]; /* 3+4 */
    bool failed = true;

    for (int64_t nth = 0; failed; nth++) {
        const size_t live = dsc_mem_live(DSC_MEM_PLAN);
        std::vector<int> groups;
        dsc_plan_params params = {};
        dscomm_plan *plan = nullptr;
        dscomm_status_t st;

        for (const auto &tier : shape.tiers)
            groups.insert(groups.end(), tier.begin(), tier.end());
        params.n_ranks = 7;
        params.count = 5000;
        params.algorithm = DSC_ALG_TWO_SHOT;
        params.chunk_elems = 256;
        params.n_tiers = 2;
        params.groups = groups.data();
        params.codecs[0] = params.codecs[1] = dscomm_codec("int8");
        dsc_mem_fail_after(nth);
        st = dsc_plan_build(&params, &plan);
        dsc_mem_fail_after(-1);
        failed = st != DSCOMM_OK;
        if (failed) {
            EXPECT_EQ(st, DSCOMM_ERR_NO_MEMORY);
        }
        dsc_plan_destroy(plan);
        EXPECT_EQ(dsc_mem_live(DSC_MEM_PLAN), live) << "after failing allocation " << nth;
    }
}

} // namespace
