# SPDX-License-Identifier: Apache-2.0
"""The .grad file: per-rank fp32 gradients behind a 64-byte header.

The layout is fixed so that a C program can map the file and use it in place; every field is
little-endian and the data start on a 64-byte boundary:

    byte  0        8         12         16              24     28      32       40       64
          +--------+---------+----------+---------------+------+-------+--------+--------+------
          | magic  | n_ranks | reserved | elems_per_rank| step | crc32 | offset | zeros  | data
          | 8 char | u32     | u32 = 0  | u64           | u32  | u32   | u64    | 24     | f32
          +--------+---------+----------+---------------+------+-------+--------+--------+------

The data are n_ranks x elems_per_rank float32, rank-major. crc32 is the zlib CRC-32 of the data
alone. step is the number of optimizer steps before the gradient was taken; offset is the index of
the first element in the flattened gradient of the whole model.

Needs numpy only.
"""

import hashlib
import os
import struct
import zlib
from typing import NamedTuple

import numpy as np

MAGIC = b"DSCGRAD1"
HEADER_BYTES = 64
FIELDS = struct.Struct("<8sIIQIIQ")
CHECKSUMS_NAME = "CHECKSUMS"


class FormatError(Exception):
    """The file is not a valid .grad file, or not the one CHECKSUMS describes."""


class GradFile(NamedTuple):
    """One decoded file; grads has the shape (n_ranks, elems_per_rank)."""

    step: int
    offset: int
    grads: np.ndarray


def write_grad(path, grad_file):
    """Write grad_file to path, replacing what is there."""
    data = np.ascontiguousarray(grad_file.grads, dtype="<f4")
    n_ranks, elems = data.shape
    payload = data.tobytes()
    header = FIELDS.pack(
        MAGIC, n_ranks, 0, elems, grad_file.step, zlib.crc32(payload), grad_file.offset
    )
    with open(path, "wb") as f:
        f.write(header.ljust(HEADER_BYTES, b"\0"))
        f.write(payload)


def read_grad(path):
    """Read and validate path: magic, padding, exact length, CRC. Raises FormatError."""
    with open(path, "rb") as f:
        raw = f.read()
    if len(raw) < HEADER_BYTES:
        raise FormatError(f"{path}: {len(raw)} bytes, shorter than the header")
    magic, n_ranks, reserved, elems, step, crc, offset = FIELDS.unpack_from(raw)
    if magic != MAGIC:
        raise FormatError(f"{path}: magic {magic!r}, expected {MAGIC!r}")
    if reserved != 0 or any(raw[FIELDS.size:HEADER_BYTES]):
        raise FormatError(f"{path}: reserved bytes are not zero")
    payload = raw[HEADER_BYTES:]
    if len(payload) != n_ranks * elems * 4:
        raise FormatError(f"{path}: {len(payload)} data bytes, header says {n_ranks} x {elems} x 4")
    if zlib.crc32(payload) != crc:
        raise FormatError(f"{path}: CRC-32 {zlib.crc32(payload):08x}, header says {crc:08x}")
    return GradFile(step, offset, np.frombuffer(payload, dtype="<f4").reshape(n_ranks, elems))


def sha256_of(path):
    """Return the lower-case hex SHA-256 of a file."""
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def write_checksums(folder, names):
    """Write folder/CHECKSUMS in the form `sha256sum -c` reads."""
    with open(os.path.join(folder, CHECKSUMS_NAME), "w", encoding="ascii") as f:
        for name in sorted(names):
            f.write(f"{sha256_of(os.path.join(folder, name))}  {name}\n")


def verify_checksum(folder, name):
    """Compare folder/name with its line in folder/CHECKSUMS. Raises FormatError."""
    with open(os.path.join(folder, CHECKSUMS_NAME), encoding="ascii") as f:
        expected = {line.split()[1]: line.split()[0] for line in f if line.strip()}
    if name not in expected:
        raise FormatError(f"{name}: not listed in {CHECKSUMS_NAME}")
    actual = sha256_of(os.path.join(folder, name))
    if actual != expected[name]:
        raise FormatError(f"{name}: sha256 {actual}, {CHECKSUMS_NAME} says {expected[name]}")
