/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport. How a connection over a net plugin comes to be. Both sides prepare, and
 * tell each other the handle that their plugin listens with, which is the other plugin's alone to
 * read. Then progress connects and accepts.
 */
#ifndef DSC_NCCL_PAIR_H
#define DSC_NCCL_PAIR_H

#include "transport/nccl_plugin.h"
#include "transport/net_internal.h"

#define DSC_NCCL_TEXT_BYTES 256

struct nccl_conn;

/* NULL, or why it cannot. */
const char *dsc_nccl_prepare(struct dsc_net *net, int peer, struct nccl_conn **conn_out,
                             char text[DSC_NCCL_TEXT_BYTES]);
/* Own one. */
const void *dsc_nccl_handle(const struct nccl_conn *conn);
/* handle: the peer's, of NCCL_HANDLE_BYTES. */
void dsc_nccl_join(struct nccl_conn *conn, const void *handle);
/* NULL allowed. */
void dsc_nccl_discard(struct nccl_conn *conn);

#endif
