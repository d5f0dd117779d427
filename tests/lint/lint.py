#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks of the source tree and of what was built from it: lint.py --root R [options] CHECK.

Prints one line per finding. Exit code 0: clean, 1: findings, 77: a tool is missing (an error when
DSC_TESTS_STRICT is set, as tests/run.sh does after it has installed the tools).
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

LAYERS = {'core': 0, 'codec': 1, 'feedback': 1, 'topo': 1, 'transport': 2, 'kernels': 2, 'plan': 3,
          'tuner': 4, 'exec': 5, 'comm': 6, 'cuda': 7}
SHARED_SECOND_HEADERS = {
    'codec/kernels.h',  # the primitives, used by executors and checks too
    'kernels/stage.h', 'kernels/two_shot.h'}  # what host code launches
LIBRARY = ('src/', 'kernels/')  # folders of what is installed; a module is a folder of src/, or kernels/
PERF_INTERNAL = {  # may look inside the library
    'codec_error.c', 'codec_perf.c', 'codec_perf_cuda.c', 'codec_perf_host.c', 'dscomm_info.c',
    'dscomm_sim.c', 'gpu.h', 'gpu_device.c', 'gpu_hashes.c', 'gpu_timings.c', 'info_profile.c',
    'link_perf.c', 'net_perf.c', 'rates_table.h', 'stage_bench.c', 'virtual_ranks.c'}

PRIVATE_VERSION = 'DSCOMM_PRIVATE'  # of the map: for libdscomm_cuda alone
CUDA_HEADERS = {'include/dscomm/nccl.h'}  # of libdscomm_cuda, which has a map of its own

FILE_LINES_MAX = 1000
FUNCTION_LINES_MAX = 100
COMPLEXITY_MAX = 20

C_EXTS = ('.c', '.h')
CODE_EXTS = C_EXTS + ('.cc', '.cu', '.cuh', '.py', '.sh', '.def', '.map', '.cmake')
TEXT_EXTS = CODE_EXTS + ('.md', '.txt', '.json', '.in')
TEXT_NAMES = ('LICENSE', '.gitignore', '.gitattributes', '.clang-format')


# What a check looks at besides the tree: the option that says where it is.
NEEDED = {'env_doc': 'dscomm_info', 'exports': 'library', 'paths': 'library'}


class Missing(Exception):
    """A tool that the check needs is not installed."""


def need(tool):
    if shutil.which(tool) is None:
        raise Missing(tool)
    return tool


def files(args, exts, under=''):
    """Paths relative to the root of files that git would keep, or of all outside build folders."""
    listing = None
    if os.path.exists(os.path.join(args.root, '.git')) and shutil.which('git'):
        command = ['git', '-c', 'safe.directory=*', '-C', args.root, 'ls-files', '-co',
                   '--exclude-standard', '--deduplicate']
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode == 0:
            listing = run.stdout.splitlines()
    if listing is None:
        listing = []
        for folder, names, found in os.walk(args.root):
            names[:] = [n for n in names if n not in ('build', '.git', '__pycache__')]
            listing += [os.path.relpath(os.path.join(folder, f), args.root) for f in found]
    keep = [p for p in listing if p.startswith(under) and os.path.isfile(os.path.join(args.root, p))
            and (p.endswith(exts) or os.path.basename(p) in TEXT_NAMES and exts is TEXT_EXTS)]
    if not keep:
        raise SystemExit('no files found under %s, %s' % (args.root, under or 'any folder'))
    return sorted(keep)


def read(args, path):
    with open(os.path.join(args.root, path), encoding='utf-8') as handle:
        return handle.read()


TOKEN = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)


def blank(text, keep_strings=False):
    """The code with comments (and texts) replaced by blanks, line numbers unchanged."""
    def replace(match):
        if keep_strings and match.group(0)[0] in '"\'':
            return match.group(0)
        return re.sub(r'[^\n]', ' ', match.group(0))
    return TOKEN.sub(replace, text)


def line_of(text, position):
    return text.count('\n', 0, position) + 1


# ---- checks: each yields findings ----

def check_layers(args):
    """Lower layers never include higher ones, siblings never each other, only module headers."""
    for path in files(args, C_EXTS, LIBRARY):
        module = path.removeprefix('src/').split('/')[0]
        if module not in LAYERS:
            yield '%s: module %s has no layer' % (path, module)
            continue
        code = blank(read(args, path), keep_strings=True)
        for match in re.finditer(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', code, re.M):
            where = '%s:%d' % (path, line_of(code, match.start()))
            yield from include_findings(where, module, match.group(1))


def include_findings(where, module, include):
    other = include.split('/')[0]
    if other == 'dscomm' or (module, include) == ('core', 'env.def'):
        return
    if '/' not in include or other not in LAYERS:
        yield '%s: "%s" is not named from src/, kernels/ or include/' % (where, include)
    elif other != module and LAYERS[other] >= LAYERS[module]:
        yield '%s: %s may not include %s' % (where, module, include)
    elif (other != module and include != '%s/%s.h' % (other, other)
          and include not in SHARED_SECOND_HEADERS):
        yield '%s: %s is private to its folder' % (where, include)


def check_perf_includes(args):
    """Perf programs are users of the public headers, but for PERF_INTERNAL."""
    for path in files(args, C_EXTS, 'perf/'):
        if os.path.basename(path) in PERF_INTERNAL:
            continue
        code = blank(read(args, path), keep_strings=True)
        for match in re.finditer(r'#[ \t]*include[ \t]*"([^"]+)"', code):
            if match.group(1).split('/')[0] in LAYERS:
                yield '%s: includes %s, which is internal' % (path, match.group(1))


def check_files(args):
    """Sizes, licence line, unique base names."""
    seen = {}
    for path in files(args, CODE_EXTS):
        text = read(args, path)
        name = os.path.basename(path)
        lines = text.count('\n')
        if lines > FILE_LINES_MAX:
            yield '%s: %d lines, at most %d' % (path, lines, FILE_LINES_MAX)
        if not any('SPDX-License-Identifier: Apache-2.0' in s for s in text.splitlines()[:2]):
            yield '%s: no SPDX line at the top' % path
        if path.endswith(C_EXTS + ('.cc', '.cu')) and not path.startswith('include/'):
            if name in seen:
                yield '%s: the base name is taken by %s' % (path, seen[name])
            seen[name] = path


def check_lists(args):
    """Every C and C++ file is built: its name stands in the CMakeLists.txt of a folder above."""
    named = {}
    for path in files(args, ('CMakeLists.txt',)):
        named[os.path.dirname(path)] = set(re.findall(r'[\w./-]+', re.sub(r'#.*', '',
                                                                         read(args, path))))
    for path in files(args, ('.c', '.cc')):
        folder = os.path.dirname(path)
        while folder and not is_listed(os.path.relpath(path, folder), named.get(folder, ())):
            folder = os.path.dirname(folder)
        if not folder:
            yield '%s: in no CMakeLists.txt' % path


def is_listed(inner, names):
    """dsc_sources(module file) leaves the first folder away."""
    return inner in names or inner.split('/', 1)[-1] in names


def check_functions(args):
    """Lines and cyclomatic complexity (a switch counts once) of every C function."""
    paths = files(args, ('.c',))
    run = subprocess.run([need('pmccabe')] + paths, cwd=args.root, capture_output=True, text=True,
                         check=False)
    n_functions = 0
    for row in run.stdout.splitlines():
        fields = row.split('\t')
        if len(fields) != 6 or not fields[0].strip().isdigit():
            continue
        n_functions += 1
        complexity, lines, where = int(fields[0]), int(fields[4]), fields[5]
        if complexity > COMPLEXITY_MAX:
            yield '%s: complexity %d, at most %d' % (where, complexity, COMPLEXITY_MAX)
        if lines > FUNCTION_LINES_MAX:
            yield '%s: %d lines, at most %d' % (where, lines, FUNCTION_LINES_MAX)
    if n_functions == 0:
        yield 'pmccabe found no functions: %s' % run.stderr.strip()


def map_symbols(args, path):
    """The names of each version of a map, in its order."""
    return [(version, re.findall(r'[A-Za-z_]\w*', part)) for version, part in
            re.findall(r'(\w[\w.]*)\s*\{\s*global:(.*?)(?:local:|\})', blank(read(args, path)), re.S)]


def declared_with(args, word, paths):
    found = set()
    for path in paths:
        code = re.sub(r'^[ \t]*#(?:.*\\\n)*.*', '', blank(read(args, path)), flags=re.M)
        found |= set(re.findall(word + r'\b[^;(]*?(\w+)\s*\(', code))
    return found


def check_exports(args):
    """The map, the headers and the shared library name the same functions."""
    public, private = set(), set()
    for version, names in map_symbols(args, 'src/dscomm.map'):
        if names != sorted(set(names)):
            yield 'src/dscomm.map: %s is not sorted, or a symbol is listed twice' % version
        (private if version == PRIVATE_VERSION else public).update(names)
    run = subprocess.run([need('nm'), '-D', '--defined-only', args.library], capture_output=True,
                         text=True, check=True)
    exported = {line.split()[-1].split('@')[0] for line in run.stdout.splitlines()
                if line.split()[-2] != 'A'}
    for name in sorted((public | private) - exported):
        yield '%s: in src/dscomm.map but not exported by the library' % name
    for name in sorted(exported - public - private):
        yield '%s: exported by the library but not in src/dscomm.map' % name
    headers = [p for p in files(args, ('.h',), 'include/') if p not in CUDA_HEADERS]
    for name in sorted(declared_with(args, 'DSCOMM_API', headers) ^ public):
        yield '%s: in only one of include/ and src/dscomm.map' % name
    internal = declared_with(args, 'DSC_SHARED', files(args, ('.h',), LIBRARY))
    for name in sorted(internal ^ private):
        yield '%s: in only one of DSC_SHARED declarations and %s of src/dscomm.map' % (
            name, PRIVATE_VERSION)


def check_headers(args):
    """Every public header compiles alone, twice included, as C11 and as C++17."""
    with tempfile.TemporaryDirectory() as folder:
        for path in files(args, ('.h',), 'include/'):
            name = path[len('include/'):]
            for compiler, std, ext in ((args.cc, 'c11', 'c'), (args.cxx, 'c++17', 'cc')):
                unit = os.path.join(folder, 'unit.' + ext)
                with open(unit, 'w', encoding='utf-8') as handle:
                    handle.write('#include "%s"\n#include "%s"\n' % (name, name))
                run = subprocess.run(
                    [compiler, '-std=' + std, '-Wall', '-Wextra', '-Wpedantic', '-Werror',
                     '-fsyntax-only', '-I', os.path.join(args.root, 'include'), unit],
                    capture_output=True, text=True, check=False)
                if run.returncode != 0:
                    yield '%s as %s:\n%s' % (path, std, run.stderr)


def check_code(args):
    """The environment is read in one file; C has no // comments, alloca or float-mode flags."""
    rules = ((r'\b(?:secure_)?getenv\b|\benviron\b', 'reads the environment outside core/env.c',
              lambda p: p.startswith(LIBRARY) and p != 'src/core/env.c'),
             (r'\balloca\b', 'uses alloca', lambda p: True),
             (r'\b(?:malloc|calloc|realloc|strdup|posix_memalign|aligned_alloc)\s*\(',
              'allocates past dsc_calloc()',
              lambda p: p.startswith(LIBRARY) and p not in ('src/core/mem.c', 'src/core/env.c')))
    for path in files(args, C_EXTS):
        text = read(args, path)
        code = blank(text)
        for pattern, what, applies in rules:
            for match in re.finditer(pattern, code):
                if applies(path):
                    yield '%s:%d: %s' % (path, line_of(code, match.start()), what)
        is_cxx = path.startswith('tests/') and path.endswith('.h')  # may be
        for match in TOKEN.finditer(text):
            if match.group(0).startswith('//') and not is_cxx:
                yield '%s:%d: // comment' % (path, line_of(text, match.start()))


def check_whitespace(args):
    """Final newline, no tabs, no blanks at line ends, no carriage returns, no build paths."""
    # The whole path, not the tail of another one: a root such as /src is part of many names.
    built_in = re.compile(r'(?<![\w.})/-])' + re.escape(os.path.realpath(args.root)) + '/')
    for path in files(args, TEXT_EXTS):
        text = read(args, path)
        if text and not text.endswith('\n'):
            yield '%s: no newline at the end' % path
        for number, line in enumerate(text.split('\n'), 1):
            if '\t' in line or '\r' in line:
                yield '%s:%d: tab or carriage return' % (path, number)
            if line != line.rstrip():
                yield '%s:%d: blank at the end' % (path, number)
            if args.root != '/' and built_in.search(line):
                yield '%s:%d: names the folder it was written in' % (path, number)


def check_paths(args):
    """No binary that is installed names the folders it was built in."""
    with open(args.library, 'rb') as handle:
        data = handle.read()
    for folder in {args.root, os.path.realpath(args.root), args.build}:
        if folder.encode() + b'/' in data or folder.encode() + b'\0' in data:
            yield '%s: contains %s' % (args.library, folder)


def check_format(args):
    """clang-format leaves every C and C++ file as it is."""
    paths = files(args, C_EXTS + ('.cc',))
    run = subprocess.run([need('clang-format'), '--dry-run', '-Werror', '--ferror-limit=2'] + paths,
                         cwd=args.root, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        yield from re.findall(r'^\S+:\d+:\d+: error: .*', run.stderr, re.M) or [run.stderr]


def check_env_doc(args):
    """docs/env.md is what the registry generates."""
    run = subprocess.run([args.dscomm_info, '--env-md'], capture_output=True, text=True, check=True)
    if read(args, 'docs/env.md') != run.stdout:
        yield 'docs/env.md: differs from the output of %s --env-md, write it there' % args.dscomm_info


CHECKS = {name[len('check_'):]: function for name, function in sorted(globals().items())
          if name.startswith('check_')}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('check', choices=sorted(CHECKS))
    parser.add_argument('--root', required=True)
    parser.add_argument('--build', default='/nonexistent')
    parser.add_argument('--library')
    parser.add_argument('--dscomm-info')
    parser.add_argument('--cc', default='cc')
    parser.add_argument('--cxx', default='c++')
    args = parser.parse_args()
    path = getattr(args, NEEDED.get(args.check, 'root'))
    if path is None or not os.path.exists(path):
        parser.error('%s needs --%s, a path that exists: %s' %
                     (args.check, NEEDED.get(args.check, 'root').replace('_', '-'), path))
    try:
        findings = list(CHECKS[args.check](args))
    except Missing as tool:
        print('%s is not installed' % tool)
        return 1 if os.environ.get('DSC_TESTS_STRICT') else 77
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == '__main__':
    sys.exit(main())
