/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/simd/vec_neon.h"

#include "codec/simd/elements.h"

#include "codec/simd/casts.h"
