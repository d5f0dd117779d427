#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A look at the kernels' machine code: gpu_code_test.py --library L --build B.

No kernel may use local memory (spilled registers, arrays that are indexed at run time), each must be
there for every architecture, and encoders and decoders must read and write float32 in 16-byte
accesses. Tools come from PATH, the toolkit, or PyPI (into B/gpu_tools); without them: exit code 77.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

ARCHITECTURES = ('sm_80', 'sm_90', 'sm_100')
PACKAGES = ('nvidia-cuda-cuobjdump>=13,<14', 'nvidia-cuda-nvdisasm>=13,<14')
STAGES = ('encode', 'reduce', 'final', 'decode', 'sum', 'result', 'restore')
N_FORMATS = 13
N_TWO_SHOT = 11  # formats without segments
KERNELS = ('dsc_gpu_kernel', 'dsc_gpu_two_shot_kernel')
LOADS, STORES = 'LDG.E.128', 'STG.E.128'
# What moves float32: two loads of 16 bytes by a lane, or two stores.
WIDE = {'encode': (LOADS, 2), 'decode': (STORES, 2)}


def install(folder):
    """The tools from PyPI; a text that says why not, or None."""
    command = [sys.executable, '-m', 'pip', 'install', '-q', '--target', folder, *PACKAGES]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    except subprocess.TimeoutExpired:
        return 'pip took more than 90 seconds'
    return None if run.returncode == 0 else run.stderr.strip().splitlines()[-1:] or 'pip failed'


def find_tools(build):
    """A PATH with cuobjdump and nvdisasm, or None and the reason."""
    folder = os.path.join(build, 'gpu_tools')
    places = [os.environ.get('PATH', ''), os.path.join(folder, 'nvidia', 'cu13', 'bin'),
              '/usr/local/cuda/bin']
    path = os.pathsep.join(places)
    reason = None
    if not all(shutil.which(tool, path=path) for tool in ('cuobjdump', 'nvdisasm')):
        reason = install(folder)
    if not all(shutil.which(tool, path=path) for tool in ('cuobjdump', 'nvdisasm')):
        return None, reason
    return path, None


def dump(path, library, *options):
    run = subprocess.run([shutil.which('cuobjdump', path=path), *options, library],
                         capture_output=True, text=True, timeout=100, check=True,
                         env=dict(os.environ, PATH=path))
    return run.stdout


def stage_of(symbol):
    return STAGES[int(re.search(r'13dsc_gpu_stage(\d)E', symbol).group(1))]


def check_resources(text):
    """Findings in the report of registers and memory."""
    seen = dict.fromkeys(ARCHITECTURES, 0)
    architecture = symbol = None
    for line in text.splitlines():
        if line.startswith('arch = '):
            architecture = line.split()[-1]
        name = re.match(r'\s*Function (\w+):', line)
        if name:
            symbol = name.group(1)
        used = re.match(r'\s*REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)', line)
        if not used or not any(kernel in symbol for kernel in KERNELS):
            continue
        seen[architecture] = seen.get(architecture, 0) + 1
        if used.group(2) != '0' or used.group(4) != '0':
            yield '%s for %s: %s bytes of stack, %s of local memory' % (
                symbol, architecture, used.group(2), used.group(4))
    for architecture, count in seen.items():
        if count != N_FORMATS * (len(STAGES) - 1) + 1 + N_TWO_SHOT:
            yield '%d kernels for %s' % (count, architecture)


def check_accesses(text):
    """Findings in the machine code of one architecture."""
    n_checked = 0
    for part in text.split('Function : ')[1:]:
        symbol = part.split(None, 1)[0]
        wide = WIDE.get(stage_of(symbol)) if 'dsc_gpu_kernel' in symbol else None
        if wide is None:
            continue
        n_checked += 1
        if part.count(wide[0]) < wide[1]:
            yield '%s: %d %s, at least %d expected' % (symbol, part.count(wide[0]), *wide)
    if n_checked != N_FORMATS * len(WIDE):
        yield '%d encoders and decoders were found' % n_checked


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--library', required=True)
    parser.add_argument('--build', required=True)
    args = parser.parse_args()
    path, reason = find_tools(args.build)
    if path is None:
        print('skipped, no cuobjdump and nvdisasm: %s' % reason)
        return 77
    findings = list(check_resources(dump(path, args.library, '--dump-resource-usage')))
    findings += check_accesses(dump(path, args.library, '-sass', '-arch', 'sm_90'))
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == '__main__':
    sys.exit(main())
