/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conformance of a net plugin of NCCL, whoever wrote it: what NCCL relies on, as programs of one or
 * two processes. Each case runs in a process of its own under a time limit; a check that fails ends
 * that process. No GPU, no NCCL.
 */
#ifndef NET_CASE_H
#define NET_CASE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

#include "transport/nccl_abi.h"

extern int slowness; /* of this machine: 1, or more in an emulated one */

#define CASE_LIMIT_S (120 * slowness) /* of a case */
#define CALL_ALARM_S (5 * slowness)   /* of a call: it never returns */
#define CASE_WAIT_S (20 * slowness)   /* for something that must happen */
#define CALL_LIMIT_S (1.0 * slowness) /* a call that takes longer has blocked */
#define HANDLE_GUARD 0xa5

struct options {
    const char *plugin;
    int abi;
    long lines; /* of the poller */
    int cycles;
};
extern struct options options;
extern const struct nccl_net_v12 *net; /* of the case's process */

struct net_test {
    const char *name;
    void (*run)(void);
};
extern const struct net_test connect_cases[], data_cases[], end_cases[], lines_cases[],
    load_cases[], rdma_cases[], stranger_cases[], tuner_cases[], tuner_text_cases[];

#define CHECK(cond, ...)                                          \
    do {                                                          \
        if (!(cond))                                              \
            check_failed(__FILE__, __LINE__, #cond, __VA_ARGS__); \
    } while (0)
#define OK(call)                                                                                \
    do {                                                                                        \
        const nccl_result_t result_ = (call);                                                   \
        CHECK(result_ == NCCL_SUCCESS, "result %d, last warning: %s", result_, last_warning()); \
    } while (0)
void check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 4, 5)));

double now_s(void);
nccl_logger_t *warning_logger(void); /* for init() */
const char *last_warning(void);
int n_infos(void); /* lines at INFO so far */
int n_warnings(void);

/* ---- one process ---- */

void load_plugin(void);   /* sets net */
void *start_plugin(void); /* init() and devices(); returns the context */
/* The handle holds an IPv4 address, as DSComm's over TCP does. */
bool is_dscomm_tcp(const uint8_t *handle);

/* A handle whose neighbours are watched. */
struct guarded_handle {
    uint8_t before[64];
    uint8_t bytes[NCCL_HANDLE_BYTES];
    uint8_t after[64];
};

struct ends {
    void *ctx, *listen, *send, *recv;
    struct guarded_handle handle;
};
/* Both ends in this thread, by turns. */
void connect_ends(struct ends *ends, void *ctx);
/* Loads and starts the plugin and listens on its first device; the other way round. */
void begin_ends(struct ends *ends);
void end_ends(struct ends *ends);
void finish_ends(struct ends *ends); /* of a listener that is there, and of what was begun */
void close_ends(struct ends *ends);

/* One call that must not block. */
void *try_connect(void *ctx, void *handle);
void *try_accept(void *listen);

/* ---- messages ---- */

void *reg(void *comm, void *data, size_t bytes);
void dereg(void *comm, void *mr);
/* *request must be written, or the check fails. NULL: try later. */
void *try_send(void *comm, void *data, size_t bytes, void *mr);
void *try_recv(void *comm, void *data, size_t bytes, void *mr, void *mark);
/* Until there is a request. */
void *send_now(void *comm, void *data, size_t bytes, void *mr);
void *recv_now(void *comm, void *data, size_t bytes, void *mr);
bool try_test(void *request, int *bytes);
int wait_done(void *request); /* its size */
/* Where both ends are this thread's: a net may send only while its receiver is at work. */
void wait_both(void *send, void *recv, int expected);
/* Until one of both is done or fails: for requests that may fail. */
nccl_result_t wait_result(void *request);

void fill(void *data, size_t bytes, uint64_t seed);
bool is_filled(const void *data, size_t bytes, uint64_t seed);

/* ---- two processes ---- */

struct side {
    void *ctx, *comm;
    int socket; /* to the other process */
};
typedef void side_fn(struct side *side);
/* Runs both, connected; a NULL receiver or one that exits with 0 passes. */
void run_sides(side_fn *sender, side_fn *receiver);
/* prepare: in each process, before the plugin's init(). */
void run_prepared_sides(void (*prepare)(bool sends), side_fn *sender, side_fn *receiver);
/* One more connection like the first, at the same time in both. */
void *side_accept(struct side *side);
void *side_connect(struct side *side);
void move_bytes(int socket, void *data, size_t bytes, bool sends);
void tell(struct side *side); /* the other one may go on */
void await_told(struct side *side);
bool is_told(struct side *side); /* await_told() would not wait */

/* ---- this process ---- */

int count_entries(const char *folder); /* /proc/self/fd, /proc/self/task */

#endif
