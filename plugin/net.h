/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The net plugin inside. NCCL's tables (net_exports.c) call the net that net_core.c has chosen: a
 * `struct nccl_net_v12`, which is what every kind of network is here. Contracts of its functions
 * are NCCL's; what this project adds:
 *
 * - maxRecvs is 1; memory is the host's, or a GPU's where RDMA reaches it;
 * - connections are FIFO; a message that is longer than its receive fails, naming both sizes;
 * - *request is always written, so it never stays NCCL_OPTIONAL_COMPLETION;
 * - lines of LL and LL128, which a GPU polls while they arrive, are published in order
 * (net_lines.h);
 * - nothing is allocated per message; no call blocks; every wait for a peer has a deadline
 *   (DSCOMM_TIMEOUT_MS);
 * - close functions succeed, with requests in flight and whatever the peer does.
 */
#ifndef DSC_NET_H
#define DSC_NET_H

#include "core/core.h"
#include "transport/nccl_abi.h"
#include "transport/netif.h"

#define NET_NAME "DSComm"
#define NET_DEVICES_MAX NCCL_DEVICES_MAX

/* Kinds of networks; net_core.c lists them. */
extern const struct nccl_net_v12 net_tcp, net_verbs, net_wrap;

/* RDMA ports that DSCOMM_IB_HCA allows. Errors are those of settings. */
nccl_result_t net_verbs_count(int *n_out);
/* Which network carries messages: as DSCOMM_NET says, net_verbs or net_tcp. */
nccl_result_t net_carrier(const struct dsc_env *env, const struct nccl_net_v12 **net_out);

/* Whether settings ask for net_wrap: then connections carry its messages. */
bool net_is_wrapped(const struct dsc_env *env);

/* ---- net_core.c: what the exported tables call ---- */

/* Of one communicator. */
struct net_ctx {
    int traffic_class; /* IP's type of service; NCCL_UNDEFINED: the system's */
};

/* ctx: NULL for versions that have none; then finalize() is never called. */
nccl_result_t net_init(struct net_ctx **ctx, const struct nccl_comm_config *config,
                       nccl_logger_t *logger);
nccl_result_t net_finalize(struct net_ctx *ctx);
/*
 * The net that was chosen; its contexts are struct net_ctx, or NULL for one without wishes, and its
 * finalize(NULL) is called when nobody uses it any more. Only after a successful net_init().
 */
const struct nccl_net_v12 *net_chosen(void);

/*
 * What ranks must have in common for their tuners to agree, as a text that starts with a hash: of
 * the files that the tuner reads. Set by the first net_init().
 */
const char *net_tuner_text(void);
/* The peer's is another one: one warning per process. */
void net_tuner_compare(const char *peer_text, const char *peer);

/* ---- net_log.c: NCCL's logger is the only log ---- */

void net_log_set(nccl_logger_t *logger);
void net_info(unsigned long subsystem, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void net_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
nccl_result_t net_result(dscomm_status_t status);

/* ---- net_device.c: network cards as NCCL sees them ---- */

struct net_device {
    char name[64];
    union dsc_addr addr; /* of its sockets */
    char pci_path[256];  /* empty: none */
    uint64_t guid;
    int port;
    int speed; /* Mbit/s; 10000 where nothing tells */
    int max_comms;
    int ptr_support;
    size_t max_bytes; /* of a message */
};

/* Fills in devices from DSCOMM_SOCKET_IFNAME and sysfs. */
dscomm_status_t net_devices_find(struct net_device *devices, size_t max, int *n_out);
/* The real path of CLASS/NAME/device below /sys/class; empty: none. */
void net_device_pci_path(const char *class_name, const char *name, char *path, size_t bytes);
/* Strings in props stay the device's. */
void net_device_props(const struct net_device *device, int index, struct nccl_props_v12 *props);

#endif
