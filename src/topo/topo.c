/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices, links and notices of a topology, and the public queries. Arrays grow by doubling up to
 * their limits; indices never change, so readers and callers keep those.
 */
#include "topo/topo_internal.h"

#include <stdarg.h>
#include <string.h>

static dscomm_status_t check_config(const dscomm_topo_config_t *config)
{
    if (config->struct_bytes != sizeof(*config))
        return dsc_fail(DSCOMM_ERR_INVALID, "topology config struct_bytes %zu, must be %zu",
                        config->struct_bytes, sizeof(*config));
    if (config->rates != DSCOMM_RATES_PHYSICAL && config->rates != DSCOMM_RATES_NCCL)
        return dsc_fail(DSCOMM_ERR_INVALID, "topology rates %d, allowed: 0 physical, 1 NCCL's",
                        (int)config->rates);
    if (config->sm != 0 && (config->sm < 30 || config->sm > 999))
        return dsc_fail(DSCOMM_ERR_INVALID, "topology sm %d, allowed: 0 or 30 to 999", config->sm);
    return DSCOMM_OK;
}

dscomm_status_t dsc_topo_create(const dscomm_topo_config_t *config, dscomm_topo_t **topo_out)
{
    static const dscomm_topo_config_t defaults = DSCOMM_TOPO_CONFIG_INIT;
    const dscomm_topo_config_t *const used = config != NULL ? config : &defaults;
    dscomm_topo_t *topo;

    DSC_TRY(check_config(used));
    topo = dsc_calloc(DSC_MEM_TOPO, 1, sizeof(*topo));
    if (topo == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "topology");
    topo->config = *used;
    *topo_out = topo;
    return DSCOMM_OK;
}

void dscomm_topo_destroy(dscomm_topo_t *topo)
{
    if (topo == NULL)
        return;
    dsc_free(topo->devices);
    dsc_free(topo->links);
    dsc_free(topo->ends);
    dsc_free(topo->p2p);
    dsc_free(topo);
}

/* ---- growing ---- */

/* Room for one more entry of an array of n. */
static dscomm_status_t make_room(void **array, size_t n, size_t *cap, size_t entry_bytes,
                                 size_t n_max, const char *what)
{
    const size_t cap_new = dsc_min_size(dsc_max_size(2 * *cap, 64), n_max);
    void *grown;

    if (n < *cap)
        return DSCOMM_OK;
    if (n >= n_max)
        return dsc_fail(DSCOMM_ERR_LIMIT, "topology has more than %zu %s", n_max, what);
    grown = dsc_calloc(DSC_MEM_TOPO, cap_new, entry_bytes);
    if (grown == NULL)
        return dsc_fail(DSCOMM_ERR_NO_MEMORY, "%zu %s of a topology", cap_new, what);
    if (n > 0)
        memcpy(grown, *array, n * entry_bytes);
    dsc_free(*array);
    *array = grown;
    *cap = cap_new;
    return DSCOMM_OK;
}

dscomm_status_t dsc_topo_device_add(dscomm_topo_t *topo, dscomm_device_kind_t kind, int parent,
                                    int *device_out)
{
    void *array = topo->devices;
    const dscomm_status_t st = make_room(&array, topo->n_devices, &topo->cap_devices,
                                         sizeof(topo->devices[0]), DSC_TOPO_DEVICES_MAX, "devices");

    topo->devices = array;
    DSC_TRY(st);

    struct dsc_topo_device *const dev = &topo->devices[topo->n_devices];

    DSC_ASSERT(parent >= -1 && parent < (int)topo->n_devices);
    memset(dev, 0, sizeof(*dev));
    dev->pub.struct_bytes = sizeof(dev->pub);
    dev->pub.kind = kind;
    dev->pub.parent = parent;
    dev->pub.numa = parent >= 0 ? topo->devices[parent].pub.numa : DSCOMM_TOPO_UNKNOWN;
    dev->pub.dev = dev->pub.rank = dev->pub.sm = dev->pub.fabric_links = DSCOMM_TOPO_UNKNOWN;
    dev->pub.card = -1;
    dev->n_parts = 1;
    *device_out = (int)topo->n_devices++;
    return DSCOMM_OK;
}

dscomm_status_t dsc_topo_link_add(dscomm_topo_t *topo, int a, int b, dscomm_link_kind_t kind,
                                  int count, dscomm_topo_link_t **link_out)
{
    void *array = topo->links;
    const dscomm_status_t st = make_room(&array, topo->n_links, &topo->cap_links,
                                         sizeof(topo->links[0]), DSC_TOPO_LINKS_MAX, "links");

    topo->links = array;
    DSC_TRY(st);
    *link_out = &topo->links[topo->n_links++];
    **link_out = (dscomm_topo_link_t){
        .struct_bytes = sizeof(**link_out), .a = a, .b = b, .kind = kind, .count = count
    };
    return DSCOMM_OK;
}

dscomm_status_t dsc_topo_end_add(dscomm_topo_t *topo, const struct dsc_topo_end *end)
{
    void *array = topo->ends;
    const dscomm_status_t st =
        make_room(&array, topo->n_ends, &topo->cap_ends, sizeof(topo->ends[0]), DSC_TOPO_LINKS_MAX,
                  "ends of links");

    topo->ends = array;
    DSC_TRY(st);
    topo->ends[topo->n_ends++] = *end;
    return DSCOMM_OK;
}

dscomm_status_t dsc_topo_p2p_add(dscomm_topo_t *topo, int a, int b, bool allowed)
{
    void *array = topo->p2p;
    const dscomm_status_t st = make_room(&array, topo->n_p2p, &topo->cap_p2p, sizeof(topo->p2p[0]),
                                         DSC_TOPO_LINKS_MAX, "entries of peer access");

    topo->p2p = array;
    DSC_TRY(st);
    topo->p2p[topo->n_p2p++] = (struct dsc_topo_p2p){ a, b, allowed };
    return DSCOMM_OK;
}

void dsc_topo_note(dscomm_topo_t *topo, const char *key, const char *fmt, ...)
{
    const uint64_t hash = dsc_hash_text(key);
    char text[DSC_TOPO_NOTICE_BYTES];
    va_list args;

    for (int i = 0; i < topo->n_notices; i++)
        if (topo->notice_keys[i] == hash)
            return;
    if (topo->n_notices == DSC_TOPO_NOTICES_MAX)
        return;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    dsc_topo_copy(topo->notices[topo->n_notices], sizeof(topo->notices[0]), text, strlen(text));
    topo->notice_keys[topo->n_notices] = hash;
    if (!topo->is_quiet)
        dsc_log_warn(TOPO, "%s", topo->notices[topo->n_notices]);
    topo->n_notices++;
}

void dsc_topo_forget(dscomm_topo_t *topo, const char *key)
{
    const uint64_t hash = dsc_hash_text(key);
    int n_kept = 0;

    for (int i = 0; i < topo->n_notices; i++) {
        if (topo->notice_keys[i] == hash)
            continue;
        memmove(topo->notices[n_kept], topo->notices[i], sizeof(topo->notices[0]));
        topo->notice_keys[n_kept++] = topo->notice_keys[i];
    }
    topo->n_notices = n_kept;
}

/* ---- public queries ---- */

dscomm_rate_kind_t dscomm_topo_rate_kind(const dscomm_topo_t *topo)
{
    return topo->config.rates;
}

int dscomm_topo_n_devices(const dscomm_topo_t *topo)
{
    return (int)topo->n_devices;
}

int dscomm_topo_n_links(const dscomm_topo_t *topo)
{
    return (int)topo->n_links;
}

int dscomm_topo_n_notices(const dscomm_topo_t *topo)
{
    return topo->n_notices;
}

const char *dscomm_topo_notice(const dscomm_topo_t *topo, int notice)
{
    return notice >= 0 && notice < topo->n_notices ? topo->notices[notice] : NULL;
}

dscomm_status_t dscomm_topo_device(const dscomm_topo_t *topo, int device,
                                   dscomm_topo_device_t *device_out)
{
    if (device < 0 || (size_t)device >= topo->n_devices)
        return dsc_fail(DSCOMM_ERR_INVALID, "device %d, the topology has %zu", device,
                        topo->n_devices);
    if (device_out->struct_bytes != sizeof(*device_out))
        return dsc_fail(DSCOMM_ERR_INVALID, "device struct_bytes %zu, must be %zu",
                        device_out->struct_bytes, sizeof(*device_out));
    *device_out = topo->devices[device].pub;
    return DSCOMM_OK;
}

dscomm_status_t dscomm_topo_link(const dscomm_topo_t *topo, int link, dscomm_topo_link_t *link_out)
{
    if (link < 0 || (size_t)link >= topo->n_links)
        return dsc_fail(DSCOMM_ERR_INVALID, "link %d, the topology has %zu", link, topo->n_links);
    if (link_out->struct_bytes != sizeof(*link_out))
        return dsc_fail(DSCOMM_ERR_INVALID, "link struct_bytes %zu, must be %zu",
                        link_out->struct_bytes, sizeof(*link_out));
    *link_out = topo->links[link];
    return DSCOMM_OK;
}

int dscomm_rate_best(const dscomm_rate_t *rate, uint64_t *bytes_per_s_out)
{
    if (!dsc_topo_is_known(rate))
        return 0;
    *bytes_per_s_out = (rate->marks & DSCOMM_RATE_MEASURED) != 0 ? rate->measured : rate->declared;
    return 1;
}
