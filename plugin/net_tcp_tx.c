/* SPDX-License-Identifier: Apache-2.0 */
/* Sending: header and stripe of a message in one call, straight from the caller's memory. */
#include "net_tcp.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "net_lines.h"
#include "transport/bytes.h"

/*
 * Sockets that are full are left alone for so long: about 32 KiB at 10 Gbit/s, which the socket's
 * buffer hides, and far fewer calls for nothing.
 */
#define RETRY_NS 20000u

static void put_header(uint8_t header[TCP_HEADER_BYTES], const struct tcp_request *request,
                       uint64_t seq)
{
    dsc_put_u64(header, request->bytes);
    dsc_put_u32(header + 8, (uint32_t)seq);
    dsc_put_u32(header + 12,
                (request->ordered ? TCP_FLAG_LINES : 0) | (uint32_t)request->stripes << 8);
}

/* Sends what is left of the part. True: all of it is gone. */
static nccl_result_t send_part(struct tcp_comm *comm, struct tcp_sock *sock,
                               struct tcp_request *request, const struct tcp_part *part, bool *gone)
{
    uint8_t header[TCP_HEADER_BYTES];
    const size_t head_left = part->header - dsc_min_size(sock->at.done, part->header);
    const size_t body_done = sock->at.done - (part->header - head_left);
    struct iovec iov[2] = {
        { header + part->header - head_left, head_left },
        { request->data + part->offset + body_done, part->bytes - body_done },
    };
    struct msghdr msg = { .msg_iov = head_left > 0 ? iov : iov + 1,
                          .msg_iovlen = head_left > 0 ? 2 : 1 };
    ssize_t moved;

    put_header(header, request, sock->at.seq);
    moved = sendmsg(sock->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    *gone = false;
    if (moved < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR
                   ? NCCL_SUCCESS
                   : tcp_fail_socket(comm, moved, errno);
    sock->at.done += (size_t)moved;
    request->left -= (size_t)moved;
    comm->n_unsent -= request->left == 0;
    *gone = sock->at.done == part->header + part->bytes;
    return NCCL_SUCCESS;
}

/* Sends all that the socket takes. */
static nccl_result_t send_socket(struct tcp_comm *comm, int index, bool *full)
{
    struct tcp_sock *const sock = &comm->socks[index];

    while (sock->at.seq < comm->next_seq) {
        struct tcp_request *const request = tcp_request_of(comm, sock->at.seq);
        const struct tcp_part part = tcp_part_of(comm, index, sock->at.seq, request);
        bool gone = true;

        if (part.header + part.bytes > sock->at.done) {
            const nccl_result_t result = send_part(comm, sock, request, &part, &gone);

            if (result != NCCL_SUCCESS)
                return result;
        }
        if (!gone) {
            *full = true;
            return NCCL_SUCCESS;
        }
        sock->at = (struct tcp_cursor){ .seq = sock->at.seq + 1 };
    }
    return NCCL_SUCCESS;
}

nccl_result_t tcp_send_progress(struct tcp_comm *comm)
{
    bool full = false;

    if (comm->retry_ns != 0 && dsc_now_ns() < comm->retry_ns)
        return NCCL_SUCCESS;
    for (int i = 0; i < comm->n_socks; i++) {
        const nccl_result_t result = send_socket(comm, i, &full);

        if (result != NCCL_SUCCESS)
            return result;
    }
    comm->retry_ns = full ? dsc_now_ns() + RETRY_NS : 0;
    return NCCL_SUCCESS;
}
