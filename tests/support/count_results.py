#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adds up ctest's JUnit files and prints one line `N passed, N failed, N skipped`.

count_results.py --expected FILE [--write-expected] STAGE=JUNIT ...

A GoogleTest program counts as the tests it ran, a program whose last line is
`N passed, N failed, N skipped` as these, any other as one. FILE declares per stage how many there
must be at least ("release 120" a line): a test that is no longer run is a failure. Every reason
for a skip is printed. Exit code 0 when nothing failed and nothing is missing.
"""
import argparse
import re
import sys
import xml.etree.ElementTree

GTEST_RAN = re.compile(r'^\[=+\] (\d+) tests? from \d+ test suites? ran\.', re.M)
GTEST_COUNT = re.compile(r'^\[ +(PASSED|FAILED|SKIPPED) +\] (\d+) tests?\b', re.M)
GTEST_REASON = re.compile(r': Skipped\n(.*?)\n?\[  SKIPPED \] (\S+)', re.S)
OWN_COUNT = re.compile(r'^(\d+) passed, (\d+) failed, (\d+) skipped$', re.M)


class Count:
    """Passed, failed, skipped."""

    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def total(self):
        return self.passed + self.failed + self.skipped

    def __str__(self):
        return '%d passed, %d failed, %d skipped' % (self.passed, self.failed, self.skipped)


def count_output(text):
    """What a program says about itself, or None."""
    if GTEST_RAN.search(text):
        found = {name: int(n) for name, n in GTEST_COUNT.findall(text)}
        return Count(found.get('PASSED', 0), found.get('FAILED', 0), found.get('SKIPPED', 0))
    own = OWN_COUNT.findall(text)
    return Count(*[int(n) for n in own[-1]]) if own else None


def count_case(case, reasons):
    text = case.findtext('system-out') or ''
    name, status = case.get('name'), case.get('status')
    lines = [line for line in text.splitlines() if line.strip()]
    if case.find('skipped') is not None and status == 'notrun':
        reasons.append('%s: %s' % (name, lines[-1].strip() if lines else 'no reason given'))
        return Count(skipped=1)
    count = count_output(text)
    for reason, test in GTEST_REASON.findall(text):
        reasons.append('%s: %s' % (test, ' '.join(reason.split()) or 'no reason given'))
    if count is not None and count.skipped and not GTEST_RAN.search(text):
        reasons += ['%s: %s' % (name, line.strip()) for line in lines
                    if 'skip' in line.lower() and not OWN_COUNT.match(line)]
    if status != 'run':  # failed, timed out, crashed, not found
        count = count or Count()
        count.failed = max(count.failed, 1)
    return count or Count(passed=1)


def count_stage(path, failures, reasons):
    count = Count()
    for case in xml.etree.ElementTree.parse(path).getroot().iter('testcase'):
        one = count_case(case, reasons)
        if one.failed:
            failures.append('%s (%d)' % (case.get('name'), one.failed))
        count.add(one)
    return count


def read_expected(path):
    expected = {}
    with open(path, encoding='utf-8') as handle:
        for line in handle:
            fields = line.split('#')[0].split()
            if fields:
                expected[fields[0]] = int(fields[1])
    return expected


def write_expected(path, ran):
    with open(path, 'w', encoding='utf-8') as handle:
        handle.write('# Tests that must run at least, per stage of tests/run.sh; written by\n'
                     '# tests/run.sh --write-expected\n')
        for stage, n in ran.items():
            handle.write('%s %d\n' % (stage, n))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--expected', required=True)
    parser.add_argument('--write-expected', action='store_true')
    parser.add_argument('--broken', action='append', default=[], metavar='STAGE',
                        help='a stage that did not get as far as its tests')
    parser.add_argument('--wanted', metavar='STAGES',
                        help='stages that were asked for; default: all that are declared')
    parser.add_argument('stages', nargs='*', metavar='STAGE=JUNIT')
    args = parser.parse_intermixed_args()
    total, ran, complaints = Count(failed=len(args.broken)), {}, []
    for item in args.stages:
        stage, path = item.split('=', 1)
        failures, reasons = [], []
        count = count_stage(path, failures, reasons)
        total.add(count)
        ran[stage] = count.total()
        print('stage %s: %s' % (stage, str(count).replace(',', '')))
        for reason in reasons:
            print('  skipped %s' % reason)
        for failure in failures:
            print('  FAILED %s' % failure)
    if args.write_expected and not args.broken and not total.failed:
        write_expected(args.expected, {**read_expected(args.expected), **ran})
    for stage, n in read_expected(args.expected).items():
        if args.wanted is not None and stage not in args.wanted.split():
            continue
        if stage in ran and ran[stage] < n:
            complaints.append('stage %s ran %d tests, %d are declared' % (stage, ran[stage], n))
        elif stage not in ran:
            complaints.append('stage %s did not run, %d tests are declared' % (stage, n))
        elif ran[stage] > n:
            print('stage %s ran %d tests, only %d are declared in %s'
                  % (stage, ran[stage], n, args.expected))
    for text in ['stage %s was broken before its tests ran' % s for s in args.broken] + complaints:
        print('FAILED: %s' % text)
    print(total)
    return 1 if total.failed or complaints else 0


if __name__ == '__main__':
    sys.exit(main())
