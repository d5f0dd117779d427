#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dscomm_tune and dscomm_sim as a user calls them: on the topologies of machines of all kinds, on
profiles, with thousands of ranks."""
import glob
import json
import os
import re
import sys
import tempfile
import time
import unittest

import cli_support
from cli_support import rows

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'topo'))
from machines import MACHINES  # pylint: disable=wrong-import-position

HERE = os.path.dirname(os.path.abspath(__file__))
# Collected files of real machines, as tests/topo has them.
COLLECTED = os.environ.get('DSC_TEST_TOPO_DIR',
                           os.path.join(HERE, '..', '..', '..', 'shared', 'topo'))
REFUSALS = ('states no GPU', 'does not say which GPUs', 'the memory of GPUs with sm')
HEAD = ('question', 'rates', 'model', 'tier 0')
TAIL = ('choice', 'reason', 'by')

FINGERPRINT = ('cpu_model', 'cpus', 'isa', 'kernel', 'nics', 'ranks_per_host', 'tiers', 'transport',
               'nsocks', 'crc', 'threads')
HOST, TCP = 'host', 'tcp'


def tier(kind, rate, latency):
    return {'kind': kind, 'message_ns': 500, 'latency_ns': latency, 'bytes_per_s_alone': rate,
            'bytes_per_s': rate, 'byte_fs': 100, 'far_byte_fs': 0, 'by_memory': int(kind == HOST)}


def speed(spec, fs):
    return {'spec': spec, 'dtype': 'fp32', 'feedback': 1, 'send_fs': fs, 'add_fs': fs // 2,
            'own_fs': 2 * fs, 'decode_fs': fs // 2, 'far_send_fs': 0, 'far_own_fs': 0,
            'far_decode_fs': 0}


def profile(*tiers, speeds=(('none', 200000), ('fp32', 200000), ('int8', 900000))):
    """A profile's text: what link_perf writes, as far as rates go."""
    return json.dumps({
        'dscomm_profile': 3, 'machine': dict.fromkeys(FINGERPRINT, ''),
        'rates': {'version': 3, 'n_tiers': len(tiers), 'tiers': list(tiers),
                  'n_speeds': len(speeds), 'speeds': [speed(*s) for s in speeds],
                  'cpus_per_host': 2, 'ranks_per_host': 2, 'call_ns': 3000, 'op_ns': 200,
                  'overlap': 1, 'stage_ns': 0, 'header_bytes': 0, 'cache_bytes': 0}})


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, text, name='file'):
        path = os.path.join(self.folder.name, name)
        with open(path, 'w', encoding='utf-8', newline='') as handle:
            handle.write(text)
        return path

    def machine(self, name):
        entry = MACHINES[name]
        return self.file(entry if isinstance(entry, str) else entry[0], name + '.xml')

    def tune(self, *words, code=0, env=None):
        result = cli_support.run('dscomm_tune', *words, env=env)
        self.assertEqual(result.returncode, code, result)
        return result.stdout if code == 0 else result.stderr

    def sim(self, *words, code=0):
        result = cli_support.run('dscomm_sim', *words)
        self.assertEqual(result.returncode, code, result)
        return result.stdout if code == 0 else result.stderr


class Tables(Case):
    """Every machine gives a table or says why it cannot."""

    def check_table(self, text, path):
        lines = text.splitlines()
        first = [line[:12].strip() for line in lines]
        for word in HEAD + TAIL:
            self.assertIn(word, first, (path, text))
        at = next(i for i, line in enumerate(lines) if line.startswith('codec'))
        table = [line.split() for line in lines[at + 1:lines.index('', at)]]
        self.assertGreater(len(table), 5, path)
        totals = [float(r[4]) if r[4] != 'unknown' else float('inf') for r in table]
        self.assertEqual(totals, sorted(totals), (path, 'cheapest first'))
        if totals[0] == float('inf'):
            self.assertIn('unknown', first, path)
            self.assertIn('choice      none by default', lines, path)
        return table

    def check_file(self, path):
        result = cli_support.run('dscomm_tune', '--explain', '--topo', path, '--nodes', '2',
                                 '--size', '16M', '--dtype', 'bf16')
        if result.returncode == 0:
            self.check_table(result.stdout, path)
            return True
        self.assertEqual(result.returncode, 1, (path, result))
        self.assertTrue(any(why in result.stderr for why in REFUSALS), (path, result.stderr))
        self.assertIn(os.path.basename(path), result.stderr)
        return False

    def test_machines(self):
        done = [name for name in MACHINES if self.check_file(self.machine(name))]
        self.assertGreater(len(done), 12, done)
        self.assertLess(len(done), len(MACHINES), 'files without GPUs are refused')

    def test_collected(self):
        paths = sorted(glob.glob(os.path.join(COLLECTED, 'xml', '*.xml')))
        if not paths:
            self.skipTest('no collected files in ' + COLLECTED)
        for path in paths:
            self.check_file(path)

    def test_fabric_unknown(self):
        """PCI alone, as files of cloud vendors: NVLink may be there, so nothing is chosen."""
        out = self.tune('--explain', '--topo', self.machine('h100_cloud'), '--size', '64M',
                        '--memory', '3350')
        self.assertIn('rate unknown', out)
        self.assertRegex(out, r'(?m)^unknown +tier 0 \(host\): fabric unknown')
        self.assertIn('nothing to choose by: tier 0 was not measured', out)

    def test_declared_and_assumed_are_said(self):
        out = self.tune('--topo', self.machine('a100_mesh'))
        self.assertRegex(out, 'rates declared, latencies assumed, .* 1555 GB/s by generation')
        self.assertEqual(len(rows(out)), 4)

    def test_overlap_and_disagreement(self):
        words = ('--explain', '--topo', self.machine('a100_mesh'), '--nodes', '4', '--local', '1',
                 '--size', '64M', '--dtype', 'bf16', '--budget', 'aggressive')
        on, off = self.tune(*words, '--overlap', 'on'), self.tune(*words, '--overlap', 'off')
        self.assertIn('model       stages overlap', on)
        self.assertIn('model       stages one after another', off)
        choice = {text: re.search(r'(?m)^choice +(\S+)', text).group(1) for text in (on, off)}
        other = re.search(r'(?m)^no overlap +(\S+)', on).group(1)
        self.assertEqual(other, choice[off])
        self.assertEqual('that model disagrees' in on, choice[on] != choice[off])

    def test_json(self):
        words = ('--topo', self.machine('a100_mesh'), '--nodes', '2', '--size', '1M,16M')
        tables = json.loads(self.tune('--json', *words))
        self.assertEqual([t['question']['count'] for t in tables], [1 << 18, 1 << 22])
        for table in tables:
            options = table['options']
            self.assertGreater(len(options), 20)
            totals = [o['total_ns'] for o in options if o['total_ns'] is not None]
            self.assertEqual(totals, sorted(totals))
            for option in options[len(totals):]:
                self.assertRegex(option['why_not'], 'the speed of lossless is not known')
            choice = table['choice']
            self.assertIn(choice['codec'], {o['codec'] for o in options if o['admitted']})
            self.assertTrue(all(o['why_not'] for o in options if not o['admitted']))
            self.assertLessEqual(choice['total_ns'], min(o['total_ns'] for o in options
                                                         if o['admitted']) * 1.021)


class Profiles(Case):
    """Measured rates."""

    def test_slow_link(self):
        path = self.file(profile(tier(HOST, 20000000000, 900), tier(TCP, 118000000, 30000)))
        out = self.tune('--profile', path, '--nodes', '2', '--local', '2')
        by_size = {r[0]: r for r in rows(out)}
        self.assertEqual(by_size['64M'][1:3], ['int8', 'tiered'])
        self.assertRegex(out, r'int8, tiered: tier 1 \(tcp, 118 MB/s per rank\): wire [0-9.]+ ms -> '
                              r'[0-9.]+ ms for [0-9.]+ ms of codec')
        self.assertIn('# rates    profile ' + path, out)

    def test_fast_link_says_no(self):
        path = self.file(profile(tier(HOST, 20000000000, 900)))
        for row in rows(self.tune('--profile', path)):
            self.assertEqual(row[1], 'none', row)

    def test_budget(self):
        path = self.file(profile(tier(TCP, 118000000, 30000)))
        words = ('--profile', path, '--nodes', '4', '--local', '1', '--size', '64M')
        self.assertEqual(rows(self.tune(*words))[0][1], 'int8')
        for budget in ('exact', 'high', '0.008'):
            self.assertEqual(rows(self.tune(*words, '--budget', budget))[0][1], 'none', budget)
        self.assertEqual(rows(self.tune(*words, '--budget', '0.0081'))[0][1], 'int8')

    def test_layouts_that_the_profile_does_not_have(self):
        one = self.file(profile(tier(HOST, 20000000000, 900)), 'one')
        self.assertIn('has no tier between hosts: nodes 2, must be 1',
                      self.tune('--profile', one, '--nodes', '2', code=1))
        many = self.file(profile(tier('fabric', 9, 9), tier(HOST, 9, 9), tier(TCP, 9, 9)), 'many')
        self.assertIn('give tiers', self.tune('--profile', many, '--nodes', '2', code=1))
        self.tune('--profile', many, '--nodes', '2', '--local', '4', '--tiers',
                  '0-1|2-3|4-5|6-7/0-3|4-7')

    def test_bad_files_and_words(self):
        bad = self.file('{}')
        self.assertIn('profile ' + bad, self.tune('--profile', bad, code=1))
        self.assertIn('no rates of this host, link_perf measures them',
                      self.tune(code=1, env={'DSCOMM_PROFILE': 'none'}))
        for words, text in ((('--size', '12Q'), '--size 12Q: allowed: bytes'),
                            (('--dtype', 'fp8'), '--dtype fp8: allowed: fp32 fp16 bf16'),
                            (('--nodes', '0'), '--nodes 0: allowed: 1 to 65535'),
                            (('--codec', 'int8'), 'see --help'), (('file',), 'see --help')):
            self.assertIn(text, self.tune(*words, code=2))
        good = self.file(profile(tier(HOST, 9, 9)), 'good')
        self.assertIn("budget 'much', must be exact, high",
                      self.tune('--profile', good, '--budget', 'much', code=1))
        self.assertIn('only one of them', self.tune('--profile', good, '--topo', good, code=1))


class Sim(Case):
    """The simulator."""

    def test_table(self):
        out = self.sim('--topo', self.machine('a100_mesh'), '--nodes', '64', '--dtype', 'bf16')
        self.assertRegex(out, r'(?m)^# ranks    256: 64 nodes of 4$')
        table = rows(out)
        self.assertEqual([r[0] for r in table], ['64K', '1M', '16M', '64M'])
        for row in table:
            total, ring, tree, ratio = (float(row[i]) for i in (3, 10, 11, 12))
            self.assertAlmostEqual(min(ring, tree) / total, ratio, delta=0.02)

    def test_ring_and_tree_by_hand(self):
        """4 nodes of one rank, 1 GB/s, 10 us: what an uncompressed ring and tree take."""
        path = self.file(profile(tier(TCP, 1000000000, 10000)))
        row = rows(self.sim('--profile', path, '--nodes', '4', '--local', '1', '--size', '1M'))[0]
        ring, tree = float(row[8]), float(row[9])
        self.assertAlmostEqual(ring, 3 + 6 * 10 + 1.5 * 1048.576, delta=3)
        self.assertAlmostEqual(tree, 3 + 2 * 2 * 10 + 2 * 1048.576, delta=3)

    def test_codec_is_taken_whatever_the_budget(self):
        words = ('--topo', self.machine('a100_mesh'), '--nodes', '8', '--size', '16M')
        self.assertEqual(rows(self.sim(*words, '--codec', 'int4:signed', '--budget', 'exact'))[0][1],
                         'int4:signed')
        self.assertIn('is not known', self.sim(*words, '--codec', 'int5', code=1))
        array = json.loads(self.sim(*words, '--json'))
        self.assertEqual(array[0]['size_bytes'], 16 << 20)
        self.assertEqual([t['kind'] for t in array[0]['tiers']], ['fabric', 'rdma'])

    def test_sixteen_thousand_ranks(self):
        """In ten seconds; with sanitizers only that it works."""
        start = time.monotonic()
        out = self.sim('--topo', self.machine('a100_deep_switch'), '--nodes', '2048', '--size', '64M')
        took = time.monotonic() - start
        self.assertIn('# ranks    16384: 2048 nodes of 8', out)
        self.assertEqual(len(rows(out)), 1)
        if not cli_support.ARGS.sanitized:
            self.assertLess(took, 10)


if __name__ == '__main__':
    cli_support.main()
