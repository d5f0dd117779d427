# SPDX-License-Identifier: Apache-2.0
"""The conservation law, checked from what a program dumped:

    A * sum of outputs + sum over ranks of r  ==  sum over ranks of inputs + r before the first call

over all calls with a finite output, element by element (A: ranks for avg, else 1). It needs no
knowledge of codecs, layouts or messages, so it finds errors that a model shares with the code.

    law.py DIR

DIR holds meta.txt (lines key=value: ranks, calls, count, dtype, op, mode, and optionally
rdtype=fp32|bf16, shadow=0|1, algo=tiered|oneshot, momentum=M), and little-endian arrays without any header:
    in_C_R.bin   input of call C on rank R, data type
    out_C.bin    output of call C, data type
    res_R.bin    residual after the last call, float32
    res_C_R.bin  residual after call C, float32 (random mode; there res_R.bin may be left out)
    init_R.bin   residual before the first call, float32; zero where the file is missing
    mom_C_R.bin  u before call C, float32, with momentum: then m*u + g is what goes in
Mode dyadic: inputs and scales are such that nothing rounds; the error must be exactly 0.
Mode random: every element within 4 * 2^-24 * (sum of |inputs| and |residuals| over calls and
ranks), and 1e-6 relative in L2. Prints the figures; exit code 0 if the law holds, 1 if not, 2 if
the dump cannot be read.
"""
import os
import sys
from dataclasses import dataclass

import numpy as np

from ieee import DATA_TYPES, F32

ULP = 2.0 ** -24
BF16_STORE = 2.0 ** -8  # one rounding of a stored bf16 value is at most half of it


class DumpError(ValueError):
    """The dump is incomplete or contradicts itself."""


@dataclass
class Ledger:
    """Both sides of the law, summed in float64 (exact for dyadic data of any sensible size)."""
    n_ranks: int
    op: str
    residual_unit: float     # rounding of a stored residual relative to its size
    restores: bool = True    # shadow: a lost call leaves no trace in r
    gave: np.ndarray = None
    got: np.ndarray = None
    scale: np.ndarray = None  # what the error may be, per element
    lost: int = 0
    excluded: np.ndarray = None

    def open(self, initial):
        """initial: float64 [rank][element], the residual before the first call."""
        self.gave, self.got = initial.sum(0), np.zeros(initial.shape[1])
        self.scale = 4 * ULP * np.abs(initial).sum(0)
        self.excluded = np.zeros(initial.shape[1], bool)

    def divisor(self):
        return self.n_ranks if self.op == 'avg' else 1

    def call(self, inputs, out, residuals):
        """One call: float32 inputs [rank][element] and output; residuals after it, or None."""
        a = self.divisor()
        finite = np.isfinite(F32(a) * out)
        self.lost += int((~finite).sum())
        if not self.restores:
            self.excluded |= ~finite
        wide = inputs[:, finite].astype(np.float64)
        self.gave[finite] += wide.sum(0)
        self.got[finite] += a * out[finite].astype(np.float64)
        self.scale[finite] += 4 * ULP * np.abs(wide).sum(0)
        if residuals is not None:
            size = np.abs(residuals.astype(np.float64)).sum(0)
            self.scale += (4 * ULP + self.residual_unit) * size

    def close(self, final):
        """(error, bound, relative L2 error) over the elements for which the law is claimed."""
        error = np.abs(self.got + final.astype(np.float64).sum(0) - self.gave)[~self.excluded]
        total = np.linalg.norm(self.gave[~self.excluded])
        norm = np.linalg.norm(error)
        return error, self.scale[~self.excluded], norm / total if total > 0 else norm


def verdict(ledger, final, mode):
    """(holds, text with the figures)"""
    if not np.isfinite(final).all():
        return False, 'residual holds %d values that are not finite' % (~np.isfinite(final)).sum()
    error, bound, relative = ledger.close(final)
    worst = error.max(initial=0.0)
    share = (error / np.maximum(bound, 1e-300)).max(initial=0.0)
    text = 'max error %.3g, %.3f of the bound, relative L2 %.3g, %d outputs lost' % (
        worst, share, relative, ledger.lost)
    if mode == 'dyadic':
        return bool(worst == 0), text
    limit = 1e-6 if ledger.residual_unit == 0 else 1e-2
    return bool(share <= 1 and relative <= limit), text


class Dump:
    """Files of a directory as arrays."""

    def __init__(self, folder):
        self.folder = folder
        self.meta = self._meta()
        try:
            self.n_ranks, self.n_calls, self.count = (int(self.meta[k])
                                                      for k in ('ranks', 'calls', 'count'))
            self.type = DATA_TYPES[self.meta['dtype']]
            self.op, self.mode = self.meta['op'], self.meta['mode']
        except (KeyError, ValueError) as problem:
            raise DumpError('meta.txt: %s' % problem) from problem
        if self.op not in ('sum', 'avg') or self.mode not in ('dyadic', 'random'):
            raise DumpError('meta.txt: op must be sum or avg, mode dyadic or random')

    def _meta(self):
        try:
            with open(os.path.join(self.folder, 'meta.txt'), encoding='ascii') as lines:
                return dict(line.strip().split('=', 1) for line in lines if line.strip())
        except (OSError, ValueError) as problem:
            raise DumpError('meta.txt: %s' % problem) from problem

    def exists(self, name):
        return os.path.exists(os.path.join(self.folder, name))

    def array(self, name, word):
        path = os.path.join(self.folder, name)
        size = np.dtype(word).itemsize * self.count
        if not self.exists(name) or os.path.getsize(path) != size:
            raise DumpError('%s: missing, or not %d bytes' % (name, size))
        return np.fromfile(path, np.dtype(word).newbyteorder('<')).astype(word)

    def typed(self, name):
        return self.type.from_bits(self.array(name, self.type.word))

    def per_rank(self, pattern, read):
        rows = [read(pattern % rank) for rank in range(self.n_ranks)]
        return np.array(rows, F32).reshape(self.n_ranks, self.count)

    def residuals(self, pattern):
        return self.per_rank(pattern, lambda name: self.array(name, F32))

    def inputs(self, call):
        """Of all ranks, as they are reduced."""
        g = self.per_rank('in_%d_%%d.bin' % call, self.typed)
        momentum = F32(self.meta.get('momentum', '0'))
        return g + momentum * self.residuals('mom_%d_%%d.bin' % call) if momentum else g

    def initial(self):
        def read(name):
            return self.array(name, F32) if self.exists(name) else np.zeros(self.count, F32)
        return self.per_rank('init_%d.bin', read).astype(np.float64)


def _unit(dump):
    if dump.meta.get('rdtype', 'fp32') == 'fp32':
        return 0.0
    # In a one-shot the owner stores twice: its own error first, then with the output's rounding.
    return BF16_STORE * (2 if dump.meta.get('algo') == 'oneshot' else 1)


def check(folder):
    """(holds, figures) of a dump; DumpError if it cannot be read."""
    dump = Dump(folder)
    ledger = Ledger(dump.n_ranks, dump.op, _unit(dump), dump.meta.get('shadow', '1') == '1')
    ledger.open(dump.initial())
    final = None
    for call in range(dump.n_calls):
        inputs = dump.inputs(call)
        residuals = None
        if dump.mode == 'random':
            residuals = final = dump.residuals('res_%d_%%d.bin' % call)
        ledger.call(inputs, dump.typed('out_%d.bin' % call), residuals)
    if dump.mode == 'dyadic' or dump.exists('res_0.bin') or final is None:
        final = dump.residuals('res_%d.bin')
    return verdict(ledger, final, dump.mode)


def main(args):
    if len(args) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        holds, figures = check(args[0])
    except DumpError as problem:
        print('%s: %s' % (args[0], problem), file=sys.stderr)
        return 2
    print('%s: %s' % ('law holds' if holds else 'LAW BROKEN', figures))
    return 0 if holds else 1


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
