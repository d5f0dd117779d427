#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus of topo_fuzz: a head of four bytes and a text. Usage: topo_corpus.py FOLDER"""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'topo'))

from machines import MACHINES  # noqa: E402
from machines_test import TAB_MATRIX  # noqa: E402

TEXTS = {
    'matrix': TAB_MATRIX,
    'matrix_blanks': TAB_MATRIX.expandtabs(),
    'p2p': ' \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tOK\tX\t\n',
    'nvlink_s': 'GPU 0: NVIDIA X (UUID: y)\n\t Link 0: 26.562 GB/s\n\t Link 1: <inactive>\n',
    'nvlink_R': 'GPU 0: NVIDIA X (UUID: y)\n\t Link 0: Remote Device 00000000:C5:00.0: Link 46\n',
    'plain': 'gpu a numa 0 bus 3:0.0 sm 90\ngpu b numa 1\nnic n numa 1 gbit 100\n'
             'link a b nvlink count 4\npcie a rate 60\nmeasured b n 11.5\n',
}


def main():
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, text in [(k, v[0]) for k, v in MACHINES.items()] + list(TEXTS.items()):
        with open(os.path.join(sys.argv[1], name), 'wb') as handle:
            handle.write(b'\0\0\0\0' + text.encode()[:20000])
    for i in range(40): # choices of changes to the target's own texts
        with open(os.path.join(sys.argv[1], 'changes_%d' % i), 'wb') as handle:
            handle.write(bytes((4 + i % 12, 2 * (i % 5) + 1, i, 0)) +
                         bytes(53 * (i + 1) * (k + 3) * (k + 7) % 251 for k in range(64)))


if __name__ == '__main__':
    main()
