// SPDX-License-Identifier: Apache-2.0
// The shared memory in which the ranks of a communicator meet. The unique id names a memfd of the
// process that made it, which the others open through /proc: nothing is left behind in any folder.
#include "emu/nccl/emu_nccl.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <map>

struct Id { // inside an ncclUniqueId
    uint64_t magic, token;
    int32_t pid, fd;
};
static const uint64_t id_magic = 0x6c63636e756d65; // "emunccl"
static_assert(sizeof(Id) <= sizeof(ncclUniqueId), "fits the opaque id");

static std::mutex id_lock;
static std::map<uint64_t, int> &own_fds() // by token; closed once all ranks have arrived
{
    static auto &fds = *new std::map<uint64_t, int>;

    return fds;
}

// ---- deadlines ----
double Deadline::seconds()
{
    const char *e = getenv("EMU_NCCL_TIMEOUT_MS");

    return (e && *e ? strtod(e, nullptr) : 20000.0) * 1e-3;
}

static double now()
{
    timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

Deadline::Deadline() : end(now() + seconds())
{
}

bool Deadline::has_passed() const
{
    return now() > end;
}

void idle()
{
    usleep(50);
}

// ---- rings ----
Ring *World::ring(int from, int to)
{
    return &rings[static_cast<uint32_t>(from) * n_ranks + static_cast<uint32_t>(to)];
}

size_t Ring::put(const void *p, size_t n)
{
    const uint64_t w = written.load(std::memory_order_relaxed);
    const uint64_t room = ring_bytes - (w - read.load(std::memory_order_acquire));
    const size_t at = w % ring_bytes;
    const size_t k = std::min({ n, static_cast<size_t>(room), ring_bytes - at });

    memcpy(bytes + at, p, k);
    written.store(w + k, std::memory_order_release);
    return k;
}

size_t Ring::get(void *p, size_t n)
{
    const uint64_t r = read.load(std::memory_order_relaxed);
    const uint64_t there = written.load(std::memory_order_acquire) - r;
    const size_t at = r % ring_bytes;
    const size_t k = std::min({ n, static_cast<size_t>(there), ring_bytes - at });

    memcpy(p, bytes + at, k);
    read.store(r + k, std::memory_order_release);
    return k;
}

// ---- meeting ----
ncclResult_t world_make_id(ncclUniqueId *out)
{
    Id id = { id_magic, 0, getpid(), memfd_create("emu-nccl", MFD_CLOEXEC) };

    if (id.fd < 0 || getrandom(&id.token, sizeof(id.token), 0) != sizeof(id.token))
        return refuse(ncclSystemError, "no memory for a unique id: %s", strerror(errno));
    id.token |= 1;
    memset(out, 0, sizeof(*out));
    memcpy(out, &id, sizeof(id));
    std::lock_guard<std::mutex> l(id_lock);
    own_fds()[id.token] = id.fd;
    return ncclSuccess;
}

static ncclResult_t map_world(Comm *c, const Id &id)
{
    const size_t n = static_cast<size_t>(c->n_ranks);
    char path[64];

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", id.pid, id.fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return c->fail(ncclSystemError, "%s: %s: the process that made the id has ended?", path,
                       strerror(errno));
    // Room for the most ranks there can be: those who say different numbers must meet, too.
    const size_t bytes = sizeof(World) + sizeof(Ring) * max_ranks * max_ranks;
    void *p = ftruncate(fd, static_cast<off_t>(bytes)) == 0
                  ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                  : MAP_FAILED;
    close(fd);
    if (p == MAP_FAILED)
        return c->fail(ncclSystemError, "no shared memory for %zu ranks", n);
    c->world = static_cast<World *>(p);
    c->world_bytes = bytes;
    return ncclSuccess;
}

static ncclResult_t take_seat(Comm *c, const Id &id)
{
    const uint32_t n = static_cast<uint32_t>(c->n_ranks);
    World *w = c->world;
    uint64_t no_token = 0;
    uint32_t no_ranks = 0;

    if (!w->token.compare_exchange_strong(no_token, id.token) && no_token != id.token)
        return c->fail(ncclInvalidArgument, "stale unique id: its memory is another one's by now");
    if (!w->n_ranks.compare_exchange_strong(no_ranks, n) && no_ranks != n)
        return c->fail_all(ncclInvalidArgument, "rank %d was told of %u ranks, another one of %u",
                           c->rank, n, no_ranks);
    Seat *seat = &w->seats[c->rank];
    if (seat->is_taken.exchange(1))
        return c->fail_all(ncclInvalidArgument, "two callers are rank %d", c->rank);
    seat->device = c->device;
    w->n_arrived++;
    return ncclSuccess;
}

static ncclResult_t wait_for_all(Comm *c)
{
    const Deadline deadline;

    while (c->world->n_arrived < static_cast<uint32_t>(c->n_ranks)) {
        const ncclResult_t e = c->check_alive();
        if (e != ncclSuccess)
            return e;
        if (deadline.has_passed())
            return c->fail(ncclSystemError, "%u of %d ranks arrived within %.1f s",
                           c->world->n_arrived.load(), c->n_ranks, Deadline::seconds());
        idle();
    }
    for (int r = 0; r < c->n_ranks; r++) {
        if (r != c->rank && c->world->seats[r].device == c->device)
            return c->fail_all(ncclInvalidUsage, "ranks %d and %d are both on device %d",
                               std::min(r, c->rank), std::max(r, c->rank), c->device);
    }
    return ncclSuccess;
}

ncclResult_t world_join(Comm *c, const ncclUniqueId &unique)
{
    Id id;

    memcpy(&id, &unique, sizeof(id));
    if (id.magic != id_magic)
        return c->fail(ncclInvalidArgument, "unique id: not one of ncclGetUniqueId");
    ncclResult_t e = map_world(c, id);
    if (e == ncclSuccess)
        e = take_seat(c, id);
    if (e == ncclSuccess)
        e = wait_for_all(c);
    std::lock_guard<std::mutex> l(id_lock);
    auto own = own_fds().find(id.token);
    if (own != own_fds().end()) {
        close(own->second);
        own_fds().erase(own);
    }
    return e;
}

void world_leave(Comm *c)
{
    if (c->world)
        munmap(c->world, c->world_bytes);
    c->world = nullptr;
}

ncclResult_t world_barrier(Comm *c, const char *why)
{
    World *w = c->world;
    const uint32_t generation = w->barrier_generation;
    const Deadline deadline;

    if (++w->barrier_count == static_cast<uint32_t>(c->n_ranks)) {
        w->barrier_count = 0;
        w->barrier_generation++;
        return ncclSuccess;
    }
    while (w->barrier_generation == generation) {
        const ncclResult_t e = c->check_alive();
        if (e != ncclSuccess)
            return e;
        if (deadline.has_passed())
            return c->fail_all(ncclSystemError, "%s: not all ranks came within %.1f s", why,
                               Deadline::seconds());
        idle();
    }
    return ncclSuccess;
}
