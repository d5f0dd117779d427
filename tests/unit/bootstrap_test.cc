/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rendezvous: ranks meet through real sockets on loopback. What goes wrong must come back on every
 * rank, within its time, with the text that names the culprit.
 */
#include "unit/bootstrap_support.h"

namespace {

/* ---- the good case ---- */

TEST_F(Bootstrap, RanksMeet)
{
    for (int n : { 1, 2, 5, 16 }) {
        std::vector<Rank> ranks = make_ranks(n);
        const dscomm_unique_id_t id = make_id();

        join_all(ranks, id);
        expect_met(ranks);
        leave_all(ranks);
        for (const Rank &r : ranks)
            EXPECT_EQ(r.boot.listen_fd, -1);
    }
    EXPECT_EQ(count_lines("WARN"), 0u);
}

TEST_F(Bootstrap, JobsDiffer)
{
    std::vector<Rank> a = make_ranks(2), b = make_ranks(2);

    join_all(a, make_id());
    join_all(b, make_id());
    expect_met(a);
    expect_met(b);
    EXPECT_NE(a[0].boot.job, b[0].boot.job);
    EXPECT_NE(memcmp(a[0].boot.key, b[0].boot.key, 32), 0);
    leave_all(a);
    leave_all(b);
}

TEST_F(Bootstrap, Ipv6)
{
    set("DSCOMM_SOCKET_IFNAME", "::1");
    dsc_addr addr;
    if (dsc_netif_choose("::1", &addr) != DSCOMM_OK)
        GTEST_SKIP() << "no IPv6 on this machine";
    const dscomm_unique_id_t id = make_id();
    std::vector<Rank> ranks = make_ranks(3);

    EXPECT_EQ(open_id(id).addr.any.sa_family, AF_INET6);
    join_all(ranks, id);
    expect_met(ranks);
    memcpy(&addr, ranks[0].boot.peers[2].addr, sizeof(addr));
    EXPECT_EQ(addr.any.sa_family, AF_INET6);
    leave_all(ranks);

    clear("DSCOMM_SOCKET_IFNAME"); /* the address that reaches the service: loopback again */
    set("DSCOMM_SOCKET_IFNAME", "");
    std::vector<Rank> more = make_ranks(2);
    dsc_rendezvous rv = {};
    rv.addr.v6.sin6_family = AF_INET6;
    rv.addr.v6.sin6_addr = in6addr_loopback;
    ASSERT_EQ(dsc_root_start(&rv.addr, rv.secret, kLong), DSCOMM_OK);
    dscomm_unique_id_t other;
    dsc_unique_id_encode(&rv, &other);
    join_all(more, other);
    expect_met(more);
    memcpy(&addr, more[0].boot.peers[1].addr, sizeof(addr));
    EXPECT_TRUE(dsc_addr_is_loopback(&addr));
    leave_all(more);
}

std::atomic<int> n_alarms;

extern "C" void on_alarm(int)
{
    n_alarms++;
}

/* The kernel prefers the main thread, so that one blocks the signal and the ranks get it. */
TEST_F(Bootstrap, SignalsEverywhere)
{
    struct sigaction action = {}, before = {};
    const itimerval fast = { { 0, 1000 }, { 0, 1000 } }, off = {};
    sigset_t alarm;

    action.sa_handler = on_alarm; /* no SA_RESTART: every call that waits is interrupted */
    sigaction(SIGALRM, &action, &before);
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    for (int round = 0; round < 10; round++) {
        std::vector<Rank> ranks = make_ranks(2);
        const dscomm_unique_id_t id = make_id();
        ranks[1].delay_ms = 20;
        n_alarms = 0;
        setitimer(ITIMER_REAL, &fast, nullptr);
        std::thread threads[2];
        for (int r = 0; r < 2; r++)
            threads[r] = std::thread([&ranks, &id, r] { ranks[(size_t)r].join(id); });
        pthread_sigmask(SIG_BLOCK, &alarm, nullptr);
        for (std::thread &thread : threads)
            thread.join();
        setitimer(ITIMER_REAL, &off, nullptr);
        pthread_sigmask(SIG_UNBLOCK, &alarm, nullptr);
        expect_met(ranks);
        leave_all(ranks);
        EXPECT_GE(n_alarms, 5);
    }
    sigaction(SIGALRM, &before, nullptr);
}

TEST_F(Bootstrap, AForkedChildIsAnotherProcessOnTheSameHost)
{
    const dscomm_unique_id_t id = make_id();
    const pid_t child = fork();

    if (child == 0) {
        Rank rank(2, 1);
        rank.join(id);
        rank.leave();
        _exit(rank.status == DSCOMM_OK ? 0 : 1);
    }
    Rank rank(2, 0);
    rank.join(id);
    int wait_status = -1;
    waitpid(child, &wait_status, 0);
    ASSERT_EQ(rank.status, DSCOMM_OK) << rank.text;
    EXPECT_EQ(wait_status, 0);
    EXPECT_NE(rank.boot.peers[0].process_id, rank.boot.peers[1].process_id);
    EXPECT_STREQ(rank.boot.peers[0].host_id, rank.boot.peers[1].host_id);
    EXPECT_EQ(rank.boot.peers[1].pid, (uint32_t)child);
    rank.leave();
}

/* Ranks that may run on the same CPUs see that, and those that may not. */
TEST_F(Bootstrap, CpuSetsAreTold)
{
    cpu_set_t before, one;
    int first = 0;

    ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
    if (CPU_COUNT(&before) < 2)
        GTEST_SKIP() << "one CPU only";
    while (!CPU_ISSET(first, &before))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    const dscomm_unique_id_t id = make_id();
    std::vector<std::thread> threads;
    std::vector<Rank> ranks = { Rank(3, 0), Rank(3, 1), Rank(3, 2) };

    for (Rank &rank : ranks)
        threads.emplace_back([&] {
            if (rank.rank == 2)
                sched_setaffinity(0, sizeof(one), &one); /* of this thread */
            rank.join(id);
        });
    for (std::thread &thread : threads)
        thread.join();
    ASSERT_EQ(ranks[0].status, DSCOMM_OK) << ranks[0].text;
    const dsc_peer_info *const peers = ranks[0].boot.peers;
    const size_t byte = (size_t)first / 8 % DSC_CPU_SET_BYTES;
    uint8_t only_first[DSC_CPU_SET_BYTES] = {};

    only_first[byte] = (uint8_t)(1 << first % 8);
    EXPECT_EQ(memcmp(peers[0].cpu_set, peers[1].cpu_set, DSC_CPU_SET_BYTES), 0);
    EXPECT_NE(memcmp(peers[0].cpu_set, only_first, DSC_CPU_SET_BYTES), 0);
    EXPECT_EQ(memcmp(peers[2].cpu_set, only_first, DSC_CPU_SET_BYTES), 0);
    EXPECT_NE(peers[0].cpu_set[byte] & only_first[byte], 0);
    EXPECT_EQ(peers[2].n_cpus, 1u);
    leave_all(ranks);
}

TEST_F(Bootstrap, HostIdOverride)
{
    set("DSCOMM_HOST_ID", "rack7");
    std::vector<Rank> ranks = make_ranks(2);

    join_all(ranks, make_id());
    expect_met(ranks);
    EXPECT_STREQ(ranks[0].boot.peers[1].host_id, "rack7");
    leave_all(ranks);

    set("DSCOMM_HOST_ID", std::string(DSC_HOST_ID_BYTES, 'h'));
    Rank rank(1, 0);
    rank.join(make_id());
    EXPECT_EQ(rank.status, DSCOMM_ERR_ENV);
    EXPECT_TRUE(contains(rank.text, "DSCOMM_HOST_ID")) << rank.text;
}

TEST_F(Bootstrap, NothingIsLeftAfter50Rounds)
{
    Usage before = {};

    for (int round = 0; round < 50; round++) {
        std::vector<Rank> ranks = make_ranks(2);
        join_all(ranks, make_id());
        expect_met(ranks);
        leave_all(ranks);
        if (round == 1)
            before = stable_usage();
    }
    expect_no_more_than(before);
}

/* ---- ranks that do not fit ---- */

TEST_F(Bootstrap, MissingRankIsNamedInTime)
{
    std::vector<Rank> ranks = make_ranks(3, 1000);

    ranks.pop_back();
    join_all(ranks, make_id());
    expect_all_fail(ranks, DSCOMM_ERR_TIMEOUT, "rank 2 never came, waited 1.0 s", 1.6);
    EXPECT_EQ(ranks[0].text, ranks[1].text);
    for (const Rank &r : ranks)
        EXPECT_GE(r.seconds, 0.99);
}

TEST_F(Bootstrap, ManyMissingRanksAreCounted)
{
    std::vector<Rank> ranks = { Rank(40, 3) };

    ranks[0].timeout_ms = 100;
    join_all(ranks, make_id());
    expect_all_fail(ranks, DSCOMM_ERR_TIMEOUT,
                    "ranks 0 1 2 4 5 6 7 8 9 10 11 12 13 14 15 16 and 23 more never came", 1);
}

TEST_F(Bootstrap, RankUsedTwice)
{
    std::vector<Rank> ranks = { Rank(3, 0), Rank(3, 1), Rank(3, 1) };

    join_all(ranks, make_id());
    expect_all_fail(ranks, DSCOMM_ERR_MISMATCH, "rank 1 is used twice", 2);
}

TEST_F(Bootstrap, SettingsDiffer)
{
    std::vector<Rank> ranks = make_ranks(4);

    ranks[2].settings = "chunk_bytes=2048 algorithm=auto";
    for (int delay_ms : { 0, 50 }) { /* whoever comes first, the text is the same */
        ranks[2].delay_ms = delay_ms;
        ranks[0].delay_ms = 50 - delay_ms;
        join_all(ranks, make_id());
        expect_all_fail(ranks, DSCOMM_ERR_MISMATCH, "ranks disagree on chunk_bytes: rank ", 2);
        for (const Rank &r : ranks) {
            EXPECT_TRUE(contains(r.text, "rank 2 has 2048")) << r.text;
            EXPECT_TRUE(contains(r.text, " has 1024")) << r.text;
            EXPECT_EQ(r.text, ranks[0].text);
        }
    }
}

TEST_F(Bootstrap, SettingOnOneRankOnly)
{
    std::vector<Rank> ranks = make_ranks(2);

    ranks[0].settings += " nsocks=4";
    join_all(ranks, make_id());
    expect_all_fail(ranks, DSCOMM_ERR_MISMATCH,
                    "ranks disagree on nsocks: rank 0 has 4, rank 1 has (not set)", 2);
    ranks[0].settings = "a=1";
    ranks[1].settings = "";
    join_all(ranks, make_id());
    expect_all_fail(ranks, DSCOMM_ERR_MISMATCH,
                    "ranks disagree on a: rank 0 has 1, rank 1 has (not set)", 2);
}

TEST_F(Bootstrap, WorldSizesDiffer)
{
    std::vector<Rank> ranks = { Rank(2, 0), Rank(3, 1), Rank(3, 2) };

    ranks[2].delay_ms = 200; /* after the error: told as well */
    join_all(ranks, make_id());
    for (const Rank &r : ranks) {
        EXPECT_EQ(r.status, DSCOMM_ERR_MISMATCH) << r.text;
        EXPECT_TRUE(contains(r.text, "world size: rank 0 has 2, rank 1 has 3")) << r.text;
        EXPECT_LE(r.seconds, 2);
    }
}

TEST_F(Bootstrap, TheRankThatWaitsLeastSetsTheDeadline)
{
    std::vector<Rank> ranks = make_ranks(3);

    ranks.pop_back();
    ranks[1].timeout_ms = 300;
    ranks[1].delay_ms = 100;
    join_all(ranks, make_id());
    expect_all_fail(ranks, DSCOMM_ERR_TIMEOUT, "rank 2 never came", 1.5);
}

TEST_F(Bootstrap, ArgumentsAreChecked)
{
    const dscomm_unique_id_t id = make_id();
    const int bad[][3] = {
        { 0, 0, 100 }, { 65536, 0, 100 }, { 2, 2, 100 }, { 2, -1, 100 }, { 2, 0, 0 }
    };

    for (const auto &b : bad) {
        Rank rank(b[0], b[1]);
        rank.timeout_ms = b[2];
        rank.join(id);
        EXPECT_EQ(rank.status, DSCOMM_ERR_INVALID);
    }
    Rank rank(2, 0);
    rank.settings = std::string(DSC_SETTINGS_MAX, 's');
    rank.join(id);
    EXPECT_EQ(rank.status, DSCOMM_ERR_INVALID);
    EXPECT_TRUE(contains(rank.text, "settings")) << rank.text;
    EXPECT_EQ(dscomm_unique_id_create(nullptr), DSCOMM_ERR_INVALID);
}

TEST_F(Bootstrap, DamagedIdIsRefused)
{
    const dscomm_unique_id_t id = make_id();
    std::vector<Rank> ranks = make_ranks(1);

    for (size_t at = 0; at < sizeof(id.bytes); at++) {
        dscomm_unique_id_t damaged = id;
        damaged.bytes[at] ^= 4;
        ranks[0].join(damaged);
        EXPECT_EQ(ranks[0].status, DSCOMM_ERR_INVALID) << at;
        EXPECT_TRUE(contains(ranks[0].text, "unique id")) << ranks[0].text;
    }
    join_all(ranks, id);
    expect_met(ranks);
    leave_all(ranks);
}

TEST_F(Bootstrap, WrongSecretIsSaidAtOnce)
{
    const dscomm_unique_id_t id = make_id();
    dsc_rendezvous rv = open_id(id);
    dscomm_unique_id_t wrong;
    std::vector<Rank> ranks = make_ranks(2);
    Rank stranger(2, 1);

    rv.secret[0] ^= 1;
    dsc_unique_id_encode(&rv, &wrong);
    stranger.join(wrong);
    EXPECT_EQ(stranger.status, DSCOMM_ERR_MISMATCH);
    EXPECT_LE(stranger.seconds, 1);
    EXPECT_TRUE(contains(stranger.text, "DSCOMM_SECRET")) << stranger.text;
    join_all(ranks, id);
    expect_met(ranks);
    EXPECT_EQ(count_lines("does not have this job's key"), 1u);
    leave_all(ranks);
}

TEST_F(Bootstrap, DscommSecretReplacesTheIds)
{
    set("DSCOMM_SECRET", "correct horse");
    const dscomm_unique_id_t id = make_id();
    dsc_rendezvous rv = open_id(id);
    dscomm_unique_id_t other;
    std::vector<Rank> ranks = make_ranks(2);

    rv.secret[0] ^= 1; /* no matter: it is not used */
    dsc_unique_id_encode(&rv, &other);
    join_all(ranks, other);
    expect_met(ranks);
    EXPECT_NE(memcmp(ranks[0].boot.key, rv.secret, 32), 0);
    leave_all(ranks);
}

/* ---- the service is not there, or dies ---- */

TEST_F(Bootstrap, NobodyListens)
{
    dsc_rendezvous rv = {};
    dscomm_unique_id_t id;
    int fd;

    ASSERT_EQ(dsc_netif_choose("lo", &rv.addr), DSCOMM_OK);
    ASSERT_EQ(dsc_netif_listen(&rv.addr, &fd), DSCOMM_OK);
    close(fd);
    dsc_unique_id_encode(&rv, &id);
    std::vector<Rank> ranks = make_ranks(1, 300);
    join_all(ranks, id);
    expect_all_fail(ranks, DSCOMM_ERR_TIMEOUT, "did not reach the rendezvous at 127.0.0.1:", 1.0);
    EXPECT_TRUE(contains(ranks[0].text, "Connection refused")) << ranks[0].text;
    EXPECT_GE(ranks[0].seconds, 0.29);
}

/* A service that proves the key, then does as `after` says with the connection. */
template <typename After>
void with_fake_root(std::vector<Rank> &ranks, After after, bool is_rank0s = false)
{
    dsc_rendezvous rv = {};
    dscomm_unique_id_t id;
    int listener;

    ASSERT_EQ(dsc_netif_choose("lo", &rv.addr), DSCOMM_OK);
    ASSERT_EQ(dsc_netif_listen(&rv.addr, &listener), DSCOMM_OK);
    rv.is_rank0s = is_rank0s;
    dsc_unique_id_encode(&rv, &id);
    std::thread root([&] {
        pollfd p = { listener, POLLIN, 0 };
        poll(&p, 1, kLong);
        const int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
        dsc_hello hello = {};
        dsc_handshake *hs = nullptr;
        hello.purpose = DSC_LINK_RENDEZVOUS;
        ASSERT_EQ(dsc_handshake_create(fd, true, rv.secret, nullptr, dsc_deadline_ns(kLong), &hs),
                  DSCOMM_OK);
        while (dsc_handshake_step(hs) == DSCOMM_IN_PROGRESS) {
            if (dsc_handshake_wants_reply(hs))
                dsc_handshake_reply(hs, &hello);
        }
        after(fd);
        dsc_handshake_destroy(hs);
        close(listener);
    });
    join_all(ranks, id);
    root.join();
}

TEST_F(Bootstrap, TheServiceDies)
{
    std::vector<Rank> ranks = make_ranks(1);

    with_fake_root(ranks, [](int) {});
    expect_all_fail(ranks, DSCOMM_ERR_PEER_LOST, "is gone", 1.0);
}

/* With launcher's variables the service is in rank 0's process, and the error names that rank. */
TEST_F(Bootstrap, RankZeroAndItsServiceDie)
{
    std::vector<Rank> ranks = { Rank(2, 1) };

    with_fake_root(
        ranks, [](int) {}, true);
    expect_all_fail(ranks, DSCOMM_ERR_PEER_LOST, "lost rank 0: the rendezvous at 127.0.0.1:", 1.0);
    EXPECT_TRUE(contains(ranks[0].text, "is gone")) << ranks[0].text;
}

TEST_F(Bootstrap, RankZeroNeverListens)
{
    std::vector<Rank> ranks = { Rank(2, 1) };
    dsc_rendezvous rv = {};
    dscomm_unique_id_t id;
    int fd;

    ASSERT_EQ(dsc_netif_choose("lo", &rv.addr), DSCOMM_OK);
    ASSERT_EQ(dsc_netif_listen(&rv.addr, &fd), DSCOMM_OK);
    close(fd);
    rv.is_rank0s = true;
    dsc_unique_id_encode(&rv, &id);
    ranks[0].timeout_ms = 300;
    join_all(ranks, id);
    expect_all_fail(ranks, DSCOMM_ERR_TIMEOUT, "rank 0's rendezvous at 127.0.0.1:", 1.0);
    EXPECT_TRUE(contains(ranks[0].text, "was not reached by rank 1")) << ranks[0].text;
}

TEST_F(Bootstrap, TheServiceSaysNothing)
{
    std::vector<Rank> ranks = make_ranks(1, 200);

    with_fake_root(ranks, [](int) { std::this_thread::sleep_for(std::chrono::seconds(2)); });
    expect_all_fail(ranks, DSCOMM_ERR_TIMEOUT, "has no answer from the rendezvous", 2.0);
    EXPECT_GE(ranks[0].seconds, 1.69);
}

TEST_F(Bootstrap, TheServiceAnswersNonsense)
{
    std::mt19937 random(7);

    for (int round = 0; round < 100; round++) {
        std::vector<Rank> ranks = make_ranks(2, 500);
        ranks.pop_back();
        uint8_t junk[300];
        for (uint8_t &byte : junk)
            byte = (uint8_t)random();
        if (round % 2 == 0) { /* a frame whose length and status look right */
            const dsc_answer answer = { round % 4 == 0 ? DSCOMM_OK : DSCOMM_ERR_MISMATCH, 2, 1 };
            dsc_answer_encode(&answer, 2 * DSC_PEER_WIRE_BYTES, junk);
            junk[round % 20] ^= (uint8_t)random();
        }
        with_fake_root(ranks, [&](int fd) { (void)!send(fd, junk, sizeof(junk), MSG_NOSIGNAL); });
        EXPECT_TRUE(ranks[0].status != DSCOMM_OK || round % 4 == 0) << round;
        EXPECT_LE(ranks[0].seconds, 2.2);
        leave_all(ranks);
    }
}

} /* namespace */
