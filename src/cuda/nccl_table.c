/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Once per process; the library stays loaded.
 */
#include "cuda/nccl_table.h"

#include <dlfcn.h>

static struct dsc_nccl table;
static const char *missing; /* NULL: all there */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
    void *library = RTLD_DEFAULT;

    if (dlsym(RTLD_DEFAULT, "ncclCommCount") == NULL)
        library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (dlsym(RTLD_DEFAULT, "ncclCommCount") == NULL && library == NULL) {
        missing = "libnccl.so.2";
        return;
    }
    /* a function pointer is stored through void *, as dlsym() wants it */
#define DSC_NCCL_FIND(name) \
    *(void **)&table.name = dsc_find_symbol(library, "nccl" #name, &missing);
    DSC_NCCL_MAP(DSC_NCCL_FIND)
#undef DSC_NCCL_FIND
}

dscomm_status_t dsc_nccl_get(const struct dsc_nccl **out)
{
    pthread_once(&once, load);
    if (missing != NULL)
        return dsc_fail(DSCOMM_ERR_UNSUPPORTED, "NCCL: %s was not found", missing);
    *out = &table;
    return DSCOMM_OK;
}
