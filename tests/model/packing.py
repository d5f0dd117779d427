# SPDX-License-Identifier: Apache-2.0
"""Planes of bytes, packed without loss: which of three methods, and the prefix code of the third.

The encoder's choices are part of the model, so that whole messages can be compared.
"""
import numpy as np

RAW, CONSTANT, HUFFMAN = range(3)
BITS_MAX = 11
STREAMS = 4


class PackError(ValueError):
    """Bytes that are no packed plane."""


def looks_random(plane):
    """By the pairs of equal bytes among the first 64 of every 512."""
    seen = plane[np.arange(len(plane)) % 512 < 64]
    pairs = (np.bincount(seen, minlength=256).astype(np.int64) ** 2).sum()
    return 512 * int(pairs) <= 3 * len(seen) ** 2


def tree_depths(counts):
    """Huffman's tree over ascending counts: how many leaves have each depth."""
    leaves, inner, children = list(counts), [], []
    next_leaf = next_inner = 0
    while len(inner) < len(leaves) - 1:
        total, pair = 0, []
        for _ in range(2):
            # of equal ones the leaf
            if next_inner == len(inner) or (next_leaf < len(leaves)
                                            and leaves[next_leaf] <= inner[next_inner]):
                total += leaves[next_leaf]
                pair.append(('leaf', next_leaf))
                next_leaf += 1
            else:
                total += inner[next_inner]
                pair.append(('inner', next_inner))
                next_inner += 1
        inner.append(total)
        children.append(pair)
    n_of, depth = {}, {len(inner) - 1: 0}
    for node in range(len(inner) - 1, -1, -1):
        for kind, index in children[node]:
            if kind == 'inner':
                depth[index] = depth[node] + 1
            else:
                n_of[depth[node] + 1] = n_of.get(depth[node] + 1, 0) + 1
    return n_of


def limited(n_of):
    """No more than 11 bits: a longer code is cut, others make room."""
    out = [0] * (BITS_MAX + 1)
    for depth, n in n_of.items():
        out[min(depth, BITS_MAX)] += n
    while sum(n << (BITS_MAX - bits) for bits, n in enumerate(out) if bits) > 1 << BITS_MAX:
        longest = max(bits for bits in range(1, BITS_MAX) if out[bits])
        out[BITS_MAX] -= 1
        out[longest] -= 1
        out[longest + 1] += 2
    return out


def code_lengths(counts):
    """{symbol: bits}; the rarest symbols, of equal ones the smallest, have the longest codes."""
    order = sorted((int(n), s) for s, n in enumerate(counts) if n)
    n_of = limited(tree_depths([n for n, _ in order]))
    lengths = [bits for bits in range(BITS_MAX, 0, -1) for _ in range(n_of[bits])]
    return {s: bits for (_, s), bits in zip(order, lengths)}


def numbered(lengths):
    """{symbol: text of its bits}, canonical: shorter ones first, of one length the smaller."""
    out, value, last = {}, 0, 0
    for symbol in sorted(lengths, key=lambda s: (lengths[s], s)):
        value <<= lengths[symbol] - last
        last = lengths[symbol]
        out[symbol] = format(value, '0%db' % last)
        value += 1
    return out


def split_streams(n):
    """[(first, end)] of the four streams."""
    each = -(-n // STREAMS)
    return [(min(j * each, n), min((j + 1) * each, n)) for j in range(STREAMS)]


def packed_code(lengths):
    first, last = min(lengths), max(lengths)
    halves = [lengths.get(s, 0) for s in range(first, last + 1)] + [0]
    return bytes([first, last]) + bytes(halves[i] | halves[i + 1] << 4
                                        for i in range(0, last - first + 1, 2))


def coded(plane, lengths):
    codes, streams = numbered(lengths), []
    for first, end in split_streams(len(plane)):
        bits = ''.join(codes[s] for s in plane[first:end].tolist())
        bits += '0' * (-len(bits) % 8)
        streams.append(int('0' + bits, 2).to_bytes(len(bits) // 8, 'big'))
    sizes = b''.join(len(s).to_bytes(2, 'little') for s in streams[:-1])
    return packed_code(lengths) + sizes + b''.join(streams)


def pack(plane):
    """(method, bytes) of a plane, an array of np.uint8."""
    raw = RAW, plane.tobytes()
    if len(plane) == 0 or looks_random(plane):
        return raw
    counts = np.bincount(plane, minlength=256)
    if (counts > 0).sum() == 1:
        return CONSTANT, plane[:1].tobytes()
    lengths = code_lengths(counts)
    n_bits = sum(int(counts[s]) * bits for s, bits in lengths.items())
    at_most = len(packed_code(lengths)) + 6 + n_bits // 8 + STREAMS
    return raw if at_most + 16 > len(plane) else (HUFFMAN, coded(plane, lengths))


def read_code(data):
    """({text of bits: symbol}, the rest)"""
    if len(data) < 2 or data[0] >= data[1]:
        raise PackError('symbols')
    first, n = data[0], data[1] - data[0] + 1
    size = 2 + (n + 1) // 2
    if len(data) < size:
        raise PackError('code')
    halves = [data[2 + i // 2] >> 4 * (i % 2) & 15 for i in range(n)]
    lengths = {first + i: bits for i, bits in enumerate(halves) if bits}
    if max(halves) > BITS_MAX or sum(1 << (BITS_MAX - b) for b in lengths.values()) != 1 << BITS_MAX:
        raise PackError('lengths')
    return {text: s for s, text in numbered(lengths).items()}, data[size:]


def read_stream(data, n, symbols):
    bits = ''.join(format(b, '08b') for b in data)
    out, at = [], 0
    while len(out) < n:
        end = at + 1
        while bits[at:end] not in symbols:
            end += 1
            if end > len(bits):
                raise PackError('stream')
        out.append(symbols[bits[at:end]])
        at = end
    if len(bits) - at >= 8 or '1' in bits[at:]:
        raise PackError('stream')
    return out


def unpack(method, data, n):
    """The n bytes of a plane."""
    if method == RAW and len(data) == n:
        return np.frombuffer(data, np.uint8)
    if method == CONSTANT and len(data) == 1:
        return np.full(n, data[0], np.uint8)
    if method != HUFFMAN:
        raise PackError('method or size')
    symbols, rest = read_code(data)
    sizes = [int.from_bytes(rest[2 * j:2 * j + 2], 'little') for j in range(STREAMS - 1)]
    streams, out = rest[6:], []
    if len(rest) < 6 or sum(sizes) > len(streams):
        raise PackError('streams')
    sizes.append(len(streams) - sum(sizes))
    for (first, end), size in zip(split_streams(n), sizes):
        out += read_stream(streams[:size], end - first, symbols)
        streams = streams[size:]
    return np.array(out, np.uint8)
