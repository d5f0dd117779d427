/* SPDX-License-Identifier: Apache-2.0 */
/* Prints docs/env.md from the environment registry: build/<preset>/tests/env_md > docs/env.md */
#include "core/core.h"

#include <stdio.h>

int main(void)
{
    size_t n;
    const struct dsc_env_doc *const docs = dsc_env_docs(&n);

    (void)printf(
        "# Environment variables\n\n"
        "Generated from `src/core/env.def` by `tests/lint/env_md.c`; do not edit.\n\n"
        "A bad value is an error that names the variable, the value and what is allowed.\n"
        "An unknown `DSCOMM_*` name is ignored with a warning that names the nearest\n"
        "known one. Numbers are decimal, or hexadecimal with `0x`. A configuration passed\n"
        "to `dscomm_comm_create()` wins over the environment.\n\n"
        "| variable | default | allowed | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++)
        (void)printf("| `%s` | %s%s%s | %s | %s |\n", docs[i].name, docs[i].dflt[0] ? "`" : "",
                     docs[i].dflt[0] ? docs[i].dflt : "empty", docs[i].dflt[0] ? "`" : "",
                     docs[i].range, docs[i].doc);
    return 0;
}
