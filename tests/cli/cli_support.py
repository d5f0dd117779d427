# SPDX-License-Identifier: Apache-2.0
"""What the tests of programs share: arguments, running a program, reading its table."""
import argparse
import os
import subprocess
import unittest

ARGS = argparse.Namespace()
# Of a program under test; a run that needs longer hangs.
LIMIT_S = 100


def clean_env(extra=None):
    """The environment without what would change a program's ways, then what a test wants."""
    launchers = ('RANK', 'WORLD_SIZE', 'MASTER_', 'OMPI_', 'PMI_', 'PMIX_', 'SLURM_', 'LOCAL_RANK')
    env = {k: v for k, v in os.environ.items()
           if not k.startswith(launchers) and (not k.startswith('DSCOMM_') or k == 'DSCOMM_CPU_MASK')}
    env.update(extra or {})
    return env


def program(name):
    return os.path.join(ARGS.programs, name)


def run(name, *words, env=None, **kwargs):
    """A finished run: returncode (negative for a signal), stdout, stderr."""
    return subprocess.run([program(name), *words], env=clean_env(env), capture_output=True,
                          text=True, timeout=LIMIT_S, check=False, **kwargs)


def rows(stdout):
    """Rows of all tables, as lists of their columns."""
    return [line.split() for line in stdout.splitlines() if line and line[0] != '#']


def main():
    """unittest.main() with the arguments that CMake gives."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--programs', required=True, help='folder of the programs')
    parser.add_argument('--corrupt', help='library to preload that damages results')
    parser.add_argument('--sanitized', action='store_true')
    parser.add_argument('--env-def', help='src/core/env.def')
    _, rest = parser.parse_known_args(namespace=ARGS)
    unittest.main(module='__main__', argv=['test'] + rest, verbosity=2)
