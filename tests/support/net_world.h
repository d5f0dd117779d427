/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as threads, each with an endpoint of its own, without the rendezvous: the table of peers is
 * made by hand, so a test decides which transports reach whom and what stands between two ranks.
 */
#ifndef DSC_TESTS_NET_WORLD_H
#define DSC_TESTS_NET_WORLD_H

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/internal_begin.h"
#include "transport/netif.h"
#include "transport/transport.h"
#include "support/internal_end.h"

namespace net_world {

/* 0: this machine has no RDMA, and no test of it. */
inline uint64_t rdma_key()
{
    static const uint64_t key = [] {
        uint64_t found = 0;

        EXPECT_EQ(DSCOMM_OK, dsc_verbs_probe(DSC_RDMA_MAY, &found));
        return found;
    }();
    return key;
}

/* How much longer what is only slow may take: the virtual machine's CPUs are emulated. */
inline int slowness()
{
    return std::getenv("DSC_VM") != nullptr ? 10 : 1;
}

inline uint64_t new_job()
{
    static std::atomic<uint64_t> next{ 1000 };
    return next++;
}

/* All ranks may use every transport with each other unless a test edits `peers`. */
class World {
  public:
    World(int n_ranks, const char *transport)
        : peers(static_cast<size_t>(n_ranks)), params{ transport, 65536, 4, 1, true, 20000, 20000 },
          job_(new_job())
    {
        for (int r = 0; r < n_ranks; r++) {
            dsc_peer_info &info = peers[static_cast<size_t>(r)];
            dsc_addr addr = {};
            int fd = -1;

            addr.v4.sin_family = AF_INET;
            addr.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            EXPECT_EQ(DSCOMM_OK, dsc_netif_listen(&addr, &fd));
            listeners_.push_back(fd);
            info = {};
            std::snprintf(info.host_id, sizeof(info.host_id), "host-a");
            std::memcpy(info.addr, addr.bytes, sizeof(info.addr));
            info.process_id = 1;
            info.pid = static_cast<uint32_t>(getpid());
            info.rdma_key = rdma_key();
            info.n_cpus = 2;
        }
        std::memset(key_, 7, sizeof(key_));
    }
    World(const World &) = delete;
    World &operator=(const World &) = delete;
    ~World()
    {
        for (const int fd : listeners_)
            if (fd >= 0)
                close(fd);
    }

    int n_ranks() const
    {
        return static_cast<int>(peers.size());
    }

    /* The rank's endpoint; it takes the listener. One per rank and world. */
    dsc_net *create(int rank)
    {
        const size_t at = static_cast<size_t>(rank);
        dsc_bootstrap boot = {};
        dsc_net *net = nullptr;

        boot.n_ranks = n_ranks();
        boot.rank = rank;
        boot.listen_fd = listeners_[at];
        std::memcpy(boot.key, key_, sizeof(key_));
        boot.job = job_;
        boot.peers = peers.data();
        if (dsc_net_create(&boot, &params, &net) == DSCOMM_OK)
            listeners_[at] = -1;
        return net;
    }

    /* Runs body(rank, endpoint) on a thread per rank of [first, n_ranks); destroys the endpoints.
     */
    void run(const std::function<void(int, dsc_net *)> &body, int first = 0)
    {
        std::vector<std::thread> threads;

        for (int r = first; r < n_ranks(); r++)
            threads.emplace_back([this, &body, r] {
                dsc_net *const net = create(r);

                ASSERT_NE(nullptr, net);
                body(r, net);
                dsc_net_destroy(net);
            });
        for (std::thread &t : threads)
            t.join();
    }

    std::vector<int> others(int rank) const
    {
        std::vector<int> list;

        for (int r = 0; r < n_ranks(); r++)
            if (r != rank)
                list.push_back(r);
        return list;
    }

    dscomm_status_t connect_all(dsc_net *net, int rank) const
    {
        const std::vector<int> list = others(rank);

        return dsc_net_connect(net, list.data(), static_cast<int>(list.size()));
    }

    /* The descriptor that the rank listens on, for as long as no endpoint took it. */
    int take_listener(int rank)
    {
        const int fd = listeners_[static_cast<size_t>(rank)];

        listeners_[static_cast<size_t>(rank)] = -1;
        return fd;
    }

    uint8_t *key()
    {
        return key_;
    }

    uint64_t job() const
    {
        return job_;
    }

    uint16_t port(int rank) const
    {
        dsc_addr addr;

        std::memcpy(addr.bytes, peers[static_cast<size_t>(rank)].addr, sizeof(addr.bytes));
        return dsc_addr_port(&addr);
    }

    std::vector<dsc_peer_info> peers;
    dsc_net_params params;

  private:
    std::vector<int> listeners_;
    uint8_t key_[32];
    uint64_t job_;
};

/* Progresses until done() or an error or the limit; what the last progress said. */
inline dscomm_status_t drive(dsc_net *net, const std::function<bool()> &done,
                             int limit_ms = 30000 * slowness())
{
    const uint64_t deadline_ns = dsc_deadline_ns(limit_ms);

    for (;;) {
        const dscomm_status_t st = dsc_net_progress(net);

        if (st < 0 || done())
            return st;
        if (dsc_now_ns() >= deadline_ns)
            return DSCOMM_IN_PROGRESS;
        dsc_net_wait(net, deadline_ns - dsc_now_ns());
    }
}

/* For tests in which nothing else happens: until the endpoint has an error. */
inline dscomm_status_t drive_to_error(dsc_net *net, int limit_ms = 5000)
{
    return drive(
        net, [] { return false; }, limit_ms);
}

/* Content of message `index` from `sender`: byte i. */
inline uint8_t content(int sender, uint64_t index, size_t i)
{
    return static_cast<uint8_t>(static_cast<size_t>(sender) * 31 + index * 7 + i * 3 + (i >> 8));
}

inline dsc_header test_header(uint64_t index, size_t bytes)
{
    dsc_header header = {};

    header.sequence = static_cast<uint32_t>(index);
    header.descriptor = 0x1122334455667788u;
    header.stage = 3;
    header.note = 9;
    header.payload_bytes = static_cast<uint32_t>(bytes);
    return header;
}

inline bool try_send(dsc_conn *conn, int sender, size_t bytes)
{
    uint8_t *const slot = conn->ops->tx_slot(conn, conn->tx_next);

    if (slot == nullptr)
        return false;
    EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(slot) % 64);
    for (size_t i = 0; i < bytes; i++)
        slot[i] = content(sender, conn->tx_next, i);
    const dsc_header header = test_header(conn->tx_next, bytes);
    conn->ops->tx_post(conn, conn->tx_next, &header);
    conn->tx_next++;
    return true;
}

/* Checks header and content; any size if bytes is SIZE_MAX. */
inline void check_message(const dsc_conn *conn, const dsc_header *header, const uint8_t *payload,
                          uint64_t index, size_t bytes)
{
    ASSERT_EQ(static_cast<uint32_t>(index), header->sequence);
    ASSERT_EQ(0x1122334455667788u, header->descriptor);
    ASSERT_EQ(DSC_MSG_DATA, header->kind);
    ASSERT_EQ(3, header->stage);
    ASSERT_EQ(9u, header->note);
    ASSERT_EQ(0u, reinterpret_cast<uintptr_t>(payload) % 64);
    if (bytes != SIZE_MAX) {
        ASSERT_EQ(bytes, header->payload_bytes);
    }
    for (size_t i = 0; i < header->payload_bytes; i++)
        ASSERT_EQ(content(conn->peer, index, i), payload[i]) << "byte " << i << " of " << index;
}

inline bool try_receive(dsc_conn *conn, size_t bytes = SIZE_MAX)
{
    const uint8_t *payload = nullptr;
    const dsc_header *const header = conn->ops->rx_msg(conn, conn->rx_next, &payload);

    if (header == nullptr)
        return false;
    check_message(conn, header, payload, conn->rx_next, bytes);
    conn->ops->rx_release(conn, conn->rx_next);
    conn->rx_next++;
    return true;
}

/* n messages to and from every peer, sizes from size_of(index), checked. */
inline dscomm_status_t exchange(dsc_net *net, int rank, const std::vector<int> &list, uint64_t n,
                                const std::function<size_t(uint64_t)> &size_of)
{
    std::vector<uint64_t> tx_end, rx_end;

    for (const int peer : list) {
        dsc_conn *const conn = dsc_net_conn(net, peer);

        tx_end.push_back(conn->tx_next + n);
        rx_end.push_back(conn->rx_next + n);
        conn->ops->rx_expect(conn, conn->rx_next + n);
    }
    return drive(net, [&] {
        bool done = true;

        for (size_t k = 0; k < list.size(); k++) {
            dsc_conn *const conn = dsc_net_conn(net, list[k]);

            while (conn->tx_next < tx_end[k] && try_send(conn, rank, size_of(conn->tx_next)))
                ;
            while (conn->rx_next < rx_end[k] && try_receive(conn, size_of(conn->rx_next)))
                ;
            done = done && conn->tx_next == tx_end[k] && conn->rx_next == rx_end[k];
        }
        return done;
    });
}

/* ---- what tests look at ---- */

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

inline bool says(const dsc_net *net, const char *text)
{
    return std::strstr(dsc_net_error_text(net), text) != nullptr;
}

inline int connect_to(uint16_t port)
{
    sockaddr_in addr = {};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    addr.sin_family = AF_INET;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    addr.sin_port = htons(port);
    EXPECT_EQ(0, connect(fd, reinterpret_cast<const sockaddr *>(&addr), sizeof(addr)));
    return fd;
}

} /* namespace net_world */

#endif
