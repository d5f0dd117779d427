/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: messages are written, in order, where credits say. */
#include <arpa/inet.h>

#include "net_verbs.h"
#include "transport/bytes.h"

nccl_result_t verbs_take_credit(struct verbs_comm *comm, const uint8_t *bytes, uint32_t n)
{
    const uint32_t seq = dsc_get_u32(bytes);
    const uint32_t ahead = seq - (uint32_t)comm->at_seq;
    const uint32_t n_read = n == VERBS_CREDIT_BYTES ? dsc_get_u32(bytes + 28) : comm->n_read;
    struct verbs_credit *credit;

    if (comm->n_put - n_read > VERBS_PLACES)
        return verbs_fail(comm, NCCL_REMOTE_ERROR, "it has read %u short messages, %u were sent",
                          n_read, comm->n_put);
    comm->n_read = n_read;
    if (n == VERBS_CREDIT_BYTES &&
        ((dsc_get_u32(bytes + 4) & VERBS_CREDIT_NONE) != 0 || ahead > UINT32_MAX - VERBS_PLACES))
        return NCCL_SUCCESS; /* for a message that was short */
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

static bool goes_to_inbox(const struct verbs_comm *comm, const struct verbs_request *r)
{
    return comm->inbox_key != 0 && r->bytes <= VERBS_SHORT_MAX && !r->mr->region->is_gpu &&
           comm->n_put - comm->n_read < VERBS_PLACES;
}

static nccl_result_t post_short(struct verbs_comm *comm, struct verbs_request *r)
{
    struct ibv_send_wr request = {
        .wr_id = (uint64_t)(r - comm->requests),
        .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
        .send_flags = r->bytes <= comm->max_inline && r->bytes > 0 ? IBV_SEND_INLINE : 0,
        .imm_data = htonl(VERBS_SHORT | (uint32_t)r->bytes),
        .wr = { .rdma = { .remote_addr =
                              comm->inbox_address + comm->n_put % VERBS_PLACES * VERBS_SHORT_MAX,
                          .rkey = comm->inbox_key } },
    };
    const nccl_result_t result = verbs_post(comm, &request, r->data, r->bytes, r->mr->region->mr);

    if (result != NCCL_SUCCESS)
        return result;
    r->pieces++;
    r->is_posted = true;
    comm->n_put++;
    comm->n_short++;
    comm->at_seq++;
    return NCCL_SUCCESS;
}

/* There is no credit: is one to be asked for? */
static nccl_result_t ask_for_credit(struct verbs_comm *comm, struct verbs_request *r)
{
    if (r->has_asked_credit || comm->n_short < VERBS_SHORTS_IN_A_ROW)
        return NCCL_SUCCESS;
    r->has_asked_credit = true;
    comm->n_short = 0;
    return tell(comm, VERBS_ASKS_CREDIT);
}

/* The oldest message that is not posted. *waits: for a credit, or for room in the queue. */
static nccl_result_t post_next(struct verbs_comm *comm, bool *waits)
{
    struct verbs_request *const r = verbs_request_of(comm, comm->at_seq);
    struct verbs_credit *const credit = &comm->credits[comm->at_seq % NCCL_REQUESTS_MAX];
    nccl_result_t result = NCCL_SUCCESS;

    *waits = false;
    if (goes_to_inbox(comm, r))
        return post_short(comm, r);
    *waits = credit->next != comm->at_seq + 1;
    if (*waits)
        return r->bytes > VERBS_SHORT_MAX ? ask_for_credit(comm, r) : (nccl_result_t)NCCL_SUCCESS;
    if (r->bytes > credit->room)
        return refuse(comm, r, credit);
    if (r->is_lines && !r->has_asked && (credit->flags & VERBS_CREDIT_ORDERED) == 0) {
        r->has_asked = true;
        credit->next = 0;
        return tell(comm, VERBS_ASKS_FRAME | (uint32_t)r->bytes);
    }
    while (result == NCCL_SUCCESS && !r->is_posted && verbs_can_post(comm))
        result = post_piece(comm, r, credit);
    *waits = !r->is_posted;
    comm->at_seq += r->is_posted;
    comm->n_short = 0;
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

nccl_result_t verbs_send_posts(struct verbs_comm *comm)
{
    nccl_result_t result = NCCL_SUCCESS;
    bool waits = false;

    while (result == NCCL_SUCCESS && !waits && comm->at_seq < comm->next_seq) {
        bool may;

        result = verbs_may_post(comm, &may);
        waits = !may;
        if (result == NCCL_SUCCESS && may)
            result = post_next(comm, &waits);
    }
    return result;
}

nccl_result_t verbs_send_progress(struct verbs_comm *comm)
{
    nccl_result_t result = verbs_poll(comm);

    if (result == NCCL_SUCCESS)
        result = verbs_send_posts(comm);
    return result == NCCL_SUCCESS && comm->peer_left ? check_left(comm) : result;
}
