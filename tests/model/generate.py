# SPDX-License-Identifier: Apache-2.0
"""Test input made from integers only, so that C, Python and anything else agree on every bit.

All arithmetic is on 32-bit unsigned integers that wrap. Element i of a rank in a call is
    key = mix(seed + mix(call + mix(rank)))        calls count from 0
    h   = mix(key ^ i) >> 8                         as a signed number, arithmetic shift
    g   = mix(~key ^ (i >> 6))                      one draw per 64 elements
    v   = h * 2^-(20 + (g >> 4 & 7)),  but +0 where (g & 15) == 0
h has 24 bits with its sign, hence v is exact in float32. The groups of 64 give neighbouring blocks
different magnitudes (a factor of up to 128) and leave one group in 16 all zero, like real
gradients. fp16 and bf16 input is v rounded to nearest even.
"""
import numpy as np

from ieee import F32, U32


def mix(x):
    """Avalanche of a 32-bit word."""
    x = np.asarray(x, U32)
    x = (x ^ (x >> U32(16))) * U32(0x7feb352d)
    x = (x ^ (x >> U32(15))) * U32(0x846ca68b)
    return x ^ (x >> U32(16))


def generate(seed, rank, call, count):
    """float32 [count]"""
    key = mix(U32(seed) + mix(U32(call) + mix(U32(rank))))
    i = np.arange(count, dtype=U32)
    h = mix(key ^ i).view(np.int32) >> 8
    g = mix(~key ^ (i >> U32(6)))
    v = np.ldexp(h.astype(F32), -(20 + ((g >> U32(4)) & U32(7)).astype(np.int32)))
    return np.where(g & U32(15), v, F32(0)).astype(F32)


def inputs(seed, n_ranks, call, count, data_type, inject=()):
    """Bits of the data type, one row per rank; inject replaces single elements by given bits."""
    rows = np.zeros((n_ranks, count), data_type.word)
    for rank in range(n_ranks):
        rows[rank] = data_type.to_bits(generate(seed, rank, call, count))
    for at_call, rank, index, word in inject:
        if at_call == call and index < count:
            rows[rank, index] = word
    return rows
