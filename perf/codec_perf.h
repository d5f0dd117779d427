/* SPDX-License-Identifier: Apache-2.0 */
/* The part of codec_perf that needs CUDA: codec_perf_cuda.c, or codec_perf_no_cuda.c. */
#ifndef CODEC_PERF_H
#define CODEC_PERF_H

#include <stddef.h>

/* Prints the table. codec NULL: all; bytes 0: the default. Returns the program's exit code. */
int codec_perf_cuda(const char *codec, size_t bytes, int rounds);

#endif
