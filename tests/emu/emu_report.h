// SPDX-License-Identifier: Apache-2.0
// How the emulator speaks, and what it asks of AddressSanitizer where the process has it.
#ifndef DSC_EMU_REPORT_H
#define DSC_EMU_REPORT_H

#include <stddef.h>

// A bug of the program under test: one line on stderr, counted in EmuCounts.faults.
void emu_report(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Only with CUDAEMU_VERBOSE=1.
void emu_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
// The emulator can not go on.
[[noreturn]] void emu_die(const char *what);

long emu_env_long(const char *name, long default_value);

void emu_asan_poison(const void *p, size_t bytes);
void emu_asan_unpoison(const void *p, size_t bytes);

#endif
