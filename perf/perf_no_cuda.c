/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of perf_cuda.c where there is no CUDA to build with. */
#include "perf.h"

const struct perf_place_ops *const perf_on_cuda = NULL;
