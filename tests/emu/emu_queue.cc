// SPDX-License-Identifier: Apache-2.0
// Queues of work with a worker thread each; all ordering between them is tokens (queue, sequence
// number). CUDAEMU_LAZY=1: a queue runs only what somebody waits for or asks about, so a host that
// reads results before it has synchronized surely reads old bytes.
#include "emu/emu_rt.h"
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>

// A wait that lasts this long wants everything issued so far: the work may itself wait for work
// that nobody asked for, such as a kernel that waits for a kernel of another stream.
static const std::chrono::milliseconds lazy_patience(100);

static std::mutex list_lock;
static std::vector<std::shared_ptr<Queue>> &queues() // until their worker has ended
{
    static auto &all = *new std::vector<std::shared_ptr<Queue>>;

    return all;
}

static bool is_lazy()
{
    static const bool lazy = emu_env_long("CUDAEMU_LAZY", 0) != 0;

    return lazy;
}

static std::vector<std::shared_ptr<Queue>> all_queues()
{
    std::lock_guard<std::mutex> l(list_lock);

    return queues();
}

bool Token::is_done() const
{
    if (!q)
        return true;
    q->want(seq);
    return q->done >= seq;
}

void Token::wait() const
{
    if (q)
        q->wait(seq);
}

void Queue::push(Op op)
{
    ops.push_back(std::move(op));
    issued++;
    cv.notify_all();
}

void Queue::want(uint64_t seq)
{
    if (!is_lazy())
        return;
    std::lock_guard<std::mutex> l(m);
    if (seq <= wanted)
        return;
    wanted = seq;
    cv.notify_all();
}

static void want_everything()
{
    for (const std::shared_ptr<Queue> &q : all_queues()) {
        uint64_t issued;
        {
            std::lock_guard<std::mutex> l(q->m);
            issued = q->issued;
        }
        q->want(issued);
    }
}

void Queue::wait(uint64_t seq)
{
    want(seq);
    std::unique_lock<std::mutex> l(m);
    while (!cv.wait_for(l, lazy_patience, [&] { return done >= seq; })) {
        if (!is_lazy())
            continue;
        l.unlock();
        want_everything();
        l.lock();
    }
}

void Queue::run()
{
    unsigned seed = static_cast<unsigned>(reinterpret_cast<uintptr_t>(this));
    const long jitter_us = emu_env_long("CUDAEMU_JITTER_US", 0);
    const SignalStack signal_stack;

    current_device = dev;
    for (;;) {
        Op op;
        {
            std::unique_lock<std::mutex> l(m);
            cv.wait(l, [&] { return ops.empty() ? stop : !is_lazy() || taken < wanted; });
            if (ops.empty())
                return;
            op = std::move(ops.front());
            ops.pop_front();
            taken++;
        }
        for (const Token &d : op.deps)
            d.wait();
        if (jitter_us > 0)
            usleep(static_cast<useconds_t>(rand_r(&seed) % jitter_us));
        if (!sticky_error) {
            DeviceAccess open;
            op.run();
        }
        op = Op(); // what it holds goes before anybody hears that it is done
        std::lock_guard<std::mutex> l(m);
        done++;
        cv.notify_all();
    }
}

std::shared_ptr<Queue> queue_start(int dev)
{
    auto q = std::make_shared<Queue>();
    sigset_t mask, old;

    window_init();
    q->dev = dev;
    {
        std::lock_guard<std::mutex> l(list_lock);
        queues().push_back(q);
    }
    sigfillset(&mask); // the program's signals are for its own threads
    for (int sig : { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP })
        sigdelset(&mask, sig);
    pthread_sigmask(SIG_SETMASK, &mask, &old);
    std::thread([q] {
        q->run();
        std::lock_guard<std::mutex> l(list_lock);
        queues().erase(std::find(queues().begin(), queues().end(), q));
    }).detach();
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    return q;
}

std::vector<Token> all_work(int dev)
{
    std::vector<Token> tokens;

    for (const std::shared_ptr<Queue> &q : all_queues()) {
        std::lock_guard<std::mutex> l(q->m);
        if (q->dev == dev)
            tokens.push_back({ q, q->issued });
    }
    return tokens;
}
