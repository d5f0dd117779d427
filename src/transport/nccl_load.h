/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A net plugin of NCCL's, of any version, in the shape of v12: for transport nccl_net, and for the
 * plugin of this project that wraps another one. One per object that this is built into, since a
 * table's functions have no place for a pointer. Depends on nothing else here.
 */
#ifndef DSC_NCCL_LOAD_H
#define DSC_NCCL_LOAD_H

#include "transport/nccl_abi.h"

#define DSC_NCCL_OLDEST 6
#define DSC_NCCL_NEWEST 12

/*
 * path     of a library; it must be one.
 * version  of the table to use; 0: the newest that it has.
 *
 * Returns NULL after an error, which is then in error_text. Members that a version lacks are there
 * and do nothing; get_properties() fills in what an older version does not say.
 */
const struct nccl_net_v12 *dsc_nccl_load(const char *path, int version, char *error_text,
                                         size_t error_bytes);
const void *dsc_nccl_table(void); /* the loaded one as it is */
int dsc_nccl_version(void);       /* of it */
void dsc_nccl_unload(void);

#endif
