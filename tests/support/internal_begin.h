/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Around the internal C headers in a C++ test:
 *     #include "support/internal_begin.h"
 *     #include "transport/transport.h"
 *     #include "support/internal_end.h"
 * C++17 has no _Atomic, so an `_Atomic uint32_t` appears as a plain uint32_t of the same size and
 * alignment: tests pass such words on and touch them with the __atomic builtins only.
 * No include guard: the pair may be used again.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dscomm/dscomm.h"

#define _Atomic
#define _Static_assert static_assert
extern "C" {
