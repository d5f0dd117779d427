// SPDX-License-Identifier: Apache-2.0
// Runs grids: the threads of a block in turn, in one of three orders, and the blocks one after
// another or, for a kernel that is marked resident, all together. A round in which nothing happens
// is a deadlock; one in which threads only sleep waits for somebody else, up to a deadline.
#include "emu/emu_fiber.h"
#include "emu/emu_report.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <memory>
#include <random>

// CUDAEMU_SCHED=fwd|rev|rand[:SEED]: order in which threads run.
struct Schedule {
    enum { FORWARD, REVERSE, RANDOM } mode = FORWARD;
    unsigned seed = 0;

    Schedule()
    {
        const char *e = getenv("CUDAEMU_SCHED");

        if (!e || !*e || !strcmp(e, "fwd"))
            return;
        if (!strcmp(e, "rev")) {
            mode = REVERSE;
        } else if (!strncmp(e, "rand", 4) && (!e[4] || e[4] == ':')) {
            mode = RANDOM;
            seed = e[4] ? static_cast<unsigned>(strtoul(e + 5, nullptr, 10)) : 0;
        } else {
            emu_die("CUDAEMU_SCHED: expected fwd, rev or rand[:SEED]");
        }
    }
};

static void init_thread(EmuBlock *b, const EmuLaunch *l, uint32_t block_index, uint32_t i)
{
    EmuThread *t = &b->threads[i];

    memset(t, 0, sizeof(*t));
    t->tid[0] = i % l->block[0];
    t->tid[1] = i / l->block[0] % l->block[1];
    t->tid[2] = i / (l->block[0] * l->block[1]);
    t->ctaid[0] = block_index % l->grid[0];
    t->ctaid[1] = block_index / l->grid[0] % l->grid[1];
    t->ctaid[2] = block_index / (l->grid[0] * l->grid[1]);
    memcpy(t->ntid, l->block, sizeof(t->ntid));
    memcpy(t->nctaid, l->grid, sizeof(t->nctaid));
    t->lane = i & 31;
    t->warp = i >> 5;
    t->n_threads = static_cast<uint32_t>(b->threads.size());
    t->params = l->params;
    t->block = b;
    emu_fiber_init(t);
}

void EmuBlock::init(EmuGrid *g, uint32_t block_index)
{
    const EmuLaunch *l = g->launch;
    const uint32_t n = l->block[0] * l->block[1] * l->block[2];

    grid = g;
    threads.resize(n);
    warps.resize((n + 31) / 32);
    live = n;
    g->live += n;
    emu_shared_buffer(this, nullptr, l->dynamic_bytes);
    for (uint32_t i = 0; i < n; i++)
        init_thread(this, l, block_index, i);
}

EmuBlock::~EmuBlock()
{
    for (EmuThread &t : threads)
        emu_fiber_fini(&t);
    for (EmuSharedBuffer &s : shared) {
        emu_asan_unpoison(s.map, s.map_bytes);
        munmap(s.map, s.map_bytes);
    }
}

static void report_stuck(const EmuGrid &g, const std::vector<EmuThread *> &order, const char *why)
{
    uint32_t at[4] = {}, exited = 0;

    for (const EmuThread *t : order) {
        if (t->state == EMU_EXITED)
            exited++;
        else
            at[t->what]++;
    }
    emu_report("DEADLOCK in %s: %s: %u threads at a block barrier, %u at a warp operation, "
               "%u asleep, %u exited%s",
               g.launch->kernel->name, why, at[EMU_AT_BARRIER], at[EMU_AT_WARP_OPERATION],
               at[EMU_AT_SLEEP], exited,
               at[EMU_AT_SLEEP] && !g.launch->kernel->is_resident
                   ? " (blocks that wait for each other need EMU_KERNEL_RESIDENT)"
                   : "");
}

static double now_seconds()
{
    timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// One turn for every thread that can go on.
static void run_round(EmuGrid *g, const std::vector<EmuThread *> &order)
{
    for (EmuThread *t : order) {
        if (t->state == EMU_EXITED || (t->state == EMU_WAITING && *t->wait_word == t->wait_value))
            continue;
        emu_fiber_run(t);
        if (g->error)
            return;
    }
}

static int run_threads(EmuGrid *g, std::vector<EmuThread *> *order, std::mt19937 *rng)
{
    static const double patience =
        static_cast<double>(emu_env_long("CUDAEMU_SPIN_MS", 30000)) * 1e-3;
    double idle_since = 0;

    while (g->live) {
        const uint64_t progress = g->progress, sleeps = g->sleeps;

        if (rng)
            std::shuffle(order->begin(), order->end(), *rng);
        run_round(g, *order);
        if (g->error)
            return g->error;
        if (g->progress != progress) {
            idle_since = 0;
            continue;
        }
        if (g->sleeps == sleeps) {
            report_stuck(*g, *order, "nobody can go on");
            return EMU_LAUNCH_TIMEOUT;
        }
        if (idle_since == 0)
            idle_since = now_seconds();
        if (now_seconds() - idle_since > patience) {
            report_stuck(*g, *order, "CUDAEMU_SPIN_MS passed while threads slept");
            return EMU_LAUNCH_TIMEOUT;
        }
        usleep(20); // another stream or process has to move
    }
    return 0;
}

// The blocks [first, first + n) together.
static int run_blocks(const EmuLaunch *l, uint32_t first, uint32_t n)
{
    static const Schedule schedule;
    EmuGrid g;
    const std::unique_ptr<EmuBlock[]> blocks(new EmuBlock[n]);
    std::vector<EmuThread *> order;

    g.launch = l;
    for (uint32_t i = 0; i < n; i++) {
        blocks[i].init(&g, first + i);
        for (EmuThread &t : blocks[i].threads)
            order.push_back(&t);
    }
    if (schedule.mode == Schedule::REVERSE)
        std::reverse(order.begin(), order.end());
    std::mt19937 rng(schedule.seed + first);
    return run_threads(&g, &order, schedule.mode == Schedule::RANDOM ? &rng : nullptr);
}

extern "C" int emu_run_grid(const EmuLaunch *l)
{
    const uint32_t n = l->grid[0] * l->grid[1] * l->grid[2];

    if (l->kernel->is_resident)
        return run_blocks(l, 0, n);
    for (uint32_t i = 0; i < n; i++) {
        const int error = run_blocks(l, i, 1);
        if (error)
            return error;
    }
    return 0;
}
