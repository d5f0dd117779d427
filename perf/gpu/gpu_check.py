#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The checks of perf/gpu_check, in what it has built: tests, bits, times, one table and one JSON.

Exit code 0: all that was judged is right and fast enough; 1: something is not; 2: could not start.
With --emulated the same runs on the emulator, whose variables the caller has set; times mean nothing
there and are not judged.
"""
import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
HASHES = os.path.join(HERE, 'hashes.txt')
LIMIT_S = 200  # of one program

# Least rate as a part of the copy rate, and the rest of the limits.
KERNEL_LIMITS = {('int8', 'encode+feedback'): 0.9, ('int8', 'decode'): 0.9,
                 ('int8', 'reduce+encode, 8 inputs'): 0.85}
GRAPH_SPEEDUP = 1.6
SPARSE_US = 1200.0
MULTI_RANK_NCCL = 23000  # 2.30: several ranks on one GPU
EMULATED_TESTS = '*int8*:*topk*'  # of gpu_kernels: the rest is a test of its own there

PASS, FAIL, NONE = 'ok', 'FAILED', '-'


class Report:
    """Rows of the table: what, what was found, what was asked for, a verdict."""

    def __init__(self, args):
        self.args = args
        self.rows = []
        self.times = {}

    def add(self, what, found, wanted, verdict):
        self.rows.append({'what': what, 'found': found, 'wanted': wanted, 'verdict': verdict})
        print('# %-58s %-34s %s' % (what, found, verdict), file=sys.stderr, flush=True)

    def limit(self, what, found, wanted, is_good):
        verdict = NONE if self.args.emulated else PASS if is_good else FAIL
        self.add(what, found, wanted, verdict)

    def failed(self):
        return [row for row in self.rows if row['verdict'] == FAIL]


def program(args, *path):
    return os.path.join(args.build, *path)


def environment(args, extra=None):
    """Without what would put an emulator in the place of a GPU."""
    env = {k: v for k, v in os.environ.items() if not k.startswith('DSCOMM_')}
    if not args.emulated:
        env = {k: v for k, v in env.items() if not k.startswith('CUDAEMU_')}
        if args.nccl:
            env['LD_LIBRARY_PATH'] = ':'.join(
                [args.nccl] + [p for p in [env.get('LD_LIBRARY_PATH')] if p])
    env.update(extra or {})
    return env


def run(args, words, extra=None):
    """returncode, stdout, stderr; a program that hangs is one that failed."""
    try:
        done = subprocess.run(words, env=environment(args, extra), capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return 1, '', 'not done after %d s' % LIMIT_S
    except OSError as error:
        return 1, '', str(error)
    if '[cudaemu]' in done.stderr + done.stdout and not args.emulated:
        raise SystemExit('gpu_check: %s ran on the emulator, not on a GPU' % words[0])
    return done.returncode, done.stdout, done.stderr


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:90] if lines else 'no output'


# ---- tests and bits ----

def check_tests(args, report):
    words = [program(args, 'tests', 'cuda', 'gpu_kernels'), '--gtest_brief=1']
    if args.emulated:
        words.append('--gtest_filter=' + EMULATED_TESTS)
    code, out, err = run(args, words)
    passed = re.search(r'\[  PASSED  \] (\d+) tests?', out)
    found = '%s tests passed' % passed.group(1) if passed else last_line(out + err)
    is_good = code == 0 and passed is not None and int(passed.group(1)) > 0
    report.add('kernels have the bits of the host', found, 'all', PASS if is_good else FAIL)


def check_cpu(args, report):
    part = ['--test=int8'] if args.emulated else []  # the rest is a test of its own there
    code, out, err = run(args, [program(args, 'tests', 'check_kernels')] + part)
    passed = re.search(r'(\d+) passed, 0 failed', out + err)
    is_good = code == 0 and passed is not None and int(passed.group(1)) > 0
    report.add('CPU kernels have the bits of the C ones, %s' % cpu_levels(), last_line(out + err),
               'all', PASS if is_good else FAIL)


def read_hashes(text):
    """{what: hash}"""
    return dict(line.rsplit(' ', 1) for line in text.splitlines() if line and line[0] != '#')


def check_hashes(args, report):
    code, out, err = run(args, [program(args, 'perf', 'gpu_hashes')])
    if code != 0:
        report.add('bits of calls are those of the emulator', last_line(err), 'all', FAIL)
        return
    if args.write_hashes:
        with open(HASHES, 'w', encoding='ascii') as handle:
            handle.write('# Made by gpu_hashes on the emulator: codec, type, residual, algorithm, '
                         'count, hash.\n' + out)
    with open(HASHES, encoding='ascii') as handle:
        wanted = read_hashes(handle.read())
    got = read_hashes(out)
    wrong = [k for k in sorted(set(wanted) | set(got)) if wanted.get(k) != got.get(k)]
    for what in wrong[:10]:
        print('# %s: %s, the emulator has %s' % (what, got.get(what), wanted.get(what)),
              file=sys.stderr)
    report.add('bits of calls, eager and replayed, are those of the emulator',
               '%d of %d' % (len(wanted) - len(wrong), len(wanted)), 'all',
               FAIL if wrong or not wanted else PASS)


# ---- times ----

def judge_kernels(report, times):
    copy = times['copy_gbps']
    report.add('copy within the device', '%.0f GB/s read and written' % copy, NONE, NONE)
    for row in times['kernels']:
        row['of_copy'] = row['gbps'] / copy if copy else 0.0
        limit = KERNEL_LIMITS.get((row['codec'], row['kernel']))
        what = '%s, %s, %.2f B/element' % (row['codec'], row['kernel'], row['bytes_per_element'])
        found = '%.1f us, %.2f of the copy rate' % (row['us'], row['of_copy'])
        if limit is None:
            report.add(what, found, NONE, NONE)
        else:
            report.limit(what, found, '%.2f' % limit, row['of_copy'] >= limit)


def judge_calls(report, times):
    for kind in ('calls', 'large'):
        for row in times[kind]:
            row['speedup'] = row['eager_us'] / row['graph_us'] if row['graph_us'] else 0.0
            what = 'allreduce, %d virtual ranks, %s, %d KiB' % (row['ranks'], row['codec'],
                                                               row['bytes'] >> 10)
            found = '%.1f us, graph %.1f us, %.2fx' % (row['eager_us'], row['graph_us'],
                                                       row['speedup'])
            if kind == 'large':
                report.add(what, found, NONE, NONE)
            else:
                report.limit(what, found, '%.1fx' % GRAPH_SPEEDUP, row['speedup'] >= GRAPH_SPEEDUP)


def check_times(args, report):
    words = [program(args, 'perf', 'gpu_timings')] + (['--small'] if args.emulated else [])
    code, out, err = run(args, words)
    if code != 0:
        report.add('times', last_line(err), NONE, FAIL)
        return
    times = report.times = json.loads(out)
    if times['emulated'] != args.emulated:
        raise SystemExit('gpu_check: device %s; --emulated is for the emulator alone'
                         % times['device'])
    judge_kernels(report, times)
    judge_calls(report, times)
    sparse = times['sparse_decode']
    report.limit('decode of %d elements of %s' % (sparse['elements'], sparse['codec']),
                 '%.1f us' % sparse['us'], '%.0f us' % SPARSE_US, sparse['us'] < SPARSE_US)


# ---- NCCL ----

NCCL_VERSION = '''
import ctypes
version = ctypes.c_int(0)
if ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version)) == 0:
    print(version.value)
'''


def nccl_version(args):
    """0: there is none. In a process of its own, which finds it as programs do."""
    code, out, _ = run(args, [sys.executable, '-c', NCCL_VERSION])
    return int(out) if code == 0 and out.strip().isdigit() else 0


# Name, -G of all_reduce_perf, variables.
NCCL_RUNS = [('eager', '0', {}), ('graphs', '3', {}),
             ('graphs of one kernel', '3', {'DSCOMM_CUDA_DIRECT': '1', 'DSCOMM_LOG_LEVEL': 'info'})]
ONE_KERNEL = 'as one kernel of'


def largest_time(out):
    """Of int8's last line, which says: size count type redop root time ..."""
    lines = [line.split() for line in out.partition('# codec int8')[2].splitlines()]
    rows = [words for words in lines if len(words) > 5 and words[0].isdigit()]
    return ', int8 %s B: %s us' % (rows[-1][0], rows[-1][5]) if rows else ''


def check_nccl(args, report):
    """Ranks on devices of their own, else two on one where NCCL can do that."""
    version = nccl_version(args)
    text = '%d.%d' % (version // 10000, version % 10000 // 100) if version else 'not found'
    devices = report.times.get('devices', 1)
    extra = {'CUDAEMU_DEVICES': '2'} if args.emulated else {}
    if args.emulated:
        devices = 2
    if version == 0 or (devices < 2 and version < MULTI_RANK_NCCL):
        report.add('all_reduce_perf over NCCL', 'left out: NCCL %s, %d device' % (text, devices),
                   '2.30 or 2 devices', NONE)
        return
    if devices < 2:
        extra['NCCL_MULTI_RANK_GPU_ENABLE'] = '1'
    for name, graphs, setting in NCCL_RUNS:
        what = 'all_reduce_perf, NCCL %s, 2 ranks on %d device%s, %s' % (
            text, min(devices, 2), 's' if devices > 1 else '', name)
        if setting and devices < 2:
            report.add(what, 'left out: 1 device', '2 devices', NONE)
            continue
        code, out, err = run(args, [
            program(args, 'perf', 'all_reduce_perf'), '--device', 'cuda', '-g', '2', '-G', graphs,
            '-b', '64K', '-e', '64K' if args.emulated else '16M', '-f', '16', '-n', '5', '--codec',
            'none', '--codec', 'int8'], {**extra, **setting})
        if code == 0 and setting and ONE_KERNEL not in err:
            code, err = 1, 'went over NCCL'
        found = 'results right' + largest_time(out) if code == 0 else last_line(err or out)
        report.add(what, found, 'right', PASS if code == 0 else FAIL)


# ---- report ----

def markdown(report, facts):
    lines = ['<!-- SPDX-License-Identifier: Apache-2.0 -->',
             '# What perf/gpu_check found', '',
             'Device: %(device)s (backend %(backend)s), %(date)s, host %(cpu)s, %(seconds).0f s. '
             '%(note)s' % facts, '',
             '| check | found | wanted | |', '|---|---|---|---|']
    lines += ['| %(what)s | %(found)s | %(wanted)s | %(verdict)s |' % row for row in report.rows]
    lines += ['']
    return '\n'.join(lines)


def cpu_fact(pattern):
    try:
        with open('/proc/cpuinfo', encoding='utf-8') as handle:
            found = re.search(pattern, handle.read(), re.M)
    except OSError:
        found = None
    return found.group(1).strip() if found else ''


def cpu_name():
    return cpu_fact(r'^model name\s*:\s*(.+)$') or platform.machine()


def cpu_levels():
    """As check_kernels names what it runs here."""
    if platform.machine() in ('aarch64', 'arm64'):
        return 'NEON'
    flags = cpu_fact(r'^flags\s*:\s*(.+)$').split()
    return 'AVX-512' if 'avx512bw' in flags else 'AVX2' if 'avx2' in flags else 'no others'


def facts_of(args, report, seconds):
    note = 'An emulator on the CPU: times mean nothing and are not judged.' if args.emulated else ''
    return {'device': report.times.get('device', 'not known'),
            'backend': 'cudaemu' if args.emulated else 'CUDA',
            'date': datetime.date.today().isoformat(), 'cpu': cpu_name(), 'seconds': seconds,
            'note': note}


def write(path, text):
    with open(path, 'w', encoding='utf-8') as handle:
        handle.write(text)


def parse_args():
    parser = argparse.ArgumentParser(prog='gpu_check', description=__doc__.splitlines()[0])
    parser.add_argument('--build', required=True, help='folder of the build')
    parser.add_argument('--nccl', help='folder of libnccl.so.2, if it is in no usual place')
    parser.add_argument('--json', help='file to write all figures to')
    parser.add_argument('--write-docs', action='store_true', help='write docs/gpu_check.md, .json')
    parser.add_argument('--emulated', action='store_true', help='a dry run on the emulator')
    parser.add_argument('--write-hashes', action='store_true',
                        help='with --emulated: make hashes.txt anew')
    args = parser.parse_args()
    if args.write_docs and args.emulated:
        parser.error('--write-docs: figures of the emulator mean nothing')
    if args.write_hashes and not args.emulated:
        parser.error('--write-hashes: the list is made on the emulator')
    return args


def main():
    args = parse_args()
    report = Report(args)
    start = time.monotonic()
    check_times(args, report)
    check_tests(args, report)
    check_hashes(args, report)
    check_cpu(args, report)
    check_nccl(args, report)
    facts = facts_of(args, report, time.monotonic() - start)
    text = markdown(report, facts)
    document = json.dumps({**facts, 'rows': report.rows, 'figures': report.times}, indent=1) + '\n'
    print(text)
    if args.json:
        write(args.json, document)
    if args.write_docs:
        write(os.path.join(ROOT, 'docs', 'gpu_check.md'), text)
        write(os.path.join(ROOT, 'docs', 'gpu_check.json'), document)
    for row in report.failed():
        print('gpu_check: %(what)s: %(found)s, wanted: %(wanted)s' % row, file=sys.stderr)
    return 1 if report.failed() else 0


if __name__ == '__main__':
    sys.exit(main())
