// SPDX-License-Identifier: Apache-2.0
// Runs a batch on its stream's worker: every task becomes messages to and from other ranks, all of
// which move at the same time, so no order inside a group can deadlock. Each message starts with a
// header that says what the sender believes to be doing; a receiver that does something else has
// found a bug that NCCL would answer with a hang or with wrong bytes.
#include "emu/nccl/emu_nccl.h"
#include <algorithm>
#include <string.h>
#include <deque>
#include <map>

struct Header {
    uint64_t number; // collectives of the sender's communicator before this one
    Kind kind;
    ncclDataType_t type;
    ncclRedOp_t op;
    int32_t root;
    uint32_t is_captured;
    uint64_t count;
};

struct Message {
    Header header;
    uint8_t *bytes;
    size_t n, header_done = 0, done = 0;
    Header seen; // of a received one

    Message(const Header &h, const void *p, size_t size)
        : header(h), bytes(static_cast<uint8_t *>(const_cast<void *>(p))), n(size)
    {
    }
    bool is_done() const
    {
        return header_done == sizeof(Header) && done == n;
    }
};

// One batch at work.
struct Engine {
    Comm *c;
    std::map<int, std::deque<Message>> sends, receives; // by peer, in the order of the calls
    std::vector<std::function<void()>> last;            // when all bytes are here
    std::deque<std::vector<uint8_t>> scratch;
    uint64_t number;
    bool is_captured;

    void add(const Task &t);
    void add_all_gather(const Task &t);
    void add_reduction(const Task &t);
    void add_broadcast(const Task &t);
    void send_to(int peer, const Task &t, const void *p, size_t elems);
    void receive_from(int peer, const Task &t, void *p, size_t elems);
    bool move_sends(int peer, std::deque<Message> *queue);
    bool move_receives(int peer, std::deque<Message> *queue);
    bool is_expected(int peer, const Message &m);
    ncclResult_t run();
    std::string waits_for() const;
};

// ---- what a task consists of ----
static Header header_of(const Engine &e, const Task &t)
{
    Header h;

    memset(&h, 0, sizeof(h));
    h.number = e.number;
    h.kind = t.kind;
    h.type = t.type;
    h.op = t.op;
    h.root = t.kind == Kind::BROADCAST ? t.peer : 0;
    h.is_captured = e.is_captured;
    h.count = t.count;
    return h;
}

void Engine::send_to(int peer, const Task &t, const void *p, size_t elems)
{
    sends[peer].emplace_back(header_of(*this, t), p, elems * type_bytes(t.type));
}

void Engine::receive_from(int peer, const Task &t, void *p, size_t elems)
{
    receives[peer].emplace_back(header_of(*this, t), p, elems * type_bytes(t.type));
}

static void move_local(void *to, const void *from, size_t n)
{
    if (n && to != from)
        memmove(to, from, n);
}

void Engine::add_all_gather(const Task &t)
{
    const size_t part = t.count * type_bytes(t.type);
    uint8_t *out = static_cast<uint8_t *>(t.recv);

    move_local(out + static_cast<size_t>(c->rank) * part, t.send, part);
    for (int r = 0; r < c->n_ranks; r++) {
        if (r == c->rank)
            continue;
        send_to(r, t, out + static_cast<size_t>(c->rank) * part, t.count);
        receive_from(r, t, out + static_cast<size_t>(r) * part, t.count);
    }
}

// Everybody sends to each rank what that rank reduces: its part, or for an all-reduce everything.
void Engine::add_reduction(const Task &t)
{
    const bool is_scattered = t.kind == Kind::REDUCE_SCATTER;
    const size_t part = t.count * type_bytes(t.type);
    const uint8_t *in = static_cast<const uint8_t *>(t.send);
    std::vector<const void *> parts;

    for (int r = 0; r < c->n_ranks; r++) {
        scratch.emplace_back(part);
        parts.push_back(scratch.back().data());
        const uint8_t *for_r = is_scattered ? in + static_cast<size_t>(r) * part : in;
        if (r == c->rank) {
            move_local(scratch.back().data(), for_r, part);
            continue;
        }
        send_to(r, t, for_r, t.count);
        receive_from(r, t, scratch.back().data(), t.count);
    }
    last.push_back([t, parts] { reduce(t.recv, parts, t.count, t.type, t.op); });
}

void Engine::add_broadcast(const Task &t)
{
    if (c->rank != t.peer) {
        receive_from(t.peer, t, t.recv, t.count);
        return;
    }
    move_local(t.recv, t.send, t.count * type_bytes(t.type));
    for (int r = 0; r < c->n_ranks; r++) {
        if (r != c->rank)
            send_to(r, t, t.send, t.count);
    }
}

void Engine::add(const Task &t)
{
    switch (t.kind) {
    case Kind::SEND:
        send_to(t.peer, t, t.send, t.count);
        break;
    case Kind::RECV:
        receive_from(t.peer, t, t.recv, t.count);
        break;
    case Kind::ALL_GATHER:
        add_all_gather(t);
        break;
    case Kind::REDUCE_SCATTER:
    case Kind::ALL_REDUCE:
        add_reduction(t);
        break;
    case Kind::BROADCAST:
        add_broadcast(t);
        break;
    }
}

// ---- moving bytes; both return whether anything moved ----
bool Engine::move_sends(int peer, std::deque<Message> *queue)
{
    Ring *ring = c->world->ring(c->rank, peer);
    size_t moved = 0;

    while (!queue->empty()) {
        Message *m = &queue->front();
        const uint8_t *h = reinterpret_cast<const uint8_t *>(&m->header);
        size_t k = 0;

        if (m->header_done < sizeof(Header))
            m->header_done += k = ring->put(h + m->header_done, sizeof(Header) - m->header_done);
        else if (m->done < m->n)
            m->done += k = ring->put(m->bytes + m->done, m->n - m->done);
        if (m->is_done())
            queue->pop_front();
        else if (k == 0)
            break;
        moved += k;
    }
    return moved > 0;
}

static std::string describe(const Header &h)
{
    char text[120];

    snprintf(text, sizeof(text), "%s of %llu %s (after %llu collectives, %s)", kind_name(h.kind),
             static_cast<unsigned long long>(h.count), type_name(h.type),
             static_cast<unsigned long long>(h.number),
             h.is_captured ? "replayed by a graph" : "eager");
    return text;
}

static bool kinds_match(Kind mine, Kind theirs)
{
    return mine == Kind::RECV ? theirs == Kind::SEND : theirs == mine;
}

bool Engine::is_expected(int peer, const Message &m)
{
    const Header &mine = m.header, &theirs = m.seen;
    const char *what = nullptr;

    if (theirs.kind > Kind::BROADCAST || !kinds_match(mine.kind, theirs.kind))
        what = "different operations";
    else if (mine.is_captured != theirs.is_captured)
        what = "captured against eager";
    else if (mine.type != theirs.type)
        what = "different types";
    else if (mine.count != theirs.count)
        what = "different counts";
    else if (mine.op != theirs.op || mine.root != theirs.root)
        what = "different reductions or roots";
    else if (mine.kind != Kind::RECV && mine.number != theirs.number)
        what = "different numbers of collectives before this one";
    if (!what)
        return true;
    c->fail_all(ncclInvalidUsage, "MISMATCH, %s: %s here meets %s of rank %d", what,
                describe(mine).c_str(), describe(theirs).c_str(), peer);
    return false;
}

bool Engine::move_receives(int peer, std::deque<Message> *queue)
{
    Ring *ring = c->world->ring(peer, c->rank);
    size_t moved = 0;

    while (!queue->empty()) {
        Message *m = &queue->front();
        uint8_t *h = reinterpret_cast<uint8_t *>(&m->seen);
        size_t k = 0;

        if (m->header_done < sizeof(Header)) {
            m->header_done += k = ring->get(h + m->header_done, sizeof(Header) - m->header_done);
            if (m->header_done == sizeof(Header) && !is_expected(peer, *m))
                return false;
        } else if (m->done < m->n) {
            m->done += k = ring->get(m->bytes + m->done, m->n - m->done);
        }
        if (m->is_done())
            queue->pop_front();
        else if (k == 0)
            break;
        moved += k;
    }
    return moved > 0;
}

// ---- the whole ----
std::string Engine::waits_for() const
{
    std::string text;

    for (const auto *queues : { &receives, &sends }) {
        for (const auto &[peer, queue] : *queues) {
            if (queue.empty() || !text.empty())
                continue;
            text = describe(queue.front().header) +
                   (queues == &sends ? " to rank " : " from rank ") + std::to_string(peer);
            if (c->world->seats[peer].has_aborted)
                text += ", which has aborted";
        }
    }
    return text;
}

ncclResult_t Engine::run()
{
    Deadline deadline;

    for (;;) {
        bool has_moved = false, is_left = false;

        for (auto &[peer, queue] : sends) {
            has_moved |= move_sends(peer, &queue);
            is_left |= !queue.empty();
        }
        for (auto &[peer, queue] : receives) {
            has_moved |= move_receives(peer, &queue);
            is_left |= !queue.empty();
        }
        if (!is_left) // whatever has become of others since
            return ncclSuccess;
        const ncclResult_t e = c->check_alive();
        if (e != ncclSuccess)
            return e;
        if (has_moved) {
            deadline = Deadline();
            continue;
        }
        if (deadline.has_passed())
            return c->fail(ncclSystemError, "%.1f s without a byte for %s", Deadline::seconds(),
                           waits_for().c_str());
        idle();
    }
}

// Ranks may have different numbers of sends and receives, as the root of a broadcast does.
static bool has_collective(const Batch &b)
{
    return std::any_of(b.tasks.begin(), b.tasks.end(),
                       [](const Task &t) { return t.kind != Kind::SEND && t.kind != Kind::RECV; });
}

void run_batch(Batch *b)
{
    Comm *c = b->c.get();
    const std::lock_guard<std::mutex> l(c->run_lock);

    if (c->is_destroyed) {
        c->fail(ncclInvalidUsage, "a graph is replayed whose communicator is destroyed");
        return;
    }
    if (c->check_alive() != ncclSuccess)
        return;
    Engine e;
    e.c = c;
    e.number = c->n_run;
    e.is_captured = b->is_captured;
    for (const Task &t : b->tasks)
        e.add(t);
    c->n_run += has_collective(*b);
    if (e.run() != ncclSuccess)
        return;
    for (const auto &f : e.last)
        f();
}
