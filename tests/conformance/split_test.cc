/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators made by splitting: who is in which, in which order, and that each lives by itself.
 */
#include "conformance/field_support.h"

#include "support/internal_begin.h"
#include "comm/comm.h"
#include "support/internal_end.h"

namespace {

dscomm_status_t sum_one(dscomm_comm_t *comm, float value, float *sum)
{
    return dscomm_allreduce_compressed(&value, sum, 1, DSCOMM_FLOAT32, DSCOMM_SUM, nullptr, nullptr,
                                       comm, nullptr);
}

class Split : public testing::TestWithParam<const char *> {};

/* Rank 4 is in none; the others by parity, in falling order. */
TEST_P(Split, ColorsAndKeys)
{
    World w(6, GetParam());

    w.each([&](int r) {
        dscomm_comm_t *const all = w.comms[(size_t)r];
        dscomm_comm_t *part = all;
        float sum = 0.0f;

        ASSERT_EQ(dscomm_comm_split(all, r == 4 ? -1 : r % 2, -r, nullptr, &part), DSCOMM_OK)
            << dscomm_last_error();
        if (r == 4) {
            EXPECT_EQ(part, nullptr);
        } else {
            const int n = r % 2 ? 3 : 2; /* 5 3 1 and 2 0 */

            EXPECT_EQ(dscomm_comm_n_ranks(part), n);
            EXPECT_EQ(dscomm_comm_rank(part), n - 1 - r / 2);
            for (int i = 0; i < 3; i++) {
                ASSERT_EQ(sum_one(part, (float)r, &sum), DSCOMM_OK) << dscomm_last_error();
                EXPECT_EQ(sum, r % 2 ? 9.0f : 2.0f);
            }
        }
        ASSERT_EQ(sum_one(all, 1.0f, &sum), DSCOMM_OK); /* the old one works on */
        EXPECT_EQ(sum, 6.0f);
        dscomm_comm_destroy(part);
        ASSERT_EQ(sum_one(all, 1.0f, &sum), DSCOMM_OK);
    });
}

/* Equal keys keep the order of ranks; a split can be split; extreme numbers are numbers. */
TEST_P(Split, AgainAndWithAnyNumbers)
{
    World w(4, GetParam());

    w.each([&](int r) {
        dscomm_comm_t *half = nullptr, *one = nullptr;
        float sum = 0.0f;

        ASSERT_EQ(
            dscomm_comm_split(w.comms[(size_t)r], r < 2 ? INT32_MAX : 0, INT32_MIN, nullptr, &half),
            DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_EQ(dscomm_comm_n_ranks(half), 2);
        EXPECT_EQ(dscomm_comm_rank(half), r % 2);
        ASSERT_EQ(dscomm_comm_split(half, dscomm_comm_rank(half), INT32_MAX, nullptr, &one),
                  DSCOMM_OK)
            << dscomm_last_error();
        EXPECT_EQ(dscomm_comm_n_ranks(one), 1);
        ASSERT_EQ(sum_one(one, 3.0f, &sum), DSCOMM_OK);
        EXPECT_EQ(sum, 3.0f);
        dscomm_comm_destroy(one);
        dscomm_comm_destroy(half);
    });
}

TEST_P(Split, SettingsAreInherited)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.timeout_ms = 4321;
    config.chunk_bytes = 8192;
    config.algorithm = "twoshot";
    config.min_bytes = 99;
    config.preserve_input = 1;
    config.n_threads = 2;
    World w(2, GetParam(), config);

    w.each([&](int r) {
        dscomm_comm_t *part = nullptr;
        dscomm_comm_config_t got = DSCOMM_COMM_CONFIG_INIT;

        ASSERT_EQ(dscomm_comm_split(w.comms[(size_t)r], 0, 0, nullptr, &part), DSCOMM_OK);
        dsc_comm_config_of(part, &got);
        EXPECT_EQ(got.timeout_ms, 4321);
        EXPECT_EQ(got.chunk_bytes, 8192u);
        EXPECT_STREQ(got.algorithm, "twoshot");
        EXPECT_STREQ(got.transport, GetParam());
        EXPECT_EQ(got.min_bytes, 99u);
        EXPECT_EQ(got.preserve_input, 1);
        EXPECT_EQ(got.n_threads, 2);
        dscomm_comm_destroy(part);
    });
}

/* An abort of the part leaves the whole alone, and the other way round. */
TEST_P(Split, FailuresAreApart)
{
    for (bool abort_part : { true, false }) {
        World w(3, GetParam());
        std::vector<dscomm_comm_t *> parts(3);

        w.each([&](int r) {
            float sum = 0.0f;

            ASSERT_EQ(dscomm_comm_split(w.comms[(size_t)r], 0, 0, nullptr, &parts[(size_t)r]),
                      DSCOMM_OK);
            ASSERT_EQ(sum_one(parts[(size_t)r], 1.0f, &sum), DSCOMM_OK);
        });
        EXPECT_EQ(dscomm_comm_abort((abort_part ? parts : w.comms)[1]), DSCOMM_OK);
        w.each([&](int r) {
            float sum = 0.0f;

            EXPECT_LT(sum_one((abort_part ? parts : w.comms)[(size_t)r], 1.0f, &sum), 0);
            ASSERT_EQ(sum_one((abort_part ? w.comms : parts)[(size_t)r], 2.0f, &sum), DSCOMM_OK)
                << dscomm_last_error();
            EXPECT_EQ(sum, 6.0f);
        });
        w.each([&](int r) { dscomm_comm_destroy(parts[(size_t)r]); });
    }
}

TEST_P(Split, ErrorsNameTheField)
{
    World w(2, GetParam());

    w.each([&](int r) {
        dscomm_comm_t *const comm = w.comms[(size_t)r];
        dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
        dscomm_comm_t *part = nullptr;
        const auto names = [&](const char *what) {
            EXPECT_NE(std::string(dscomm_last_error()).find(what), std::string::npos)
                << dscomm_last_error();
        };

        EXPECT_EQ(dscomm_comm_split(comm, 0, 0, nullptr, nullptr), DSCOMM_ERR_INVALID);
        names("comm_out");
        EXPECT_EQ(dscomm_comm_split(nullptr, 0, 0, nullptr, &part), DSCOMM_ERR_INVALID);
        names("comm is NULL");
        config.timeout_ms = -1;
        EXPECT_EQ(dscomm_comm_split(comm, 0, 0, &config, &part), DSCOMM_ERR_INVALID);
        names("timeout_ms -1");
        ASSERT_EQ(dscomm_group_start(), DSCOMM_OK);
        EXPECT_EQ(dscomm_comm_split(comm, 0, 0, nullptr, &part), DSCOMM_ERR_BAD_STATE);
        names("group");
        ASSERT_EQ(dscomm_group_end(), DSCOMM_OK);
        /* settings of the new one that differ: as when joining */
        config.timeout_ms = 2000;
        config.chunk_bytes = r == 0 ? 4096 : 8192;
        EXPECT_EQ(dscomm_comm_split(comm, 0, 0, &config, &part), DSCOMM_ERR_MISMATCH);
        names("chunk_bytes");
        EXPECT_EQ(part, nullptr);
        ASSERT_EQ(dscomm_comm_split(comm, 0, 0, nullptr, &part), DSCOMM_OK);
        dscomm_comm_destroy(part);
    });
}

TEST_P(Split, ARankThatDoesNotSplitIsNamed)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    config.timeout_ms = 500;
    World w(3, GetParam(), config);

    w.each([&](int r) {
        dscomm_comm_t *part = nullptr;
        float sum = 0.0f;

        ASSERT_EQ(sum_one(w.comms[(size_t)r], 1.0f, &sum), DSCOMM_OK);
        if (r == 1)
            return;
        EXPECT_EQ(dscomm_comm_split(w.comms[(size_t)r], 0, 0, nullptr, &part), DSCOMM_ERR_TIMEOUT);
        EXPECT_NE(std::string(dscomm_last_error()).find("rank 1"), std::string::npos)
            << dscomm_last_error();
        EXPECT_EQ(part, nullptr);
    });
}

/* Whatever allocation fails, on whichever rank: all ranks come back, without a leak; and before the
 * new rendezvous begins, because they are told.
 */
TEST_P(Split, NoMemoryAnywhere)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;
    bool worked = false;

    config.timeout_ms = 400;
    for (int nth = 1; !worked; nth += nth < 12 ? 1 : 9) {
        World w(3, GetParam(), config);
        std::atomic<int> n_good{ 0 }, n_told{ 0 }, n_no_memory{ 0 };

        ASSERT_LT(nth, 1000);
        w.each([&](int r) {
            float sum = 0.0f;
            ASSERT_EQ(sum_one(w.comms[(size_t)r], 1.0f, &sum), DSCOMM_OK);
        });
        dsc_mem_fail_after(nth);
        w.each([&](int r) {
            dscomm_comm_t *part = nullptr;
            const dscomm_status_t st = dscomm_comm_split(w.comms[(size_t)r], 0, 0, nullptr, &part);

            n_good += st == DSCOMM_OK;
            n_no_memory += st == DSCOMM_ERR_NO_MEMORY;
            n_told += st == DSCOMM_ERR_PEER_LOST;
            dscomm_comm_destroy(part);
        });
        dsc_mem_fail_after(-1);
        if (nth <= 3) /* the members that all ranks say, one each */
            EXPECT_EQ(n_no_memory + n_told, 3) << nth;
        worked = n_good == 3;
        EXPECT_TRUE(!worked || nth > 12) << "allocations were never made to fail";
    }
}

INSTANTIATE_TEST_SUITE_P(, Split, testing::Values("loopback", "shm", "tcp"),
                         [](const auto &p) { return std::string(p.param); });

} // namespace
