/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport: the inside of an endpoint.
 *   net.c          life cycle, progress     net_connect.c  what dsc_net_connect() waits for
 *   net_wait.c     spinning, sleeping       net_setup.c    from proved sockets to a connection
 *   net_error.c    errors, telling peers    net_links.c    sockets until they are proved
 *   control.c      a pair's control link    net_watch.c    ranks that end early
 *   net_means.c    what both sides prepare  net_sources.c  descriptors, epoll, fork
 *
 * Every pair that does not meet inside one process has a control link: a TCP socket that carries
 * errors, goodbyes and wake-up bytes, and whose end is the death of the peer. It is always read, so
 * no window or unread data can hide an error. Data goes over its own sockets (tcp) or memory (shm).
 */
#ifndef DSC_NET_INTERNAL_H
#define DSC_NET_INTERNAL_H

#include "transport/handshake.h"
#include "transport/ring.h"
#include "transport/transport.h"

#define DSC_NET_SOCKS_MAX 16
/* Up to so many data sockets are read without asking epoll first whether they have something. */
#define DSC_NET_DIRECT_MAX 4
/* How often epoll is asked all the same: the rest of the set has only errors, ends and wake-ups. */
#define DSC_NET_POLL_NS 5000000u

/* ---- descriptors that a forked child gives up (net_sources.c) ---- */

/* Zeroed: holds none. A descriptor belongs to the entry that held it last. */
struct dsc_held {
    struct dsc_held *next, *prev;
    int *owner; /* where the descriptor is kept; -1 once it is closed; NULL: not listed */
    int fd;
};

/* For set-up and tear-down: they take a lock, which fork() takes too. */
void dsc_held_add(struct dsc_held *held, int *owner);
/* Closes, unless another entry holds the descriptor by now. */
void dsc_held_close(struct dsc_held *held);
/* Takes the entry off the list: somebody else closes the descriptor. */
void dsc_held_forget(struct dsc_held *held);

/* ---- something with a descriptor in the endpoint's epoll set; `events` as epoll's ---- */

struct dsc_source {
    void (*on_event)(struct dsc_source *source, uint32_t events);
    uint32_t events; /* what epoll was told; 0: not in the set */
    int fd;          /* owned; -1: none */
    struct dsc_held held;
};

/* fd is the source's from here on, also on error. */
dscomm_status_t dsc_source_open(struct dsc_net *net, struct dsc_source *source, int fd,
                                uint32_t events);
/*
 * Changes what is waited for; no system call when nothing changes. 0 takes it out of the set, in
 * which it would still report its end, again and again.
 */
void dsc_source_want(struct dsc_net *net, struct dsc_source *source, uint32_t events);
/* Closes. What arrived and was not read is discarded first: it would turn the close into a reset.
 */
void dsc_source_close(struct dsc_net *net, struct dsc_source *source);
/* Waits until a descriptor or a bell has something, whatever carries the data. */
void dsc_net_wait_sockets(struct dsc_net *net, uint64_t timeout_ns);
/* Dispatches pending events without blocking. */
void dsc_net_poll(struct dsc_net *net);

/* ---- own bell, in process memory; loopback peers hold it too ---- */

struct dsc_local_bell {
    struct dsc_bell bell;
    _Atomic uint32_t refs;
    int event_fd; /* wakes an epoll sleeper */
};

dscomm_status_t dsc_local_bell_create(struct dsc_local_bell **bell_out);
void dsc_local_bell_acquire(struct dsc_local_bell *bell);
void dsc_local_bell_release(struct dsc_local_bell *bell); /* NULL allowed */
void dsc_local_bell_ring(struct dsc_local_bell *bell);

/* ---- control link ---- */

/* One control message: an error message of the wire format, status 0 meaning goodbye. */
#define DSC_CONTROL_BYTES (DSC_HEADER_BYTES + DSC_ERROR_TEXT_MAX)

struct dsc_control {
    struct dsc_source source;
    struct dsc_conn *conn; /* the connection it belongs to */
    size_t n_got;
    bool shut;
    uint8_t got[DSC_CONTROL_BYTES];
};

dscomm_status_t dsc_control_open(struct dsc_control *control, struct dsc_conn *conn, int fd);
void dsc_control_notify(struct dsc_control *control, dscomm_status_t status, int rank,
                        const char *text);
void dsc_control_wake(struct dsc_control *control); /* a wake-up byte for an epoll sleeper */
void dsc_control_shut(struct dsc_control *control);
void dsc_control_close(struct dsc_control *control);

/* ---- a socket that is not proved yet ---- */

/* Index of a link that is never answered, unless with an error: it only shows that the peer lives.
 */
#define DSC_LINK_WATCH 0xffffu
/* In place of the transport in the answer of a rank that has failed; the detail is an error text.
 */
#define DSC_HELLO_ERROR "error"

struct dsc_link {
    struct dsc_source source; /* the handshake uses the same fd, but it is closed here */
    struct dsc_net *net;
    struct dsc_link *next;
    struct dsc_handshake *hs;
    uint64_t drop_ns; /* a stranger must have proved itself by then */
    int peer;         /* -1: a stranger still */
    uint32_t index;   /* 0 control, then data sockets, or DSC_LINK_WATCH */
    bool acceptor;
    bool told;    /* its answer is an error */
    bool is_dead; /* to be freed by dsc_net_reap_links() */
};

/* ---- a connection that is being made ---- */

enum dsc_setup_state {
    DSC_SETUP_NONE,
    DSC_SETUP_MEET,    /* loopback: waits for the other side */
    DSC_SETUP_CONTROL, /* waits for the control link's handshake */
    DSC_SETUP_DATA,    /* waits for the data sockets */
    DSC_SETUP_READY,   /* has all it needs to be a connection */
    DSC_SETUP_JOIN,    /* is a connection, which has work to do yet */
    DSC_SETUP_REFUSED, /* will never have it: the sides cannot agree */
};

#define DSC_SEGMENT_TEXT_BYTES 256

struct dsc_segment {
    uint8_t *memory; /* NULL: not mapped */
    size_t bytes;
    int fd;        /* -1: none */
    char name[96]; /* for the other side to find it */
};

struct dsc_loop_pair;
struct dsc_nccl_plugin;
struct dsc_verbs_device;
struct nccl_conn;
struct verbs_conn;

struct dsc_setup {
    enum dsc_setup_state state;
    const struct dsc_transport_ops *ops;
    uint64_t deadline_ns;
    bool answered; /* the control link's hello */
    bool watched;  /* a watch link was opened */
    uint64_t begin_ns;
    int control_fd;
    int data_fds[DSC_NET_SOCKS_MAX];
    struct dsc_held control_held;
    struct dsc_held data_held[DSC_NET_SOCKS_MAX];
    uint32_t has_data; /* bit per data socket */
    struct dsc_segment segment;
    struct dsc_loop_pair *pair;
    struct verbs_conn *verbs; /* prepared */
    struct nccl_conn *nccl;   /* prepared */
};

struct dsc_peer {
    struct dsc_conn *conn;
    struct dsc_setup setup;
};

struct dsc_net {
    int n_ranks, rank;
    struct dsc_net_params params;
    char transport[16];
    uint8_t key[32];
    uint64_t job;
    struct dsc_peer_info *infos; /* [n_ranks] */
    struct dsc_peer *peers;      /* [n_ranks] */
    struct dsc_conn **conns;     /* [n_conns] those that exist, for walking */
    int n_conns;
    int epoll_fd;
    struct dsc_held epoll_held;
    struct dsc_source listener;
    struct dsc_source waker; /* the bell's descriptor, borrowed */
    struct dsc_link *links;
    int n_setups;       /* connections being made; after an error they still are */
    uint32_t n_sockets; /* sources other than listener and waker */
    uint32_t n_streams; /* sockets that carry data */
    uint32_t n_polled;  /* connections that a spinning waiter polls, and that a sleeper must arm */
    uint32_t n_silent;  /* of these, those that nothing can wake a sleeper for */
    uint64_t n_completions;             /* times that polling them found something */
    uint64_t idle_completions;          /* as many when the endpoint slept last, */
    uint64_t idle_since_ns;             /* and since when */
    struct dsc_verbs_device *verbs;     /* NULL until a connection needs it */
    const struct dsc_nccl_plugin *nccl; /* NULL: of no use to this endpoint */
    uint32_t n_blocked;                 /* of these, those that wait for room to send */
    uint64_t next_poll_ns;
    uint64_t notify_until_ns; /* control messages are given up then */
    struct dsc_local_bell *bell;
    struct dsc_bell **bells; /* [n_bells] that others ring for this endpoint; 0 is its own */
    uint32_t *seen;          /* [n_bells] counts at the last progress */
    uint32_t n_bells;
    uint32_t n_entered;     /* calls, the one that this rank is in included */
    uint32_t sequence;      /* of it */
    uint64_t hash;          /* of its descriptor */
    const char *descriptor; /* NULL: in none */
    _Atomic uint32_t aborted;
    bool no_waitv; /* the kernel cannot wait for several words */
    bool warned_stranger;
    bool warned_fallback;
    struct dsc_report reports[DSC_MAX_REPORTS];
    size_t n_reports;
    int own_report; /* what this rank told itself; -1: nothing yet */
    dscomm_status_t error;
    bool error_shown; /* progress has returned it */
    int error_rank;
    char error_text[DSC_ERROR_TEXT_MAX + 64];
    _Atomic uint64_t wire_tx_bytes;
    _Atomic uint64_t wire_rx_bytes;
};

/* Does progress of the connections read data by itself, and nothing else is urgent? */
static inline bool dsc_net_is_direct(const struct dsc_net *net)
{
    return net->n_streams <= DSC_NET_DIRECT_MAX && net->n_blocked == 0;
}

/* ---- error: the first one stays ---- */

void dsc_net_set_error(struct dsc_net *net, dscomm_status_t status, int rank, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* An error that another rank found: takes it over and passes it on to all but `from` (or NULL). */
void dsc_net_heard(struct dsc_net *net, const struct dsc_conn *from, dscomm_status_t status,
                   int rank, const char *text);
/* A peer said so: an error is heard, DSCOMM_OK is its goodbye, DSCOMM_IN_PROGRESS its call. */
void dsc_net_told(struct dsc_conn *conn, dscomm_status_t status, int rank, const char *text);
void dsc_net_lost(struct dsc_conn *conn, const char *why);
/* Tells all peers what call this rank is in. */
void dsc_net_tell_call(struct dsc_net *net);
/* Text of an error message: "STATUS RANK text". */
void dsc_error_put(char *buf, size_t buf_bytes, dscomm_status_t status, int rank, const char *text);
/* What follows the numbers, or NULL if it cannot be read. */
const char *dsc_error_get(const char *buf, int n_ranks, dscomm_status_t *status_out, int *rank_out);
/* The peer left but something is still wanted from it. */
void dsc_net_left(struct dsc_conn *conn);
/* "rank 3 (tcp 10.0.0.1:500)" */
#define DSC_PEER_TEXT_BYTES 160
const char *dsc_net_peer_text(const struct dsc_net *net, int peer, const char *transport,
                              char buf[DSC_PEER_TEXT_BYTES]);

/* ---- bells of connections ---- */

void dsc_net_add_bell(struct dsc_net *net, struct dsc_bell *bell);
void dsc_net_remove_bell(struct dsc_net *net, const struct dsc_bell *bell);

/* ---- links (net_links.c) ---- */

/* source: the endpoint's listener. */
void dsc_net_on_listener(struct dsc_source *source, uint32_t events);
/* Starts to connect. Errors are the endpoint's. */
dscomm_status_t dsc_net_open_link(struct dsc_net *net, int peer, uint32_t index,
                                  const struct dsc_hello *hello, uint64_t deadline_ns);
/* Into the epoll set at the beginning of dsc_net_connect(), out of it when all setups are done. */
void dsc_net_watch_links(struct dsc_net *net, bool watch);
/* Ends those that took too long, frees the dead. */
void dsc_net_reap_links(struct dsc_net *net);
void dsc_net_drop_links(struct dsc_net *net);
/* Answers a proved link. */
void dsc_link_reply(struct dsc_link *link, const struct dsc_hello *mine);
void dsc_link_end(struct dsc_link *link);

/* ---- setups (net_setup.c) ---- */

/* One round over the setups: answers, connections, looks (net_connect.c). Part of progress. */
void dsc_net_advance(struct dsc_net *net);

dscomm_status_t dsc_setup_begin(struct dsc_net *net, int peer, uint64_t deadline_ns);
/* The acceptor's half: its peer has proved itself and an answer is due. */
void dsc_setup_answer(struct dsc_link *link);
/* A link finished; its socket is the setup's. */
void dsc_setup_link_done(struct dsc_link *link);
/* Checks a hello that is proved but need not be right. NULL, or why it is refused. */
const char *dsc_setup_check_hello(const struct dsc_net *net, const struct dsc_hello *hello);
/* False: the peer's slots have another size than this rank's, now the endpoint's error. */
bool dsc_setup_check_slots(struct dsc_net *net, int peer, uint64_t slot_bytes);
/* Frees what the setup still owns. */
void dsc_setup_fini(struct dsc_setup *setup);
void dsc_hello_init(const struct dsc_net *net, struct dsc_hello *hello_out);

/* ---- ranks that end before a connection stands (net_watch.c) ---- */

/* One look at a setup that is not ready. Errors are the endpoint's. */
void dsc_setup_look(struct dsc_net *net, int peer);
/* Tells those whose links or setups wait for this rank. */
void dsc_setup_tell_all(struct dsc_net *net, dscomm_status_t status, int rank, const char *text);
/* Lets in those who wait at the door, a moment at most, to give them this endpoint's first report.
 */
void dsc_setup_tell_waiting(struct dsc_net *net);
void dsc_link_reply_error(struct dsc_link *link);
/* True: the answer was an error, now the endpoint's. */
bool dsc_setup_take_error(struct dsc_net *net, int peer, const struct dsc_hello *answer);
void dsc_setup_drop_watches(struct dsc_net *net, int peer);

/* ---- backends: from a finished setup to a connection; take what the setup owns ---- */

dscomm_status_t dsc_tcp_open(struct dsc_net *net, int peer, struct dsc_conn **conn_out);
dscomm_status_t dsc_shm_open(struct dsc_net *net, int peer, struct dsc_conn **conn_out);
dscomm_status_t dsc_verbs_open(struct dsc_net *net, int peer, struct dsc_conn **conn_out);
dscomm_status_t dsc_nccl_net_open(struct dsc_net *net, int peer, struct dsc_conn **conn_out);
dscomm_status_t dsc_loopback_open(struct dsc_net *net, int peer, struct dsc_conn **conn_out);

/* Announces this side. Threads of other ranks meet it from now on. */
dscomm_status_t dsc_loopback_offer(struct dsc_net *net, int peer);
bool dsc_loopback_met(const struct dsc_net *net, int peer);
void dsc_loopback_withdraw(struct dsc_setup *setup);
/* For those who wait for this rank, and those for whom it waits, should they come. */
void dsc_loopback_tell(struct dsc_net *net, dscomm_status_t status, int rank, const char *text);
/* Has the rank that this setup waits for failed? */
void dsc_loopback_look(struct dsc_net *net, int peer);

/*
 * Shared memory of a pair. The connector creates it, the acceptor maps and formats it, then the
 * connector maps it. Each returns NULL, or why it cannot; the caller judges: auto falls back to
 * tcp.
 *
 *   | bell of side 0 | bell of side 1 | ring 0 to 1 | ring 1 to 0 |        side 0: the lower rank
 */
const char *dsc_segment_create(struct dsc_segment *segment, size_t bytes,
                               char text[DSC_SEGMENT_TEXT_BYTES]);
const char *dsc_segment_attach(struct dsc_segment *segment, const char *name, size_t bytes,
                               char text[DSC_SEGMENT_TEXT_BYTES]);
const char *dsc_segment_map(struct dsc_segment *segment, size_t bytes,
                            char text[DSC_SEGMENT_TEXT_BYTES]);
void dsc_segment_fini(struct dsc_segment *segment);
/* Size of a pair's memory, and its initial contents. */
size_t dsc_shm_bytes(uint32_t n_slots, size_t slot_bytes);
void dsc_shm_format(uint8_t *memory, uint32_t n_slots, size_t slot_bytes);

/* ---- counters: one writer, readers anywhere ---- */

static inline void dsc_net_count(_Atomic uint64_t *counter, uint64_t n)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
                          memory_order_relaxed);
}

#endif
