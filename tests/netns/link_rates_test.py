#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""link_perf over a link of a known rate: two namespaces, 1 Gbit/s between them.

What it says must be within 10% of what the link carries of TCP payload; so must what two ranks on
each end get each, half of that. Exit code 77 where namespaces cannot be had.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'perf'))
sys.dont_write_bytecode = True
import netns  # noqa: E402

LIMIT = 0.10
PORT = 29620
# Of 1514 bytes on a link 1448 are payload: the rest is Ethernet, IP and TCP with timestamps.
PAYLOAD = 125e6 * 1448 / 1514


def measure(net, program, hosts, folder):
    """One run with a rank on each of `hosts`, numbers of namespaces; the profile's rates."""
    path = os.path.join(folder, 'profile.json')
    ranks = []
    for rank, host in enumerate(hosts):
        env = {'RANK': str(rank), 'WORLD_SIZE': str(len(hosts)), 'MASTER_ADDR': net.address(0),
               'MASTER_PORT': str(PORT), 'DSCOMM_SOCKET_IFNAME': 'eth0',
               'DSCOMM_HOST_ID': 'host%d' % host}
        words = [program, '-B', '3000', '-T', '30', '-o', path]
        ranks.append(net.start(host, words, env, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    netns.wait_for(net, ranks, 60, 'link_perf')
    with open(path, encoding='utf-8') as handle:
        return json.load(handle)['rates']


def judge(what, value, expected):
    """Prints a line; False: too far off."""
    off = value / expected - 1
    print('%-40s %6.1f MB/s, expected %6.1f: %+.1f%%' % (what, value / 1e6, expected / 1e6, 100 * off))
    return abs(off) <= LIMIT


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--program', required=True, help='link_perf')
    args = parser.parse_args()
    reason = netns.why_not()
    if reason is not None:
        print('skipped: ' + reason)
        return 77
    net = netns.Network(2, '1gbit')
    try:
        with tempfile.TemporaryDirectory() as folder:
            one = measure(net, args.program, [0, 1], folder)['tiers'][-1]
            two = measure(net, args.program, [0, 0, 1, 1], folder)['tiers']
    finally:
        net.close()
    good = [judge('one rank per host, alone', one['bytes_per_s_alone'], PAYLOAD),
            judge('one rank per host, both ways', one['bytes_per_s'], PAYLOAD),
            judge('two ranks per host, one of them alone', two[-1]['bytes_per_s_alone'], PAYLOAD),
            judge('two ranks per host, all at once', two[-1]['bytes_per_s'], PAYLOAD / 2)]
    fast = two[0]['kind'] == 'host' and two[0]['bytes_per_s'] > 5 * two[1]['bytes_per_s']
    print('within a host: %s, %.1f GB/s' % (two[0]['kind'], two[0]['bytes_per_s'] / 1e9))
    return 0 if all(good) and fast else 1


if __name__ == '__main__':
    sys.exit(main())
