#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""perf/net_check.py and net_perf, as a user calls them: what they say and when they fail, not rates."""
import json
import os
import re
import subprocess
import sys
import unittest

import cli_support

CHECK = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'perf', 'net_check.py')
PLUGIN = os.path.join('..', 'plugin', 'libnccl-net-dscomm.so')  # from the programs
SKIP = 77


def plugin():
    return cli_support.program(PLUGIN)


class NetCheck(unittest.TestCase):
    def check(self, *words, path=None):
        files = ['--net-perf', cli_support.program('net_perf'), '--plugin', path or plugin()]
        return subprocess.run([sys.executable, CHECK, *words, *files], env=cli_support.clean_env(),
                              capture_output=True, text=True, timeout=200, check=False)

    def judged(self, *words):
        """A functional run; its lines of figures as (what, value)."""
        result = self.check(*words, '--functional')
        if result.returncode == SKIP:
            self.skipTest(result.stdout.strip())
        self.assertEqual(result.returncode, 0, result)
        found = re.findall(r'^(\S.*?) +([0-9.]+)  at (?:least|most) [0-9.]+  not judged$',
                           result.stdout, re.MULTILINE)
        self.assertTrue(all(float(value) > 0 for _, value in found), result.stdout)
        return [what for what, _ in found]

    def test_latency(self):
        self.assertEqual(self.judged('latency'), ['latency of 8 bytes / plain sockets'])

    def test_local(self):
        for socks in (1, 3):
            self.assertEqual(self.judged('local', '--socks=%d' % socks),
                             ['local, %d sockets: %s / iperf3' % (socks, what)
                              for what in ('rate', 'CPU per byte')])

    def test_link(self):
        self.assertEqual(self.judged('link'), ['link of 10 Gbit/s: payload / link'])

    def test_lossless(self):
        self.assertEqual(len(self.judged('lossless')), 6)

    def test_failures(self):
        result = self.check('latency', path='/nonexistent.so')
        self.assertEqual(result.returncode, 1, result)
        self.assertIn('/nonexistent.so', result.stdout)
        self.assertEqual(self.check('everything').returncode, 2)


class NetPerf(unittest.TestCase):
    def stream(self, *words, **env):
        result = cli_support.run('net_perf', '--plugin=' + plugin(), '--seconds=0.1', *words,
                                 env={'DSCOMM_SOCKET_IFNAME': 'lo', **env})
        self.assertEqual(result.returncode, 0, result)
        return {r['role']: r for r in map(json.loads, result.stdout.splitlines())}

    def test_all_arrives(self):
        """Whatever the size, the sockets and the content."""
        for size in (1, 15, 4097, 131073, 1 << 20):
            for socks, mode in ((1, 'off'), (4, 'off'), (3, 'on')):
                with self.subTest(size=size, socks=socks, mode=mode):
                    out = self.stream('--bytes=%d' % size, DSCOMM_SOCKET_NSOCKS=str(socks),
                                      DSCOMM_NET_COMPRESS=mode)
                    self.assertEqual(out['send']['all_bytes'], out['receive']['all_bytes'])
                    for side in out.values():
                        self.assertEqual(side['bytes'], side['all_bytes'] - size)
                        self.assertLessEqual(side['waited_s'], side['cpu_s'])

    def test_warm_up(self):
        """What moves before the measured seconds is counted apart."""
        for side in self.stream('--warm=0.2', '--seconds=0.5', '--bytes=4096').values():
            self.assertGreater(side['bytes'], 0)
            self.assertLess(side['bytes'] + 4096, side['all_bytes'])

    def test_bad_arguments(self):
        for words, part in ((('--bytes=0',), '--bytes'), (('--in-flight=33',), '1 to 32'),
                            (('--fast',), '--fast'), (('--role=send',), '--meet'),
                            (('--data=/nonexistent',), '/nonexistent')):
            with self.subTest(words=words):
                result = cli_support.run('net_perf', '--plugin=' + plugin(), *words)
                self.assertEqual(result.returncode, 1, result)
                self.assertIn(part, result.stderr)


if __name__ == '__main__':
    cli_support.main()
