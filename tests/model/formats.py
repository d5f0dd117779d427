# SPDX-License-Identifier: Apache-2.0
"""What a codec spec means: formats made of those of blocks.py (top-k, rotated, packed), and parse().
"""
import re
from fractions import Fraction

import numpy as np

import packing
from blocks import ALIGN, BLOCK_SIZES, E2M1, E4M3, E5M2, FIXED8, SEGMENT
from blocks import BlockFloat8, BlockInt4, BlockInt8, Cast, Format, Mx, Nvfp4, SignedInt4
from blocks import StochasticInt4, StochasticInt8, WireError, in_blocks, padded
from ieee import BF16, DATA_TYPES, EXPONENT, F32, FP16, FP32, MAGNITUDE, NAN
from ieee import bits_of, ceil_div, one_nan, power_of_two

PACKED_SEGMENT = 8192  # elements


class TopK(Format):
    """Per segment [values, as their own format][16-bit indices, ascending]; the rest is +0.

    amount: how many of a segment are kept, an int, or the share as a Fraction of billionths.
    """

    unit = align = SEGMENT

    def __init__(self, amount, values, by_position=False, place=(0, 1)):
        self.amount, self.values, self.by_position, self.place = amount, values, by_position, place

    def at(self, position, members):
        if not self.by_position:
            return self
        return TopK(self.amount, self.values, True, (position, members))

    def kept(self, length):
        k = self.amount
        if not isinstance(k, int):
            k = ceil_div(k.numerator * length, k.denominator)
        position, members = self.place
        share = 1 + Fraction(3, 10) * Fraction(position, max(members - 1, 1))
        return min(length, ceil_div(k * share.numerator, share.denominator))

    def segments(self, n):
        """(first element, length, kept)"""
        for first in range(0, n, SEGMENT):
            length = min(SEGMENT, n - first)
            yield first, length, self.kept(length)

    def parts(self, n):
        return [part for _, _, k in self.segments(n) for part in self.values.parts(k) + [('<u2', k)]]

    def to_parts(self, y, exponent):
        arrays = []
        for first, length, k in self.segments(len(y)):
            x = y[first:first + length]
            size = bits_of(x) & MAGNITUDE
            if size.max() >= EXPONENT:
                chosen, sent = np.arange(k), np.full(k, NAN, F32)
            else:  # a stable sort leaves equal magnitudes in the order of their indices
                chosen = np.sort(np.argsort(MAGNITUDE - size, kind='stable')[:k])
                sent = x[chosen]
            arrays += self.values.to_parts(sent, exponent) + [chosen]
        return arrays

    def from_parts(self, arrays, n, exponent):
        out, left = np.zeros(n, F32), list(arrays)
        for first, length, k in self.segments(n):
            n_parts = len(self.values.parts(k))
            sent = one_nan(self.values.from_parts(left[:n_parts], k, exponent))
            index = left[n_parts].astype(np.int64)
            left = left[n_parts + 1:]
            if np.isnan(sent).any() or (np.diff(index) <= 0).any() or index[-1] >= length:
                out[first:first + length] = NAN
            else:
                out[first + index] = sent
        return out

    def indices(self, message, n):
        """Of the elements that a message sends."""
        found, left = [], self.split(message, n)
        for first, _, k in self.segments(n):
            n_parts = len(self.values.parts(k))
            found.append(first + left[n_parts].astype(np.int64))
            left = left[n_parts + 1:]
        return np.concatenate(found) if found else np.zeros(0, np.int64)


GROUP = 32  # elements that are rotated together


def rotated(groups):
    """Rows of 32 times the Hadamard matrix: (a + b, a - b) at distance 1, 2, 4, 8, 16, in turn."""
    lanes = np.arange(GROUP)
    for distance in (1, 2, 4, 8, 16):
        other = groups[:, lanes ^ distance]
        is_upper = (lanes & distance) != 0
        groups = np.where(is_upper, other - groups, groups + other).astype(F32)
    return groups


class Hadamard(Format):
    """Another format's message of rotated groups; the last group is padded with zeros and sent."""

    def __init__(self, inner):
        self.inner, self.unit = inner, max(GROUP, inner.unit)

    def parts(self, n):
        return self.inner.parts(ceil_div(n, GROUP) * GROUP)

    def to_parts(self, y, exponent):
        return self.inner.to_parts(rotated(in_blocks(y, GROUP)).reshape(-1), exponent)

    def from_parts(self, arrays, n, exponent):
        seen = one_nan(self.inner.from_parts(arrays, ceil_div(n, GROUP) * GROUP, exponent))
        return (rotated(in_blocks(seen, GROUP)) * power_of_two(-5)).reshape(-1)[:n]


class Packed(Format):
    """Another format's messages of 8192 elements each, packed: a table of sizes, then segments."""

    align = PACKED_SEGMENT

    def __init__(self, inner):
        self.inner, self.unit = inner, inner.unit
        # elements come last in the other format, all of one size
        self.word = np.dtype(inner.parts(1)[-1][0])

    def segments(self, n):
        return [min(PACKED_SEGMENT, n - first) for first in range(0, n, PACKED_SEGMENT)]

    def front(self, n):
        """What the other format has before the elements."""
        return self.inner.payload_bytes(n) - padded(n * self.word.itemsize)

    def payload_bytes(self, n):
        """At most: all planes raw. What a message has instead depends on the values."""
        return padded(padded(4 * len(self.segments(n))) + sum(map(self.at_most, self.segments(n))))

    def at_most(self, n):
        """Bytes of a segment: its mask has one, or no more than what it leaves out."""
        width = self.word.itemsize
        return 4 * (1 + width) + self.front(n) + 1 + n * width

    def encode(self, y, exponent=0, draw=(0, 0, 0, 0)):
        y, out, at = np.ascontiguousarray(y, F32), [], 0
        for n in self.segments(len(y)):
            out.append(self._pack(self.inner.encode(y[at:at + n], exponent), n))
            at += n
        table = b''.join(len(s).to_bytes(4, 'little') for s in out)
        message = table + bytes(-len(table) % ALIGN) + b''.join(out)
        return message + bytes(-len(message) % ALIGN)

    def _pack(self, payload, n):
        front, width = self.front(n), self.word.itemsize
        words = np.frombuffer(payload, 'u%d' % width, n, front)
        mask = np.full(ceil_div(n, 8), 0xff, np.uint8)
        if width > 1 and 16 * (words == 0).sum() >= n:
            mask = np.packbits(words != 0, bitorder='little')
            words = words[words != 0]
        if width > 1:  # turned left by one bit: the sign comes last
            words = words << words.dtype.type(1) | words >> words.dtype.type(8 * width - 1)
        planes = np.ascontiguousarray(words).view(np.uint8).reshape(-1, width).T
        packed = [packing.pack(np.ascontiguousarray(p)) for p in (mask, *planes)]
        heads = b''.join((4 * len(data) + method).to_bytes(4, 'little') for method, data in packed)
        return heads + payload[:front] + b''.join(data for _, data in packed)

    def decode(self, message, n, exponent=0):
        sizes = self.segments(n)
        at = padded(4 * len(sizes))
        if len(message) < at:
            raise WireError('length %d, a table has %d' % (len(message), at))
        lengths = np.frombuffer(message, '<u4', len(sizes)).astype(np.int64)
        if padded(at + int(lengths.sum())) != len(message):
            raise WireError('length %d, segments of %s' % (len(message), lengths))
        if any(length > self.at_most(m) for m, length in zip(sizes, lengths)):
            raise WireError('segments of %s are too long' % lengths)
        out = [np.zeros(0, F32)]
        for m, length in zip(sizes, lengths.tolist()):
            out.append(self.inner.decode(self._unpack(message[at:at + length], m), m, exponent))
            at += length
        return np.concatenate(out)

    def _unpack(self, segment, n):
        front, width = self.front(n), self.word.itemsize
        at = 4 * (1 + width)
        heads = [int.from_bytes(segment[i:i + 4], 'little') for i in range(0, at, 4)]
        at += front
        if len(segment) != at + sum(h // 4 for h in heads):
            raise WireError('segment of %d bytes' % len(segment))
        planes, length = [], ceil_div(n, 8)
        for h in heads:
            try:
                planes.append(packing.unpack(h % 4, segment[at:at + h // 4], length))
            except packing.PackError as problem:
                raise WireError('plane: %s' % problem) from problem
            at += h // 4
            if len(planes) == 1:
                mask = np.unpackbits(planes[0], bitorder='little')[:n].astype(bool)
                length = int(mask.sum())
        kept = np.stack(planes[1:], axis=1).reshape(-1).view('u%d' % width)
        if width > 1:
            kept = kept >> kept.dtype.type(1) | kept << kept.dtype.type(8 * width - 1)
        words = np.zeros(n, kept.dtype)
        words[mask] = kept
        raw = words.tobytes()
        return segment[4 * len(heads):4 * len(heads) + front] + raw + bytes(-len(raw) % ALIGN)


def _no_options(make):
    def build(options):
        if options:
            raise ValueError('takes no option, got %s' % options)
        return make()
    return build


def _blocks(make):
    def build(options):
        if not options:
            return make()
        key, _, value = options.partition('=')
        if key != 'block' or value not in map(str, BLOCK_SIZES):
            raise ValueError('expected block=%s, got %s'
                             % ('|'.join(map(str, BLOCK_SIZES)), options))
        return make(int(value))
    return build


def _float8(options):
    kinds = {'': E4M3, 'e4m3': E4M3, 'e5m2': E5M2}
    if options not in kinds:
        raise ValueError('expected e4m3|e5m2, got %s' % options)
    return BlockFloat8(kinds[options])


def _top_k(options):
    options = options.removesuffix(',reuse')  # where a search starts changes no bit
    by_position = options.endswith(',position')
    amount, comma, name = options.removesuffix(',position').partition(',')
    values = {'': 'fp16', ',fp16': 'fp16', ',int8': 'int8', ',fp8': 'fp8'}.get(comma + name)
    if values is None:
        raise ValueError('expected fp16|int8|fp8, got %s' % name)
    values = FAMILIES[values]('')
    if re.fullmatch('k=[0-9]+', amount) and 1 <= int(amount[2:]) <= SEGMENT:
        return TopK(int(amount[2:]), values, by_position)
    if not re.fullmatch(r'[0-9]*\.?[0-9]*', amount) or not re.search('[0-9]', amount):
        raise ValueError('expected a ratio or k=1..%d, got %s' % (SEGMENT, amount))
    ratio = Fraction('0' + amount + ('0' if amount.endswith('.') else ''))
    if not 0 < ratio <= 1 or ratio.denominator > 10 ** 9 or 10 ** 9 % ratio.denominator:
        raise ValueError('ratio from 1e-9 to 1 in steps of 1e-9, got %s' % amount)
    return TopK(ratio, values, by_position)


def _mx(kinds):
    """kinds: texts between the name and `,ceil`, the default's as well as ''."""
    def build(options):
        kind, comma, rounding = options.partition(',')
        if kind not in kinds or (comma and rounding != 'ceil'):
            raise ValueError('expected %s, then nothing or ,ceil, got %s'
                             % ('|'.join(kinds), options))
        return Mx(kinds[kind], bool(comma))
    return build


FAMILIES = {
    'fp32': _no_options(lambda: Cast(FP32)),
    'fp16': _no_options(lambda: Cast(FP16, scaled=True)),
    'bf16': _no_options(lambda: Cast(BF16)),
    'int8': _blocks(BlockInt8),
    'int4': lambda options: SignedInt4() if options == 'signed' else _blocks(BlockInt4)(options),
    'fp8': _float8,
    'topk': _top_k,
    'mxfp8': _mx({'': E4M3, 'e4m3': E4M3, 'e5m2': E5M2}),
    'mxfp4': _mx({'': E2M1}),
    'mxint8': _mx({'': FIXED8}),
    'nvfp4': _no_options(Nvfp4),
}


BLOCKS_OF_INT8 = FAMILIES['int8']  # the one that takes ,entropy
ROTATING = ('int8', 'int4', 'fp8')  # families that take ,hadamard
DRAWING = {'int8': _blocks(StochasticInt8), 'int4': _blocks(StochasticInt4)}  # and ,sr


def _after_colon(spec, name):
    options = spec[len(name):]
    if options and (not options.startswith(':') or options == ':'):
        raise ValueError('unknown options "%s" of %s' % (options, name))
    return options[1:]


def parse(spec, data_type='fp32'):
    """The format of a text such as int8:block=64. `none` sends the data type of the call."""
    if spec == 'none':
        spec = DATA_TYPES[data_type].name
    if spec == 'lossless':
        return Packed(parse('none', data_type))
    name = re.match('[^:,]*', spec).group()
    options = spec[len(name):]  # ":block=64", ",ceil" or both kinds
    base, comma, wrapper = spec.rpartition(',')
    if comma and name in DRAWING and wrapper == 'sr':
        return DRAWING[name](_after_colon(base, name))
    if comma and name == 'int8' and wrapper == 'entropy':
        return Packed(BLOCKS_OF_INT8(_after_colon(base, name)))
    if comma and name in ROTATING:
        if wrapper != 'hadamard' or ',' in base or options.startswith(':signed'):
            raise ValueError('%s takes no option "%s"' % (base, wrapper))
        return Hadamard(parse(base))
    if name not in FAMILIES or re.match(':(,|$)', options):
        raise ValueError('unknown codec "%s", expected none, %s' % (spec, ', '.join(FAMILIES)))
    return FAMILIES[name](options[1:] if options.startswith(':') else options)
