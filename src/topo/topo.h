/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine model behind dscomm/topo.h, tiers of ranks, and the choice of a RoCE address. Readers
 * (one file per source) add devices and what they state; dsc_topo_finish() then joins and judges
 * it, the same way for all sources.
 *
 *   topo.c           devices, links, notices; the public queries
 *   topo_find.c      devices by bus id, name and number
 *   topo_rates.c     what links carry: one table per kind of link
 *   topo_fabric.c    ends of NVLink and xGMI to links
 *   topo_finish.c    rates of PCIe, ports of one card, plausibility
 *   topo_path.c      best path between two devices
 *   topo_load.c      which reader a text is for
 *   topo_nccl_*.c topo_hwloc.c topo_sysfs.c topo_nvml.c topo_smi_*.c topo_text.c    readers
 *   topo_print.c topo_summary.c topo_draw.c    for people
 *   tiers.c tiers_text.c     groups of ranks from fastest to slowest link
 *   gid.c            which RoCE address
 */
#ifndef DSC_TOPO_H
#define DSC_TOPO_H

#include "core/core.h"
#include "dscomm/topo.h"

#define DSC_TOPO_DEVICES_MAX 4096
#define DSC_TOPO_LINKS_MAX 16384
#define DSC_TOPO_FILE_BYTES_MAX (16u << 20)
#define DSC_TOPO_NOTICES_MAX 64
#define DSC_TOPO_NOTICE_BYTES 256

/* What this host is read with; tests put trees and libraries of their own here. */
struct dsc_topo_host_sources {
    const char *hwloc_xml; /* NULL: this host */
    const char *sysfs;     /* folder that stands for /sys */
    const char *nvml;      /* library; NULL: none */
    const char *visible;   /* CUDA_VISIBLE_DEVICES; NULL: all */
    bool quiet;            /* notices are kept, not logged */
};

dscomm_status_t dsc_topo_load_host(const struct dsc_topo_host_sources *sources,
                                   const dscomm_topo_config_t *config, dscomm_topo_t **topo_out);
/* As dscomm_topo_load() with the content in memory; name stands for it in messages. */
dscomm_status_t dsc_topo_load_text(const char *name, const char *text, size_t n_bytes,
                                   const dscomm_topo_config_t *config, dscomm_topo_t **topo_out);
dscomm_status_t dsc_topo_add_text(dscomm_topo_t *topo, const char *name, const char *text,
                                  size_t n_bytes);

/* ---- tiers: who is near whom, from what all ranks have told each other ---- */

/* Fastest first. */
enum dsc_tier_kind {
    DSC_TIER_FABRIC, /* one NVLink or xGMI domain of a host */
    DSC_TIER_HOST,
    DSC_TIER_RACK, /* one NVLink domain of several hosts */
    DSC_TIER_RDMA,
    DSC_TIER_TCP,
    DSC_TIER_GIVEN, /* DSCOMM_TIERS says so */
};

#define DSC_TIERS_MAX 8

/*
 * What a rank tells the others. Ranks with an equal key are joined by that kind of link; 0: by
 * none, or not known. Keys are only compared, so any will do, even false ones from a peer.
 */
struct dsc_tier_facts {
    uint64_t fabric, host, rack, rdma;
};

struct dsc_tiers {
    int n_tiers, n_ranks;
    enum dsc_tier_kind kinds[DSC_TIERS_MAX];
    /* [n_tiers][n_ranks] group of each rank, numbered by the lowest rank in it. Ranks that share a
     * group share those of all later tiers; the last tier has one group. */
    int *groups;
};

/*
 * Keys of a rank that computes on a device of the topology.
 *
 * topo     not looked at for a CPU
 * device   GPU or other device; -1: a CPU
 * host_id  text that equals that of ranks on the same host, and of no others; "": not known
 *
 * Rack and RDMA are left at 0: the topology does not know them.
 */
DSC_SHARED void dsc_tier_facts_of(const dscomm_topo_t *topo, int device, const char *host_id,
                                  struct dsc_tier_facts *facts_out);

/*
 * Tiers of all ranks: a pure function, so equal on ranks that pass equal arguments. Every tier
 * joins groups of the one before; a kind of link that joins nobody makes no tier. Groups may have
 * any size.
 *
 * facts  [n_ranks]; not looked at if tiers are given
 * given  DSCOMM_TIERS: "" for the facts; "flat"; or tiers from the fastest, separated by /, each
 *        its groups, separated by |, each ranks: "0-2|3-6" or "0,2|1,3/0-3". The last tier, all
 *        ranks, may be left out.
 *
 * DSCOMM_ERR_INVALID    n_ranks below 1
 * DSCOMM_ERR_ENV        given is malformed: names the text, the rank and why
 */
dscomm_status_t dsc_tiers_build(const struct dsc_tier_facts *facts, int n_ranks, const char *given,
                                struct dsc_tiers *tiers_out);
void dsc_tiers_fini(struct dsc_tiers *tiers);
/* The tiers as DSCOMM_TIERS would give them; cut to the buffer. Returns the whole length. */
size_t dsc_tiers_text(const struct dsc_tiers *tiers, char *buf, size_t buf_bytes);

/* ---- RoCE: which entry of a port's address table to use ---- */

enum dsc_gid_type { DSC_GID_IB_ROCE_V1, DSC_GID_ROCE_V2 };

struct dsc_gid {
    uint8_t bytes[16]; /* all zero: an unused entry */
    enum dsc_gid_type type;
};

#define DSC_GID_AUTO (-1)

/*
 * InfiniBand takes entry 0. RoCE prefers version 2, then a mapped IPv4 address, then a global IPv6
 * one, then link-local; the lowest index among equals. wanted: an index that the user gave.
 *
 * DSCOMM_ERR_INVALID  wanted is out of range, or no entry can be used
 */
dscomm_status_t dsc_gid_choose(const struct dsc_gid *table, int n, bool is_infiniband, int wanted,
                               int *index_out);

#endif
