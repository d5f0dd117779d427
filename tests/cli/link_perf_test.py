#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""link_perf and dscomm_info --profile as a user calls them."""
import glob
import json
import os
import re
import subprocess
import tempfile
import unittest

import cli_support
from cli_support import rows

NUMBER = r'^\d+(\.\d+)?$'


class Case(unittest.TestCase):
    """A folder of its own for profiles."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.env = {'XDG_CACHE_HOME': self.folder}

    def path(self, name):
        return os.path.join(self.folder, name)

    def measure(self, *words, env=None):
        """A short run that must succeed."""
        result = cli_support.run('link_perf', '-B', '200', *words, env={**self.env, **(env or {})})
        self.assertEqual((result.returncode, result.stderr), (0, ''), result)
        return result

    def info(self, *words, env=None):
        result = cli_support.run('dscomm_info', '--profile', *words, env={**self.env, **(env or {})})
        self.assertEqual(result.stderr, '', result)
        return result

    def written(self):
        """A good profile, changed by a test before it is loaded."""
        self.measure('-g', '2', '-o', self.path('p.json'))
        with open(self.path('p.json'), encoding='utf-8') as handle:
            return json.load(handle)

    def loaded(self, profile):
        with open(self.path('p.json'), 'w', encoding='utf-8') as handle:
            handle.write(profile if isinstance(profile, str) else json.dumps(profile))
        return self.info(self.path('p.json'))


class Table(Case):
    """What is printed and written."""

    def test_table(self):
        for transport in ('shm', 'tcp', 'loopback'):
            out = self.measure('-g', '2', '--transport', transport, '-o', 'none').stdout
            table = rows(out)
            tiers = [row for row in table if row[0].isdigit()]
            self.assertEqual([row[:2] for row in tiers], [['0', 'host']], out)
            for value in tiers[0][2:]:
                self.assertRegex(value, NUMBER)
            latency, alone, at_once = (float(value) for value in tiers[0][2:5])
            self.assertTrue(latency > 0 and alone > 0.001 and at_once > 0.001, out)
            speeds = [row for row in table if not row[0].isdigit()]
            self.assertIn(['none', 'fp32', 'off'], [row[:3] for row in speeds])
            for row in speeds:
                self.assertEqual(len(row), 10, row)
                self.assertGreater(float(row[3]), 0, row)
                self.assertEqual([float(x) for x in row[7:]], [0, 0, 0], 'no time for far ones')
            self.assertIn('# ranks per host 2, ', out)
            self.assertIn('# no profile written: -o is none', out)

    def test_tiers_of_hosts(self):
        """Three ranks on two hosts that differ by name alone: two tiers, one rank writes per host."""
        words = [cli_support.program('link_perf'), '-B', '300', '-T', '60', '-o', self.path('p.json')]
        env = {'WORLD_SIZE': '3', 'MASTER_ADDR': '127.0.0.1', 'DSCOMM_SOCKET_IFNAME': 'lo',
               'MASTER_PORT': str(cli_support.free_port_pair())}
        ranks = [subprocess.Popen(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env=cli_support.clean_env({**env, 'RANK': str(r),
                                                             'DSCOMM_HOST_ID': 'ab'[r // 2]}))
                 for r in range(3)]
        outputs = [p.communicate(timeout=cli_support.LIMIT_S) for p in ranks]
        self.assertEqual([p.returncode for p in ranks], [0, 0, 0], outputs)
        self.assertEqual([row[:2] for row in rows(outputs[0][0]) if row[0].isdigit()],
                         [['0', 'host'], ['1', 'tcp']], outputs)
        with open(self.path('p.json'), encoding='utf-8') as handle:
            profile = json.load(handle)
        self.assertEqual(profile['machine']['tiers'], 'host/tcp')
        self.assertEqual([tier['kind'] for tier in profile['rates']['tiers']], ['host', 'tcp'])

    def test_json(self):
        out = self.measure('-g', '2', '-o', self.path('p.json'), '-J', self.path('j.json')).stdout
        with open(self.path('j.json'), encoding='utf-8') as handle:
            report = json.load(handle)
        with open(self.path('p.json'), encoding='utf-8') as handle:
            self.assertEqual(report['profile'], json.load(handle))
        self.assertEqual((report['program'], report['ranks'], report['profile_path']),
                         ('link_perf', 2, self.path('p.json')))
        self.assertIn('# profile written to ' + self.path('p.json'), out)

    def test_one_rank(self):
        """Nobody to talk to: codecs alone."""
        out = self.measure('-o', 'none').stdout
        self.assertIn('none', [row[0] for row in rows(out)])


class Files(Case):
    """Profiles are found, and refused for a reason."""

    def test_default_path(self):
        self.assertIn('no profiles in', self.info().stdout)
        out = self.measure('-g', '2').stdout
        path = re.search(r'(?m)^# profile written to (.*)$', out).group(1)
        self.assertEqual(glob.glob(self.path('dscomm/*')), [path])
        self.assertRegex(path, r'/dscomm/profile-[0-9a-f]{12}\.json$')
        result = self.info()
        self.assertEqual(result.returncode, 0, result)
        self.assertIn('profile ' + path, result.stdout)
        self.assertIn('fits this machine, with 2 ranks per host and tiers host', result.stdout)
        self.measure('-g', '2', '--transport', 'tcp')
        self.assertEqual(len(glob.glob(self.path('dscomm/*'))), 2, 'other settings, another file')

    def test_named(self):
        env = {'DSCOMM_PROFILE': self.path('deep/er/mine.json')}
        self.measure('-g', '2', env=env)
        result = self.info(env=env)
        self.assertEqual(result.returncode, 0, result)
        self.assertIn('profile ' + env['DSCOMM_PROFILE'], result.stdout)
        out = self.measure('-g', '2', env={'DSCOMM_PROFILE': 'none'}).stdout
        self.assertIn('# no profile written: DSCOMM_PROFILE is none', out)

    def test_stale(self):
        good = self.written()
        result = self.loaded(good)
        self.assertEqual(result.returncode, 0, result)
        for field in ('cpu_model', 'cpus', 'isa', 'kernel', 'nics', 'transport', 'nsocks', 'crc',
                      'threads'):
            machine = {**good['machine'], field: 'something else'}
            result = self.loaded({**good, 'machine': machine})
            self.assertEqual(result.returncode, 1, result)
            self.assertIn("stale: %s is 'something else' in the profile, '%s' here"
                          % (field, good['machine'][field]), result.stdout)

    def test_garbage(self):
        good = self.written()
        deep = '[' * 100000
        late = {**good, 'dscomm_profile': 99}
        wrong = {**good, 'rates': {**good['rates'], 'call_ns': -1}}
        cases = [('', 'is no JSON from byte 0 on'), ('{', 'is no JSON'), (deep, 'is no JSON'),
                 ('[]', 'is no profile'), ('\x00' * 50, 'is no JSON'),
                 (' ' * 300000, 'has 262145 bytes, at most 262144'),
                 (late, 'dscomm_profile is 99, must be 3'),
                 (wrong, 'rates.call_ns is no whole number of 0 or more')]
        for text, why in cases:
            result = self.loaded(text)
            self.assertEqual(result.returncode, 1, result)
            self.assertRegex(result.stdout, r'(?m)^refused: ' + re.escape(why))
        self.assertIn('refused: No such file', self.info(self.path('absent')).stdout)
        self.assertIn('refused: is no regular file', self.info(self.folder).stdout)


class Failures(Case):
    """Bad options and files that cannot be written."""

    def test_options(self):
        for words, text in ((['-g', '0'], "-g '0': allowed: 1 to 1024"),
                            (['-B', '5'], "-B '5': allowed: 20 to 600000"),
                            (['-t', 'x'], "-t 'x': allowed: 1 to 256"),
                            (['--transport', 'pigeon'], 'allowed: auto shm verbs tcp nccl_net loopback'),
                            (['-o', ''], "-o '': allowed: a file name"),
                            (['-g'], 'a value is missing'),
                            (['--nonsense'], 'not known'), (['word'], 'not known')):
            result = cli_support.run('link_perf', *words, env=self.env)
            self.assertEqual((result.returncode, result.stdout), (2, ''), result)
            self.assertIn(text, result.stderr)
            self.assertEqual(result.stderr.count('\n'), 1, result)
        result = cli_support.run('dscomm_info', '--profile', '--nonsense', env=self.env)
        self.assertEqual(result.returncode, 2, result)

    def test_not_writable(self):
        with open(self.path('file'), 'w', encoding='ascii') as handle:
            handle.write('x')
        result = cli_support.run('link_perf', '-B', '100', '-g', '2', '-o', self.path('file/p.json'),
                                 env=self.env)
        self.assertEqual(result.returncode, 1, result)
        self.assertIn('Not a directory', result.stderr)

    def test_help(self):
        result = cli_support.run('link_perf', '--help')
        self.assertEqual((result.returncode, result.stderr), (0, ''))
        self.assertIn('--budget', result.stdout)


if __name__ == '__main__':
    cli_support.main()
