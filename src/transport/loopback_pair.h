/* SPDX-License-Identifier: Apache-2.0 */
/* Private to src/transport: what two ranks of one process share. */
#ifndef DSC_LOOPBACK_PAIR_H
#define DSC_LOOPBACK_PAIR_H

#include "transport/net_internal.h"

enum dsc_loop_box_state { DSC_BOX_EMPTY, DSC_BOX_ERROR, DSC_BOX_GOODBYE, DSC_BOX_DEAD };

/*
 * Each written once by one side, in order, and read by the other; out of band, so a full window
 * hides nothing. Every rank's report, then a goodbye or the end: no more can come.
 */
#define DSC_N_BOXES (DSC_MAX_REPORTS + 2)
struct dsc_loop_box {
    _Atomic uint32_t state; /* enum dsc_loop_box_state */
    dscomm_status_t status;
    int rank;
    char text[DSC_ERROR_TEXT_MAX];
};

/* What call a side is in; may be written again before it is read. */
struct dsc_loop_notice {
    _Atomic uint32_t version;
    char text[DSC_ERROR_TEXT_MAX]; /* guarded by the mutex */
};

struct dsc_loop_pair {
    struct dsc_loop_pair *next; /* while one side waits for the other */
    uint64_t job;
    int ranks[2]; /* ascending; sides are numbered alike */
    size_t slot_bytes;
    uint32_t n_slots;
    int n_refs;
    struct dsc_local_bell *bells[2];
    uint8_t *memory; /* ring 0 to 1, ring 1 to 0; NULL until both are there */
    struct dsc_loop_box boxes[2][DSC_N_BOXES];
    struct dsc_loop_notice notices[2];
};

/* A side lets go; the last one frees. */
void dsc_loop_unref(struct dsc_loop_pair *pair);
/* Into the first empty box of the side, by that side only. */
void dsc_loop_fill_box(struct dsc_loop_pair *pair, int side, enum dsc_loop_box_state state,
                       dscomm_status_t status, int rank, const char *text);

#endif
