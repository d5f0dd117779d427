# SPDX-License-Identifier: Apache-2.0
"""Checks of whole calls: field vectors whose answer is known exactly, and rules of storage."""
import numpy as np

import blocks
from expect import (CODECS, FLAT, FULL_CODES, LAYOUTS, TWO_TIERS, carried, expect, n_ranks,
                    reduce_rows, refuses, same)
from ieee import F32, bits_of, crc
from reduce import Residual


# Where no partial sum of equal values needs more than E2M1's two significant bits: not that of 5.
NARROW = [layout for layout in LAYOUTS
          if n_ranks(layout) in (1, 2, 3, 4, 6, 8, 12) and layout != [[0], [1], [2], [3, 4, 5, 6, 7]]]


def check_bf16_residual_is_bf16():
    r = Residual(3, 600, 'bf16')
    rows = np.random.default_rng(5).normal(0, 1, (3, 600))
    for algo in ('tiered', 'oneshot'):
        reduce_rows(rows, 'int8', residual=r, algo=algo)
        expect(not (bits_of(r.current) & 0xffff).any() and r.current.any(), 'bf16 store', algo)
    expect(refuses(ValueError, Residual, 1, 1, 'bf16', False), 'bf16 without shadow')


def check_single_vector_keeps_poisoned_blocks():
    rows = np.random.default_rng(6).normal(0, 1, (2, 1024)).astype(F32)
    r = Residual(2, 1024, shadow=False)
    reduce_rows(rows, 'int8', residual=r)
    before = r.current.copy()
    rows[0, 600] = np.inf      # rank 0 sends [512, 1024) to rank 1, which owns it
    out, _ = reduce_rows(rows, 'int8', residual=r)
    expect(np.isnan(out[512:768]).all() and np.isfinite(out[768:]).all(), 'block is news')
    expect(same(r.current[:, 512:768], before[:, 512:768]), 'encoders keep their residual')
    changed = r.current[:, 768:] != before[:, 768:]
    expect(changed.any() and np.isfinite(r.current).all(), 'others go on')


def check_probe_vectors():
    i = np.arange(4096)
    p8 = np.where(i % 16 == 0, 127, (i * 37) % 255 - 127).astype(F32)
    expect(p8[:1000].sum() == 7946 and crc(p8[:1000]) == '30d5d3c7', 'P8 itself')
    p4 = np.where(i % 16 == 0, 7, (i * 11) % 15 - 7).astype(F32)
    few = np.array([0, 1, -1, 2.5, -2.5, 7, -7, 30, -30, 240, -240, .5, -.5, 112, -112, 3.25], F32)
    pf8 = np.where(i % 16 == 0, 448, few[(i * 5 + 3) % 16]).astype(F32)
    # 2 bits of mantissa: -3.5, -3, -2.5 ... 4, and the largest code, at a scale of 1
    pf5 = np.where(i % 16 == 0, 57344, (i * 5 + 3) % 16 * 0.5 - 3.5).astype(F32)
    # powers of two as scales: sums of 2, 3, 4, ... ranks are to have the mantissas of a format
    pm = np.where(i % 16 == 0, 4, np.array([0, 1, -1, 2, -2, 4, -4])[(i * 5 + 3) % 7]).astype(F32)
    pn = (np.where(i % 16 == 0, 6, blocks.E2M1.values[(i * 5 + 3) % 16]) * 448).astype(F32) + F32(0)
    p16, pb = (i % 2001 - 1000).astype(F32), (i % 129 - 64).astype(F32)
    pairs = ((p8, 'int8', LAYOUTS), (p8, 'int8:block=16', LAYOUTS), (p8, 'none', LAYOUTS),
             (p4, 'int4', LAYOUTS), (p4, 'int4:block=16', LAYOUTS),
             (pf8, 'fp8', LAYOUTS), (pf5, 'fp8:e5m2', LAYOUTS),
             *((pm, c, NARROW) for c in ('mxfp8', 'mxfp8:e5m2', 'mxfp4', 'mxfp4,ceil', 'mxint8')),
             (pn, 'nvfp4', LAYOUTS),
             (p16, 'fp16', FLAT[1:2]), (pb, 'bf16', FLAT[1:2]))
    for vector, codec, layouts in pairs:
        for layout in layouts:
            for n in (1, 15, 127, 129, 257, 1000, 4095):
                for algo in ('tiered', 'oneshot'):
                    p, r = n_ranks(layout), Residual(n_ranks(layout), n)
                    out, _ = reduce_rows([vector[:n]] * p, codec, layout, residual=r, algo=algo)
                    expect(np.array_equal(out, p * vector[:n]) and not r.current.any(),
                           'probe', codec, layout, n, algo)


def check_tiny_and_zero_blocks():
    for codec in CODECS:
        for x in ([0.0] * 600, [-0.0] * 600, [1e-36, -1e-36] * 300, [0.0] * 7 + [1e-45] * 593):
            x, r = np.array(x, F32), Residual(2, 600)
            out, _ = reduce_rows([x, x], codec, residual=r)
            expect((np.abs(out - 2 * x) <= 2 * np.abs(x)).all(), 'tiny', codec, x[7])
            expect(np.isfinite(r.current).all(), 'tiny residual', codec, x[7])


def check_one_bad_step_passes():
    for codec in CODECS:
        for dtype in ('fp32', 'bf16'):
            for bad in (np.inf, np.nan):
                one = FULL_CODES.get(codec, 1)
                # Whole groups: a padded one has no equal values.
                good, r = carried(codec, np.full(608, one, F32)), Residual(2, 608)
                news = good.copy()
                news[5] = bad
                out, _ = reduce_rows([news, good], codec, dtype=dtype, residual=r)
                expect(not np.isfinite(out[5]) and (out[256:] == 2 * good[256:]).all(), 'step', codec,
                       dtype, bad)
                out, _ = reduce_rows([good, good], codec, dtype=dtype, residual=r)
                expect((out == 2 * good).all(), 'next step', codec, dtype, bad)


def check_overflow_of_fp16():
    out, result = reduce_rows([[1e30, 1], [1e30, 1]], 'fp16', dtype='bf16')
    expect(list(out) == [np.inf, 2] and result.lost == 1, 'wire overflow is counted')
    expect(reduce_rows([[4e4], [4e4]], 'fp16')[0][0] == 80000, 'E makes room')
    out, _ = reduce_rows([[24576]] * 7, ('none', 'fp16'), TWO_TIERS)  # 3 of them: 73728
    expect(out[0] == 172032, 'E of a partial sum')
    for codec in ('none', 'fp16'):
        out, _ = reduce_rows([[4e4], [4e4]], codec, dtype='fp16')
        expect(out[0] == np.inf, 'fp16 output overflows', codec)


def check_average_of_fp16():
    for codec in ('none', 'fp16'):
        for rows, mean in (([[2.0 ** -24]] * 8, 2.0 ** -24), ([[60000]] * 8, 60000),
                           ([[q] for q in range(8)], 3.5)):
            out, _ = reduce_rows(rows, codec, dtype='fp16', op='avg')
            expect(out[0] == mean, 'average', codec, mean)


def check_int8_feedback_returns_all():
    r, total = Residual(2, 3), np.zeros(3)
    for _ in range(4):
        out, _ = reduce_rows([[127, 0.5, 0.25]] * 2, 'int8', residual=r, algo='oneshot')
        total += out
    expect(list(total) == [1016, 4, 2] and not r.current.any(), 'four calls', total)


def check_minus_zero():
    rows = [[-0.0]] * 3
    expect(bits_of(reduce_rows(rows, 'none')[0])[0] == 1 << 31, '-0 without feedback')
    known = Residual(3, 1, known_zero=True)
    expect(bits_of(reduce_rows(rows, 'none', residual=known)[0])[0] == 1 << 31, '-0 known zero')
    expect(known.known_zero, 'none leaves it known to be zero')
    reduce_rows(rows, 'int8', residual=known)
    expect(not known.known_zero, 'int8 does not')
    expect(bits_of(reduce_rows(rows, 'none', residual=Residual(3, 1))[0])[0] == 0, '-0 + 0')


def check_top_k_of_segments():
    """The law, multi-segment pieces, and what a call with max is told."""
    rows = np.random.default_rng(8).normal(0, 1, (2, 300000)).astype(F32)
    r = Residual(2, 300000)
    out, result = reduce_rows(rows, 'topk:0.01', residual=r, chunk=1)
    expect(same(out, reduce_rows(rows, 'topk:0.01', residual=Residual(2, 300000))[0]), 'chunks')
    left = rows.astype(np.float64).sum(0) - out - r.current.astype(np.float64).sum(0)
    expect(np.abs(left).max() < 1e-6, 'nothing is lost')
    expect(max(result.sent) <= 0.03 * 4 * 300000, 'bytes of 1 %', result.sent)
    expect(np.count_nonzero(out) <= 0.0101 * 300000, 'the owner chooses again')
    small = reduce_rows(rows, 'topk:0.001,int8')[1].sent
    expect(max(small) <= 0.005 * 4 * 300000, 'bytes of 0.1 %', small)
    expect(refuses(ValueError, lambda: reduce_rows(rows, 'topk:0.01', op='max')), 'max is refused')


def check_chunks_change_no_bit():
    rows = np.random.default_rng(7).normal(0, 1, (7, 5000)).astype(F32)
    for codec in CODECS:
        whole, cut = Residual(7, 5000), Residual(7, 5000)
        a, _ = reduce_rows(rows, codec, TWO_TIERS, residual=whole)
        b, _ = reduce_rows(rows, codec, TWO_TIERS, residual=cut, chunk=512)
        expect(same(a, b) and same(whole.current, cut.current), 'chunks', codec)


def check_wire_bytes():
    rows = np.ones((4, 4096), F32)
    expect(reduce_rows(rows, 'int8')[1].sent == [(1024 + 16) * 6] * 4, 'two-shot')
    expect(reduce_rows(rows, 'int8', algo='oneshot')[1].sent == [(4096 + 64) * 3] * 4, 'one-shot')
    expect(reduce_rows(rows, 'int8', [[0], [1], [2], [3]])[1].sent == [6240] * 4, 'groups of one')
