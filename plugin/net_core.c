/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which network there is, and for how long. NCCL calls init() per communicator (v11 on) or once per
 * process (before), and may unload the library when the last communicator is gone; then it must
 * leave nothing behind, threads least of all.
 */
#include <stdio.h>
#include <string.h>

#include "net.h"
#include "tuner_plugin.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(const struct nccl_net_v12 *) chosen;
static int n_users; /* contexts, under the lock */

static char tuner_text[128]; /* written under the lock, before `chosen` */
static _Atomic bool tuner_told;

const char *net_tuner_text(void)
{
    return tuner_text;
}

void net_tuner_compare(const char *peer_text, const char *peer)
{
    if (strncmp(peer_text, tuner_text, strcspn(tuner_text, " ") + 1) == 0 ||
        atomic_exchange(&tuner_told, true))
        return;
    net_warn(NET_NAME ": tuner files differ: %s here, %s at %s; ranks may choose differently and "
                      "hang: use the same NCCL_TUNER_CONFIG_FILE and DSCOMM_PROFILE on all hosts",
             tuner_text, peer_text, peer);
}

static void make_tuner_text(void)
{
    struct tuner_config config;

    tuner_config_read(&config);
    snprintf(tuner_text, sizeof(tuner_text), "%016llx %s", (unsigned long long)config.hash,
             config.names);
    tuner_config_free(&config);
}

/* Nothing is wrong with LL128 over this net as far as tests on CPUs go; no GPU has polled it yet.
 */
static void warn_of_ll128(void)
{
    const char *const protocols = dsc_env_launcher("NCCL_PROTO");

    if (protocols != NULL && protocols[0] != '^' && strcasestr(protocols, "LL128") != NULL)
        net_warn(NET_NAME
                 ": NCCL_PROTO asks for LL128, which has not been tried on a GPU over this "
                 "network");
}

const struct nccl_net_v12 *net_chosen(void)
{
    return atomic_load_explicit(&chosen, memory_order_acquire);
}

bool net_is_wrapped(const struct dsc_env *env)
{
    return strcmp(env->net_compress, "off") != 0 || env->net_inner[0] != '\0' ||
           env->net_meter[0] != '\0';
}

nccl_result_t net_carrier(const struct dsc_env *env, const struct nccl_net_v12 **net_out)
{
    nccl_result_t result = NCCL_SUCCESS;
    int n = 0;

    if (strcmp(env->net, "auto") == 0)
        result = net_verbs_count(&n);
    *net_out = n > 0 || strcmp(env->net, "verbs") == 0 ? &net_verbs : &net_tcp;
    return result;
}

/* "eth0 25000 Mbit/s, eth1 25000 Mbit/s" */
static void list_devices(const struct nccl_net_v12 *net, char *text, size_t bytes)
{
    int n_devices = 0;
    size_t used = 0;

    text[0] = '\0';
    (void)net->devices(&n_devices);
    for (int i = 0; i < n_devices; i++) {
        struct nccl_props_v12 props;
        int n;

        if (net->get_properties(i, &props) != NCCL_SUCCESS)
            return;
        n = snprintf(text + used, bytes - used, "%s%s %d Mbit/s", i > 0 ? ", " : "", props.name,
                     props.speed);
        if (n < 0 || (size_t)n >= bytes - used)
            return;
        used += (size_t)n;
    }
}

/* The one line of an init(). */
static void say_what_is_used(const struct nccl_net_v12 *net, const struct nccl_net_v12 *carrier,
                             const struct dsc_env *env)
{
    char text[640], sockets[48] = "";

    list_devices(net, text, sizeof(text));
    if (carrier == &net_tcp)
        snprintf(sockets, sizeof(sockets), ", %d socket%s each", (int)env->socket_nsocks,
                 env->socket_nsocks == 1 ? "" : "s");
    net_info(NCCL_LOG_INIT | NCCL_LOG_NET, "NET/" NET_NAME " %s: %s over %s%s, compression %s",
             dscomm_version(), env->net_inner[0] != '\0' ? env->net_inner : carrier->name, text,
             sockets, env->net_compress);
}

static nccl_result_t start(struct nccl_comm_config *config, nccl_logger_t *logger)
{
    const struct nccl_net_v12 *net, *carrier = NULL; /* NULL: another plugin */
    const struct dsc_env *env;
    nccl_result_t result = NCCL_SUCCESS;
    void *unused = NULL;

    if (dsc_env_get(&env) < 0)
        return NCCL_INVALID_USAGE;
    if (env->net_inner[0] == '\0')
        result = net_carrier(env, &carrier);
    if (result != NCCL_SUCCESS)
        return result;
    net = net_is_wrapped(env) ? &net_wrap : carrier;
    result = net->init(&unused, 0, config, logger, NULL);
    if (result != NCCL_SUCCESS)
        return result;
    if (net_chosen() == NULL) {
        make_tuner_text();
        warn_of_ll128();
    }
    atomic_store_explicit(&chosen, net, memory_order_release);
    say_what_is_used(net, carrier, env);
    return NCCL_SUCCESS;
}

nccl_result_t net_init(struct net_ctx **ctx, const struct nccl_comm_config *config,
                       nccl_logger_t *logger)
{
    struct nccl_comm_config wishes = { config != NULL ? config->traffic_class : NCCL_UNDEFINED };
    struct net_ctx *made = NULL;
    nccl_result_t result;

    if (ctx != NULL)
        *ctx = NULL;
    pthread_mutex_lock(&lock);
    net_log_set(logger);
    result = start(&wishes, logger);
    if (result == NCCL_SUCCESS && ctx != NULL) {
        made = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*made));
        result = made != NULL ? NCCL_SUCCESS : NCCL_SYSTEM_ERROR;
    }
    if (made != NULL) {
        made->traffic_class = wishes.traffic_class;
        *ctx = made;
        n_users++;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

nccl_result_t net_finalize(struct net_ctx *ctx)
{
    pthread_mutex_lock(&lock);
    if (ctx != NULL && --n_users == 0)
        (void)net_chosen()->finalize(NULL);
    pthread_mutex_unlock(&lock);
    dsc_free(ctx);
    return NCCL_SUCCESS;
}

DSC_AT_UNLOAD static void unload(void)
{
    if (net_chosen() != NULL)
        (void)net_chosen()->finalize(NULL);
    dsc_env_unload();
}
