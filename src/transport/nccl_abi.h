/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables by which NCCL talks to plugins, declared here because no installed NCCL ships them:
 * net v6 to v12, tuner v2 to v6. Facts of NVIDIA's interface: order and types of members. Only what
 * this project uses has meaning here; the assertions at the end hold the layout.
 *
 * A call may come from any thread of NCCL; see docs/nccl_plugins.md for which.
 */
#ifndef DSC_NCCL_ABI_H
#define DSC_NCCL_ABI_H

#include <stddef.h>
#include <stdint.h>

enum nccl_result {
    NCCL_SUCCESS = 0,
    NCCL_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7,
};
typedef int nccl_result_t; /* enum nccl_result, or a value of a newer NCCL */

enum nccl_log_level { NCCL_LOG_WARN = 2, NCCL_LOG_INFO = 3 };
enum nccl_log_subsystem { NCCL_LOG_INIT = 0x1, NCCL_LOG_NET = 0x10, NCCL_LOG_TUNING = 0x40 };
#define NCCL_LOG_ALL (~0ul)
typedef void nccl_logger_t(int level, unsigned long subsystems, const char *file, int line,
                           const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Reports to a profiler; never called by this project. */
typedef nccl_result_t nccl_profiler_t(void **event, int type, void *parent, int64_t plugin,
                                      void *data);

#define NCCL_HANDLE_BYTES 128
#define NCCL_REQUESTS_MAX 32 /* in flight per connection, times maxRecvs */
#define NCCL_DEVICES_MAX 128
#define NCCL_PTR_HOST 0x1
#define NCCL_PTR_CUDA 0x2
#define NCCL_PTR_DMABUF 0x4
/* What *request may hold before irecv(): a request for LL or LL128 data, which is polled. */
#define NCCL_OPTIONAL_COMPLETION ((void *)0x1)
#define NCCL_NET_BYTES_MAX ((size_t)1 << 40)
#define NCCL_UNDEFINED (-1)

/* ---- net: properties of a device ---- */

struct nccl_vdevice_v9 { /* to v11 */
    int n_devs;
    int devs[4];
};

struct nccl_vdevice_v12 {
    int n_devs;
    int devs[8];
};

/* The members that all versions begin with, and those that come after a later one's additions. */
#define NCCL_PROPS_HEAD                                               \
    char *name;                                                       \
    char *pci_path; /* in sysfs; NULL: none */                        \
    uint64_t guid;  /* equal: one card, which shares its bandwidth */ \
    int ptr_support
#define NCCL_PROPS_PORT                                  \
    int speed; /* Mbit/s */                              \
    int port;                                            \
    float latency; /* microseconds; 0: NCCL's default */ \
    int max_comms;                                       \
    int max_recvs
#define NCCL_PROPS_OFFLOAD \
    int device_type;       \
    int device_version

struct nccl_props_v6 {
    NCCL_PROPS_HEAD;
    NCCL_PROPS_PORT;
};

struct nccl_props_v7 {
    NCCL_PROPS_HEAD;
    NCCL_PROPS_PORT;
    NCCL_PROPS_OFFLOAD;
};

struct nccl_props_v8 {
    NCCL_PROPS_HEAD;
    int reg_is_global;
    NCCL_PROPS_PORT;
    NCCL_PROPS_OFFLOAD;
};

struct nccl_props_v9 { /* and v10 */
    NCCL_PROPS_HEAD;
    int reg_is_global;
    int force_flush;
    NCCL_PROPS_PORT;
    NCCL_PROPS_OFFLOAD;
    struct nccl_vdevice_v9 vdevice;
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
};

struct nccl_props_v11 {
    NCCL_PROPS_HEAD;
    int reg_is_global;
    int force_flush;
    NCCL_PROPS_PORT;
    NCCL_PROPS_OFFLOAD;
    struct nccl_vdevice_v9 vdevice;
    size_t max_p2p_bytes;
    size_t max_coll_bytes;
    int max_multi_request;
};

struct nccl_props_v12 {
    NCCL_PROPS_HEAD;
    int reg_is_global;
    int force_flush;
    NCCL_PROPS_PORT;
    NCCL_PROPS_OFFLOAD;
    struct nccl_vdevice_v12 vdevice;
    size_t max_p2p_bytes; /* 1 to NCCL_NET_BYTES_MAX */
    size_t max_coll_bytes;
    int max_multi_request;
    int16_t rail, plane;
};

struct nccl_comm_config { /* v10 on */
    int traffic_class;    /* NCCL_UNDEFINED: none was asked for */
};

struct nccl_device_handle; /* device offload: not offered */
struct nccl_net_attr;      /* hints: not used */

/* ---- net: tables. Members that versions share have their newest form in v12. ---- */

struct nccl_net_v12 {
    const char *name;
    nccl_result_t (*init)(void **ctx, uint64_t comm_id, struct nccl_comm_config *config,
                          nccl_logger_t *logger, nccl_profiler_t *profiler);
    nccl_result_t (*devices)(int *n);
    nccl_result_t (*get_properties)(int dev, struct nccl_props_v12 *props);
    nccl_result_t (*listen)(void *ctx, int dev, void *handle, void **listen_comm);
    nccl_result_t (*connect)(void *ctx, int dev, void *handle, void **send_comm,
                             struct nccl_device_handle **device);
    nccl_result_t (*accept)(void *listen_comm, void **recv_comm,
                            struct nccl_device_handle **device);
    nccl_result_t (*reg_mr)(void *comm, void *data, size_t bytes, int type, void **mr);
    nccl_result_t (*reg_mr_dma_buf)(void *comm, void *data, size_t bytes, int type, uint64_t offset,
                                    int fd, void **mr);
    nccl_result_t (*dereg_mr)(void *comm, void *mr);
    nccl_result_t (*isend)(void *send_comm, void *data, size_t bytes, int tag, void *mr,
                           void *profiler_handle, void **request);
    nccl_result_t (*irecv)(void *recv_comm, int n, void **data, size_t *bytes, int *tags,
                           void **mrs, void **profiler_handles, void **request);
    nccl_result_t (*iflush)(void *recv_comm, int n, void **data, int *bytes, void **mrs,
                            void **request);
    nccl_result_t (*test)(void *request, int *done, int *bytes);
    nccl_result_t (*close_send)(void *comm);
    nccl_result_t (*close_recv)(void *comm);
    nccl_result_t (*close_listen)(void *comm);
    nccl_result_t (*get_device_mr)(void *comm, void *mr, void **device_mr);
    nccl_result_t (*irecv_consumed)(void *recv_comm, int n, void *request);
    nccl_result_t (*make_vdevice)(int *dev, struct nccl_vdevice_v12 *vdevice);
    nccl_result_t (*finalize)(void *ctx); /* never NULL */
    nccl_result_t (*set_net_attr)(void *ctx, struct nccl_net_attr *attr);
};

struct nccl_net_v11 {
    const char *name;
    nccl_result_t (*init)(void **ctx, uint64_t comm_id, struct nccl_comm_config *config,
                          nccl_logger_t *logger, nccl_profiler_t *profiler);
    nccl_result_t (*devices)(int *n);
    nccl_result_t (*get_properties)(int dev, struct nccl_props_v11 *props);
    nccl_result_t (*listen)(void *ctx, int dev, void *handle, void **listen_comm);
    nccl_result_t (*connect)(void *ctx, int dev, void *handle, void **send_comm,
                             struct nccl_device_handle **device);
    nccl_result_t (*accept)(void *listen_comm, void **recv_comm,
                            struct nccl_device_handle **device);
    nccl_result_t (*reg_mr)(void *comm, void *data, size_t bytes, int type, void **mr);
    nccl_result_t (*reg_mr_dma_buf)(void *comm, void *data, size_t bytes, int type, uint64_t offset,
                                    int fd, void **mr);
    nccl_result_t (*dereg_mr)(void *comm, void *mr);
    nccl_result_t (*isend)(void *send_comm, void *data, size_t bytes, int tag, void *mr,
                           void *profiler_handle, void **request);
    nccl_result_t (*irecv)(void *recv_comm, int n, void **data, size_t *bytes, int *tags,
                           void **mrs, void **profiler_handles, void **request);
    nccl_result_t (*iflush)(void *recv_comm, int n, void **data, int *bytes, void **mrs,
                            void **request);
    nccl_result_t (*test)(void *request, int *done, int *bytes);
    nccl_result_t (*close_send)(void *comm);
    nccl_result_t (*close_recv)(void *comm);
    nccl_result_t (*close_listen)(void *comm);
    nccl_result_t (*get_device_mr)(void *comm, void *mr, void **device_mr);
    nccl_result_t (*irecv_consumed)(void *recv_comm, int n, void *request);
    nccl_result_t (*make_vdevice)(int *dev, struct nccl_vdevice_v9 *vdevice);
    nccl_result_t (*finalize)(void *ctx);
    nccl_result_t (*set_net_attr)(void *ctx, struct nccl_net_attr *attr);
};

struct nccl_net_v10 { /* one init() per process, no context, no finalize() from here down */
    const char *name;
    nccl_result_t (*init)(nccl_logger_t *logger, nccl_profiler_t *profiler);
    nccl_result_t (*devices)(int *n);
    nccl_result_t (*get_properties)(int dev, struct nccl_props_v9 *props);
    nccl_result_t (*listen)(int dev, void *handle, void **listen_comm);
    nccl_result_t (*connect)(int dev, struct nccl_comm_config *config, void *handle,
                             void **send_comm, struct nccl_device_handle **device);
    nccl_result_t (*accept)(void *listen_comm, void **recv_comm,
                            struct nccl_device_handle **device);
    nccl_result_t (*reg_mr)(void *comm, void *data, size_t bytes, int type, void **mr);
    nccl_result_t (*reg_mr_dma_buf)(void *comm, void *data, size_t bytes, int type, uint64_t offset,
                                    int fd, void **mr);
    nccl_result_t (*dereg_mr)(void *comm, void *mr);
    nccl_result_t (*isend)(void *send_comm, void *data, size_t bytes, int tag, void *mr,
                           void *profiler_handle, void **request);
    nccl_result_t (*irecv)(void *recv_comm, int n, void **data, size_t *bytes, int *tags,
                           void **mrs, void **profiler_handles, void **request);
    nccl_result_t (*iflush)(void *recv_comm, int n, void **data, int *bytes, void **mrs,
                            void **request);
    nccl_result_t (*test)(void *request, int *done, int *bytes);
    nccl_result_t (*close_send)(void *comm);
    nccl_result_t (*close_recv)(void *comm);
    nccl_result_t (*close_listen)(void *comm);
    nccl_result_t (*get_device_mr)(void *comm, void *mr, void **device_mr);
    nccl_result_t (*irecv_consumed)(void *recv_comm, int n, void *request);
    nccl_result_t (*make_vdevice)(int *dev, struct nccl_vdevice_v9 *vdevice);
};

struct nccl_net_v9 {
    const char *name;
    nccl_result_t (*init)(nccl_logger_t *logger);
    nccl_result_t (*devices)(int *n);
    nccl_result_t (*get_properties)(int dev, struct nccl_props_v9 *props);
    nccl_result_t (*listen)(int dev, void *handle, void **listen_comm);
    nccl_result_t (*connect)(int dev, void *handle, void **send_comm,
                             struct nccl_device_handle **device);
    nccl_result_t (*accept)(void *listen_comm, void **recv_comm,
                            struct nccl_device_handle **device);
    nccl_result_t (*reg_mr)(void *comm, void *data, size_t bytes, int type, void **mr);
    nccl_result_t (*reg_mr_dma_buf)(void *comm, void *data, size_t bytes, int type, uint64_t offset,
                                    int fd, void **mr);
    nccl_result_t (*dereg_mr)(void *comm, void *mr);
    nccl_result_t (*isend)(void *send_comm, void *data, size_t bytes, int tag, void *mr,
                           void **request);
    nccl_result_t (*irecv)(void *recv_comm, int n, void **data, size_t *bytes, int *tags,
                           void **mrs, void **request);
    nccl_result_t (*iflush)(void *recv_comm, int n, void **data, int *bytes, void **mrs,
                            void **request);
    nccl_result_t (*test)(void *request, int *done, int *bytes);
    nccl_result_t (*close_send)(void *comm);
    nccl_result_t (*close_recv)(void *comm);
    nccl_result_t (*close_listen)(void *comm);
    nccl_result_t (*get_device_mr)(void *comm, void *mr, void **device_mr);
    nccl_result_t (*irecv_consumed)(void *recv_comm, int n, void *request);
    nccl_result_t (*make_vdevice)(int *dev, struct nccl_vdevice_v9 *vdevice);
};

struct nccl_net_v8 {
    const char *name;
    nccl_result_t (*init)(nccl_logger_t *logger);
    nccl_result_t (*devices)(int *n);
    nccl_result_t (*get_properties)(int dev, struct nccl_props_v8 *props);
    nccl_result_t (*listen)(int dev, void *handle, void **listen_comm);
    nccl_result_t (*connect)(int dev, void *handle, void **send_comm,
                             struct nccl_device_handle **device);
    nccl_result_t (*accept)(void *listen_comm, void **recv_comm,
                            struct nccl_device_handle **device);
    nccl_result_t (*reg_mr)(void *comm, void *data, size_t bytes, int type, void **mr);
    nccl_result_t (*reg_mr_dma_buf)(void *comm, void *data, size_t bytes, int type, uint64_t offset,
                                    int fd, void **mr);
    nccl_result_t (*dereg_mr)(void *comm, void *mr);
    nccl_result_t (*isend)(void *send_comm, void *data, int bytes, int tag, void *mr,
                           void **request);
    nccl_result_t (*irecv)(void *recv_comm, int n, void **data, int *bytes, int *tags, void **mrs,
                           void **request);
    nccl_result_t (*iflush)(void *recv_comm, int n, void **data, int *bytes, void **mrs,
                            void **request);
    nccl_result_t (*test)(void *request, int *done, int *bytes);
    nccl_result_t (*close_send)(void *comm);
    nccl_result_t (*close_recv)(void *comm);
    nccl_result_t (*close_listen)(void *comm);
    nccl_result_t (*get_device_mr)(void *comm, void *mr, void **device_mr);
    nccl_result_t (*irecv_consumed)(void *recv_comm, int n, void *request);
};

struct nccl_net_v7 {
    const char *name;
    nccl_result_t (*init)(nccl_logger_t *logger);
    nccl_result_t (*devices)(int *n);
    nccl_result_t (*get_properties)(int dev, struct nccl_props_v7 *props);
    nccl_result_t (*listen)(int dev, void *handle, void **listen_comm);
    nccl_result_t (*connect)(int dev, void *handle, void **send_comm,
                             struct nccl_device_handle **device);
    nccl_result_t (*accept)(void *listen_comm, void **recv_comm,
                            struct nccl_device_handle **device);
    nccl_result_t (*reg_mr)(void *comm, void *data, int bytes, int type, void **mr);
    nccl_result_t (*reg_mr_dma_buf)(void *comm, void *data, size_t bytes, int type, uint64_t offset,
                                    int fd, void **mr);
    nccl_result_t (*dereg_mr)(void *comm, void *mr);
    nccl_result_t (*isend)(void *send_comm, void *data, int bytes, int tag, void *mr,
                           void **request);
    nccl_result_t (*irecv)(void *recv_comm, int n, void **data, int *bytes, int *tags, void **mrs,
                           void **request);
    nccl_result_t (*iflush)(void *recv_comm, int n, void **data, int *bytes, void **mrs,
                            void **request);
    nccl_result_t (*test)(void *request, int *done, int *bytes);
    nccl_result_t (*close_send)(void *comm);
    nccl_result_t (*close_recv)(void *comm);
    nccl_result_t (*close_listen)(void *comm);
    nccl_result_t (*get_device_mr)(void *comm, void *mr, void **device_mr);
    nccl_result_t (*irecv_consumed)(void *recv_comm, int n, void *request);
};

struct nccl_net_v6 {
    const char *name;
    nccl_result_t (*init)(nccl_logger_t *logger);
    nccl_result_t (*devices)(int *n);
    nccl_result_t (*get_properties)(int dev, struct nccl_props_v6 *props);
    nccl_result_t (*listen)(int dev, void *handle, void **listen_comm);
    nccl_result_t (*connect)(int dev, void *handle, void **send_comm);
    nccl_result_t (*accept)(void *listen_comm, void **recv_comm);
    nccl_result_t (*reg_mr)(void *comm, void *data, int bytes, int type, void **mr);
    nccl_result_t (*reg_mr_dma_buf)(void *comm, void *data, size_t bytes, int type, uint64_t offset,
                                    int fd, void **mr);
    nccl_result_t (*dereg_mr)(void *comm, void *mr);
    nccl_result_t (*isend)(void *send_comm, void *data, int bytes, int tag, void *mr,
                           void **request);
    nccl_result_t (*irecv)(void *recv_comm, int n, void **data, int *bytes, int *tags, void **mrs,
                           void **request);
    nccl_result_t (*iflush)(void *recv_comm, int n, void **data, int *bytes, void **mrs,
                            void **request);
    nccl_result_t (*test)(void *request, int *done, int *bytes);
    nccl_result_t (*close_send)(void *comm);
    nccl_result_t (*close_recv)(void *comm);
    nccl_result_t (*close_listen)(void *comm);
};

/* ---- tuner ---- */

enum nccl_func {
    NCCL_BROADCAST = 0,
    NCCL_REDUCE = 1,
    NCCL_ALL_GATHER = 2,
    NCCL_REDUCE_SCATTER = 3,
    NCCL_ALL_REDUCE = 4,
};
enum nccl_algo {
    NCCL_TREE,
    NCCL_RING,
    NCCL_COLLNET_DIRECT,
    NCCL_COLLNET_CHAIN,
    NCCL_NVLS,
    NCCL_NVLS_TREE,
    NCCL_PAT,
    NCCL_ALGOS
};
enum nccl_proto { NCCL_LL, NCCL_LL128, NCCL_SIMPLE, NCCL_PROTOS };
enum nccl_hw_link { NCCL_LINK_NVLINK, NCCL_LINK_PCI, NCCL_LINK_NET, NCCL_LINKS };
#define NCCL_COST_IGNORE (-1.0f) /* of a pair that may not be used */

struct nccl_nvl_domains {
    int n_domains, ranks_min, ranks_max;
};

/* Microseconds, and GB/s by generation (Volta, Ampere, Hopper, Blackwell) and nodes (1, 2, more).
 */
struct nccl_tuner_constants {
    double base_latencies[NCCL_ALGOS][NCCL_PROTOS];
    double hw_latencies[NCCL_LINKS][NCCL_ALGOS][NCCL_PROTOS];
    double ll_max_bws[4][3];
    double ring_ll128_bws[4][3];
    double tree_ll128_bws[4][3];
    double tree_bws[4][3];
    double nvls_tree_bws[4][3];
};

struct nccl_tuner_v2 {
    const char *name;
    nccl_result_t (*init)(size_t n_ranks, size_t n_nodes, nccl_logger_t *logger, void **ctx);
    nccl_result_t (*get_coll_info)(void *ctx, int func, size_t bytes, int collnet, int nvls,
                                   int n_pipe_ops, int *algo, int *proto, int *n_channels);
    nccl_result_t (*destroy)(void *ctx);
};

/* costs: really float[n_algos][n_protos] in one piece. */
struct nccl_tuner_v3 {
    const char *name;
    nccl_result_t (*init)(size_t n_ranks, size_t n_nodes, nccl_logger_t *logger, void **ctx);
    nccl_result_t (*get_coll_info)(void *ctx, int func, size_t bytes, int n_pipe_ops, float **costs,
                                   int n_algos, int n_protos, int *n_channels);
    nccl_result_t (*destroy)(void *ctx);
};

struct nccl_tuner_v4 {
    const char *name;
    nccl_result_t (*init)(size_t n_ranks, size_t n_nodes, nccl_logger_t *logger, void **ctx);
    nccl_result_t (*get_coll_info)(void *ctx, int func, size_t bytes, int n_pipe_ops, float **costs,
                                   int n_algos, int n_protos, int reg_buff, int *n_channels);
    nccl_result_t (*destroy)(void *ctx);
};

struct nccl_tuner_v5 {
    const char *name;
    nccl_result_t (*init)(void **ctx, uint64_t comm_id, size_t n_ranks, size_t n_nodes,
                          nccl_logger_t *logger, struct nccl_nvl_domains *domains,
                          struct nccl_tuner_constants *constants);
    nccl_result_t (*get_coll_info)(void *ctx, int func, size_t bytes, int n_pipe_ops, float **costs,
                                   int n_algos, int n_protos, int reg_buff, int *n_channels);
    nccl_result_t (*finalize)(void *ctx);
};

struct nccl_tuner_v6 {
    const char *name;
    nccl_result_t (*init)(void **ctx, uint64_t comm_id, size_t n_ranks, size_t n_nodes,
                          nccl_logger_t *logger, struct nccl_nvl_domains *domains,
                          struct nccl_tuner_constants *constants);
    nccl_result_t (*get_coll_info)(void *ctx, int func, size_t bytes, int n_pipe_ops, float **costs,
                                   int n_algos, int n_protos, int reg_buff, int *n_channels);
    nccl_result_t (*finalize)(void *ctx);
    nccl_result_t (*get_chunk_size)(void *ctx, int func, size_t bytes, int algo, int proto,
                                    int n_channels, size_t *chunk_bytes); /* may be NULL */
};

/* ---- the layout, on 64-bit machines ---- */

#define NCCL_ABI_AT(type, member, offset) \
    _Static_assert(offsetof(struct type, member) == (offset), #type "." #member)
#define NCCL_ABI_SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)

NCCL_ABI_SIZE(nccl_props_v6, 48);
NCCL_ABI_AT(nccl_props_v6, speed, 28);
NCCL_ABI_AT(nccl_props_v6, max_recvs, 44);
NCCL_ABI_SIZE(nccl_props_v7, 56);
NCCL_ABI_AT(nccl_props_v7, device_type, 48);
NCCL_ABI_SIZE(nccl_props_v8, 64);
NCCL_ABI_AT(nccl_props_v8, speed, 32);
NCCL_ABI_AT(nccl_props_v8, device_version, 56);
NCCL_ABI_SIZE(nccl_props_v9, 104);
NCCL_ABI_AT(nccl_props_v9, speed, 36);
NCCL_ABI_AT(nccl_props_v9, vdevice, 64);
NCCL_ABI_AT(nccl_props_v9, max_p2p_bytes, 88);
NCCL_ABI_SIZE(nccl_props_v11, 112);
NCCL_ABI_AT(nccl_props_v11, max_multi_request, 104);
NCCL_ABI_SIZE(nccl_props_v12, 128);
NCCL_ABI_AT(nccl_props_v12, max_p2p_bytes, 104);
NCCL_ABI_AT(nccl_props_v12, rail, 124);
NCCL_ABI_SIZE(nccl_net_v6, 17 * 8);
NCCL_ABI_SIZE(nccl_net_v7, 19 * 8);
NCCL_ABI_SIZE(nccl_net_v8, 19 * 8);
NCCL_ABI_SIZE(nccl_net_v9, 20 * 8);
NCCL_ABI_SIZE(nccl_net_v10, 20 * 8);
NCCL_ABI_SIZE(nccl_net_v11, 22 * 8);
NCCL_ABI_SIZE(nccl_net_v12, 22 * 8);
NCCL_ABI_AT(nccl_net_v12, reg_mr, 7 * 8);
NCCL_ABI_AT(nccl_net_v12, test, 13 * 8);
NCCL_ABI_AT(nccl_net_v12, make_vdevice, 19 * 8);
NCCL_ABI_AT(nccl_net_v12, finalize, 20 * 8);
NCCL_ABI_AT(nccl_tuner_constants, hw_latencies, 21 * 8);
NCCL_ABI_AT(nccl_tuner_constants, ll_max_bws, 84 * 8);
NCCL_ABI_SIZE(nccl_tuner_constants, (84 + 60) * 8);
NCCL_ABI_SIZE(nccl_tuner_v2, 4 * 8);
NCCL_ABI_SIZE(nccl_tuner_v5, 4 * 8);
NCCL_ABI_SIZE(nccl_tuner_v6, 5 * 8);
NCCL_ABI_AT(nccl_tuner_v6, finalize, 3 * 8);

#endif
