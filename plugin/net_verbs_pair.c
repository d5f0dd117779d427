/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning and the end of a connection. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "net_verbs.h"
#include "transport/bytes.h"

#define WANTED_INLINE 256 /* a small message travels with its request */
#define LOOK_NS 1000000u

_Static_assert(VERBS_NOTE_AT + VERBS_CREDIT_BYTES <= VERBS_PAGE_BYTES, "credits fit");

/* ---- queues ---- */

/* The memory of a GPU cannot be copied to: then there is no inbox. */
static bool has_inbox(const struct verbs_comm *comm)
{
    return !comm->sends && comm->device->base.ptr_support == NCCL_PTR_HOST;
}

static size_t memory_bytes(const struct verbs_comm *comm)
{
    return VERBS_PAGE_BYTES + (has_inbox(comm) ? VERBS_PLACES * VERBS_SHORT_MAX : 0);
}

static bool make_memory(struct verbs_comm *comm)
{
    const size_t bytes = memory_bytes(comm);
    void *const memory =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED)
        return false;
    comm->memory = memory;
    /* a forked child would take away the pages that the device writes */
    (void)madvise(memory, bytes, MADV_DONTFORK);
    comm->memory_mr = comm->device->verbs->reg_mr(
        comm->device->pd, memory, bytes,
        IBV_ACCESS_LOCAL_WRITE | (has_inbox(comm) ? IBV_ACCESS_REMOTE_WRITE : 0));
    return comm->memory_mr != NULL;
}

static bool make_queues(struct verbs_comm *comm)
{
    const struct dsc_verbs *const verbs = comm->device->verbs;
    const struct dsc_verbs_port *const port = &comm->device->port;
    const unsigned access = comm->sends ? 0 : IBV_ACCESS_REMOTE_WRITE;
    struct ibv_qp_init_attr attr = {
        .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = VERBS_SENDS,
                 .max_recv_wr = VERBS_RECEIVES,
                 .max_send_sge = 1,
                 .max_recv_sge = 1,
                 .max_inline_data = WANTED_INLINE },
    };

    comm->cq = verbs->create_cq(port->context, VERBS_SENDS + VERBS_RECEIVES + NCCL_REQUESTS_MAX,
                                NULL, NULL, 0);
    if (comm->cq == NULL)
        return false;
    attr.send_cq = attr.recv_cq = comm->cq;
    comm->qp = dsc_verbs_qp_create(verbs, port, comm->device->pd, &attr, access);
    comm->max_inline = attr.cap.max_inline_data;
    if (comm->qp == NULL)
        return false;
    for (uint32_t i = 0; i < VERBS_RECEIVES; i++) {
        errno = verbs_post_receive(comm, i);
        if (errno != 0)
            return false;
    }
    return true;
}

static bool open_pair(struct verbs_comm *comm)
{
    char text[DSC_VERBS_TEXT_BYTES];

    errno = 0;
    if (make_memory(comm) && make_queues(comm))
        return true;
    dsc_verbs_say_limit(text, "no queue pair", comm->device->port.name,
                        errno == EMFILE ? RLIMIT_NOFILE : RLIMIT_MEMLOCK, errno, "");
    net_warn(NET_NAME ": %s", text);
    return false;
}

/*
 * A pair with itself: reading what was written to a GPU's memory, by the way that it was written,
 * makes it visible to that GPU.
 */
bool verbs_open_flush(struct verbs_comm *comm)
{
    const struct dsc_verbs *const verbs = comm->device->verbs;
    const struct dsc_verbs_port *const port = &comm->device->port;
    struct ibv_qp_init_attr attr = {
        .send_cq = comm->cq,
        .recv_cq = comm->cq,
        .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = NCCL_REQUESTS_MAX,
                 .max_recv_wr = 1,
                 .max_send_sge = 1,
                 .max_recv_sge = 1 },
    };
    struct dsc_verbs_end self;

    if (comm->flush_qp != NULL)
        return true;
    comm->flush_qp =
        dsc_verbs_qp_create(verbs, port, comm->device->pd, &attr, IBV_ACCESS_REMOTE_READ);
    if (comm->flush_qp == NULL)
        return false;
    self = dsc_verbs_end_of(port, comm->flush_qp, 0);
    return dsc_verbs_qp_join(verbs, port, comm->flush_qp, 0, &self) == 0;
}

/* ---- the socket ---- */

static bool write_end(struct verbs_comm *comm)
{
    const struct dsc_verbs_end end = dsc_verbs_end_of(&comm->device->port, comm->qp, comm->psn);
    uint8_t bytes[VERBS_END_BYTES] = { 0 };

    dsc_put_u32(bytes, end.qp_num);
    dsc_put_u32(bytes + 4, end.psn);
    dsc_put_u32(bytes + 8, end.lid);
    dsc_put_u32(bytes + 12, end.mtu);
    memcpy(bytes + 16, end.gid.raw, sizeof(end.gid.raw));
    if (has_inbox(comm)) {
        dsc_put_u64(bytes + 32, (uint64_t)(uintptr_t)(comm->memory + VERBS_PAGE_BYTES));
        dsc_put_u32(bytes + 40, comm->memory_mr->rkey);
    }
    /* the first bytes on an empty socket: they fit */
    return send(comm->fd, bytes, sizeof(bytes), MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof(bytes);
}

static nccl_result_t join(struct verbs_comm *comm)
{
    struct dsc_verbs_end far = { .qp_num = dsc_get_u32(comm->in),
                                 .psn = dsc_get_u32(comm->in + 4),
                                 .lid = dsc_get_u32(comm->in + 8),
                                 .mtu = dsc_get_u32(comm->in + 12) };
    const uint8_t ready = 1;
    int error;

    memcpy(far.gid.raw, comm->in + 16, sizeof(far.gid.raw));
    comm->inbox_address = dsc_get_u64(comm->in + 32);
    comm->inbox_key = dsc_get_u32(comm->in + 40);
    comm->n_in = 0;
    if (!dsc_verbs_end_is_valid(&far))
        return verbs_fail(comm, NCCL_REMOTE_ERROR, "its queue pair makes no sense");
    error = dsc_verbs_qp_join(comm->device->verbs, &comm->device->port, comm->qp, comm->psn, &far);
    if (error != 0)
        return verbs_fail(comm, NCCL_REMOTE_ERROR, "there is no way to its port: %s",
                          strerror(error));
    comm->is_joined = true;
    if (comm->sends)
        (void)!send(comm->fd, &ready, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
    return NCCL_SUCCESS;
}

/* What the receiver has is not waited for: its last acknowledgement may never come. */
static void take_goodbye(struct verbs_comm *comm, uint64_t n_received)
{
    const uint64_t oldest =
        comm->next_seq > NCCL_REQUESTS_MAX ? comm->next_seq - NCCL_REQUESTS_MAX : 0;

    for (uint64_t seq = oldest; seq < comm->next_seq && seq < n_received; seq++)
        if (verbs_request_of(comm, seq)->is_posted)
            verbs_request_of(comm, seq)->done = true;
    comm->n_in = 0;
    comm->peer_left = true;
}

/* How many bytes are wanted from the socket next; the end of it is never unwanted. */
static size_t wanted(const struct verbs_comm *comm)
{
    if (!comm->is_joined)
        return VERBS_END_BYTES;
    return comm->sends ? 8 : 1;
}

static nccl_result_t take_bytes(struct verbs_comm *comm)
{
    if (!comm->is_joined)
        return join(comm);
    if (comm->sends) {
        take_goodbye(comm, dsc_get_u64(comm->in));
        return NCCL_SUCCESS;
    }
    comm->n_in = 0;
    comm->peer_is_ready = true;
    return NCCL_SUCCESS;
}

static bool is_settled(const struct verbs_comm *comm)
{
    return comm->is_joined && (comm->sends || comm->peer_is_ready);
}

static nccl_result_t check_settling(struct verbs_comm *comm)
{
    if (is_settled(comm))
        return NCCL_SUCCESS;
    if (comm->peer_left)
        return verbs_fail(comm, NCCL_REMOTE_ERROR,
                          "it has closed the connection before its queue pair was ready");
    if (dsc_now_ns() < comm->deadline_ns)
        return NCCL_SUCCESS;
    return verbs_fail(comm, NCCL_REMOTE_ERROR, "its queue pair was not ready in %llu ms",
                      (unsigned long long)(comm->timeout_ns / 1000000));
}

nccl_result_t verbs_look(struct verbs_comm *comm)
{
    const uint64_t now_ns = dsc_now_ns();

    if (comm->peer_left || now_ns < comm->look_ns)
        return comm->failed;
    if (is_settled(comm))
        comm->look_ns = now_ns + LOOK_NS;
    while (!comm->peer_left) {
        const ssize_t n =
            recv(comm->fd, comm->in + comm->n_in, wanted(comm) - comm->n_in, MSG_DONTWAIT);

        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
            return check_settling(comm);
        if (n <= 0) {
            comm->peer_left = true;
            return check_settling(comm);
        }
        comm->n_in += (size_t)n;
        if (comm->n_in == wanted(comm) && take_bytes(comm) != NCCL_SUCCESS)
            return comm->failed;
    }
    return comm->failed;
}

/* ---- beginning and end ---- */

void verbs_stop(struct verbs_comm *comm)
{
    const struct dsc_verbs *const verbs = comm->device->verbs;

    if (comm->flush_qp != NULL)
        verbs->destroy_qp(comm->flush_qp);
    if (comm->qp != NULL) {
        dsc_verbs_qp_drain(verbs, comm->qp, comm->cq, comm->n_sending, VERBS_ID_RECEIVE);
        verbs->destroy_qp(comm->qp);
    }
    comm->flush_qp = comm->qp = NULL;
    if (comm->failed == NCCL_SUCCESS)
        comm->failed = NCCL_REMOTE_ERROR;
}

/* All but the socket. */
static void discard(struct verbs_comm *comm)
{
    const struct dsc_verbs *const verbs = comm->device->verbs;

    verbs_stop(comm);
    if (comm->cq != NULL)
        verbs->destroy_cq(comm->cq);
    if (comm->memory_mr != NULL)
        verbs->dereg_mr(comm->memory_mr);
    if (comm->memory != NULL)
        (void)munmap(comm->memory, memory_bytes(comm));
    verbs_frames_free(comm);
    verbs_device_release(comm->device);
    dsc_free(comm);
}

void *verbs_open_comm(int dev, bool sends, const int *fds, int n_socks)
{
    struct verbs_device *const device = verbs_device(dev);
    struct verbs_comm *comm;
    const struct dsc_env *env;

    (void)n_socks;
    if (dsc_env_get(&env) < 0 || !verbs_device_acquire(device))
        return NULL;
    comm = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*comm));
    if (comm == NULL) {
        verbs_device_release(device);
        return NULL;
    }
    comm->sends = sends;
    comm->device = device;
    comm->fd = fds[0];
    comm->timeout_ns = env->timeout_ms * 1000000u;
    comm->patience_ns = ((uint64_t)4096 << env->ib_timeout) * (env->ib_retry_count + 1);
    comm->deadline_ns = dsc_deadline_ns((int)env->timeout_ms);
    comm->psn = randombytes_random() & 0xffffff;
    dsc_addr_of_peer(comm->fd, comm->peer);
    if (open_pair(comm) && write_end(comm))
        return comm;
    discard(comm);
    return NULL;
}

nccl_result_t verbs_settle(void *settled, bool *done)
{
    struct verbs_comm *const comm = settled;
    const nccl_result_t result = verbs_look(comm);

    *done = is_settled(comm);
    return result;
}

nccl_result_t verbs_close(void *closed)
{
    struct verbs_comm *const comm = closed;
    const int fd = comm->fd;
    uint8_t n_received[8];

    dsc_put_u64(n_received, comm->come_seq);
    if (!comm->sends)
        (void)!send(fd, n_received, sizeof(n_received), MSG_NOSIGNAL | MSG_DONTWAIT);
    discard(comm);
    close(fd);
    return NCCL_SUCCESS;
}
