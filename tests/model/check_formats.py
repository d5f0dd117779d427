# SPDX-License-Identifier: Apache-2.0
"""Checks of what does not need a whole call: numbers, messages, headers, plans."""
import numpy as np

import blocks
import formats
import header
import plan as planning
from expect import CODECS, LAYOUTS, expect, refuses, same
from ieee import BF16, F32, FP16, bits_of, floats_of, pick


# ---- formats ----
def check_codec_specs():
    for spec in ('int9', 'int8 ', ' int8', '', 'int8:block=17', 'int8:block=512', 'int8:', 'fp16:x',
                 'int8:block', 'INT8', 'none,sr', 'fp8,sr', 'bf16,hadamard', 'int8,sr,sr', 'int8,', 'int8:sr', 'int4:signed,hadamard', 'int4:block=17', 'int4:', 'fp8:e3m4', 'fp8:', 'e4m3',
                 'mxfp8:', 'mxfp8,', 'mxfp8:,ceil', 'mxfp8,floor', 'mxfp8:e2m1', 'mxfp4:e2m1', 'nvfp4,ceil',
                 'fp8,ceil', 'lossless,', 'lossless:fp32', 'int4,entropy', 'int8,entropy,sr', 'int8,sr,entropy',
                 'int8:entropy', 'fp32,entropy'):
        expect(refuses(ValueError, formats.parse, spec), 'spec must be refused', repr(spec))
    for amount in ('', '0', '0.0', '1.000000001', '2', 'nan', 'inf', '1e-3', '1e-10', '0.0000000001',
                   '-0.1', '.', '0.01 ', 'k=', 'k=0', 'k=65537', 'k=-1', 'k=1.5', '0.01,', '0.01,int4',
                   '0.01,fp8:e5m2', '0.01,int8,int8'):
        expect(refuses(ValueError, formats.parse, 'topk:' + amount), 'must be refused', repr(amount))
    expect(refuses(ValueError, formats.parse, 'topk'), 'top-k needs a ratio')
    expect(formats.parse('topk:0.07').kept(100) == 7, 'k is computed in integers')
    expect(formats.parse('fp8:e4m3').kind is formats.parse('fp8').kind, 'alias')
    expect(formats.parse('mxfp8:e4m3,ceil').ceil and not formats.parse('mxfp8:e5m2').ceil, 'ceil')
    expect(formats.parse('none', 'bf16').data_type is BF16, 'none follows the data type')


def check_message_sizes():
    rng = np.random.default_rng(1)
    for spec in CODECS[1:]:
        f = formats.parse(spec)
        for n in (0, 1, 15, 16, 17, 255, 256, 257, 1000):
            message = f.encode(rng.normal(0, 1, n).astype(F32))
            is_fixed = not isinstance(f, formats.Packed)
            expect(len(message) == f.payload_bytes(n) if is_fixed
                   else len(message) <= f.payload_bytes(n), 'size', spec, n)
            expect(len(message) % 16 == 0, 'size', spec, n)
            for wrong in (message + bytes(16), message[:-1]):
                if len(wrong) != len(message):
                    expect(refuses(blocks.WireError, f.decode, wrong, n), 'length', spec, n)
    for spec, size in (('int8', 16 + 1008), ('int4', 32 + 512), ('fp8', 16 + 1008),
                       ('int4:block=16', 128 + 512), ('mxfp8', 32 + 1008), ('mxfp4', 32 + 512),
                       ('mxint8,ceil', 32 + 1008), ('nvfp4', 16 + 64 + 512)):
        expect(formats.parse(spec).payload_bytes(1000) == size, spec, 'of 1000')


def check_int8_codes():
    f, q = formats.parse('int8'), np.resize(np.arange(-127, 128), 256)
    x = (q * F32(0.25)).astype(F32)
    expect(same(f.decode(f.encode(x), 256), x), 'all codes survive')
    ties = np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5], F32)
    expect(list(f.decode(f.encode(ties), 7)) == [127, 0, 2, 2, 0, -2, -2], 'ties go to even')
    for bits, kept in ((0x0d7fffff, False), (0x0d800000, True)):
        x = floats_of([bits, bits | 0x80000000])
        seen = f.decode(f.encode(x), 2)
        expect(bool(seen.any()) == kept and np.isfinite(seen).all(), 'edge at 2^-100', hex(bits))


def check_top_k_messages():
    f = formats.parse('topk:k=3')
    x = np.array([1, -2, 0, 2, 5, -2, 2], F32)
    message = f.encode(x)
    expect(len(message) == 32 and list(np.frombuffer(message, '<u2', 3, 16)) == [1, 3, 4],
           'ties go to the lowest index')
    expect(list(f.decode(message, 7)) == [0, -2, 0, 2, 5, 0, 0], 'the rest is zero')
    for index in ([1, 1, 2], [2, 1, 3], [4, 5, 7], [0, 1, 65535]):
        broken = message[:16] + np.array(index, '<u2').tobytes() + bytes(10)
        expect(np.isnan(f.decode(broken, 7)).all(), 'indices', index)
    inf = np.array([0xfc00, 0, 1], '<u2').tobytes() + bytes(10) + message[16:]
    expect(f.decode(inf, 7)[1] == -np.inf and f.decode(inf, 7)[0] == 0, 'Inf is an element')


def check_poison():
    rng = np.random.default_rng(2)
    for spec in CODECS[1:]:
        f = formats.parse(spec)
        for bad in (np.nan, np.inf, -np.inf):
            x = rng.normal(0, 1, 1000).astype(F32)
            x[500] = bad
            seen = f.decode(f.encode(x), 1000)
            a = 500 // f.unit * f.unit
            unit = bits_of(seen[a:a + f.unit])
            wanted = 0x7fc00000 if f.unit > 1 else bits_of([bad])[0] & 0xffc00000
            expect((unit == wanted).all() or (np.isnan(bad) and (unit == 0x7fc00000).all()),
                   'poison', spec, bad)
            expect(np.isfinite(np.delete(seen, np.s_[a:a + f.unit])).all(), 'spreads', spec, bad)


def check_error_is_smaller_than_input():
    rng = np.random.default_rng(3)
    for spec in CODECS[1:]:
        f = formats.parse(spec)
        for n, e in ((1, 0), (33, -40), (1000, 3)):
            x = np.ldexp(rng.normal(0, 1, n), e).astype(F32)
            lost = (x - f.decode(f.encode(x), n)).astype(np.float64)
            expect(np.linalg.norm(lost) <= np.linalg.norm(x.astype(np.float64)), 'norm', spec, n)


def check_conversions():
    for bits, half, brain in ((0x477fe000, 0x7bff, 0x4780), (0x477fefff, 0x7bff, 0x4780),
                              (0x477ff000, 0x7c00, 0x4780), (0x3f808000, 0x3c04, 0x3f80),
                              (0x3f818000, 0x3c0c, 0x3f82), (0xffc12345, 0x7e00, 0x7fc0),
                              (0x00008001, 0x0000, 0x0001), (0x33000000, 0x0000, 0x3300),
                              (0x33000001, 0x0001, 0x3300), (0x80000000, 0x8000, 0x8000)):
        x = floats_of([bits])
        expect(FP16.to_bits(x)[0] == half, 'fp16', hex(bits))
        expect(BF16.to_bits(x)[0] == brain, 'bf16', hex(bits))


def check_max_and_min():
    a = floats_of([0x80000000, 0, 0x7f800001, 0x3f800000, 0xff800000])
    b = floats_of([0, 0x80000000, 0x3f800000, 0xffc00001, 0x7f800000])
    expect(list(bits_of(pick(a, b, True))) == [0, 0, 0x7fc00000, 0x7fc00000, 0x7f800000], 'max')
    expect(list(bits_of(pick(a, b, False))) == [1 << 31, 1 << 31, 0x7fc00000, 0x7fc00000,
                                                0xff800000], 'min')


# ---- plan ----
def _roles(plan, n):
    """How often each rank encodes each element."""
    roles = np.zeros((plan.n_ranks, n), int)
    for x in plan.exchanges:
        for rank in x.members:
            roles[rank, x.start:x.end] += rank != x.owner
    for piece in plan.final:
        roles[piece.owner, piece.start:piece.end] += 1
    return roles


def _tree_of(text):
    return planning.make_tree(planning.parse_layout(text))


def check_plans():
    wide = [list(range(p)) for p in (32, 33, 40, 70)] + [[list(range(34)), [34]]]
    for layout in LAYOUTS + wide:
        for n in (0, 1, 255, 257, 4096, 9001):
            plan = planning.build(layout, n)
            tiles = [(p.start, p.end) for p in plan.final]
            edges = [0] + [e for _, e in tiles]
            expect([s for s, _ in tiles] == edges[:-1] and edges[-1] == n, 'tiles', layout, n)
            expect((_roles(plan, n) == 1).all(), 'one role per rank and element', layout, n)
            expect(all(x.start % 256 == 0 for x in plan.exchanges), 'granule', layout, n)
            expect(all(x.owner in x.members and list(x.members) == sorted(x.members)
                       for x in plan.exchanges), 'members', layout, n)
    for bad in ('', '0,2', '0,0', '(0,1),(1)', 'a'):
        expect(refuses(ValueError, _tree_of, bad), 'layout must be refused', bad)


# ---- header ----
def check_checksum():
    expect(header.crc32c(b'123456789') == 0xe3069283, 'CRC32C check value')
    expect(header.crc32c(bytes(32)) == 0x8a9136aa, 'CRC32C of 32 zeros')
    expect(header.crc32c(b'6789', header.crc32c(b'12345')) == 0xe3069283, 'chained')


def check_header():
    h = header.Header(sequence=7, descriptor_hash=1 << 60, chunk=1, stage=2, note=9)
    right = header.Expected(7, 1 << 60, 2, (64, 48), 64)
    message = header.encode(h, bytes(48))
    expect(len(message) == 80 and message[:4] == b'\xc0\xd5\x01\x01', 'layout')
    expect(header.decode(message, right)[0].note == 9, 'accepted')
    for i in range(80):
        broken = bytearray(message)
        broken[i] ^= 1
        expect(refuses(header.HeaderError, header.decode, bytes(broken), right), 'bit of byte', i)
    off = header.encode(h, bytes(48), with_crc=False)
    expect(header.decode(off, right)[0].crc32c == 0, 'checksum off')
