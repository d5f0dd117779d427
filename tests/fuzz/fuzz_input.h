/* SPDX-License-Identifier: Apache-2.0 */
/* What targets that talk over sockets share: their input's head, and a look at descriptors. */
#ifndef DSC_TESTS_FUZZ_INPUT_H
#define DSC_TESTS_FUZZ_INPUT_H

#include <dirent.h>

#include "fuzz/fuzz.h"

struct input {
    const uint8_t *data; /* after the head */
    size_t size;
    uint8_t target, flags, piece, number;
};

/* Of at least FUZZ_HEAD_BYTES. */
static inline struct input read_input(const uint8_t *data, size_t size, size_t n_targets)
{
    return (struct input){
        .data = data + FUZZ_HEAD_BYTES,
        .size = size - FUZZ_HEAD_BYTES,
        .target = (uint8_t)(data[0] % n_targets),
        .flags = data[1],
        .piece = data[2],
        .number = data[3],
    };
}

/* -1: cannot be counted. */
static inline int count_descriptors(void)
{
    DIR *const dir = opendir("/proc/self/fd");
    int n = 0;

    if (dir == NULL)
        return -1;
    while (readdir(dir) != NULL)
        n++;
    (void)closedir(dir);
    return n;
}

#endif
