#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The counting of results: each kind of program, failures, skips, and tests that went missing."""
import os
import subprocess
import sys
import tempfile
import unittest

TOOL = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'count_results.py')

GTEST = '''[ RUN      ] A.b
x.cc:1: Skipped
no network here
[  SKIPPED ] A.b (0 ms)
[==========] 7 tests from 2 test suites ran. (1 ms total)
[  PASSED  ] 4 tests.
[  SKIPPED ] 1 test, listed below:
[  SKIPPED ] A.b
[  FAILED  ] 2 tests, listed below:
[  FAILED  ] A.c
'''
PASSED = '[==========] 3 tests from 1 test suite ran.\n[  PASSED  ] 3 tests.\n'


def case(name, status, inner=''):
    return '<testcase name="%s" status="%s">%s</testcase>' % (name, status, inner)


def out(text):
    return '<system-out>%s</system-out>' % text


class CountResults(unittest.TestCase):
    """Runs the tool on made-up files."""

    def count(self, cases, expected='s 1', extra=(), after=()):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (('j.xml', '<testsuite>%s</testsuite>' % ''.join(cases)),
                               ('expected', expected + '\n')):
                with open(os.path.join(folder, name), 'w', encoding='utf-8') as handle:
                    handle.write(text)
            run = subprocess.run([sys.executable, TOOL, '--expected', folder + '/expected', *extra,
                                  's=' + folder + '/j.xml', *after], capture_output=True, text=True,
                                 check=False)
        lines = run.stdout.splitlines()
        self.assertEqual(1, sum(' passed, ' in line for line in lines), run.stdout + run.stderr)
        return run.returncode, lines[-1], run.stdout

    def test_kinds(self):
        cases = [case('plain', 'run', out('text')), case('g', 'run', out(PASSED)),
                 case('own', 'run', out('skipped two: old CPU\n5 passed, 0 failed, 2 skipped\n'))]
        code, line, text = self.count(cases)
        self.assertEqual((0, '9 passed, 0 failed, 2 skipped'), (code, line))
        self.assertIn('own: skipped two: old CPU', text)

    def test_gtest_failures_and_reasons(self):
        code, line, text = self.count([case('g', 'fail', '<failure/>' + out(GTEST))])
        self.assertEqual((1, '4 passed, 2 failed, 1 skipped'), (code, line))
        self.assertIn('A.b: no network here', text)

    def test_failure_that_its_output_does_not_show(self):
        cases = [case('leak', 'fail', '<failure/>' + out(PASSED)), case('crash', 'fail', out('')),
                 case('never', 'notrun', '<failure/>')]
        self.assertEqual((1, '3 passed, 3 failed, 0 skipped'), self.count(cases)[:2])

    def test_skip_prints_reason(self):
        cases = [case('a', 'run'), case('b', 'notrun', '<skipped/>' + out('x\nno such tool\n'))]
        code, line, text = self.count(cases)
        self.assertEqual((0, '1 passed, 0 failed, 1 skipped'), (code, line))
        self.assertIn('b: no such tool', text)

    def test_missing_tests_fail(self):
        self.assertEqual(1, self.count([case('a', 'run')], 's 2')[0])
        self.assertEqual(0, self.count([case('a', 'run')], 's 1')[0])
        self.assertEqual(1, self.count([case('a', 'run')], 's 1\nother 1')[0])

    def test_broken_stage_fails(self):
        for options in ({'extra': ('--broken', 't')}, {'after': ('--broken', 't')}):
            result = self.count([case('a', 'run')], 's 1', **options)
            self.assertEqual((1, '1 passed, 1 failed, 0 skipped'), result[:2])

    def test_only_wanted_stages_must_run(self):
        self.assertEqual(0, self.count([case('a', 'run')], 's 1\nother 1', ('--wanted', 's'))[0])
        self.assertEqual(1, self.count([case('a', 'run')], 's 2\nother 1', ('--wanted', 's'))[0])


if __name__ == '__main__':
    unittest.main()
