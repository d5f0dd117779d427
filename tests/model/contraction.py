#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How much of a vector one encode can leave behind at most: ||x - D|| <= delta ||x||.

For every codec the bound of docs/feedback.md, and the largest quotient of a search among vectors that
are as bad as the proof says. Then the law of beta < 1. Prints the table of the document and
`N passed, N failed`.
"""
import sys

import numpy as np

import blocks
import formats
from expect import COUNTS, expect, reduce_rows
from ieee import F32
from reduce import Residual

UP = 1 + 2.0 ** -7  # a bfloat16 scale that was rounded up is larger by less than this


def integer_bound(block, largest):
    """One element at the largest code, all others half a step: they are sent as zeros."""
    rest = (block - 1) / 4
    return np.sqrt(rest / (largest ** 2 + rest))


BOUNDS = {
    'bf16': 1 / 257,
    'int8': integer_bound(256, 127),
    'int8:block=16': integer_bound(16, 127),
    'int8:block=64': integer_bound(64, 127),
    'fp8': 1 / 17,
    'fp8:e5m2': 1 / 9,
    'int4': integer_bound(64, 7 / UP),
    'int4:block=16': integer_bound(16, 7 / UP),
    'int4:block=256': integer_bound(256, 7 / UP),
    'int4:signed': integer_bound(64, 8 / UP),
    'int4,hadamard': integer_bound(64, 7 / UP),
    'int8,hadamard': integer_bound(256, 127),
}


def half_steps(block, largest, rng):
    """Blocks with one large element; the others just below half a step of it."""
    rows = np.full((40, block), 0.4999) * rng.choice([-1, 1], (40, block))
    rows[:, 0] = largest * rng.uniform(1, 2, 40)
    rows[:, 1:] *= rows[:, :1] / largest
    return rows.reshape(-1)


def midpoints(largest, m_bits, rng):
    """Between the two values of a small float where a step is largest to the value."""
    rows = np.full((40, 256), 2.0 ** np.floor(np.log2(largest)) * (1 + 2.0 ** -(m_bits + 1)))
    rows[:, 1:] *= rng.choice([-1, 1], (40, 255))
    rows[:, 0] = largest
    return rows.reshape(-1)


def candidates(spec, rng):
    """Vectors among which the worst of a codec is looked for."""
    n = 40 * 256
    yield rng.normal(0, 1, n)
    yield rng.standard_t(3, n)
    f = formats.parse(spec)
    inner = getattr(f, 'inner', f)
    if isinstance(inner, blocks.BlockFloat8):
        yield midpoints(float(inner.kind.largest), 3 if inner.kind is blocks.E4M3 else 2, rng)
    elif isinstance(inner, blocks.Cast):
        yield np.full(n, 1 + 2.0 ** -8)
    else:
        largest = 127 if isinstance(inner, blocks.BlockInt8) else -inner.least
        for code in (largest, largest / UP):
            x = half_steps(inner.unit, code, rng)
            # Rotating twice is 32 times the vector: what is turned back here is x when encoded.
            yield x if inner is f else formats.rotated(x.astype(F32).reshape(-1, 32)).reshape(-1)


def worst_quotient(spec, rng):
    f, worst = formats.parse(spec), 0.0
    for x in candidates(spec, rng):
        x = x.astype(F32)
        left = (x.astype(np.float64) - f.decode(f.encode(x), len(x))).reshape(-1, f.unit)
        whole = x.astype(np.float64).reshape(-1, f.unit)
        worst = max(worst, (np.linalg.norm(left, axis=1) / np.linalg.norm(whole, axis=1)).max())
    return worst


def check_bounds():
    rng = np.random.default_rng(17)
    print('| codec | bound of delta | worst found | delta / (1 - delta) |\n|---|---|---|---|')
    for spec, bound in BOUNDS.items():
        worst = worst_quotient(spec, rng)
        print('| `%s` | %.4f | %.4f | %.4f |' % (spec, bound, worst, bound / (1 - bound)))
        expect(worst <= bound * 1.0001, 'beyond the bound', spec, worst, bound)
        expect(worst >= bound * 0.97, 'the bound is loose', spec, worst, bound)


def check_law_of_beta():
    """sum of outputs + last r = sum of inputs - (1 - beta) * sum of the r's that were read."""
    rng = np.random.default_rng(18)
    for codec, beta in (('int8', 0.95), ('int4', 0.95), ('int4', 0.5), ('fp8', 1.0)):
        residual, lost, total = Residual(3, 500), np.zeros(500), np.zeros(500)
        for _ in range(20):
            rows = rng.normal(0, 1, (3, 500)).astype(F32)
            lost += (1 - beta) * residual.current.astype(np.float64).sum(0)
            out, _ = reduce_rows(list(rows), codec, residual=residual, beta=beta)
            total += rows.astype(np.float64).sum(0) - out
        left = residual.current.astype(np.float64).sum(0)
        expect(np.abs(total - left - lost).max() < 1e-4, 'law of beta', codec, beta)
        expect(beta == 1 or np.abs(lost).max() > 1e-3, 'nothing was lost', codec, beta)


def main():
    check_bounds()
    check_law_of_beta()
    print('%d passed, %d failed' % (COUNTS[True], COUNTS[False]))
    return COUNTS[False] > 0


if __name__ == '__main__':
    sys.exit(main())
