# SPDX-License-Identifier: Apache-2.0
"""The 32-byte header of host messages and its checksum.

encode() and decode() are the reference for docs/wire_format.md. decode() checks everything a
receiver knows: first what concerns the bytes (size, checksum), then what concerns the plan, and
names the first field that is wrong. A peer's number is never used before it was compared.
"""
import struct
from dataclasses import dataclass, replace

MAGIC = 0xd5c0
VERSION = 1
KIND_DATA, KIND_ERROR = 1, 2
HEADER_BYTES = 32
ERROR_TEXT_MAX = 1024  # payload limit of an error message
_LAYOUT = struct.Struct('<HBBIQHHIII')


class HeaderError(ValueError):
    """A message that must be refused; field says why."""

    def __init__(self, name, got, expected):
        super().__init__('%s is %s, expected %s' % (name, got, expected))
        self.field = name


@dataclass(frozen=True)
class Header:
    sequence: int = 0
    descriptor_hash: int = 0
    chunk: int = 0
    stage: int = 0
    payload_bytes: int = 0
    note: int = 0
    kind: int = KIND_DATA
    magic: int = MAGIC
    version: int = VERSION
    crc32c: int = 0

    def pack(self):
        return _LAYOUT.pack(self.magic, self.version, self.kind, self.sequence,
                            self.descriptor_hash, self.chunk, self.stage, self.payload_bytes,
                            self.note, self.crc32c)


def unpack(raw):
    """The header's fields as they stand, unchecked."""
    magic, version, kind, sequence, digest, chunk, stage, size, note, crc = _LAYOUT.unpack(raw)
    return Header(sequence, digest, chunk, stage, size, note, kind, magic, version, crc)


def _make_table():
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82f63b78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _make_table()


def crc32c(data, crc=0):
    """Castagnoli CRC, reflected, initial and final complement; chains like zlib.crc32."""
    crc ^= 0xffffffff
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xff] ^ (crc >> 8)
    return crc ^ 0xffffffff


def checksum(header, payload):
    """Over the header with a zero checksum field, then the payload."""
    crc = crc32c(payload, crc32c(replace(header, crc32c=0).pack()))
    return crc or 0xffffffff  # 0 means that checksums are off


def encode(header, payload, with_crc=True):
    """Header and payload as they go on the wire. payload_bytes is set here."""
    header = replace(header, payload_bytes=len(payload), crc32c=0)
    if with_crc:
        header = replace(header, crc32c=checksum(header, payload))
    return header.pack() + bytes(payload)


@dataclass(frozen=True)
class Expected:
    """What a receiver knows: the call, and the size of each chunk of the stage it waits in."""
    sequence: int
    descriptor_hash: int
    stage: int
    chunk_bytes: tuple
    slot_bytes: int    # the connection's limit for a payload of any kind


def _require(name, got, expected):
    if got != expected:
        raise HeaderError(name, got, expected)


def _check_bytes(h, message, expected):
    """Is this one whole, undamaged message of our protocol?"""
    _require('magic', h.magic, MAGIC)
    _require('version', h.version, VERSION)
    if h.payload_bytes > expected.slot_bytes:
        raise HeaderError('payload_bytes', h.payload_bytes, 'at most %d' % expected.slot_bytes)
    _require('length', len(message), HEADER_BYTES + h.payload_bytes)
    if h.crc32c != 0:
        _require('crc32c', h.crc32c, checksum(h, message[HEADER_BYTES:]))


def _check_plan(h, expected):
    """Is it the message that the plan puts here?"""
    _require('sequence', h.sequence, expected.sequence)
    _require('descriptor_hash', h.descriptor_hash, expected.descriptor_hash)
    _require('stage', h.stage, expected.stage)
    if h.chunk >= len(expected.chunk_bytes):
        raise HeaderError('chunk', h.chunk, 'below %d' % len(expected.chunk_bytes))
    _require('payload_bytes', h.payload_bytes, expected.chunk_bytes[h.chunk])


def decode(message, expected):
    """(header, payload), or HeaderError. An error message is legal at any time."""
    if len(message) < HEADER_BYTES:
        raise HeaderError('length', len(message), 'at least %d' % HEADER_BYTES)
    h = unpack(message[:HEADER_BYTES])
    _check_bytes(h, message, expected)
    if h.kind == KIND_DATA:
        _check_plan(h, expected)
    elif h.kind != KIND_ERROR:
        raise HeaderError('kind', h.kind, '%d or %d' % (KIND_DATA, KIND_ERROR))
    elif h.payload_bytes > ERROR_TEXT_MAX:
        raise HeaderError('payload_bytes', h.payload_bytes, 'at most %d' % ERROR_TEXT_MAX)
    return h, message[HEADER_BYTES:]
