/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status texts and the thread's last error. dsc_fail() is called where an error is decided: it logs
 * the line and keeps the text, so that callers above only forward the status.
 */
#include "core/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES 1280 /* holds an error message of a peer and words about it */

static _Thread_local char last_error[TEXT_BYTES];

static const char *base_name(const char *path)
{
    const char *const slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

static void report(const char *file, int line, const char *text)
{
    char where[96];

    (void)snprintf(where, sizeof(where), "%s:%d", base_name(file), line);
    dsc_set_last_error(text);
    dsc_log_write(DSCOMM_LOG_ERROR, where, text); /* no level hides an error */
}

void dsc_set_last_error(const char *text)
{
    if (text == last_error)
        return;
    (void)snprintf(last_error, sizeof(last_error), "%s", text);
}

void dsc_fail_at(const char *file, int line, const char *fmt, ...)
{
    char text[TEXT_BYTES]; /* an argument may be last_error itself */
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);

    report(file, line, text);
}

void dsc_fail_errno_at(const char *file, int line, const char *fmt, ...)
{
    const int error = errno;
    char text[TEXT_BYTES];
    char reason[128];
    va_list args;

    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);

    const size_t len = strlen(text);

    /* The GNU form: returns the text, which may lie outside the buffer. */
    (void)snprintf(text + len, sizeof(text) - len, ": %s",
                   strerror_r(error, reason, sizeof(reason)));
    report(file, line, text);
}

void dsc_assert_failed(const char *cond, const char *file, int line)
{
    char where[96];
    char text[256];

    (void)snprintf(where, sizeof(where), "%s:%d", base_name(file), line);
    (void)snprintf(text, sizeof(text), "broken invariant: %s", cond);
    dsc_log_write(DSCOMM_LOG_ERROR, where, text);
    abort();
}

const char *dscomm_status_text(dscomm_status_t status)
{
    switch (status) {
#define STATUS_CASE(name, value, text) \
    case DSCOMM_##name:                \
        return text;
        DSCOMM_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *dscomm_last_error(void)
{
    return last_error;
}
