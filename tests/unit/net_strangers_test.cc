/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strangers at the endpoint's door, and damage on the way.
 */
#include "support/net_world.h"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <csignal>

using namespace net_world;

namespace {

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

/* Rank 1 sends through the proxy; 268 bytes of handshake go before its first message. */
void damage(size_t at, bool crc, dscomm_status_t expected, const char *why)
{
    World world(2, "tcp");
    constexpr size_t kHandshake = 44 + 192 + 32;
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

} // namespace
