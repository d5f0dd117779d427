/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules of all ranks of one call fit each other: what is sent in a group is received in the
 * group of that place on the other side, in the same order. Whatever two nodes of a rank touch the
 * same bytes, and one writes, are ordered. And a chunk takes as many kernels and groups as
 * promised.
 */
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "support/internal_begin.h"
#include "cuda/places.h"
#include "cuda/schedule.h"
#include "support/internal_end.h"

namespace {

struct Shape {
    std::string name;
    dsc_collective collective;
    dsc_algorithm algorithm;
    int n_ranks;
    std::vector<std::vector<int>> tiers;
    size_t count;
    bool feedback = true;
    int root = 0;
};

std::vector<int> same(int n)
{
    return std::vector<int>((size_t)n, 0);
}

std::vector<Shape> shapes()
{
    std::vector<Shape> all;

    for (int n : { 2, 3, 5, 8, 33 })
        all.push_back({ "two_shot" + std::to_string(n),
                        DSC_ALLREDUCE,
                        DSC_ALG_TWO_SHOT,
                        n,
                        { same(n) },
                        10000u * (size_t)n + 77 });
    for (int n : { 1, 2, 8, 9, 13 })
        all.push_back({ "one_shot" + std::to_string(n),
                        DSC_ALLREDUCE,
                        n == 1 ? DSC_ALG_LOCAL : DSC_ALG_ONE_SHOT,
                        n,
                        { same(n) },
                        9000 });
    all.push_back({ "tiers3_4",
                    DSC_ALLREDUCE,
                    DSC_ALG_TWO_SHOT,
                    7,
                    { { 0, 0, 0, 1, 1, 1, 1 }, same(7) },
                    70001 });
    all.push_back({ "tiers2_2_2",
                    DSC_ALLREDUCE,
                    DSC_ALG_TWO_SHOT,
                    8,
                    { { 0, 0, 1, 1, 2, 2, 3, 3 }, { 0, 0, 0, 0, 1, 1, 1, 1 }, same(8) },
                    81000 });
    all.push_back({ "tiers1_6",
                    DSC_ALLREDUCE,
                    DSC_ALG_TWO_SHOT,
                    7,
                    { { 0, 1, 1, 1, 1, 1, 1 }, same(7) },
                    50000 });
    all.push_back({ "empty", DSC_ALLREDUCE, DSC_ALG_ONE_SHOT, 4, { same(4) }, 0 });
    all.push_back({ "scatter", DSC_REDUCE_SCATTER, DSC_ALG_TWO_SHOT, 4, { same(4) }, 40000 });
    all.push_back({ "gather", DSC_ALL_GATHER, DSC_ALG_TWO_SHOT, 4, { same(4) }, 40000 });
    all.push_back({ "broadcast", DSC_BROADCAST, DSC_ALG_DIRECT, 5, { same(5) }, 30000, false, 2 });
    all.push_back({ "to_all", DSC_ALL_TO_ALL, DSC_ALG_DIRECT, 5, { same(5) }, 30000 });
    return all;
}

struct Rank {
    dscomm_plan *plan = nullptr;
    dsc_schedule s = {};
    dsc_places places = {};

    Rank(const Shape &shape, int rank, const char *spec)
    {
        std::vector<int> groups;
        dsc_plan_params params = {};

        for (const auto &tier : shape.tiers)
            groups.insert(groups.end(), tier.begin(), tier.end());
        params.collective = shape.collective;
        params.algorithm = shape.algorithm;
        params.n_ranks = shape.n_ranks;
        params.rank = rank;
        params.root = shape.root;
        params.count = shape.count;
        params.feedback = shape.feedback;
        params.chunk_elems = 2048;
        params.n_tiers = (int)shape.tiers.size();
        params.groups = groups.data();
        for (auto &codec : params.codecs)
            codec = dscomm_codec(spec);
        EXPECT_EQ(dsc_plan_build(&params, &plan), DSCOMM_OK) << dscomm_last_error();
        EXPECT_EQ(dsc_schedule_build(plan, &s), DSCOMM_OK) << dscomm_last_error();
        EXPECT_TRUE(dsc_places_build(plan, &places));
    }
    ~Rank()
    {
        dsc_places_fini(&places);
        dsc_schedule_fini(&s);
        dsc_plan_destroy(plan);
    }
    Rank(const Rank &) = delete;
};

using Ranks = std::vector<std::unique_ptr<Rank>>;

Ranks make_ranks(const Shape &shape, const char *spec = "int8")
{
    Ranks ranks;

    for (int r = 0; r < shape.n_ranks; r++)
        ranks.push_back(std::make_unique<Rank>(shape, r, spec));
    return ranks;
}

class Schedule : public testing::TestWithParam<Shape> {};

/* An allreduce whose tiers are those that were asked for: above 32 ranks rows and columns are more.
 */
class Promised : public Schedule {};

std::vector<Shape> promised_shapes()
{
    std::vector<Shape> promised;

    for (const Shape &shape : shapes())
        if (shape.collective == DSC_ALLREDUCE && shape.n_ranks <= 32)
            promised.push_back(shape);
    return promised;
}

/* (from, to) -> the bytes of its messages, with the place of their groups, in their order. */
using Traffic =
    std::map<std::pair<int, int>, std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>>;

TEST_P(Schedule, groups_of_all_ranks_pair)
{
    const Ranks ranks = make_ranks(GetParam());
    Traffic sent, received;

    for (int r = 0; r < GetParam().n_ranks; r++) {
        const dsc_schedule &s = ranks[(size_t)r]->s;
        std::pair<uint32_t, uint32_t> last = { 0, 0 };

        for (uint32_t i = 0; i < s.n_nodes; i++) {
            const dsc_node &node = s.nodes[i];

            if (!node.is_group)
                continue;
            EXPECT_LE(last, std::make_pair(node.position, node.wire_stage)) << "groups in order";
            last = { node.position, node.wire_stage };
            for (uint32_t t = node.first; t < node.first + node.n; t++) {
                const dsc_transfer &x = s.transfers[t];
                const std::pair<int, int> way =
                    x.is_send ? std::make_pair(r, x.peer) : std::make_pair(x.peer, r);

                (x.is_send ? sent : received)[way].emplace_back(node.position, node.wire_stage,
                                                                x.bytes);
            }
        }
    }
    EXPECT_EQ(sent, received);
}

/* All that is known to be over when node i begins: its stream's earlier nodes, what they and it
 * waited for, and so on. */
std::vector<std::vector<bool>> order_of(const dsc_schedule &s)
{
    std::vector<std::vector<bool>> before(s.n_nodes, std::vector<bool>(s.n_nodes));
    uint32_t last[2] = { DSC_NO_NODE, DSC_NO_NODE };

    for (uint32_t i = 0; i < s.n_nodes; i++) {
        for (uint32_t j : { last[s.nodes[i].is_group], s.nodes[i].waits })
            if (j != DSC_NO_NODE) {
                EXPECT_LT(j, i) << "waits for what was not enqueued";
                EXPECT_TRUE(s.nodes[i].waits != j || s.nodes[j].is_waited);
                before[i][j] = true;
                for (uint32_t k = 0; k < s.n_nodes; k++)
                    before[i][k] = before[i][k] || before[j][k];
            }
        last[s.nodes[i].is_group] = i;
    }
    return before;
}

struct Use {
    uint32_t node;
    uint64_t at, end;
    bool writes;
};

/* What nodes do to staging memory, from the tables that the device gets. */
std::vector<Use> uses_of(const Rank &rank)
{
    const dsc_schedule &s = rank.s;
    std::vector<Use> uses;

    for (uint32_t i = 0; i < s.n_nodes; i++) {
        const dsc_node &node = s.nodes[i];

        for (uint32_t k = node.first; k < node.first + node.n; k++) {
            if (node.is_group) {
                const dsc_transfer &t = s.transfers[k];

                uses.push_back({ i, t.at, t.at + t.bytes, !t.is_send });
                continue;
            }
            const dsc_gpu_op &op = s.ops[s.tiles[k].op];

            if (s.tiles[k].first != 0)
                continue;
            if (op.out_at != DSC_GPU_NONE)
                uses.push_back({ i, op.out_at, op.out_at + 16, true });
            for (uint32_t r = op.first_recv; r < op.first_recv + op.n_recvs; r++)
                uses.push_back({ i, s.recvs[r].at, s.recvs[r].at + 16, false });
        }
    }
    return uses;
}

TEST_P(Schedule, what_touches_the_same_bytes_is_ordered)
{
    for (const auto &rank : make_ranks(GetParam())) {
        const auto before = order_of(rank->s);
        auto uses = uses_of(*rank);

        std::sort(uses.begin(), uses.end(), [](const Use &a, const Use &b) { return a.at < b.at; });
        for (size_t i = 0; i < uses.size(); i++)
            for (size_t j = i + 1; j < uses.size() && uses[j].at < uses[i].end; j++) {
                const Use &a = uses[i], &b = uses[j];

                if (a.node != b.node && (a.writes || b.writes))
                    ASSERT_TRUE(before[a.node][b.node] || before[b.node][a.node])
                        << "nodes " << a.node << " and " << b.node << " at " << b.at;
            }
        EXPECT_LE(uses.empty() ? 0 : uses.back().at, rank->s.messages_bytes);
    }
}

/* In the order of enqueuing every place is written, then read, then written again. */
TEST_P(Schedule, what_is_read_was_written)
{
    for (const auto &rank : make_ranks(GetParam())) {
        std::map<uint64_t, bool>
            is_read; /* a place that was written, and whether somebody read it */

        for (const Use &use : uses_of(*rank)) {
            const auto place = is_read.find(use.at);

            if (!use.writes)
                ASSERT_NE(place, is_read.end())
                    << "node " << use.node << " reads what nobody wrote";
            else if (place != is_read.end())
                ASSERT_TRUE(place->second) << "node " << use.node << " writes what nobody read";
            is_read[use.at] = !use.writes;
        }
    }
}

TEST_P(Schedule, every_element_of_an_operation_is_in_one_tile)
{
    for (const auto &rank : make_ranks(GetParam())) {
        const dsc_schedule &s = rank->s;
        size_t in_tiles = 0, in_ops = 0;

        for (uint32_t i = 0; i < s.n_nodes; i++) {
            const dsc_node &node = s.nodes[i];

            for (uint32_t k = node.first; !node.is_group && k < node.first + node.n; k++) {
                const dsc_gpu_op &op = s.ops[s.tiles[k].op];
                const uint32_t step =
                    dsc_gpu_tile_elems(node.stage, node.codec, rank->plan->params.dtype);

                EXPECT_LT(s.tiles[k].first, op.n);
                in_tiles += std::min(step, op.n - s.tiles[k].first);
            }
        }
        for (uint32_t i = 0; i < rank->plan->n_ops; i++)
            in_ops += rank->plan->ops[i].kind == DSC_OP_GATHER ? 0 : rank->plan->ops[i].n;
        EXPECT_EQ(in_tiles, in_ops);
        EXPECT_EQ(s.tx_bytes, rank->plan->payload_tx_bytes);
    }
}

/* Of T tiers with one codec: T + 2 kernels and 2T groups per position. */
TEST_P(Promised, kernels_and_groups_per_chunk)
{
    for (const auto &rank : make_ranks(GetParam())) {
        const dsc_schedule &s = rank->s;
        const uint32_t tiers = (uint32_t)rank->plan->params.n_tiers;
        const bool forwards = rank->plan->params.algorithm == DSC_ALG_ONE_SHOT;
        std::map<uint32_t, uint32_t> kernels, groups;

        for (uint32_t i = 0; i < s.n_nodes; i++)
            (s.nodes[i].is_group ? groups : kernels)[s.nodes[i].position]++;
        for (const auto &step : kernels)
            EXPECT_LE(step.second, tiers + 2) << "step " << step.first;
        for (const auto &step : groups)
            EXPECT_LE(step.second, forwards ? 4 : 2 * tiers) << "position " << step.first;
    }
}

INSTANTIATE_TEST_SUITE_P(all, Schedule, testing::ValuesIn(shapes()),
                         [](const auto &info) { return info.param.name; });
INSTANTIATE_TEST_SUITE_P(all, Promised, testing::ValuesIn(promised_shapes()),
                         [](const auto &info) { return info.param.name; });

/* While a sum is computed the next chunk is on its way: no group waits for the kernel before. */
TEST(Overlap, a_group_waits_for_the_encoder_alone)
{
    Shape shape = { "", DSC_ALLREDUCE, DSC_ALG_TWO_SHOT, 4, { same(4) }, 100000 };
    const Ranks ranks = make_ranks(shape);
    const dsc_schedule &s = ranks[1]->s;
    uint32_t seen = 0;

    for (uint32_t i = 0; i < s.n_nodes; i++) {
        const dsc_node &node = s.nodes[i];

        if (!node.is_group || node.wire_stage != 1 || node.waits == DSC_NO_NODE)
            continue;
        EXPECT_EQ(s.nodes[node.waits].stage, DSC_GPU_ENCODE);
        EXPECT_EQ(s.nodes[node.waits].position, node.position);
        seen++;
    }
    EXPECT_GT(seen, 5u);
}

} // namespace
