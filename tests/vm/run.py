#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a command in a virtual machine that has RDMA: two software RoCE devices (rdma_rxe), rxe0 and
rxe1, on veth0 (10.77.0.1) and veth1 (10.77.0.2), the ends of one link. tc and ip in the command can
make that link lossy, slow, or take it down.

    tests/vm/run.py [OPTIONS] COMMAND [ARGUMENT ...]

The machine has this host's file tree, read-only underneath: what the command writes is lost. It
gets this process' environment, folder and output; its exit code is the command's. 77: QEMU or the
kernel's package is not here, the reason is on standard error. 124: out of time. 125: the machine
broke. Emulated: a core of it is some 20 times slower than one of the host.

The first run takes the kernel from its Debian package (nothing is installed) and boots, about half
a minute; the state is kept in --cache and restored by later runs in a second or two.
"""
import argparse
import fcntl
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
import initramfs  # noqa: E402
import kernel  # noqa: E402
import machine  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
SKIP, OUT_OF_TIME, BROKEN = 77, 124, 125


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--cache', default=os.path.join(HERE, '../../build/vm'),
                        help='folder for kernel and state (default: build/vm)')
    parser.add_argument('--timeout', type=float, default=300, help='seconds for the command')
    parser.add_argument('--mtu', type=int, default=4200,
                        help='of the link; 4200 carries the largest RoCE MTU, 4096; 1500: 1024')
    parser.add_argument('--memlock', default='unlimited',
                        help="bytes that the command's processes may lock")
    parser.add_argument('--prepare', action='store_true', help='only see that the state is there')
    parser.add_argument('--verbose', action='store_true', help='say how long each step took')
    parser.add_argument('command', nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    if args.command[:1] == ['--']:
        del args.command[0]
    if not args.command and not args.prepare:
        parser.error('no command')
    return args


class Clock:
    def __init__(self, verbose):
        self.start, self.verbose = time.monotonic(), verbose

    def say(self, text):
        if self.verbose:
            print('vm: %.2f s %s' % (time.monotonic() - self.start, text), file=sys.stderr)


def fingerprint(mtu):
    """Of all that a saved state depends on."""
    digest = hashlib.sha256(str((mtu, machine.MACHINE, machine.APPEND)).encode())
    for name in ('init.c', 'initramfs.py', 'kernel.py'):
        digest.update(initramfs.content(os.path.join(HERE, name)))
    for path in (machine.emulator(), initramfs.find_tool('ip'), initramfs.find_tool('rdma')):
        stat = os.stat(path)
        digest.update(('%s %d %d\n' % (path, stat.st_size, stat.st_mtime_ns)).encode())
    return digest.hexdigest()[:16]


class Files:
    """What is kept between runs, made when missing."""

    def __init__(self, args, clock):
        self.cache = os.path.abspath(args.cache)
        self.kernel = os.path.join(self.cache, 'kernel')
        self.vmlinux = os.path.join(self.kernel, 'vmlinux')
        tag = fingerprint(args.mtu)
        self.initrd = os.path.join(self.cache, 'initrd-' + tag)
        self.state = os.path.join(self.cache, 'state-' + tag)
        self.mtu, self.clock = args.mtu, clock

    def make(self):
        os.makedirs(self.cache, exist_ok=True)
        with open(os.path.join(self.cache, 'lock'), 'w', encoding='utf-8') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.path.exists(os.path.join(self.kernel, 'complete')):
                kernel.fetch(self.kernel)
                self.clock.say('kernel unpacked')
            if not os.path.exists(self.initrd):
                initramfs.make(self.kernel, self.initrd, self.mtu)
            if not os.path.exists(self.state):
                self._boot()

    def _boot(self):
        with tempfile.TemporaryDirectory(prefix='dscomm-vm.') as folder:
            with machine.Machine(folder, self.vmlinux, self.initrd) as vm:
                vm.expect('READY', time.monotonic() + machine.BOOT_SECONDS)
                self.clock.say('booted')
                vm.save(self.state)
        self.clock.say('saved, %d MB' % (os.path.getsize(self.state) >> 20))


def pass_on(name, data):
    stream = sys.stdout if name == 'out' else sys.stderr
    stream.buffer.write(data)
    stream.flush()


def words_of(args):
    environment = ['%s=%s' % item for item in os.environ.items() if item[0] != 'TMPDIR']
    return [str(int(time.time())), args.memlock, os.getcwd(), str(len(args.command)),
            *args.command, 'DSC_VM=1', *environment]


def run(args, files, clock):
    with tempfile.TemporaryDirectory(prefix='dscomm-vm.') as folder:
        with machine.Machine(folder, files.vmlinux, files.initrd, files.state) as vm:
            clock.say('QEMU is up')
            vm.send_job(words_of(args))
            try:
                line = vm.line(time.monotonic() + machine.RESTORE_SECONDS + args.timeout, pass_on)
            except TimeoutError:
                vm.drain(pass_on)
                print('vm: out of time after %g s' % args.timeout, file=sys.stderr)
                return OUT_OF_TIME
            vm.drain(pass_on)
            clock.say('done')
            if not line.startswith('RC '):
                raise machine.Broken('it said: %s\n%s' % (line, vm.trouble()))
            return int(line[3:])


def main():
    args = parse(sys.argv[1:])
    clock = Clock(args.verbose)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        files = Files(args, clock)
        files.make()
        return 0 if args.prepare else run(args, files, clock)
    except kernel.Unavailable as error:
        print('skipped: no virtual machine: %s' % error, file=sys.stderr)
        return SKIP
    except (machine.Broken, subprocess.SubprocessError, OSError) as error:
        print('vm: %s' % error, file=sys.stderr)
        return BROKEN


if __name__ == '__main__':
    sys.exit(main())
