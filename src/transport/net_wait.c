/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waiting. An endpoint that gets its data from memory sleeps on its bells' futex words, in slices,
 * so that its control sockets are looked at in between; one that gets data from sockets sleeps in
 * epoll and is woken there by ringers too. Where some connections have neither, those of net
 * plugins, it sleeps for moments.
 */
#include "transport/net_internal.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 10000000u
#define EPOLL_SLICE_MS 250u /* a broken data socket is judged by the clock */
#define SPINS_PER_LOOK 16
/* Sleeps beside connections that cannot end one. */
#define NAP_MIN_NS 20000u
#define NAP_MAX_NS 1000000u

/* ---- bells ---- */

dscomm_status_t dsc_local_bell_create(struct dsc_local_bell **bell_out)
{
    struct dsc_local_bell *const bell = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*bell));

    if (bell == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for a bell");
    bell->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (bell->event_fd < 0) {
        dsc_free(bell);
        return dsc_fail_errno(errno == EMFILE ? DSCOMM_ERR_LIMIT : DSCOMM_ERR_SYSTEM, "eventfd");
    }
    atomic_store(&bell->refs, 1);
    *bell_out = bell;
    return DSCOMM_OK;
}

void dsc_local_bell_acquire(struct dsc_local_bell *bell)
{
    atomic_fetch_add(&bell->refs, 1);
}

void dsc_local_bell_release(struct dsc_local_bell *bell)
{
    if (bell == NULL || atomic_fetch_sub(&bell->refs, 1) > 1)
        return;
    close(bell->event_fd);
    dsc_free(bell);
}

void dsc_local_bell_ring(struct dsc_local_bell *bell)
{
    const uint64_t one = 1;

    if (dsc_bell_ring(&bell->bell))
        (void)!write(bell->event_fd, &one, sizeof(one));
}

void dsc_net_add_bell(struct dsc_net *net, struct dsc_bell *bell)
{
    net->seen[net->n_bells] = dsc_bell_count(bell);
    net->bells[net->n_bells++] = bell;
}

void dsc_net_remove_bell(struct dsc_net *net, const struct dsc_bell *bell)
{
    for (uint32_t i = 0; i < net->n_bells; i++) {
        if (net->bells[i] != bell)
            continue;
        net->n_bells--;
        net->bells[i] = net->bells[net->n_bells];
        net->seen[i] = net->seen[net->n_bells];
        return;
    }
}

void dsc_net_wake(struct dsc_net *net)
{
    dsc_local_bell_ring(net->bell);
}

void dsc_net_abort(struct dsc_net *net)
{
    atomic_store(&net->aborted, 1);
    dsc_net_wake(net);
}

/* ---- waiting ---- */

static bool rang(const struct dsc_net *net)
{
    for (uint32_t i = 0; i < net->n_bells; i++)
        if (dsc_bell_count(net->bells[i]) != net->seen[i])
            return true;
    return false;
}

/* Leaves events for the next progress: the set is level-triggered. */
static bool sockets_ready(const struct dsc_net *net)
{
    struct epoll_event event;

    return epoll_wait(net->epoll_fd, &event, 1, 0) > 0;
}

/* Reads what there is. True: something came. */
static bool read_streams(struct dsc_net *net)
{
    const uint64_t bytes = dsc_net_wire_rx_bytes(net);
    const uint64_t n_completions = net->n_completions;

    for (int i = 0; i < net->n_conns; i++)
        net->conns[i]->ops->progress(net->conns[i]);
    return dsc_net_wire_rx_bytes(net) != bytes || net->n_completions != n_completions ||
           net->error != DSCOMM_OK;
}

static bool streams_ready(struct dsc_net *net, uint64_t now_ns)
{
    if (dsc_net_is_direct(net) && now_ns < net->next_poll_ns)
        return read_streams(net);
    const bool ready = sockets_ready(net);

    net->next_poll_ns = ready ? 0 : now_ns + DSC_NET_POLL_NS;
    return ready;
}

static bool spin(struct dsc_net *net, uint64_t now_ns, uint64_t until_ns)
{
    /* a look at a socket is slow */
    const int n_spins = net->n_streams + net->n_polled > 0 ? 1 : SPINS_PER_LOOK;

    for (; now_ns < until_ns; now_ns = dsc_now_ns()) {
        for (int i = 0; i < n_spins; i++) {
            if (rang(net))
                return true;
            if (n_spins > 1) /* else the look is pause enough, and under QEMU much shorter */
                dsc_cpu_relax();
        }
        if (net->n_streams > 0 && streams_ready(net, now_ns))
            return true;
        if (net->n_polled > 0 && read_streams(net))
            return true;
    }
    return false;
}

/* An eighth of the time in which nothing came, so that no message comes much later by it. */
static uint64_t nap_ns(struct dsc_net *net)
{
    const uint64_t now_ns = dsc_now_ns();

    if (net->idle_completions != net->n_completions)
        net->idle_since_ns = now_ns;
    net->idle_completions = net->n_completions;
    return dsc_min_u64(NAP_MIN_NS + (now_ns - net->idle_since_ns) / 8, NAP_MAX_NS);
}

static void nap(struct dsc_net *net, uint64_t timeout_ns)
{
    struct pollfd set = { .fd = net->epoll_fd, .events = POLLIN };
    const struct timespec length = { .tv_nsec = (long)dsc_min_u64(timeout_ns, nap_ns(net)) };

    (void)ppoll(&set, 1, &length, NULL);
}

static void sleep_in_epoll(struct dsc_net *net, uint64_t timeout_ns)
{
    if (net->n_silent > 0) {
        nap(net, timeout_ns);
        return;
    }
    const uint64_t timeout_ms = dsc_min_u64(dsc_ceil_div(timeout_ns, 1000000u), EPOLL_SLICE_MS);
    struct epoll_event event;

    (void)epoll_wait(net->epoll_fd, &event, 1, (int)timeout_ms);
}

/* As the kernel's struct futex_waitv (Linux 5.16), which older headers lack. */
struct waitv {
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t reserved;
};

#define WAITV_MAX 128
#define WAITV_U32 2u
#define SYS_WAITV 449

/* False: this kernel cannot wait for several words. */
static bool sleep_on_words(struct dsc_net *net, uint64_t timeout_ns)
{
    struct waitv words[WAITV_MAX];
    struct timespec until;

    for (uint32_t i = 0; i < net->n_bells; i++)
        words[i] = (struct waitv){ net->seen[i], (uintptr_t)&net->bells[i]->word, WAITV_U32, 0 };
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t ns = (uint64_t)until.tv_nsec + timeout_ns;

    until.tv_sec += (time_t)(ns / 1000000000u);
    until.tv_nsec = (long)(ns % 1000000000u);
    const long got = syscall(SYS_WAITV, words, net->n_bells, 0, &until, CLOCK_MONOTONIC);

    return got >= 0 || errno == EAGAIN || errno == EINTR || errno == ETIMEDOUT;
}

static bool arm(struct dsc_net *net, enum dsc_bell_state how)
{
    bool quiet = true;

    for (uint32_t i = 0; i < net->n_bells; i++)
        quiet = dsc_bell_arm(net->bells[i], how, net->seen[i]) && quiet;
    for (int i = 0; i < net->n_conns && net->n_polled > 0; i++)
        quiet = net->conns[i]->ops->arm(net->conns[i]) && quiet;
    return quiet && (net->error == DSCOMM_OK || net->error_shown);
}

static bool can_sleep_on_bells(const struct dsc_net *net)
{
    return net->n_streams + net->n_polled == 0 && net->n_bells <= WAITV_MAX && !net->no_waitv;
}

static void sleep_on_bells(struct dsc_net *net, uint64_t timeout_ns)
{
    const uint64_t slice_ns = dsc_min_u64(timeout_ns, SLICE_NS);

    if (net->n_bells == 1)
        dsc_futex_wait(&net->bells[0]->word, net->seen[0], slice_ns);
    else if (!sleep_on_words(net, slice_ns))
        net->no_waitv = true; /* the next sleep is in epoll */
    net->next_poll_ns = 0;
}

uint64_t dsc_net_set_spin(struct dsc_net *net, uint64_t spin_ns)
{
    const uint64_t before = net->params.spin_ns;

    net->params.spin_ns = spin_ns;
    return before;
}

void dsc_net_wait(struct dsc_net *net, uint64_t timeout_ns)
{
    if ((net->error != DSCOMM_OK && !net->error_shown) || rang(net))
        return;

    const uint64_t start_ns = dsc_now_ns();
    const uint64_t spin_ns = dsc_min_u64(timeout_ns, net->params.spin_ns);

    if (spin_ns > 0 && spin(net, start_ns, start_ns + spin_ns))
        return;
    if (timeout_ns <= spin_ns)
        return;

    const bool on_bells = can_sleep_on_bells(net);

    if (arm(net, on_bells ? DSC_BELL_FUTEX : DSC_BELL_EPOLL)) {
        if (on_bells)
            sleep_on_bells(net, timeout_ns - spin_ns);
        else
            sleep_in_epoll(net, timeout_ns - spin_ns);
    }
    for (uint32_t i = 0; i < net->n_bells; i++)
        dsc_bell_disarm(net->bells[i]);
    if (!on_bells)
        net->next_poll_ns = 0;
}

void dsc_net_wait_sockets(struct dsc_net *net, uint64_t timeout_ns)
{
    if (!rang(net) && arm(net, DSC_BELL_EPOLL))
        sleep_in_epoll(net, timeout_ns);
    for (uint32_t i = 0; i < net->n_bells; i++)
        dsc_bell_disarm(net->bells[i]);
}
