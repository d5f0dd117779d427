/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control link of a pair: error messages, goodbyes and wake-up bytes, always read. Its end
 * without a goodbye is the peer's death, within the time that TCP needs to say so.
 *
 * An error message's payload is "STATUS RANK text", RANK being who found it, so that it can be
 * passed on unchanged; status 0 is a goodbye, 1 says what call the peer is in. Between messages
 * single zero bytes wake an epoll sleeper; a header begins with another byte.
 */
#include "transport/net_internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "transport/header.h"

#define WAKE_BYTE 0
_Static_assert((DSC_HEADER_MAGIC & 0xff) != WAKE_BYTE, "a header is no wake-up byte");

static void drop_front(struct dsc_control *control, size_t n)
{
    control->n_got -= n;
    memmove(control->got, control->got + n, control->n_got);
}

/* The peer is proved but its text is checked all the same. */
static void take_message(struct dsc_control *control, const uint8_t *payload, size_t n)
{
    struct dsc_conn *const conn = control->conn;
    char message[DSC_ERROR_TEXT_MAX + 1];
    dscomm_status_t status;
    int rank;

    memcpy(message, payload, n);
    message[n] = '\0';
    const char *const text = dsc_error_get(message, conn->net->n_ranks, &status, &rank);

    if (text != NULL)
        dsc_net_told(conn, status, rank, text);
    else
        dsc_net_set_error(conn->net, DSCOMM_ERR_CORRUPT, conn->peer,
                          "rank %d sent an error message that cannot be read", conn->peer);
}

/* True: one message, or the wake-up bytes in front of it, was consumed. */
static bool take_front(struct dsc_control *control)
{
    struct dsc_header h;
    size_t n_wake = 0;

    while (n_wake < control->n_got && control->got[n_wake] == WAKE_BYTE)
        n_wake++;
    if (n_wake > 0) {
        drop_front(control, n_wake);
        return true;
    }
    if (control->n_got < DSC_HEADER_BYTES)
        return false;
    dsc_header_decode(control->got, &h);
    const char *wrong = dsc_header_check(&h, DSC_ERROR_TEXT_MAX);

    if (wrong == NULL && h.kind != DSC_MSG_ERROR)
        wrong = "data on a control link";
    if (wrong == NULL && control->n_got < DSC_HEADER_BYTES + h.payload_bytes)
        return false;
    if (wrong == NULL && h.crc != dsc_header_crc(&h, control->got + DSC_HEADER_BYTES))
        wrong = "checksum";
    if (wrong != NULL) {
        dsc_net_set_error(control->conn->net, DSCOMM_ERR_CORRUPT, control->conn->peer,
                          "control message from rank %d is damaged: %s", control->conn->peer,
                          wrong);
        control->n_got = 0;
        return false;
    }
    take_message(control, control->got + DSC_HEADER_BYTES, h.payload_bytes);
    drop_front(control, DSC_HEADER_BYTES + h.payload_bytes);
    return true;
}

static void ended(struct dsc_control *control, const char *why)
{
    struct dsc_conn *const conn = control->conn;

    dsc_source_close(conn->net, &control->source);
    if (!conn->peer_left)
        dsc_net_lost(conn, why);
}

static void on_control(struct dsc_source *source, uint32_t events)
{
    struct dsc_control *const control = (struct dsc_control *)source; /* its first member */

    (void)events;
    for (;;) {
        const size_t room = sizeof(control->got) - control->n_got;
        const ssize_t n = recv(source->fd, control->got + control->n_got, room, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            ended(control, n == 0 ? "connection closed" : strerror(errno));
            return;
        }
        control->n_got += (size_t)n;
        while (take_front(control))
            ;
        if ((size_t)n < room)
            return;
    }
}

dscomm_status_t dsc_control_open(struct dsc_control *control, struct dsc_conn *conn, int fd)
{
    const int one = 1;

    control->conn = conn;
    control->source.on_event = on_control;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return dsc_source_open(conn->net, &control->source, fd, EPOLLIN);
}

/* Waits for room only as long as telling all peers may take. */
static void send_all(struct dsc_control *control, const uint8_t *data, size_t n)
{
    struct dsc_net *const net = control->conn->net;
    const int fd = control->source.fd;

    while (n > 0) {
        const ssize_t sent = send(fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent >= 0) {
            data += sent;
            n -= (size_t)sent;
            continue;
        }
        if (errno == EINTR)
            continue;
        const uint64_t now_ns = dsc_now_ns();

        if ((errno != EAGAIN && errno != EWOULDBLOCK) || now_ns >= net->notify_until_ns)
            return;
        struct pollfd wait = { .fd = fd, .events = POLLOUT };

        (void)poll(&wait, 1, (int)((net->notify_until_ns - now_ns) / 1000000u) + 1);
    }
}

void dsc_control_notify(struct dsc_control *control, dscomm_status_t status, int rank,
                        const char *text)
{
    char message[DSC_CONTROL_BYTES + 1];
    char *const payload = message + DSC_HEADER_BYTES;
    struct dsc_header h = {
        .magic = DSC_HEADER_MAGIC,
        .version = DSC_HEADER_VERSION,
        .kind = DSC_MSG_ERROR,
    };

    if (control->source.fd < 0 || control->shut)
        return;
    dsc_error_put(payload, DSC_ERROR_TEXT_MAX + 1, status, rank, text);
    h.payload_bytes = (uint32_t)strlen(payload);
    h.crc = dsc_header_crc(&h, payload);
    dsc_header_encode(&h, (uint8_t *)message);
    send_all(control, (const uint8_t *)message, DSC_HEADER_BYTES + h.payload_bytes);
}

void dsc_control_wake(struct dsc_control *control)
{
    const uint8_t byte = WAKE_BYTE;

    if (control->source.fd >= 0 && !control->shut) /* a full buffer holds enough to wake it */
        (void)!send(control->source.fd, &byte, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void dsc_control_shut(struct dsc_control *control)
{
    if (control->source.fd >= 0 && !control->shut)
        (void)shutdown(control->source.fd, SHUT_WR);
    control->shut = true;
}

void dsc_control_close(struct dsc_control *control)
{
    dsc_source_close(control->conn->net, &control->source);
}
