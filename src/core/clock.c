/* SPDX-License-Identifier: Apache-2.0 */
/* Time for deadlines and statistics. Monotonic, because a step of the wall clock is no timeout. */
#include "core/core.h"

#include <time.h>

uint64_t dsc_now_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
