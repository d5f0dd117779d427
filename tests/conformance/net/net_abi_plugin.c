/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin that has one version of the interface, NET_ABI: the table of NET_ABI_INNER. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/nccl_abi.h"

#define PASTE(a, b) a##b
#define NAMED(prefix, version) PASTE(prefix, version)
#define TEXT_OF(word) #word
#define TEXT(word) TEXT_OF(word)
#define TABLE NAMED(ncclNetPlugin_v, NET_ABI)
typedef struct NAMED(nccl_net_v, NET_ABI) table_t;

extern table_t TABLE;
__attribute__((visibility("default"))) table_t TABLE;

static void *inner;

__attribute__((constructor)) static void fill_in(void)
{
    const char *const path = getenv("NET_ABI_INNER");
    const void *found = NULL;

    inner = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (inner != NULL)
        found = dlsym(inner, TEXT(TABLE));
    if (found == NULL) {
        fprintf(stderr, "NET_ABI_INNER: no %s in %s\n", TEXT(TABLE), path != NULL ? path : "-");
        exit(1);
    }
    memcpy(&TABLE, found, sizeof(TABLE));
}

__attribute__((destructor)) static void unload(void)
{
    dlclose(inner);
}
