/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport. The net plugin of DSCOMM_NET_PLUGIN and the one device of it that this
 * process uses: loaded and initialized when the first endpoint wants it, given up with the last.
 * Its log lines are this library's.
 */
#ifndef DSC_NCCL_PLUGIN_H
#define DSC_NCCL_PLUGIN_H

#include "transport/nccl_load.h"
#include "transport/transport.h"

struct dsc_nccl_plugin {
    const struct nccl_net_v12 *net;
    void *ctx;
    int device;
    size_t max_bytes;               /* of a message */
    char name[DSC_NCCL_NAME_BYTES]; /* as a word */
    char text[128];                 /* "net plugin NAME v12 on DEVICE" */
};

/* Held until dsc_nccl_net_drop(). */
dscomm_status_t dsc_nccl_plugin_get(const struct dsc_nccl_plugin **plugin_out);

/*
 * What the plugin warns this thread of is part of an error that its caller may have or ignore, as
 * when a peer leaves; so it is said when that is decided. Else it is said at once.
 */
void dsc_nccl_hush(bool hush);
/* "remote error (6)", and what the plugin last had to warn this thread of, once. */
#define DSC_NCCL_RESULT_BYTES 200
const char *dsc_nccl_result_text(nccl_result_t result, char text[DSC_NCCL_RESULT_BYTES]);
/* What of ours a plugin's error is. */
dscomm_status_t dsc_nccl_status(nccl_result_t result);

#endif
