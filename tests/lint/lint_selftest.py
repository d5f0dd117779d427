#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every lint check must pass a clean tree and find each fault planted in it."""
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
SPDX = '/* SPDX-License-Identifier: Apache-2.0 */\n'

CLEAN = {
    'include/dscomm/thing.h': SPDX + '#define DSCOMM_API __attribute__((visibility("default")))\n'
                              '#define DSCOMM_MAP(X) X(OK)\nDSCOMM_API int dscomm_thing(int a);\n',
    'src/dscomm.map': SPDX + 'V {\nglobal:\n    dscomm_thing;\nlocal:\n    *;\n};\n',
    'src/core/core.h': SPDX + '#include "dscomm/thing.h"\n',
    'src/core/env.c': SPDX + '#include "core/core.h"\nint dsc_env(void)\n{\n'
                      '    return getenv("X") != 0;\n}\n',
    'src/codec/codec.h': SPDX + '#include "core/core.h"\n',
    'kernels/stage.h': SPDX + '#include "codec/codec.h"\n',
    'src/exec/exec.c': SPDX + '#include "codec/codec.h"\n\nint dsc_exec(void)\n{\n'
                       '    return 0; /* not getenv */\n}\n',
    'src/CMakeLists.txt': '# unlisted.c\ndsc_sources(core env.c)\ndsc_sources(exec exec.c)\n',
    'perf/CMakeLists.txt': 'add_executable(some_perf some_perf.c)\n',
    'tests/CMakeLists.txt': 'dsc_test(a SOURCES\n    unit/a_test.cc)\n',
    'tests/unit/a_test.cc': SPDX,
    'perf/some_perf.c': SPDX + '#include "dscomm/thing.h"\n',
}


def function(n_lines, n_branches):
    body = '    if (a)\n        a--;\n' * n_branches + '    a++;\n' * n_lines
    return SPDX + 'int dsc_f(int a);\n\nint dsc_f(int a)\n{\n%s    return a;\n}\n' % body


# check, file, its text, a word of the finding
FAULTS = (
    ('layers', 'src/core/up.c', SPDX + '#include "codec/codec.h"\n', 'may not include'),
    ('layers', 'src/feedback/side.c', SPDX + '#include "codec/codec.h"\n', 'may not include'),
    ('layers', 'src/exec/private.c', SPDX + '#include "codec/other.h"\n', 'private'),
    ('layers', 'src/exec/bare.c', SPDX + '#include "exec.h"\n', 'not named from'),
    ('layers', 'src/strange/x.c', SPDX, 'has no layer'),
    ('layers', 'kernels/up.c', SPDX + '#include "plan/plan.h"\n', 'may not include'),
    ('layers', 'src/exec/private.c', SPDX + '#include "kernels/other.h"\n', 'private'),
    ('perf_includes', 'perf/some_perf.c', SPDX + '#include "core/core.h"\n', 'internal'),
    ('files', 'src/core/long.c', SPDX + '\n' * 1000, 'at most'),
    ('files', 'src/core/bare.c', 'int x;\n', 'SPDX'),
    ('files', 'src/codec/env.c', SPDX, 'is taken'),
    ('lists', 'src/core/unlisted.c', SPDX, 'in no CMakeLists'),
    ('lists', 'tests/unit/b_test.cc', SPDX, 'in no CMakeLists'),
    ('functions', 'src/core/f.c', function(101, 0), 'lines, at most'),
    ('functions', 'src/core/f.c', function(0, 21), 'complexity'),
    ('headers', 'include/dscomm/thing.h', SPDX + 'int dscomm_thing(size_t a);\n', 'c11'),
    ('headers', 'include/dscomm/thing.h', SPDX + 'int dscomm_thing(int new);\n', 'c++17'),
    ('headers', 'include/dscomm/thing.h', SPDX + 'struct dscomm_s {\n    int a;\n};\n',
     'redefinition'),
    ('code', 'src/exec/exec.c', SPDX + 'char *a = getenv("A");\n', 'environment'),
    ('code', 'src/exec/exec.c', SPDX + 'void *a = malloc(1);\n', 'dsc_calloc'),
    ('code', 'kernels/format.c', SPDX + 'void *a = malloc(1);\n', 'dsc_calloc'),
    ('code', 'src/exec/exec.c', SPDX + 'int a; // b\n', '// comment'),
    ('whitespace', 'src/exec/exec.c', SPDX + 'int a;', 'no newline'),
    ('whitespace', 'src/exec/exec.c', SPDX + '\tint a;\n', 'tab'),
    ('whitespace', 'src/exec/exec.c', SPDX + 'int a; \n', 'blank'),
    ('format', 'src/exec/exec.c', SPDX + 'int  a;\n', 'exec.c'),
    ('exports', 'src/dscomm.map', CLEAN['src/dscomm.map'].replace('thing;', 'other;'),
     'not exported'),
    ('exports', 'src/dscomm.map', SPDX + 'V {\nlocal:\n    *;\n};\n', 'not in src/dscomm.map'),
    ('exports', 'include/dscomm/thing.h', SPDX + '#define DSCOMM_API\n', 'only one of'),
    ('exports', 'src/core/core.h', SPDX + 'DSC_SHARED int dsc_thing(int a);\n', 'DSC_SHARED'),
    ('env_doc', 'docs/env.md', 'stale\n', 'differs'),
)


def write(root, path, text):
    full = os.path.join(root, path)
    os.makedirs(os.path.dirname(full), exist_ok=True)
    with open(full, 'w', encoding='utf-8') as handle:
        handle.write(text)


def lint(root, check, library):
    run = subprocess.run([sys.executable, os.path.join(HERE, 'lint.py'), '--root', root, '--build',
                          root + '-build', '--library', library, '--dscomm-info', '/bin/echo', check],
                         capture_output=True, text=True, check=False)
    return run.returncode, run.stdout + run.stderr


def try_fault(folder, library, fault, failures):
    check, path, text, word = fault
    root = os.path.join(folder, 'tree')
    shutil.rmtree(root, ignore_errors=True)
    for clean_path, clean_text in CLEAN.items():
        write(root, clean_path, clean_text)
    write(root, 'docs/env.md', '--env-md\n')
    shutil.copy(os.path.join(HERE, '../../.clang-format'), root)
    code, output = lint(root, check, library)
    if code == 77:
        return True
    if code != 0:
        failures.append('%s on a clean tree: %s' % (check, output))
    write(root, path, text)
    code, output = lint(root, check, library)
    if code != 1 or word not in output:
        failures.append('%s did not find "%s" in %s: %s' % (check, word, path, output))
    return False


def try_without_options(failures):
    """What a check needs and is not told, or is not there, is an error of usage."""
    for options in ([], ['--dscomm-info', '/nonexistent/dscomm_info', '--library', '/nonexistent/so']):
        for check in ('env_doc', 'exports', 'paths'):
            run = subprocess.run([sys.executable, os.path.join(HERE, 'lint.py'), '--root', HERE,
                                  check] + options, capture_output=True, text=True, check=False)
            if run.returncode != 2 or 'a path that exists' not in run.stderr:
                failures.append('%s with %s: %s' % (check, options, run.stderr))


def main():
    failures = []
    try_without_options(failures)
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, 'lib.so')
        write(folder, 'lib.c', 'int dscomm_thing(void)\n{\n    return 0;\n}\n')
        subprocess.run(['cc', '-shared', '-fPIC', '-o', library, os.path.join(folder, 'lib.c')],
                       check=True)
        n_skipped = sum(try_fault(folder, library, fault, failures) for fault in FAULTS)
        write(folder, 'named', os.path.join(folder, 'tree') + '/src/x.c')
        if lint(os.path.join(folder, 'tree'), 'paths', os.path.join(folder, 'named'))[0] != 1:
            failures.append('paths did not find the name of the source folder')
    for failure in failures:
        print(failure)
    print('%d faults planted, %d without their tool' % (len(FAULTS) + 1, n_skipped))
    return 1 if failures else 0


if __name__ == '__main__':
    sys.exit(main())
