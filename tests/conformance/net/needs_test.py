#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""needs_test.py PLUGIN: what must be installed where NCCL loads the plugin is what the docs say."""
import re
import shutil
import subprocess
import sys

ALLOWED = {'libsodium', 'libcjson', 'libc', 'libm', 'libpthread', 'libdl', 'ld-linux-x86-64',
           'ld-linux-aarch64'}


def main():
    if shutil.which('readelf') is None:
        print('needs readelf (Debian: binutils)')
        return 77
    said = subprocess.run(['readelf', '-d', sys.argv[1]], capture_output=True, text=True, check=True)
    needed = re.findall(r'\(NEEDED\).*\[(.*?)\.so', said.stdout)
    unexpected = sorted(set(needed) - ALLOWED)
    print('needs', *sorted(needed))
    if unexpected or 'libsodium' not in needed:
        print('not allowed:', *unexpected)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
