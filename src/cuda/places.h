/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where messages lie in a plan's staging memory. Messages of one direction and stage share slots by
 * position: with SLOTS of them what was written last is still read while the next is written.
 */
#ifndef DSC_CUDA_PLACES_H
#define DSC_CUDA_PLACES_H

#include "plan/plan.h"

/* Where a message is: one that this rank encodes, or one that it receives. */
struct dsc_spot {
    uint32_t op;   /* index in plan->ops */
    uint32_t recv; /* index in plan->recvs; DSC_NO_RECV: what the op encodes */
    uint32_t stage, position, bytes;
    uint32_t slot; /* places that are never used at once have different slots */
    uint64_t at;
};

#define DSC_NO_RECV UINT32_MAX

struct dsc_places {
    struct dsc_spot *all;
    uint32_t n, n_slots;
    size_t bytes;
    struct dsc_spot **of_op;   /* [n_ops] what it encodes, or GATHER: keeps; NULL: nothing */
    struct dsc_spot **of_recv; /* [n_recvs] */
};

/* False: out of memory. */
bool dsc_places_build(const struct dscomm_plan *plan, struct dsc_places *out);
void dsc_places_fini(struct dsc_places *p);

#endif
