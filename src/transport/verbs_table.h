/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Private to src/transport and plugin/. The functions of libibverbs, found at run time: DSComm runs
 * where the library is missing, and a build needs its header alone. What verbs.h defines inline
 * (posting, polling, asking for events) goes through the device's own table.
 */
#ifndef DSC_VERBS_TABLE_H
#define DSC_VERBS_TABLE_H

#include <infiniband/verbs.h>

#include "core/core.h"

/* clang-format off */
#define DSC_VERBS_MAP(X)                                                                       \
    X(get_device_list) X(free_device_list) X(get_device_name) X(open_device) X(close_device)   \
    X(query_gid) X(alloc_pd) X(dealloc_pd) X(reg_mr) X(dereg_mr) X(create_comp_channel)        \
    X(destroy_comp_channel) X(create_cq) X(destroy_cq) X(get_cq_event) X(ack_cq_events)        \
    X(create_qp) X(modify_qp) X(destroy_qp) X(get_async_event) X(ack_async_event)              \
    X(event_type_str) X(wc_status_str) X(query_device)
/* What older libraries lack: NULL there. */
#define DSC_VERBS_OPTIONAL_MAP(X) X(reg_dmabuf_mr)
/* clang-format on */

struct dsc_verbs {
#define DSC_VERBS_MEMBER(name) __typeof__(&ibv_##name) name;
    DSC_VERBS_MAP(DSC_VERBS_MEMBER)
    DSC_VERBS_OPTIONAL_MAP(DSC_VERBS_MEMBER)
#undef DSC_VERBS_MEMBER
};

/* NULL when libibverbs.so.1 is not here or lacks a function; *why_out says which then. */
const struct dsc_verbs *dsc_verbs_get(const char **why_out);

#endif
