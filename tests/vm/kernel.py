# SPDX-License-Identifier: Apache-2.0
"""The distribution's kernel, taken from its package and never installed: an image that QEMU starts
without unpacking it again, and the few modules that a machine with software RoCE needs."""
import glob
import lzma
import os
import re
import shutil
import struct
import subprocess
import zlib

# (linux-image-cloud-amd64 has neither rdma_rxe nor 9p.)
PACKAGES = ('linux-image-amd64', 'linux-image-generic')

# What the machine needs, in any order; each brings what it depends on. The kernel would ask for
# crc32_generic and crc32c_generic by another name, when it is too late to load them.
MODULES = ('virtio_pci', 'virtio_console', '9pnet_virtio', '9p', 'overlay', 'crc32_generic',
           'crc32c_generic', 'ib_uverbs', 'rdma_rxe', 'veth', 'sch_netem', 'sch_tbf')


class Unavailable(Exception):
    """There is no kernel to be had here; the text says why."""


def run(*command, cwd=None):
    done = subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True,
                          timeout=300)
    if done.returncode != 0:
        raise Unavailable('%s: %s' % (' '.join(command), done.stderr.strip() or 'failed'))
    return done.stdout


def package_name():
    """The versioned package behind the distribution's names."""
    if shutil.which('apt-cache') is None or shutil.which('dpkg-deb') is None:
        raise Unavailable('this is no Debian: no kernel package to unpack')
    for attempt in ('known', 'after an update'):
        if attempt != 'known':
            run('apt-get', '-q', 'update')
        for name in PACKAGES:
            match = re.search(r'Depends: (linux-image-\d\S*)', run('apt-cache', 'depends', name))
            if match:
                return match.group(1)
    raise Unavailable('apt knows none of ' + ' '.join(PACKAGES))


def payload_of(image):
    """The kernel proper inside a bzImage, as its header (the x86 boot protocol) tells."""
    if image[0x202:0x206] != b'HdrS':
        raise Unavailable('the kernel image is no bzImage')
    setup_sectors = image[0x1f1] or 4
    offset, length = struct.unpack_from('<II', image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    return image[start:start + length]


def unpacked(image):
    """Unpacked here once instead of slowly in every machine; None: packed in another way."""
    payload = payload_of(image)
    if payload.startswith(b'\xfd7zXZ'):
        return lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(payload)
    if payload.startswith(b'\x1f\x8b'):
        return zlib.decompressobj(31).decompress(payload)
    if payload.startswith(b'\x28\xb5\x2f\xfd') and shutil.which('zstd'):
        return subprocess.run(['zstd', '-dcq'], input=payload, capture_output=True,
                              check=False).stdout or None
    return None


def module_bytes(path):
    with open(path, 'rb') as file:
        data = file.read()
    return lzma.decompress(data) if path.endswith('.xz') else data


def depends_of(data):
    match = re.search(rb'\0depends=([^\0]*)\0', data)
    return match.group(1).decode().split(',') if match and match.group(1) else []


def module_name(path):
    return re.sub(r'\.ko(\.xz)?$', '', os.path.basename(path)).replace('-', '_')


def modules_in_order(tree, wanted):
    """Contents of the wanted modules and what they depend on, those first. What is no file is taken
    for a part of the kernel itself; the machine says so if it is not."""
    paths = {module_name(p): p for p in glob.glob(tree + '/**/*.ko*', recursive=True)}
    order = {}

    def add(name):
        name = name.replace('-', '_')
        if name in order or name not in paths:
            return
        data = module_bytes(paths[name])
        for dependency in depends_of(data):
            add(dependency)
        order[name] = data

    for name in wanted:
        add(name)
    if 'rdma_rxe' not in order:
        raise Unavailable('the kernel package has no module rdma_rxe')
    return order


def fetch(folder):
    """Unpacks the package into folder, which then has `vmlinux` and `modules/NN-NAME.ko`."""
    package = package_name()
    if os.path.exists(folder):
        shutil.rmtree(folder)
    tree = os.path.join(folder, 'tree')
    os.makedirs(os.path.join(folder, 'modules'))
    # the sandbox user could not write here
    run('apt-get', '-q', '-o', 'APT::Sandbox::User=root', 'download', package, cwd=folder)
    run('dpkg-deb', '-x', glob.glob(folder + '/*.deb')[0], tree)
    with open(glob.glob(tree + '/boot/vmlinuz-*')[0], 'rb') as file:
        image = file.read()
    with open(os.path.join(folder, 'vmlinux'), 'wb') as file:
        file.write(unpacked(image) or image)
    for i, (name, data) in enumerate(modules_in_order(tree, MODULES).items()):
        with open('%s/modules/%02d-%s.ko' % (folder, i, name), 'wb') as file:
            file.write(data)
    shutil.rmtree(tree)
    for deb in glob.glob(folder + '/*.deb'):
        os.unlink(deb)
    with open(os.path.join(folder, 'complete'), 'w', encoding='utf-8') as file:
        file.write(package + '\n')
