/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rendezvous under attack and in need: strangers, flooded or silent connections, proved peers that
 * send nonsense, ranks that die, and memory or descriptors that run out.
 */
#include "unit/bootstrap_support.h"

namespace {

/* ---- strangers ---- */

int connect_to(const dsc_addr &addr)
{
    const int fd = socket(addr.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(fd, &addr.any, dsc_addr_len(&addr)), 0);
    return fd;
}

TEST_F(Bootstrap, StrangersDoNotDisturb)
{
    const dscomm_unique_id_t id = make_id();
    const dsc_addr addr = open_id(id).addr;
    std::vector<Rank> ranks = make_ranks(4);
    std::vector<int> fds;
    std::mt19937 random(3);

    ranks[3].delay_ms = 200;
    for (int i = 0; i < 40; i++)
        fds.push_back(connect_to(addr)); /* silent for ever */
    std::thread noise([&] {
        for (int i = 0; i < 200; i++) {
            uint8_t junk[512];
            for (uint8_t &byte : junk)
                byte = (uint8_t)random();
            const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (connect(fd, &addr.any, dsc_addr_len(&addr)) == 0) {
                if (i % 3 == 0)
                    memcpy(junk, "DSCOMMHS\1\0\0", 12);
                (void)!send(fd, junk, 1 + random() % sizeof(junk), MSG_NOSIGNAL);
            }
            close(fd);
        }
    });
    join_all(ranks, id);
    noise.join();
    expect_met(ranks);
    for (const Rank &r : ranks)
        EXPECT_LE(r.seconds, 3);
    leave_all(ranks);
    for (int fd : fds)
        close(fd);
    EXPECT_GE(count_lines("WARN"), 1u);
    EXPECT_LE(count_lines("WARN"), 17u) << "a flood of strangers must not flood the log";
}

TEST_F(Bootstrap, OneWarningPerStranger)
{
    const dscomm_unique_id_t id = make_id();
    const int fd = connect_to(open_id(id).addr);
    std::vector<Rank> ranks = make_ranks(1);

    ASSERT_EQ(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 18);
    for (int i = 0; i < 500 && count_lines("WARN") == 0; i++)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    join_all(ranks, id);
    expect_met(ranks);
    EXPECT_EQ(count_lines("WARN"), 1u);
    EXPECT_EQ(count_lines("bad magic"), 1u);
    leave_all(ranks);
    close(fd);
}

TEST_F(Bootstrap, MoreSilentConnectionsThanAreKept)
{
    const dscomm_unique_id_t id = make_id();
    std::vector<Rank> ranks = make_ranks(2);
    std::vector<int> fds;

    for (int i = 0; i < 600; i++)
        fds.push_back(connect_to(open_id(id).addr));
    join_all(ranks, id);
    expect_met(ranks);
    leave_all(ranks);
    for (int fd : fds)
        close(fd);
}

/* Connects with the key and says `bytes` instead of a record; the connection stays open. */
int insider(const dscomm_unique_id_t &id, const std::string &bytes)
{
    dsc_rendezvous rv = {};
    EXPECT_EQ(dsc_unique_id_decode(&id, &rv), DSCOMM_OK);
    const int fd = connect_to(rv.addr);
    dsc_hello hello = {};
    dsc_handshake *hs = nullptr;

    hello.purpose = DSC_LINK_RENDEZVOUS;
    EXPECT_EQ(dsc_handshake_create(fd, false, rv.secret, &hello, dsc_deadline_ns(kLong), &hs),
              DSCOMM_OK);
    while (dsc_handshake_step(hs) == DSCOMM_IN_PROGRESS)
        std::this_thread::yield();
    EXPECT_STREQ(dsc_handshake_error(hs), "");
    dsc_handshake_take_fd(hs);
    dsc_handshake_destroy(hs);
    EXPECT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), (ssize_t)bytes.size());
    return fd;
}

std::string record_bytes(uint32_t n_ranks, uint32_t rank, uint32_t version)
{
    dsc_record record = {};
    uint8_t wire[DSC_FRAME_BYTES + DSC_RECORD_MAX];
    dsc_addr addr = {};

    addr.v4.sin_family = AF_INET;
    memcpy(record.info.addr, &addr, sizeof(addr));
    record.version = version;
    record.n_ranks = n_ranks;
    record.rank = rank;
    record.timeout_ms = kLong;
    strcpy(record.settings, "chunk_bytes=1024 algorithm=auto");
    return std::string((char *)wire, dsc_record_encode(&record, wire));
}

TEST_F(Bootstrap, RecordsThatDoNotFit)
{
    const std::string good = record_bytes(2, 1, dsc_bootstrap_version());
    std::string wrong_settings = good, wrong_addr = good;

    wrong_settings[4 + 16] = (char)(wrong_settings[4 + 16] + 1);
    wrong_addr[good.size() - DSC_PEER_WIRE_BYTES + DSC_HOST_ID_BYTES] = 5;
    const std::pair<std::string, const char *> cases[] = {
        { record_bytes(2, 1, 0x00090807), "version: rank 1 has 9.8.7, the rendezvous has 0.1.0" },
        { record_bytes(2, 2, dsc_bootstrap_version()), "rank 2 is not 0 to 1" },
        { record_bytes(2, 0xffffffff, dsc_bootstrap_version()), "rank 4294967295 is not 0 to 1" },
        { record_bytes(0, 0, dsc_bootstrap_version()), "world size" },
        { record_bytes(100000, 1, dsc_bootstrap_version()), "world size" },
        { wrong_settings, "its settings have another length" },
        { wrong_addr, "it has no address" },
        { std::string("\3\0\0\0abc", 7), "shorter than its fixed part" },
        { std::string("\0\0\0\0", 4), "shorter than its fixed part" },
        { std::string("\xff\xff\xff\xff", 4), "says it has 4294967295 bytes" },
    };
    for (const auto &c : cases) {
        const dscomm_unique_id_t id = make_id();
        std::vector<Rank> ranks = { Rank(2, 0) };
        const int fd = insider(id, c.first);
        join_all(ranks, id);
        EXPECT_LT(ranks[0].status, 0);
        EXPECT_TRUE(contains(ranks[0].text, c.second)) << ranks[0].text << " not " << c.second;
        EXPECT_LE(ranks[0].seconds, 2);
        close(fd);
    }
}

TEST_F(Bootstrap, RandomRecordsOfAProvedPeer)
{
    std::mt19937 random(11);

    for (int round = 0; round < 40; round++) {
        const dscomm_unique_id_t id = make_id();
        std::vector<Rank> ranks = { Rank(2, 0) };
        std::string bytes = record_bytes(2, 1, dsc_bootstrap_version());
        for (int i = 0; i < 3; i++)
            bytes[random() % bytes.size()] = (char)random();
        ranks[0].timeout_ms = 100;
        const int fd = insider(id, bytes);
        join_all(ranks, id);
        EXPECT_LE(ranks[0].seconds, 1.8);
        leave_all(ranks);
        close(fd);
    }
}

TEST_F(Bootstrap, ARankThatDiesWhileOthersCome)
{
    const dscomm_unique_id_t id = make_id();
    std::vector<Rank> ranks = { Rank(3, 0) };
    const int fd = insider(id, record_bytes(3, 1, dsc_bootstrap_version()));
    std::thread killer([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        close(fd);
    });

    join_all(ranks, id);
    killer.join();
    expect_all_fail(ranks, DSCOMM_ERR_PEER_LOST, "rank 1 left before all ranks had come", 1.1);
}

TEST_F(Bootstrap, FailuresLeaveNothingBehind)
{
    Usage before = {};

    for (int round = 0; round < 12; round++) {
        /* Time enough to prove the key on a busy machine: then who is missing is known. */
        std::vector<Rank> ranks = make_ranks(3, 200);
        ranks.pop_back();
        join_all(ranks, make_id());
        expect_all_fail(ranks, DSCOMM_ERR_TIMEOUT, "rank 2 never came", 1.6);
        if (round == 1)
            before = stable_usage();
    }
    expect_no_more_than(before);
}

TEST_F(Bootstrap, AnyAllocationMayFail)
{
    int n_failed = 0;

    set("DSCOMM_TIMEOUT_MS", "300"); /* of a service whose rank could not come */
    const Usage before = stable_usage();
    for (int nth = 1; nth <= 12; nth++) {
        dscomm_unique_id_t id;
        Rank rank(1, 0);
        rank.timeout_ms = 200;
        dsc_mem_fail_after(nth);
        if (dscomm_unique_id_create(&id) == DSCOMM_OK)
            rank.join(id);
        dsc_mem_fail_after(-1);
        n_failed += rank.status != DSCOMM_OK;
        rank.leave();
    }
    EXPECT_GE(n_failed, 4);
    expect_no_more_than(before);
}

/* Also the listener of a rank whose endpoint could not be made. */
TEST_F(Bootstrap, NoFailingAllocationLeaksADescriptor)
{
    dscomm_comm_config_t config = DSCOMM_COMM_CONFIG_INIT;

    set("DSCOMM_TIMEOUT_MS", "200"); /* of a service whose rank could not come */
    config.n_threads = 1;
    const Usage before = stable_usage();
    for (int nth = 1; nth <= 60; nth++) {
        const dscomm_unique_id_t id = make_id();
        dscomm_comm_t *comm = nullptr;
        dsc_mem_fail_after(nth);
        const dscomm_status_t st = dscomm_comm_create(1, 0, &id, &config, &comm);
        dsc_mem_fail_after(-1);
        if (st == DSCOMM_OK)
            dscomm_comm_destroy(comm);
        SCOPED_TRACE(nth);
        expect_no_more_than(before);
    }
}

/* Eight ranks of one process where descriptors run out: an error that names the limit, no hang. */
TEST_F(Bootstrap, DescriptorLimit)
{
    rlimit before, low;
    const dscomm_unique_id_t id = make_id();
    std::vector<Rank> ranks = make_ranks(8, 1000);
    int n_limit = 0;

    getrlimit(RLIMIT_NOFILE, &before);
    low = before;
    low.rlim_cur = (rlim_t)count_entries("/proc/self/fd") + 8;
    setrlimit(RLIMIT_NOFILE, &low);
    join_all(ranks, id);
    setrlimit(RLIMIT_NOFILE, &before);
    for (const Rank &r : ranks) {
        EXPECT_LT(r.status, 0);
        EXPECT_LE(r.seconds, 3);
        EXPECT_TRUE(r.status != DSCOMM_ERR_LIMIT || contains(r.text, "RLIMIT_NOFILE")) << r.text;
        n_limit += r.status == DSCOMM_ERR_LIMIT;
    }
    EXPECT_GE(n_limit, 1);
}

} /* namespace */
