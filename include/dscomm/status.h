/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status codes. Zero is success, positive means "not yet", negative is an error. Values are part of
 * the ABI: they are only ever added. The text that names the thing, the value and what is allowed
 * is dscomm_last_error(); a code alone only says which kind of trouble it is.
 */
#ifndef DSCOMM_STATUS_H
#define DSCOMM_STATUS_H

#if defined(__GNUC__)
#define DSCOMM_API __attribute__((visibility("default")))
#else
#define DSCOMM_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* X(NAME, value, "text") */
/* clang-format off */
#define DSCOMM_STATUS_MAP(X)                                                       \
    X(OK,               0,   "success")                                            \
    X(IN_PROGRESS,      1,   "not finished yet")                                   \
    X(ERR_INVALID,     -1,   "invalid argument")                                   \
    X(ERR_NO_MEMORY,   -2,   "out of memory")                                      \
    X(ERR_SYSTEM,      -3,   "system call failed")                                 \
    X(ERR_UNSUPPORTED, -4,   "not supported by this build or communicator")        \
    X(ERR_TIMEOUT,     -5,   "deadline passed")                                    \
    X(ERR_PEER_LOST,   -6,   "a rank died or closed its connection")               \
    X(ERR_MISMATCH,    -7,   "ranks disagree on a call or on their configuration") \
    X(ERR_CORRUPT,     -8,   "a message failed its checks")                        \
    X(ERR_ABORTED,     -9,   "aborted")                                            \
    X(ERR_BAD_STATE,   -10,  "object is not in a state that allows this")          \
    X(ERR_ENV,         -11,  "bad environment variable")                           \
    X(ERR_LIMIT,       -12,  "a system limit is too low")
/* clang-format on */

typedef enum {
#define DSCOMM_STATUS_ENUM(name, value, text) DSCOMM_##name = value,
    DSCOMM_STATUS_MAP(DSCOMM_STATUS_ENUM)
#undef DSCOMM_STATUS_ENUM
} dscomm_status_t;

/**
 * Short fixed text of a status, never NULL.
 * Threads: any.
 */
DSCOMM_API const char *dscomm_status_text(dscomm_status_t status);

/**
 * Text of the last error that a call of this library returned on the calling thread: names the
 * thing, its value and what is allowed. Empty before the first error; borrowed until the thread's
 * next call into the library.
 * Threads: any; each thread has its own.
 */
DSCOMM_API const char *dscomm_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
