/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport and plugin/. A reliable queue pair between two ports, whoever owns it:
 * its way through its states, what the other side must know, and what an error means.
 */
#ifndef DSC_VERBS_QP_H
#define DSC_VERBS_QP_H

#include "transport/verbs_port.h"

/* One end of a pair. */
struct dsc_verbs_end {
    uint32_t qp_num, psn, lid, mtu;
    union ibv_gid gid;
};

struct dsc_verbs_end dsc_verbs_end_of(const struct dsc_verbs_port *port, const struct ibv_qp *qp,
                                      uint32_t psn);
/* Whether a peer's can be one. */
bool dsc_verbs_end_is_valid(const struct dsc_verbs_end *end);

/*
 * An initialized pair; attr gets what it can, inlining less than asked for if need be. NULL: errno.
 */
struct ibv_qp *dsc_verbs_qp_create(const struct dsc_verbs *verbs, const struct dsc_verbs_port *port,
                                   struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
                                   unsigned access);
/* Ready to send and to receive. 0, or errno. */
int dsc_verbs_qp_join(const struct dsc_verbs *verbs, const struct dsc_verbs_port *port,
                      struct ibv_qp *qp, uint32_t psn, const struct dsc_verbs_end *far);
/*
 * Before a pair is destroyed: waits a moment until its n_left sending requests, those with ids
 * below `receives`, are complete. rxe waits long, and complains, if a pair still repeats something.
 */
void dsc_verbs_qp_drain(const struct dsc_verbs *verbs, struct ibv_qp *qp, struct ibv_cq *cq,
                        uint32_t n_left, uint64_t receives);

/* What the failure of a request means. */
dscomm_status_t dsc_verbs_status(enum ibv_wc_status status);
/* "WHAT with NAME: REASON", and the limit if it is one: then also what else helps. */
void dsc_verbs_say_limit(char text[DSC_VERBS_TEXT_BYTES], const char *what, const char *name,
                         int resource, int error, const char *else_helps);

#endif
