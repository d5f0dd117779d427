/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of one side of a comparison. compare.py starts the ranks of all sides once; each waits
 * in read() for a command on a unix socket, so that it takes nothing from the side that is being
 * measured. All sides run the same loop on the same data with the same barrier before each timed
 * call; they differ in struct compare_backend alone.
 */
#ifndef COMPARE_WORKER_H
#define COMPARE_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The file that the ranks of a side share, written by compare.py (sides.py). Sets of float32 follow
 * the header: set p * n_ranks + r is what rank r starts with in plane p.
 *
 *   byte 0         64        128       136       144     4096
 *        +---------+---------+---------+---------+-------+------
 *        | arrived | round   | n_ranks | n_elems | zeros | sets
 *        | u32     | u32     | u64     | u64     |       | f32
 *        +---------+---------+---------+---------+-------+------
 */
#define COMPARE_PLANES 2u /* the gradients, and the same with all signs changed */

struct compare_shared {
    _Atomic uint32_t arrived;
    uint8_t pad0[60];
    _Atomic uint32_t round;
    uint8_t pad1[60];
    uint64_t n_ranks;
    uint64_t n_elems; /* of a set */
    uint8_t pad2[4096 - 144];
    float sets[];
};
_Static_assert(offsetof(struct compare_shared, sets) == 4096, "sets start at byte 4096");

/** Map the file; NULL after saying why not. Lives as long as the process. */
struct compare_shared *compare_shared_map(const char *path);

/**
 * Wait until all ranks are here. Spins, then lets others run: the last rank may need this core.
 * Has no deadline of its own: the caller's alarm() ends a rank whose peers are gone.
 */
void compare_barrier(struct compare_shared *shared);

/** Fill dst with the input of a rank in a call: new data in each, of the same scale. */
void compare_fill(const struct compare_shared *shared, float *dst, size_t count, uint64_t rank,
                  uint64_t call);

/**
 * Relative L2 error of what came out of a call against the float64 sum of all inputs. Where the sum
 * is nearly nothing, against the norm that independent ranks would give on average.
 */
double compare_error(const struct compare_shared *shared, const float *out, size_t count,
                     uint64_t call);

/* What a side does. Functions that fail return false after they said why on stderr. */
struct compare_backend {
    void *self;
    const char *version; /* one line */
    int rank;
    bool in_place; /* the call reads and writes recv; send stays unused */
    bool (*knows)(void *self, const char *codec);
    /* Calls of this codec, count and recv follow. */
    bool (*prepare)(void *self, const char *codec, float *recv, size_t count);
    bool (*call)(void *self, const float *send, float *recv, size_t count);
    int64_t (*sent_bytes)(void *self); /* since the start; -1: does not tell */
};

/**
 * Do what compare.py says until it closes the socket.
 *
 * @param control Path of its unix socket.
 * @param shared  Path of the file above.
 * @param side    Name, to tell who calls.
 *
 * @return exit code of the process
 */
int compare_worker_run(const struct compare_backend *backend, const char *control,
                       const char *shared, const char *side);

#endif
