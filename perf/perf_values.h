/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options that several programs take: numbers, sizes, words of a list. */
#ifndef PERF_VALUES_H
#define PERF_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PERF_TRANSPORTS "auto shm verbs tcp nccl_net loopback"
#define PERF_ALGORITHMS "auto oneshot twoshot tiered"
#define PERF_DATA "normal lm cnn file:PATH"
#define PERF_BYTES "bytes, with K, M or G if wanted"

/* Each is false when the text is no such value; the output is then as it was. */

bool perf_parse_u64(const char *text, uint64_t min, uint64_t max, uint64_t *value_out);
bool perf_parse_int(const char *text, int min, int max, int *value_out);
/* Powers of 1024; "1.5M" is fine, as in nccl-tests. */
bool perf_parse_bytes(const char *text, uint64_t min, uint64_t max, size_t *bytes_out);
/* words: separated by single blanks. */
bool perf_is_one_of(const char *text, const char *words);
/* One of PERF_DATA. */
bool perf_is_data(const char *text);

#endif
