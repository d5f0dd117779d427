/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport. What a transport needs of both sides besides sockets: shared memory,
 * queue pairs, a plugin's connections. The connector offers it in its hello, the acceptor accepts
 * it and answers, the connector joins. Each step returns NULL, or why it cannot, maybe in text; the
 * caller judges: auto falls back to tcp.
 */
#ifndef DSC_NET_MEANS_H
#define DSC_NET_MEANS_H

#include "transport/net_internal.h"

#define DSC_MEANS_TEXT_BYTES 256

struct dsc_means {
    const struct dsc_transport_ops *ops;
    const char *what;       /* "shared memory" */
    dscomm_status_t status; /* of this side's, if it cannot */
    const char *(*offer)(struct dsc_net *net, int peer, struct dsc_hello *hello,
                         char text[DSC_MEANS_TEXT_BYTES]);
    const char *(*accept)(struct dsc_net *net, int peer, const struct dsc_hello *hello,
                          struct dsc_hello *reply, char text[DSC_MEANS_TEXT_BYTES]);
    const char *(*join)(struct dsc_net *net, int peer, const struct dsc_hello *reply,
                        char text[DSC_MEANS_TEXT_BYTES]);
};

/* NULL: it needs none. */
const struct dsc_means *dsc_means_of(const struct dsc_transport_ops *ops);
/* Frees what no connection has taken. */
void dsc_means_drop(struct dsc_setup *setup);

#endif
