/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another net plugin, of any version, in the shape of v12. One per process, since its functions
 * have no place for a pointer.
 */
#ifndef DSC_NET_LOAD_H
#define DSC_NET_LOAD_H

#include "nccl_abi.h"

#define NET_LOAD_OLDEST 6
#define NET_LOAD_NEWEST 12

/*
 * path     of a library; it must be one.
 * version  of the table to use; 0: the newest that it has.
 *
 * Returns NULL after an error, which is then in error_text. Members that a version lacks are there
 * and do nothing; get_properties() fills in what an older version does not say.
 */
const struct nccl_net_v12 *net_load(const char *path, int version, char *error_text,
                                    size_t error_bytes);
const void *net_load_table(void); /* the loaded one as it is */
void net_unload(void);

#endif
