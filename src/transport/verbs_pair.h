/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport. How an RDMA connection comes to be, for net_setup.c: prepared by the
 * connector, described in its hello; prepared, joined and described by the acceptor; joined by the
 * connector. Each returns NULL, or why it cannot; the caller judges: auto falls back to tcp.
 */
#ifndef DSC_VERBS_PAIR_H
#define DSC_VERBS_PAIR_H

#include "transport/net_internal.h"

#define DSC_VERBS_DETAIL_BYTES 128 /* dsc_hello.detail */

struct verbs_conn;

const char *dsc_verbs_prepare(struct dsc_net *net, int peer, struct verbs_conn **conn_out,
                              char text[DSC_VERBS_TEXT_BYTES]);
void dsc_verbs_describe(const struct verbs_conn *conn, char detail[DSC_VERBS_DETAIL_BYTES]);
const char *dsc_verbs_join(struct verbs_conn *conn, const char *detail,
                           char text[DSC_VERBS_TEXT_BYTES]);
/* NULL allowed. */
void dsc_verbs_discard(struct verbs_conn *conn);

/* Of an endpoint, when all connections are gone. NULL allowed. */
void dsc_verbs_device_close(struct dsc_verbs_device *device);

#endif
