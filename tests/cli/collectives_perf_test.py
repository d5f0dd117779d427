#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The programs of the other collectives: they share all code with all_reduce_perf but a few facts."""
import json
import os
import tempfile
import unittest

import cli_support

RANKS = 3
BYTES = 98304  # shares of 3 ranks are multiples of 16 bytes


class Collectives(unittest.TestCase):
    """Sizes, factors, checks and JSON of every program."""

    # program, redop, count of an element size of 4, busbw / algbw, root
    PROGRAMS = (
        ('reduce_scatter_perf', 'sum', BYTES // 4 // RANKS, 2 / 3, '-1'),
        ('all_gather_perf', 'none', BYTES // 4 // RANKS, 2 / 3, '-1'),
        ('alltoall_perf', 'none', BYTES // 4 // RANKS, 2 / 3, '-1'),
        ('broadcast_perf', 'none', BYTES // 4, 1.0, '0'),
    )

    def run_program(self, name, *words):
        done = cli_support.run(name, '-g', str(RANKS), '-b', str(BYTES), '-e', str(BYTES), '-n', '3',
                               *words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def test_table(self):
        for name, redop, count, factor, root in self.PROGRAMS:
            for transport in ('shm', 'tcp', 'loopback'):
                with self.subTest(name=name, transport=transport):
                    done = self.run_program(name, '--transport', transport)
                    table = cli_support.rows(done.stdout)
                    self.assertEqual(len(table), 3, done.stdout)  # none, bf16, int8
                    for row in table:
                        self.assertEqual(row[:5], [str(BYTES), str(count), 'float', redop, root])
                        self.assertEqual((row[8], row[12]), ('0', '0'), done.stdout)
                    ratios = [float(row[14]) for row in table]
                    self.assertAlmostEqual(ratios[0], 1.0, delta=0.02)
                    self.assertAlmostEqual(ratios[2], 3.9, delta=0.1)

    def test_json_and_factor(self):
        for name, redop, _, factor, root in self.PROGRAMS:
            with self.subTest(name=name), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, 'out.json')
                self.run_program(name, '--codec', 'int8', '-J', path)
                with open(path, encoding='utf-8') as handle:
                    result = json.load(handle)['results'][0]
                self.assertEqual((result['redop'], result['root']), (redop, root))
                place = result['out_of_place']
                self.assertAlmostEqual(place['bus_bw'] / place['alg_bw'], factor, places=6)

    def test_every_kind_of_codec(self):
        """The probe and the error bound of each; 600 KiB: shares of more than one segment of nvfp4."""
        for name, *_ in self.PROGRAMS:
            kinds = ['mxfp8', 'mxfp4,ceil', 'nvfp4', 'int4:signed', 'int4,hadamard']
            refused = name in ('alltoall_perf', 'broadcast_perf')
            for spec in kinds + ([] if refused else ['topk:0.01', 'topk:0.05,int8']):
                with self.subTest(name=name, spec=spec):
                    done = cli_support.run(name, '-g', '2', '-b', '600K', '-e', '600K', '-n', '2',
                                           '--codec', spec)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                    for row in cli_support.rows(done.stdout):
                        self.assertEqual((row[8], row[12]), ('0', '0'), done.stdout)
            with self.subTest(name=name, spec='int4,sr'):
                self.run_program(name, '--codec', 'int4,sr', '--feedback', '0')
            if refused:
                done = cli_support.run(name, '-g', '2', '-b', '600', '-e', '600', '--codec',
                                       'topk:0.01')
                self.assertEqual(done.returncode, 1)
                self.assertIn('which leaves values out', done.stderr)

    def test_root(self):
        done = self.run_program('broadcast_perf', '-r', '2')
        self.assertEqual({row[4] for row in cli_support.rows(done.stdout)}, {'2'})
        done = cli_support.run('broadcast_perf', '-g', '2', '-r', '2')
        self.assertEqual(done.returncode, 1)
        self.assertIn('root 2, must be 0 to 1', done.stderr)

    def test_types_ops_and_odd_sizes(self):
        for name, redop, *_ in self.PROGRAMS:
            with self.subTest(name=name):
                done = self.run_program(name, '-o', 'all', '-d', 'all', '-u', '1', '--codec', 'int8')
                table = cli_support.rows(done.stdout)
                self.assertEqual(len(table), 3 if redop == 'none' else 12)
                done = cli_support.run(name, '-g', '2', '-b', '0', '-e', '100', '-i', '20', '-n', '1')
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == '__main__':
    cli_support.main()
