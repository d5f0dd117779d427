/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/simd/vec_avx512.h"

#include "codec/simd/nvfp4.h"
