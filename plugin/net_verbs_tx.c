/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: messages are written, in order, where credits say. */
#include <arpa/inet.h>

#include "net_verbs.h"
#include "transport/bytes.h"

nccl_result_t verbs_take_credit(struct verbs_comm *comm, const uint8_t *bytes, uint32_t n)
{
    const uint32_t seq = dsc_get_u32(bytes);
    const uint32_t ahead = seq - (uint32_t)comm->at_seq;
    struct verbs_credit *credit;

    if (n != VERBS_CREDIT_BYTES || ahead >= NCCL_REQUESTS_MAX)
        return verbs_fail(comm, NCCL_REMOTE_ERROR,
                          "a credit of %u bytes for message %u makes no sense at message %llu", n,
                          seq, (unsigned long long)comm->at_seq);
    credit = &comm->credits[seq % NCCL_REQUESTS_MAX];
    *credit = (struct verbs_credit){ .next = comm->at_seq + ahead + 1,
                                     .flags = dsc_get_u32(bytes + 4),
                                     .address = dsc_get_u64(bytes + 8),
                                     .room = dsc_get_u64(bytes + 16),
                                     .key = dsc_get_u32(bytes + 24) };
    return NCCL_SUCCESS;
}

/* Only a number. */
static nccl_result_t tell(struct verbs_comm *comm, uint32_t immediate)
{
    struct ibv_send_wr request = {
        .wr_id = VERBS_ID_OTHER,
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .imm_data = htonl(immediate),
    };

    return verbs_post(comm, &request, NULL, 0, NULL);
}

/* The receiver is told too: both fail. */
static nccl_result_t refuse(struct verbs_comm *comm, const struct verbs_request *r,
                            const struct verbs_credit *credit)
{
    (void)tell(comm, (uint32_t)r->bytes);
    return verbs_fail(comm, NCCL_INVALID_USAGE,
                      "message %llu has %zu bytes, but only %llu are to be received there",
                      (unsigned long long)comm->at_seq, r->bytes, (unsigned long long)credit->room);
}

static nccl_result_t post_piece(struct verbs_comm *comm, struct verbs_request *r,
                                const struct verbs_credit *credit)
{
    const size_t bytes = dsc_min_size(r->bytes - r->posted, comm->device->port.max_message);
    const bool is_last = r->posted + bytes == r->bytes;
    const bool fits = bytes <= comm->max_inline && !r->mr->region->is_gpu;
    struct ibv_send_wr request = {
        .wr_id = (uint64_t)(r - comm->requests),
        .opcode = is_last ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
        .send_flags = fits && bytes > 0 ? IBV_SEND_INLINE : 0,
        .imm_data = htonl((uint32_t)r->bytes),
        .wr = { .rdma = { .remote_addr = credit->address + r->posted, .rkey = credit->key } },
    };
    const nccl_result_t result =
        verbs_post(comm, &request, r->data + r->posted, bytes, r->mr->region->mr);

    if (result != NCCL_SUCCESS)
        return result;
    r->posted += bytes;
    r->pieces++;
    r->is_posted = is_last;
    return NCCL_SUCCESS;
}

/* The oldest message that is not posted. *waits: for a credit, or for room in the queue. */
static nccl_result_t post_next(struct verbs_comm *comm, bool *waits)
{
    struct verbs_request *const r = verbs_request_of(comm, comm->at_seq);
    struct verbs_credit *const credit = &comm->credits[comm->at_seq % NCCL_REQUESTS_MAX];
    nccl_result_t result = NCCL_SUCCESS;

    *waits = credit->next != comm->at_seq + 1;
    if (*waits)
        return NCCL_SUCCESS;
    if (r->bytes > credit->room)
        return refuse(comm, r, credit);
    if (r->is_lines && !r->has_asked && (credit->flags & VERBS_CREDIT_ORDERED) == 0) {
        r->has_asked = true;
        credit->next = 0;
        return tell(comm, VERBS_ASKS | (uint32_t)r->bytes);
    }
    while (result == NCCL_SUCCESS && !r->is_posted && verbs_can_post(comm))
        result = post_piece(comm, r, credit);
    *waits = !r->is_posted;
    comm->at_seq += r->is_posted;
    return result;
}

/* The receiver is gone: what it has is done, the rest will never be. */
static nccl_result_t check_left(struct verbs_comm *comm)
{
    const uint64_t oldest =
        comm->next_seq > NCCL_REQUESTS_MAX ? comm->next_seq - NCCL_REQUESTS_MAX : 0;

    for (uint64_t seq = oldest; seq < comm->next_seq; seq++) {
        const struct verbs_request *const r = verbs_request_of(comm, seq);

        if (r->used && !r->done)
            return verbs_fail(comm, NCCL_REMOTE_ERROR,
                              "it has closed the connection before it received message %llu",
                              (unsigned long long)seq);
    }
    return NCCL_SUCCESS;
}

nccl_result_t verbs_send_progress(struct verbs_comm *comm)
{
    nccl_result_t result = verbs_poll(comm);
    bool waits = false;

    while (result == NCCL_SUCCESS && !waits && comm->at_seq < comm->next_seq) {
        bool may;

        result = verbs_may_post(comm, &may);
        waits = !may;
        if (result == NCCL_SUCCESS && may)
            result = post_next(comm, &waits);
    }
    return result == NCCL_SUCCESS && comm->peer_left ? check_left(comm) : result;
}
