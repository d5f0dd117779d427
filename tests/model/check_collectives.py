# SPDX-License-Identifier: Apache-2.0
"""Checks of the collectives other than AllReduce: exact values, the law, and the two halves."""
import numpy as np

from collectives import COLLECTIVES, all_gather, mark_bytes, reduce_scatter
from expect import CODECS, expect, reduce_rows, refuses, same
from ieee import DATA_TYPES, F32
from reduce import Residual, Setup


def run(call, rows, codec, residual=None, dtype='fp32', **options):
    """(output values, result) of a call whose input is float32 rows."""
    data_type = DATA_TYPES[dtype]
    bits = np.array([data_type.to_bits(np.asarray(row, F32)) for row in rows])
    setup = Setup(list(range(len(rows))), [codec], dtype=dtype, **options)
    result = call(setup, bits, residual)
    return data_type.from_bits(result.out), result


def check_halves_are_the_allreduce():
    p, share = 3, 512
    rng = np.random.default_rng(11)
    for codec in CODECS:
        whole, up, down = Residual(p, p * share), Residual(p, p * share), Residual(p, share)
        for _ in range(3):
            rows = rng.uniform(0.5, 1.5, (p, p * share)).astype(F32)
            out, _ = reduce_rows(rows, codec, residual=whole)
            parts, _ = run(reduce_scatter, rows, codec, up)
            gathered, _ = run(all_gather, parts.reshape(p, share), codec, down)
            expect(same(out, gathered), 'halves', codec)


def check_law_of_the_halves():
    """Dyadic data and exact scales: what comes out and what stays is exactly what went in."""
    rng = np.random.default_rng(12)
    for p in (1, 2, 3, 5):
        for dtype in ('fp32', 'bf16'):
            for op in ('sum', 'avg') if p != 3 and p != 5 else ('sum',):
                r, gave, got = Residual(p, 700 * p), 0.0, 0.0
                for _ in range(4):
                    rows = dyadic(rng, (p, 700 * p), 700)
                    out, _ = run(reduce_scatter, rows, 'int8', r, dtype, op=op)
                    gave = gave + DATA_TYPES[dtype].rounded(rows).astype(float).sum(0)
                    got = got + out.astype(float) * (p if op == 'avg' else 1)
                expect(np.array_equal(got + r.current.astype(float).sum(0), gave), 'scatter', p)
            r, gave, got = Residual(p, 700), 0.0, 0.0
            for _ in range(4):
                rows = dyadic(rng, (p, 700), 700)
                out, _ = run(all_gather, rows, 'int8', r, dtype)
                gave = gave + DATA_TYPES[dtype].rounded(rows).astype(float)
                got = got + out.reshape(p, 700).astype(float)
            expect(np.array_equal(got + r.current, gave), 'gather', p, dtype)


def dyadic(rng, shape, share):
    """Multiples of 1/8 with the largest int8 code in every 16 elements of a share."""
    rows = rng.integers(-800, 801, shape) / 8
    rows[:, np.arange(shape[1]) % share % 16 == 0] = 127
    return rows.astype(F32)


def check_marks_restore_runs():
    p, share = 3, 1000
    rng = np.random.default_rng(13)
    r = Residual(p, p * share)
    run(reduce_scatter, rng.normal(0, 1, (p, p * share)), 'bf16', r)
    before, rows = r.current.copy(), rng.normal(0, 1, (p, p * share))
    rows[0, share + 300] = np.inf
    _, result = run(reduce_scatter, rows, 'bf16', r)
    changed = r.current != before
    kept = slice(share + 256, share + 512)
    expect(result.lost == 1 and not changed[:, kept].any(), 'kept')
    expect(changed[0, share:share + 256].any() and changed[0, share + 512:].any(), 'others')


def check_bytes():
    p, share = 4, 3000
    rows = np.ones((p, p * share), F32)
    message = 16 * ((12 * 4 + 15) // 16) + 16 * ((share + 15) // 16)
    expect(mark_bytes(1) == 16 and mark_bytes(256 * 128) == 16 and mark_bytes(32769) == 32, 'marks')
    expect(run(reduce_scatter, rows, 'int8')[1].sent == [3 * message] * p, 'scatter')
    sent = run(reduce_scatter, rows, 'int8', Residual(p, p * share))[1].sent
    expect(sent == [3 * (message + 16)] * p, 'scatter with marks')
    expect(run(all_gather, rows[:, :share], 'int8')[1].sent == [3 * message] * p, 'gather')


def check_only_sums_may_leave_out():
    rows = np.ones((3, 9), F32)
    for name, (call, _, _) in COLLECTIVES.items():
        refused = refuses(ValueError, run, call, rows, 'topk:0.01')
        expect(bool(refused) == (name in ('broadcast', 'all_to_all')), 'top-k', name)


def check_draws():
    """Whoever encodes draws by its own rank and by the place in what it passes in."""
    p, share = 3, 512
    values = np.tile(np.linspace(-1, 1, share), p).astype(F32)
    rows = np.stack([values] * p)
    for name, root in (('broadcast', 0), ('broadcast', 2)):
        whole, _ = run(COLLECTIVES[name][0], rows, 'int4,sr', root=root)
        expect(not same(whole[:share], whole[share:2 * share]), name, 'place')
    first, _ = run(COLLECTIVES['broadcast'][0], rows, 'int4,sr', root=0)
    expect(not same(first, whole), 'rank')
    out, _ = run(all_gather, rows[:, :share], 'int4,sr')
    expect(not same(out[:share], out[share:2 * share]), 'all_gather', 'rank')
    for chunk in (256, 512):
        cut, _ = run(all_gather, rows[:, :share], 'int4,sr', chunk=chunk)
        expect(same(out, cut), 'all_gather', 'chunks')
