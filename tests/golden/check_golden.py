#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Regenerates all golden files in memory and compares: exit code 0 if every byte is the same.

A difference means that the model changed (then the wire format did, and its version must), or
that numpy or the machine computes differently from what the model relies on.
"""
import os
import sys

import make_golden

OUTPUTS = ('golden.json', 'calls.txt', 'messages.txt', 'host.txt')
SIZE_LIMIT = 768 * 1024


def _on_disk():
    paths = {p for p in OUTPUTS if os.path.exists(os.path.join(make_golden.HERE, p))}
    for folder in ('valid', 'invalid'):
        paths |= {os.path.join(folder, name)
                  for name in os.listdir(os.path.join(make_golden.HERE, folder))}
    return paths


def _first_difference(a, b):
    for number, (x, y) in enumerate(zip(a.split(b'\n'), b.split(b'\n')), 1):
        if x != y:
            return 'line %d' % number
    return 'length %d, expected %d' % (len(a), len(b))


def main():
    expected, found, failed = make_golden.build(), _on_disk(), 0
    for path in sorted(found ^ set(expected)):
        print('%s: %s' % (path, 'missing' if path in expected else 'not generated any more'))
        failed += 1
    for path in sorted(found & set(expected)):
        with open(os.path.join(make_golden.HERE, path), 'rb') as f:
            data = f.read()
        if data != expected[path]:
            print('%s differs, %s' % (path, _first_difference(data, expected[path])))
            failed += 1
    total = sum(map(len, expected.values()))
    if total > SIZE_LIMIT:
        print('golden files have %d bytes, limit %d' % (total, SIZE_LIMIT))
        failed += 1
    print('%d passed, %d failed' % (len(expected) - min(failed, len(expected)), failed))
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
