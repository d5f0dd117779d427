# SPDX-License-Identifier: Apache-2.0
"""Checks of formats whose scales are bytes: every code under every scale, every tie, every exponent.

What is expected comes from exact arithmetic, and from a table that another implementation of the
element types computed (tests/golden/small_floats.txt names it).
"""
import os
from fractions import Fraction

import numpy as np

import blocks
import formats
from check_codes import exact_value, searched_code, ties_and_neighbours
from expect import expect, same
from ieee import F32, bits_of, floats_of

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'golden', 'small_floats.txt')
# spec: (mantissa bits, bias, largest code, code of the sign)
FLOATS = {'mxfp8': (3, 7, 0x7e, 0x80), 'mxfp8:e5m2': (2, 15, 0x7b, 0x80), 'mxfp4': (1, 1, 7, 8)}
LARGEST = {'mxfp8': 448, 'mxfp8:e5m2': 57344, 'mxfp4': 6, 'mxint8': Fraction(127, 64)}


def message_of(scales, codes, spec):
    """Blocks of the same codes, one per scale."""
    rows = np.tile(np.asarray(codes), (len(scales), 1)).reshape(-1)
    if spec == 'mxfp4':
        rows = blocks.in_pairs(rows)
    return (np.array(scales, np.uint8).tobytes() + bytes(-len(scales) % 16)
            + (rows % 256).astype(np.uint8).tobytes())


def check_every_code_under_every_scale():
    scales = np.arange(256)
    for spec in LARGEST:
        f, n_codes = formats.parse(spec), 16 if spec == 'mxfp4' else 256
        unit = f.kind.values.astype(np.float64)
        for first in range(0, n_codes, 32):
            codes = (first + np.arange(32)) % n_codes
            seen = f.decode(message_of(scales, codes, spec), 256 * 32).reshape(256, 32)
            wanted = np.ldexp(unit[codes][None, :], scales[:, None] - 127).astype(F32)
            wanted[np.isnan(wanted)] = floats_of([0x7fc00000])[0]
            wanted[255] = floats_of([0x7fc00000])[0]
            expect(same(seen, wanted), 'scales', spec, first)


def check_values_by_definition():
    for spec, (m_bits, bias, last, sign) in FLOATS.items():
        values = formats.parse(spec).kind.values
        for code in range(last + 1):
            expect(Fraction(float(values[code])) == exact_value(code, m_bits, bias)
                   and bits_of(values)[code | sign] == bits_of(values)[code] | 1 << 31,
                   'value', spec, hex(code))
    values = formats.parse('mxint8').kind.values
    expect(list(values * 64) == list(range(128)) + list(range(-128, 0)), '64ths')


def codes_at_scale_1(spec, x):
    """Codes of x in blocks whose first element, the largest value, makes the scale 1."""
    rows = np.zeros((-(-len(x) // 31), 32), F32)
    rows[:, 0] = F32(float(LARGEST[spec]))
    padded = np.zeros(rows.shape[0] * 31, F32)
    padded[:len(x)] = x
    rows[:, 1:] = padded.reshape(-1, 31)
    scales, codes = formats.parse(spec).to_parts(rows.reshape(-1), 0)
    expect((scales == 127).all(), 'scale 1', spec)
    if spec == 'mxfp4':
        codes = blocks.from_pairs(codes, rows.size)
    return codes.reshape(-1, 32)[:, 1:].reshape(-1)[:len(x)]


def check_every_tie():
    for spec, (m_bits, bias, last, sign) in FLOATS.items():
        values = [exact_value(c, m_bits, bias) for c in range(last + 1)]
        x = ties_and_neighbours(values)
        for value, code in zip(x, codes_at_scale_1(spec, x)):
            wanted = searched_code(value, values) & 127 | (sign if np.signbit(value) else 0)
            expect(code == wanted, 'tie', spec, float(value).hex(), hex(code))
    x = floats_of(bits_of(np.arange(-127, 128) / 128)[:, None] + np.array([-1, 0, 1])).reshape(-1)
    x = x[np.isfinite(x)]
    wanted = [round(Fraction(float(v)) * 64) % 256 for v in x]  # Python rounds to even
    expect(list(codes_at_scale_1('mxint8', x)) == wanted, 'ties of 64ths')


def check_every_exponent():
    """Scales of single elements of all exponents, on and beside each limit of the mantissa."""
    for spec, largest in LARGEST.items():
        edge = int(bits_of([float(largest)])[0]) & 0x7fffff
        for exponent in range(27, 255):
            for mantissa in {0, edge - 1, edge, min(edge + 1, 0x7fffff), 0x7fffff}:
                x = floats_of([exponent << 23 | mantissa])
                amax = Fraction(float(x[0]))
                floor = exponent - 127 - (int(bits_of([float(largest)])[0] >> 23) - 127)
                expect(formats.parse(spec).encode(x)[0] == floor + 127, 'floor', spec, hex(exponent))
                ceil = floor if amax <= largest * Fraction(2) ** floor else floor + 1
                expect(amax <= largest * Fraction(2) ** ceil, 'reaches', spec)
                expect(formats.parse(spec + ',ceil').encode(x)[0] == min(ceil, 127) + 127, 'ceil',
                       spec, hex(exponent), hex(mantissa))


def check_saturation():
    x = np.array([511, -511, 1], F32)
    expect(list(formats.parse('mxfp8').encode(x)[16:19]) == [0x7e, 0xfe, 0x38], 'floor saturates')
    expect(list(formats.parse('mxfp8,ceil').encode(x)[16:19]) == [0x78, 0xf8, 0x30], 'ceil rounds')
    largest = floats_of([0x7f7fffff, 0xff7fffff])
    for spec in ('mxint8', 'mxint8,ceil'):  # the next power of two would be NaN
        message = formats.parse(spec).encode(largest)
        expect(message[0] == 254 and list(message[16:18]) == [127, 129], 'clamp', spec)


def check_empty_and_poisoned_blocks():
    x = np.ones(96, F32)
    x[:32] = floats_of([0x0d7fffff])
    x[40] = np.inf
    for spec in LARGEST:
        scales, codes = formats.parse(spec).to_parts(x, 0)
        whole = codes if spec != 'mxfp4' else blocks.from_pairs(codes, 96)
        expect(scales[0] == 0 and scales[1] == 0xff and not whole[:64].any(), 'blocks', spec)


def _table():
    with open(TABLE, encoding='ascii') as lines:
        for line in lines:
            if not line.startswith('#'):
                name, content = line.split()
                yield name.split('=')[1], *content.split('=')


def check_another_implementation_agrees():
    kinds = {'e4m3': blocks.E4M3, 'e5m2': blocks.E5M2, 'e2m1': blocks.E2M1}
    for name, what, content in _table():
        if what == 'values':
            words = [int(content[i:i + 8], 16) for i in range(0, len(content), 8)]
            seen = (kinds[name].values if name in kinds else
                    formats.parse('mxint8').decode(message_of(range(256), [64] * 32, 'mxint8'),
                                                   256 * 32)[::32])
            expect(list(bits_of(seen)) == words, 'table', name, what)
        else:
            pairs = [tuple(int(w, 16) for w in pair.split(':')) for pair in content.split(',')]
            codes = kinds[name].code(floats_of([word for word, _ in pairs]))
            expect(list(codes) == [code for _, code in pairs], 'table', name, what)


def check_nvfp4_scales():
    f = formats.parse('nvfp4')
    x = np.zeros(64, F32)
    x[0], x[16], x[32], x[48] = 2688, 6, 6 * 2.0 ** -10, 6 * 1.5 * 2.0 ** -10
    outer, inner, pairs = f.to_parts(x, 0)
    expect(outer[0] == 1 and list(inner) == [0x7e, 0x38, 0, 1], 'block scales', inner)
    # a block below half of the smallest scale is zeros and stays in the residual
    expect(list(blocks.from_pairs(pairs, 64)[::16]) == [7, 7, 0, 6], 'their codes', pairs)
    x[1] = np.nan
    outer, inner, _ = f.to_parts(x, 0)
    expect(outer[0] == F32(6) / F32(2688) and inner[0] == 0x7f and inner[1] == 0x7e,
           'poison does not count')
    for words, poisons in (([0x7f800000], True), ([0x3f800000], False)):
        message = floats_of(words).tobytes() + bytes(12) + bytes([0x38]) + bytes(31)
        expect(np.isnan(f.decode(message, 16)).all() == poisons, 'segment scale', words)


def check_nvfp4_segments():
    f, rng = formats.parse('nvfp4'), np.random.default_rng(11)
    x = rng.normal(0, 1, 140001).astype(F32)
    x[65536:131072] *= F32(1000)
    whole = f.decode(f.encode(x), len(x))
    for a in range(0, len(x), 65536):
        part = x[a:a + 65536]
        expect(same(whole[a:a + 65536], f.decode(f.encode(part), len(part))), 'segment at', a)
