/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport. What the rendezvous service (bootstrap_root.c) and a rank that joins
 * (bootstrap_meet.c) share: the unique id's contents and the two messages they exchange.
 *
 *   rank   -> service  [length 4] record: [version 4][n_ranks 4][rank 4][timeout_ms 4]
 *                      [settings length 4][settings][peer info 168]
 *   service -> rank    [length 4] answer: [status 4][n_ranks 4][job 8] then a table of n_ranks peer
 *                      infos, or with a status below 0 the text of the error
 *
 * The first 16 bytes of a record are the same in every version, so that ranks of different versions
 * still learn of each other.
 */
#ifndef DSC_BOOTSTRAP_INTERNAL_H
#define DSC_BOOTSTRAP_INTERNAL_H

#include "transport/netif.h"

#define DSC_MAX_RANKS 65535
#define DSC_SETTINGS_MAX 4096    /* with NUL */
#define DSC_ANSWER_TEXT_MAX 1024 /* with NUL */
#define DSC_SECRET_BYTES 32

enum {
    DSC_FRAME_BYTES = 4, /* the length in front of a record or answer */
    DSC_PEER_WIRE_BYTES = DSC_HOST_ID_BYTES + DSC_ADDR_WIRE_BYTES + 24 + DSC_CPU_SET_BYTES,
    DSC_RECORD_PREFIX_BYTES = 16,
    DSC_RECORD_MAX = DSC_RECORD_PREFIX_BYTES + 4 + DSC_SETTINGS_MAX + DSC_PEER_WIRE_BYTES,
    DSC_ANSWER_PREFIX_BYTES = 16,
};

/* ---- unique id ---- */

struct dsc_rendezvous {
    union dsc_addr addr;
    uint8_t secret[DSC_SECRET_BYTES];
    bool is_rank0s; /* rank 0's process serves it: without the one the other is gone */
};

void dsc_unique_id_encode(const struct dsc_rendezvous *rv, dscomm_unique_id_t *id_out);
/* DSCOMM_ERR_INVALID: not an id, of another version, or damaged. */
dscomm_status_t dsc_unique_id_decode(const dscomm_unique_id_t *id, struct dsc_rendezvous *rv_out);

/* The key that ranks prove: DSCOMM_SECRET's hash, else the id's secret. */
dscomm_status_t dsc_bootstrap_key(const uint8_t secret[DSC_SECRET_BYTES],
                                  uint8_t key_out[DSC_SECRET_BYTES]);

/* ---- messages ---- */

struct dsc_record {
    uint32_t version; /* of the library: dsc_bootstrap_version() */
    uint32_t n_ranks;
    uint32_t rank;
    uint32_t timeout_ms;
    struct dsc_peer_info info;
    char settings[DSC_SETTINGS_MAX];
};

struct dsc_answer {
    dscomm_status_t status;
    uint32_t n_ranks;
    uint64_t job;
};

uint32_t dsc_bootstrap_version(void);
/* "0.1.0"; returns buf. */
const char *dsc_bootstrap_version_text(uint32_t version, char buf[16]);

/* Frame included; returns its bytes. */
size_t dsc_record_encode(const struct dsc_record *record,
                         uint8_t wire[DSC_FRAME_BYTES + DSC_RECORD_MAX]);
/*
 * NULL, or what is wrong with the record (n bytes, frame not included). Of a record of another
 * version only the first four fields are read.
 */
const char *dsc_record_decode(const uint8_t *wire, size_t n, struct dsc_record *record_out);

void dsc_peer_info_encode(const struct dsc_peer_info *info, uint8_t wire[DSC_PEER_WIRE_BYTES]);
bool dsc_peer_info_decode(const uint8_t wire[DSC_PEER_WIRE_BYTES], struct dsc_peer_info *info_out);

/* body_bytes: of the table or text that follows. */
void dsc_answer_encode(const struct dsc_answer *answer, size_t body_bytes,
                       uint8_t wire[DSC_FRAME_BYTES + DSC_ANSWER_PREFIX_BYTES]);
/* False: not the start of an answer. */
bool dsc_answer_decode(const uint8_t wire[DSC_ANSWER_PREFIX_BYTES], struct dsc_answer *answer_out);

/* ---- rendezvous service ---- */

/*
 * Listens at addr (port 0: sets the one it got) and serves one communicator's ranks from a thread
 * of its own, until all have their answer or the deadline. timeout_ms: how long the first may take.
 * A service of this process at the same port that has decided gives the port up.
 */
dscomm_status_t dsc_root_start(union dsc_addr *addr, const uint8_t key[DSC_SECRET_BYTES],
                               int timeout_ms);
/*
 * Makes the service of this process with this port and key, if it has not decided yet, answer with
 * an error all ranks that are there or still come.
 */
void dsc_root_fail(uint16_t port, const uint8_t key[DSC_SECRET_BYTES], dscomm_status_t status,
                   const char *text);
/* Waits for the threads of services that have answered: they need no more than a moment. */
void dsc_root_reap(void);

#endif
