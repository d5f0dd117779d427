#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dscomm_info as a user calls it."""
import re
import unittest

import cli_support
from cli_support import ARGS


def run(*words, **kwargs):
    return cli_support.run('dscomm_info', *words, **kwargs)


def registered():
    """Names in env.def, which is the one list."""
    with open(ARGS.env_def, encoding='utf-8') as handle:
        return re.findall(r'^ENV\(\w+, \w+, "(\w+)"', handle.read(), re.M)


class Info(unittest.TestCase):
    """Everything that is there, once."""

    def test_sections(self):
        result = run()
        self.assertEqual((result.returncode, result.stderr), (0, ''), result)
        for part in ('dscomm 0.', 'instruction sets', '\n  none ', '\n  int8 ', '\n  int4 ',
                     '\n  fp8 ', '\n  fp8:e5m2 ', '\n  mxfp4,ceil ', '\n  nvfp4 ', '\n  shm', '\n  tcp',
                     '\n  loopback', '127.0.0.1', 'topology', '\nhost0\n', 'environment'):
            self.assertIn(part, result.stdout)
        for name in registered():
            self.assertRegex(result.stdout, r'(?m)^  DSCOMM_%s +\S' % name)

    def test_codec_sizes(self):
        """Bits per element of a long message: the layout, scales included."""
        bits = dict(re.findall(r'(?m)^  (\S+) +([0-9.]+)  [0-9.e-]+(?:  \(bits at most\))?$', run().stdout))
        self.assertEqual(bits['fp32'], '32.000')
        self.assertEqual(bits['bf16'], '16.000')
        self.assertEqual(bits['int8'], '8.125')
        self.assertEqual(bits['fp8:e5m2'], '8.125')
        self.assertEqual(bits['int4'], '4.250')
        self.assertEqual(bits['int4:block=256'], '4.062')
        self.assertEqual(bits['mxfp8'], '8.250')
        self.assertEqual(bits['mxfp4,ceil'], '4.250')
        self.assertEqual(bits['nvfp4'], '4.502')
        self.assertEqual(bits['int8,entropy'], '8.139')

    def test_values_in_use(self):
        result = run(env={'DSCOMM_TIMEOUT_MS': '1234', 'DSCOMM_SECRET': 'hunter2',
                          'DSCOMM_CPU_MASK': '0'})
        self.assertRegex(result.stdout, r'DSCOMM_TIMEOUT_MS +1234')
        self.assertRegex(result.stdout, r'DSCOMM_SECRET +\(set\)')
        self.assertNotIn('hunter2', result.stdout)
        self.assertIn('instruction sets none', result.stdout)
        self.assertRegex(result.stdout, r'(?m)^  kernels scalar.*; used: scalar$')

    def test_levels_in_use(self):
        """The highest set of those that the CPU and the variable leave, all with kernels."""
        for mask, allowed in (('0', ()), ('1', ('avx2',)), ('3', ('avx2', 'avx512'))):
            out = run(env={'DSCOMM_CPU_MASK': mask}).stdout
            sets = [s for s in re.search(r'(?m)^  instruction sets(.*) \(', out).group(1).split()
                    if s != 'none']
            match = re.search(r'(?m)^  kernels scalar(.*); used: (\w+)$', out)
            self.assertLessEqual(set(sets), set(allowed), out)
            self.assertLessEqual(set(sets), set(match.group(1).split()), out)
            self.assertEqual(match.group(2), ['scalar', *sets][-1], out)

    def test_bad_value(self):
        result = run(env={'DSCOMM_TIMEOUT_MS': 'soon'})
        self.assertEqual(result.returncode, 1, result)
        self.assertRegex(result.stdout, r'(?m)^  bad: .*DSCOMM_TIMEOUT_MS')

    def test_env(self):
        result = run('--env')
        self.assertEqual(result.returncode, 0)
        for name in registered():
            self.assertRegex(result.stdout, r'(?m)^DSCOMM_%s\n  default .*; allowed: ' % name)

    def test_env_markdown(self):
        result = run('--env-md')
        names = re.findall(r'(?m)^\| `DSCOMM_(\w+)` \|', result.stdout)
        self.assertEqual(names, registered())

    def test_version(self):
        self.assertRegex(run('--version').stdout, r'\A\d+\.\d+\.\d+\n\Z')

    def test_bad_options(self):
        for words in (('--nonsense',), ('-x',), ('extra',), ('--env', 'extra')):
            with self.subTest(words=words):
                result = run(*words)
                self.assertEqual((result.returncode, result.stdout), (2, ''))
                self.assertEqual(result.stderr.count('\n'), 1)
                self.assertIn(words[-1], result.stderr)
                self.assertIn('--env', result.stderr)
                self.assertIn('--topo', result.stderr)


if __name__ == '__main__':
    cli_support.main()
