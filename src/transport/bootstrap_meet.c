/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a rank and the rendezvous service say to each other: this rank's record, then the answer,
 * which is the table of all ranks or the first error of any.
 */
#include "transport/bootstrap_joiner.h"

#include <stdio.h>
#include <string.h>

#include "transport/bytes.h"

#define GRACE_NS 1500000000u /* beyond the timeout: the service reports better than we could */

/* The address that reaches the service surely reaches the other ranks, or nothing does. */
static dscomm_status_t own_address(const struct dsc_joiner *j, union dsc_addr *addr_out)
{
    union dsc_addr addr = { 0 };
    socklen_t len = sizeof(addr);
    char text[DSC_ADDR_TEXT_BYTES];

    if (getsockname(j->fd, &addr.any, &len) != 0)
        return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "cannot learn this rank's own address");
    dsc_addr_set_port(&addr, 0);
    dsc_log_info(BOOT, "using address %s, which reaches the rendezvous at %s",
                 dsc_addr_text(&addr, text), j->root_text);
    *addr_out = addr;
    return DSCOMM_OK;
}

static dscomm_status_t root_lost(const struct dsc_joiner *j, dscomm_status_t st)
{
    if (st == DSCOMM_ERR_TIMEOUT)
        return dsc_fail(st, "rank %d has no answer from the rendezvous at %s, waited %.1f s",
                        j->params->rank, j->root_text,
                        j->params->timeout_ms * 1e-3 + (double)GRACE_NS * 1e-9);
    if (st == DSCOMM_ERR_PEER_LOST)
        return dsc_fail(st, "%sthe rendezvous at %s is gone, before it answered rank %d",
                        j->is_rank0s ? "lost rank 0: " : "", j->root_text, j->params->rank);
    return st;
}

static dscomm_status_t send_record(struct dsc_joiner *j, const struct dsc_peer_info *self)
{
    struct dsc_record record = {
        .version = dsc_bootstrap_version(),
        .n_ranks = (uint32_t)j->params->n_ranks,
        .rank = (uint32_t)j->params->rank,
        .timeout_ms = (uint32_t)j->params->timeout_ms,
        .info = *self,
    };
    uint8_t wire[DSC_FRAME_BYTES + DSC_RECORD_MAX];

    snprintf(record.settings, sizeof(record.settings), "%s", j->params->settings);
    /* The service is there: that is progress, its timeout and ours count from now. */
    j->deadline_ns = dsc_deadline_ns(j->params->timeout_ms) + GRACE_NS;
    const size_t n = dsc_record_encode(&record, wire);

    return root_lost(j, dsc_joiner_move(j, true, wire, n));
}

/* The service's text, word for word: it is the same on every rank. */
static dscomm_status_t take_error(struct dsc_joiner *j, const struct dsc_answer *answer, size_t n)
{
    char text[DSC_ANSWER_TEXT_MAX] = "";

    if (n >= sizeof(text))
        return dsc_fail(DSCOMM_ERR_CORRUPT, "answer of the rendezvous at %s has %zu bytes of text",
                        j->root_text, n);
    DSC_TRY(root_lost(j, dsc_joiner_move(j, false, text, n)));
    return dsc_fail(answer->status, "%s", text);
}

static dscomm_status_t take_table(struct dsc_joiner *j, struct dsc_peer_info *peers)
{
    uint8_t wire[DSC_PEER_WIRE_BYTES];

    for (int i = 0; i < j->params->n_ranks; i++) {
        DSC_TRY(root_lost(j, dsc_joiner_move(j, false, wire, sizeof(wire))));
        if (!dsc_peer_info_decode(wire, &peers[i]))
            return dsc_fail(DSCOMM_ERR_CORRUPT, "the rendezvous at %s sent no address of rank %d",
                            j->root_text, i);
    }
    return DSCOMM_OK;
}

static dscomm_status_t receive_answer(struct dsc_joiner *j, struct dsc_bootstrap *boot)
{
    const size_t n_table = (size_t)boot->n_ranks * DSC_PEER_WIRE_BYTES;
    uint8_t wire[DSC_FRAME_BYTES + DSC_ANSWER_PREFIX_BYTES];
    struct dsc_answer answer;

    DSC_TRY(root_lost(j, dsc_joiner_move(j, false, wire, sizeof(wire))));
    const size_t n = dsc_get_u32(wire);

    if (n < DSC_ANSWER_PREFIX_BYTES || !dsc_answer_decode(wire + DSC_FRAME_BYTES, &answer))
        return dsc_fail(DSCOMM_ERR_CORRUPT, "answer of the rendezvous at %s makes no sense",
                        j->root_text);
    if (answer.status < 0)
        return take_error(j, &answer, n - DSC_ANSWER_PREFIX_BYTES);
    if (answer.n_ranks != (uint32_t)boot->n_ranks || n != DSC_ANSWER_PREFIX_BYTES + n_table)
        return dsc_fail(DSCOMM_ERR_CORRUPT, "table of the rendezvous at %s is of %u ranks, not %d",
                        j->root_text, answer.n_ranks, boot->n_ranks);
    boot->job = answer.job;
    return take_table(j, boot->peers);
}

/* A scope is a number of the host it came from: here the same link has our own. */
static void fix_scopes(struct dsc_bootstrap *boot, const union dsc_addr *own)
{
    if (!dsc_addr_is_link_local(own))
        return;
    for (int i = 0; i < boot->n_ranks; i++) {
        union dsc_addr addr;

        memcpy(addr.bytes, boot->peers[i].addr, sizeof(addr.bytes));
        if (!dsc_addr_is_link_local(&addr))
            continue;
        addr.v6.sin6_scope_id = own->v6.sin6_scope_id;
        memcpy(boot->peers[i].addr, addr.bytes, sizeof(addr.bytes));
    }
}

dscomm_status_t dsc_joiner_meet(struct dsc_joiner *j, struct dsc_bootstrap *boot)
{
    const bool is_chosen = j->env->socket_ifname[0] != '\0';
    union dsc_addr own = { 0 };
    struct dsc_peer_info self;

    DSC_TRY(dsc_peer_info_self(j->env, &self));
    DSC_TRY(dsc_verbs_probe(j->params->rdma, &self.rdma_key));
    if (is_chosen) {
        DSC_TRY(dsc_netif_choose(j->env->socket_ifname, &own));
        if (dsc_addr_is_link_local(&own) && dsc_addr_is_link_local(&j->root))
            j->root.v6.sin6_scope_id = own.v6.sin6_scope_id;
    }
    DSC_TRY(dsc_joiner_reach(j));
    if (!is_chosen)
        DSC_TRY(own_address(j, &own));
    DSC_TRY(dsc_netif_listen(&own, &boot->listen_fd));
    memcpy(self.addr, own.bytes, sizeof(self.addr));
    DSC_TRY(send_record(j, &self));
    DSC_TRY(receive_answer(j, boot));
    fix_scopes(boot, &own);
    return DSCOMM_OK;
}
