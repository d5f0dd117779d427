/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine model behind dscomm/topo.h, and the choice of a RoCE address. Readers (one file per
 * source) add devices and what they state; dsc_topo_finish() then joins and judges it, the same way
 * for all sources.
 *
 *   topo.c           devices, links, notices; the public queries
 *   topo_rates.c     what links carry: one table per kind of link
 *   topo_finish.c    fabric ends to links, NICs that are listed twice, plausibility
 *   topo_path.c      best path between two devices
 *   topo_load.c      which reader a text is for
 *   topo_nccl_xml.c topo_hwloc.c topo_sysfs.c topo_nvml.c topo_smi.c topo_text.c    readers
 *   topo_print.c topo_summary.c topo_draw.c    for people
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
};

dscomm_status_t dsc_topo_load_host(const struct dsc_topo_host_sources *sources,
                                   const dscomm_topo_config_t *config, dscomm_topo_t **topo_out);
/* As dscomm_topo_load() with the content in memory; name stands for it in messages. */
dscomm_status_t dsc_topo_load_text(const char *name, const char *text, size_t n_bytes,
                                   const dscomm_topo_config_t *config, dscomm_topo_t **topo_out);
dscomm_status_t dsc_topo_add_text(dscomm_topo_t *topo, const char *name, const char *text,
                                  size_t n_bytes);

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
