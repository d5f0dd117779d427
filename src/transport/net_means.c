/* SPDX-License-Identifier: Apache-2.0 */
/* The transports whose two sides prepare something together. */
#include "transport/net_means.h"

#include <stdio.h>
#include <string.h>

#include "transport/nccl_pair.h"
#include "transport/verbs_pair.h"

/* ---- shm: the connector creates a segment, its hello has the name ---- */

static size_t segment_bytes(const struct dsc_net *net)
{
    return dsc_shm_bytes(net->params.n_slots, net->params.slot_bytes);
}

static const char *shm_offer(struct dsc_net *net, int peer, struct dsc_hello *hello, char *text)
{
    struct dsc_segment *const segment = &net->peers[peer].setup.segment;
    const char *const why = dsc_segment_create(segment, segment_bytes(net), text);

    snprintf(hello->detail, sizeof(hello->detail), "%s", segment->name);
    return why;
}

static const char *shm_accept(struct dsc_net *net, int peer, const struct dsc_hello *hello,
                              struct dsc_hello *reply, char *text)
{
    struct dsc_segment *const segment = &net->peers[peer].setup.segment;
    const char *const why = dsc_segment_attach(segment, hello->detail, segment_bytes(net), text);

    (void)reply;
    if (why == NULL)
        dsc_shm_format(segment->memory, net->params.n_slots, net->params.slot_bytes);
    return why;
}

static const char *shm_join(struct dsc_net *net, int peer, const struct dsc_hello *reply,
                            char *text)
{
    (void)reply;
    return dsc_segment_map(&net->peers[peer].setup.segment, segment_bytes(net), text);
}

/* ---- verbs: each side describes its queue pair ---- */

static const char *verbs_offer(struct dsc_net *net, int peer, struct dsc_hello *hello, char *text)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    const char *const why = dsc_verbs_prepare(net, peer, &setup->verbs, text);

    if (why == NULL)
        dsc_verbs_describe(setup->verbs, hello->detail);
    return why;
}

static const char *verbs_accept(struct dsc_net *net, int peer, const struct dsc_hello *hello,
                                struct dsc_hello *reply, char *text)
{
    const char *why = verbs_offer(net, peer, reply, text);

    if (why == NULL)
        why = dsc_verbs_join(net->peers[peer].setup.verbs, hello->detail, text);
    return why;
}

static const char *verbs_join(struct dsc_net *net, int peer, const struct dsc_hello *reply,
                              char *text)
{
    return dsc_verbs_join(net->peers[peer].setup.verbs, reply->detail, text);
}

/* ---- nccl_net: each side tells the handle that its plugin listens with ---- */

static const char *nccl_offer(struct dsc_net *net, int peer, struct dsc_hello *hello, char *text)
{
    struct dsc_setup *const setup = &net->peers[peer].setup;
    const char *const why = dsc_nccl_prepare(net, peer, &setup->nccl, text);

    if (why == NULL)
        memcpy(hello->detail, dsc_nccl_handle(setup->nccl), NCCL_HANDLE_BYTES);
    return why;
}

static const char *nccl_accept(struct dsc_net *net, int peer, const struct dsc_hello *hello,
                               struct dsc_hello *reply, char *text)
{
    const char *const why = nccl_offer(net, peer, reply, text);

    if (why == NULL)
        dsc_nccl_join(net->peers[peer].setup.nccl, hello->detail);
    return why;
}

static const char *nccl_join(struct dsc_net *net, int peer, const struct dsc_hello *reply,
                             char *text)
{
    (void)text;
    dsc_nccl_join(net->peers[peer].setup.nccl, reply->detail);
    return NULL;
}

/* ---- the list ---- */

static const struct dsc_means all_means[] = {
    { &dsc_transport_shm, "shared memory", DSCOMM_ERR_LIMIT, shm_offer, shm_accept, shm_join },
    { &dsc_transport_verbs, "RDMA", DSCOMM_ERR_LIMIT, verbs_offer, verbs_accept, verbs_join },
    { &dsc_transport_nccl_net, "net plugin", DSCOMM_ERR_SYSTEM, nccl_offer, nccl_accept,
      nccl_join },
};

const struct dsc_means *dsc_means_of(const struct dsc_transport_ops *ops)
{
    for (size_t i = 0; i < DSC_ARRAY_LEN(all_means); i++)
        if (all_means[i].ops == ops)
            return &all_means[i];
    return NULL;
}

void dsc_means_drop(struct dsc_setup *setup)
{
    dsc_segment_fini(&setup->segment);
    dsc_verbs_discard(setup->verbs);
    setup->verbs = NULL;
    dsc_nccl_discard(setup->nccl);
    setup->nccl = NULL;
}
