/* SPDX-License-Identifier: Apache-2.0 */
/* Private to src/core: what the environment registry tells the log. */
#ifndef DSC_LOG_H
#define DSC_LOG_H

#include "core/core.h"

/* Lines above this level are dropped from now on. */
void dsc_log_set_level(dscomm_log_level_t level);

/* Writes a line that has passed the level check; where is "EXEC" or "file.c:123". */
void dsc_log_write(dscomm_log_level_t level, const char *where, const char *text);

#endif
