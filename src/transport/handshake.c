/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The proof of the key on a new socket, as fixed-size messages so that not one byte of what follows
 * is read here:
 *
 *   acceptor   [magic 8][version 4][nonce 32]
 *   connector  [magic 8][version 4][nonce 32][hello 192][mac 32]
 *   acceptor   [verdict 4][hello 192][mac 32]      after a wrong key [verdict 4] alone
 *
 * The macs are HMAC-SHA256 under the job's key over a label per side, both nonces and the hellos so
 * far: a recorded exchange cannot be replayed, nor a message sent back to its author. The refusal
 * is not proved, which only lets someone on the path end a connection, as he could anyway; it tells
 * a rank with another secret at once what is wrong.
 */
#include "transport/handshake.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "transport/bytes.h"
#include "transport/netif.h"

#define HANDSHAKE_VERSION 2u

enum {
    MAGIC_BYTES = 8,
    PREFIX_BYTES = MAGIC_BYTES + 4, /* magic and version */
    NONCE_BYTES = 32,
    HELLO_BYTES = 192,
    MAC_BYTES = 32,
    GREETING_BYTES = PREFIX_BYTES + NONCE_BYTES,
    PROOF_BYTES = GREETING_BYTES + HELLO_BYTES + MAC_BYTES,
    VERDICT_BYTES = 4,
    REPLY_BYTES = VERDICT_BYTES + HELLO_BYTES + MAC_BYTES,
    LABEL_BYTES = 16,
};

enum verdict { VERDICT_WELCOME = 1, VERDICT_WRONG_KEY = 2 };

/* Acceptor: SEND_GREETING to SEND_REPLY by way of the four; connector: the three of its own. */
enum state {
    SEND_GREETING,
    RECV_PROOF,
    WAIT_REPLY, /* for dsc_handshake_reply() */
    SEND_REPLY,
    RECV_GREETING,
    SEND_PROOF,
    RECV_REPLY,
    DONE,
    FAILED,
};

struct dsc_handshake {
    int fd; /* -1: taken */
    enum state state;
    dscomm_status_t status; /* FAILED: which error */
    uint64_t deadline_ns;
    uint8_t key[32];
    uint8_t acceptor_nonce[NONCE_BYTES];
    uint8_t connector_nonce[NONCE_BYTES];
    uint8_t connector_hello[HELLO_BYTES];
    struct dsc_hello mine;
    struct dsc_hello peer;
    size_t done; /* of the message that is being moved */
    size_t size;
    uint8_t buf[PROOF_BYTES];
    char error[256];
};

static const uint8_t magic[MAGIC_BYTES] = { 'D', 'S', 'C', 'O', 'M', 'M', 'H', 'S' };
static const uint8_t connector_label[LABEL_BYTES] = "dscomm connector";
static const uint8_t acceptor_label[LABEL_BYTES] = "dscomm acceptor";

static dscomm_status_t fail(struct dsc_handshake *hs, dscomm_status_t status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static dscomm_status_t fail(struct dsc_handshake *hs, dscomm_status_t status, const char *fmt, ...)
{
    char addr[DSC_ADDR_TEXT_BYTES];
    const int n = snprintf(hs->error, sizeof(hs->error), "%s ", dsc_addr_of_peer(hs->fd, addr));
    va_list args;

    va_start(args, fmt);
    vsnprintf(hs->error + n, sizeof(hs->error) - (size_t)n, fmt, args);
    va_end(args);
    hs->state = FAILED;
    hs->status = status;
    return status;
}

static void hello_encode(const struct dsc_hello *h, uint8_t wire[HELLO_BYTES])
{
    dsc_put_u32(wire, h->purpose);
    dsc_put_u32(wire + 4, (uint32_t)h->rank);
    dsc_put_u32(wire + 8, h->n_ranks);
    dsc_put_u32(wire + 12, h->index);
    dsc_put_u64(wire + 16, h->job);
    dsc_put_u64(wire + 24, h->slot_bytes);
    dsc_put_u32(wire + 32, h->n_slots);
    dsc_put_u32(wire + 36, h->n_socks);
    memcpy(wire + 40, h->transport, sizeof(h->transport));
    memcpy(wire + 56, h->detail, sizeof(h->detail));
}

/* Even a peer with the key may be wrong: its texts end inside their fields. */
static void hello_decode(const uint8_t wire[HELLO_BYTES], struct dsc_hello *h_out)
{
    h_out->purpose = dsc_get_u32(wire);
    h_out->rank = (int32_t)dsc_get_u32(wire + 4);
    h_out->n_ranks = dsc_get_u32(wire + 8);
    h_out->index = dsc_get_u32(wire + 12);
    h_out->job = dsc_get_u64(wire + 16);
    h_out->slot_bytes = dsc_get_u64(wire + 24);
    h_out->n_slots = dsc_get_u32(wire + 32);
    h_out->n_socks = dsc_get_u32(wire + 36);
    memcpy(h_out->transport, wire + 40, sizeof(h_out->transport));
    memcpy(h_out->detail, wire + 56, sizeof(h_out->detail));
    h_out->transport[sizeof(h_out->transport) - 1] = '\0';
    h_out->detail[sizeof(h_out->detail) - 1] = '\0';
}

/* acceptor_hello: NULL for the connector's mac. */
static void make_mac(const struct dsc_handshake *hs, const uint8_t *acceptor_hello,
                     uint8_t mac[MAC_BYTES])
{
    crypto_auth_hmacsha256_state state;

    crypto_auth_hmacsha256_init(&state, hs->key, sizeof(hs->key));
    crypto_auth_hmacsha256_update(&state, acceptor_hello != NULL ? acceptor_label : connector_label,
                                  LABEL_BYTES);
    crypto_auth_hmacsha256_update(&state, hs->acceptor_nonce, NONCE_BYTES);
    crypto_auth_hmacsha256_update(&state, hs->connector_nonce, NONCE_BYTES);
    crypto_auth_hmacsha256_update(&state, hs->connector_hello, HELLO_BYTES);
    if (acceptor_hello != NULL)
        crypto_auth_hmacsha256_update(&state, acceptor_hello, HELLO_BYTES);
    crypto_auth_hmacsha256_final(&state, mac);
    sodium_memzero(&state, sizeof(state));
}

static void begin(struct dsc_handshake *hs, enum state state, size_t size)
{
    hs->state = state;
    hs->done = 0;
    hs->size = size;
}

static void put_prefix(struct dsc_handshake *hs, const uint8_t nonce[NONCE_BYTES])
{
    memcpy(hs->buf, magic, MAGIC_BYTES);
    dsc_put_u32(hs->buf + MAGIC_BYTES, HANDSHAKE_VERSION);
    memcpy(hs->buf + PREFIX_BYTES, nonce, NONCE_BYTES);
}

static void put_proof(struct dsc_handshake *hs)
{
    put_prefix(hs, hs->connector_nonce);
    hello_encode(&hs->mine, hs->connector_hello);
    memcpy(hs->buf + GREETING_BYTES, hs->connector_hello, HELLO_BYTES);
    make_mac(hs, NULL, hs->buf + GREETING_BYTES + HELLO_BYTES);
    begin(hs, SEND_PROOF, PROOF_BYTES);
}

static dscomm_status_t take_proof(struct dsc_handshake *hs)
{
    const uint8_t *const hello = hs->buf + GREETING_BYTES;
    uint8_t mac[MAC_BYTES];

    memcpy(hs->connector_nonce, hs->buf + PREFIX_BYTES, NONCE_BYTES);
    memcpy(hs->connector_hello, hello, HELLO_BYTES);
    make_mac(hs, NULL, mac);
    if (sodium_memcmp(mac, hello + HELLO_BYTES, MAC_BYTES) != 0) {
        uint8_t verdict[VERDICT_BYTES];

        dsc_put_u32(verdict, VERDICT_WRONG_KEY);
        /* A courtesy: whether it arrives does not matter here. */
        (void)!send(hs->fd, verdict, sizeof(verdict), MSG_NOSIGNAL | MSG_DONTWAIT);
        return fail(hs, DSCOMM_ERR_CORRUPT, "does not have this job's key");
    }
    hello_decode(hello, &hs->peer);
    begin(hs, WAIT_REPLY, 0);
    return DSCOMM_OK;
}

static dscomm_status_t take_reply(struct dsc_handshake *hs)
{
    const uint8_t *const hello = hs->buf + VERDICT_BYTES;
    uint8_t mac[MAC_BYTES];

    make_mac(hs, hello, mac);
    if (sodium_memcmp(mac, hello + HELLO_BYTES, MAC_BYTES) != 0)
        return fail(hs, DSCOMM_ERR_CORRUPT, "does not have this job's key");
    hello_decode(hello, &hs->peer);
    hs->state = DONE;
    return DSCOMM_OK;
}

/* Looks at what has come of a message, so that a stranger is known from its first byte on. */
static dscomm_status_t check_start(struct dsc_handshake *hs)
{
    if (hs->state == RECV_REPLY) {
        if (hs->done >= VERDICT_BYTES && dsc_get_u32(hs->buf) != VERDICT_WELCOME)
            return fail(hs, DSCOMM_ERR_MISMATCH,
                        "refused this rank's key: the unique id, DSCOMM_SECRET or job differ");
        return DSCOMM_OK;
    }
    if (memcmp(hs->buf, magic, dsc_min_size(hs->done, MAGIC_BYTES)) != 0)
        return fail(hs, DSCOMM_ERR_CORRUPT, "does not speak this protocol: bad magic");
    if (hs->done < PREFIX_BYTES)
        return DSCOMM_OK;

    const uint32_t version = dsc_get_u32(hs->buf + MAGIC_BYTES);

    if (version != HANDSHAKE_VERSION)
        return fail(hs, DSCOMM_ERR_MISMATCH, "speaks handshake version %u, this side %u", version,
                    HANDSHAKE_VERSION);
    return DSCOMM_OK;
}

static bool is_sending(const struct dsc_handshake *hs)
{
    return hs->state == SEND_GREETING || hs->state == SEND_PROOF || hs->state == SEND_REPLY;
}

/* Moves the rest of the current message. */
static dscomm_status_t move_message(struct dsc_handshake *hs)
{
    while (hs->done < hs->size) {
        uint8_t *const p = hs->buf + hs->done;
        const size_t n = hs->size - hs->done;
        const bool sending = is_sending(hs);
        const ssize_t moved = sending ? send(hs->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT)
                                      : recv(hs->fd, p, n, MSG_DONTWAIT);

        if (moved == 0)
            return fail(hs, DSCOMM_ERR_PEER_LOST, "closed the connection before it proved its key");
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return DSCOMM_IN_PROGRESS;
        if (moved < 0)
            return fail(hs, DSCOMM_ERR_PEER_LOST, "was lost: %s", strerror(errno));
        hs->done += (size_t)moved;
        if (!sending)
            DSC_TRY(check_start(hs));
    }
    return DSCOMM_OK;
}

/* The current message is complete: what comes next? */
static dscomm_status_t advance(struct dsc_handshake *hs)
{
    switch (hs->state) {
    case SEND_GREETING:
        begin(hs, RECV_PROOF, PROOF_BYTES);
        return DSCOMM_OK;
    case RECV_PROOF:
        return take_proof(hs);
    case RECV_GREETING:
        memcpy(hs->acceptor_nonce, hs->buf + PREFIX_BYTES, NONCE_BYTES);
        put_proof(hs);
        return DSCOMM_OK;
    case SEND_PROOF:
        begin(hs, RECV_REPLY, REPLY_BYTES);
        return DSCOMM_OK;
    case RECV_REPLY:
        return take_reply(hs);
    case SEND_REPLY:
        hs->state = DONE;
        return DSCOMM_OK;
    case WAIT_REPLY:
    case DONE:
    case FAILED:
        break;
    }
    return DSCOMM_OK;
}

dscomm_status_t dsc_sodium_init(void)
{
    if (sodium_init() < 0)
        return dsc_fail(DSCOMM_ERR_SYSTEM, "libsodium finds no source of random numbers");
    return DSCOMM_OK;
}

dscomm_status_t dsc_handshake_create(int fd, bool acceptor, const uint8_t key[32],
                                     const struct dsc_hello *mine, uint64_t deadline_ns,
                                     struct dsc_handshake **hs_out)
{
    DSC_TRY(dsc_sodium_init());

    struct dsc_handshake *const hs = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*hs));

    if (hs == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for a handshake");
    hs->fd = fd;
    hs->deadline_ns = deadline_ns;
    memcpy(hs->key, key, sizeof(hs->key));
    if (mine != NULL)
        hs->mine = *mine;
    if (acceptor) {
        randombytes_buf(hs->acceptor_nonce, NONCE_BYTES);
        put_prefix(hs, hs->acceptor_nonce);
        begin(hs, SEND_GREETING, GREETING_BYTES);
    } else {
        randombytes_buf(hs->connector_nonce, NONCE_BYTES);
        begin(hs, RECV_GREETING, GREETING_BYTES);
    }
    *hs_out = hs;
    return DSCOMM_OK;
}

dscomm_status_t dsc_handshake_step(struct dsc_handshake *hs)
{
    while (hs->state != DONE) {
        if (hs->state == FAILED)
            return hs->status;
        if (hs->state != WAIT_REPLY) {
            const dscomm_status_t st = move_message(hs);

            if (st < 0)
                return st;
            if (st == DSCOMM_OK) {
                DSC_TRY(advance(hs));
                continue;
            }
        }
        if (dsc_now_ns() >= hs->deadline_ns)
            return fail(hs, DSCOMM_ERR_TIMEOUT, "did not prove its key in time");
        return DSCOMM_IN_PROGRESS;
    }
    return DSCOMM_OK;
}

bool dsc_handshake_wants_reply(const struct dsc_handshake *hs)
{
    return hs->state == WAIT_REPLY;
}

void dsc_handshake_reply(struct dsc_handshake *hs, const struct dsc_hello *mine)
{
    DSC_ASSERT(hs->state == WAIT_REPLY);
    hs->mine = *mine;
    dsc_put_u32(hs->buf, VERDICT_WELCOME);
    hello_encode(mine, hs->buf + VERDICT_BYTES);
    make_mac(hs, hs->buf + VERDICT_BYTES, hs->buf + VERDICT_BYTES + HELLO_BYTES);
    begin(hs, SEND_REPLY, REPLY_BYTES);
}

short dsc_handshake_events(const struct dsc_handshake *hs)
{
    if (is_sending(hs))
        return POLLOUT;
    /* Nothing to do until dsc_handshake_reply(): POLLIN would wake at once for ever if it closed.
     */
    return hs->state == WAIT_REPLY ? 0 : POLLIN;
}

int dsc_handshake_fd(const struct dsc_handshake *hs)
{
    return hs->fd;
}

uint64_t dsc_handshake_deadline(const struct dsc_handshake *hs)
{
    return hs->deadline_ns;
}

const struct dsc_hello *dsc_handshake_peer(const struct dsc_handshake *hs)
{
    return &hs->peer;
}

const char *dsc_handshake_error(const struct dsc_handshake *hs)
{
    return hs->error;
}

int dsc_handshake_take_fd(struct dsc_handshake *hs)
{
    const int fd = hs->fd;

    hs->fd = -1;
    return fd;
}

void dsc_handshake_destroy(struct dsc_handshake *hs)
{
    if (hs == NULL)
        return;
    if (hs->fd >= 0)
        close(hs->fd);
    sodium_memzero(hs->key, sizeof(hs->key));
    dsc_free(hs);
}
