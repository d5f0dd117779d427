/* SPDX-License-Identifier: Apache-2.0 */
#include "transport/verbs_qp.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#define HOP_LIMIT 64
#define RNR_TIMER 12 /* 0.64 ms; never needed between honest peers */
#define RNR_FOREVER 7
#define END_NS 1000000000u

/* ---- what can be too low ---- */

void dsc_verbs_say_limit(char text[DSC_VERBS_TEXT_BYTES], const char *what, const char *name,
                         int resource, int error, const char *else_helps)
{
    struct rlimit limit = { 0 };

    (void)getrlimit(resource, &limit);
    if (error == ENOMEM && resource == RLIMIT_MEMLOCK)
        snprintf(text, DSC_VERBS_TEXT_BYTES,
                 "%s with %s: %s; at most %llu KiB may be locked (ulimit -l): raise it%s", what,
                 name, strerror(error), (unsigned long long)limit.rlim_cur / 1024, else_helps);
    else if (error == EMFILE)
        snprintf(text, DSC_VERBS_TEXT_BYTES, "%s with %s: %s; the limit is %llu (ulimit -n)", what,
                 name, strerror(error), (unsigned long long)limit.rlim_cur);
    else
        snprintf(text, DSC_VERBS_TEXT_BYTES, "%s with %s: %s", what, name, strerror(error));
}

dscomm_status_t dsc_verbs_status(enum ibv_wc_status status)
{
    switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
    case IBV_WC_REM_ABORT_ERR:
        return DSCOMM_ERR_PEER_LOST;
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
        return DSCOMM_ERR_CORRUPT; /* the two sides do not have the same idea of the memory */
    default:
        return DSCOMM_ERR_SYSTEM;
    }
}

/* ---- the beginning ---- */

struct dsc_verbs_end dsc_verbs_end_of(const struct dsc_verbs_port *port, const struct ibv_qp *qp,
                                      uint32_t psn)
{
    return (struct dsc_verbs_end){
        .qp_num = qp->qp_num, .psn = psn, .lid = port->lid, .mtu = port->mtu, .gid = port->gid
    };
}

bool dsc_verbs_end_is_valid(const struct dsc_verbs_end *end)
{
    return end->qp_num <= 0xffffff && end->psn <= 0xffffff && end->lid <= 0xffff &&
           end->mtu >= IBV_MTU_256 && end->mtu <= IBV_MTU_4096;
}

struct ibv_qp *dsc_verbs_qp_create(const struct dsc_verbs *verbs, const struct dsc_verbs_port *port,
                                   struct ibv_pd *pd, struct ibv_qp_init_attr *attr,
                                   unsigned access)
{
    struct ibv_qp_attr state = {
        .qp_state = IBV_QPS_INIT,
        .port_num = port->number,
        .qp_access_flags = access,
    };
    const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    struct ibv_qp_init_attr wanted = *attr;
    struct ibv_qp *qp = verbs->create_qp(pd, attr);

    if (qp == NULL && wanted.cap.max_inline_data > 0) {
        wanted.cap.max_inline_data = 0;
        *attr = wanted;
        qp = verbs->create_qp(pd, attr);
    }
    if (qp == NULL)
        return NULL;
    const int error = verbs->modify_qp(qp, &state, mask);

    if (error != 0) {
        verbs->destroy_qp(qp);
        errno = error;
        return NULL;
    }
    return qp;
}

static int ready_to_receive(const struct dsc_verbs *verbs, const struct dsc_verbs_port *port,
                            struct ibv_qp *qp, const struct dsc_verbs_end *far,
                            const struct dsc_env *env)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = far->mtu < port->mtu ? (enum ibv_mtu)far->mtu : port->mtu,
        .dest_qp_num = far->qp_num,
        .rq_psn = far->psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = RNR_TIMER,
        .ah_attr = { .dlid = (uint16_t)far->lid,
                     .sl = (uint8_t)env->ib_service_level,
                     .port_num = port->number },
    };

    /* InfiniBand has local addresses within a subnet, RoCE has nothing but GIDs. */
    if (!port->is_infiniband || far->gid.global.subnet_prefix != port->gid.global.subnet_prefix) {
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh =
            (struct ibv_global_route){ .dgid = far->gid,
                                       .sgid_index = (uint8_t)port->gid_index,
                                       .hop_limit = HOP_LIMIT,
                                       .traffic_class = (uint8_t)env->ib_traffic_class };
    }
    return verbs->modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

static int ready_to_send(const struct dsc_verbs *verbs, struct ibv_qp *qp, uint32_t psn,
                         const struct dsc_env *env)
{
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = psn,
        .max_rd_atomic = 1,
        .timeout = (uint8_t)env->ib_timeout,
        .retry_cnt = (uint8_t)env->ib_retry_count,
        .rnr_retry = RNR_FOREVER,
    };

    return verbs->modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}

int dsc_verbs_qp_join(const struct dsc_verbs *verbs, const struct dsc_verbs_port *port,
                      struct ibv_qp *qp, uint32_t psn, const struct dsc_verbs_end *far)
{
    const struct dsc_env *env;

    if (dsc_env_get(&env) < 0)
        return EINVAL;
    const int error = ready_to_receive(verbs, port, qp, far, env);

    return error != 0 ? error : ready_to_send(verbs, qp, psn, env);
}

/* ---- the end ---- */

void dsc_verbs_qp_drain(const struct dsc_verbs *verbs, struct ibv_qp *qp, struct ibv_cq *cq,
                        uint32_t n_left, uint64_t receives)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR }; /* all requests complete at once */
    const uint64_t deadline_ns = dsc_now_ns() + END_NS;
    struct ibv_wc done[16];

    if (n_left == 0 || verbs->modify_qp(qp, &attr, IBV_QP_STATE) != 0)
        return;
    while (n_left > 0 && dsc_now_ns() < deadline_ns) {
        const int n = ibv_poll_cq(cq, DSC_ARRAY_LEN(done), done);

        for (int i = 0; i < n; i++)
            n_left -= done[i].wr_id < receives && n_left > 0;
        if (n <= 0)
            (void)poll(NULL, 0, 1);
    }
}
