/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the rendezvous tests: ranks as threads, log lines of all threads, a fixture that gives every
 * test the environment it asks for, and what a process holds (descriptors, threads, blocks).
 */
#ifndef DSC_BOOTSTRAP_SUPPORT_H
#define DSC_BOOTSTRAP_SUPPORT_H

#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "support/internal_begin.h"
#include "transport/bootstrap_internal.h"
#include "transport/handshake.h"
#include "support/internal_end.h"

constexpr int kLong = 20000; /* ms; a test that waits this long has failed */

/* ---- log lines of all threads ---- */

inline std::mutex log_lock;
inline std::vector<std::string> log_lines;

inline void collect(void *, dscomm_log_level_t, const char *line)
{
    const std::lock_guard<std::mutex> guard(log_lock);
    log_lines.push_back(line);
}

inline bool contains(const std::string &text, const std::string &part)
{
    return text.find(part) != std::string::npos;
}

inline size_t count_lines(const std::string &part)
{
    const std::lock_guard<std::mutex> guard(log_lock);
    size_t n = 0;

    for (const std::string &line : log_lines)
        n += contains(line, part);
    return n;
}

inline double now_s()
{
    return (double)dsc_now_ns() * 1e-9;
}

/* ---- ranks as threads ---- */

struct Rank {
    int n_ranks, rank;
    int timeout_ms = kLong;
    std::string settings = "chunk_bytes=1024 algorithm=auto";
    int delay_ms = 0;
    /* results */
    dscomm_status_t status = DSCOMM_IN_PROGRESS;
    std::string text;
    double seconds = 0;
    dsc_bootstrap boot = {};

    Rank(int n, int r) : n_ranks(n), rank(r)
    {
        boot.listen_fd = -1;
    }
    void join(const dscomm_unique_id_t &id)
    {
        const dsc_bootstrap_params params = { n_ranks, rank, timeout_ms, settings.c_str() };

        std::this_thread::sleep_for(std::chrono::milliseconds(delay_ms));
        const double start = now_s();
        status = dsc_bootstrap_join(&id, &params, &boot);
        seconds = now_s() - start;
        if (status != DSCOMM_OK)
            text = dscomm_last_error();
    }
    void leave()
    {
        if (status == DSCOMM_OK)
            dsc_bootstrap_fini(&boot);
    }
};

inline void join_all(std::vector<Rank> &ranks, const dscomm_unique_id_t &id)
{
    std::vector<std::thread> threads;

    for (Rank &rank : ranks)
        threads.emplace_back([&rank, &id] { rank.join(id); });
    for (std::thread &thread : threads)
        thread.join();
}

inline void leave_all(std::vector<Rank> &ranks)
{
    for (Rank &rank : ranks)
        rank.leave();
}

inline std::vector<Rank> make_ranks(int n, int timeout_ms = kLong)
{
    std::vector<Rank> ranks;

    for (int r = 0; r < n; r++) {
        ranks.emplace_back(n, r);
        ranks.back().timeout_ms = timeout_ms;
    }
    return ranks;
}

inline bool can_connect(const uint8_t *addr_bytes)
{
    dsc_addr addr;
    memcpy(&addr, addr_bytes, sizeof(addr));
    const int fd = socket(addr.any.sa_family, SOCK_STREAM, 0);
    const bool ok = connect(fd, &addr.any, dsc_addr_len(&addr)) == 0;
    close(fd);
    return ok;
}

/* All came, all know the same, and every address works. */
inline void expect_met(const std::vector<Rank> &ranks)
{
    for (const Rank &r : ranks) {
        ASSERT_EQ(r.status, DSCOMM_OK) << r.text;
        EXPECT_EQ(r.boot.rank, r.rank);
        EXPECT_EQ(r.boot.n_ranks, (int)ranks.size());
        EXPECT_EQ(r.boot.job, ranks[0].boot.job);
        EXPECT_NE(r.boot.job, 0u);
        EXPECT_EQ(memcmp(r.boot.key, ranks[0].boot.key, sizeof(r.boot.key)), 0);
        EXPECT_EQ(memcmp(r.boot.peers, ranks[0].boot.peers, ranks.size() * sizeof(*r.boot.peers)),
                  0);
        const dsc_peer_info &self = r.boot.peers[r.rank];
        EXPECT_TRUE(can_connect(self.addr)) << r.rank;
        EXPECT_EQ(self.pid, (uint32_t)getpid());
        EXPECT_EQ(self.process_id, r.boot.peers[0].process_id);
        EXPECT_GE(self.n_cpus, 1u);
        EXPECT_NE(self.host_id[0], '\0');

        dsc_addr listed, bound = {};
        socklen_t len = sizeof(bound);
        memcpy(&listed, self.addr, sizeof(listed));
        ASSERT_EQ(getsockname(r.boot.listen_fd, &bound.any, &len), 0);
        EXPECT_EQ(dsc_addr_port(&listed), dsc_addr_port(&bound));
    }
}

inline void expect_all_fail(const std::vector<Rank> &ranks, dscomm_status_t status,
                            const std::string &text, double max_s)
{
    for (const Rank &r : ranks) {
        EXPECT_EQ(r.status, status) << r.rank << ": " << r.text;
        EXPECT_TRUE(contains(r.text, text)) << r.rank << ": " << r.text;
        EXPECT_LE(r.seconds, max_s) << r.rank;
    }
}

/* ---- resources ---- */

inline int count_entries(const char *path)
{
    DIR *const dir = opendir(path);
    int n = 0;

    while (readdir(dir) != nullptr)
        n++;
    closedir(dir);
    return n;
}

struct Usage {
    int fds, threads;
    size_t blocks;
    bool operator==(const Usage &o) const
    {
        return fds == o.fds && threads == o.threads && blocks == o.blocks;
    }
};

inline Usage usage()
{
    dsc_root_reap();
    return { count_entries("/proc/self/fd"), count_entries("/proc/self/task"),
             dsc_mem_live(DSC_MEM_TRANSPORT) };
}

/* A joined thread may show in /proc for a moment longer: what holds for a while. */
inline Usage stable_usage()
{
    for (Usage last = usage();;) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        const Usage now = usage();
        if (now == last)
            return now;
        last = now;
    }
}

/* Less than before is fine: an earlier test's service may have ended meanwhile. */
inline void expect_no_more_than(const Usage &before)
{
    const auto is_more = [&](const Usage &u) {
        return u.fds > before.fds || u.threads > before.threads || u.blocks > before.blocks;
    };
    for (int i = 0; i < 1200 && is_more(usage()); i++) /* a failed service lingers 10 s */
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    const Usage after = usage();
    EXPECT_LE(after.fds, before.fds);
    EXPECT_LE(after.threads, before.threads);
    EXPECT_LE(after.blocks, before.blocks);
}

class Bootstrap : public testing::Test {
  protected:
    std::vector<std::string> names;

    void SetUp() override
    {
        for (const char *name :
             { "DSCOMM_SECRET", "DSCOMM_PORT", "DSCOMM_HOST_ID", "RANK", "WORLD_SIZE",
               "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMPI_COMM_WORLD_RANK",
               "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK", "PMI_SIZE",
               "PMI_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_PROCID", "SLURM_NTASKS",
               "SLURM_NNODES" })
            unsetenv(name);
        dscomm_set_log(collect, nullptr);
        set("DSCOMM_LOG_LEVEL", "info");
        set("DSCOMM_SOCKET_IFNAME", "lo");
        const std::lock_guard<std::mutex> guard(log_lock);
        log_lines.clear();
    }
    void TearDown() override
    {
        for (const std::string &name : names)
            unsetenv(name.c_str());
        dsc_env_reload();
        dscomm_set_log(nullptr, nullptr);
    }
    void set(const char *name, const std::string &value)
    {
        setenv(name, value.c_str(), 1);
        names.push_back(name);
        dsc_env_reload();
        const dsc_env *env;
        dsc_env_get(&env); /* so that the log level holds */
    }
    void clear(const char *name)
    {
        unsetenv(name);
        dsc_env_reload();
    }
    dscomm_unique_id_t make_id()
    {
        dscomm_unique_id_t id = {};
        EXPECT_EQ(dscomm_unique_id_create(&id), DSCOMM_OK) << dscomm_last_error();
        return id;
    }
    dsc_rendezvous open_id(const dscomm_unique_id_t &id)
    {
        dsc_rendezvous rv = {};
        EXPECT_EQ(dsc_unique_id_decode(&id, &rv), DSCOMM_OK);
        return rv;
    }
};

inline int port_of(const dscomm_unique_id_t &id)
{
    dsc_rendezvous rv = {};

    EXPECT_EQ(dsc_unique_id_decode(&id, &rv), DSCOMM_OK);
    return dsc_addr_port(&rv.addr);
}

#endif
