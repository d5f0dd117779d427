# SPDX-License-Identifier: Apache-2.0
"""What the tests of programs share: arguments, running a program, reading its table."""
import argparse
import errno
import os
import random
import socket
import subprocess
import unittest

ARGS = argparse.Namespace()
# Of a program under test; a run that needs longer hangs.
LIMIT_S = 100
NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


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


def is_free(port):
    """Whether a server may listen at the port on every interface, IPv4 and IPv6."""
    for family, host in ((socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::')):
        try:
            with socket.socket(family) as sock:
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind((host, port))
        except OSError as error:
            if error.errno not in NO_IPV6:
                return False
    return True


def free_port_pair():
    """A MASTER_PORT whose successor, where the rendezvous is, is free too. The kernel gives the ports
    of its own range to any connection at any time, so that none of those stays free."""
    with open('/proc/sys/net/ipv4/ip_local_port_range', encoding='ascii') as handle:
        low, high = (int(word) for word in handle.read().split())
    ports = [p for p in range(15000, 31000) if not low - 1 <= p <= high] or range(15000, 31000)
    while True:
        port = random.choice(ports)
        if is_free(port) and is_free(port + 1):
            return port


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
