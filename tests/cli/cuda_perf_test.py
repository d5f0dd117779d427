#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The programs with --device cuda, on the emulator: what the host programs report, bit for bit."""
import json
import os
import tempfile
import unittest

import cli_support

PROGRAMS = ('all_reduce_perf', 'reduce_scatter_perf', 'all_gather_perf', 'alltoall_perf',
            'broadcast_perf')
RANKS = 3
SHAPE = ('-g', str(RANKS), '-b', '12K', '-e', '48K', '-f', '4', '-n', '3')
BITS = ('err', 'count', 'codec')


class Cuda(unittest.TestCase):
    """Eager calls, graphs, and what is refused."""

    def report(self, name, *words):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'report.json')
            done = cli_support.run(name, *SHAPE, '-J', path, *words)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(path, encoding='utf-8') as handle:
                return json.load(handle), done.stdout

    def judge(self, report, stdout):
        self.assertIn('cudaemu', report['note'])
        self.assertIn(report['note'], stdout)
        self.assertEqual(report['out_of_bounds']['count'], 0)
        self.assertEqual(len(report['config']['devices']), RANKS)
        for device in report['config']['devices']:
            self.assertIn('cudaemu', device)

    def test_calls_have_the_bits_of_the_host(self):
        for name in PROGRAMS:
            for words in (('--codec', 'int8'), ('--codec', 'bf16', '-d', 'half', '-u', '3')):
                with self.subTest(name=name, words=words):
                    device, stdout = self.report(name, '--device', 'cuda', *words)
                    host, _ = self.report(name, *words)
                    self.judge(device, stdout)
                    self.assertEqual(device['graph_launches'], 0)
                    self.assertNotIn('note', host)
                    for ours, theirs in zip(device['results'], host['results'], strict=True):
                        self.assertEqual([ours[k] for k in BITS], [theirs[k] for k in BITS])
                        # the same messages, without DSComm's headers
                        self.assertLess(0, theirs['wire_bytes'] - ours['wire_bytes'])
                        self.assertLess(theirs['wire_bytes'] - ours['wire_bytes'], 512)

    def test_graphs(self):
        for name in PROGRAMS:
            with self.subTest(name=name):
                report, stdout = self.report(name, '--device', 'cuda', '-G', '3', '--codec', 'none',
                                             '--codec', 'int8')
                self.judge(report, stdout)
                self.assertEqual(report['graph_launches'], 3)
                self.assertIn('replayed as a graph', stdout)
                for result in report['results']:
                    self.assertGreater(result['out_of_place']['time'], 0)
                    self.assertGreater(result['wire_bytes'], 0)

    def test_a_replay_is_counted_as_a_call(self):
        """One launch and three send the same per call."""
        wire = [[result['wire_bytes'] for result in self.report(
            'all_reduce_perf', '--device', 'cuda', '-G', n, '--codec', 'int8')[0]['results']]
                for n in ('1', '3')]
        self.assertEqual(wire[0], wire[1])

    def test_more_ranks_than_devices(self):
        done = cli_support.run('all_reduce_perf', '--device', 'cuda', '-g', '4', '-b', '4K', '-e',
                               '4K', env={'CUDAEMU_DEVICES': '2'})
        self.assertEqual(done.returncode, 1)
        self.assertIn('are both on device', done.stderr)

    def test_graphs_on_the_host_are_refused(self):
        done = cli_support.run('all_reduce_perf', '-G', '3')
        self.assertEqual((done.returncode, done.stdout), (2, ''))
        self.assertEqual(done.stderr.splitlines()[-1], "all_reduce_perf: -G '3': graphs need "
                         '--device cuda, allowed without: 0')

    def test_bad_device(self):
        done = cli_support.run('all_reduce_perf', '--device', 'gpu')
        self.assertEqual((done.returncode, done.stdout), (2, ''))
        self.assertIn("--device 'gpu': allowed: host cuda", done.stderr)


if __name__ == '__main__':
    cli_support.main()
