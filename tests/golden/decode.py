#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A second decoder, written from docs/wire_format.md alone, with nothing but the standard library.

It shares no line with the encoder, so a mistake in either, or a sentence in the document that two
people read differently, shows as a difference here. Decodes valid/, refuses or poisons invalid/.
"""
import json
import os
import re
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
NAN_BITS = 0x7fc00000


class Refused(Exception):
    """The argument names what is wrong."""


# ---- section 1: numbers ----
def fp32_bits(x):
    """Bits of a Python float rounded to fp32; it is exact in double precision before."""
    if x != x:
        return NAN_BITS
    try:
        return struct.unpack('<I', struct.pack('<f', x))[0]
    except OverflowError:
        return 0x7f800000 if x > 0 else 0xff800000


def fp32_value(bits):
    return struct.unpack('<f', struct.pack('<I', bits))[0]


# ---- section 2: parts ----
def rounded_up(size):
    return (size + 15) // 16 * 16


def parts(payload, sizes):
    if len(payload) != sum(map(rounded_up, sizes)):
        raise Refused('length')
    out, at = [], 0
    for size in sizes:
        out.append(payload[at:at + size])
        at += rounded_up(size)
    return out


# ---- section 3: codecs; each returns fp32 bits ----
def decode_fp32(payload, n, exponent):
    raw, = parts(payload, [4 * n])
    return [fp32_bits(fp32_value(u)) for u in struct.unpack('<%dI' % n, raw)]


def decode_bf16(payload, n, exponent):
    raw, = parts(payload, [2 * n])
    return [fp32_bits(fp32_value(h << 16)) for h in struct.unpack('<%dH' % n, raw)]


def decode_fp16(payload, n, exponent):
    raw, = parts(payload, [2 * n])
    return [fp32_bits(v * 2.0 ** exponent) for v in struct.unpack('<%de' % n, raw)]


def decode_int8(payload, n, block):
    blocks = -(-n // block)
    scale_bytes, code_bytes = parts(payload, [4 * blocks, n])
    scales = struct.unpack('<%dI' % blocks, scale_bytes)
    out = []
    for i, code in enumerate(struct.unpack('%db' % n, code_bytes)):
        scale = scales[i // block]
        poison = scale & 0x7f800000 == 0x7f800000
        out.append(NAN_BITS if poison else fp32_bits(code * fp32_value(scale)))
    return out


def decode_int4(payload, n, block):
    blocks = -(-n // block)
    scale_bytes, code_bytes = parts(payload, [2 * blocks, (n + 1) // 2])
    scales = struct.unpack('<%dH' % blocks, scale_bytes)
    out = []
    for i in range(n):
        byte, scale = code_bytes[i // 2], scales[i // block]
        code = byte & 15 if i % 2 == 0 else byte >> 4
        if code >= 8:
            code -= 16
        poison = scale & 0x7f80 == 0x7f80
        out.append(NAN_BITS if poison else fp32_bits(code * fp32_value(scale << 16)))
    return out


def small_float(code, mantissa_bits, bias):
    """Value of a finite code."""
    sign = -1.0 if code & 0x80 else 1.0
    exponent = (code & 0x7f) >> mantissa_bits
    mantissa = (code & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias)
    return sign * (1 + mantissa) * 2.0 ** (exponent - bias)


def e4m3(code):
    return float('nan') if code & 0x7f == 0x7f else small_float(code, 3, 7)


def e5m2(code):
    if code & 0x7c != 0x7c:
        return small_float(code, 2, 15)
    if code & 3:
        return float('nan')
    return float('-inf') if code & 0x80 else float('inf')


def decode_fp8(payload, n, value):
    blocks = -(-n // 256)
    scale_bytes, codes = parts(payload, [4 * blocks, n])
    scales = struct.unpack('<%dI' % blocks, scale_bytes)
    out = []
    for i, code in enumerate(codes):
        scale = scales[i // 256]
        poison = scale & 0x7f800000 == 0x7f800000
        out.append(NAN_BITS if poison else fp32_bits(value(code) * fp32_value(scale)))
    return out


def values_bytes(kind, k):
    """Length of the values of a segment, which are a payload of their own."""
    if kind == 'fp16':
        return rounded_up(2 * k)
    return rounded_up(4 * -(-k // 256)) + rounded_up(k)


def decode_segment(payload, kind, k, n, exponent):
    size = values_bytes(kind, k)
    kept = decode_payload(kind, payload[:size], k, exponent)
    raw, = parts(payload[size:], [2 * k])
    index = struct.unpack('<%dH' % k, raw)
    ascending = all(a < b for a, b in zip(index, index[1:])) and index[-1] < n
    if not ascending or NAN_BITS in kept:
        return [NAN_BITS] * n
    out = [0] * n
    for i, bits in zip(index, kept):
        out[i] = bits
    return out


def decode_top_k(payload, n, exponent, amount, kind):
    out = []
    while n > 0:
        length = min(n, 65536)
        if amount.startswith('k='):
            k = min(int(amount[2:]), length)
        else:
            whole, _, decimals = amount.partition('.')
            billionths = int(whole or '0') * 10 ** 9 + int(decimals.ljust(9, '0')[:9])
            k = -(-billionths * length // 10 ** 9)
        size = values_bytes(kind, k) + rounded_up(2 * k)
        if len(payload) < size:
            raise Refused('length')
        out += decode_segment(payload[:size], kind, k, length, exponent)
        payload, n = payload[size:], n - length
    if payload:
        raise Refused('length')
    return out


def rounded(x):
    """Rounds a sum of two fp32: rounding to double before changes nothing."""
    return fp32_value(fp32_bits(x))


def decode_rotated(inner, payload, n):
    """The padded message as inner, then for each stride the pairs (a, b) -> (a + b, a - b)."""
    padded = (n + 31) // 32 * 32
    x = [fp32_value(u) for u in decode_payload(inner, payload, padded, 0)]
    for stride in (1, 2, 4, 8, 16):
        for i in range(padded):
            if i // stride % 2 == 0:
                a, b = x[i], x[i + stride]
                x[i], x[i + stride] = rounded(a + b), rounded(a - b)
    return [fp32_bits(v / 32) for v in x[:n]]


def e2m1(code):
    sign = -1.0 if code & 8 else 1.0
    return sign * (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)[code & 7]


def sixty_fourths(code):
    return (code - 256 if code >= 128 else code) / 64


def halves(code_bytes, n):
    return [b & 15 if i % 2 == 0 else b >> 4 for i in range(n) for b in [code_bytes[i // 2]]]


def decode_mx(payload, n, value):
    packed = value is e2m1
    scales, codes = parts(payload, [-(-n // 32), (n + 1) // 2 if packed else n])
    out = []
    for i, code in enumerate(halves(codes, n) if packed else codes):
        scale = scales[i // 32]
        out.append(NAN_BITS if scale == 255 else fp32_bits(value(code) * 2.0 ** (scale - 127)))
    return out


def decode_nvfp4(payload, n):
    segments = -(-n // 65536)
    segment_bytes, scales, codes = parts(payload, [4 * segments, -(-n // 16), (n + 1) // 2])
    words = struct.unpack('<%dI' % segments, segment_bytes)
    out = []
    for i, code in enumerate(halves(codes, n)):
        word, scale = words[i // 65536], scales[i // 16]
        if word & 0x7f800000 == 0x7f800000 or scale & 0x7f == 0x7f:
            out.append(NAN_BITS)
        else:
            product = fp32_value(fp32_bits(e4m3(scale) * fp32_value(word)))
            out.append(fp32_bits(e2m1(code) * product))
    return out


# section 4: packed messages
def bits_of(data):
    return [byte >> shift & 1 for byte in data for shift in range(7, -1, -1)]


def symbols_of(lengths):
    """{(bits, value): symbol}: values of one length count up, and are doubled for the next."""
    out, value = {}, 0
    for bits in range(1, 12):
        value *= 2
        for symbol, length in enumerate(lengths):
            if length == bits:
                out[bits, value] = symbol
                value += 1
    if value != 2 ** 11:
        raise Refused('plane')
    return out


def decode_stream(data, n, symbols):
    bits, at, out = bits_of(data), 0, []
    for _ in range(n):
        length = value = 0
        while (length, value) not in symbols:
            if at == len(bits):
                raise Refused('plane')
            length, value, at = length + 1, 2 * value + bits[at], at + 1
        out.append(symbols[length, value])
    if len(bits) - at > 7 or any(bits[at:]):
        raise Refused('plane')
    return out


def decode_huffman(data, n):
    if len(data) < 2 or data[0] >= data[1]:
        raise Refused('plane')
    lengths, at = [0] * 256, 2
    for symbol in range(data[0], data[1] + 1):
        place = symbol - data[0]
        if at + place // 2 >= len(data):
            raise Refused('plane')
        lengths[symbol] = data[at + place // 2] >> (4 if place % 2 else 0) & 15
    at += (data[1] - data[0] + 2) // 2
    if max(lengths) > 11 or at + 6 > len(data):
        raise Refused('plane')
    symbols, sizes = symbols_of(lengths), struct.unpack('<3H', data[at:at + 6])
    at, out, quarter = at + 6, [], (n + 3) // 4
    for size in sizes + (len(data) - at - sum(sizes),):
        if size < 0:
            raise Refused('plane')
        out += decode_stream(data[at:at + size], min(quarter, n - len(out)), symbols)
        at += size
    return out


def decode_plane(method, data, n):
    if method == 0 and len(data) == n:
        return list(data)
    if method == 1 and len(data) == 1:
        return list(data) * n
    if method == 2:
        return decode_huffman(data, n)
    raise Refused('plane')


def unpacked(segment, inner, n, width):
    """The payload of `inner` that a segment stands for."""
    block = int((re.search('block=([0-9]+)', inner) or ['', '256'])[1])
    front = rounded_up(4 * -(-n // block)) if width == 1 else 0
    at = 4 + 4 * width
    if not at + front <= len(segment) <= at + front + 1 + n * width:
        raise Refused('segment')
    heads = struct.unpack('<%dI' % (1 + width), segment[:at])
    out, at = bytearray(segment[at:at + front]), at + front
    if len(segment) != at + sum(head >> 2 for head in heads):
        raise Refused('segment')
    planes = []
    for number, head in enumerate(heads):
        size = (n + 7) // 8 if number == 0 else sum(mask)
        planes.append(decode_plane(head & 3, segment[at:at + (head >> 2)], size))
        at += head >> 2
        if number == 0:
            mask = [planes[0][i // 8] >> i % 8 & 1 for i in range(n)]
    columns = zip(*planes[1:])
    for bit in mask:
        word = int.from_bytes(bytes(next(columns)), 'little') if bit else 0
        if width > 1:  # turned right by one bit
            word = word >> 1 | (word & 1) << 8 * width - 1
        out += word.to_bytes(width, 'little')
    return bytes(out) + bytes(rounded_up(len(out)) - len(out))


def decode_packed(inner, payload, n, exponent):
    width = {'fp32': 4, 'fp16': 2, 'bf16': 2}.get(inner, 1)
    segments = -(-n // 8192)
    at = rounded_up(4 * segments)
    if len(payload) < at:
        raise Refused('length')
    sizes = struct.unpack('<%dI' % segments, payload[:4 * segments])
    if len(payload) != rounded_up(at + sum(sizes)):
        raise Refused('length')
    out = []
    for number, size in enumerate(sizes):
        length = min(8192, n - 8192 * number)
        plain = unpacked(payload[at:at + size], inner, length, width)
        out += decode_payload(inner, plain, length, exponent)
        at += size
    return out


CASTS = {'fp32': decode_fp32, 'fp16': decode_fp16, 'bf16': decode_bf16}
FLOATS = {'fp8': e4m3, 'fp8:e5m2': e5m2}
MX = {'mxfp8': e4m3, 'mxfp8:e5m2': e5m2, 'mxfp4': e2m1, 'mxint8': sixty_fourths}
INTEGERS = {'int8': (decode_int8, 256), 'int4': (decode_int4, 64)}


def decode_payload(codec, payload, n, exponent):
    if codec in CASTS:
        return CASTS[codec](payload, n, exponent)
    if codec == 'lossless':  # of fp32: golden messages have no data type
        return decode_packed('fp32', payload, n, exponent)
    inner, comma, option = codec.partition(',')
    if comma and option == 'entropy':
        return decode_packed(inner, payload, n, exponent)
    if comma and option == 'hadamard':
        return decode_rotated(inner, payload, n)
    if comma and option == 'sr':  # a receiver sees no difference
        codec = inner
    if codec == 'int4:signed':  # nor here: the scale is negative, or it is not
        codec = 'int4'
    if codec in FLOATS:
        return decode_fp8(payload, n, FLOATS[codec])
    match = re.fullmatch(r'topk:([^,]+)(?:,(int8|fp8))?(?:,position)?(?:,reuse)?', codec)
    if match is not None:
        return decode_top_k(payload, n, exponent, match.group(1), match.group(2) or 'fp16')
    if codec.replace(',ceil', '') in MX:  # which only encoders see
        return decode_mx(payload, n, MX[codec.replace(',ceil', '')])
    if codec == 'nvfp4':
        return decode_nvfp4(payload, n)
    match = re.fullmatch(r'(int8|int4)(?::block=(16|32|64|128|256))?', codec)
    if match is None:
        raise ValueError('no decoder for %s' % codec)
    decode, block = INTEGERS[match.group(1)]
    return decode(payload, n, int(match.group(2) or block))


# ---- section 5: host messages ----
def crc32c(data):
    """Bit by bit, as the definition reads."""
    register = 0xffffffff
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82f63b78 if register & 1 else 0)
    return register ^ 0xffffffff


FIELDS = (('magic', 0, 2), ('version', 2, 1), ('kind', 3, 1), ('sequence', 4, 4),
          ('descriptor_hash', 8, 8), ('chunk', 16, 2), ('stage', 18, 2), ('payload_bytes', 20, 4),
          ('note', 24, 4), ('crc32c', 28, 4))


def read_header(message):
    if len(message) < 32:
        raise Refused('length')
    return {name: int.from_bytes(message[at:at + size], 'little') for name, at, size in FIELDS}


# 2^(32 + k/8) rounded up: codes count in eighths of octaves, without rounding of the machine's
EIGHTHS = [next(m for m in range(int(2 ** (32 + k / 8)) - 2, 2 ** 33) if m ** 8 >= 2 ** (256 + k))
           for k in range(8)]


def log_value(code, unit):
    """Least number that has the code, times unit, rounded down."""
    octave, eighth = divmod(code - 1, 8)
    return EIGHTHS[eighth] * unit * 2 ** octave // 2 ** 32 if code > 0 else 0


def read_note(note):
    """(error, residual in millionths; ns per KiB; wait in millionths; overflow) of the field."""
    time = note >> 16 & 255
    return (log_value(note & 255, 10 ** 6) >> 24, log_value(note >> 8 & 255, 10 ** 6) >> 24,
            log_value(256 - time, 1) if time else 0, (note >> 24 & 127) * 10 ** 6 // 127, note >> 31)


def note_agrees(line):
    bits, *fields = line.split()
    return read_note(int(bits, 16)) == tuple(int(f) for f in fields)


def must(ok, field):
    if not ok:
        raise Refused(field)


def receive(message, receiver):
    """(header, payload) after all checks of section 5; receiver as in invalid/host.json."""
    h = read_header(message)
    must(h['magic'] == 0xd5c0, 'magic')
    must(h['version'] == 1, 'version')
    must(h['payload_bytes'] <= receiver['slot_bytes'], 'payload_bytes')
    must(len(message) == 32 + h['payload_bytes'], 'length')
    whole = message[:28] + bytes(4) + message[32:]
    must(h['crc32c'] == 0 or h['crc32c'] == crc32c(whole), 'crc32c')
    must(h['kind'] in (1, 2), 'kind')
    if h['kind'] == 2:
        must(h['payload_bytes'] <= 1024, 'payload_bytes')
        return h, message[32:]
    for field in ('sequence', 'descriptor_hash', 'stage'):
        must(h[field] == receiver[field], field)
    must(h['chunk'] < len(receiver['chunk_bytes']), 'chunk')
    must(h['payload_bytes'] == receiver['chunk_bytes'][h['chunk']], 'payload_bytes')
    return h, message[32:]


# ---- the files ----
def read_json(*path):
    with open(os.path.join(HERE, *path), encoding='ascii') as f:
        return json.load(f)


def as_hex(bits):
    return b''.join(u.to_bytes(4, 'little') for u in bits).hex()


def decodes_as_listed(entry, receiver):
    with open(os.path.join(HERE, 'valid', entry['file']), 'rb') as f:
        payload = f.read()
    if 'header' in entry:
        h, payload = receive(payload, receiver)
        if h != entry['header']:
            return False
    if 'text' in entry:
        return payload.decode('ascii') == entry['text']
    bits = decode_payload(entry['codec'], payload, entry['n'], entry['E'])
    return as_hex(bits) == entry['decoded']


def valid_file_agrees(entry, receiver):
    try:
        return decodes_as_listed(entry, receiver)
    except Refused:
        return False


def invalid_payload_agrees(case):
    try:
        bits = decode_payload(case['codec'], bytes.fromhex(case['message']), case['n'], case['E'])
    except Refused:
        return case['expect'] == 'refuse'
    return (case['expect'] == 'poison' and NAN_BITS in bits and as_hex(bits) == case['decoded'])


def host_refusal_agrees(case, receiver):
    try:
        receive(bytes.fromhex(case['message']), receiver)
    except Refused as reason:
        return str(reason) == case['field']
    return False


def main():
    host = read_json('invalid', 'host.json')
    receiver = host['receiver']
    results = [(e['file'], valid_file_agrees(e, receiver))
               for e in read_json('valid', 'index.json')]
    results += [('%s %s' % (c['codec'], c['name']), invalid_payload_agrees(c))
                for c in read_json('invalid', 'payload.json')['cases']]
    results += [(c['name'], host_refusal_agrees(c, receiver)) for c in host['cases']]
    results += [('%s %s' % (e['codec'], e['vector']),
                 as_hex(decode_payload(e['codec'], bytes.fromhex(e['message']), e['n'], e['E']))
                 == e['decoded']) for e in read_json('golden.json')['messages']]
    with open(os.path.join(HERE, 'notes.txt'), encoding='ascii') as f:
        results += [('note ' + line.strip(), note_agrees(line)) for line in f if line[0] != '#']
    failed = [name for name, ok in results if not ok]
    for name in failed:
        print('FAILED %s' % name)
    print('%d passed, %d failed' % (len(results) - len(failed), len(failed)))
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
