# SPDX-License-Identifier: Apache-2.0
"""Wire formats: what a message's payload looks like and what it decodes to.

A format declares its parts (type and count); sizes, alignment and the length check follow from
that alone, so a new format is one class with three methods and one line in FAMILIES. Encoding is
pure: the caller forms y, and derives the error from what decode() returns.
"""
import numpy as np

from ieee import BF16, DATA_TYPES, EXPONENT, F32, FP16, FP32, MAGNITUDE, NAN, U32
from ieee import bits_of, ceil_div, floats_of, one_nan, power_of_two

ALIGN = 16                 # every part starts and ends on such a boundary
SMALLEST = U32(0x0d800000)  # 2^-100; a block whose maximum is below it is sent as zeros
BLOCK_SIZES = (16, 32, 64, 128, 256)  # all divide 256, the granule of pieces and chunks


class WireError(ValueError):
    """A message that does not have the form which the plan says it must have."""


def padded(n_bytes):
    return ceil_div(n_bytes, ALIGN) * ALIGN


class Format:
    """Base of all formats. unit: how many elements one NaN or Inf takes with it."""

    unit = 1

    def parts(self, n):
        """[(numpy type, count)] of a message with n elements, in wire order."""
        raise NotImplementedError

    def to_parts(self, y, exponent):
        """The arrays that parts() announces."""
        raise NotImplementedError

    def from_parts(self, arrays, n, exponent):
        """The n float32 values that every receiver obtains."""
        raise NotImplementedError

    def payload_bytes(self, n):
        """Depends on n only: no message ever carries its own size."""
        return sum(padded(count * np.dtype(t).itemsize) for t, count in self.parts(n))

    def encode(self, y, exponent=0):
        out = bytearray()
        y = np.ascontiguousarray(y, F32)
        for (t, _), array in zip(self.parts(len(y)), self.to_parts(y, exponent)):
            raw = np.ascontiguousarray(array).astype(t).tobytes()
            out += raw + bytes(padded(len(raw)) - len(raw))
        return bytes(out)

    def decode(self, message, n, exponent=0):
        if len(message) != self.payload_bytes(n):
            raise WireError('length %d, expected %d' % (len(message), self.payload_bytes(n)))
        arrays, at = [], 0
        for t, count in self.parts(n):
            array = np.frombuffer(message, t, count, at)
            arrays.append(array.astype(array.dtype.newbyteorder('=')))
            at += padded(array.nbytes)
        return one_nan(self.from_parts(arrays, n, exponent))


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


class BlockInt8(Format):
    """[one fp32 scale per block][one int8 per element], codes -127..127."""

    def __init__(self, block=256):
        self.unit = block

    def parts(self, n):
        return [('<f4', ceil_div(n, self.unit)), ('i1', n)]

    def to_parts(self, y, exponent):
        rows = in_blocks(y, self.unit)
        top = (bits_of(rows) & MAGNITUDE).max(axis=1, initial=0).astype(U32)
        poison, empty = top >= EXPONENT, top < SMALLEST
        amax = floats_of(top)
        scale = np.where(poison, NAN, np.where(empty, F32(0), amax / F32(127))).astype(F32)
        inverse = np.where(poison | empty, F32(0), F32(127) / amax).astype(F32)
        # Poisoned rows are replaced before the multiplication: Inf * 0 is not a code.
        codes = np.rint(np.where(poison[:, None], F32(0), rows) * inverse[:, None])
        return [scale, np.clip(codes, -127, 127).reshape(-1)[:len(y)].astype(np.int8)]

    def from_parts(self, arrays, n, exponent):
        scale, codes = arrays
        rows = in_blocks(codes, self.unit) * scale[:, None]
        rows[(bits_of(scale) & EXPONENT) == EXPONENT] = NAN
        return rows.reshape(-1)[:n]


def _no_options(make):
    def build(options):
        if options:
            raise ValueError('takes no option, got %s' % options)
        return make()
    return build


def _block_int8(options):
    if not options:
        return BlockInt8()
    key, _, value = options.partition('=')
    if key != 'block' or value not in map(str, BLOCK_SIZES):
        raise ValueError('expected block=%s, got %s' % ('|'.join(map(str, BLOCK_SIZES)), options))
    return BlockInt8(int(value))


FAMILIES = {
    'fp32': _no_options(lambda: Cast(FP32)),
    'fp16': _no_options(lambda: Cast(FP16, scaled=True)),
    'bf16': _no_options(lambda: Cast(BF16)),
    'int8': _block_int8,
}


def parse(spec, data_type='fp32'):
    """The format of a text such as int8:block=64. `none` sends the data type of the call."""
    if spec == 'none':
        spec = DATA_TYPES[data_type].name
    name, colon, options = spec.partition(':')
    if name not in FAMILIES or (colon and not options):
        raise ValueError('unknown codec "%s", expected none, %s' % (spec, ', '.join(FAMILIES)))
    return FAMILIES[name](options)
