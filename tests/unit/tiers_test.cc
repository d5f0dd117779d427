/* SPDX-License-Identifier: Apache-2.0 */
/* tiers: from facts of all ranks, from DSCOMM_TIERS, and the facts of a rank from a topology. */
#include "support/internal_begin.h"
#include "plan/plan.h"
#include "topo/topo.h"
#include "support/internal_end.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

namespace {

using Facts = std::vector<struct dsc_tier_facts>;

class Tiers : public testing::Test {
  protected:
    void SetUp() override
    {
        dscomm_set_log([](void *, dscomm_log_level_t, const char *) {}, nullptr);
    }

    void TearDown() override
    {
        dsc_tiers_fini(&tiers_);
        dsc_mem_fail_after(-1);
        dscomm_set_log(nullptr, nullptr);
        EXPECT_EQ(dsc_mem_live(DSC_MEM_TOPO), 0u);
    }

    dscomm_status_t build(const Facts &facts, const char *given = "")
    {
        dsc_tiers_fini(&tiers_);
        return dsc_tiers_build(facts.data(), static_cast<int>(facts.size()), given, &tiers_);
    }

    std::string text() const
    {
        std::string buf(dsc_tiers_text(&tiers_, nullptr, 0) + 1, '\0');

        EXPECT_EQ(dsc_tiers_text(&tiers_, buf.data(), buf.size()), buf.size() - 1);
        buf.pop_back();
        return buf;
    }

    std::string built(const Facts &facts, const char *given = "")
    {
        EXPECT_EQ(build(facts, given), DSCOMM_OK) << dscomm_last_error();
        return text();
    }

    int group(int tier, int rank) const
    {
        return tiers_.groups[tier * tiers_.n_ranks + rank];
    }

    struct dsc_tiers tiers_ = {};
};

/* Ranks in a row: how many on each host. */
Facts hosts(std::initializer_list<int> sizes)
{
    Facts facts;
    uint64_t host = 100;

    for (const int n : sizes) {
        host++;
        for (int i = 0; i < n; i++)
            facts.push_back({ 0, host, 0, 0 });
    }
    return facts;
}

TEST_F(Tiers, GroupsOfAnySize)
{
    EXPECT_EQ(built(hosts({ 3, 4 })), "0-2|3-6/0-6");
    EXPECT_EQ(built(hosts({ 1, 6 })), "0|1-6/0-6");
    EXPECT_EQ(built(hosts({ 5, 2 })), "0-4|5-6/0-6");
    EXPECT_EQ(built(hosts({ 1, 1, 1, 5 })), "0|1|2|3-7/0-7");
    EXPECT_EQ(tiers_.kinds[0], DSC_TIER_HOST);
    EXPECT_EQ(tiers_.kinds[1], DSC_TIER_TCP);
}

/* A kind of link that joins nobody makes no tier. */
TEST_F(Tiers, NoMoreThanNeeded)
{
    EXPECT_EQ(built(hosts({ 1 })), "0");
    EXPECT_EQ(built(hosts({ 1, 1, 1 })), "0-2");
    EXPECT_EQ(tiers_.kinds[0], DSC_TIER_TCP);
    EXPECT_EQ(built(hosts({ 4 })), "0-3");
    EXPECT_EQ(tiers_.kinds[0], DSC_TIER_HOST);
    EXPECT_EQ(built(Facts(4)), "0-3"); /* nothing is known */
    EXPECT_EQ(tiers_.kinds[0], DSC_TIER_TCP);
}

TEST_F(Tiers, AllKinds)
{
    Facts facts;

    for (uint64_t r = 0; r < 16; r++)
        facts.push_back({ 1 + r / 2, 1 + r / 4, 1 + r / 8, 0 });
    EXPECT_EQ(built(facts),
              "0-1|2-3|4-5|6-7|8-9|10-11|12-13|14-15/0-3|4-7|8-11|12-15/0-7|8-15/0-15");
    EXPECT_EQ(tiers_.n_tiers, 4);
    for (auto &f : facts)
        f.rdma = 7;
    ASSERT_EQ(build(facts), DSCOMM_OK);
    EXPECT_EQ(tiers_.kinds[3], DSC_TIER_RDMA);
    EXPECT_EQ(tiers_.n_tiers, 4);
}

TEST_F(Tiers, RanksInAnyOrder)
{
    Facts facts;

    for (uint64_t r = 0; r < 7; r++)
        facts.push_back({ 0, 1 + r % 2, 0, 0 });
    EXPECT_EQ(built(facts), "0,2,4,6|1,3,5/0-6");
}

/* A rank whose host is not known is on none, not on that of others like it. */
TEST_F(Tiers, UnknownIsNotEqual)
{
    Facts facts = hosts({ 2, 2 });

    facts.push_back({});
    facts.push_back({});
    EXPECT_EQ(built(facts), "0-1|2-3|4|5/0-5");
}

/* Facts that contradict each other still give tiers that nest. */
TEST_F(Tiers, FalseFactsNest)
{
    const Facts facts = { { 5, 1, 0, 0 }, { 5, 2, 0, 0 }, { 0, 2, 0, 0 }, { 0, 3, 0, 0 } };

    EXPECT_EQ(built(facts), "0-1|2|3/0-2|3/0-3"); /* one fabric over two hosts joins the hosts */
}

bool is_joined(const Facts &facts, int kind, size_t a, size_t b)
{
    const uint64_t x[] = { facts[a].fabric, facts[a].host, facts[a].rack, facts[a].rdma };
    const uint64_t y[] = { facts[b].fabric, facts[b].host, facts[b].rack, facts[b].rdma };

    for (int k = 0; k <= kind && k < 4; k++)
        if (x[k] != 0 && x[k] == y[k])
            return true;
    return kind >= DSC_TIER_TCP;
}

/* Groups by the definition: joined directly or through others by links up to a kind. */
std::vector<int> closure(const Facts &facts, int kind)
{
    std::vector<int> label(facts.size());

    for (size_t i = 0; i < label.size(); i++)
        label[i] = static_cast<int>(i);
    for (size_t round = 0; round < label.size(); round++)
        for (size_t a = 0; a < label.size(); a++)
            for (size_t b = 0; b < label.size(); b++)
                if (is_joined(facts, kind, a, b))
                    label[a] = label[b] = std::min(label[a], label[b]);
    return label;
}

TEST_F(Tiers, RandomFacts)
{
    std::mt19937 random(7);

    for (int round = 0; round < 2000; round++) {
        Facts facts(1 + random() % 12);
        std::vector<int> before(facts.size());
        int tier = 0;

        for (auto &f : facts)
            f = { random() % 7, random() % 4, random() % 3, random() % 3 };
        for (size_t i = 0; i < before.size(); i++)
            before[i] = static_cast<int>(i);
        ASSERT_EQ(build(facts), DSCOMM_OK);
        for (int kind = DSC_TIER_FABRIC; kind <= DSC_TIER_TCP; kind++) {
            const std::vector<int> expected = closure(facts, kind);

            if (expected == before && !(facts.size() == 1 && kind == DSC_TIER_TCP))
                continue;
            ASSERT_LT(tier, tiers_.n_tiers);
            EXPECT_EQ(tiers_.kinds[tier], kind);
            for (size_t a = 0; a < facts.size(); a++)
                for (size_t b = 0; b < facts.size(); b++)
                    EXPECT_EQ(group(tier, static_cast<int>(a)) == group(tier, static_cast<int>(b)),
                              expected[a] == expected[b]);
            before = expected;
            tier++;
        }
        EXPECT_EQ(tier, tiers_.n_tiers);

        const std::string shown = text(); /* and what is shown can be given */
        const std::vector<int> groups(tiers_.groups,
                                      tiers_.groups + tiers_.n_tiers * tiers_.n_ranks);

        ASSERT_EQ(build(facts, shown.c_str()), DSCOMM_OK) << shown;
        EXPECT_EQ(std::vector<int>(tiers_.groups, tiers_.groups + tiers_.n_tiers * tiers_.n_ranks),
                  groups);
        EXPECT_EQ(tiers_.kinds[0], DSC_TIER_GIVEN);
    }
}

/* The plan takes them as they are. */
TEST_F(Tiers, PlanTakesThem)
{
    ASSERT_LE(DSC_TIERS_MAX, DSC_MAX_TIERS);
    for (const auto &facts :
         { hosts({ 3, 4 }), hosts({ 1, 6 }), hosts({ 1, 1, 1, 5 }), hosts({ 40, 2 }) }) {
        ASSERT_EQ(build(facts), DSCOMM_OK);

        struct dsc_plan_params params = {};
        struct dscomm_plan *plan = nullptr;

        params.n_ranks = tiers_.n_ranks;
        params.count = 100000;
        params.dtype = DSCOMM_FLOAT32;
        params.op = DSCOMM_SUM;
        params.algorithm = DSC_ALG_TWO_SHOT;
        params.chunk_elems = 65536;
        params.n_tiers = tiers_.n_tiers;
        params.groups = tiers_.groups;
        for (int t = 0; t < tiers_.n_tiers; t++)
            params.codecs[t] = dscomm_codec("int8");
        EXPECT_EQ(dsc_plan_build(&params, &plan), DSCOMM_OK) << dscomm_last_error();
        dsc_plan_destroy(plan);
    }
}

TEST_F(Tiers, ManyRanks)
{
    Facts facts;

    for (uint64_t r = 0; r < 16384; r++)
        facts.push_back({ 1 + r / 8, 1 + r / 8, 1 + r / 64, 1 });
    ASSERT_EQ(build(facts), DSCOMM_OK);
    EXPECT_EQ(tiers_.n_tiers, 3);
    EXPECT_EQ(group(0, 16383), 2047);
    EXPECT_EQ(group(1, 16383), 255);
    EXPECT_EQ(group(2, 16383), 0);
}

TEST_F(Tiers, Given)
{
    const Facts facts = hosts({ 7 });

    EXPECT_EQ(built(facts, "flat"), "0-6");
    EXPECT_EQ(built(facts, "0-2|3-6"), "0-2|3-6/0-6");
    EXPECT_EQ(built(facts, "0-6"), "0-6");
    EXPECT_EQ(built(facts, "6,0|5-5,1-2|3,4"), "0,6|1-2,5|3-4/0-6");
    EXPECT_EQ(built(facts, "0-1|2-3|4-6/0-3|4-6/0-6"), "0-1|2-3|4-6/0-3|4-6/0-6");
    EXPECT_EQ(built(facts, "0|1|2|3|4|5|6"), "0|1|2|3|4|5|6/0-6");
}

TEST_F(Tiers, GivenBadly)
{
    const struct {
        const char *given, *reason;
    } cases[] = {
        { "0-2", "missing is rank 3" },
        { "0-2|3-7", "no such rank, they are 0 to 6" },
        { "0-2|2-6", "listed twice in one tier: rank 2" },
        { "2-0|3-6", "range goes down, from rank 2" },
        { "0-2||3-6", "expected a rank" },
        { "0-2|3-6/", "expected a rank" },
        { "/0-6", "expected a rank" },
        { "0-6 ", "expected one of" },
        { "0-2+3-6", "expected one of" },
        { "-1", "expected a rank" },
        { "99999999999999999999", "no such rank" },
        { "0-2|3-6/0-1|2-6", "parts ranks that the tier before joins: rank 2" },
        { "Flat", "expected a rank" },
        { "0-6/0-6/0-6/0-6/0-6/0-6/0-6/0-6", "too many tiers, at most 7" },
    };

    for (const auto &c : cases) {
        EXPECT_EQ(build(hosts({ 7 }), c.given), DSCOMM_ERR_ENV) << c.given;
        EXPECT_NE(std::string(dscomm_last_error()).find(c.reason), std::string::npos)
            << dscomm_last_error();
        EXPECT_NE(std::string(dscomm_last_error()).find("DSCOMM_TIERS \""), std::string::npos);
        EXPECT_EQ(tiers_.groups, nullptr);
    }
    EXPECT_EQ(dsc_tiers_build(nullptr, 0, "", &tiers_), DSCOMM_ERR_INVALID);
}

/* Whatever is written: tiers that a plan takes and that are written the same way, or an error. */
TEST_F(Tiers, GivenAnything)
{
    static const char letters[] = "0123456789-,|/ fx\n";
    const Facts facts = hosts({ 7 });
    int n_taken = 0;

    for (unsigned seed = 0; seed < 20000; seed++) {
        std::mt19937 random(seed);
        std::string given = seed % 2 == 0 ? "0-1|2-3|4-6/0-3|4-6" : "0,3,5|1,2,4,6";

        for (unsigned k = random() % 4 + 1; k > 0; k--) {
            const size_t at = random() % (given.size() + 1);
            const std::string letter(1, letters[random() % (sizeof(letters) - 1)]);

            given.replace(at, random() % 2, random() % 3 > 0 ? letter : "");
        }
        const dscomm_status_t st = build(facts, given.c_str());
        ASSERT_TRUE(st == DSCOMM_OK || st == DSCOMM_ERR_ENV) << given << ": " << st;
        n_taken += st == DSCOMM_OK;
        if (st == DSCOMM_OK) {
            const std::string again = text();

            EXPECT_EQ(built(facts, again.c_str()), again) << given;
        }
    }
    EXPECT_GT(n_taken, 200);
}

TEST_F(Tiers, TextIsCut)
{
    char buf[6] = "xxxxx";

    ASSERT_EQ(build(hosts({ 3, 4 })), DSCOMM_OK);
    EXPECT_EQ(dsc_tiers_text(&tiers_, buf, sizeof(buf)), 11u);
    EXPECT_STREQ(buf, "0-2|3");
}

TEST_F(Tiers, NoMemory)
{
    for (const char *given : { "", "0-2|3-6" }) {
        bool was_enough = false;

        for (int64_t n = 1; n < 20 && !was_enough; n++) {
            dsc_mem_fail_after(n);

            const dscomm_status_t st = build(hosts({ 3, 4 }), given);

            dsc_mem_fail_after(-1);
            was_enough = st == DSCOMM_OK;
            if (!was_enough)
                EXPECT_EQ(st, DSCOMM_ERR_NO_MEMORY);
            dsc_tiers_fini(&tiers_);
            EXPECT_EQ(dsc_mem_live(DSC_MEM_TOPO), 0u);
        }
        EXPECT_TRUE(was_enough);
    }
}

/* ---- facts of ranks, one per GPU of a host ---- */

Facts facts_of(const std::string &text, const char *host, int n_gpus)
{
    dscomm_topo_t *topo = nullptr;
    Facts facts(static_cast<size_t>(n_gpus));

    EXPECT_EQ(dsc_topo_load_text("test", text.data(), text.size(), nullptr, &topo), DSCOMM_OK)
        << dscomm_last_error();
    for (int i = 0; i < n_gpus; i++)
        dsc_tier_facts_of(topo, dscomm_topo_find(topo, ("gpu" + std::to_string(i)).c_str()), host,
                          &facts[static_cast<size_t>(i)]);
    dscomm_topo_destroy(topo);
    return facts;
}

/* Links of pairs: "0-1 2-3". */
std::string with_links(int n_gpus, std::initializer_list<std::pair<int, int>> links)
{
    std::string text;

    for (int i = 0; i < n_gpus; i++)
        text += "gpu g" + std::to_string(i) + " bus " + std::to_string(10 + i) + ":0.0\n";
    for (const auto &link : links)
        text += "link g" + std::to_string(link.first) + " g" + std::to_string(link.second) +
                " nvlink count 2\n";
    return text;
}

TEST_F(Tiers, FactsOfPairs)
{
    EXPECT_EQ(built(facts_of(with_links(4, { { 0, 2 }, { 1, 3 } }), "a", 4)), "0,2|1,3/0-3");
    EXPECT_EQ(built(facts_of(with_links(4, {}), "a", 4)), "0-3");
}

/* Two squares with diagonals, joined at their corners: a tier is where all are joined to all. */
TEST_F(Tiers, FactsOfACubeMesh)
{
    const std::string text = with_links(8, { { 0, 1 },
                                             { 0, 2 },
                                             { 0, 3 },
                                             { 1, 2 },
                                             { 1, 3 },
                                             { 2, 3 },
                                             { 4, 5 },
                                             { 4, 6 },
                                             { 4, 7 },
                                             { 5, 6 },
                                             { 5, 7 },
                                             { 6, 7 },
                                             { 0, 4 },
                                             { 1, 5 },
                                             { 2, 6 },
                                             { 3, 7 } });

    EXPECT_EQ(built(facts_of(text, "a", 8)), "0-3|4-7/0-7");
}

std::string with_switch(int n_gpus)
{
    std::string text = "<system version=\"1\"><cpu numaid=\"0\">";

    for (int i = 0; i < n_gpus; i++)
        text += "<pci busid=\"0000:" + std::to_string(10 + i) +
                ":00.0\" class=\"0x030200\"><gpu dev=\"" + std::to_string(i) +
                "\" sm=\"90\" rank=\"" + std::to_string(i) +
                "\"><nvlink target=\"0000:f0:00.0\" count=\"18\" tclass=\"0x068000\"/></gpu></pci>";
    return text + "</cpu></system>";
}

/* Equal bus ids on two hosts: the host is part of the key. */
TEST_F(Tiers, FactsOfTwoHostsWithSwitches)
{
    Facts facts = facts_of(with_switch(3), "boot-1", 3),
          more = facts_of(with_switch(4), "boot-2", 4);

    facts.insert(facts.end(), more.begin(), more.end());
    EXPECT_EQ(built(facts), "0-2|3-6/0-6");
    EXPECT_EQ(tiers_.kinds[0], DSC_TIER_FABRIC); /* the whole host: no tier of its own */
}

/* Containers that see different GPUs of one host still find the same switch. */
TEST_F(Tiers, FactsOfContainersOfOneHost)
{
    const Facts all = facts_of(with_switch(4), "boot-1", 4);
    const Facts some = facts_of(with_switch(2), "boot-1", 2);

    EXPECT_EQ(all[3].fabric, some[0].fabric);
    EXPECT_EQ(all[3].host, some[0].host);
    EXPECT_NE(all[3].fabric, 0u);
}

TEST_F(Tiers, FactsWithoutAHostOrDevice)
{
    const Facts none = facts_of(with_switch(2), "", 2);

    EXPECT_EQ(none[0].host | none[0].fabric | none[0].rack | none[0].rdma, 0u);

    dscomm_topo_t *topo = nullptr;
    struct dsc_tier_facts facts = {};
    const std::string text = with_switch(1);

    ASSERT_EQ(dsc_topo_load_text("t", text.data(), text.size(), nullptr, &topo), DSCOMM_OK);
    for (const int device : { -1, 0, 1000000 }) {
        dsc_tier_facts_of(topo, device, "a", &facts);
        EXPECT_EQ(facts.fabric, 0u);
        EXPECT_NE(facts.host, 0u);
    }
    dscomm_topo_destroy(topo);
}

} // namespace
