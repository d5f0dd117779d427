/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads a plugin as NCCL does: the newest table that it has, init(), devices(), properties. One
 * context serves all endpoints of the process, as those of split communicators share one in NCCL.
 */
#include "transport/nccl_plugin.h"

#include <ctype.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DEVICE_NAME_BYTES 48

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int n_holders;                 /* under the lock, as what follows */
static struct dsc_nccl_plugin loaded; /* constant while it is held */
static char loaded_path[PATH_MAX];

static _Thread_local char last_warning[128];
static _Thread_local bool hushed;

/* ---- what a plugin says ---- */

__attribute__((format(printf, 5, 6))) static void
plugin_log(int level, unsigned long subsystems, const char *file, int line, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    (void)subsystems, (void)file, (void)line;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (level <= NCCL_LOG_WARN) {
        snprintf(last_warning, sizeof(last_warning), "%.127s", text);
        dsc_log(hushed ? DSCOMM_LOG_DEBUG : DSCOMM_LOG_WARN, "NET", "%s", text);
    } else if (level == NCCL_LOG_INFO) {
        dsc_log_info(NET, "%s", text);
    } else {
        dsc_log_debug(NET, "%s", text);
    }
}

void dsc_nccl_hush(bool hush)
{
    hushed = hush;
}

/* A plugin may report to it without asking whether there is a profiler. */
static nccl_result_t no_profiler(void **event, int type, void *parent, int64_t plugin, void *data)
{
    (void)event, (void)type, (void)parent, (void)plugin, (void)data;
    return NCCL_SUCCESS;
}

const char *dsc_nccl_result_text(nccl_result_t result, char text[DSC_NCCL_RESULT_BYTES])
{
    static const char *const names[] = { "success",        "CUDA error",       "system error",
                                         "internal error", "invalid argument", "invalid usage",
                                         "remote error",   "in progress" };
    const bool known = result >= 0 && result < (int)DSC_ARRAY_LEN(names);

    snprintf(text, DSC_NCCL_RESULT_BYTES, "%s (%d)%s%s", known ? names[result] : "error", result,
             last_warning[0] != '\0' ? "; its last warning: " : "", last_warning);
    last_warning[0] = '\0';
    return text;
}

dscomm_status_t dsc_nccl_status(nccl_result_t result)
{
    return result == NCCL_REMOTE_ERROR ? DSCOMM_ERR_PEER_LOST : DSCOMM_ERR_SYSTEM;
}

/* ---- devices ---- */

static const char *text_or(const char *text, const char *other)
{
    return text != NULL && text[0] != '\0' ? text : other;
}

static bool is_usable(const struct nccl_props_v12 *props)
{
    return (props->ptr_support & NCCL_PTR_HOST) != 0 && props->device_type == 0;
}

static void list_name(char *list, size_t bytes, const char *name)
{
    const size_t n = strlen(list);

    snprintf(list + n, bytes - n, " %s", name);
}

/* The fastest one that takes host memory, or the one that is asked for. */
static dscomm_status_t choose_device(const char *wanted, struct dsc_nccl_plugin *plugin)
{
    struct nccl_props_v12 props, best = { .name = NULL };
    char names[256] = "", result_text[DSC_NCCL_RESULT_BYTES];
    int n = 0;
    nccl_result_t result = plugin->net->devices(&n);

    plugin->device = -1;
    for (int dev = 0; result == NCCL_SUCCESS && dev < n; dev++) {
        memset(&props, 0, sizeof(props));
        result = plugin->net->get_properties(dev, &props);
        if (result != NCCL_SUCCESS || !is_usable(&props))
            continue;
        list_name(names, sizeof(names), text_or(props.name, "?"));
        if (wanted[0] != '\0' ? strcmp(text_or(props.name, "?"), wanted) == 0
                              : plugin->device < 0 || props.speed > best.speed) {
            plugin->device = dev;
            best = props;
        }
    }
    if (result != NCCL_SUCCESS)
        return dsc_fail(DSCOMM_ERR_SYSTEM, "net plugin %s cannot tell its devices: %s",
                        plugin->name, dsc_nccl_result_text(result, result_text));
    if (plugin->device < 0 && wanted[0] != '\0' && names[0] != '\0')
        return dsc_fail(
            DSCOMM_ERR_ENV,
            "DSCOMM_NET_DEVICE=\"%.40s\" is no device of net plugin %s, must be one of%s", wanted,
            plugin->name, names);
    if (plugin->device < 0)
        return dsc_fail(DSCOMM_ERR_UNSUPPORTED,
                        "net plugin %s has no device for host memory, %d in all", plugin->name, n);
    plugin->max_bytes = dsc_min_size(best.max_p2p_bytes, INT_MAX); /* test() counts in ints */
    snprintf(plugin->text, sizeof(plugin->text), "net plugin %s v%d on %.*s", plugin->name,
             dsc_nccl_version(), DEVICE_NAME_BYTES, text_or(best.name, "?"));
    return DSCOMM_OK;
}

/* ---- life ---- */

/* Ranks compare names in a list of words. */
static void make_word(char word[DSC_NCCL_NAME_BYTES], const char *name)
{
    snprintf(word, DSC_NCCL_NAME_BYTES, "%s", text_or(name, "?"));
    for (char *c = word; *c != '\0'; c++)
        if (!isgraph((unsigned char)*c))
            *c = '_';
}

static dscomm_status_t start(const struct dsc_env *env, struct dsc_nccl_plugin *plugin)
{
    struct nccl_comm_config config = { NCCL_UNDEFINED };
    char text[512], result_text[DSC_NCCL_RESULT_BYTES];

    *plugin = (struct dsc_nccl_plugin){ .device = -1 };
    plugin->net = dsc_nccl_load(env->net_plugin, 0, text, sizeof(text));
    if (plugin->net == NULL)
        return dsc_fail(DSCOMM_ERR_ENV, "DSCOMM_NET_PLUGIN=\"%.200s\" is no net plugin: %s",
                        env->net_plugin, text);
    make_word(plugin->name, plugin->net->name);
    last_warning[0] = '\0';
    const nccl_result_t result =
        plugin->net->init(&plugin->ctx, 1, &config, plugin_log, no_profiler);

    if (result != NCCL_SUCCESS) {
        dsc_nccl_unload();
        return dsc_fail(DSCOMM_ERR_SYSTEM, "net plugin %s of %.200s does not start: %s",
                        plugin->name, env->net_plugin, dsc_nccl_result_text(result, result_text));
    }
    const dscomm_status_t st = choose_device(env->net_device, plugin);

    if (st < 0) {
        (void)plugin->net->finalize(plugin->ctx);
        dsc_nccl_unload();
        return st;
    }
    dsc_log_info(NET, "%s, from %s", plugin->text, env->net_plugin);
    return DSCOMM_OK;
}

/* Under the lock. */
static dscomm_status_t hold(const struct dsc_env *env)
{
    if (env->net_plugin[0] == '\0')
        return dsc_fail(DSCOMM_ERR_ENV, "DSCOMM_NET_PLUGIN=\"\", must be the file of a net plugin "
                                        "for NCCL, as the transport is nccl_net");
    if (n_holders == 0) {
        DSC_TRY(start(env, &loaded));
        snprintf(loaded_path, sizeof(loaded_path), "%s", env->net_plugin);
    } else if (strcmp(loaded_path, env->net_plugin) != 0) {
        return dsc_fail(DSCOMM_ERR_ENV,
                        "DSCOMM_NET_PLUGIN=\"%.200s\", but this process uses %.200s",
                        env->net_plugin, loaded_path);
    }
    n_holders++;
    return DSCOMM_OK;
}

dscomm_status_t dsc_nccl_plugin_get(const struct dsc_nccl_plugin **plugin_out)
{
    const struct dsc_env *env;

    DSC_TRY(dsc_env_get(&env));
    pthread_mutex_lock(&lock);
    const dscomm_status_t st = hold(env);

    pthread_mutex_unlock(&lock);
    if (st == DSCOMM_OK)
        *plugin_out = &loaded;
    return st;
}

dscomm_status_t dsc_nccl_net_hold(char name_out[DSC_NCCL_NAME_BYTES])
{
    const struct dsc_nccl_plugin *plugin;

    DSC_TRY(dsc_nccl_plugin_get(&plugin));
    memcpy(name_out, plugin->name, sizeof(plugin->name));
    return DSCOMM_OK;
}

void dsc_nccl_net_drop(void)
{
    char text[DSC_NCCL_RESULT_BYTES];

    pthread_mutex_lock(&lock);
    if (--n_holders == 0) {
        const nccl_result_t result = loaded.net->finalize(loaded.ctx);

        if (result != NCCL_SUCCESS)
            dsc_log_warn(NET, "%s does not end well: %s", loaded.text,
                         dsc_nccl_result_text(result, text));
        dsc_nccl_unload();
    }
    pthread_mutex_unlock(&lock);
}
