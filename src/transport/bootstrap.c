/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's side of the rendezvous, and who this rank is. Launchers start ranks in any order, so the
 * service may not be there yet: until the key is proved every loss is tried again until the
 * deadline, from then on it means that the service is gone and is an error at once.
 */
#include "transport/bootstrap_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <sodium.h>

#include "transport/bytes.h"
#include "transport/handshake.h"

#define GRACE_NS 1500000000u /* beyond the timeout: the service reports better than we could */
#define RETRY_MIN_NS 5000000u
#define RETRY_MAX_NS 200000000u

/* ---- identity ---- */

/* Random per process, and again in a child of fork(): equal means the same address space. */
static uint64_t process_id(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t id;
    static pid_t owner;

    pthread_mutex_lock(&lock);
    if (owner != getpid()) {
        owner = getpid();
        randombytes_buf(&id, sizeof(id));
    }
    const uint64_t result = id;

    pthread_mutex_unlock(&lock);
    return result;
}

static void read_boot_id(char *buf, size_t buf_bytes)
{
    const int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n;

    memset(buf, 0, buf_bytes);
    if (fd >= 0) {
        do
            n = read(fd, buf, buf_bytes - 1);
        while (n < 0 && errno == EINTR);
        close(fd);
    }
    if (buf[0] == '\0')
        gethostname(buf, buf_bytes - 1);
}

/*
 * One kernel and one /dev/shm: containers on a host share the boot id, but have each a /dev/shm of
 * their own and, which matters, a /proc of their own: segments are memfds that a peer opens through
 * /proc/PID/fd. The mount stands for the container; nothing is kept in it.
 */
static dscomm_status_t host_id(const char *override, char id_out[DSC_HOST_ID_BYTES])
{
    struct {
        char boot_id[64];
        uint64_t shm_dev, shm_ino;
    } facts = { .shm_dev = 0 };
    struct stat shm;
    uint8_t hash[16];

    if (strlen(override) >= DSC_HOST_ID_BYTES)
        return dsc_fail(DSCOMM_ERR_ENV,
                        "DSCOMM_HOST_ID is \"%s\", which has more than %d characters", override,
                        DSC_HOST_ID_BYTES - 1);
    if (override[0] != '\0') {
        snprintf(id_out, DSC_HOST_ID_BYTES, "%s", override);
        return DSCOMM_OK;
    }
    read_boot_id(facts.boot_id, sizeof(facts.boot_id));
    if (stat("/dev/shm", &shm) == 0) {
        facts.shm_dev = shm.st_dev;
        facts.shm_ino = shm.st_ino;
    }
    crypto_generichash(hash, sizeof(hash), (const uint8_t *)&facts, sizeof(facts), NULL, 0);
    sodium_bin2hex(id_out, DSC_HOST_ID_BYTES, hash, sizeof(hash));
    return DSCOMM_OK;
}

/* The CPUs that this process may use. */
static void describe_cpus(uint8_t set_out[DSC_CPU_SET_BYTES])
{
    uint8_t mask[1024] = { 0 };

    if (sched_getaffinity(0, sizeof(mask), (cpu_set_t *)(void *)mask) != 0)
        memset(mask, 0xff, sizeof(mask));
    memset(set_out, 0, DSC_CPU_SET_BYTES);
    for (size_t i = 0; i < sizeof(mask); i++)
        set_out[i % DSC_CPU_SET_BYTES] |= mask[i];
}

dscomm_status_t dsc_peer_info_self(const struct dsc_env *env, struct dsc_peer_info *info_out)
{
    memset(info_out, 0, sizeof(*info_out));
    info_out->process_id = process_id();
    info_out->pid = (uint32_t)getpid();
    info_out->n_cpus = (uint32_t)dsc_cpu_allowed();
    describe_cpus(info_out->cpu_set);
    return host_id(env->host_id, info_out->host_id);
}

/* ---- waiting ---- */

/* Sleeps until the socket is ready, DSCOMM_OK, or the deadline, DSCOMM_ERR_TIMEOUT. */
static dscomm_status_t wait_ready(int fd, short events, uint64_t deadline_ns)
{
    struct pollfd pfd = { .fd = fd, .events = events };

    for (;;) {
        const uint64_t now = dsc_now_ns();

        if (now >= deadline_ns)
            return DSCOMM_ERR_TIMEOUT;

        const uint64_t ms = dsc_min_u64((deadline_ns - now + 999999u) / 1000000u, 60000);
        const int n = poll(&pfd, 1, (int)ms);

        if (n > 0)
            return DSCOMM_OK;
        if (n < 0 && errno != EINTR)
            return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "cannot wait for a socket");
    }
}

/* Moves all n bytes: DSCOMM_ERR_TIMEOUT or DSCOMM_ERR_PEER_LOST, without text. */
static dscomm_status_t move_all(int fd, bool sending, void *buf, size_t n, uint64_t deadline_ns)
{
    for (size_t done = 0; done < n;) {
        uint8_t *const p = (uint8_t *)buf + done;
        const ssize_t moved = sending ? send(fd, p, n - done, MSG_NOSIGNAL | MSG_DONTWAIT)
                                      : recv(fd, p, n - done, MSG_DONTWAIT);

        if (moved > 0) {
            done += (size_t)moved;
            continue;
        }
        if (moved < 0 && errno == EINTR)
            continue;
        if (moved == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
            return DSCOMM_ERR_PEER_LOST;
        DSC_TRY(wait_ready(fd, sending ? POLLOUT : POLLIN, deadline_ns));
    }
    return DSCOMM_OK;
}

/* ---- reaching the service ---- */

struct joiner {
    const struct dsc_bootstrap_params *params;
    const struct dsc_env *env;
    union dsc_addr root;
    bool is_rank0s; /* the service is another process's: rank 0's */
    char root_text[DSC_ADDR_TEXT_BYTES];
    uint8_t key[DSC_SECRET_BYTES];
    uint64_t deadline_ns;
    int fd;            /* to the service, -1: none */
    char trouble[256]; /* of the last attempt */
};

/* A loss that may end once the service, or the network, is up. */
static dscomm_status_t try_again(struct joiner *j, const char *text)
{
    snprintf(j->trouble, sizeof(j->trouble), "%s", text);
    if (j->fd >= 0)
        close(j->fd);
    j->fd = -1;
    return DSCOMM_IN_PROGRESS;
}

static bool is_passing(int err)
{
    static const int passing[] = { ECONNREFUSED,  ENETUNREACH,  EHOSTUNREACH, ETIMEDOUT,
                                   ECONNRESET,    ECONNABORTED, ENETDOWN,     EHOSTDOWN,
                                   EADDRNOTAVAIL, EAGAIN };

    for (size_t i = 0; i < DSC_ARRAY_LEN(passing); i++) {
        if (err == passing[i])
            return true;
    }
    return false;
}

/* With nobody listening, a connect to a port of the ephemeral range may meet itself. */
static bool is_self_connected(int fd)
{
    union dsc_addr own = { 0 }, other = { 0 };
    socklen_t own_len = sizeof(own), other_len = sizeof(other);

    return getsockname(fd, &own.any, &own_len) == 0 &&
           getpeername(fd, &other.any, &other_len) == 0 && own_len == other_len &&
           memcmp(&own, &other, own_len) == 0;
}

static dscomm_status_t connect_once(struct joiner *j)
{
    int err = 0;
    socklen_t len = sizeof(err);

    DSC_TRY(dsc_socket_create(j->root.any.sa_family, &j->fd));
    if (connect(j->fd, &j->root.any, dsc_addr_len(&j->root)) != 0)
        err = errno;
    if (err == EINPROGRESS || err == EINTR) { /* interrupted: it goes on by itself */
        const dscomm_status_t st = wait_ready(j->fd, POLLOUT, j->deadline_ns);

        if (st == DSCOMM_ERR_TIMEOUT)
            return try_again(j, "no answer to the connection request");
        DSC_TRY(st);
        getsockopt(j->fd, SOL_SOCKET, SO_ERROR, &err, &len);
    }
    if (err == 0)
        return is_self_connected(j->fd) ? try_again(j, strerror(ECONNREFUSED)) : DSCOMM_OK;
    if (is_passing(err))
        return try_again(j, strerror(err));
    errno = err;
    return dsc_fail_errno(DSCOMM_ERR_SYSTEM, "cannot connect to the rendezvous at %s",
                          j->root_text);
}

static dscomm_status_t finish_handshake(struct joiner *j, struct dsc_handshake *hs)
{
    dscomm_status_t st = dsc_handshake_step(hs);

    while (st == DSCOMM_IN_PROGRESS) {
        /* At the deadline the step says so. */
        st = wait_ready(dsc_handshake_fd(hs), dsc_handshake_events(hs), j->deadline_ns);
        if (st == DSCOMM_OK || st == DSCOMM_ERR_TIMEOUT)
            st = dsc_handshake_step(hs);
    }
    if (st == DSCOMM_ERR_PEER_LOST || st == DSCOMM_ERR_TIMEOUT)
        return try_again(j, dsc_handshake_error(hs));
    if (st < 0)
        return dsc_fail(st, "rendezvous: %s", dsc_handshake_error(hs));
    if (dsc_handshake_peer(hs)->purpose != DSC_LINK_RENDEZVOUS)
        return dsc_fail(DSCOMM_ERR_MISMATCH, "%s is a rank's listener, not a rendezvous",
                        j->root_text);
    j->fd = dsc_handshake_take_fd(hs);
    return DSCOMM_OK;
}

static dscomm_status_t prove_once(struct joiner *j)
{
    const struct dsc_hello mine = {
        .purpose = DSC_LINK_RENDEZVOUS,
        .rank = j->params->rank,
        .n_ranks = (uint32_t)j->params->n_ranks,
    };
    struct dsc_handshake *hs;

    DSC_TRY(dsc_handshake_create(j->fd, false, j->key, &mine, j->deadline_ns, &hs));
    j->fd = -1;
    const dscomm_status_t st = finish_handshake(j, hs);

    dsc_handshake_destroy(hs);
    return st;
}

/* A signal ends it early: the next attempt comes sooner. */
static void sleep_until(uint64_t wake_ns)
{
    const uint64_t now = dsc_now_ns();

    if (wake_ns > now)
        poll(NULL, 0, (int)((wake_ns - now + 999999u) / 1000000u));
}

/* Leaves a proved connection in j->fd. */
static dscomm_status_t reach_root(struct joiner *j)
{
    uint64_t pause_ns = RETRY_MIN_NS;

    do {
        dscomm_status_t st = connect_once(j);

        if (st == DSCOMM_OK)
            st = prove_once(j);
        if (st != DSCOMM_IN_PROGRESS)
            return st;
        sleep_until(dsc_min_u64(dsc_now_ns() + pause_ns, j->deadline_ns));
        pause_ns = dsc_min_u64(pause_ns * 2, RETRY_MAX_NS);
    } while (dsc_now_ns() < j->deadline_ns);
    if (j->is_rank0s)
        return dsc_fail(DSCOMM_ERR_TIMEOUT,
                        "rank 0's rendezvous at %s was not reached by rank %d, waited %.1f s: %s",
                        j->root_text, j->params->rank, j->params->timeout_ms * 1e-3, j->trouble);
    return dsc_fail(DSCOMM_ERR_TIMEOUT,
                    "rank %d did not reach the rendezvous at %s, waited %.1f s: %s",
                    j->params->rank, j->root_text, j->params->timeout_ms * 1e-3, j->trouble);
}

/* ---- record and answer ---- */

/* The address that reaches the service surely reaches the other ranks, or nothing does. */
static dscomm_status_t own_address(const struct joiner *j, union dsc_addr *addr_out)
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

static dscomm_status_t root_lost(const struct joiner *j, dscomm_status_t st)
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

static dscomm_status_t send_record(struct joiner *j, const struct dsc_peer_info *self)
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

    return root_lost(j, move_all(j->fd, true, wire, n, j->deadline_ns));
}

/* The service's text, word for word: it is the same on every rank. */
static dscomm_status_t take_error(struct joiner *j, const struct dsc_answer *answer, size_t n)
{
    char text[DSC_ANSWER_TEXT_MAX] = "";

    if (n >= sizeof(text))
        return dsc_fail(DSCOMM_ERR_CORRUPT, "answer of the rendezvous at %s has %zu bytes of text",
                        j->root_text, n);
    DSC_TRY(root_lost(j, move_all(j->fd, false, text, n, j->deadline_ns)));
    return dsc_fail(answer->status, "%s", text);
}

static dscomm_status_t take_table(struct joiner *j, struct dsc_peer_info *peers)
{
    uint8_t wire[DSC_PEER_WIRE_BYTES];

    for (int i = 0; i < j->params->n_ranks; i++) {
        DSC_TRY(root_lost(j, move_all(j->fd, false, wire, sizeof(wire), j->deadline_ns)));
        if (!dsc_peer_info_decode(wire, &peers[i]))
            return dsc_fail(DSCOMM_ERR_CORRUPT, "the rendezvous at %s sent no address of rank %d",
                            j->root_text, i);
    }
    return DSCOMM_OK;
}

static dscomm_status_t receive_answer(struct joiner *j, struct dsc_bootstrap *boot)
{
    const size_t n_table = (size_t)boot->n_ranks * DSC_PEER_WIRE_BYTES;
    uint8_t wire[DSC_FRAME_BYTES + DSC_ANSWER_PREFIX_BYTES];
    struct dsc_answer answer;

    DSC_TRY(root_lost(j, move_all(j->fd, false, wire, sizeof(wire), j->deadline_ns)));
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

static dscomm_status_t meet(struct joiner *j, struct dsc_bootstrap *boot)
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
    DSC_TRY(reach_root(j));
    if (!is_chosen)
        DSC_TRY(own_address(j, &own));
    DSC_TRY(dsc_netif_listen(&own, &boot->listen_fd));
    memcpy(self.addr, own.bytes, sizeof(self.addr));
    DSC_TRY(send_record(j, &self));
    DSC_TRY(receive_answer(j, boot));
    fix_scopes(boot, &own);
    return DSCOMM_OK;
}

static dscomm_status_t check_params(const struct dsc_bootstrap_params *params)
{
    if (params->n_ranks < 1 || params->n_ranks > DSC_MAX_RANKS)
        return dsc_fail(DSCOMM_ERR_INVALID, "n_ranks is %d, it must be 1 to %d", params->n_ranks,
                        DSC_MAX_RANKS);
    if (params->rank < 0 || params->rank >= params->n_ranks)
        return dsc_fail(DSCOMM_ERR_INVALID, "rank is %d, it must be 0 to %d", params->rank,
                        params->n_ranks - 1);
    if (params->timeout_ms < 1)
        return dsc_fail(DSCOMM_ERR_INVALID, "timeout_ms is %d, it must be at least 1",
                        params->timeout_ms);
    if (params->settings == NULL || strlen(params->settings) >= DSC_SETTINGS_MAX)
        return dsc_fail(DSCOMM_ERR_INVALID, "settings must be a text of at most %d characters",
                        DSC_SETTINGS_MAX - 1);
    return DSCOMM_OK;
}

/* ---- for the rest of the library ---- */

dscomm_status_t dsc_bootstrap_key(const uint8_t secret[DSC_SECRET_BYTES],
                                  uint8_t key_out[DSC_SECRET_BYTES])
{
    const struct dsc_env *env;

    DSC_TRY(dsc_env_get(&env));
    if (env->secret[0] == '\0')
        memcpy(key_out, secret, DSC_SECRET_BYTES);
    else
        crypto_generichash(key_out, DSC_SECRET_BYTES, (const uint8_t *)env->secret,
                           strlen(env->secret), NULL, 0);
    return DSCOMM_OK;
}

dscomm_status_t dscomm_unique_id_create(dscomm_unique_id_t *id_out)
{
    const struct dsc_env *env;
    struct dsc_rendezvous rv = { .is_rank0s = false }; /* any rank may make it */
    uint8_t key[DSC_SECRET_BYTES];

    if (id_out == NULL)
        return dsc_fail(DSCOMM_ERR_INVALID, "id_out is NULL");
    DSC_TRY(dsc_env_get(&env));
    if (sodium_init() < 0)
        return dsc_fail(DSCOMM_ERR_SYSTEM, "libsodium finds no source of random numbers");
    randombytes_buf(rv.secret, sizeof(rv.secret));
    DSC_TRY(dsc_bootstrap_key(rv.secret, key));
    DSC_TRY(dsc_netif_choose(env->socket_ifname, &rv.addr));
    DSC_TRY(dsc_root_start(&rv.addr, key, (int)env->timeout_ms));
    dsc_unique_id_encode(&rv, id_out);
    return DSCOMM_OK;
}

/* What rank 0 failed of is the other ranks' to know, unless the service said it. */
static void abandon(const struct dsc_rendezvous *rv, int rank, dscomm_status_t status)
{
    char text[DSC_ANSWER_TEXT_MAX];
    uint8_t key[DSC_SECRET_BYTES];

    if (rank != 0 || !rv->is_rank0s)
        return;
    snprintf(text, sizeof(text), "rank 0: %s", dscomm_last_error());
    if (dsc_bootstrap_key(rv->secret, key) == DSCOMM_OK)
        dsc_root_fail(dsc_addr_port(&rv->addr), key, status, text);
}

void dsc_bootstrap_abandon(const dscomm_unique_id_t *id, int rank, dscomm_status_t status)
{
    struct dsc_rendezvous rv;

    if (dsc_unique_id_decode(id, &rv) == DSCOMM_OK)
        abandon(&rv, rank, status);
}

static dscomm_status_t join(struct joiner *j, const struct dsc_rendezvous *rv,
                            struct dsc_bootstrap *boot)
{
    DSC_TRY(check_params(j->params));
    DSC_TRY(dsc_env_get(&j->env));
    if (sodium_init() < 0)
        return dsc_fail(DSCOMM_ERR_SYSTEM, "libsodium finds no source of random numbers");
    DSC_TRY(dsc_bootstrap_key(rv->secret, j->key));
    j->root = rv->addr;
    j->is_rank0s = rv->is_rank0s && j->params->rank != 0;
    dsc_addr_text(&j->root, j->root_text);
    j->deadline_ns = dsc_deadline_ns(j->params->timeout_ms);
    memcpy(boot->key, j->key, sizeof(boot->key));
    boot->peers = dsc_calloc(DSC_MEM_TRANSPORT, (size_t)boot->n_ranks, sizeof(*boot->peers));
    if (boot->peers == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "no memory for %d ranks", boot->n_ranks);
    return meet(j, boot);
}

dscomm_status_t dsc_bootstrap_join(const dscomm_unique_id_t *id,
                                   const struct dsc_bootstrap_params *params,
                                   struct dsc_bootstrap *boot_out)
{
    struct dsc_bootstrap boot = { .n_ranks = params->n_ranks,
                                  .rank = params->rank,
                                  .listen_fd = -1 };
    struct joiner j = { .params = params, .fd = -1 };
    struct dsc_rendezvous rv;

    DSC_TRY(dsc_unique_id_decode(id, &rv));
    const dscomm_status_t st = join(&j, &rv, &boot);

    if (st < 0)
        abandon(&rv, params->rank, st); /* before the service sees the end of the connection */
    if (j.fd >= 0)
        close(j.fd);
    if (st == DSCOMM_OK)
        *boot_out = boot;
    else
        dsc_bootstrap_fini(&boot);
    return st;
}

void dsc_bootstrap_fini(struct dsc_bootstrap *boot)
{
    if (boot->listen_fd >= 0)
        close(boot->listen_fd);
    boot->listen_fd = -1;
    dsc_free(boot->peers);
    boot->peers = NULL;
    sodium_memzero(boot->key, sizeof(boot->key));
    dsc_root_reap();
}
