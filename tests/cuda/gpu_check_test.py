#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""perf/gpu_check: the whole of it as a dry run on the emulator, and what it makes of bad results."""
import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SCRIPT = os.path.join(ROOT, 'perf', 'gpu', 'gpu_check.py')
sys.path.insert(0, os.path.dirname(SCRIPT))
import gpu_check  # noqa: E402 pylint: disable=wrong-import-position

BUILD = argparse.Namespace(folder=None)
GPU = {'device': 'some GPU', 'devices': 1, 'emulated': False, 'copy_gbps': 1000.0,
       'kernels': [{'codec': 'int8', 'kernel': 'encode+feedback', 'us': 1.0, 'elements': 100,
                    'bytes_per_element': 13.02, 'gbps': 905.0},
                   {'codec': 'int8', 'kernel': 'reduce+encode, 8 inputs', 'us': 1.0,
                    'elements': 100, 'bytes_per_element': 24.1, 'gbps': 855.0},
                   {'codec': 'int4', 'kernel': 'decode', 'us': 1.0, 'elements': 100,
                    'bytes_per_element': 4.5, 'gbps': 1.0}],
       'calls': [{'codec': 'int8', 'ranks': 4, 'bytes': 65536, 'eager_us': 170.0,
                  'graph_us': 100.0}],
       'large': [{'codec': 'int8', 'ranks': 4, 'bytes': 1 << 27, 'eager_us': 1.0, 'graph_us': 1.0}],
       'sparse_decode': {'codec': 'topk:0.001,int8', 'elements': 1200000, 'us': 1199.0}}


class DryRun(unittest.TestCase):
    """On the emulator, with the list of hashes as it is kept."""

    def test_everything_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'check.json')
            done = subprocess.run([sys.executable, SCRIPT, '--build', BUILD.folder, '--emulated',
                                   '--json', path], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(path, encoding='utf-8') as handle:
                report = json.load(handle)
        self.assertEqual((report['backend'], report['device']), ('cudaemu', 'cudaemu'))
        self.assertIn('mean nothing', report['note'])
        self.assertIn('mean nothing', done.stdout)
        verdicts = [row['verdict'] for row in report['rows']]
        self.assertEqual(verdicts.count('ok'), 6)  # and no limit is judged
        self.assertEqual(set(verdicts), {'ok', '-'})
        self.assertEqual(report['figures']['kernels'][0]['bytes_per_element'], 13.0158)

    def test_is_no_gpu(self):
        """Without --emulated the emulator is refused, whatever the caller's variables say."""
        done = subprocess.run([sys.executable, SCRIPT, '--build', BUILD.folder], check=False,
                              capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertNotIn('backend CUDA', done.stdout)
        for words in (['--emulated', '--write-docs'], ['--write-hashes']):
            done = subprocess.run([sys.executable, SCRIPT, '--build', BUILD.folder, *words],
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 2, words)


class Judge(unittest.TestCase):
    """Verdicts on figures as they might come from a GPU."""

    def setUp(self):
        self.answers = {'gpu_timings': (0, '', ''), 'gpu_hashes': (0, '', '')}
        self.args = argparse.Namespace(emulated=False, build='/nowhere', nccl=None,
                                       write_hashes=False)
        self.saved = gpu_check.run
        gpu_check.run = lambda args, words, extra=None: self.answers[os.path.basename(words[0])]

    def tearDown(self):
        gpu_check.run = self.saved

    def verdicts(self, check):
        report = gpu_check.Report(self.args)
        with contextlib.redirect_stderr(io.StringIO()):
            check(self.args, report)
        return [row['verdict'] for row in report.rows]

    def times(self, change):
        figures = json.loads(json.dumps(GPU))
        change(figures)
        self.answers['gpu_timings'] = (0, json.dumps(figures), '')
        return self.verdicts(gpu_check.check_times)

    def test_good_times(self):
        self.assertEqual(self.times(lambda f: None), ['-', 'ok', 'ok', '-', 'ok', '-', 'ok'])

    def test_each_limit(self):
        changes = {1: lambda f: f['kernels'][0].update(gbps=895.0),
                   2: lambda f: f['kernels'][1].update(gbps=845.0),
                   4: lambda f: f['calls'][0].update(eager_us=159.0),
                   6: lambda f: f['sparse_decode'].update(us=1201.0)}
        for row, change in changes.items():
            verdicts = self.times(change)
            self.assertEqual([i for i, v in enumerate(verdicts) if v == 'FAILED'], [row])

    def test_a_program_that_fails(self):
        self.answers['gpu_timings'] = (1, '', 'no GPU: 0 devices\n')
        self.assertEqual(self.verdicts(gpu_check.check_times), ['FAILED'])
        self.answers['gpu_hashes'] = (1, '', 'no GPU: 0 devices\n')
        self.assertEqual(self.verdicts(gpu_check.check_hashes), ['FAILED'])

    def test_hashes(self):
        with open(gpu_check.HASHES, encoding='ascii') as handle:
            text = handle.read()
        lines = text.splitlines()
        self.assertGreater(len(lines), 100)
        other = lines[-1][:-1] + ('0' if lines[-1][-1] != '0' else '1')
        for answer, verdict in ((text, 'ok'), ('\n'.join(lines[:-1] + [other]), 'FAILED'),
                                ('\n'.join(lines[:-1]), 'FAILED'),
                                (text + 'new fp32 plain two-shot 5 00000000\n', 'FAILED')):
            self.answers['gpu_hashes'] = (0, answer, '')
            self.assertEqual(self.verdicts(gpu_check.check_hashes), [verdict])


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--build', dest='folder', required=True)
    _, rest = parser.parse_known_args(namespace=BUILD)
    unittest.main(argv=['test'] + rest, verbosity=2)
