/* SPDX-License-Identifier: Apache-2.0 */
#include "codec/simd/vec_avx2.h"

#include "codec/simd/nvfp4.h"
