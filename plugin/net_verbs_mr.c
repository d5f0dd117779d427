/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered memory. To pin pages takes long, and NCCL registers the same buffer for many
 * connections, so a device keeps what is registered, by pages, with the number of its users. With
 * the last one it goes: what lies at an address later is other memory.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "net_verbs.h"

#define ACCESS_HOST (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
#define ACCESS_GPU (ACCESS_HOST | IBV_ACCESS_REMOTE_READ) /* it is read to flush it */

static struct verbs_region *find(const struct verbs_device *device, uintptr_t begin, uintptr_t end,
                                 bool is_gpu)
{
    struct verbs_region *region = device->regions;

    while (region != NULL &&
           (region->begin > begin || region->end < end || region->is_gpu != is_gpu))
        region = region->next;
    return region;
}

static void say_failure(const struct verbs_device *device, size_t bytes, int error)
{
    char what[64], text[DSC_VERBS_TEXT_BYTES];

    snprintf(what, sizeof(what), "cannot register %zu KiB", (bytes + 1023) / 1024);
    dsc_verbs_say_limit(text, what, device->port.name, RLIMIT_MEMLOCK, error, "");
    net_warn(NET_NAME ": %s", text);
}

/* The caller holds the lock. */
static struct verbs_region *add(struct verbs_device *device, struct verbs_region wanted, int fd,
                                uint64_t offset)
{
    const size_t bytes = wanted.end - wanted.begin;
    const int access = wanted.is_gpu ? ACCESS_GPU : ACCESS_HOST;
    struct verbs_region *const region = dsc_calloc(DSC_MEM_TRANSPORT, 1, sizeof(*region));

    if (region == NULL)
        return NULL;
    *region = wanted;
    errno = 0;
    if (fd < 0)
        /* NOLINTNEXTLINE(performance-no-int-to-ptr): the page of the caller's pointer */
        region->mr = device->verbs->reg_mr(device->pd, (void *)region->begin, bytes, access);
    else if (device->verbs->reg_dmabuf_mr != NULL)
        region->mr =
            device->verbs->reg_dmabuf_mr(device->pd, offset, bytes, region->begin, fd, access);
    if (region->mr == NULL) {
        say_failure(device, bytes, errno);
        dsc_free(region);
        return NULL;
    }
    region->next = device->regions;
    device->regions = region;
    return region;
}

struct verbs_region *verbs_region_take(struct verbs_device *device, void *data, size_t bytes,
                                       bool is_gpu, int fd, uint64_t offset)
{
    const uintptr_t page = fd < 0 ? (uintptr_t)sysconf(_SC_PAGESIZE) : 1; /* a dma-buf: as it is */
    const uintptr_t at = (uintptr_t)data;
    const uintptr_t begin = at / page * page;
    const uintptr_t end = (at + dsc_max_size(bytes, 1) + page - 1) / page * page;
    struct verbs_region *region;

    pthread_mutex_lock(&device->lock);
    region = find(device, begin, end, is_gpu);
    if (region == NULL)
        region = add(device, (struct verbs_region){ .begin = begin, .end = end, .is_gpu = is_gpu },
                     fd, offset);
    if (region != NULL)
        region->users++;
    pthread_mutex_unlock(&device->lock);
    return region;
}

static void drop(struct verbs_device *device, struct verbs_region *region)
{
    struct verbs_region **at = &device->regions;

    while (*at != region)
        at = &(*at)->next;
    *at = region->next;
    (void)device->verbs->dereg_mr(region->mr);
    dsc_free(region);
}

void verbs_region_give(struct verbs_device *device, struct verbs_region *region)
{
    pthread_mutex_lock(&device->lock);
    if (--region->users == 0)
        drop(device, region);
    pthread_mutex_unlock(&device->lock);
}

void verbs_regions_drop(struct verbs_device *device)
{
    while (device->regions != NULL)
        drop(device, device->regions);
}
