/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous service: one thread that runs until all ranks have the roster's answer, or the
 * deadline. They get it at the same moment, an error included, also those that come after it.
 *
 * The listener is closed before the first answer leaves: a rank that has its answer may join the
 * next communicator at the same port at once, and must not end up here.
 */
#include "transport/bootstrap_root.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <sodium.h>

#define FULL_NS 10000000u      /* how often a full process tries to accept */
#define LINGER_NS 10000000000u /* after an error, for ranks that have not come yet */
#define FLUSH_NS 2000000000u   /* after the last answer, for ranks that read slowly */
#define EVENTS_MAX 64

static pthread_mutex_t roots_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t orders_done = PTHREAD_COND_INITIALIZER;
static struct dsc_root *roots;

static bool is_decided(const struct dsc_root *root)
{
    return dsc_roster_is_decided(&root->roster);
}

/* Nobody is left to come: then neither listener nor strangers are of use. */
static bool is_complete(const struct dsc_root *root)
{
    const struct dsc_roster *const roster = &root->roster;

    return roster->status == DSCOMM_OK ||
           (roster->max_ranks > 0 && roster->n_records >= roster->max_ranks);
}

/* The roster has decided: from now on every rank that is here, or still comes, gets the answer. */
static void begin_answers(struct dsc_root *root)
{
    const uint64_t now = dsc_now_ns();

    root->answer = dsc_roster_answer(&root->roster, &root->answer_bytes);
    root->linger_ns = dsc_min_u64(root->roster.deadline_ns, now + LINGER_NS);
    root->end_ns = (root->linger_ns > now ? root->linger_ns : now) + FLUSH_NS;
    if (root->answer == NULL) {
        dsc_log_warn(BOOT, "rendezvous has no memory for its answer");
        root->end_ns = now; /* the ranks see their connection close */
        return;
    }
    atomic_store(&root->phase, DSC_ROOT_LINGERING);
    if (root->roster.status == DSCOMM_OK)
        dsc_log_info(BOOT, "rendezvous complete, %u ranks in %.3f s", root->roster.n_ranks,
                     (double)(now - root->roster.first_ns) * 1e-9);
    if (is_complete(root)) {
        dsc_root_close_for_others(root);
        atomic_store(&root->phase, DSC_ROOT_FINISHING);
    }
    for (struct dsc_root_conn *conn = root->conns.next; conn != &root->conns; conn = conn->next) {
        if (conn->has_record)
            dsc_root_watch(root, conn, conn->fd, EPOLLOUT, EPOLL_CTL_MOD);
    }
}

/* Whether the thread may end. */
static bool is_over(struct dsc_root *root)
{
    const uint64_t now = dsc_now_ns();

    if (root->answer == NULL && root->end_ns == 0)
        return false;
    if (root->listen_fd >= 0 && (is_complete(root) || now >= root->linger_ns)) {
        dsc_root_close_for_others(root);
        atomic_store(&root->phase, DSC_ROOT_FINISHING);
    }
    return now >= root->end_ns || (root->listen_fd < 0 && root->n_ranks_open == 0);
}

/* Milliseconds until something is due, rounded up so that the loop does not spin before it. */
static int sleep_ms(const struct dsc_root *root)
{
    const uint64_t now = dsc_now_ns();
    uint64_t due = root->roster.deadline_ns;

    if (root->end_ns != 0)
        due = root->listen_fd >= 0 ? root->linger_ns : root->end_ns;
    if (root->is_full)
        due = dsc_min_u64(due, now + FULL_NS);
    if (root->n_strangers > 0)
        due = dsc_min_u64(due, root->next_sweep_ns);
    return due <= now ? 0 : (int)dsc_min_u64((due - now + 999999u) / 1000000u, 60000);
}

static void take_orders(struct dsc_root *root)
{
    uint64_t n;

    pthread_mutex_lock(&roots_lock);
    (void)!read(root->wake_fd, &n, sizeof(n));
    if (root->order < 0)
        dsc_roster_fail(&root->roster, root->order, "%s", root->order_text);
    pthread_mutex_unlock(&roots_lock);
}

/* Who is connected still gets the answer. */
static void give_up_port(struct dsc_root *root)
{
    pthread_mutex_lock(&roots_lock);
    if (root->must_close && root->end_ns != 0) {
        dsc_root_close_listener(root);
        root->end_ns = dsc_min_u64(root->end_ns, dsc_now_ns() + FLUSH_NS);
        atomic_store(&root->phase, DSC_ROOT_FINISHING);
        root->must_close = false;
        pthread_cond_broadcast(&orders_done);
    }
    pthread_mutex_unlock(&roots_lock);
}

static void run_once(struct dsc_root *root)
{
    struct epoll_event events[EVENTS_MAX];
    const int n = epoll_wait(root->epoll_fd, events, EVENTS_MAX, sleep_ms(root));
    const bool was_full = root->is_full;
    bool has_newcomers = was_full;

    /* First: a rank that fails with a reason also closes its connection. */
    take_orders(root);

    /* An event's connection is destroyed by nothing but its own event: newcomers, whose number may
     * push others out, and answers come after. */
    for (int i = 0; i < n; i++) {
        if (events[i].data.ptr == NULL)
            has_newcomers = true;
        else if (events[i].data.ptr != root)
            dsc_root_serve(root, events[i].data.ptr);
    }
    if (has_newcomers)
        dsc_root_accept(root);
    if (root->is_full != was_full && root->listen_fd >= 0)
        dsc_root_watch(root, NULL, root->listen_fd, root->is_full ? 0 : EPOLLIN, EPOLL_CTL_MOD);
    dsc_root_sweep(root);
    if (!is_decided(root) && dsc_now_ns() >= root->roster.deadline_ns) {
        if (root->roster.first_ns == 0)
            dsc_log_warn(BOOT, "rendezvous ends, no rank came before the deadline");
        dsc_roster_expire(&root->roster);
    }
    if (is_decided(root) && root->answer == NULL)
        begin_answers(root);
    give_up_port(root);
}

static void release(struct dsc_root *root)
{
    dsc_root_close_listener(root);
    while (root->conns.next != &root->conns)
        dsc_root_conn_destroy(root, root->conns.next);
    if (root->epoll_fd >= 0)
        close(root->epoll_fd);
    if (root->spare_fd >= 0)
        close(root->spare_fd);
    if (root->wake_fd >= 0)
        close(root->wake_fd);
    dsc_free(root->answer);
    dsc_roster_fini(&root->roster);
    sodium_memzero(root->key, sizeof(root->key));
}

static void *root_main(void *arg)
{
    struct dsc_root *const root = arg;

    while (!is_over(root))
        run_once(root);
    pthread_mutex_lock(&roots_lock);
    dsc_root_close_listener(root);
    close(root->wake_fd);
    root->wake_fd = -1;
    atomic_store(&root->phase, DSC_ROOT_FINISHING);
    pthread_cond_broadcast(&orders_done);
    pthread_mutex_unlock(&roots_lock);
    release(root);
    return NULL;
}

/*
 * Starts the thread and lists it, under one lock so that nobody reaps it half made. The
 * application's signals are none of its business.
 */
static int start_thread(struct dsc_root *root)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_mutex_lock(&roots_lock);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int err = pthread_create(&root->thread, NULL, root_main, root);

    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err == 0) {
        root->next = roots;
        roots = root;
    }
    pthread_mutex_unlock(&roots_lock);
    return err;
}

/* Under the lock. */
static struct dsc_root *find_root(uint16_t port, bool decided)
{
    for (struct dsc_root *root = roots; root != NULL; root = root->next) {
        const int phase = atomic_load(&root->phase);

        if (root->pid == getpid() && root->wake_fd >= 0 && root->port == port &&
            phase != DSC_ROOT_FINISHING &&
            (phase == DSC_ROOT_LINGERING || root->order < 0) == decided)
            return root;
    }
    return NULL;
}

static void wake(const struct dsc_root *root)
{
    const uint64_t one = 1;

    (void)!write(root->wake_fd, &one, sizeof(one));
}

/* A job that failed and is tried again needs the port that its first try still lingers at. */
static void free_port(uint16_t port)
{
    struct dsc_root *root;

    if (port == 0)
        return;
    pthread_mutex_lock(&roots_lock);
    while ((root = find_root(port, true)) != NULL) {
        root->must_close = true;
        wake(root);
        pthread_cond_wait(&orders_done, &roots_lock);
    }
    pthread_mutex_unlock(&roots_lock);
}

static dscomm_status_t open_root(struct dsc_root *root, union dsc_addr *addr)
{
    struct epoll_event event = { .events = EPOLLIN, .data = { .ptr = root } };

    free_port(dsc_addr_port(addr));
    DSC_TRY(dsc_netif_listen(addr, &root->listen_fd));
    root->port = dsc_addr_port(addr);
    root->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    root->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (root->epoll_fd >= 0)
        root->spare_fd = fcntl(root->epoll_fd, F_DUPFD_CLOEXEC, 0);
    if (root->spare_fd < 0 || root->wake_fd < 0 ||
        epoll_ctl(root->epoll_fd, EPOLL_CTL_ADD, root->wake_fd, &event) != 0)
        return dsc_fail_open("cannot open a rendezvous");
    dsc_root_watch(root, NULL, root->listen_fd, EPOLLIN, EPOLL_CTL_ADD);
    return DSCOMM_OK;
}

dscomm_status_t dsc_root_start(union dsc_addr *addr, const uint8_t key[DSC_SECRET_BYTES],
                               int timeout_ms)
{
    dscomm_status_t st;

    dsc_root_reap();
    struct dsc_root *const root = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*root));

    if (root == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for a rendezvous");
    root->listen_fd = root->epoll_fd = root->spare_fd = root->wake_fd = -1;
    root->pid = getpid();
    root->conns.next = root->conns.prev = &root->conns;
    memcpy(root->key, key, sizeof(root->key));
    dsc_roster_init(&root->roster, dsc_deadline_ns(timeout_ms));
    DSC_TRY_GOTO(err, open_root(root, addr));
    errno = start_thread(root);
    if (errno == 0)
        return DSCOMM_OK;
    st = dsc_fail_errno(DSCOMM_ERR_SYSTEM, "cannot start the rendezvous thread");

err:
    release(root);
    dsc_free(root);
    return st;
}

void dsc_root_fail(uint16_t port, const uint8_t key[DSC_SECRET_BYTES], dscomm_status_t status,
                   const char *text)
{
    pthread_mutex_lock(&roots_lock);
    struct dsc_root *const root = find_root(port, false);

    if (root != NULL && memcmp(root->key, key, DSC_SECRET_BYTES) == 0) {
        root->order = status;
        snprintf(root->order_text, sizeof(root->order_text), "%s", text);
        wake(root);
    }
    pthread_mutex_unlock(&roots_lock);
}

void dsc_root_reap(void)
{
    struct dsc_root *finished = NULL;

    pthread_mutex_lock(&roots_lock);
    for (struct dsc_root **link = &roots; *link != NULL;) {
        struct dsc_root *const root = *link;

        if (root->pid == getpid() && atomic_load(&root->phase) != DSC_ROOT_FINISHING) {
            link = &root->next;
            continue;
        }
        *link = root->next;
        root->next = finished;
        finished = root;
    }
    pthread_mutex_unlock(&roots_lock);
    while (finished != NULL) {
        struct dsc_root *const root = finished;

        finished = root->next;
        if (root->pid == getpid())
            pthread_join(root->thread, NULL);
        dsc_free(root);
    }
}
