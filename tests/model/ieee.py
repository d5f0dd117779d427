# SPDX-License-Identifier: Apache-2.0
"""Bits of the three data types, and the few float operations that must not depend on a library.

The model works in float32 with one rounding per operation. numpy keeps that promise for + - * /
and rint on float32 arrays; everything about NaN and bfloat16 is done on integers here, because
NaN payloads and the signs of NaN are what differ between machines.
"""
import zlib

import numpy as np

np.seterr(all='ignore')  # overflow, underflow and NaN are data here, not accidents

F32, U32, U16 = np.float32, np.uint32, np.uint16
MAGNITUDE = U32(0x7fffffff)  # all but the sign; orders finite values like integers
EXPONENT = U32(0x7f800000)   # a magnitude at or above it is Inf or NaN


def bits_of(x):
    """The 32 bits of each float32."""
    return np.ascontiguousarray(x, F32).view(U32)


def floats_of(bits):
    """The float32 of each 32-bit word."""
    return np.ascontiguousarray(bits, U32).view(F32)


NAN = floats_of([0x7fc00000])[0]  # the only NaN that is ever stored


def one_nan(x):
    """x with every NaN, whatever its payload or sign, replaced by the canonical one."""
    u = bits_of(x).copy()
    u[(u & MAGNITUDE) > EXPONENT] = 0x7fc00000
    return floats_of(u)


def power_of_two(e):
    """2**e as a float32 scalar, for the range in which that is a normal number."""
    return floats_of([(e + 127) << 23])[0]


def ceil_div(a, b):
    return -(-a // b)


def _bf16_bits(x):
    # Nearest even: add half of the dropped part, plus the last kept bit so that ties go to even.
    u = bits_of(x)
    rounded = (u + U32(0x7fff) + ((u >> U32(16)) & U32(1))) >> U32(16)
    return np.where((u & MAGNITUDE) > EXPONENT, U32(0x7fc0), rounded).astype(U16)


def _fp16_bits(x):
    half = np.asarray(x, F32).astype(np.float16).view(U16)
    return np.where(np.isnan(x), U16(0x7e00), half).astype(U16)


class DataType:
    """One element type: conversion between its bits and float32."""

    def __init__(self, name, word, to_bits, from_bits):
        self.name, self.word = name, word
        self.to_bits = to_bits      # float32 -> bits, nearest even, overflow to Inf, one NaN
        self.from_bits = from_bits  # bits -> float32, exact

    def rounded(self, x):
        """x as a receiver of this type sees it."""
        return one_nan(self.from_bits(self.to_bits(x)))


FP32 = DataType('fp32', U32, lambda x: bits_of(one_nan(x)), floats_of)
FP16 = DataType('fp16', U16, _fp16_bits, lambda u: np.asarray(u, U16).view(np.float16).astype(F32))
BF16 = DataType('bf16', U16, _bf16_bits,
                lambda u: floats_of(np.asarray(u, U16).astype(U32) << U32(16)))
DATA_TYPES = {t.name: t for t in (FP32, FP16, BF16)}


def _order(x):
    """Signed integers in the order of the floats, -0 directly below +0."""
    i = bits_of(x).view(np.int32)
    return i ^ ((i >> 31) & np.int32(0x7fffffff))


def pick(a, b, largest):
    """max or min of two arrays: a NaN on either side wins, +0 counts as larger than -0."""
    a, b = np.asarray(a, F32), np.asarray(b, F32)
    keep = _order(a) >= _order(b) if largest else _order(a) <= _order(b)
    return floats_of(np.where(np.isnan(a) | np.isnan(b), U32(0x7fc00000),
                              np.where(keep, bits_of(a), bits_of(b))))


def crc(array):
    """CRC-32 (zlib) of the little-endian bytes, as eight hex digits."""
    a = np.ascontiguousarray(array)
    return '%08x' % zlib.crc32(a.astype(a.dtype.newbyteorder('<')).tobytes())
