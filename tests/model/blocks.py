# SPDX-License-Identifier: Apache-2.0
"""Wire formats whose elements all travel: casts, and blocks of codes under scales.

A format declares its parts (type and count); sizes, alignment and the length check follow from
that alone, so a new format is one class with three methods and one line in formats.FAMILIES.
Encoding is pure: the caller forms y, and derives the error from what decode() returns.
"""
import numpy as np

from ieee import EXPONENT, F32, MAGNITUDE, NAN, U32
from ieee import bits_of, ceil_div, floats_of, one_nan, power_of_two

ALIGN = 16                 # every part starts and ends on such a boundary
SMALLEST = U32(0x0d800000)  # 2^-100; a block whose maximum is below it is sent as zeros
SEGMENT = 65536            # of top-k, so that an index has 16 bits
BLOCK_SIZES = (16, 32, 64, 128, 256)  # all divide 256, the granule of pieces and chunks


class WireError(ValueError):
    """A message that does not have the form which the plan says it must have."""


def padded(n_bytes):
    return ceil_div(n_bytes, ALIGN) * ALIGN


class Format:
    """Base of all formats. unit: how many elements one NaN or Inf takes with it; align: what chunks
    are multiples of."""

    unit = 1
    align = 256  # what chunks are multiples of: pieces start at multiples of 256
    stochastic = False  # to_parts() takes a draw as well

    def parts(self, n):
        """[(numpy type, count)] of a message with n elements, in wire order."""
        raise NotImplementedError

    def to_parts(self, y, exponent):
        """The arrays that parts() announces."""
        raise NotImplementedError

    def from_parts(self, arrays, n, exponent):
        """The n float32 values that every receiver obtains."""
        raise NotImplementedError

    def at(self, position, members):
        """The format of messages from that position in a group of so many."""
        del position, members
        return self

    def payload_bytes(self, n):
        """Depends on n only: no message ever carries its own size."""
        return sum(padded(count * np.dtype(t).itemsize) for t, count in self.parts(n))

    def encode(self, y, exponent=0, draw=(0, 0, 0, 0)):
        """draw: (seed, call, rank, index of y[0] in the caller's vector), for stochastic formats."""
        out = bytearray()
        y = np.ascontiguousarray(y, F32)
        drawn = [draw] if self.stochastic else []
        for (t, _), array in zip(self.parts(len(y)), self.to_parts(y, exponent, *drawn)):
            raw = np.ascontiguousarray(array).astype(t).tobytes()
            out += raw + bytes(padded(len(raw)) - len(raw))
        return bytes(out)

    def decode(self, message, n, exponent=0):
        return one_nan(self.from_parts(self.split(message, n), n, exponent))

    def split(self, message, n):
        """The arrays that parts() announces, from a message."""
        if len(message) != self.payload_bytes(n):
            raise WireError('length %d, expected %d' % (len(message), self.payload_bytes(n)))
        arrays, at = [], 0
        for t, count in self.parts(n):
            array = np.frombuffer(message, t, count, at)
            arrays.append(array.astype(array.dtype.newbyteorder('=')))
            at += padded(array.nbytes)
        return arrays


class Cast(Format):
    """One code per element. Inf survives with its sign, NaN loses only its payload."""

    def __init__(self, data_type, scaled=False):
        # scaled: values travel as y * 2^-E, so that a sum of 2^E ranks still fits the type
        self.data_type, self.scaled = data_type, scaled

    def parts(self, n):
        return [(np.dtype(self.data_type.word).newbyteorder('<'), n)]

    def to_parts(self, y, exponent):
        if self.scaled:
            y = y * power_of_two(-exponent)
        return [self.data_type.to_bits(y)]

    def from_parts(self, arrays, n, exponent):
        x = self.data_type.from_bits(arrays[0])
        return x * power_of_two(exponent) if self.scaled else x


def in_blocks(x, block):
    """Rows of `block` elements; the missing end of the last row is zero and so never a maximum."""
    rows = np.zeros((ceil_div(len(x), block), block), F32)
    rows.reshape(-1)[:len(x)] = x
    return rows


def largest_bits(rows):
    """Bits of the largest magnitude of each row; NaN and Inf are above all others."""
    return (bits_of(rows) & MAGNITUDE).max(axis=1, initial=0).astype(U32)


class BlockInt8(Format):
    """[one fp32 scale per block][one int8 per element], codes -127..127."""

    def __init__(self, block=256):
        self.unit = block

    def parts(self, n):
        return [('<f4', ceil_div(n, self.unit)), ('i1', n)]

    def scaled(self, y):
        """(scales, values of the blocks in steps of their scale)"""
        rows = in_blocks(y, self.unit)
        top = largest_bits(rows)
        poison, empty = top >= EXPONENT, top < SMALLEST
        amax = floats_of(top)
        scale = np.where(poison, NAN, np.where(empty, F32(0), amax / F32(127))).astype(F32)
        inverse = np.where(poison | empty, F32(0), F32(127) / amax).astype(F32)
        # Poisoned rows are replaced before the multiplication: Inf * 0 is not a code.
        return scale, np.where(poison[:, None], F32(0), rows) * inverse[:, None]

    def with_codes(self, scale, steps, n):
        return [scale, np.clip(steps, -127, 127).reshape(-1)[:n].astype(np.int8)]

    def to_parts(self, y, exponent):
        scale, products = self.scaled(y)
        return self.with_codes(scale, np.rint(products), len(y))

    def from_parts(self, arrays, n, exponent):
        scale, codes = arrays
        rows = in_blocks(codes, self.unit) * scale[:, None]
        rows[(bits_of(scale) & EXPONENT) == EXPONENT] = NAN
        return rows.reshape(-1)[:n]


def in_pairs(codes):
    """Two codes of four bits in a byte, the even element low; what is missing is 0."""
    pairs = np.append(codes, [0] * (len(codes) % 2)).reshape(-1, 2).astype(np.int64)
    return pairs[:, 0] + 16 * pairs[:, 1]


def from_pairs(pairs, n):
    pairs = pairs.astype(np.int64)
    return np.column_stack([pairs % 16, pairs // 16]).reshape(-1)[:n]


class BlockInt4(Format):
    """[one bf16 scale per block][two codes per byte], codes -7..7, the even element low.

    The scale is rounded up to bf16, so that no code is beyond 7, and the encoder divides by what
    the receiver multiplies with.
    """

    least = -7

    def __init__(self, block=64):
        self.unit = block

    def parts(self, n):
        return [('<u2', ceil_div(n, self.unit)), ('u1', ceil_div(n, 2))]

    def scaled(self, y):
        """(bits of the scales, values of the blocks in steps of their scale)"""
        rows = in_blocks(y, self.unit)
        top = largest_bits(rows)
        poison, empty = top >= EXPONENT, top < SMALLEST
        scale = (bits_of(self.unrounded_scale(rows)) + U32(0xffff)) >> U32(16)
        inverse = F32(1) / floats_of(scale << U32(16))
        usable = np.where((poison | empty)[:, None], F32(0), rows)
        products = usable * np.where(poison | empty, F32(0), inverse).astype(F32)[:, None]
        return np.where(poison, 0x7fc0, np.where(empty, 0, scale)), products

    def unrounded_scale(self, rows):
        return floats_of(largest_bits(rows)) / F32(7)

    def with_codes(self, scale, steps, n):
        codes = np.clip(steps, self.least, 7).astype(np.int64).reshape(-1)[:n] % 16
        return [scale, in_pairs(codes)]

    def to_parts(self, y, exponent):
        scale, products = self.scaled(y)
        return self.with_codes(scale, np.rint(products), len(y))

    def from_parts(self, arrays, n, exponent):
        scale, codes = floats_of(arrays[0].astype(U32) << U32(16)), from_pairs(arrays[1], n)
        rows = in_blocks(np.where(codes < 8, codes, codes - 16), self.unit) * scale[:, None]
        rows[(bits_of(scale) & EXPONENT) == EXPONENT] = NAN
        return rows.reshape(-1)[:n]


def random_halves(draw, n):
    """16 bits for each of n elements; the elements 2k and 2k + 1 share a hash of 32."""
    seed, call, rank, first = draw
    index = np.arange(first, first + n, dtype=np.uint64)
    high, pair = index >> np.uint64(33), index >> np.uint64(1)
    key = hashed(U32(seed) + hashed(U32(call) + hashed(U32(rank) + hashed(high.astype(U32)))))
    hashes = hashed(hashed(key) ^ (pair & np.uint64(0xffffffff)).astype(U32))
    return np.where(index % np.uint64(2) == 0, hashes & U32(0xffff), hashes >> U32(16))


def hashed(h):
    """32 bits to 32 bits, wrapping."""
    h = np.atleast_1d(h)
    for shift, factor in ((16, 0x7feb352d), (15, 0x846ca68b)):
        h = (h ^ (h >> U32(shift))) * U32(factor)
    return h ^ (h >> U32(16))


class Stochastic:
    """Mixed into an integer format: up with the probability of the fraction, in steps of 2^-16."""

    stochastic = True

    def to_parts(self, y, exponent, draw):
        scale, products = self.scaled(y)
        random = random_halves(draw, products.size).reshape(products.shape).astype(np.int64)
        fixed = np.rint(products * F32(65536)).astype(np.int64)
        return self.with_codes(scale, (fixed + random) >> 16, len(y))


class StochasticInt8(Stochastic, BlockInt8):
    """As int8 to the receiver."""


class StochasticInt4(Stochastic, BlockInt4):
    """As int4 to the receiver."""


class SignedInt4(BlockInt4):
    """All 16 codes: the element of largest magnitude is -8, whatever its sign, by a signed scale."""

    least = -8

    def unrounded_scale(self, rows):
        amax = floats_of(largest_bits(rows))
        # Of equal ones a positive one decides.
        is_positive = (rows == amax[:, None]).any(axis=1)
        return np.where(is_positive, -amax, amax) / F32(8)


class SmallFloat:
    """A float of few bits: sign, exponent, mantissa of m_bits. All values are exact in float64.

    Codes of one sign count upward with the values, so rounding is a search in the sorted list of
    values: it needs no bits of the number to be rounded.
    """

    def __init__(self, m_bits, bias, largest_code, infinity, sign=128):
        magnitudes = np.arange(sign)  # the bit of the sign counts the codes below it
        exponents, mantissas = magnitudes >> m_bits, magnitudes & ((1 << m_bits) - 1)
        values = np.where(exponents == 0, np.ldexp(1.0 * mantissas, 1 - bias - m_bits),
                          np.ldexp(1.0 * (mantissas + (1 << m_bits)), exponents - bias - m_bits))
        values[largest_code + 1:] = np.nan
        if infinity is not None:
            values[infinity] = np.inf
        self.finite = values[:largest_code + 1]
        self.values = np.concatenate([values, -values]).astype(F32)
        self.values[np.isnan(self.values)] = NAN
        self.largest = F32(self.finite[-1])
        self.sign = sign

    def code(self, x):
        """The nearest code, the even one of two; the largest for all beyond it. x has no NaN."""
        size = np.minimum(np.abs(np.asarray(x, np.float64)), self.finite[-1])
        above = np.searchsorted(self.finite, size)  # the smallest value that is not below
        below = np.maximum(above - 1, 0)
        up, down = self.finite[above] - size, size - self.finite[below]
        take_above = (up < down) | ((up == down) & (above % 2 == 0))
        return np.where(take_above, above, below) + self.sign * np.signbit(x)


E4M3 = SmallFloat(3, 7, 0x7e, None)
E5M2 = SmallFloat(2, 15, 0x7b, 0x7c)
E2M1 = SmallFloat(1, 1, 7, None, sign=8)


class BlockFloat8(Format):
    """[one fp32 scale per block][one code per element]; a block's maximum is the largest code."""

    unit = 256

    def __init__(self, kind):
        self.kind = kind

    def parts(self, n):
        return [('<f4', ceil_div(n, self.unit)), ('u1', n)]

    def to_parts(self, y, exponent):
        rows = in_blocks(y, self.unit)
        top = largest_bits(rows)
        poison, empty = top >= EXPONENT, top < SMALLEST
        amax = floats_of(top)
        scale = np.where(poison, NAN, np.where(empty, F32(0), amax / self.kind.largest)).astype(F32)
        unused = (poison | empty)[:, None]
        inverse = np.where(poison | empty, F32(0), self.kind.largest / amax).astype(F32)
        codes = self.kind.code(np.where(unused, F32(0), rows) * inverse[:, None])
        return [scale, codes.reshape(-1)[:len(y)]]

    def from_parts(self, arrays, n, exponent):
        scale, codes = arrays
        rows = in_blocks(self.kind.values[codes], self.unit) * scale[:, None]
        rows[(bits_of(scale) & EXPONENT) == EXPONENT] = NAN
        return rows.reshape(-1)[:n]


class Fixed8:
    """Integers that count 64ths; the code -128 is a number that is never sent."""

    largest, sign = F32(127 / 64), None
    values = (np.concatenate([np.arange(128), np.arange(-128, 0)]) / 64).astype(F32)

    @staticmethod
    def code(x):
        return np.clip(np.rint(np.asarray(x, np.float64) * 64), -127, 127).astype(np.int64) % 256


FIXED8 = Fixed8()


class Mx(Format):
    """OCP Microscaling: [one E8M0 byte per 32][codes], as bytes or, E2M1, two in a byte.

    The scale is 2^(byte - 127), 0xff is NaN. By default it is the specification's, 2^floor(log2
    amax) over the exponent of the largest code, and what is then beyond that code saturates. With
    ceil it is the least power of two with which nothing does.
    """

    unit = 32

    def __init__(self, kind, ceil=False):
        self.kind, self.ceil = kind, ceil

    def parts(self, n):
        return [('u1', ceil_div(n, 32)), ('u1', ceil_div(n, 2) if self.kind is E2M1 else n)]

    def _exponents(self, amax):
        """Of the scales, from exact arithmetic: frexp gives m * 2^e with m in [1/2, 1)."""
        m, e = np.frexp(amax.astype(np.float64))
        top_m, top_e = np.frexp(np.float64(self.kind.largest))
        return np.minimum(e - top_e + (self.ceil & (m > top_m)), 127)  # 128 would be NaN

    def to_parts(self, y, exponent):
        rows = in_blocks(y, 32)
        top = largest_bits(rows)
        poison, empty = top >= EXPONENT, top < SMALLEST
        unused = (poison | empty)[:, None]
        e = self._exponents(np.where(poison | empty, F32(1), floats_of(top)))
        # Exact in float64, so that no step but the rounding to a code loses anything.
        codes = self.kind.code(np.ldexp(np.where(unused, F32(0), rows).astype(np.float64),
                                        -e[:, None]))
        codes = np.where(unused, 0, codes).reshape(-1)[:len(y)]
        scales = np.where(poison, 0xff, np.where(empty, 0, e + 127))
        return [scales, in_pairs(codes) if self.kind is E2M1 else codes]

    def from_parts(self, arrays, n, exponent):
        scales = arrays[0].astype(np.int64)
        codes = from_pairs(arrays[1], n) if self.kind is E2M1 else arrays[1]
        powers = np.ldexp(np.ones(len(scales)), scales - 127).astype(F32)
        rows = in_blocks(self.kind.values[codes], 32) * powers[:, None]
        rows[scales == 0xff] = NAN
        return rows.reshape(-1)[:n]


class Nvfp4(Format):
    """[one fp32 scale per segment][one E4M3 scale per 16][two E2M1 codes in a byte].

    A segment has 65536 elements. Its scale takes the largest finite block to 448 * 6, the largest
    block scale times the largest code.
    """

    unit, align = 16, 65536

    def parts(self, n):
        return [('<f4', ceil_div(n, 65536)), ('u1', ceil_div(n, 16)), ('u1', ceil_div(n, 2))]

    def to_parts(self, y, exponent):
        rows = in_blocks(y, 16)
        top = largest_bits(rows)
        poison, empty = top >= EXPONENT, top < SMALLEST
        usable = np.where(poison | empty, U32(0), top)
        # 4096 blocks of a segment in a row; what the last one lacks is 0
        peaks = in_blocks(floats_of(usable), 4096).max(axis=1, initial=0)
        outer = np.where(peaks > 0, peaks / F32(2688), F32(0)).astype(F32)
        inverse = np.where(peaks > 0, F32(2688) / peaks, F32(0)).astype(F32)
        of_block = np.arange(len(top)) // 4096
        inner = E4M3.code(floats_of(usable) * inverse[of_block] / F32(6))
        scales = E4M3.values[inner] * outer[of_block]
        unused = scales == 0
        codes = E2M1.code(np.where(unused[:, None], F32(0), rows)
                          * np.where(unused, F32(0), F32(1) / scales).astype(F32)[:, None])
        codes = codes.reshape(-1)[:len(y)]
        return [outer, np.where(poison, 0x7f, inner), in_pairs(codes)]

    def from_parts(self, arrays, n, exponent):
        outer, inner, pairs = arrays
        outer = outer[np.arange(len(inner)) // 4096]
        rows = in_blocks(E2M1.values[from_pairs(pairs, n)], 16)
        rows = rows * (E4M3.values[inner] * outer)[:, None]
        rows[(inner & 0x7f == 0x7f) | ((bits_of(outer) & EXPONENT) == EXPONENT)] = NAN
        return rows.reshape(-1)[:n]
