/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of codec_perf: the command line and a process per instruction set (codec_perf.c), the
 * host's codecs (codec_perf_host.c), those of a GPU (codec_perf_cuda.c, or codec_perf_no_cuda.c).
 */
#ifndef CODEC_PERF_H
#define CODEC_PERF_H

#include <stdbool.h>
#include <stddef.h>

#define CODEC_PERF_ROUNDS_MAX 1000

struct codec_perf_options {
    size_t bytes; /* 0: some */
    int rounds;
    const char *data;  /* as of all_reduce_perf */
    const char *codec; /* NULL: all */
    const char *level; /* NULL: all */
    bool on_cuda;
};

/* Prints a table for each size. level: its name. Returns an exit code. */
int codec_perf_host(const struct codec_perf_options *opt, const char *level);

/* Prints the table. codec NULL: all; bytes 0: the default. Returns the program's exit code. */
int codec_perf_cuda(const char *codec, size_t bytes, int rounds);

#endif
