/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine: devices, the links that join them, and how fast these claim to be. Read from this
 * host, or from a text about another one:
 *   NCCL's topology XML (also RCCL's)      hwloc's XML (lstopo machine.xml)
 *   nvidia-smi topo -m, topo -p2p          nvidia-smi nvlink -s, nvlink -R
 *   a plain text of one's own, docs/topology.md
 *
 * Rates are bytes per second in one direction. What is not stated is unknown: it is never zero and
 * never a usual value of such machines. A declared rate that cannot be right is kept and marked;
 * a measured one wins over any declared one. All rates of a topology are of one kind, and it says
 * of which: what the link carries (physical), or the figure that NCCL computes with.
 *
 * Threads: one call at a time per object that changes it (add, destroy); queries from any.
 */
#ifndef DSCOMM_TOPO_H
#define DSCOMM_TOPO_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "dscomm/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DSCOMM_TOPO_NAME_BYTES 64
#define DSCOMM_TOPO_BUS_BYTES 24
#define DSCOMM_TOPO_UNKNOWN (-0x7fffffff) /* of a number: nothing states it */

typedef struct dscomm_topo dscomm_topo_t;

typedef enum {
    DSCOMM_RATES_PHYSICAL = 0, /* payload that the link carries */
    DSCOMM_RATES_NCCL = 1,     /* what NCCL's (RCCL's) own model says, about 0.75 to 0.8 of it */
} dscomm_rate_kind_t;

typedef struct {
    size_t struct_bytes;      /* sizeof(dscomm_topo_config_t) */
    dscomm_rate_kind_t rates; /* one kind throughout */
    int sm;                   /* GPUs' compute capability times 10 where the text does not say,
                                 for example 90; 0: stays unknown */
} dscomm_topo_config_t;

#define DSCOMM_TOPO_CONFIG_INIT                                \
    {                                                          \
        sizeof(dscomm_topo_config_t), DSCOMM_RATES_PHYSICAL, 0 \
    }

/* Marks of a rate. None of the first two: unknown. */
enum {
    DSCOMM_RATE_DECLARED = 1 << 0,    /* `declared` holds a value */
    DSCOMM_RATE_MEASURED = 1 << 1,    /* `measured` holds a value */
    DSCOMM_RATE_IMPLAUSIBLE = 1 << 2, /* the declared value cannot be right */
    DSCOMM_RATE_MAXIMUM = 1 << 3,     /* declared is the most; at the moment the link runs slower */
    DSCOMM_RATE_PARTIAL = 1 << 4,     /* a part of the path is unknown: at most this */
};

typedef struct {
    uint64_t declared; /* bytes per second */
    uint64_t measured;
    uint32_t marks;
} dscomm_rate_t;

typedef enum {
    DSCOMM_DEVICE_HOST = 0,
    DSCOMM_DEVICE_NUMA = 1, /* a CPU with its memory */
    DSCOMM_DEVICE_PCI = 2,  /* bridge, switch, or a card that holds other devices */
    DSCOMM_DEVICE_GPU = 3,
    DSCOMM_DEVICE_NIC = 4,
    DSCOMM_DEVICE_FABRIC = 5, /* switch of NVLink */
    DSCOMM_DEVICE_OTHER = 6,  /* not a GPU or NIC, or nothing says what it is */
} dscomm_device_kind_t;

/* Flags of a device. */
enum {
    DSCOMM_DEVICE_BY_CLASS = 1 << 0,  /* GPU or NIC only by its PCI class */
    DSCOMM_DEVICE_VIRTUAL = 1 << 1,   /* NIC that is no hardware: its rate is made up */
    DSCOMM_DEVICE_DOWN = 1 << 2,      /* NIC whose port is down */
    DSCOMM_DEVICE_UNCLASSED = 1 << 3, /* nothing says what it is */
};

typedef struct {
    size_t struct_bytes; /* in: sizeof(dscomm_topo_device_t) */
    dscomm_device_kind_t kind;
    uint32_t flags;
    int parent;         /* device above; -1 for a host */
    int numa;           /* of a NUMA node its number, else that of the node it is at */
    int dev, rank, sm;  /* of a GPU or NIC, as stated; sm: compute capability times 10 */
    int fabric_links;   /* of a GPU: its NVLink or xGMI links, 0 none */
    int card;           /* devices with an equal number >= 0 share one PCIe connector */
    dscomm_rate_t up;   /* PCIe link to the device above */
    dscomm_rate_t port; /* of a NIC: the network's side */
    char name[DSCOMM_TOPO_NAME_BYTES];
    char bus[DSCOMM_TOPO_BUS_BYTES]; /* 0000:3b:00.0, or empty */
} dscomm_topo_device_t;

typedef enum {
    DSCOMM_LINK_NONE = 0, /* no path, or the same device */
    DSCOMM_LINK_NVLINK = 1,
    DSCOMM_LINK_XGMI = 2,
    DSCOMM_LINK_C2C = 3,  /* GPU to CPU on one module */
    DSCOMM_LINK_PIX = 4,  /* through at most one PCIe bridge */
    DSCOMM_LINK_PXB = 5,  /* through several */
    DSCOMM_LINK_PHB = 6,  /* through a CPU */
    DSCOMM_LINK_NODE = 7, /* through several PCIe host bridges of one NUMA node */
    DSCOMM_LINK_SYS = 8,  /* between NUMA nodes */
} dscomm_link_kind_t;

typedef struct {
    size_t struct_bytes; /* in: sizeof(dscomm_topo_link_t) */
    int a, b;            /* devices */
    dscomm_link_kind_t kind;
    int count;          /* parallel links of the kind; 0 where there is no such number */
    dscomm_rate_t rate; /* of all of them together */
} dscomm_topo_link_t;

typedef struct {
    size_t struct_bytes; /* in: sizeof(dscomm_topo_path_t) */
    dscomm_link_kind_t kind;
    int fabric_known; /* 0: there may be NVLink that nothing tells of */
    int p2p; /* 0: a table says that peers have no access; 1 it says they do; else unknown */
    dscomm_rate_t rate;
} dscomm_topo_path_t;

typedef enum {
    DSCOMM_TOPO_TREE = 0, /* for people */
    DSCOMM_TOPO_DOT = 1,  /* Graphviz */
    DSCOMM_TOPO_SVG = 2,
} dscomm_topo_format_t;

/**
 * Read a text about a machine; which of the above it is, is seen from its content.
 *
 * @param path     A file of at most 16 MiB, untrusted.
 * @param config   Borrowed for the call; NULL for the defaults.
 * @param topo_out Owned by the caller; untouched on error.
 *
 * @return DSCOMM_OK
 *         DSCOMM_ERR_INVALID    bad config (field, value, allowed)
 *         DSCOMM_ERR_SYSTEM     the file cannot be read
 *         DSCOMM_ERR_CORRUPT    not one of these texts, or malformed: names file, line, reason
 *         DSCOMM_ERR_LIMIT      longer than 16 MiB, or more than 4096 devices or 16384 links
 *         DSCOMM_ERR_NO_MEMORY
 *
 * What is odd but can be read is accepted with a notice, logged as a warning.
 */
DSCOMM_API dscomm_status_t dscomm_topo_load(const char *path, const dscomm_topo_config_t *config,
                                            dscomm_topo_t **topo_out);

/**
 * Look at this host: hwloc, the kernel's files, NVIDIA's management library where it is installed.
 * What cannot be read is unknown and gets a notice.
 *
 * @return as dscomm_topo_load(), but for CORRUPT; SYSTEM: hwloc failed
 */
DSCOMM_API dscomm_status_t dscomm_topo_load_host(const dscomm_topo_config_t *config,
                                                 dscomm_topo_t **topo_out);

/**
 * Add what another text says to a topology: plain text, nvlink -s, nvlink -R, topo -p2p. Measured
 * rates come this way.
 *
 * @return as dscomm_topo_load(); after an error the lines before the bad one have been taken
 */
DSCOMM_API dscomm_status_t dscomm_topo_add(dscomm_topo_t *topo, const char *path);

/** Frees the object. NULL is allowed. */
DSCOMM_API void dscomm_topo_destroy(dscomm_topo_t *topo);

/** Which kind all rates are of. */
DSCOMM_API dscomm_rate_kind_t dscomm_topo_rate_kind(const dscomm_topo_t *topo);

/** Numbers of devices, links and notices: indices of the queries below are smaller. */
DSCOMM_API int dscomm_topo_n_devices(const dscomm_topo_t *topo);
DSCOMM_API int dscomm_topo_n_links(const dscomm_topo_t *topo);
DSCOMM_API int dscomm_topo_n_notices(const dscomm_topo_t *topo);

/**
 * Copy one device or link out. Links are those beside the tree of parents: NVLink, xGMI, C2C, and
 * paths that a table or a measurement states.
 *
 * @return DSCOMM_OK, DSCOMM_ERR_INVALID (index or struct_bytes; the outputs are untouched)
 */
DSCOMM_API dscomm_status_t dscomm_topo_device(const dscomm_topo_t *topo, int device,
                                              dscomm_topo_device_t *device_out);
DSCOMM_API dscomm_status_t dscomm_topo_link(const dscomm_topo_t *topo, int link,
                                            dscomm_topo_link_t *link_out);

/** What was odd about the sources, one line each. Borrowed with the topology; NULL: no such. */
DSCOMM_API const char *dscomm_topo_notice(const dscomm_topo_t *topo, int notice);

/**
 * A device by bus id ("0000:3b:00.0", any number of leading zeros, either case), or by name: the
 * one it has, or gpu0, nic0, numa0 ... in the order of the printed tree.
 *
 * @return the device, or -1: there is none
 */
DSCOMM_API int dscomm_topo_find(const dscomm_topo_t *topo, const char *name);

/**
 * The best path between two devices and its rate: that of its slowest part. Peers behind one
 * fabric switch have the sum of their links, whichever peer it is.
 *
 * @return DSCOMM_OK, DSCOMM_ERR_INVALID (index or struct_bytes)
 */
DSCOMM_API dscomm_status_t dscomm_topo_path(const dscomm_topo_t *topo, int a, int b,
                                            dscomm_topo_path_t *path_out);

/**
 * The NIC for a device: hardware before virtual ones, never one that is down; the nearest of
 * these, then the fastest, then the one listed first.
 *
 * @return the NIC, or -1: there is none, or the index is bad
 */
DSCOMM_API int dscomm_topo_nic_for(const dscomm_topo_t *topo, int device);

/**
 * The rate to compute with: measured, else declared, marked implausible or not.
 *
 * @return 1 and the rate, always above 0; 0: unknown, the output is untouched
 */
DSCOMM_API int dscomm_rate_best(const dscomm_rate_t *rate, uint64_t *bytes_per_s_out);

/**
 * Write the topology to a stream.
 *
 * @return DSCOMM_OK, DSCOMM_ERR_INVALID (format), DSCOMM_ERR_SYSTEM (writing failed)
 */
DSCOMM_API dscomm_status_t dscomm_topo_print(const dscomm_topo_t *topo, dscomm_topo_format_t format,
                                             FILE *out);

#ifdef __cplusplus
}
#endif
#endif
