/* SPDX-License-Identifier: Apache-2.0 */
/* Requests to the device, their completions, and what their failures mean. */
#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "net_verbs.h"

#define POLLED 16
#define DOUBT_NS 50000000u
#define POLLS_PER_LOOK 32 /* to read the clock is not cheap */

nccl_result_t verbs_fail(struct verbs_comm *comm, nccl_result_t result, const char *fmt, ...)
{
    const struct dsc_verbs_port *const port = &comm->device->port;
    char text[512];
    va_list args;

    if (comm->failed != NCCL_SUCCESS)
        return comm->failed;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    net_warn(NET_NAME ": %s port %u, peer %s: %s%s", port->name, port->number, comm->peer, text,
             dsc_verbs_port_is_up(port) ? "" : "; the port is down");
    comm->failed = result;
    return result;
}

int verbs_post_receive(struct verbs_comm *comm, uint32_t i)
{
    struct ibv_sge piece = {
        .addr = (uint64_t)(uintptr_t)(comm->memory + (size_t)i * VERBS_CREDIT_BYTES),
        .length = VERBS_CREDIT_BYTES,
        .lkey = comm->memory_mr->lkey,
    };
    struct ibv_recv_wr *bad, request = {
        .wr_id = VERBS_ID_RECEIVE + i,
        .sg_list = comm->sends ? &piece : NULL, /* messages say where they go */
        .num_sge = comm->sends ? 1 : 0,
    };

    return ibv_post_recv(comm->qp, &request, &bad);
}

bool verbs_can_post(const struct verbs_comm *comm)
{
    return comm->n_sending < VERBS_SENDS;
}

nccl_result_t verbs_post(struct verbs_comm *comm, struct ibv_send_wr *request, const void *from,
                         size_t bytes, const struct ibv_mr *mr)
{
    struct ibv_sge piece = { (uint64_t)(uintptr_t)from, (uint32_t)bytes,
                             mr != NULL ? mr->lkey : 0 };
    struct ibv_send_wr *bad;
    int error;

    if (bytes > 0) {
        request->sg_list = &piece;
        request->num_sge = 1;
    }
    request->send_flags |= IBV_SEND_SIGNALED;
    error = ibv_post_send(comm->qp, request, &bad);
    if (error != 0)
        return verbs_fail(comm, NCCL_SYSTEM_ERROR, "a request cannot be posted: %s",
                          strerror(error));
    comm->n_sending++;
    return NCCL_SUCCESS;
}

/* ---- completions ---- */

/*
 * The first one says why; the others are flushed because of it. A peer that is gone is the better
 * reason: its socket may end a little after its queue pair.
 */
static void take_failure(struct verbs_comm *comm, const struct ibv_wc *wc)
{
    if (comm->failure_ns != 0)
        return;
    comm->failure_ns = dsc_now_ns() + DOUBT_NS;
    comm->failure = wc->status;
    comm->failed_what = wc->wr_id >= VERBS_ID_RECEIVE ? "receiving" : "sending";
    comm->look_ns = 0;
}

static nccl_result_t tell_failure(struct verbs_comm *comm)
{
    if (comm->failure_ns == 0 || comm->peer_left || dsc_now_ns() < comm->failure_ns)
        return comm->failed; /* what a peer that left has not done is told where it matters */
    return verbs_fail(comm, net_result(dsc_verbs_status(comm->failure)), "%s failed: %s (%d)",
                      comm->failed_what, comm->device->verbs->wc_status_str(comm->failure),
                      (int)comm->failure);
}

static void take_sent(struct verbs_comm *comm, uint64_t id)
{
    struct verbs_request *r;

    if (id >= VERBS_ID_FLUSH) {
        comm->flushes[id - VERBS_ID_FLUSH].done = true;
        return;
    }
    comm->n_sending--;
    if (id >= VERBS_ID_OTHER)
        return;
    r = &comm->requests[id];
    if (--r->pieces == 0 && r->is_posted)
        r->done = true;
}

static nccl_result_t take_received(struct verbs_comm *comm, const struct ibv_wc *wc)
{
    const uint32_t i = (uint32_t)(wc->wr_id - VERBS_ID_RECEIVE);
    nccl_result_t result = NCCL_SUCCESS;

    if (comm->sends && wc->opcode == IBV_WC_RECV)
        result =
            verbs_take_credit(comm, comm->memory + (size_t)i * VERBS_CREDIT_BYTES, wc->byte_len);
    else if (!comm->sends && wc->opcode == IBV_WC_RECV_RDMA_WITH_IMM)
        result = verbs_take_arrival(comm, ntohl(wc->imm_data));
    else
        result = verbs_fail(comm, NCCL_REMOTE_ERROR, "something came that was not asked for");
    if (result == NCCL_SUCCESS && verbs_post_receive(comm, i) != 0)
        result = verbs_fail(comm, NCCL_SYSTEM_ERROR, "a receive cannot be posted");
    return result;
}

static nccl_result_t take(struct verbs_comm *comm, const struct ibv_wc *wc)
{
    const bool is_receive = wc->wr_id >= VERBS_ID_RECEIVE;

    if (wc->status != IBV_WC_SUCCESS) {
        if (!is_receive && wc->wr_id < VERBS_ID_FLUSH)
            comm->n_sending--;
        take_failure(comm, wc);
        return NCCL_SUCCESS;
    }
    if (is_receive)
        return take_received(comm, wc);
    take_sent(comm, wc->wr_id);
    return NCCL_SUCCESS;
}

nccl_result_t verbs_poll(struct verbs_comm *comm)
{
    struct ibv_wc done[POLLED];
    nccl_result_t result = comm->failed;
    int n = 0;

    if (result != NCCL_SUCCESS)
        return result;
    if (++comm->n_polls % POLLS_PER_LOOK == 0 || comm->failure_ns != 0)
        result = verbs_look(comm);
    do {
        n = ibv_poll_cq(comm->cq, POLLED, done);
        for (int i = 0; i < n; i++) /* all of them: what is counted must stay right */
            if (take(comm, &done[i]) != NCCL_SUCCESS)
                result = comm->failed;
    } while (n == POLLED);
    if (n < 0 && result == NCCL_SUCCESS)
        result = verbs_fail(comm, NCCL_SYSTEM_ERROR, "the completion queue cannot be read");
    return result == NCCL_SUCCESS ? tell_failure(comm) : result;
}

/* To some milliseconds, in fewer instructions: every message asks. */
static uint64_t about_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

nccl_result_t verbs_may_post(struct verbs_comm *comm, bool *may)
{
    const uint64_t now_ns = about_now_ns();

    *may = verbs_can_post(comm) && !comm->peer_left && comm->failure_ns == 0;
    if (!verbs_device_is_down(comm->device, now_ns)) {
        comm->waits_ns = 0;
        return NCCL_SUCCESS;
    }
    *may = false;
    if (comm->waits_ns == 0)
        comm->waits_ns = now_ns;
    if (now_ns - comm->waits_ns < comm->patience_ns)
        return NCCL_SUCCESS;
    return verbs_fail(comm, NCCL_REMOTE_ERROR, "nothing could be sent for %llu ms",
                      (unsigned long long)((now_ns - comm->waits_ns) / 1000000));
}
