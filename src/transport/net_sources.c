/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of endpoints: one level-triggered epoll set tells their sources.
 *
 * After fork() the endpoint is the parent's alone. A child that kept its sockets open would hide
 * the parent's death from the peers, so it closes them inside fork(); it must not use the endpoint,
 * whose descriptors read -1 there so that a destructor that runs in the child reaches nobody.
 */
#include "transport/net_internal.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- descriptors and fork ---- */

static pthread_mutex_t held_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t held_once = PTHREAD_ONCE_INIT;
static struct dsc_held *held_first; /* of all endpoints; under held_lock */

static void before_fork(void)
{
    pthread_mutex_lock(&held_lock);
}

static void after_fork_in_parent(void)
{
    pthread_mutex_unlock(&held_lock);
}

/* Nothing but close(): other threads may have held any other lock. */
static void after_fork_in_child(void)
{
    for (struct dsc_held *held = held_first; held != NULL; held = held->next) {
        close(held->fd);
        *held->owner = -1;
        held->owner = NULL;
    }
    held_first = NULL;
    pthread_mutex_unlock(&held_lock);
}

static void watch_forks(void)
{
    (void)pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

static void unlist(struct dsc_held *held)
{
    if (held->prev != NULL)
        held->prev->next = held->next;
    else
        held_first = held->next;
    if (held->next != NULL)
        held->next->prev = held->prev;
    held->owner = NULL;
}

void dsc_held_add(struct dsc_held *held, int *owner)
{
    (void)pthread_once(&held_once, watch_forks);
    pthread_mutex_lock(&held_lock);
    for (struct dsc_held *other = held_first; other != NULL; other = other->next)
        if (other->fd == *owner) {
            unlist(other);
            break;
        }
    *held = (struct dsc_held){ .next = held_first, .owner = owner, .fd = *owner };
    if (held_first != NULL)
        held_first->prev = held;
    held_first = held;
    pthread_mutex_unlock(&held_lock);
}

void dsc_held_close(struct dsc_held *held)
{
    if (held->owner == NULL)
        return;
    pthread_mutex_lock(&held_lock);
    *held->owner = -1;
    unlist(held);
    close(held->fd); /* inside: the number must not be another's while it is listed */
    pthread_mutex_unlock(&held_lock);
}

void dsc_held_forget(struct dsc_held *held)
{
    if (held->owner == NULL)
        return;
    pthread_mutex_lock(&held_lock);
    unlist(held);
    pthread_mutex_unlock(&held_lock);
}

/* ---- sources ---- */

dscomm_status_t dsc_source_open(struct dsc_net *net, struct dsc_source *source, int fd,
                                uint32_t events)
{
    source->fd = fd;
    source->events = 0;
    dsc_held_add(&source->held, &source->fd);
    net->n_sockets++;
    dsc_source_want(net, source, events);
    return source->events == events ? DSCOMM_OK : net->error; /* an older error is none of it */
}

void dsc_source_want(struct dsc_net *net, struct dsc_source *source, uint32_t events)
{
    struct epoll_event event = { .events = events, .data.ptr = source };
    int op = EPOLL_CTL_MOD;

    if (source->fd < 0 || source->events == events)
        return;
    if (events == 0)
        op = EPOLL_CTL_DEL;
    else if (source->events == 0)
        op = EPOLL_CTL_ADD;
    if (epoll_ctl(net->epoll_fd, op, source->fd, &event) == 0)
        source->events = events;
    else
        dsc_net_set_error(net, DSCOMM_ERR_SYSTEM, net->rank, "epoll_ctl: %s", strerror(errno));
}

static void discard_input(int fd)
{
    char scratch[4096];

    for (int i = 0; i < 4096; i++) {
        const ssize_t n = recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT);

        if (n == 0 || (n < 0 && errno != EINTR))
            return;
    }
}

void dsc_source_close(struct dsc_net *net, struct dsc_source *source)
{
    if (source->fd < 0)
        return;
    discard_input(source->fd);
    /* Closing is not enough to leave the set: a child forked just now may have the socket still. */
    if (source->events != 0)
        (void)epoll_ctl(net->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
    source->events = 0;
    dsc_held_close(&source->held);
    net->n_sockets--;
}

void dsc_net_poll(struct dsc_net *net)
{
    struct epoll_event events[32];
    const int n = epoll_wait(net->epoll_fd, events, DSC_ARRAY_LEN(events), 0);

    /* Handlers free no source; one whose descriptor they closed is passed over. */
    for (int i = 0; i < n; i++) {
        struct dsc_source *const source = events[i].data.ptr;

        if (source->fd >= 0)
            source->on_event(source, events[i].events);
    }
}
