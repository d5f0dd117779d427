# SPDX-License-Identifier: Apache-2.0
"""The few lines that all checks of the model share."""
import numpy as np

import formats
import plan as planning
from ieee import DATA_TYPES, F32, bits_of
from reduce import Setup, allreduce

COUNTS = {True: 0, False: 0}
FLAT = [list(range(p)) for p in range(1, 10)]
TWO_TIERS = [[0, 1, 2], [3, 4, 5, 6]]
LAYOUTS = FLAT + [TWO_TIERS, [[0], [1, 2, 3]], [[0], [1], [2], [3, 4, 5, 6, 7]],
                  [[[0, 1, 2], [3, 4, 5]], [[6, 7, 8], [9, 10, 11]]], [[0, 3, 5], [1, 2, 4, 6]]]
CODECS = ('none', 'fp32', 'fp16', 'bf16', 'int8', 'int8:block=32', 'int4', 'int4:block=16', 'fp8',
          'fp8:e5m2', 'topk:0.01', 'topk:0.02,int8', 'topk:k=40,fp8', 'int8,hadamard', 'int4,hadamard', 'int4:block=16,hadamard', 'fp8,hadamard',
          'int4:signed',
          'mxfp8', 'mxfp8,ceil', 'mxfp8:e5m2', 'mxfp4', 'mxfp4,ceil', 'mxint8', 'nvfp4', 'lossless',
          'int8,entropy')
# Equal values that a codec carries exactly: the largest code at scale 1. Others carry 1.
FULL_CODES = {'int4': 7, 'int4:block=16': 7, 'fp8': 448, 'fp8:e5m2': 57344,
              'int4,hadamard': 7, 'int4:block=16,hadamard': 7, 'fp8,hadamard': 448,
              'int4:signed': 8, 'topk:k=40,fp8': 448, 'nvfp4': 2688}


def expect(ok, *what):
    COUNTS[bool(ok)] += 1
    if not ok:
        print('FAILED', *what)


def refuses(error, call, *args):
    """The error that the call raised, None if it was content."""
    try:
        call(*args)
    except error as problem:
        return problem
    return None


def same(a, b):
    return np.array_equal(bits_of(a), bits_of(b))


def carried(codec, x):
    """What of x a codec can send at once: for top-k one element in 256, which is in every piece."""
    if not isinstance(formats.parse(codec), formats.TopK):
        return x
    return np.where(np.arange(len(x)) % 256 == 5, x, F32(0)).astype(F32)


def n_ranks(layout):
    return len(planning.make_tree(layout).ranks)


def reduce_rows(rows, codec, layout=None, dtype='fp32', residual=None, **options):
    """(output values, result) of a call whose input is float32 rows."""
    layout = list(range(len(rows))) if layout is None else layout
    codecs = [codec] if isinstance(codec, str) else list(codec)
    data_type = DATA_TYPES[dtype]
    bits = np.array([data_type.to_bits(np.asarray(row, F32)) for row in rows])
    result = allreduce(Setup(layout, codecs, dtype=dtype, **options), bits, residual)
    return data_type.from_bits(result.out), result
