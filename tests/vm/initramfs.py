# SPDX-License-Identifier: Apache-2.0
"""What the test machine boots with: its process 1 (init.c), ip and rdma with their libraries, the
modules. As a cpio archive in the `newc` format that the kernel unpacks."""
import glob
import os
import re
import shutil
import subprocess

import kernel

LINKS = '''link set lo up
link add veth0 mtu {mtu} address 02:00:00:00:00:01 type veth peer name veth1 mtu {mtu} address 02:00:00:00:00:02
addr add 10.77.0.1/24 dev veth0
addr add 10.77.0.2/24 dev veth1
link set veth0 up
link set veth1 up
neigh replace 10.77.0.2 lladdr 02:00:00:00:00:02 dev veth0 nud permanent
neigh replace 10.77.0.1 lladdr 02:00:00:00:00:01 dev veth1 nud permanent
'''


class Archive:
    def __init__(self):
        self.parts = []
        self.seen = set()

    def _entry(self, name, mode, data):
        fields = (len(self.seen), mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0)
        entry = b'070701' + b''.join(b'%08X' % f for f in fields) + name.encode() + b'\0'
        entry += b'\0' * (-len(entry) % 4) + data
        self.parts.append(entry + b'\0' * (-len(entry) % 4))

    def add(self, name, data, mode=0o100755):
        """A file with the folders above it; only the first of a name counts."""
        name = name.lstrip('/')
        if name in self.seen:
            return
        above = name.split('/')[:-1]
        for i in range(1, len(above) + 1):
            folder = '/'.join(above[:i])
            if folder not in self.seen:
                self.seen.add(folder)
                self._entry(folder, 0o040755, b'')
        self.seen.add(name)
        self._entry(name, mode, data)

    def bytes(self):
        self._entry('TRAILER!!!', 0, b'')
        return b''.join(self.parts)


def content(path):
    with open(path, 'rb') as file:
        return file.read()


def find_tool(name):
    path = shutil.which(name, path=os.environ.get('PATH', '') + ':/usr/sbin:/sbin')
    if path is None:
        raise kernel.Unavailable('%s is not here (package iproute2)' % name)
    return path


def add_tool(archive, name):
    path = find_tool(name)
    archive.add('bin/' + name, content(path))
    for library in re.findall(r'(/\S+)', kernel.run('ldd', path)):
        archive.add(library, content(library))


def make(folder, target, mtu):
    """folder: what kernel.fetch() made."""
    here = os.path.dirname(os.path.abspath(__file__))
    init = os.path.join(folder, 'init')
    compiler = shutil.which('gcc') or shutil.which('cc')
    if compiler is None:
        raise kernel.Unavailable('no C compiler for the first process of the machine')
    subprocess.run([compiler, '-O2', '-static', '-D_GNU_SOURCE', '-o', init, here + '/init.c'],
                   check=True)
    archive = Archive()
    archive.add('init', content(init))
    archive.add('etc/ip.batch', LINKS.format(mtu=mtu).encode())
    for tool in ('ip', 'rdma'):
        add_tool(archive, tool)
    for path in sorted(glob.glob(folder + '/modules/*.ko')):
        archive.add('modules/' + os.path.basename(path), content(path))
    with open(target + '.new', 'wb') as file:
        file.write(archive.bytes())
    os.rename(target + '.new', target)
