/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The endpoint where one transport is not enough to see it: choice and mixtures, strangers, damage
 * on the way, limits, ranks that end early, and what is left after it is gone.
 */
#include "support/net_world.h"

#include "support/internal_begin.h"
#include "transport/handshake.h"
#include "support/internal_end.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <mutex>

using namespace net_world;

namespace {

/* Warnings and errors while it lives. */
class Log {
  public:
    Log()
    {
        dscomm_set_log(collect, this);
    }
    ~Log()
    {
        dscomm_set_log(nullptr, nullptr);
    }
    Log(const Log &) = delete;
    Log &operator=(const Log &) = delete;

    size_t count(dscomm_log_level_t level, const char *text = "")
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        size_t n = 0;

        for (const auto &line : lines_)
            n += line.first == level && line.second.find(text) != std::string::npos;
        return n;
    }

  private:
    static void collect(void *user, dscomm_log_level_t level, const char *line)
    {
        Log *const self = static_cast<Log *>(user);
        const std::lock_guard<std::mutex> lock(self->mutex_);

        self->lines_.emplace_back(level, line);
    }
    std::mutex mutex_;
    std::vector<std::pair<dscomm_log_level_t, std::string>> lines_;
};

bool says(const dsc_net *net, const char *text)
{
    return std::strstr(dsc_net_error_text(net), text) != nullptr;
}

int connect_to(uint16_t port)
{
    sockaddr_in addr = {};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    addr.sin_family = AF_INET;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    addr.sin_port = htons(port);
    EXPECT_EQ(0, connect(fd, reinterpret_cast<const sockaddr *>(&addr), sizeof(addr)));
    return fd;
}

/* ---- which transport ---- */

/* 0 and 1 share a process, 2 their host, 3 is elsewhere: one endpoint waits for all three kinds. */
TEST(Net, AutoMixesTransports)
{
    World world(4, "auto");
    const char *const expected[4][4] = {
        { "-", "loopback", "shm", "tcp" },
        { "loopback", "-", "shm", "tcp" },
        { "shm", "shm", "-", "tcp" },
        { "tcp", "tcp", "tcp", "-" },
    };

    world.peers[2].process_id = 2;
    world.peers[3].process_id = 3;
    std::strcpy(world.peers[3].host_id, "host-b");
    for (const uint64_t spin_ns : { 0, 20000 }) {
        World same(4, "auto");

        for (size_t i = 0; i < 4; i++) {
            same.peers[i].process_id = world.peers[i].process_id;
            std::memcpy(same.peers[i].host_id, world.peers[i].host_id, DSC_HOST_ID_BYTES);
        }
        same.params.spin_ns = spin_ns;
        same.run([&](int rank, dsc_net *net) {
            ASSERT_EQ(DSCOMM_OK, same.connect_all(net, rank));
            for (int peer = 0; peer < 4; peer++)
                EXPECT_STREQ(expected[rank][peer], dsc_net_transport_name(net, peer));
            for (int i = 0; i < 50; i++)
                ASSERT_EQ(DSCOMM_OK, exchange(net, rank, same.others(rank), 3,
                                              [](uint64_t k) { return 4096 - k; }));
        });
    }
}

/* An endpoint with a tcp peer sleeps in epoll; those who share memory with it must wake it there.
 */
TEST(Net, SleeperInEpollIsWokenByMemory)
{
    for (const char *const near : { "loopback", "shm" }) {
        World world(3, "auto");

        world.params.spin_ns = 0;
        for (size_t i = 0; i < 3; i++)
            world.peers[i].process_id = std::strcmp(near, "shm") == 0 ? i : 1;
        world.peers[2].process_id = 9;
        std::strcpy(world.peers[2].host_id, "host-b");
        world.run([&](int rank, dsc_net *net) {
            ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
            if (rank == 2)
                return;
            const int peer = 1 - rank;
            EXPECT_STREQ(near, dsc_net_transport_name(net, peer));
            dsc_conn *const conn = dsc_net_conn(net, peer);
            const uint64_t start_ns = dsc_now_ns();
            conn->ops->rx_expect(conn, 100);
            for (int i = 0; i < 100; i++) {
                if (rank == 0) {
                    ASSERT_TRUE(try_send(conn, rank, 8));
                }
                ASSERT_EQ(DSCOMM_OK, drive(net, [&] { return try_receive(conn, 8); }));
                if (rank == 1) {
                    ASSERT_TRUE(try_send(conn, rank, 8));
                }
            }
            EXPECT_LT(dsc_now_ns() - start_ns, 1500000000u) << near;
        });
    }
}

/* What the caller does not expect yet takes no slot and no memory: it stays in the kernel. */
TEST(Net, UnexpectedDataIsNotRead)
{
    World world(2, "tcp");
    std::atomic<bool> looked{ false };

    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        dsc_conn *const conn = dsc_net_conn(net, 1 - rank);
        if (rank == 0) {
            for (int i = 0; i < 3; i++)
                ASSERT_TRUE(try_send(conn, 0, 1000));
            EXPECT_TRUE(conn->ops->flushed(conn));
            while (!looked)
                usleep(1000);
            return;
        }
        const uint8_t *payload;
        EXPECT_EQ(DSCOMM_IN_PROGRESS, drive_to_error(net, 100));
        EXPECT_EQ(0u, dsc_net_wire_rx_bytes(net));
        conn->ops->rx_expect(conn, 1);
        EXPECT_EQ(DSCOMM_OK, drive(net, [&] { return try_receive(conn, 1000); }));
        EXPECT_EQ(DSCOMM_IN_PROGRESS, drive_to_error(net, 50));
        EXPECT_EQ(nullptr, conn->ops->rx_msg(conn, 1, &payload));
        EXPECT_EQ(1032u, dsc_net_wire_rx_bytes(net));
        conn->ops->rx_expect(conn, 3);
        EXPECT_EQ(DSCOMM_OK,
                  drive(net, [&] { return try_receive(conn, 1000) && conn->rx_next == 3; }));
        looked = true;
    });
}

TEST(Net, ForcedTransportThatDoesNotReach)
{
    World world(2, "shm");
    const int peer = 1;

    std::strcpy(world.peers[1].host_id, "host-b");
    dsc_net *const net = world.create(0);
    EXPECT_EQ(DSCOMM_ERR_UNSUPPORTED, dsc_net_connect(net, &peer, 1));
    EXPECT_TRUE(says(net, "shm")) << dsc_net_error_text(net);
    EXPECT_TRUE(says(net, "\"host-a\""));
    EXPECT_TRUE(says(net, "\"host-b\""));
    dsc_net_destroy(net);
}

TEST(Net, UnknownTransportIsRefused)
{
    World world(2, "pigeon");

    EXPECT_EQ(nullptr, world.create(0));
    EXPECT_NE(nullptr, std::strstr(dscomm_last_error(), "\"pigeon\""));
}

/* Ranks that were told different things: both say so, and what. */
TEST(Net, RanksForcedToDifferentTransports)
{
    World world(2, "tcp");
    dsc_net *const tcp = world.create(0);
    world.params.transport = "shm";
    dsc_net *const shm = world.create(1);
    const int zero = 0, one = 1;
    std::thread other([&] { EXPECT_EQ(DSCOMM_ERR_MISMATCH, dsc_net_connect(tcp, &one, 1)); });

    EXPECT_EQ(DSCOMM_ERR_MISMATCH, dsc_net_connect(shm, &zero, 1));
    other.join();
    for (const dsc_net *net : { tcp, shm }) {
        EXPECT_TRUE(says(net, "shm")) << dsc_net_error_text(net);
        EXPECT_TRUE(says(net, "tcp")) << dsc_net_error_text(net);
    }
    dsc_net_destroy(tcp);
    dsc_net_destroy(shm);
}

/* While it lives, no file, so no segment either, can grow beyond the limit. */
class FileSizeLimit {
  public:
    explicit FileSizeLimit(rlim_t bytes)
    {
        signal(SIGXFSZ, SIG_IGN);
        getrlimit(RLIMIT_FSIZE, &old_);
        const rlimit limit = { bytes, old_.rlim_max };
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    ~FileSizeLimit()
    {
        setrlimit(RLIMIT_FSIZE, &old_);
        signal(SIGXFSZ, SIG_DFL);
    }

  private:
    rlimit old_;
};

TEST(Net, NoRoomForSharedMemoryFallsBackOnce)
{
    World world(3, "auto");

    for (size_t i = 0; i < 3; i++)
        world.peers[i].process_id = i;
    Log log;
    {
        const FileSizeLimit limit(65536);
        world.run([&](int rank, dsc_net *net) {
            ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
            for (const int peer : world.others(rank))
                EXPECT_STREQ("tcp", dsc_net_transport_name(net, peer));
            EXPECT_EQ(DSCOMM_OK,
                      exchange(net, rank, world.others(rank), 5, [](uint64_t) { return 65536; }));
        });
    }
    /* Ranks 1 and 2 connect, each says it once. */
    EXPECT_EQ(2u, log.count(DSCOMM_LOG_WARN, "using tcp"));
    EXPECT_EQ(2u, log.count(DSCOMM_LOG_WARN));
    EXPECT_EQ(0u, log.count(DSCOMM_LOG_ERROR));
}

TEST(Net, NoRoomForSharedMemoryIsAnErrorWhenForced)
{
    World world(2, "shm");
    const int peer = 0;
    Log log;
    dsc_net *const net = world.create(1);
    const FileSizeLimit limit(65536);

    EXPECT_EQ(DSCOMM_ERR_LIMIT, dsc_net_connect(net, &peer, 1));
    const std::string bytes = std::to_string(2 * 64 + 2 * 4 * (65536 + 64));
    EXPECT_TRUE(says(net, bytes.c_str())) << dsc_net_error_text(net);
    dsc_net_destroy(net);
}

/* Of rank 1, which offers a segment that nobody can find. */
dsc_hello lost_segment(const World &world)
{
    dsc_hello hello = {};

    hello.purpose = DSC_LINK_PEER;
    hello.rank = 1;
    hello.n_ranks = 2;
    hello.job = world.job();
    hello.slot_bytes = world.params.slot_bytes;
    hello.n_slots = world.params.n_slots;
    hello.n_socks = world.params.n_socks;
    std::strcpy(hello.transport, "shm");
    std::strcpy(hello.detail, "1 1000000 1 1");
    return hello;
}

/* Rank 1 offers a segment that rank 0 cannot find, as from another PID namespace. */
TEST(Net, SegmentThatCannotBeMappedIsAnErrorWhenForced)
{
    World world(2, "shm");
    Log log;
    dsc_net *const net = world.create(0);
    const int peer = 1;
    std::thread other([&] {
        const int fd = connect_to(world.port(0));
        dsc_handshake *hs = nullptr;
        const dsc_hello hello = lost_segment(world);

        fcntl(fd, F_SETFL, O_NONBLOCK);
        ASSERT_EQ(DSCOMM_OK,
                  dsc_handshake_create(fd, false, world.key(), &hello, dsc_deadline_ns(3000), &hs));
        while (dsc_handshake_step(hs) == DSCOMM_IN_PROGRESS)
            usleep(1000);
        ASSERT_NE(nullptr, dsc_handshake_peer(hs));
        EXPECT_STREQ("", dsc_handshake_peer(hs)->transport);
        EXPECT_NE(nullptr, std::strstr(dsc_handshake_peer(hs)->detail, "cannot open /proc/1/fd/"));
        dsc_handshake_destroy(hs);
    });

    EXPECT_EQ(DSCOMM_ERR_LIMIT, dsc_net_connect(net, &peer, 1));
    EXPECT_TRUE(says(net, "cannot open /proc/1/fd/")) << dsc_net_error_text(net);
    EXPECT_EQ(nullptr, dsc_net_conn(net, 1));
    other.join();
    dsc_net_destroy(net);
}

/* Rank 1 offers a segment and dies: rank 0 cannot open it, for that reason and no other. */
TEST(Net, RankThatDiedWithItsSegmentIsLost)
{
    for (const char *const transport : { "shm", "auto" }) {
        World world(2, transport);
        Log log;
        const int peer = 1;

        world.peers[1].process_id = 2;
        dsc_net *const net = world.create(0);
        std::thread other([&] {
            constexpr size_t kGreeting = 44, kProof = 44 + 184 + 32;
            const int fd = connect_to(world.port(0));
            int pair[2];
            uint8_t bytes[kProof];
            dsc_handshake *hs = nullptr;
            const dsc_hello hello = lost_segment(world);

            ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
            ASSERT_EQ(DSCOMM_OK, dsc_handshake_create(pair[0], false, world.key(), &hello,
                                                      dsc_deadline_ns(3000), &hs));
            EXPECT_EQ(kGreeting, recv(fd, bytes, kGreeting, MSG_WAITALL));
            EXPECT_EQ(kGreeting, send(pair[1], bytes, kGreeting, 0));
            EXPECT_EQ(DSCOMM_IN_PROGRESS, dsc_handshake_step(hs));
            EXPECT_EQ(kProof, recv(pair[1], bytes, kProof, 0));
            EXPECT_EQ(kProof, send(fd, bytes, kProof, MSG_MORE)); /* leaves with the end */
            close(fd);
            close(pair[1]);
            dsc_handshake_destroy(hs);
        });

        EXPECT_EQ(DSCOMM_ERR_PEER_LOST, dsc_net_connect(net, &peer, 1));
        EXPECT_TRUE(says(net, "lost rank 1")) << dsc_net_error_text(net);
        EXPECT_EQ(0u, log.count(DSCOMM_LOG_WARN, "using tcp"));
        other.join();
        dsc_net_destroy(net);
    }
}

/* ---- strangers ---- */

TEST(Net, StrangersAreDroppedAndStallNobody)
{
    for (const char *const transport : { "tcp", "shm" }) {
        World world(3, transport);
        std::vector<int> strangers;
        Log log;

        for (int rank = 0; rank < 3; rank++) {
            for (int i = 0; i < 5; i++) {
                const int fd = connect_to(world.port(rank));
                const char garbage[] = "GET / HTTP/1.1\r\nHost: nobody\r\n\r\n";

                if (i == 0) {
                    EXPECT_LT(0, send(fd, garbage, sizeof(garbage), MSG_NOSIGNAL));
                }
                if (i == 1) {
                    EXPECT_LT(0, send(fd, "DSCOMM", 6, MSG_NOSIGNAL));
                }
                strangers.push_back(fd); /* the rest says nothing */
            }
            close(strangers.back());
            strangers.pop_back();
        }
        const uint64_t start_ns = dsc_now_ns();
        world.run([&](int rank, dsc_net *net) {
            ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
            EXPECT_LT(dsc_now_ns() - start_ns, 1000000000u);
            EXPECT_EQ(DSCOMM_OK,
                      exchange(net, rank, world.others(rank), 20, [](uint64_t) { return 256; }));
        });
        EXPECT_GE(3u, log.count(DSCOMM_LOG_WARN)) << "once per endpoint";
        EXPECT_LE(1u, log.count(DSCOMM_LOG_WARN, "dropped a connection"));
        EXPECT_EQ(0u, log.count(DSCOMM_LOG_ERROR));
        for (const int fd : strangers)
            close(fd);
    }
}

/* Right protocol, wrong key. */
TEST(Net, AnotherJobsRankIsDropped)
{
    World world(2, "tcp"), other(2, "tcp");
    Log log;

    other.key()[0] ^= 1;
    std::memcpy(other.peers[0].addr, world.peers[0].addr, DSC_ADDR_BYTES);
    dsc_net *const stranger = other.create(1);
    const int zero = 0;
    std::thread knock([&] { EXPECT_EQ(DSCOMM_ERR_MISMATCH, dsc_net_connect(stranger, &zero, 1)); });
    world.run([&](int rank, dsc_net *net) {
        if (rank == 1)
            usleep(200000);
        EXPECT_EQ(DSCOMM_OK, world.connect_all(net, rank));
    });
    knock.join();
    EXPECT_EQ(1u, log.count(DSCOMM_LOG_WARN, "key"));
    dsc_net_destroy(stranger);
}

/* Connects more often than is allowed and says nothing or leaves, then is rank 1. */
bool connect_behind_strangers(World &world)
{
    std::vector<int> strangers;
    bool ok = false;

    close(world.take_listener(0));
    for (int i = 0; i < 200; i++) {
        strangers.push_back(connect_to(world.port(0)));
        close(connect_to(world.port(0)));
    }
    dsc_net *const net = world.create(1);
    if (net != nullptr)
        ok = world.connect_all(net, 1) == DSCOMM_OK &&
             exchange(net, 1, { 0 }, 5, [](uint64_t) { return 256; }) == DSCOMM_OK;
    dsc_net_destroy(net);
    for (const int fd : strangers)
        close(fd);
    return ok;
}

/* Rank 0 has few descriptors, or many: then it keeps few strangers all the same. */
TEST(Net, ManyStrangersTakeNoDescriptorFromARank)
{
    for (const rlim_t spare : { 8, 1000 }) {
        World world(2, "tcp");
        Log log;
        rlimit old;
        int status = 0;
        const pid_t pid = fork(); /* the limit is a process's */

        ASSERT_LE(0, pid);
        if (pid == 0)
            _exit(connect_behind_strangers(world) ? 0 : 1);
        close(world.take_listener(1));
        usleep(300000); /* they are all at the door */
        dsc_net *const net = world.create(0);
        getrlimit(RLIMIT_NOFILE, &old);
        const int top = dup(0);
        close(top);
        const rlimit low = { static_cast<rlim_t>(top) + spare, old.rlim_max };
        EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &low));
        dscomm_status_t st = world.connect_all(net, 0);
        if (st == DSCOMM_OK)
            st = exchange(net, 0, { 1 }, 5, [](uint64_t) { return 256; });
        EXPECT_EQ(DSCOMM_OK, st) << dsc_net_error_text(net);
        setrlimit(RLIMIT_NOFILE, &old);
        const int end = dup(0);
        close(end);
        EXPECT_GE(top + 64 + 8, end) << "strangers kept";
        dsc_net_destroy(net);
        EXPECT_EQ(pid, waitpid(pid, &status, 0));
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
        EXPECT_EQ(1u, log.count(DSCOMM_LOG_WARN, "said nothing"));
        EXPECT_EQ(0u, log.count(DSCOMM_LOG_ERROR));
    }
}

/* ---- damage ---- */

/* Forwards connections to a port and flips one bit of what the connector sends, counted over all.
 */
class DamagingProxy {
  public:
    DamagingProxy(uint16_t target, size_t damage_at) : target_(target), damage_at_(damage_at)
    {
        dsc_addr addr = {};

        addr.v4.sin_family = AF_INET;
        addr.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        EXPECT_EQ(DSCOMM_OK, dsc_netif_listen(&addr, &listener_));
        address = addr;
        thread_ = std::thread([this] { forward(); });
    }
    ~DamagingProxy()
    {
        stop_ = true;
        thread_.join();
        close(listener_);
        for (const pollfd &p : fds_)
            close(p.fd);
    }
    DamagingProxy(const DamagingProxy &) = delete;
    DamagingProxy &operator=(const DamagingProxy &) = delete;

    dsc_addr address;

  private:
    void forward()
    {
        while (!stop_) {
            const int fd = accept(listener_, nullptr, nullptr);

            if (fd >= 0) {
                fds_.push_back({ fd, POLLIN, 0 });
                fds_.push_back({ connect_to(target_), POLLIN, 0 });
            }
            poll(fds_.data(), fds_.size(), 1);
            for (size_t i = 0; i < fds_.size(); i++)
                if ((fds_[i].revents & POLLIN) != 0)
                    pass(i);
        }
    }
    void pass(size_t i)
    {
        char buf[4096];
        const ssize_t n = recv(fds_[i].fd, buf, sizeof(buf), MSG_DONTWAIT);

        if (n <= 0) {
            fds_[i].events = 0;
            shutdown(fds_[i ^ 1].fd, SHUT_WR);
            return;
        }
        if (i == 2) { /* the connector's side of its second connection: data */
            const size_t at = damage_at_ - seen_;

            if (damage_at_ >= seen_ && at < static_cast<size_t>(n))
                buf[at] ^= 0x10;
            seen_ += static_cast<size_t>(n);
        }
        EXPECT_EQ(n, send(fds_[i ^ 1].fd, buf, static_cast<size_t>(n), MSG_NOSIGNAL));
    }

    uint16_t target_;
    size_t damage_at_;
    size_t seen_ = 0;
    int listener_ = -1;
    std::atomic<bool> stop_{ false };
    std::vector<pollfd> fds_;
    std::thread thread_;
};

/* Rank 1 sends through the proxy; 260 bytes of handshake go before its first message. */
void damage(size_t at, bool crc, dscomm_status_t expected, const char *why)
{
    World world(2, "tcp");
    constexpr size_t kHandshake = 44 + 184 + 32;
    DamagingProxy proxy(world.port(0), kHandshake + at);
    const std::vector<uint8_t> address(proxy.address.bytes, proxy.address.bytes + DSC_ADDR_BYTES);

    world.params.slot_bytes = 1000;
    world.params.crc = crc;
    std::memcpy(world.peers[0].addr, address.data(), DSC_ADDR_BYTES);
    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        dsc_conn *const conn = dsc_net_conn(net, 1 - rank);
        if (rank == 1) {
            ASSERT_TRUE(try_send(conn, 1, 1000));
            EXPECT_EQ(expected, drive_to_error(net, expected == DSCOMM_OK ? 50 : 1000));
            return;
        }
        const uint8_t *payload;
        conn->ops->rx_expect(conn, 1);
        EXPECT_EQ(expected, drive(net, [&] { return conn->ops->rx_msg(conn, 0, &payload); }));
        EXPECT_TRUE(says(net, why)) << dsc_net_error_text(net);
        EXPECT_TRUE(says(net, "rank 1")) << dsc_net_error_text(net);
        dsc_net_fail(net, expected, dsc_net_error_text(net));
        usleep(50000);
    });
}

TEST(Net, DamageIsFound)
{
    damage(0, true, DSCOMM_ERR_CORRUPT, "bad magic");
    damage(2, true, DSCOMM_ERR_CORRUPT, "version");
    damage(3, true, DSCOMM_ERR_CORRUPT, "kind");
    damage(8, true, DSCOMM_ERR_CORRUPT, "checksum");
    damage(21, true, DSCOMM_ERR_CORRUPT, "more payload than a slot holds");
    damage(28, true, DSCOMM_ERR_CORRUPT, "checksum");
    damage(32, true, DSCOMM_ERR_CORRUPT, "checksum");
    damage(1031, true, DSCOMM_ERR_CORRUPT, "checksum");
}

/* ---- loopback's faults ---- */

TEST(Net, LoopbackFaults)
{
    World world(2, "loopback");

    world.run([&](int rank, dsc_net *net) {
        ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
        dsc_conn *const conn = dsc_net_conn(net, 1 - rank);
        if (rank == 1) {
            conn->ops->rx_expect(conn, 4);
            EXPECT_EQ(DSCOMM_OK, drive(net, [&] { return try_receive(conn); }));
            const uint64_t start_ns = dsc_now_ns();
            EXPECT_EQ(DSCOMM_OK, drive(net, [&] { return try_receive(conn); }));
            EXPECT_GE(dsc_now_ns() - start_ns, 50000000u) << "delayed";
            EXPECT_EQ(DSCOMM_IN_PROGRESS, drive(
                                              net, [&] { return try_receive(conn); }, 100))
                << "dropped";
            conn->rx_next++;
            EXPECT_EQ(DSCOMM_ERR_CORRUPT, drive(net, [&] { return try_receive(conn); }));
            EXPECT_TRUE(says(net, "from rank 0"));
            dsc_net_fail(net, DSCOMM_ERR_CORRUPT, dsc_net_error_text(net));
            return;
        }
        const dsc_fault faults[] = { { DSC_FAULT_NONE, 0, -1, 0 },
                                     { DSC_FAULT_DELAY, 0, 0, 100 },
                                     { DSC_FAULT_DROP, 0, 0, 0 },
                                     { DSC_FAULT_CORRUPT, 0, 0, 0 } };
        for (const dsc_fault &f : faults) {
            dsc_loopback_set_fault(&f);
            ASSERT_TRUE(try_send(conn, 0, 10));
        }
        EXPECT_EQ(DSCOMM_ERR_CORRUPT, drive_to_error(net, 3000));
    });
}

/* ---- ends before a connection stands ---- */

TEST(Net, RankThatDiedBeforeItConnectedIsNamed)
{
    for (const int victim : { 0, 2 }) {
        World world(3, "tcp");

        close(world.take_listener(victim)); /* as the kernel does for a dead process */
        const int alive = 1;
        dsc_net *const net = world.create(alive);
        const uint64_t start_ns = dsc_now_ns();
        EXPECT_EQ(DSCOMM_ERR_PEER_LOST, dsc_net_connect(net, &victim, 1));
        EXPECT_LT(dsc_now_ns() - start_ns, 1000000000u);
        EXPECT_TRUE(says(net, ("rank " + std::to_string(victim)).c_str()));
        EXPECT_TRUE(says(net, "refused")) << dsc_net_error_text(net);
        dsc_net_destroy(net);
    }
}

/* Rank 1 waits for `failing`, which never connects: it fails while it waits for the third, or
 * alone. */
void fail_instead_of_connecting(const char *transport, int failing, bool in_connect)
{
    World world(3, transport);
    std::atomic<bool> heard{ false };
    const auto until_heard = [&] {
        for (int i = 0; i < 1000 && !heard; i++)
            usleep(1000);
    };

    world.run([&](int rank, dsc_net *net) {
        const int peer = rank == 1 ? failing : 2 - failing;

        if (rank == 1) {
            EXPECT_EQ(DSCOMM_ERR_NO_MEMORY, dsc_net_connect(net, &peer, 1))
                << transport << " " << failing << " " << in_connect;
            EXPECT_TRUE(says(net, "no memory for a plan")) << dsc_net_error_text(net);
            heard = true;
            return;
        }
        if (rank != failing) { /* is there but does nothing */
            until_heard();
            return;
        }
        if (in_connect) {
            std::thread end([net] {
                usleep(300000);
                dsc_net_abort(net);
            });
            EXPECT_EQ(DSCOMM_ERR_ABORTED, dsc_net_connect(net, &peer, 1));
            end.join();
        } else {
            usleep(300000);
        }
        dsc_net_fail(net, DSCOMM_ERR_NO_MEMORY, "no memory for a plan");
        until_heard();
    });
}

TEST(Net, RankThatFailsInsteadOfConnectingIsHeard)
{
    for (const char *const transport : { "tcp", "shm", "loopback" })
        for (const int failing : { 0, 2 })
            fail_instead_of_connecting(transport, failing, failing == 0);
    fail_instead_of_connecting("tcp", 0, false);
    fail_instead_of_connecting("tcp", 2, true);
}

/* Rank 0 waits for rank 2, which is not there; its peer 1 is in the same call, another, or ahead.
 */
void wait_in_call(const char *transport, const char *theirs, uint32_t n_ahead)
{
    const bool differs = n_ahead == 0 && std::strcmp(theirs, "count=1000") != 0;
    const dscomm_status_t lonely = differs ? DSCOMM_ERR_MISMATCH : DSCOMM_ERR_TIMEOUT;
    const dscomm_status_t other = differs ? DSCOMM_ERR_MISMATCH : DSCOMM_IN_PROGRESS;
    World world(3, transport);
    std::atomic<bool> done{ false };

    world.params.timeout_ms = 350;
    world.run([&](int rank, dsc_net *net) {
        const int peer = rank == 0 ? 1 : 0, missing = 2;

        if (rank == missing) {
            while (!done)
                usleep(1000);
            return;
        }
        ASSERT_EQ(DSCOMM_OK, dsc_net_connect(net, &peer, 1));
        if (rank == 0) {
            dsc_net_enter(net, 7, 1, "count=1000");
            EXPECT_EQ(lonely, dsc_net_connect(net, &missing, 1)) << dsc_net_error_text(net);
            EXPECT_TRUE(says(net, differs ? theirs : "rank 2")) << dsc_net_error_text(net);
            done = true;
            return;
        }
        for (uint32_t i = 0; i <= n_ahead; i++)
            dsc_net_enter(net, 7 + i, 2, theirs);
        EXPECT_EQ(other, drive_to_error(net, 300));
        EXPECT_TRUE(!differs || says(net, "rank 0: call=7 count=1000")) << dsc_net_error_text(net);
        if (differs)
            dsc_net_fail(net, DSCOMM_ERR_MISMATCH, theirs);
        while (!done)
            usleep(1000);
    });
}

TEST(Net, CallsThatDifferAreFoundWhileConnecting)
{
    for (const char *const transport : { "loopback", "shm", "tcp" })
        wait_in_call(transport, "count=998", 0);
    wait_in_call("loopback", "count=1000", 0);
    wait_in_call("tcp", "count=998", 1);
}

/* ---- limits and leftovers ---- */

TEST(Net, DescriptorLimitIsNamed)
{
    World world(8, "tcp");
    rlimit old;
    Log log;

    getrlimit(RLIMIT_NOFILE, &old);
    world.params.timeout_ms = 1000;
    const int top = dup(0);
    close(top);
    dsc_net *const net = world.create(7);
    const rlimit low = { static_cast<rlim_t>(top) + 6, old.rlim_max };
    ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &low));
    const dscomm_status_t st = world.connect_all(net, 7);
    setrlimit(RLIMIT_NOFILE, &old);
    EXPECT_EQ(DSCOMM_ERR_LIMIT, st);
    EXPECT_TRUE(says(net, "RLIMIT_NOFILE")) << dsc_net_error_text(net);
    EXPECT_TRUE(says(net, std::to_string(low.rlim_cur).c_str()));
    EXPECT_TRUE(says(net, std::to_string(7 * 2 + 16).c_str()));
    dsc_net_destroy(net);
}

size_t count_entries(const char *folder)
{
    size_t n = 0;
    DIR *const dir = opendir(folder);

    while (readdir(dir) != nullptr)
        n++;
    closedir(dir);
    return n;
}

size_t count_shared_mappings()
{
    std::ifstream maps("/proc/self/maps");
    std::string line;
    size_t n = 0;

    while (std::getline(maps, line))
        n += line.find("memfd:dscomm") != std::string::npos;
    return n;
}

TEST(Net, TwoHundredRoundsLeaveNothing)
{
    size_t fds = 0, threads = 0;

    for (int round = 0; round < 200; round++) {
        const char *const transports[] = { "loopback", "shm", "tcp", "auto" };
        {
            World world(2, transports[round % 4]);

            if (round % 8 == 7)
                world.peers[1].process_id = 2;
            world.run([&](int rank, dsc_net *net) {
                ASSERT_EQ(DSCOMM_OK, world.connect_all(net, rank));
                ASSERT_EQ(DSCOMM_OK,
                          exchange(net, rank, { 1 - rank }, 5, [](uint64_t) { return 1024; }));
            });
        }
        if (round == 8) {
            fds = count_entries("/proc/self/fd");
            threads = count_entries("/proc/self/task");
        }
    }
    EXPECT_EQ(fds, count_entries("/proc/self/fd"));
    for (int i = 0; i < 1000 && count_entries("/proc/self/task") > threads; i++)
        std::this_thread::sleep_for(
            std::chrono::milliseconds(1)); /* a joined thread lingers there */
    EXPECT_GE(threads, count_entries("/proc/self/task"));
    EXPECT_EQ(0u, count_shared_mappings());
    EXPECT_EQ(0u, dsc_mem_live(DSC_MEM_TRANSPORT));
}

/* Every allocation of setting up, one after the other, fails once: no crash, nothing left. */
TEST(Net, FailedAllocations)
{
    for (const char *const transport : { "loopback", "shm", "tcp" }) {
        bool worked = false;

        for (int nth = 1; !worked; nth++) {
            World world(2, transport);
            Log log;
            std::atomic<int> n_connected{ 0 };
            const auto rank_body = [&](int rank) {
                dsc_net *const net = world.create(rank);

                if (net != nullptr)
                    n_connected += world.connect_all(net, rank) == DSCOMM_OK;
                dsc_net_destroy(net);
            };

            ASSERT_LT(nth, 100);
            world.params.timeout_ms = 20;
            dsc_mem_fail_after(nth);
            std::thread other(rank_body, 1);
            rank_body(0);
            other.join();
            dsc_mem_fail_after(-1);
            ASSERT_EQ(0u, dsc_mem_live(DSC_MEM_TRANSPORT)) << transport << " " << nth;
            worked = n_connected == 2 && log.count(DSCOMM_LOG_ERROR) == 0;
            if (worked) {
                EXPECT_LT(10, nth) << "allocations were never made to fail";
            }
        }
    }
}

} // namespace
