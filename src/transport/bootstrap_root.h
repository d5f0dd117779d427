/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to the rendezvous service: its connections (bootstrap_conn.c) and its loop
 * (bootstrap_root.c), which share one thread and one epoll.
 */
#ifndef DSC_BOOTSTRAP_ROOT_H
#define DSC_BOOTSTRAP_ROOT_H

#include <pthread.h>
#include <sys/types.h>

#include "transport/bootstrap_roster.h"
#include "transport/handshake.h"

/* LINGERING: decided, the listener is open for ranks that have not come yet. */
enum dsc_root_phase { DSC_ROOT_OPEN, DSC_ROOT_LINGERING, DSC_ROOT_FINISHING };

struct dsc_root_conn {
    struct dsc_root_conn *next, *prev; /* in order of arrival */
    struct dsc_handshake *hs;          /* until the key is proved */
    int fd;                            /* from then on */
    bool has_record;
    uint32_t rank; /* has_record */
    size_t rx_bytes;
    size_t tx_bytes;
    uint8_t rx[DSC_FRAME_BYTES + DSC_RECORD_MAX];
};

struct dsc_root {
    struct dsc_root *next; /* in `roots` */
    pthread_t thread;
    pid_t pid; /* a child of fork() has the list but not the threads */
    _Atomic int phase;
    int listen_fd; /* -1: closed */
    uint16_t port;
    int epoll_fd;
    int spare_fd; /* given up when descriptors run out */
    bool is_full; /* they have: the listener is not watched but asked now and then */
    uint8_t key[DSC_SECRET_BYTES];
    struct dsc_roster roster;
    struct dsc_root_conn conns; /* head of the ring */
    int n_strangers;
    int n_warnings;
    int n_ranks_open; /* connections with a record */
    uint64_t next_sweep_ns;
    uint64_t end_ns; /* decided: stop then, whatever is left */
    uint64_t linger_ns;
    uint8_t *answer; /* NULL until decided */
    size_t answer_bytes;
    /* Orders of other threads, under the lock of `roots`; wake_fd tells of them. */
    int wake_fd; /* -1: the thread takes no more */
    bool must_close;
    dscomm_status_t order; /* below 0: the roster is to fail so */
    char order_text[DSC_ANSWER_TEXT_MAX];
};

/* conn NULL: the listener. op: EPOLL_CTL_*. */
void dsc_root_watch(struct dsc_root *root, struct dsc_root_conn *conn, int fd, uint32_t events,
                    int op);
void dsc_root_close_listener(struct dsc_root *root);
/* Takes in who waits at the listener. */
void dsc_root_accept(struct dsc_root *root);
/* What an event of this connection asks for; may destroy it, and no other. */
void dsc_root_serve(struct dsc_root *root, struct dsc_root_conn *conn);
/* Drops strangers whose time is up, now and then. */
void dsc_root_sweep(struct dsc_root *root);
/* Closes the listener and whatever has not become a rank. */
void dsc_root_close_for_others(struct dsc_root *root);
void dsc_root_conn_destroy(struct dsc_root *root, struct dsc_root_conn *conn);

#endif
