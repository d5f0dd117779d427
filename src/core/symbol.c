/* SPDX-License-Identifier: Apache-2.0 */
/* Symbols of libraries that are loaded when they are first needed. */
#include "core/core.h"

#include <dlfcn.h>

void *dsc_find_symbol(void *library, const char *name, const char **missing)
{
    void *const symbol = dlsym(library, name);

    if (symbol == NULL && *missing == NULL)
        *missing = name;
    return symbol;
}
