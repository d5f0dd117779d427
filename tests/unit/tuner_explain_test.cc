/* SPDX-License-Identifier: Apache-2.0 */
/* The public side of the tuner: machines from files, the table in a caller's buffer. */
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "unit/tuner_support.h"

namespace {

/* Two GPUs of a kind joined by NVLink, as plain text tells it. */
class Explain : public testing::Test {
  protected:
    void SetUp() override
    {
        dscomm_set_log([](void *, dscomm_log_level_t, const char *) {}, nullptr);
        std::ofstream(path_) << "gpu a numa 0 bus 0000:01:00.0 sm 90\n"
                                "gpu b numa 0 bus 0000:02:00.0 sm 90\n"
                                "link a b nvlink count 4\n"
                                "nic mlx5_0 numa 0 bus 0000:03:00.0 gbit 200\n";
        config_.topo = path_.c_str();
        query_.count = 1 << 22;
        query_.dtype = DSCOMM_BFLOAT16;
    }

    void TearDown() override
    {
        dscomm_tuner_destroy(tuner_);
        unlink(path_.c_str());
        dscomm_set_log(nullptr, nullptr);
    }

    std::string text(dscomm_explain_format_t format = DSCOMM_EXPLAIN_TEXT)
    {
        size_t needed = 0;
        EXPECT_EQ(dscomm_tuner_explain_text(tuner_, &query_, format, nullptr, 0, &needed),
                  DSCOMM_OK)
            << dscomm_last_error();
        std::vector<char> buf(needed);
        EXPECT_EQ(dscomm_tuner_explain_text(tuner_, &query_, format, buf.data(), needed, nullptr),
                  DSCOMM_OK);
        return buf.data();
    }

    const std::string path_ = testing::TempDir() + "explain_" + std::to_string(getpid()) + ".txt";
    dscomm_tuner_config_t config_ = DSCOMM_TUNER_CONFIG_INIT;
    dscomm_tuner_query_t query_ = DSCOMM_TUNER_QUERY_INIT;
    dscomm_tuner_t *tuner_ = nullptr;
};

TEST_F(Explain, TableOfATopology)
{
    config_.nodes = 4;
    ASSERT_EQ(dscomm_tuner_create(&config_, &tuner_), DSCOMM_OK) << dscomm_last_error();
    EXPECT_EQ(dscomm_tuner_n_ranks(tuner_), 8);
    EXPECT_EQ(dscomm_tuner_n_tiers(tuner_), 2);
    const std::string t = text();
    EXPECT_NE(t.find("tier 0      fabric, groups 4, 100000 MB/s per rank"), std::string::npos) << t;
    /* 25 GB/s of the NIC for two GPUs. */
    EXPECT_NE(t.find("tier 1      rdma, groups 1, 12500 MB/s per rank"), std::string::npos) << t;
    EXPECT_NE(t.find("int8"), std::string::npos);
    EXPECT_NE(t.find("not in the budget"), std::string::npos);
    EXPECT_EQ(text(), t) << "the same every time";
    EXPECT_EQ(text(DSCOMM_EXPLAIN_JSON)[0], '{');
}

TEST_F(Explain, BufferGetsAllOrNothing)
{
    ASSERT_EQ(dscomm_tuner_create(&config_, &tuner_), DSCOMM_OK) << dscomm_last_error();
    size_t needed = 0;
    char small[8] = "before";
    EXPECT_EQ(dscomm_tuner_explain_text(tuner_, &query_, DSCOMM_EXPLAIN_TEXT, small, sizeof(small),
                                        &needed),
              DSCOMM_ERR_LIMIT);
    EXPECT_STREQ(small, "before");
    EXPECT_EQ(needed, text().size() + 1);
}

TEST_F(Explain, BadQueriesNameTheField)
{
    ASSERT_EQ(dscomm_tuner_create(&config_, &tuner_), DSCOMM_OK) << dscomm_last_error();
    const auto refused = [&](const char *want) {
        size_t needed = 7;
        EXPECT_EQ(
            dscomm_tuner_explain_text(tuner_, &query_, DSCOMM_EXPLAIN_TEXT, nullptr, 0, &needed),
            DSCOMM_ERR_INVALID);
        EXPECT_NE(std::string(dscomm_last_error()).find(want), std::string::npos)
            << dscomm_last_error();
        EXPECT_EQ(needed, 7u);
        query_ = DSCOMM_TUNER_QUERY_INIT;
    };
    query_.struct_bytes--;
    refused("query struct_bytes 47, must be 48");
    query_.budget = "lots";
    refused("budget 'lots', must be exact, high");
    query_.budget = nullptr;
    refused("budget '(null)'");
    query_.overlap = 2;
    refused("overlap 2, must be -1 to 1");
    query_.dtype = dscomm_dtype_t(9);
    refused("dtype 9");
    query_.op = dscomm_op_t(9);
    refused("op 9");
    query_.count = SIZE_MAX;
    refused("count");
    EXPECT_EQ(dscomm_tuner_explain(tuner_, &query_, DSCOMM_EXPLAIN_TEXT, nullptr),
              DSCOMM_ERR_INVALID);
    EXPECT_EQ(dscomm_tuner_explain(nullptr, &query_, DSCOMM_EXPLAIN_TEXT, stdout),
              DSCOMM_ERR_INVALID);
}

TEST_F(Explain, BadMachinesNameTheField)
{
    const auto refused = [&](const char *want) {
        EXPECT_EQ(dscomm_tuner_create(&config_, &tuner_), DSCOMM_ERR_INVALID);
        EXPECT_NE(std::string(dscomm_last_error()).find(want), std::string::npos)
            << dscomm_last_error();
        EXPECT_EQ(tuner_, nullptr);
        config_ = DSCOMM_TUNER_CONFIG_INIT;
        config_.topo = path_.c_str();
    };
    config_.struct_bytes = 3;
    refused("tuner config struct_bytes 3, must be");
    config_.local = 3;
    refused("local 3, ");
    config_.nodes = -1;
    refused("nodes -1, must be 0 to 65535");
    config_.nodes = 65535;
    refused("65535 nodes of 2 ranks, at most 65535 ranks");
    config_.tiers = "0-1";
    refused("tiers '0-1' with a topology");
    config_.profile = "x";
    refused("only one of them");
    EXPECT_EQ(dscomm_tuner_create(&config_, nullptr), DSCOMM_ERR_INVALID);
}

/* What memory moves per element, by the formulas of docs/tuner.md, is what the seed's test has. */
TEST_F(Explain, DeclaredSpeedsAreMemoryTraffic)
{
    config_.memory_bytes_per_s = 4300000000000;
    ASSERT_EQ(dscomm_tuner_create(&config_, &tuner_), DSCOMM_OK) << dscomm_last_error();
    for (const tuner_test::Moved &m : tuner_test::frozen_kernels()) {
        if (std::string(m.spec) == "none" || std::string(m.spec) == "fp32")
            continue; /* the test's have no residual */
        const struct dsc_codec_speed *const s =
            dsc_rates_speed(&tuner_->rates, m.spec, DSCOMM_BFLOAT16, true);
        ASSERT_NE(s, nullptr) << m.spec;
        const double fs = 1000 / 4.3;
        EXPECT_NEAR(s->send_fs, m.send * fs, 0.02 * m.send * fs) << m.spec;
        EXPECT_NEAR(s->own_fs, m.own * fs, 0.02 * m.own * fs) << m.spec;
        EXPECT_NEAR(s->decode_fs, m.decode * fs, 0.03 * m.decode * fs) << m.spec;
    }
}

TEST_F(Explain, ThousandsOfRanks)
{
    config_.nodes = 700;
    ASSERT_EQ(dscomm_tuner_create(&config_, &tuner_), DSCOMM_OK) << dscomm_last_error();
    EXPECT_EQ(dscomm_tuner_n_ranks(tuner_), 1400);
    EXPECT_NE(text().find("choice      int8"), std::string::npos);
}

std::string printed(const struct dsc_explain &about, dscomm_explain_format_t format)
{
    char *text = nullptr;
    size_t n = 0;
    FILE *const file = open_memstream(&text, &n);

    EXPECT_EQ(dsc_explain_print(&about, format, file), DSCOMM_OK);
    fclose(file);
    const std::string copy = text;
    free(text);
    return copy;
}

/* A line's chunk is one that can be had, though a longer one would cost less. */
TEST(ExplainLines, ShowChunksThatAreAdmitted)
{
    struct dsc_rates rates = tuner_test::frozen_device({ { DSC_TIER_TCP, 1, 30000 } });
    struct dsc_question q = tuner_test::question_of(4, {}, 1 << 24, "exact");
    const struct dsc_explain about = { &q, &rates, "test", "" };

    rates.op_ns = 100000;
    EXPECT_NE(printed(about, DSCOMM_EXPLAIN_TEXT).find(" 262144 "), std::string::npos);
    q.codec = dscomm_codec("none");
    q.message_bytes = 262144;
    EXPECT_NE(printed(about, DSCOMM_EXPLAIN_JSON).find("connections carry 262144"),
              std::string::npos);
    EXPECT_EQ(printed(about, DSCOMM_EXPLAIN_TEXT).find("connections carry"), std::string::npos)
        << printed(about, DSCOMM_EXPLAIN_TEXT);
}

} /* namespace */
