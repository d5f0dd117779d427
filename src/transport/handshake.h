/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport and plugin/. Both ends of a new socket prove that they know the job's
 * key before either believes a word: the acceptor sends a nonce, the connector answers with its own
 * nonce, its hello and an HMAC over all of it, the acceptor answers likewise. A state machine per
 * socket that never blocks, so strangers and silent connections cost the endpoint nothing but a
 * descriptor until their deadline. HMAC is libsodium's.
 */
#ifndef DSC_HANDSHAKE_H
#define DSC_HANDSHAKE_H

#include "transport/transport.h"

enum dsc_link_purpose { DSC_LINK_RENDEZVOUS = 1, DSC_LINK_PEER = 2, DSC_LINK_NET = 3 };

/* What a side says about itself; fixed size, little endian on the wire. */
struct dsc_hello {
    uint32_t purpose; /* enum dsc_link_purpose */
    int32_t rank;
    uint32_t n_ranks;
    uint32_t index;      /* DSC_LINK_PEER: number of this socket, 0 to n_socks - 1 */
    uint64_t job;        /* DSC_LINK_PEER: dsc_bootstrap.job */
    uint64_t slot_bytes; /* DSC_LINK_PEER */
    uint32_t n_slots;
    uint32_t n_socks;
    char transport[16]; /* DSC_LINK_PEER: ops name the connector wants; the acceptor's reply */
    char detail[136];   /* transport's own, for example the name of a shared segment */
};

struct dsc_handshake;

/* Before anything else of libsodium; any number of times. */
dscomm_status_t dsc_sodium_init(void);

/*
 * fd: non-blocking, connected (or connecting) socket, owned by the handshake until taken; if create
 * fails it stays the caller's. mine: NULL for an acceptor, which says who it is in its reply.
 */
dscomm_status_t dsc_handshake_create(int fd, bool acceptor, const uint8_t key[32],
                                     const struct dsc_hello *mine, uint64_t deadline_ns,
                                     struct dsc_handshake **hs_out);
/*
 * Moves on as far as possible without blocking. DSCOMM_IN_PROGRESS: call again when the socket is
 * ready for dsc_handshake_events(). An acceptor stops once after the connector is proved
 * (dsc_handshake_peer() is valid then) until dsc_handshake_reply() sets what it answers.
 * DSCOMM_OK: done. Errors are for the caller to log: bad magic, version, key, deadline.
 */
dscomm_status_t dsc_handshake_step(struct dsc_handshake *hs);
bool dsc_handshake_wants_reply(const struct dsc_handshake *hs);
void dsc_handshake_reply(struct dsc_handshake *hs, const struct dsc_hello *mine);
short dsc_handshake_events(const struct dsc_handshake *hs); /* POLLIN, POLLOUT; 0: wants a reply */
int dsc_handshake_fd(const struct dsc_handshake *hs);
uint64_t dsc_handshake_deadline(const struct dsc_handshake *hs);
const struct dsc_hello *dsc_handshake_peer(const struct dsc_handshake *hs);
const char *
dsc_handshake_error(const struct dsc_handshake *hs);  /* why it failed, for the one warning */
int dsc_handshake_take_fd(struct dsc_handshake *hs);  /* ownership moves to the caller */
void dsc_handshake_destroy(struct dsc_handshake *hs); /* closes the fd unless taken; NULL allowed */

#endif
