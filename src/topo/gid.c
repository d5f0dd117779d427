/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which entry of a port's GID table to use. A RoCE port lists each address once per version, and
 * packets sent from the wrong one are dropped by the switch or the peer without a word.
 */
#include "topo/topo.h"

#include <string.h>

static bool is_empty(const struct dsc_gid *gid)
{
    static const uint8_t zero[sizeof(gid->bytes)];

    return memcmp(gid->bytes, zero, sizeof(zero)) == 0;
}

/* Higher is better; 0: of no use. */
static int value_of(const struct dsc_gid *gid)
{
    static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff }; /* ::ffff:a.b.c.d */
    const bool is_link_local = gid->bytes[0] == 0xfe && (gid->bytes[1] & 0xc0) == 0x80;
    int value = 2;

    if (is_empty(gid))
        return 0;
    if (memcmp(gid->bytes, mapped, sizeof(mapped)) == 0)
        value = 3;
    else if (is_link_local)
        value = 1;
    return value + (gid->type == DSC_GID_ROCE_V2 ? 3 : 0);
}

dscomm_status_t dsc_gid_choose(const struct dsc_gid *table, int n, bool is_infiniband, int wanted,
                               int *index_out)
{
    int best = -1;

    if (wanted != DSC_GID_AUTO && (wanted < 0 || wanted >= n))
        return dsc_fail(DSCOMM_ERR_INVALID, "GID index %d, the port has 0 to %d", wanted, n - 1);
    if (wanted != DSC_GID_AUTO && is_empty(&table[wanted]))
        return dsc_fail(DSCOMM_ERR_INVALID, "GID index %d is an unused entry of the port", wanted);
    for (int i = 0; i < n; i++)
        if (value_of(&table[i]) > (best >= 0 ? value_of(&table[best]) : 0))
            best = i;
    if (is_infiniband && n > 0)
        best = 0;
    if (wanted != DSC_GID_AUTO)
        best = wanted;
    if (best < 0)
        return dsc_fail(DSCOMM_ERR_INVALID, "none of the port's %d GIDs can be used", n);
    *index_out = best;
    return DSCOMM_OK;
}
