/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In place of the other verbs files where a build has no infiniband/verbs.h: this rank has no RDMA
 * port, so it reaches nobody and nothing below the probe is ever asked to do anything.
 */
#include "transport/verbs_pair.h"

#define WHY "this library was built without infiniband/verbs.h"

dscomm_status_t dsc_verbs_probe(enum dsc_rdma_wish wish, uint64_t *key_out)
{
    *key_out = 0;
    if (wish == DSC_RDMA_MUST)
        return dsc_fail(DSCOMM_ERR_UNSUPPORTED, "transport verbs: " WHY);
    return DSCOMM_OK;
}

const char *dsc_verbs_prepare(struct dsc_net *net, int peer, struct verbs_conn **conn_out,
                              char text[DSC_VERBS_TEXT_BYTES])
{
    (void)net, (void)peer, (void)conn_out, (void)text;
    return WHY;
}

void dsc_verbs_describe(const struct verbs_conn *conn, char detail[DSC_VERBS_DETAIL_BYTES])
{
    (void)conn, (void)detail;
}

const char *dsc_verbs_join(struct verbs_conn *conn, const char *detail,
                           char text[DSC_VERBS_TEXT_BYTES])
{
    (void)conn, (void)detail, (void)text;
    return WHY;
}

void dsc_verbs_discard(struct verbs_conn *conn)
{
    (void)conn;
}

void dsc_verbs_device_close(struct dsc_verbs_device *device)
{
    (void)device;
}

dscomm_status_t dsc_verbs_open(struct dsc_net *net, int peer, struct dsc_conn **conn_out)
{
    (void)net, (void)peer, (void)conn_out;
    return dsc_fail(DSCOMM_ERR_UNSUPPORTED, WHY);
}

static bool reaches(const struct dsc_peer_info *self, const struct dsc_peer_info *peer)
{
    (void)self, (void)peer;
    return false;
}

const struct dsc_transport_ops dsc_transport_verbs = {
    .name = "verbs",
    .preference = 15,
    .reaches = reaches,
};
