/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LL and LL128: a thread polls the flags in the receive buffer, as a GPU would, while messages
 * arrive. Beside a flag of the right step it must never see data of another one.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "net_case.h"

#define LL128_LINES 1024 /* of a message: 128 KiB */
#define LL_LINES 4096
#define N_SLOTS 8 /* NCCL's steps: a slot is reused when it has been read */

static uint64_t word_of(uint64_t step, uint64_t i)
{
    return (step * 0x9e3779b97f4a7c15u) ^ (i * 0xff51afd7ed558ccdu);
}

/* ---- LL128: 15 words of data and the flag ---- */

static void make_ll128(uint64_t *line, uint64_t step, uint64_t index)
{
    for (uint64_t k = 0; k < 15; k++)
        line[k] = word_of(step, index * 15 + k);
    line[15] = step;
}

static bool check_ll128(const volatile uint64_t *line, uint64_t step, uint64_t index)
{
    for (uint64_t k = 0; k < 15; k++)
        if (line[k] != word_of(step, index * 15 + k))
            return false;
    return true;
}

/* ---- LL: data32 flag32 data32 flag32, each pair read at once ---- */

static void make_ll(uint64_t *line, uint64_t step, uint64_t index)
{
    for (uint64_t k = 0; k < 2; k++)
        line[k] = (step & 0xffffffffu) << 32 | (word_of(step, index * 2 + k) & 0xffffffffu);
}

static bool check_ll(uint64_t pair, uint64_t step, uint64_t i)
{
    return (pair & 0xffffffffu) == (word_of(step, i) & 0xffffffffu);
}

static bool is_ll128;

static size_t slot_bytes(void)
{
    return is_ll128 ? LL128_LINES * 128 : LL_LINES * 16;
}

static uint64_t n_steps(void)
{
    return (uint64_t)options.lines / (is_ll128 ? LL128_LINES : LL_LINES) + N_SLOTS;
}

static void send_lines(struct side *side)
{
    uint64_t *const data = aligned_alloc(128, N_SLOTS * slot_bytes());
    void *const mr = reg(side->comm, data, N_SLOTS * slot_bytes());
    void *requests[N_SLOTS] = { 0 };

    for (uint64_t step = 1; step <= n_steps(); step++) {
        uint64_t *const slot = data + step % N_SLOTS * slot_bytes() / 8;

        if (requests[step % N_SLOTS] != NULL)
            wait_done(requests[step % N_SLOTS]);
        for (uint64_t i = 0; i < (is_ll128 ? LL128_LINES : LL_LINES); i++)
            is_ll128 ? make_ll128(slot + i * 16, step, i) : make_ll(slot + i * 2, step, i);
        requests[step % N_SLOTS] = send_now(side->comm, slot, slot_bytes(), mr);
    }
    for (uint64_t i = 0; i < N_SLOTS; i++)
        wait_done(requests[(n_steps() + 1 + i) % N_SLOTS]);
    dereg(side->comm, mr);
    free(data);
}

struct poller {
    const volatile uint64_t *data;
    _Atomic uint64_t read; /* steps that have been read */
};

/* Walks the lines from both ends by turns, so that it waits where the next one appears. */
static void poll_slot(const volatile uint64_t *slot, uint64_t step)
{
    const double end = now_s() + CASE_WAIT_S;
    const uint64_t n = is_ll128 ? LL128_LINES : LL_LINES * 2;
    const uint64_t stride = is_ll128 ? 16 : 1, flag_at = is_ll128 ? 15 : 0;

    for (uint64_t at = 0; at < n; at++) {
        const uint64_t i = step % 2 == 0 ? at : n - 1 - at;
        const volatile uint64_t *const line = slot + i * stride;
        uint64_t seen;
        long spins = 0;

        for (;;) {
            seen = __atomic_load_n(&line[flag_at], __ATOMIC_ACQUIRE);
            if (is_ll128 ? seen == step : seen >> 32 == step)
                break;
            if (++spins % 100000 == 0)
                CHECK(now_s() < end, "line %lu of step %lu never comes", (unsigned long)i,
                      (unsigned long)step);
        }
        CHECK(is_ll128 ? check_ll128(line, step, i) : check_ll(seen, step, i),
              "step %lu, line %lu: the flag is right, the data is not", (unsigned long)step,
              (unsigned long)i);
    }
}

static void *poll_lines(void *arg)
{
    struct poller *const poller = arg;

    for (uint64_t step = 1; step <= n_steps(); step++) {
        poll_slot(poller->data + step % N_SLOTS * slot_bytes() / 8, step);
        atomic_store(&poller->read, step);
    }
    return NULL;
}

static void receive_lines(struct side *side)
{
    uint64_t *const data = aligned_alloc(128, N_SLOTS * slot_bytes());
    void *const mr = reg(side->comm, data, N_SLOTS * slot_bytes());
    void *requests[N_SLOTS] = { 0 };
    struct poller poller = { .data = data };
    const double end = now_s() + 100 * slowness;
    uint64_t posted = 0, done = 0;
    pthread_t thread;

    memset(data, 0, N_SLOTS * slot_bytes());
    CHECK(pthread_create(&thread, NULL, poll_lines, &poller) == 0, "thread");
    while (done < n_steps()) {
        int bytes;

        if (posted < n_steps() && posted < done + N_SLOTS &&
            posted < atomic_load(&poller.read) + N_SLOTS) {
            uint64_t *const slot = data + (posted + 1) % N_SLOTS * slot_bytes() / 8;

            requests[posted % N_SLOTS] =
                try_recv(side->comm, slot, slot_bytes(), mr,
                         posted % 3 != 0 ? NCCL_OPTIONAL_COMPLETION : NULL);
            posted += requests[posted % N_SLOTS] != NULL;
        }
        if (done < posted && try_test(requests[done % N_SLOTS], &bytes)) {
            CHECK((size_t)bytes == slot_bytes(), "%d bytes", bytes);
            done++;
        }
        CHECK(now_s() < end, "step %lu", (unsigned long)done);
    }
    pthread_join(thread, NULL);
    dereg(side->comm, mr);
    free(data);
}

static void case_ll128_poller(void)
{
    is_ll128 = true;
    load_plugin();
    run_sides(send_lines, receive_lines);
}

static void case_ll_poller(void)
{
    is_ll128 = false;
    load_plugin();
    run_sides(send_lines, receive_lines);
}

const struct net_test lines_cases[] = {
    { "ll128_poller", case_ll128_poller },
    { "ll_poller", case_ll_poller },
    { 0 },
};
