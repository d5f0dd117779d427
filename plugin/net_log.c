/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of the plugin, and of the library's modules inside it, go to NCCL's logger. */
#include "net.h"

#include <stdarg.h>
#include <stdio.h>

static _Atomic(nccl_logger_t *) current;

static void write_line(int level, unsigned long subsystem, const char *text)
{
    nccl_logger_t *const logger = atomic_load(&current);

    if (logger != NULL)
        logger(level, subsystem, "dscomm", 0, "%s", text);
}

static void library_line(dscomm_log_level_t level, const char *where, const char *text)
{
    char line[1600];

    snprintf(line, sizeof(line), "DSComm: %s", text);
    (void)where;
    write_line(level <= DSCOMM_LOG_WARN ? NCCL_LOG_WARN : NCCL_LOG_INFO,
               level <= DSCOMM_LOG_WARN ? NCCL_LOG_ALL : NCCL_LOG_NET, line);
}

void net_log_set(nccl_logger_t *logger)
{
    atomic_store(&current, logger);
    dsc_log_set_writer(library_line);
}

void net_info(unsigned long subsystem, const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    write_line(NCCL_LOG_INFO, subsystem, text);
}

void net_warn(const char *fmt, ...)
{
    char text[1024];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    write_line(NCCL_LOG_WARN, NCCL_LOG_ALL, text);
}

nccl_result_t net_result(dscomm_status_t status)
{
    switch (status) {
    case DSCOMM_ERR_INVALID:
        return NCCL_INVALID_ARGUMENT;
    case DSCOMM_ERR_ENV:
    case DSCOMM_ERR_MISMATCH:
        return NCCL_INVALID_USAGE;
    case DSCOMM_ERR_PEER_LOST:
    case DSCOMM_ERR_TIMEOUT:
    case DSCOMM_ERR_CORRUPT:
        return NCCL_REMOTE_ERROR;
    default:
        return status < 0 ? NCCL_SYSTEM_ERROR : NCCL_SUCCESS;
    }
}
