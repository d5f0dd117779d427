/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moving fixed-size messages between ranks. Layers in this folder:
 *   netif*.c     which address to use            handshake.c  peers prove the key to each other
 *   bootstrap*.c unique id, rendezvous, table    net_*.c      a rank's endpoint
 *   ring.c       slots and doorbells in memory   control.c    errors and ends of a pair
 *   {loopback,shm,tcp,verbs,nccl_net}.c   the ops tables
 *   verbs_*.c    RDMA devices and queue pairs      nccl_*.c     net plugins of NCCL's
 *
 * A connection carries messages in one order per direction, numbered from 0 for its whole life.
 * Each side has a ring of n_slots slots per direction. The sender takes the slot of message i as
 * soon as the receiver has released message i - n_slots, fills the payload in place and posts it;
 * the receiver reads message i in place and releases it. Slots may be posted and released out of
 * order within the window. Only the thread that runs a call touches an endpoint; payload memory may
 * be filled or read by others.
 */
#ifndef DSC_TRANSPORT_H
#define DSC_TRANSPORT_H

#include "core/core.h"

/* ---- wire header: 32 bytes, little endian, in front of every payload ---- */

#define DSC_HEADER_BYTES 32
#define DSC_HEADER_MAGIC 0xD5C0u
#define DSC_HEADER_VERSION 1
#define DSC_ERROR_TEXT_MAX 1024 /* payload of an error message, without NUL */

enum dsc_msg_kind { DSC_MSG_DATA = 1, DSC_MSG_ERROR = 2 };

struct dsc_header {
    uint16_t magic;
    uint8_t version;
    uint8_t kind;        /* enum dsc_msg_kind */
    uint32_t sequence;   /* call number on the communicator */
    uint64_t descriptor; /* hash of the call's descriptor text */
    uint16_t chunk;
    uint16_t stage;
    uint32_t payload_bytes;
    uint32_t note; /* about the sender's previous call; merged by field-wise maximum */
    uint32_t crc;  /* CRC32C of the header with this field 0, then the payload; 0: off */
};
_Static_assert(sizeof(struct dsc_header) == DSC_HEADER_BYTES, "wire header has 32 bytes");

/* ---- identity of a rank, exchanged at rendezvous ---- */

#define DSC_HOST_ID_BYTES 64
#define DSC_ADDR_BYTES 32
#define DSC_CPU_SET_BYTES 64

struct dsc_peer_info {
    char host_id[DSC_HOST_ID_BYTES]; /* equal text: same host, shared memory may be tried */
    uint8_t addr[DSC_ADDR_BYTES];    /* sockaddr_in or sockaddr_in6 of the rank's listener */
    uint64_t process_id;             /* random per process: equal means same process */
    uint32_t pid;
    uint64_t rdma_key; /* equal: their RDMA ports may be tried; 0: it has none */
    uint32_t n_cpus;   /* CPUs its process may use, */
    /* a bit for each of them, by number modulo the bits there are; all: not known */
    uint8_t cpu_set[DSC_CPU_SET_BYTES];
};

/* This process's, without an address. */
DSC_SHARED dscomm_status_t dsc_peer_info_self(const struct dsc_env *env,
                                              struct dsc_peer_info *info_out);

/* ---- rendezvous ---- */

/* Does a rank look for an RDMA port of its own? MUST: having none is an error. */
enum dsc_rdma_wish { DSC_RDMA_NO, DSC_RDMA_MAY, DSC_RDMA_MUST };

struct dsc_bootstrap_params {
    int n_ranks, rank;
    int timeout_ms;
    const char *settings; /* "key=value key=value": must be equal on all ranks */
    enum dsc_rdma_wish rdma;
};

struct dsc_bootstrap {
    int n_ranks, rank;
    int listen_fd;               /* bound and listening, address in peers[rank].addr */
    uint8_t key[32];             /* proves membership: HMAC key of this communicator */
    uint64_t job;                /* random, equal on all ranks, new for every communicator */
    struct dsc_peer_info *peers; /* [n_ranks] */
};

/* What of the two is not allowed, as an error. */
dscomm_status_t dsc_rank_check(int n_ranks, int rank);
/*
 * Meets the other ranks at the id's address. Mismatched version, world size, rank used twice or
 * settings: DSCOMM_ERR_MISMATCH on all ranks, naming field, ranks and both values. Missing ranks at
 * the deadline: DSCOMM_ERR_TIMEOUT on all that came, naming them. An id of dsc_bootstrap_env() is
 * abandoned on error.
 */
dscomm_status_t dsc_bootstrap_join(const dscomm_unique_id_t *id,
                                   const struct dsc_bootstrap_params *params,
                                   struct dsc_bootstrap *boot_out);
/* Frees what join made; listen_fd is closed unless it was set to -1 (transferred). */
void dsc_bootstrap_fini(struct dsc_bootstrap *boot);

/*
 * After an error of this rank, whose text is dscomm_last_error(). Of rank 0 with an id of
 * dsc_bootstrap_env() it fails the service, so that the other ranks are told and the port serves
 * the next try; of others, or after the service's own error, nothing.
 */
void dsc_bootstrap_abandon(const dscomm_unique_id_t *id, int rank, dscomm_status_t status);

/*
 * Rank, world size and rendezvous from a launcher's variables. On rank 0 also starts the rendezvous
 * service at the address, which dsc_bootstrap_join() or _abandon() must follow; the id made is the
 * same on all ranks.
 */
dscomm_status_t dsc_bootstrap_env(int timeout_ms, int *n_ranks_out, int *rank_out,
                                  dscomm_unique_id_t *id_out);

/* ---- endpoint ---- */

struct dsc_net;
struct dsc_conn;
struct dsc_transport_ops;

struct dsc_net_params {
    const char *transport; /* "auto", "loopback", "shm", "verbs", "tcp", "nccl_net" */
    size_t slot_bytes;     /* payload of the largest message; equal on all ranks */
    uint32_t n_slots;      /* window: messages in flight per peer and direction */
    uint32_t n_socks;      /* TCP sockets per peer */
    bool crc;              /* checksum messages where the transport asks for it */
    int timeout_ms;
    uint64_t spin_ns; /* 0: never spin; the caller has compared ranks with CPUs */
};

/* Takes boot->listen_fd, unless it fails: then that is the caller's still. boot is borrowed. */
dscomm_status_t dsc_net_create(const struct dsc_bootstrap *boot,
                               const struct dsc_net_params *params, struct dsc_net **net_out);
/* Flushes what is posted (bounded by the deadline) unless failed, closes, frees. NULL allowed. */
void dsc_net_destroy(struct dsc_net *net);

/*
 * Makes sure that there is a connection to each listed peer. A connection is made once and stays
 * until the endpoint goes. All ranks that list each other must call. Serves strangers and
 * connections of other ranks meanwhile. Errors: timeout (names the ranks), a peer's error, abort.
 */
dscomm_status_t dsc_net_connect(struct dsc_net *net, const int *peers, int n_peers);
/* After an error: are some still being made, by progress, to tell their peers of it and to hear? */
bool dsc_net_is_connecting(const struct dsc_net *net);

/*
 * From enter to leave this rank prepares or runs a call. Ranks whose calls differ may list
 * different peers and wait for each other for ever; so a rank that waits long in dsc_net_connect()
 * tells its peers "call=SEQUENCE DESCRIPTOR". For a peer that is in as many-th a call but in
 * another one, this is a report of DSCOMM_ERR_MISMATCH. All ranks enter in the same order; entering
 * again with the same sequence and hash, the descriptor's, goes on with the same call. descriptor:
 * until leave.
 */
void dsc_net_enter(struct dsc_net *net, uint32_t sequence, uint64_t hash, const char *descriptor);
void dsc_net_leave(struct dsc_net *net);

/* NULL when there is none (yet). Borrowed, as long as the endpoint. */
struct dsc_conn *dsc_net_conn(struct dsc_net *net, int peer);

/*
 * Moves bytes without blocking: sends, receives, accepts, notices lost peers and their errors.
 * Returns DSCOMM_OK, or the endpoint's first error (text in dsc_net_error_text()).
 */
dscomm_status_t dsc_net_progress(struct dsc_net *net);

/*
 * Waits until progress may do something: a message arrived, a slot came free, an error, or
 * timeout_ns passed. Spins first (spin_ns), then sleeps in the kernel.
 */
void dsc_net_wait(struct dsc_net *net, uint64_t timeout_ns);

/* From now on waits spin so long first; returns how long they did. */
uint64_t dsc_net_set_spin(struct dsc_net *net, uint64_t spin_ns);

/*
 * Tells every connected peer, once, that this rank fails: an error message with text (status and
 * sender included), then only reports of others are passed on. Bounded to 100 ms; never fails.
 */
void dsc_net_fail(struct dsc_net *net, dscomm_status_t status, const char *text);

/* What a rank told about an error it found. Equal texts of several ranks are kept once. */
struct dsc_report {
    dscomm_status_t status;
    int rank;
    char text[DSC_ERROR_TEXT_MAX];
};
#define DSC_MAX_REPORTS 16
/* Reports so far, in order of arrival. Each was passed on once. */
size_t dsc_net_reports(const struct dsc_net *net, const struct dsc_report **reports_out);

/* First error that this endpoint found itself or was told by a peer; "" while there is none. */
const char *dsc_net_error_text(const struct dsc_net *net);
/* Rank that the error came from or is about; -1 unknown. */
int dsc_net_error_rank(const struct dsc_net *net);

/* Makes progress and wait return DSCOMM_ERR_ABORTED soon. Threads: any. */
void dsc_net_abort(struct dsc_net *net);
/* Ends a dsc_net_wait(), now or the next, as an arriving message does. Threads: any. */
void dsc_net_wake(struct dsc_net *net);

const char *dsc_net_transport_name(struct dsc_net *net, int peer); /* of the connection, or "-" */
/* Of messages, headers and payload; control links, where nothing flows in a call, do not count. */
uint64_t dsc_net_wire_tx_bytes(const struct dsc_net *net);
uint64_t dsc_net_wire_rx_bytes(const struct dsc_net *net);

/* ---- connection: inline-sized ops called in the hot path; no locks, no allocation ---- */

struct dsc_transport_ops {
    const char *name;
    bool wants_crc;  /* bytes may be damaged on the way */
    bool reads_once; /* tx_post_from() spares a copy */
    int preference;  /* auto takes the highest that reaches the peer */

    /* Can these two ranks use it? */
    bool (*reaches)(const struct dsc_peer_info *self, const struct dsc_peer_info *peer);

    /* Payload memory (64-byte aligned) of outgoing message `index`, NULL while the slot is taken.
     */
    uint8_t *(*tx_slot)(struct dsc_conn *conn, uint64_t index);
    /* Sends message `index` from its slot; header->payload_bytes tells how much. crc is filled in.
     */
    void (*tx_post)(struct dsc_conn *conn, uint64_t index, const struct dsc_header *header);
    /*
     * As tx_post(), of a free slot, with the payload in memory of the caller's that stays as it is
     * until flushed(), or until settle().
     */
    void (*tx_post_from)(struct dsc_conn *conn, uint64_t index, const struct dsc_header *header,
                         const uint8_t *payload);
    /* Keeps copies of what tx_post_from() was given and is not sent: that memory may end now. */
    void (*settle)(struct dsc_conn *conn);
    /*
     * Incoming message `index`, NULL until it is complete. Payload follows at *payload_out, 64-byte
     * aligned. Magic, version, size within the slot and CRC are checked; everything else is the
     * caller's to check. The memory may be shared with the peer: copy the header before checking.
     */
    const struct dsc_header *(*rx_msg)(struct dsc_conn *conn, uint64_t index,
                                       const uint8_t **payload_out);
    void (*rx_release)(struct dsc_conn *conn, uint64_t index);
    /* The next messages from the peer that the caller will read have these indices below `end`. */
    void (*rx_expect)(struct dsc_conn *conn, uint64_t end);

    /* ---- life cycle, called by the endpoint alone ---- */

    /* Part of every dsc_net_progress(): what no descriptor reports. Errors go to the endpoint. */
    void (*progress)(struct dsc_conn *conn);
    /*
     * The endpoint is about to sleep in epoll: from here on what comes must end that. False:
     * something is here already.
     */
    bool (*arm)(struct dsc_conn *conn);
    /* Is everything that was posted out of this rank's hands? */
    bool (*flushed)(const struct dsc_conn *conn);
    /*
     * Tells the peer, past all messages, of an error found by `rank`. DSCOMM_OK says goodbye,
     * DSCOMM_IN_PROGRESS what call this rank is in.
     */
    void (*notify)(struct dsc_conn *conn, dscomm_status_t status, int rank, const char *text);
    /* Nothing more will be sent. */
    void (*shut)(struct dsc_conn *conn);
    void (*destroy)(struct dsc_conn *conn);
};

/* Base of every backend's connection. */
struct dsc_conn {
    const struct dsc_transport_ops *ops;
    struct dsc_net *net;
    int peer;
    size_t slot_bytes;
    uint32_t n_slots;
    /* Cursors of the caller, kept here because they live as long as the connection. */
    uint64_t tx_next; /* next index to take */
    uint64_t rx_next;
    /* Kept by the backend. */
    uint64_t rx_end; /* what rx_expect() said last */
    bool peer_left;  /* it said goodbye: what it posted still arrives, then nothing */
    bool is_joining; /* dsc_net_connect() waits for the rest of it, which progress does */
};

extern const struct dsc_transport_ops dsc_transport_loopback, dsc_transport_shm,
    dsc_transport_verbs, dsc_transport_tcp, dsc_transport_nccl_net;
/* All transports, best first. */
const struct dsc_transport_ops *const *dsc_transports(size_t *n_out);

/* Defaults of transports whose receivers read the sender's slot. */
void dsc_transport_copy_post_from(struct dsc_conn *conn, uint64_t index,
                                  const struct dsc_header *header, const uint8_t *payload);
void dsc_transport_no_settle(struct dsc_conn *conn);
/* Default of transports whose messages come with a bell or through a descriptor. */
bool dsc_transport_no_arm(struct dsc_conn *conn);

#define DSC_VERBS_TEXT_BYTES 256 /* of why RDMA cannot be had */
/*
 * The key of the RDMA port that this process would use, for dsc_peer_info; 0: none. wish MUST:
 * none is DSCOMM_ERR_UNSUPPORTED. Settings that do not fit what is here are DSCOMM_ERR_ENV.
 */
dscomm_status_t dsc_verbs_probe(enum dsc_rdma_wish wish, uint64_t *key_out);

/*
 * Loads the net plugin that DSCOMM_NET_PLUGIN names, until it was dropped as often as held; its
 * name as a word. An endpoint with transport nccl_net holds it. Threads: any.
 */
#define DSC_NCCL_NAME_BYTES 48
dscomm_status_t dsc_nccl_net_hold(char name_out[DSC_NCCL_NAME_BYTES]);
void dsc_nccl_net_drop(void);

/* ---- fault injection, loopback only, for tests ---- */
enum dsc_fault_kind {
    DSC_FAULT_NONE,
    DSC_FAULT_DROP,
    DSC_FAULT_DELAY,
    DSC_FAULT_CORRUPT,
    DSC_FAULT_KILL
};
struct dsc_fault {
    enum dsc_fault_kind kind;
    int rank;    /* messages sent by this rank ... */
    int64_t nth; /* ... the nth from now on (0 the next); -1: no fault */
    int delay_ms;
};
void dsc_loopback_set_fault(const struct dsc_fault *fault);

#endif
