# SPDX-License-Identifier: Apache-2.0
"""Checks of the conservation law on the model, and of the program that checks it on dumps."""
import os
import tempfile

import numpy as np

import law
from expect import CODECS, LAYOUTS, TWO_TIERS, expect, n_ranks, reduce_rows, same
from ieee import DATA_TYPES, F32, FP32
from reduce import Residual, Setup, allreduce


def run_law(layout, codecs, dyadic=False, calls=5, dtype='fp32', op='sum', algo='tiered', **store):
    """Verdict over some calls, one of them with NaN and Inf when the data is random."""
    rng, n, p = np.random.default_rng(4), 700, n_ranks(layout)
    residual = Residual(p, n, **store)
    data_type = DATA_TYPES[dtype]
    unit = 2 * law.BF16_STORE if residual.kind == 'bf16' else 0.0
    ledger = law.Ledger(p, op, unit, residual.shadow)
    ledger.open(np.zeros((p, n)))
    for call in range(calls):
        v = rng.normal(0, 1, (p, n))
        if dyadic:
            v = rng.integers(-800, 801, (p, n)) / 8
            v[:, ::16] = 127
        elif call == 2:
            v[p - 1, 300], v[0, 5] = np.nan, np.inf
        bits = np.array([data_type.to_bits(row.astype(F32)) for row in v])
        before = residual.current.copy()
        result = allreduce(Setup(layout, list(codecs), op, dtype, algo), bits, residual)
        out = data_type.from_bits(result.out)
        lost = ~np.isfinite(F32(ledger.divisor()) * out)
        if residual.shadow:
            expect(same(residual.current[:, lost], before[:, lost]), 'restored', layout, codecs)
        ledger.call(np.array([data_type.from_bits(b) for b in bits]), out, residual.current)
    return law.verdict(ledger, residual.current, 'dyadic' if dyadic else 'random')


def check_law_on_random_data():
    for layout in LAYOUTS:
        for codec in CODECS:
            for algo in ('tiered', 'oneshot'):
                for op, dtype in (('sum', 'fp32'), ('avg', 'bf16')):
                    holds, text = run_law(layout, [codec], op=op, dtype=dtype, algo=algo)
                    expect(holds, 'law', layout, codec, algo, op, dtype, text)
    for codecs in (('none', 'int8'), ('bf16', 'int8'), ('int8', 'fp16')):
        for op, dtype in (('sum', 'fp16'), ('avg', 'fp32')):
            holds, text = run_law(TWO_TIERS, codecs, op=op, dtype=dtype)
            expect(holds, 'law', codecs, op, dtype, text)


def check_law_is_exact_on_dyadic_data():
    for layout in LAYOUTS:
        for op in ('sum', 'avg'):
            for dtype in ('fp32', 'bf16'):
                holds, text = run_law(layout, ['int8'], True, op=op, dtype=dtype)
                expect(holds, 'dyadic', layout, op, dtype, text)


def check_law_with_other_storage():
    for store in (dict(kind='bf16'), dict(shadow=False)):
        for codec in CODECS:
            for algo in ('tiered', 'oneshot'):
                holds, text = run_law(TWO_TIERS, [codec], algo=algo, **store)
                expect(holds, 'law', store, codec, algo, text)


class DumpFolder:
    """Dumps a small int8 run as a C program would."""

    def __init__(self, folder, mode):
        self.folder, self.mode, self.residual = folder, mode, Residual(2, 3)

    def put(self, name, array):
        np.asarray(array).tofile(os.path.join(self.folder, name))

    def put_residuals(self, pattern):
        for rank in range(2):
            self.put(pattern % rank, self.residual.current[rank])

    def fill(self):
        with open(os.path.join(self.folder, 'meta.txt'), 'w', encoding='ascii') as meta:
            meta.write('ranks=2\ncalls=2\ncount=3\ndtype=fp32\nop=sum\nmode=%s\n' % self.mode)
        for call in range(2):
            rows = np.array([[127, 0.5 + call, 0.3 if self.mode == 'random' else 0.25]] * 2, F32)
            for rank in range(2):
                self.put('in_%d_%d.bin' % (call, rank), rows[rank])
            out, _ = reduce_rows(rows, 'int8', residual=self.residual)
            self.put('out_%d.bin' % call, FP32.to_bits(out))
            if self.mode == 'random':
                self.put_residuals('res_%d_%%d.bin' % call)
        if self.mode == 'dyadic':
            self.put_residuals('res_%d.bin')


def check_law_program():
    for mode, last in (('dyadic', 'res_1.bin'), ('random', 'res_1_1.bin')):
        with tempfile.TemporaryDirectory() as name:
            expect(law_program(name) == 2, 'no dump', mode)
            folder = DumpFolder(name, mode)
            folder.fill()
            expect(law_program(name) == 0, 'law program accepts', mode)
            folder.put(last, folder.residual.current[1] + F32(0.001))
            expect(law_program(name) == 1, 'law program refuses', mode)
            os.remove(os.path.join(name, last))
            expect(law_program(name) == 2, 'file missing', mode)


def law_program(folder):
    """Exit code of law.py without its output."""
    try:
        return 0 if law.check(folder)[0] else 1
    except law.DumpError:
        return 2
