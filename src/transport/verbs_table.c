/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Once per process; the library stays loaded, for devices of other users may depend on it.
 */
#include "transport/verbs_table.h"

#include <dlfcn.h>

#define LIBRARY "libibverbs.so.1"

static struct dsc_verbs table;
static const char *missing; /* NULL: all there */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void load(void)
{
    void *const library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

    if (library == NULL) {
        missing = LIBRARY;
        return;
    }
    /* a function pointer is stored through void *, as dlsym() wants it */
#define DSC_VERBS_FIND(name) \
    *(void **)&table.name = dsc_find_symbol(library, "ibv_" #name, &missing);
    DSC_VERBS_MAP(DSC_VERBS_FIND)
#undef DSC_VERBS_FIND
#define DSC_VERBS_LOOK(name) *(void **)&table.name = dlsym(library, "ibv_" #name);
    DSC_VERBS_OPTIONAL_MAP(DSC_VERBS_LOOK)
#undef DSC_VERBS_LOOK
}

const struct dsc_verbs *dsc_verbs_get(const char **why_out)
{
    pthread_once(&once, load);
    *why_out = missing;
    return missing == NULL ? &table : NULL;
}
