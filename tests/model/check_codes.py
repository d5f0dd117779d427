# SPDX-License-Identifier: Apache-2.0
"""Checks of single codes: every code of the small formats, every rounding tie, every odd scale.

What is expected comes from the definition of a format in exact arithmetic and from a search over
all codes, not from the formats' own tables.
"""
from fractions import Fraction

import numpy as np

import blocks
import formats
from expect import expect, same
from ieee import F32, bits_of, floats_of

# name: (spec, bits of mantissa, bias, largest finite code)
FLOATS = {'e4m3': ('fp8', 3, 7, 0x7e), 'e5m2': ('fp8:e5m2', 2, 15, 0x7b)}


def exact_value(code, m_bits, bias):
    """Of a finite code without its sign."""
    exponent, mantissa = code >> m_bits, code & ((1 << m_bits) - 1)
    if exponent == 0:
        return Fraction(mantissa) * Fraction(2) ** (1 - bias - m_bits)
    return Fraction(mantissa + (1 << m_bits)) * Fraction(2) ** (exponent - bias - m_bits)


def searched_code(x, values):
    """Nearest of all codes by comparing with each, ties to the even code."""
    distances = [abs(abs(Fraction(float(x))) - v) for v in values]
    best = min(distances)
    return min((c for c, d in enumerate(distances) if d == best), key=lambda c: c % 2) | (
        128 if np.signbit(x) else 0)


def ties_and_neighbours(values):
    """float32 of every midpoint and every value, one step below and above, both signs."""
    points = [(a + b) / 2 for a, b in zip(values, values[1:])] + list(values[1:])
    middle = bits_of([float(p) for p in points]).astype(np.int64)
    sizes = np.concatenate([middle - 1, middle, middle + 1, [0, 1, 0x007fffff, 0x00800000]])
    sizes = sizes[floats_of(sizes) <= F32(float(values[-1]))]
    return floats_of(np.concatenate([sizes, sizes | 1 << 31]))


def in_full_blocks(x, largest):
    """Blocks of 256 whose first element makes the scale 1; x fills the others."""
    rows = np.zeros((-(-len(x) // 255), 256), F32)
    rows[:, 0] = largest
    padded = np.zeros(rows.shape[0] * 255, F32)
    padded[:len(x)] = x
    rows[:, 1:] = padded.reshape(-1, 255)
    return rows.reshape(-1)


def codes_of(spec, x, largest):
    """The codes that x gets at a scale of 1."""
    rows = in_full_blocks(x, largest)
    message = formats.parse(spec).encode(rows)
    at = blocks.padded(len(rows) // 256 * 4)
    scales = np.frombuffer(message, '<f4', len(rows) // 256)
    expect((scales == 1).all(), 'scale', spec)
    return np.frombuffer(message, np.uint8, len(rows), at).reshape(-1, 256)[:, 1:].reshape(-1)


def check_float8_codes_decode():
    for name, (spec, m_bits, bias, last) in FLOATS.items():
        message = floats_of([0x3f800000]).tobytes() + bytes(12) + bytes(range(256))
        seen = formats.parse(spec).decode(message, 256)
        for code in range(256):
            size, sign = code & 127, -1 if code > 127 else 1
            if size <= last:
                ok = (Fraction(float(seen[code])) == sign * exact_value(size, m_bits, bias)
                      and np.signbit(seen[code]) == (sign < 0))
            elif name == 'e5m2' and size == 0x7c:
                ok = seen[code] == sign * np.inf
            else:
                ok = bits_of(seen)[code] == 0x7fc00000
            expect(ok, 'decode', name, hex(code), seen[code])
    halves = np.array(range(256), np.uint16) << 8  # e5m2 is the upper half of fp16
    wide = halves.view(np.float16).astype(F32)
    seen = formats.parse('fp8:e5m2').decode(message, 256)
    expect(np.array_equal(np.nan_to_num(seen, nan=7), np.nan_to_num(wide, nan=7)), 'as fp16')


def check_float8_ties():
    for name, (spec, m_bits, bias, last) in FLOATS.items():
        values = [exact_value(c, m_bits, bias) for c in range(last + 1)]
        x = ties_and_neighbours(values)
        codes = codes_of(spec, x, F32(float(values[-1])))
        for value, code in zip(x, codes):
            expect(code == searched_code(value, values), name, float(value).hex(),
                   hex(code))


def check_float8_saturates():
    for kind, beyond, code in ((blocks.E4M3, (448, 464, 465, 1e9), 0x7e),
                               (blocks.E5M2, (57344, 61440, 1e9), 0x7b)):
        expect((kind.code(np.array(beyond, F32)) == code).all(), 'largest', hex(code))
        expect((kind.code(-np.array(beyond, F32)) == code + 128).all(), 'smallest', hex(code))


def check_float8_known_codes():
    x = np.array([1, 1.0625, 1.1875, 300, 304, 2.0 ** -9, 2.0 ** -10, 1.5 * 2.0 ** -10, -0.0,
                  -2.0 ** -11], F32)
    expect(list(codes_of('fp8', x, 448)[:10]) == [0x38, 0x38, 0x3a, 0x79, 0x7a, 1, 0, 1, 0x80,
                                                  0x80], 'known codes of e4m3')


def check_int4_codes():
    f, all_codes = formats.parse('int4'), np.arange(256)
    pairs = bytes([0x80, 0x3f]) + bytes(14) + bytes(range(16)) * 2  # scale 1, 64 elements
    seen = f.decode(pairs, 64)
    low = np.arange(16) % 16
    expect((seen[0::2][:16] == np.where(low < 8, low, low - 16)).all(), 'low halves')
    expect((seen[1::2] == 0).all(), 'high halves')
    scales = np.array([0x3f80] * 8, '<u2').tobytes()
    seen = f.decode(scales + bytes(range(256)), 512)
    wanted = [c - 16 if c > 7 else c for b in all_codes for c in (b % 16, b // 16)]
    expect(list(seen) == wanted, 'all bytes, -8 is a number')
    halves = np.array([7] + [k / 2 for k in range(-14, 15)] + [0.49999997, -0.50000006], F32)
    message = f.encode(halves)
    expect(message[:2] == bytes([0x80, 0x3f]), 'scale 1')
    wanted = [7] + [round(k / 2) for k in range(-14, 15)] + [0, -1]  # Python rounds to even
    expect(list(f.decode(message, len(halves))) == wanted, 'ties')
    expect(message[16:20] == bytes([0x97, 0xaa, 0xba, 0xcc]), 'even element low', message[16:20])


def check_int4_scale_is_rounded_up():
    f, rng = formats.parse('int4:block=16'), np.random.default_rng(8)
    for _ in range(2000):
        bits = rng.integers(0x0d800000, 0x7f800000)
        message = f.encode(floats_of([bits, bits | 1 << 31]))
        scale = floats_of([int.from_bytes(message[:2], 'little') << 16])[0]
        exact = Fraction(float(floats_of([bits])[0])) / 7
        below = Fraction(float(floats_of([int(bits_of([scale])[0]) - 0x10000])[0]))
        nearest = Fraction(float(F32(float(exact))))
        expect(below < nearest <= Fraction(float(scale)), 'up', hex(bits))
        expect(message[16] == 0x97, 'codes 7 and -7', hex(message[16]))


def check_odd_scales():
    words = {'fp8': (4, 0x7f800000), 'fp8:e5m2': (4, 0x7f800000), 'int4': (2, 0x7f80)}
    for spec, (size, inf) in words.items():
        f, shift = formats.parse(spec), 32 - 8 * size
        codes = bytes([0x7c, 0xfc, 0x12, 0x80] * 2)
        for word in (inf, inf | 1, inf | inf >> 1, (1 << 8 * size) - 1, (1 << 8 * size - 1) | inf):
            seen = f.decode(word.to_bytes(size, 'little') + bytes(16 - size) + codes + bytes(8), 8)
            expect((bits_of(seen) == 0x7fc00000).all(), 'poison', spec, hex(word))
        for word in (0, 1, 1 << 8 * size - 1, inf - 1, inf >> 1):
            seen = f.decode(word.to_bytes(size, 'little') + bytes(16 - size) + codes + bytes(8), 8)
            scale = floats_of([word << shift])[0]
            unit = f.decode((0x3f800000 >> shift).to_bytes(size, 'little') + bytes(16 - size)
                            + codes + bytes(8), 8)
            wanted = unit * scale
            wanted[np.isnan(wanted)] = floats_of([0x7fc00000])[0]
            expect(same(seen, wanted), 'scale', spec, hex(word))
