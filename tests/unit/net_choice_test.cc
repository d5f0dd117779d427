/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which transport the endpoint takes for each rank, mixtures of them, and shared memory that fails.
 */
#include "support/net_world.h"

#include "support/internal_begin.h"
#include "transport/handshake.h"
#include "support/internal_end.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <csignal>

using namespace net_world;

namespace {

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
            constexpr size_t kGreeting = 44, kProof = 44 + 192 + 32;
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

} // namespace
