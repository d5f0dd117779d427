/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A fuzz target is a source with libFuzzer's two functions. With clang it is linked against
 * libFuzzer (-fsanitize=fuzzer,address), with any compiler against fuzz_main.c:
 *
 *     NAME [--runs=N] [--seconds=N] [--seed=N] FILE_OR_FOLDER...
 *
 * runs every file once, then N random changes of them, or as many as the seconds allow.
 */
#ifndef DSC_TESTS_FUZZ_H
#define DSC_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#define FUZZ_HEAD_BYTES 4 /* what to do with the rest: changed more often than the rest */
#define FUZZ_INPUT_MAX 20004

int LLVMFuzzerInitialize(int *argc, char ***argv);
/* Returns 0; aborts when something does not hold. The input has exactly its size. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#endif
