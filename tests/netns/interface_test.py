#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which interface ranks use (DSCOMM_SOCKET_IFNAME), among those of a network namespace.

Every test has a namespace of its own. It has no name: it is gone with this process, whatever ends
it, and when the next test replaces it. Needs root and iproute2, else exit code 77.

    lo   docker0, br-1  bridges   veth0, veth1  a pair   eth0  in place of a network card

A namespace has no PCI device, so a card is what its name does not give away as virtual.
"""
import ctypes
import os
import re
import shutil
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'cli'))
import cli_support  # noqa: E402

CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
LIBC = ctypes.CDLL(None, use_errno=True)


def must(result, what):
    """Raises OSError for a call of libc that failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, '%s: %s' % (what, os.strerror(number)))


def enter_mounts():
    """Mounts of our own: /sys shows the interfaces of the namespace in which it was mounted."""
    must(LIBC.unshare(CLONE_NEWNS), 'unshare mounts')
    must(LIBC.mount(b'none', b'/', None, MS_REC | MS_PRIVATE, None), 'make mounts private')


def enter_network():
    """This process and its children in a new network namespace."""
    must(LIBC.unshare(CLONE_NEWNET), 'unshare network')
    must(LIBC.mount(b'sysfs', b'/sys', b'sysfs', 0, None), 'mount /sys')


def ip(*words):
    subprocess.run(['ip', *words], check=True, capture_output=True, text=True)


def can_ip(*words):
    return subprocess.run(['ip', *words], check=False, capture_output=True).returncode == 0


def add_card(name):
    """What looks like a card: a dummy, or where the kernel has none, an end of a pair, renamed."""
    if not can_ip('link', 'add', name, 'type', 'dummy'):
        ip('link', 'add', name, 'type', 'veth', 'peer', 'name', 'veth-' + name)
        ip('link', 'set', 'veth-' + name, 'addrgenmode', 'none', 'up')
    ip('link', 'set', name, 'addrgenmode', 'none', 'up')


class Interface(unittest.TestCase):
    """A run of two ranks over TCP in the namespace."""

    def setUp(self):
        enter_network()
        self.addCleanup(LIBC.umount2, b'/sys', 2)
        ip('link', 'set', 'lo', 'up')

    def add_all(self):
        """The card comes last and has the highest address: only its kind can make it win."""
        for i, name in enumerate(('docker0', 'br-1')):
            ip('link', 'add', name, 'type', 'bridge')
            ip('addr', 'add', '10.9.%d.1/24' % i, 'dev', name)
        ip('link', 'add', 'veth0', 'type', 'veth', 'peer', 'name', 'veth1')
        ip('link', 'set', 'veth1', 'master', 'docker0')
        ip('addr', 'add', '10.9.7.1/24', 'dev', 'veth0')
        for name in ('veth0', 'veth1', 'docker0', 'br-1'):
            ip('link', 'set', name, 'up')
        add_card('eth0')
        ip('addr', 'add', '10.9.200.1/24', 'dev', 'eth0')

    def add_ipv6(self, address):
        if not os.path.exists('/proc/sys/net/ipv6'):
            self.skipTest('this kernel has no IPv6')
        ip('-6', 'addr', 'add', address, 'dev', 'eth0', 'nodad')

    def run_ranks(self, value):
        env = {'DSCOMM_LOG_LEVEL': 'info'}
        if value is not None:
            env['DSCOMM_SOCKET_IFNAME'] = value
        return cli_support.run('all_reduce_perf', '-g', '2', '--transport', 'tcp', '-b', '64K', '-e',
                               '64K', '-n', '2', '-w', '1', '-T', '20', '--codec', 'int8', env=env)

    def check_used(self, value, name, address):
        """All is well and every line about addresses names this one. A rank that nobody told looks
        for the way to rank 0 instead of an interface."""
        with self.subTest(value=value):
            result = self.run_ranks(value)
            self.assertEqual(result.returncode, 0, result)
            said = re.findall(r'using (?:interface \S+ )?address [^\s,]+', result.stderr)
            self.assertGreaterEqual(len(said), 2, result.stderr)
            self.assertIn('using interface %s address %s' % (name, address), said)
            for text in said:
                self.assertIn(text, ('using interface %s address %s' % (name, address),
                                     'using address ' + address))

    def check_refused(self, value, *parts):
        """An error that names variable, value and what there is."""
        with self.subTest(value=value):
            result = self.run_ranks(value)
            self.assertEqual(result.returncode, 1, result)
            for part in ('DSCOMM_SOCKET_IFNAME', '"%s"' % value, 'lo (127.0.0.1)',
                         'eth0 (10.9.200.1)', *parts):
                self.assertIn(part, result.stderr)

    def test_unset_takes_the_card(self):
        self.add_all()
        self.check_used(None, 'eth0', '10.9.200.1')

    def test_unset_takes_a_card_that_is_up(self):
        self.add_all()
        ip('link', 'set', 'eth0', 'down')
        add_card('ens3')
        ip('addr', 'add', '10.9.201.1/24', 'dev', 'ens3')
        self.check_used(None, 'ens3', '10.9.201.1')

    def test_unset_with_lo_alone(self):
        self.check_used(None, 'lo', '127.0.0.1')

    def test_lo(self):
        self.add_all()
        self.check_used('lo', 'lo', '127.0.0.1')

    def test_no_such_interface(self):
        self.add_all()
        self.check_refused('nosuch0', 'docker0 (10.9.0.1)', 'veth0 (10.9.7.1)')

    def test_ipv6_only(self):
        ip('addr', 'del', '127.0.0.1/8', 'dev', 'lo')
        add_card('eth0')
        self.add_ipv6('fd09::1/64')
        self.check_used(None, 'eth0', 'fd09::1')
        self.check_used('eth0', 'eth0', 'fd09::1')
        self.check_used('fd09::1', 'eth0', 'fd09::1')
        self.check_used('lo', 'lo', '::1')

    def test_address_with_scope(self):
        self.add_all()
        self.add_ipv6('fe80::1/64')
        self.check_used('fe80::1%eth0', 'eth0', 'fe80::1%eth0')
        self.check_refused('fe80::1%docker0')
        self.check_refused('fe80::1%nosuch0')

    def test_only_a_link_local_address(self):
        """Chosen by name, it takes its scope along."""
        add_card('eth0')
        self.add_ipv6('fe80::1/64')
        self.check_used('eth0', 'eth0', 'fe80::1%eth0')

    def test_link_local_without_scope(self):
        self.add_all()
        self.add_ipv6('fe80::1/64')
        self.check_refused('fe80::1', 'link-local', 'fe80::1%eth0')

    def test_beginnings_and_lists(self):
        self.add_all()
        self.check_used('eth', 'eth0', '10.9.200.1')
        self.check_used('ib,eth', 'eth0', '10.9.200.1')
        self.check_used('=nosuch0,docker0', 'docker0', '10.9.0.1')
        self.check_refused('=eth')

    def test_exclusion(self):
        self.add_all()
        self.check_used('^lo,docker,veth,br-', 'eth0', '10.9.200.1')
        self.check_used('^eth,veth,br-,lo', 'docker0', '10.9.0.1')
        self.check_used('^=eth,veth0,docker0,br-1', 'eth0', '10.9.200.1')
        self.check_refused('^eth,veth,br-,lo,docker')

    def test_address(self):
        self.add_all()
        self.check_used('10.9.0.1', 'docker0', '10.9.0.1')
        self.check_refused('10.9.0.2')


def why_not():
    """Why this machine cannot do it, or None."""
    if os.geteuid() != 0:
        return 'needs root, for network namespaces'
    if shutil.which('ip') is None:
        return 'needs ip (Debian: iproute2)'
    try:
        enter_mounts()
        enter_network()
    except OSError as error:
        return 'cannot make a network namespace: %s' % error
    if not can_ip('link', 'add', 'veth0', 'type', 'veth', 'peer', 'name', 'veth1'):
        return 'this kernel has no veth pairs'
    return None


if __name__ == '__main__':
    REASON = why_not()
    if REASON:
        print('interface_test: skipped: ' + REASON)
        sys.exit(77)
    cli_support.main()
