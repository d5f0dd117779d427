#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""perf/compare: compare_test.py --compare FOLDER --build FOLDER CASE

Not how fast anything is: that all sides run and give the right sums, that a missed limit is told,
that a dead side is an error that names it, and that nothing is left. Exit code 77 where gloo or
Open MPI is missing; Links and Tiers also without root.
"""
import argparse
import glob
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import cli_support

ARGS = argparse.Namespace()
LIMIT_S = 100

# A side as compare_worker.c is one, with answers of its own.
FAKE_WORKER = '''#!/usr/bin/env python3
import json, os, socket, sys, time
sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[1])
def tell(answer):
    sock.sendall(json.dumps(answer).encode() + b'\\n')
tell({'side': sys.argv[3], 'rank': int(os.environ['RANK']), 'version': 'fake'})
for line in sock.makefile():
    words = line.split()
    if words[0] == 'know':
        tell({'known': True})
    elif os.environ['RANK'] == '1' and %(way)r == 'dies':
        sys.exit('out of paper')
    elif os.environ['RANK'] == '1' and %(way)r == 'hangs':
        time.sleep(1000)
    else:
        tell({'times_ns': [1000] * int(words[4]), 'sent': 8, 'rss_kib': 1, 'err': %(err)r})
'''


class Run:
    """A run of compare.py, finished or to be ended by the test."""

    def __init__(self, *words, build=None):
        self.child = subprocess.Popen(
            [sys.executable, os.path.join(ARGS.compare, 'compare.py'), '--build',
             build or ARGS.build, *words], env=cli_support.clean_env(), stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        self.stdout = self.stderr = ''
        self.returncode = None

    def finish(self):
        try:
            self.stdout, self.stderr = self.child.communicate(timeout=LIMIT_S)
        finally:
            self.child.kill()
        self.returncode = self.child.returncode
        return self

    def names(self):
        """Its network namespaces."""
        listing = subprocess.run(['ip', 'netns'], capture_output=True, text=True, check=True).stdout
        return [name for name in listing.split() if name.startswith('dsc%d' % self.child.pid)]

    def leavings(self):
        """Folders and processes that it has left."""
        tag = 'dscomm-compare-%d-' % self.child.pid
        found = glob.glob('/dev/shm/%s*' % tag) + glob.glob('%s/%s*' % (tempfile.gettempdir(), tag))
        for path in glob.glob('/proc/[0-9]*/cmdline'):
            try:
                with open(path, 'rb') as handle:
                    if tag.encode() in handle.read():
                        found.append(path)
            except OSError:
                pass  # ended just now
        return found


def compare(*words, build=None):
    return Run(*words, build=build).finish()


def row(side, codec, n_bytes, median_us, sent=None):
    return {'side': side, 'codec': codec, 'bytes': n_bytes, 'median_us': median_us, 'sent': sent,
            'rounds_us': [median_us], 'calls': 1, 'tx_bytes': 1e8, 'rss_kib': 1024, 'err': 1e-9}


def good_result():
    """Everything just within its limits, int8 over links at its goal."""
    links = [row('gloo', 'none', 1 << 26, 800e3), row('open_mpi', 'none', 1 << 26, 900e3),
             row('dscomm', 'none', 1 << 26, 860e3, 80e6),
             row('dscomm', 'int8', 1 << 26, 220e3, 20e6),
             row('dscomm', 'int4', 1 << 26, 130e3, 12e6),
             row('dscomm', 'topk:0.01', 1 << 26, 114e3, 3.0e6),
             row('dscomm', 'topk:0.001,int8', 1 << 26, 50e3, 0.5e6)]
    slow = [row('gloo', 'none', 1 << 26, 2550e3), row('dscomm', 'topk:0.01', 1 << 26, 100e3, 3.0e6)]
    local = []
    for n_bytes, ours in ((4096, 12.4), (1 << 26, 8.0)):
        for transport in ('shm', 'tcp'):
            local += [row('dscomm_' + transport, 'none', n_bytes, ours, n_bytes),
                      row('open_mpi_' + transport, 'none', n_bytes, 10.0)]
        local += [row('dscomm_tcp', 'int8', n_bytes, 4.9, n_bytes),
                  row('gloo', 'none', n_bytes, 20.0)]
    part = {'rounds': 1, 'absent': [], 'versions': {'gloo': 'gloo 1'}}
    machine = {'cpu': 'abacus', 'cores': 2, 'kernel': '6', 'busy_before': 0, 'busy_after': 0}
    return {'version': 1, 'machine': machine, 'quick': False, 'left_out': None,
            'links': {**part, 'ranks': 4, 'rate': '1gbit', 'raw_bytes_per_s': 100e6, 'rows': links},
            'slow': {**part, 'ranks': 4, 'rate': '100mbit', 'raw_bytes_per_s': 10e6, 'rows': slow},
            'local': {**part, 'ranks': 2, 'rows': local}}


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.json = os.path.join(self.folder, 'result.json')

    def judged(self, result):
        """Exit code and verdicts by figure of a result that was written before."""
        with open(self.json, 'w', encoding='utf-8') as handle:
            json.dump(result, handle)
        out = os.path.join(self.folder, 'judged.json')
        run = compare('--from', self.json, '--json', out)
        self.assertEqual(run.stderr, '')
        with open(out, encoding='utf-8') as handle:
            figures = json.load(handle)['figures']
        return run, {f['name']: f['verdict'] for f in figures}

    def result_of(self, run):
        self.assertIn(run.returncode, (0, 1), run.stderr)  # 1: slow, which is not asked here
        self.assertIn('| figure ', run.stdout, run.stderr)
        with open(self.json, encoding='utf-8') as handle:
            return json.load(handle)

    def check_rows(self, part, jobs, n_bytes):
        self.assertEqual({(r['side'], r['codec'], r['bytes']) for r in part['rows']},
                         {(*job, n) for job in jobs for n in n_bytes})
        for r in part['rows']:
            self.assertGreater(r['median_us'], 0)
            self.assertGreater(r['rss_kib'], 1024)
            self.assertEqual(len(r['rounds_us']), 2)
            self.assertLess(r['err'], 1e-6 if r['codec'] == 'none' else 0.05)
            self.assertGreater(r['err'], 0 if r['codec'] == 'none' else 1e-3)
        for version in part['versions'].values():
            self.assertRegex(version, r'\d+\.\d+')


class Judge(Case):
    """Verdicts on results that nobody measured."""

    def test_all_within(self):
        run, verdicts = self.judged(good_result())
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertEqual(verdicts['links: gloo fp32 / DSComm int8'], 'goal')
        self.assertEqual(verdicts['links: gloo fp32 / DSComm int4'], 'pass')
        self.assertEqual(verdicts['links: none, time / wire time'], 'pass')
        self.assertEqual(verdicts['links: gloo fp32 / DSComm topk:0.01'], 'goal')
        self.assertEqual(verdicts['slow: gloo fp32 / DSComm topk:0.01'], 'pass')
        self.assertEqual(len(verdicts), 14)

    def test_bytes_of_top_k(self):
        for codec, sent in (('topk:0.01', 3.05e6), ('topk:0.001,int8', 0.51e6)):
            result = good_result()
            for r in result['links']['rows']:
                if r['codec'] == codec:
                    r['sent'] = sent
            run, verdicts = self.judged(result)
            self.assertEqual(verdicts['links: %s, bytes sent / fp32, %%' % codec], 'MISSED')
            self.assertEqual(run.returncode, 1)

    def test_each_limit_can_be_missed(self):
        for part, side, codec, factor, figure in (
                ('links', 'dscomm', 'int8', 1.1, 'links: gloo fp32 / DSComm int8'),
                ('links', 'dscomm', 'int4', 1.1, 'links: gloo fp32 / DSComm int4'),
                ('links', 'dscomm', 'none', 1.01, 'links: none, time / wire time'),
                ('links', 'dscomm', 'int4', 1.07, 'links: int4, time / wire time'),
                ('links', 'dscomm', 'topk:0.01', 1.5, 'links: gloo fp32 / DSComm topk:0.01'),
                ('slow', 'dscomm', 'topk:0.01', 1.03, 'slow: gloo fp32 / DSComm topk:0.01'),
                ('local', 'dscomm_shm', 'none', 1.02,
                 'local: none over shm / Open MPI, worst size'),
                ('local', 'dscomm_tcp', 'none', 1.3,
                 'local: none over tcp / Open MPI, geometric mean'),
                ('local', 'dscomm_tcp', 'int8', 1.03,
                 'local: int8 over tcp / Open MPI, largest size')):
            result = good_result()
            for r in result[part]['rows']:
                if (r['side'], r['codec']) == (side, codec):
                    r['median_us'] *= factor
            run, verdicts = self.judged(result)
            self.assertEqual(verdicts[figure], 'MISSED', (figure, verdicts))
            self.assertIn('MISSED', run.stdout)
            self.assertEqual(run.returncode, 1)

    def test_a_codec_that_is_not_there_is_told(self):
        result = good_result()
        rows = result['links']['rows']
        result['links']['rows'] = [r for r in rows if r['codec'] != 'int4']
        result['links']['absent'] = ['int4']
        run, verdicts = self.judged(result)
        self.assertEqual(verdicts['links: gloo fp32 / DSComm int4'], 'absent')
        self.assertIn('not in this build', run.stdout)
        self.assertEqual(run.returncode, 1)

    def test_a_part_left_out_has_no_figures(self):
        run, verdicts = self.judged({**good_result(), 'links': None, 'slow': None})
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertTrue(all(name.startswith('local') for name in verdicts))

    def test_bad_options(self):
        for words in (['--sizes', '5'], ['--sizes', '4K,x'], ['--rounds', '0'],
                      ['--codecs', 'int3'], ['--codecs', ''], ['--only', 'moon'],
                      ['--quick', '--write-docs'], ['--link-size', '8G'], ['--timeout', '151']):
            run = compare(*words)
            self.assertEqual((run.returncode, run.stdout), (2, ''), words)
            self.assertIn('error: ', run.stderr)

    def test_other_files(self):
        with open(self.json, 'w', encoding='utf-8') as handle:
            json.dump({**good_result(), 'version': 2}, handle)
        run = compare('--from', self.json)
        self.assertEqual(run.returncode, 1)
        self.assertIn('version 2, allowed: 1', run.stderr)
        run = compare('--from', os.path.join(ARGS.compare, 'run.sh'))
        self.assertEqual(run.returncode, 1)
        self.assertIn('run.sh: Expecting value', run.stderr)

    def test_the_page_shows_its_result(self):
        docs = os.path.join(ARGS.compare, '..', '..', 'docs')
        run = compare('--from', os.path.join(docs, 'figures', 'compare.json'))
        self.assertIn('| figure ', run.stdout, run.stderr)
        with open(os.path.join(docs, 'perf.md'), encoding='utf-8') as handle:
            self.assertIn(run.stdout, handle.read())


class Local(Case):
    """Two ranks here, all sides for real."""

    def test_all_sides(self):
        run = compare('--only', 'local', '--sizes', '4K,1M', '--rounds', '2', '--json', self.json,
                      '--plots', self.folder)
        result = self.result_of(run)
        sides = ('dscomm_shm', 'dscomm_tcp', 'open_mpi_shm', 'open_mpi_tcp', 'gloo')
        jobs = [(side, 'none') for side in sides] + [('dscomm_tcp', 'int8')]
        self.check_rows(result['local'], jobs, (4096, 1 << 20))
        self.assertIsNone(result['links'])
        self.assertEqual(set(result['local']['versions']), set(sides))
        self.check_plot(os.path.join(self.folder, 'compare_local.svg'))
        self.assertEqual(run.leavings(), [])

    def check_plot(self, path):
        """The same result gives the same bytes."""
        with open(path, encoding='utf-8') as handle:
            before = handle.read()
        self.assertIn('int8 over TCP', before)
        compare('--from', self.json, '--plots', self.folder)
        with open(path, encoding='utf-8') as handle:
            self.assertEqual(handle.read(), before)


class Links(Case):
    """Four ranks in namespaces."""
    words = ('--only', 'links', '--link-size', '1M', '--rounds', '2', '--raw-seconds', '1')

    def test_all_sides(self):
        run = compare(*self.words, '--codecs', 'none int8', '--json', self.json, '--plots',
                      self.folder)
        links = self.result_of(run)['links']
        jobs = [('gloo', 'none'), ('open_mpi', 'none'), ('dscomm', 'none'), ('dscomm', 'int8')]
        self.check_rows(links, jobs, (1 << 20,))
        self.assertGreater(links['raw_bytes_per_s'], 1e7)
        for r in links['rows']:
            # 1.5 MiB of fp32 per rank at least; what lower layers add is small.
            least = 1.5 * (1 << 20) * (0.25 if r['codec'] == 'int8' else 1)
            self.assertGreater(r['tx_bytes'], least)
            self.assertLess(r['tx_bytes'], 3 * least)
            if r['side'] == 'dscomm':
                self.assertLess(abs(r['sent'] / r['tx_bytes'] - 1), 0.1)
        self.assertTrue(os.path.getsize(os.path.join(self.folder, 'compare_links.svg')) > 1000)
        self.assertEqual(run.names(), [])
        self.assertEqual(run.leavings(), [])

    def test_nothing_is_left_after_a_signal(self):
        run = Run(*self.words, '--rounds', '100')
        for line in run.child.stderr:
            if 'over links of' in line:
                break
        time.sleep(1)
        self.assertEqual(len(run.names()), 5)
        self.assertNotEqual(run.leavings(), [])
        run.child.send_signal(signal.SIGTERM)
        self.assertEqual(run.finish().returncode, 1)
        self.assertEqual(run.names(), [])
        self.assertEqual(run.leavings(), [])


class Tiers(Case):
    """A profile, predictions, the sweep, and what auto says of its choice."""

    def test_a_small_sweep(self):
        path = os.path.join(self.folder, 'tiers.json')
        run = subprocess.run(
            [sys.executable, os.path.join(ARGS.compare, 'tiers.py'), '--build', ARGS.build,
             '--programs', os.path.dirname(ARGS.build), '--rate', '1gbit', '--sizes', '64K',
             '--rounds', '1', '--json', path], env=cli_support.clean_env(), timeout=LIMIT_S,
            capture_output=True, text=True, check=False)
        self.assertIn(run.returncode, (0, 1), run.stdout + run.stderr)
        with open(path, encoding='utf-8') as handle:
            case = json.load(handle)['cases'][0]
        jobs = {(row['side'], row['codec']) for row in case['rows']}
        self.assertEqual(len(jobs), 3 * 2 * 4 + 2 + 1)  # four codecs, int4 tiered, auto
        self.assertIn(('auto', 'auto'), jobs)
        predicted = {(row['side'], row['codec']) for row in case['predicted']}
        self.assertEqual(predicted, jobs - {('auto', 'auto')})
        self.assertRegex('\n'.join(case['decisions']), 'rates are those of profiles')
        self.assertRegex('\n'.join(case['decisions']), 'auto: count 16384 fp32 sum feedback: ')


class Failures(Case):
    """A side that fails ends the run at once; its own words are shown."""

    def with_worker(self, text):
        """A run of a build whose side of DSComm is this script."""
        for name in os.listdir(ARGS.build):
            if name.startswith(('compare_mpi', 'libcompare')):
                os.symlink(os.path.join(ARGS.build, name), os.path.join(self.folder, name))
        path = os.path.join(self.folder, 'compare_dscomm')
        with open(path, 'w', encoding='utf-8') as handle:
            handle.write(text)
        os.chmod(path, 0o755)
        run = compare('--only', 'local', '--sizes', '4K', '--rounds', '1', '--timeout', '10',
                      build=self.folder)
        self.assertEqual((run.returncode, run.stdout), (1, ''))
        self.assertEqual(run.leavings(), [])
        return run.stderr

    def test_at_the_start(self):
        error = self.with_worker('#!/bin/sh\necho "no ink" >&2\nexit 3\n')
        self.assertIn('side dscomm_shm: a process ended at the start, exit code 3', error)
        self.assertIn('no ink', error)

    def test_in_a_call(self):
        error = self.with_worker(FAKE_WORKER % {'way': 'dies', 'err': 0.0})
        self.assertIn('side dscomm_shm: rank 1 ended during "run none 4096', error)
        self.assertIn('out of paper', error)

    def test_no_answer(self):
        before = time.monotonic()
        error = self.with_worker(FAKE_WORKER % {'way': 'hangs', 'err': 0.0})
        self.assertIn('side dscomm_shm: rank 1 did not answer "run none 4096', error)
        self.assertIn('in 10 s', error)
        self.assertLess(time.monotonic() - before, 60)

    def test_a_wrong_sum(self):
        error = self.with_worker(FAKE_WORKER % {'way': 'works', 'err': 0.25})
        self.assertIn('side dscomm_shm, codec none, 4096 bytes: relative error 0.25', error)


def load_netns():
    path = os.path.join(ARGS.compare, '..', 'netns.py')
    spec = importlib.util.spec_from_file_location('netns', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def why_not(case):
    """Why the case cannot run here, or None."""
    if case == 'Judge':
        return None
    missing = [name for name in ('numpy', 'torch', 'matplotlib')
               if importlib.util.find_spec(name) is None]
    program = os.path.join(ARGS.build, 'compare_mpi')
    if shutil.which('mpirun') is None or not os.path.exists(program):
        missing.append('Open MPI')
    if missing:
        return 'needs ' + ' '.join(missing)
    return load_netns().why_not() if case in ('Links', 'Tiers') else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--compare', required=True, help='perf/compare')
    parser.add_argument('--build', required=True, help='folder of its programs')
    parser.add_argument('case')
    _, rest = parser.parse_known_args(namespace=ARGS)
    problem = why_not(ARGS.case)
    if problem:
        print('skipped: ' + problem)
        return 77
    return unittest.main(module='__main__', argv=['test', ARGS.case] + rest, verbosity=2)


if __name__ == '__main__':
    sys.exit(main())
