# SPDX-License-Identifier: Apache-2.0
"""The test machine: QEMU in software emulation (never /dev/kvm, which may exist and yet be unable
to boot this kernel). Booted once, saved when it waits for a job, restored for each job."""
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time

import kernel

# The device tree of a PC without what takes time at boot. A saved state fits only the same machine.
MACHINE = ('-M', 'pc,hpet=off,usb=off,vmport=off', '-accel', 'tcg,thread=multi', '-cpu', 'max',
           '-nodefaults', '-no-user-config', '-no-reboot', '-nic', 'none', '-display', 'none',
           '-vga', 'none', '-smp', '2', '-m', '1024')
APPEND = ('console=ttyS0 panic=-1 quiet nokaslr mitigations=off cryptomgr.notests '
          'random.trust_cpu=1 init_on_alloc=0 audit=0 apparmor=0 lsm= nowatchdog tsc=reliable '
          'no_timer_check rcupdate.rcu_expedited=1 '
          'initcall_blacklist=init_kprobe_trace,load_system_certificate_list')
BOOT_SECONDS = 180
RESTORE_SECONDS = 60


class Broken(Exception):
    """The machine does not do what it should; the text says what."""


LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def end_with_parent():
    """In the child: whatever kills this process kills QEMU."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def emulator():
    path = shutil.which('qemu-system-x86_64')
    if path is None:
        raise kernel.Unavailable('qemu-system-x86_64 is not here (package qemu-system-x86)')
    return path


class Machine:
    """A running QEMU with its files in `folder`. Use as a context: it is ended on the way out."""

    def __init__(self, folder, vmlinux, initrd, state=None):
        self.folder = folder
        self.sockets = {}
        command = [emulator(), *MACHINE, '-kernel', vmlinux, '-initrd', initrd, '-append', APPEND,
                   '-chardev', 'file,id=console,path=%s/console' % folder,
                   '-serial', 'chardev:console',
                   '-chardev', 'socket,id=qmp,path=%s/qmp,server=on,wait=off' % folder,
                   '-mon', 'chardev=qmp,mode=control', '-device', 'virtio-serial-pci']
        for port in ('control', 'out', 'err'):
            command += ['-chardev', 'socket,id=%s,path=%s/%s,server=on,wait=off' %
                        (port, folder, port),
                        '-device', 'virtserialport,chardev=%s,name=%s' % (port, port)]
        command += ['-fsdev', 'local,id=root,path=/,security_model=none,readonly=on,'
                    'multidevs=remap', '-device', 'virtio-9p-pci,fsdev=root,mount_tag=hostroot']
        if state is not None:
            command += ['-incoming', 'exec:exec cat "%s"' % state]
        with open(folder + '/qemu.log', 'wb') as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log, start_new_session=True,
                                            preexec_fn=end_with_parent)

    def __enter__(self):
        try:
            for name in ('qmp', 'control', 'out', 'err'):
                self._connect(name)
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_):
        self.end()

    def end(self):
        """The process group is this machine's own: QEMU and the reader of its state."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for sock in self.sockets.values():
            sock.close()

    def _connect(self, name):
        deadline = time.monotonic() + RESTORE_SECONDS
        sock = socket.socket(socket.AF_UNIX)
        while True:
            try:
                sock.connect('%s/%s' % (self.folder, name))
                break
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    sock.close()
                    raise Broken('QEMU does not start: ' + self.trouble()) from None
                time.sleep(0.01)
        self.sockets[name] = sock

    def trouble(self):
        """What is known when something is wrong."""
        text = ''
        for name in ('qemu.log', 'console'):
            try:
                with open('%s/%s' % (self.folder, name), errors='replace', encoding='utf-8') as f:
                    text += f.read()[-2000:]
            except OSError:
                pass
        return text.strip() or 'it says nothing'

    def line(self, deadline, on_output=None):
        """The next line of the control port; output that comes meanwhile goes to on_output."""
        control = self.sockets['control']
        got = b''
        watched = [control] + ([self.sockets['out'], self.sockets['err']] if on_output else [])
        while not got.endswith(b'\n'):
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            ready = select.select(watched, [], [], left)[0]
            for sock in (s for s in ready if s is not control):
                if not self._pass_on(sock, on_output):
                    watched.remove(sock)
            if control in ready:
                byte = control.recv(1)
                if not byte:
                    raise Broken('the machine is gone: ' + self.trouble())
                got += byte
        return got.decode(errors='replace').strip()

    def _pass_on(self, sock, on_output):
        data = sock.recv(65536)
        if data:
            on_output('out' if sock is self.sockets['out'] else 'err', data)
        return bool(data)

    def drain(self, on_output):
        """What was written and not yet passed on."""
        ports = [self.sockets['out'], self.sockets['err']]
        while True:
            ready = select.select(ports, [], [], 0.05)[0]
            if not ready:
                return
            for sock in ready:
                if not self._pass_on(sock, on_output):
                    ports.remove(sock)

    def expect(self, word, deadline, on_output=None):
        """What follows the word on the next line."""
        try:
            line = self.line(deadline, on_output)
        except TimeoutError:
            raise Broken('the machine did not say %s in time: %s' % (word, self.trouble())) \
                from None
        if not line.startswith(word):
            raise Broken('the machine said: ' + line)
        return line[len(word):].strip()

    def send_job(self, words):
        job = b''.join(os.fsencode(w) + b'\0' for w in words)
        self.sockets['control'].sendall(b'JOB %d\n' % len(job) + job)

    # ---- saving ----

    def _qmp(self, command, **arguments):
        sock = self.sockets['qmp']
        sock.sendall(json.dumps({'execute': command, 'arguments': arguments}).encode())
        while True: # events and the greeting come in between
            answer = json.loads(self._qmp_line())
            if 'return' in answer:
                return answer['return']
            if 'error' in answer:
                raise Broken('QEMU refuses %s: %s' % (command, answer['error']))

    def _qmp_line(self):
        sock = self.sockets['qmp']
        got = b''
        sock.settimeout(RESTORE_SECONDS)
        while not got.endswith(b'\n'):
            byte = sock.recv(1)
            if not byte:
                raise Broken('QEMU is gone: ' + self.trouble())
            got += byte
        return got

    def save(self, target):
        self._qmp('qmp_capabilities')
        self._qmp('migrate-set-parameters', **{'max-bandwidth': 1 << 40})
        self._qmp('migrate', uri='exec:cat >"%s.new"' % target)
        deadline = time.monotonic() + RESTORE_SECONDS
        while True:
            status = self._qmp('query-migrate').get('status')
            if status == 'completed':
                break
            if status == 'failed' or time.monotonic() > deadline:
                raise Broken('saving the state: ' + str(status))
            time.sleep(0.02)
        os.rename(target + '.new', target)
