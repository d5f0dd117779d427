# SPDX-License-Identifier: Apache-2.0
"""Which messages are golden: inputs with edges in them, hand-made payloads, broken messages.

Only content is decided here; make_golden.py turns it into files. Needs tests/model on the path.
"""
import struct
from dataclasses import replace

import numpy as np

import formats
import generate
import header
from ieee import F32, bits_of, floats_of

GENERATED = {'generated': (1, 0, 0, 70), 'generated long': (3, 1, 2, 300)}  # seed rank call count


def _vectors():
    halves = (np.arange(70) - 35).astype(F32) * F32(0.5)
    half_edges = [0x477fe000, 0x477fefff, 0x477ff000, 0xc77ff000, 0x33000000, 0x33000001,
                  0x387fc000, 0x387fe000, 0x387ff000, 0x3f801000, 0x3f803000, 0x3f803001]
    # full scale, then ties of each format between its steps, and their neighbours
    ties4 = [0x43e00000, 0x3f880000, 0xbf980000, 0x3f880001, 0xbf97ffff, 0x43d80000, 0xc3c80000,
             0x3a800000, 0xbac00000, 0x3a7fffff, 0x3b200000, 0x3c700000, 0x3c780000, 0x80000000]
    ties5 = [0x47600000, 0x3f900000, 0xbfb00000, 0x3f900001, 0xbfafffff, 0x47500000, 0xc7300000,
             0x37000000, 0xb7400000, 0x36ffffff, 0x37a00000, 0x38500000, 0x38700000, 0x80000000]
    # E2M1: the same, then beyond full scale, which is sent at once or by the next power of two
    ties2 = [0x40c00000, 0x3f400000, 0xbfa00000, 0x3f400001, 0xbf9fffff, 0x40a00000, 0xc0600000,
             0x3e800000, 0xbe800001, 0x3e7fffff, 0x40200000, 0x3fe00000, 0x80000000]
    beyond = [0x43e00001, 0xc3ffffff, 0x43e80000, 0x42fe0001, 0x3f800000, 0xc3600000, 0x43df8000]
    brain_edges = [0x3f808000, 0x3f818000, 0x3f808001, 0x7f7f7fff, 0x7f7f8000, 0xff7f8000,
                   0x00008000, 0x00018000, 0x80000001]
    # four exponents, both signs, no mantissa: each plane is worth packing, and differently
    powers = np.ldexp(np.where(np.arange(90) % 3 == 0, -1, 1), np.arange(90) * 7 % 11 % 4)
    out = {name: generate.generate(*args) for name, args in GENERATED.items()}
    out.update({
        'empty': np.zeros(0, F32),
        'powers': powers.astype(F32),
        'small integers': ((np.arange(70) * 11) % 15 - 7).astype(F32),
        'zero': np.zeros(33, F32),
        'minus zero': -np.zeros(5, F32),
        'special': floats_of([0x80000000, 0, 1, 0x0d7fffff, 0x0d800000, 0x3f800000, 0xbf800000,
                              0x40490fdb]),
        'below 2^-100': floats_of([0x0d7fffff, 0x8d7fffff, 1]),
        'at 2^-100': floats_of([0x0d800000, 0x8d000000, 1]),
        'largest': floats_of([0x7f7fffff, 0xff7fffff, 0x7f000000]),
        'nan': floats_of([0x3f800000, 0xffc12345, 0x40000000]),
        'signalling nan': floats_of([0x7f800001, 0x3f800000]),
        'inf': floats_of([0x3f800000, 0xff800000]),
        'ties': halves,
        'fp16 edges': floats_of(half_edges),
        'bf16 edges': floats_of(brain_edges),
        'e4m3 ties': floats_of(ties4),
        'e5m2 ties': floats_of(ties5),
        'e2m1 ties': floats_of(ties2),
        'beyond 448': floats_of(beyond),
        'one bad block': np.where(np.arange(300) == 299, F32('nan'), F32(127)).astype(F32),
    })
    return out


VECTORS = _vectors()
CODECS = ('fp32', 'fp16', 'bf16', 'int8', 'int8:block=16', 'int8:block=32', 'int8:block=64',
          'int8:block=128')
# These came later: few vectors each, and what is only for them.
SMALL_CODES = {
    'int4': ('generated', 'small integers', 'minus zero', 'special', 'at 2^-100', 'largest', 'nan',
             'ties'),
    'int4:block=16': ('generated',),
    'fp8': ('generated', 'minus zero', 'special', 'at 2^-100', 'largest', 'inf', 'e4m3 ties'),
    'fp8:e5m2': ('generated', 'special', 'at 2^-100', 'largest', 'nan', 'e5m2 ties'),
    'topk:0.1': ('empty', 'generated', 'small integers', 'minus zero', 'special', 'largest', 'nan',
                 'inf'),
    'topk:0.25,int8': ('generated', 'ties', 'at 2^-100', 'nan', 'one bad block'),
    'topk:k=9,fp8': ('generated', 'minus zero', 'small integers', 'inf'),
    'topk:k=300': ('generated long',),
    'topk:k=280,int8': ('generated long',),
    'int8,hadamard': ('generated', 'special'),
    'int4,hadamard': ('generated', 'small integers', 'at 2^-100', 'largest', 'nan'),
    'fp8,hadamard': ('generated', 'inf'),
    'int8,sr': ('generated', 'ties', 'nan'),  # drawn with seed, call, rank and first index 0
    'int4:signed': ('generated', 'small integers', 'minus zero', 'special', 'at 2^-100', 'largest',
                    'inf', 'ties'),
    'int4,sr': ('generated', 'ties', 'at 2^-100'),
}
MX = {
    'mxfp8': ('generated', 'minus zero', 'special', 'at 2^-100', 'largest', 'nan', 'e4m3 ties',
              'beyond 448'),
    'mxfp8,ceil': ('generated', 'largest', 'e4m3 ties', 'beyond 448'),
    'mxfp8:e5m2': ('generated', 'special', 'largest', 'inf', 'e5m2 ties'),
    'mxfp8:e5m2,ceil': ('generated', 'largest', 'e5m2 ties', 'beyond 448'),
    'mxfp4': ('generated', 'minus zero', 'at 2^-100', 'largest', 'nan', 'e2m1 ties', 'beyond 448'),
    'mxfp4,ceil': ('generated', 'largest', 'e2m1 ties', 'beyond 448'),
    'mxint8': ('generated', 'special', 'at 2^-100', 'largest', 'nan', 'ties'),
    'mxint8,ceil': ('generated', 'largest', 'ties', 'beyond 448'),
    'nvfp4': ('generated', 'minus zero', 'special', 'at 2^-100', 'largest', 'nan', 'inf', 'zero',
              'e2m1 ties', 'beyond 448'),
}
PACKED = {
    'lossless': ('empty', 'generated', 'zero', 'minus zero', 'special', 'nan', 'inf', 'powers'),
    'int8,entropy': ('empty', 'generated', 'zero', 'nan', 'small integers'),
    'int8:block=16,entropy': ('one bad block',),
}
LONG = ('int8', 'int8:block=16', 'int8:block=128')  # where more than one block is worth its bytes


def choices():
    """(codec, vector, E) of the encoded messages."""
    for codec in CODECS:
        for name in VECTORS:
            if ':' in codec and name not in ('generated', 'generated long', 'nan', 'ties'):
                continue
            if name in ('e4m3 ties', 'e5m2 ties', 'e2m1 ties', 'beyond 448', 'powers'):
                continue
            if name == 'generated long' and codec not in LONG:
                continue
            yield codec, name, 0
    for exponent in (1, 3, 6):
        for name in ('generated', 'largest', 'fp16 edges'):
            yield 'fp16', name, exponent
    for name in ('generated', 'fp16 edges'):
        yield 'topk:0.5', name, 3
    for codec, names in (*SMALL_CODES.items(), *MX.items(), *PACKED.items()):
        for name in names:
            yield codec, name, 0


def _blocks(scale_format, scales, codes, padding=0):
    """A hand-made payload; unused bytes are set to `padding`."""
    def part(raw):
        return raw + bytes([padding]) * (-len(raw) % 16)
    return (part(struct.pack('<%d%s' % (len(scales), scale_format), *scales))
            + part(bytes(c & 255 for c in codes)))


def _int8(scales, codes, padding=0):
    """Also of fp8, whose codes are bytes too."""
    return _blocks('I', scales, codes, padding)


def _int4(scales, codes, padding=0):
    return _blocks('H', scales, codes, padding)


def _mx(scales, codes, padding=0):
    return _blocks('B', scales, codes, padding)


def _nvfp4(segments, scales, codes, padding=0):
    return _blocks('I', segments, [], padding) + _mx(scales, codes, padding)


def valid_payloads():
    """(name, codec, E, n, payload); also what no encoder writes but a decoder takes."""
    for codec, name, exponent in (('fp32', 'special', 0), ('fp32', 'signalling nan', 0),
                                  ('fp16', 'generated', 0), ('fp16', 'fp16 edges', 3),
                                  ('bf16', 'bf16 edges', 0), ('int8', 'empty', 0),
                                  ('int8', 'ties', 0), ('int8', 'generated long', 0),
                                  ('int8', 'largest', 0), ('int8', 'at 2^-100', 0),
                                  ('int8', 'one bad block', 0), ('int8:block=16', 'generated', 0),
                                  ('int8:block=128', 'generated long', 0)):
        name_on_disk = '%s_%s' % (codec.replace(':block=', 'b'), name.replace(' ', '_'))
        x = VECTORS[name]
        yield (name_on_disk.replace('^', ''), codec, exponent, len(x),
               formats.parse(codec).encode(x, exponent))
    one, n = bits_of([1.0])[0], 5
    yield 'hand_int8_code_-128', 'int8', 0, n, _int8([one], [-128, -127, 127, 0, 1])
    yield 'hand_int8_negative_scale', 'int8', 0, n, _int8([one | 1 << 31], [-2, -1, 0, 1, 2])
    yield 'hand_int8_subnormal_scale', 'int8', 0, n, _int8([3], [-2, -1, 0, 1, 127])
    yield 'hand_int8_padding', 'int8', 0, n, _int8([one], [-2, -1, 0, 1, 2], 0xff)
    yield 'hand_int8_zero_scale', 'int8', 0, n, _int8([0], [-2, -1, 0, 1, 2])
    yield 'hand_fp16_nan_payload', 'fp16', 2, 3, struct.pack('<3H', 0x7c01, 0xfc00, 1) + bytes(10)
    yield ('hand_fp32_nan_payload', 'fp32', 0, 2,
           struct.pack('<2I', 0xff812345, 0x80000000) + bytes(8))
    yield from _small_payloads()
    yield from _top_k_payloads()
    yield from _packed_payloads()


def _small_payloads():
    """Of the formats with small codes: what is no number in one is one in another."""
    codes = [0x00, 0x80, 0x01, 0x81, 0x08, 0x7b, 0x7c, 0xfc, 0x7d, 0x7e, 0xfe, 0x7f, 0xff, 0x38]
    for codec in ('fp8', 'fp8:e5m2'):
        for name, word in (('one', 0x3f800000), ('zero', 0), ('negative', 0xc0000000),
                           ('subnormal', 3), ('huge', 0x7f7fffff)):
            yield ('hand_%s_%s_scale' % (codec.replace(':', '_'), name), codec, 0, len(codes),
                   _int8([word], codes, 0xff))
    for name, word in (('one', 0x3f80), ('zero', 0), ('negative', 0xc000), ('subnormal', 3),
                       ('huge', 0x7f7f)):  # the unused half of the last byte is not zero
        yield ('hand_int4_%s_scale' % name, 'int4', 0, 9,
               _int4([word], [0x80, 0x79, 0x0f, 0x18, 0xf7], 0xff))


    yield from _mx_payloads(codes)


def _mx_payloads(codes):
    """Under scales of 1, the largest and the smallest power of two; the last byte has an unused half."""
    for name, scale in (('one', 127), ('huge', 254), ('code_0', 0), ('code_1', 1)):
        for codec in ('mxfp8', 'mxfp8:e5m2', 'mxint8'):
            yield ('hand_%s_%s_scale' % (codec.replace(':', '_'), name), codec, 0, len(codes),
                   _mx([scale], codes, 0xff))
        yield ('hand_mxfp4_%s_scale' % name, 'mxfp4', 0, 15,
               _mx([scale], [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe], 0xff))
    for name, segment, scale in (('one', 0x3f800000, 0x38), ('negative', 0x40000000, 0xc8),
                                 ('zero', 0, 0x7e), ('subnormal', 3, 0x01),
                                 ('overflowing', 0x7f7fffff, 0x7e), ('zero_block', 0x3f800000, 0)):
        yield ('hand_nvfp4_%s_scale' % name, 'nvfp4', 0, 15,
               _nvfp4([segment], [scale], [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe], 0xff))


def _top_k(values, index, padding=0):
    """One segment by hand; values are bytes."""
    def part(raw):
        return raw + bytes([padding]) * (-len(raw) % 16)
    return part(values) + part(struct.pack('<%dH' % len(index), *index))


def _top_k_payloads():
    """Values that only other encoders send: signed zeros, Inf, a negative scale, odd padding."""
    yield ('hand_topk_values', 'topk:k=4', 1, 9,
           _top_k(struct.pack('<4H', 0x8000, 0x7c00, 0xfc00, 0x3c01), [0, 3, 4, 8], 0xff))
    yield ('hand_topk_int8', 'topk:k=3,int8', 0, 6,
           _top_k(struct.pack('<I', 0xbf800000), [], 0xff) + _top_k(bytes([128, 0, 127]), [1, 2, 5]))
    yield ('hand_topk_fp8', 'topk:k=2,fp8', 0, 2,
           _top_k(struct.pack('<I', 0), []) + _top_k(bytes([0x80, 0x7e]), [0, 1], 0xff))


def _top_k_poison():
    """What poisons a segment besides a scale: a NaN among the values, and odd indices."""
    one = struct.pack('<3H', 0x3c00, 0x3c00, 0x3c00)
    for name, index in (('twice the same index', [1, 1, 2]), ('indices descend', [2, 1, 3]),
                        ('index at the end', [0, 1, 6]), ('index far away', [0, 1, 65535])):
        yield _poison_entry(name, 'topk:k=3', _top_k(one, index), 6)
    for word in (0x7e00, 0x7c01, 0xfe00):
        yield _poison_entry('value 0x%04x' % word, 'topk:k=3',
                            _top_k(struct.pack('<3H', 0x3c00, word, 0), [0, 1, 2]), 6)
    for name, scale, code in (('scale inf', 0x7f800000, 1), ('code nan', 0x3f800000, 0x7f)):
        yield _poison_entry('fp8 ' + name, 'topk:k=3,fp8', _top_k(struct.pack('<I', scale), [])
                            + _top_k(bytes([1, code, 1]), [0, 1, 2]), 6)


def _taken_apart(message):
    """The (method, bytes) of mask and planes of a lossless message of one segment."""
    heads, at, out = struct.unpack_from('<5I', message, 16), 36, []
    for head in heads:
        out.append((head % 4, message[at:at + head // 4]))
        at += head // 4
    return out


def _lossless(planes, padding=0, longer=0, behind=b''):
    """A message of one segment; `longer`: what its table says too much."""
    data = b''.join(d for _, d in planes) + behind
    heads = struct.pack('<5I', *(4 * len(d) + m for m, d in planes))
    pad = bytes([padding])
    out = struct.pack('<I', len(heads + data) + longer) + pad * 12 + heads + data
    return out + pad * (-len(out) % 16)


def _raw_planes():
    """Of 'powers'."""
    powers = bits_of(VECTORS['powers']).astype(np.uint64)
    turned = (powers << np.uint64(1) | powers >> np.uint64(31)).astype('<u4')
    return [(0, p.tobytes()) for p in turned.view(np.uint8).reshape(-1, 4).T]


def _packed_payloads():
    """Other choices than an encoder's: raw, though it could be less; a mask of random bits."""
    yield 'hand_lossless_raw', 'lossless', 0, 90, _lossless([(1, b'\xff')] + _raw_planes(), 0xff)
    yield ('hand_lossless_mask', 'lossless', 0, 12,
           _lossless([(0, b'\x05\xf2'), (1, b'\x01'), (0, b'\0\0\0'), (0, b'\1\2\3'), (1, b'\x7f')]))
    yield ('hand_int8_entropy_mask', 'int8,entropy', 0, 9,
           struct.pack('<I12x2I', 8 + 16 + 2 + 3, 4 * 2, 4 * 3)
           + _int8([bits_of([2.0])[0]], []) + b'\x41\x01' + bytes([1, 255, 128]) + bytes(3))


def _broken_packed():
    """Messages of 'powers' with one thing wrong."""
    good = formats.parse('lossless').encode(VECTORS['powers'])
    planes = _taken_apart(good)
    code = planes[4][1]  # of the exponents: first, last, two bytes of lengths, sizes of streams

    def with_plane(index, method, data, **more):
        return _lossless(planes[:index] + [(method, data)] + planes[index + 1:], **more)

    yield 'table beyond the message', struct.pack('<I', 0xffffffff) + good[4:]
    yield 'table too short', struct.pack('<I', 1) + good[4:]
    yield 'segment with bytes behind', _lossless(planes, behind=bytes(3))
    yield 'segment longer than its planes', _lossless(planes, longer=1)
    yield 'mask that saves nothing', _lossless([(0, b'\xff' * 12)] + _raw_planes())
    yield 'mask of an unknown method', with_plane(0, 3, b'\xff')
    yield 'constant of two bytes', with_plane(2, 1, b'\0\0')
    yield 'constant of no byte', with_plane(2, 1, b'')
    yield 'raw and short', with_plane(2, 0, bytes(89))
    yield 'raw and long', with_plane(2, 0, bytes(91))
    yield 'elements that the mask leaves out', with_plane(0, 1, b'\x7f')
    for name, data in (('one symbol', code[:1] + code[:1] + code[2:]),
                       ('last before first', bytes([code[1], code[0]]) + code[2:]),
                       ('no code', code[:1]), ('half a code', code[:3]), ('no streams', code[:9]),
                       ('code of 12 bits', code[:2] + b'\x1c' + code[3:]),
                       ('code that overflows', code[:2] + b'\x11\x11' + code[4:]),
                       ('code with a gap', code[:2] + b'\x33\x33' + code[4:]),
                       ('stream that is too long', code[:4] + b'\xff\xff' + code[6:]),
                       ('streams that are moved', code[:4] + bytes([code[4] - 1]) + code[5:]),
                       ('bit behind the last', code[:-1] + bytes([code[-1] ^ 1])),
                       ('last stream cut', code[:-1]), ('last stream long', code + b'\0')):
        yield 'code: ' + name, with_plane(4, 2, data)


def _poison_entry(name, codec, payload, n):
    decoded = formats.parse(codec).decode(payload, n)
    return dict(name=name, expect='poison', codec=codec, n=n, E=0, message=payload.hex(),
                decoded=bits_of(decoded).astype('<u4').tobytes().hex())


def _poisoned(name, codec, scales, n, segments=()):
    if codec == 'nvfp4':
        payload = _nvfp4(segments, scales, [0x77] * (n // 2))
    elif codec.startswith('mx'):
        payload = _mx(scales, [0x12] * (n // 2 if 'fp4' in codec else n))
    else:
        payload = _int4(scales, [0x77] * (n // 2)) if 'int4' in codec else _int8(scales, [7] * n)
    return _poison_entry(name, codec, payload, n)


def invalid_payloads():
    """Dictionaries with name, expect (refuse or poison), codec, n, E, message."""
    one = 0x3f800000
    for name, word in (('canonical', 0x7fc00000), ('plus inf', 0x7f800000),
                       ('minus inf', 0xff800000), ('signalling nan', 0x7f800001),
                       ('negative nan', 0xffffffff)):
        yield _poisoned('scale ' + name, 'int8', [word], 6)
        yield _poisoned('second scale ' + name, 'int8:block=16', [one, word, one], 40)
    for codec in CODECS[:5] + ('int4', 'fp8', 'topk:0.1', 'mxfp8', 'mxfp4', 'nvfp4', 'lossless',
                                'int8,entropy'):
        f = formats.parse(codec)
        message = f.encode(VECTORS['generated'])
        for name, broken in (('one byte short', message[:-1]), ('a part short', message[:-16]),
                             ('one byte long', message + b'\0'), ('long', message + bytes(16)),
                             ('empty', b'')):
            yield dict(name=name, expect='refuse', codec=codec, n=70, E=0, message=broken.hex())
    for word in (0x7fc0, 0x7f80, 0xff80, 0x7f81, 0xffff):
        yield _poisoned('scale 0x%04x' % word, 'int4', [word], 6)
    yield _poisoned('second scale', 'int4:block=16', [0x3f80, 0x7fc0, 0x3f80], 40)
    for codec in ('fp8', 'fp8:e5m2'):
        for word in (0x7fc00000, 0xff800000, 0x7f800001):
            yield _poisoned('scale 0x%08x' % word, codec, [word], 6)
    yield from _top_k_poison()
    for name, broken in _broken_packed():
        yield dict(name=name, expect='refuse', codec='lossless', n=90, E=0, message=broken.hex())
    for codec in ('mxfp8', 'mxfp8:e5m2', 'mxfp4', 'mxint8'):
        yield _poisoned('second scale', codec, [127, 0xff, 127], 70)
    for scale in (0x7f, 0xff):
        yield _poisoned('second scale 0x%02x' % scale, 'nvfp4', [0x38, scale, 0x38], 40,
                        [0x3f800000])
    for word in (0x7fc00000, 0xff800000, 0x7f800001):
        yield _poisoned('segment scale 0x%08x' % word, 'nvfp4', [0x38], 6, [word])


_HEADER = header.Header(sequence=0x01020304, descriptor_hash=0x1122334455667788, chunk=1, stage=2,
                        note=0xa1b2c3d4)
_N = 40
_PAYLOAD = formats.parse('int8').encode(VECTORS['ties'][:_N])
EXPECTED = header.Expected(_HEADER.sequence, _HEADER.descriptor_hash, _HEADER.stage,
                           (len(_PAYLOAD) + 16, len(_PAYLOAD)), 1104)
_TEXT = b'count: 1000 on rank 0, 998 on rank 1'


def valid_host_messages():
    """(name, header, codec or None, n, payload, with checksum)"""
    yield 'host_data', _HEADER, 'int8', _N, _PAYLOAD, True
    yield 'host_data_checksum_off', _HEADER, 'int8', _N, _PAYLOAD, False
    yield 'host_error', replace(_HEADER, kind=header.KIND_ERROR, chunk=0, stage=0,
                                descriptor_hash=5), None, 0, _TEXT, True
    yield 'host_error_empty', replace(_HEADER, kind=header.KIND_ERROR), None, 0, b'', True


def _one_wrong_field():
    wrong = (('magic', 0xc0d5), ('version', 0), ('version', 2), ('kind', 0), ('kind', 3),
             ('kind', 255), ('sequence', 0x01020305), ('sequence', 0),
             ('descriptor_hash', 0x1122334455667789), ('descriptor_hash', 0x0122334455667788),
             ('chunk', 2), ('chunk', 65535), ('stage', 1), ('stage', 0xffff))
    for field, value in wrong:
        yield '%s %d' % (field, value), field, header.encode(replace(_HEADER, **{field: value}),
                                                             _PAYLOAD)
    yield ('size of another chunk', 'payload_bytes',
           header.encode(replace(_HEADER, chunk=0), _PAYLOAD))


def _raw(payload, **changes):
    """A message whose header is set field by field, checksum right for what it says."""
    h = replace(_HEADER, payload_bytes=len(_PAYLOAD), **changes)
    return replace(h, crc32c=header.checksum(h, payload)).pack() + payload


def _wrong_bytes():
    good = header.encode(_HEADER, _PAYLOAD)
    yield 'empty', 'length', b''
    yield 'half a header', 'length', good[:16]
    yield 'header only', 'length', good[:32]
    yield 'truncated', 'length', good[:-1]
    yield 'too long', 'length', good + bytes(16)
    yield 'payload beyond the slot', 'payload_bytes', header.encode(_HEADER, bytes(1120))
    yield 'announced size beyond the slot', 'payload_bytes', replace(
        header.unpack(good[:32]), payload_bytes=0xffffffff).pack() + _PAYLOAD
    for name, at in (('payload bit', 40), ('last bit', len(good) - 1), ('note bit', 24),
                     ('chunk bit', 16), ('checksum bit', 31)):
        broken = bytearray(good)
        broken[at] ^= 0x80
        yield name, 'crc32c', bytes(broken)
    yield 'error text too long', 'payload_bytes', header.encode(
        replace(_HEADER, kind=header.KIND_ERROR), bytes(header.ERROR_TEXT_MAX + 1))


def invalid_host_messages():
    """Dictionaries with name, expect, field (what is wrong), message."""
    for family in (_one_wrong_field, _wrong_bytes):
        for name, field, message in family():
            refused = None
            try:
                header.decode(message, EXPECTED)
            except header.HeaderError as problem:
                refused = problem.field
            if refused != field:
                raise AssertionError('%s: refused for %s, not %s' % (name, refused, field))
            yield dict(name=name, expect='refuse', field=field, message=message.hex())
