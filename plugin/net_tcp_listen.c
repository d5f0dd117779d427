/* SPDX-License-Identifier: Apache-2.0 */
/* Listening, and accepting: sockets that come, until all of a connection have proved their key. */
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <sodium.h>

#include "net_tcp_meet.h"
#include "transport/bytes.h"

#define ACCEPTING_MAX 64
/* A socket that says nothing is a stranger's. */
#define STRANGER_MS 30000u

struct tcp_listener {
    int fd;
    int traffic_class;
    uint8_t key[TCP_KEY_BYTES];
    uint64_t deadline_ns; /* of the connection that is waited for; 0: no accept() since the last */
    char text[DSC_ADDR_TEXT_BYTES];
    struct dsc_handshake *accepting[ACCEPTING_MAX]; /* NULL: free */
    bool proved[ACCEPTING_MAX];
};

static void put_handle(uint8_t *handle, const union dsc_addr *addr,
                       const uint8_t key[TCP_KEY_BYTES])
{
    memset(handle, 0, NCCL_HANDLE_BYTES);
    dsc_put_u64(handle, TCP_HANDLE_MAGIC);
    dsc_put_u32(handle + TCP_HANDLE_VERSION_AT, TCP_WIRE_VERSION);
    dsc_addr_encode(addr, handle + TCP_HANDLE_ADDR_AT);
    memcpy(handle + TCP_HANDLE_KEY_AT, key, TCP_KEY_BYTES);
}

nccl_result_t tcp_listen(void *ctx, int dev, void *handle, void **listen_comm)
{
    const struct net_ctx *const context = ctx;
    const struct net_device *const device = tcp_device(dev);
    uint8_t key[TCP_KEY_BYTES];
    union dsc_addr addr;
    struct tcp_listener *listener;
    const struct dsc_env *env;

    *listen_comm = NULL;
    if (device == NULL) {
        net_warn("DSComm: there is no device %d, only %d", dev, tcp_n_devices());
        return NCCL_INVALID_ARGUMENT;
    }
    if (dsc_env_get(&env) < 0)
        return NCCL_INVALID_USAGE;
    listener = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*listener));
    if (listener == NULL)
        return NCCL_SYSTEM_ERROR;
    addr = device->netif.addr;
    if (dsc_netif_listen(&addr, &listener->fd) < 0) {
        dsc_free(listener);
        return NCCL_SYSTEM_ERROR;
    }
    listener->traffic_class = context != NULL ? context->traffic_class : NCCL_UNDEFINED;
    dsc_addr_text(&addr, listener->text);
    randombytes_buf(key, sizeof(key));
    put_handle(handle, &addr, key);
    tcp_mix_secret(key, env->secret, listener->key);
    *listen_comm = listener;
    return NCCL_SUCCESS;
}

nccl_result_t tcp_close_listen(void *listen_comm)
{
    struct tcp_listener *const listener = listen_comm;

    if (listener == NULL)
        return NCCL_SUCCESS;
    for (int i = 0; i < ACCEPTING_MAX; i++)
        dsc_handshake_destroy(listener->accepting[i]);
    close(listener->fd);
    sodium_memzero(listener->key, sizeof(listener->key));
    dsc_free(listener);
    return NCCL_SUCCESS;
}

/* ---- accepting ---- */

static int free_place(const struct tcp_listener *listener)
{
    for (int i = 0; i < ACCEPTING_MAX; i++) {
        if (listener->accepting[i] == NULL)
            return i;
    }
    return -1;
}

static void forget(struct tcp_listener *listener, int i)
{
    dsc_handshake_destroy(listener->accepting[i]);
    listener->accepting[i] = NULL;
    listener->proved[i] = false;
}

static void accept_new(struct tcp_listener *listener, uint64_t timeout_ms)
{
    const int ms = (int)dsc_min_u64(timeout_ms, STRANGER_MS);

    for (int place = free_place(listener); place >= 0; place = free_place(listener)) {
        const int fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        const int one = 1;

        if (fd < 0)
            return; /* none, or one that is gone again; a lack of descriptors ends in the deadline
                     */
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        if (dsc_handshake_create(fd, true, listener->key, NULL, dsc_deadline_ns(ms),
                                 &listener->accepting[place]) < 0) {
            close(fd);
            return;
        }
    }
}

/* One socket's handshake. */
static nccl_result_t accept_step(struct tcp_listener *listener, int i)
{
    struct dsc_handshake *const hs = listener->accepting[i];
    dscomm_status_t st = dsc_handshake_step(hs);
    nccl_result_t result = NCCL_SUCCESS;

    if (st == DSCOMM_IN_PROGRESS && dsc_handshake_wants_reply(hs)) {
        const struct dsc_hello *const peer = dsc_handshake_peer(hs);
        const struct dsc_hello mine =
            tcp_own_hello(peer->job, (int)(peer->index & 0xff), (int)(peer->n_socks & 0xff));

        result = tcp_check_hello(peer, "a peer that connected");
        dsc_handshake_reply(hs, &mine);
        st = dsc_handshake_step(hs);
    }
    if (st < 0) {
        net_warn("DSComm: at %s: %s", listener->text, dsc_handshake_error(hs));
        forget(listener, i);
    }
    listener->proved[i] = st == DSCOMM_OK;
    return result;
}

/* All sockets of the connection that socket i belongs to, if they are there. */
static bool collect(const struct tcp_listener *listener, int i, int places[TCP_SOCKS_MAX])
{
    const struct dsc_hello *const first = dsc_handshake_peer(listener->accepting[i]);
    uint32_t found = 0;

    for (int k = 0; k < ACCEPTING_MAX; k++) {
        const struct dsc_hello *peer;

        if (!listener->proved[k])
            continue;
        peer = dsc_handshake_peer(listener->accepting[k]);
        if (peer->job != first->job || peer->n_socks != first->n_socks)
            continue;
        places[peer->index] = k;
        found |= 1u << peer->index;
    }
    return found == (1u << first->n_socks) - 1;
}

static nccl_result_t accept_collected(struct tcp_listener *listener,
                                      const int places[TCP_SOCKS_MAX], uint64_t timeout_ms,
                                      void **recv_comm)
{
    const int n = (int)dsc_handshake_peer(listener->accepting[places[0]])->n_socks;
    struct dsc_handshake *socks[TCP_SOCKS_MAX];

    for (int i = 0; i < n; i++) {
        socks[i] = listener->accepting[places[i]];
        listener->accepting[places[i]] = NULL;
        listener->proved[places[i]] = false;
    }
    listener->deadline_ns = 0;
    *recv_comm = tcp_comm_make(false, socks, n, listener->traffic_class, timeout_ms);
    return *recv_comm != NULL ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
}

nccl_result_t tcp_accept(void *listen_comm, void **recv_comm, struct nccl_device_handle **device)
{
    struct tcp_listener *const listener = listen_comm;
    int places[TCP_SOCKS_MAX];
    const struct dsc_env *env;

    (void)device;
    *recv_comm = NULL;
    if (dsc_env_get(&env) < 0)
        return NCCL_INVALID_USAGE;
    if (listener->deadline_ns == 0)
        listener->deadline_ns = dsc_deadline_ns((int)env->timeout_ms);
    accept_new(listener, env->timeout_ms);
    for (int i = 0; i < ACCEPTING_MAX; i++) {
        if (listener->accepting[i] != NULL && !listener->proved[i]) {
            const nccl_result_t result = accept_step(listener, i);

            if (result != NCCL_SUCCESS)
                return result;
        }
        if (listener->proved[i] && collect(listener, i, places))
            return accept_collected(listener, places, env->timeout_ms, recv_comm);
    }
    if (dsc_now_ns() < listener->deadline_ns)
        return NCCL_SUCCESS;
    net_warn("DSComm: nobody connected to %s in %llu ms; does every host run this plugin?",
             listener->text, (unsigned long long)env->timeout_ms);
    return NCCL_REMOTE_ERROR;
}
