# SPDX-License-Identifier: Apache-2.0
"""NCCL topology files of machines of all kinds, written from what is known about such machines: bus
ids and guids are invented. Each entry of MACHINES is a file and what a reader must find in it."""

INTEL = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="%d"'
AMD = 'arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"'
GEN = {1: '2.5 GT/s PCIe', 3: '8.0 GT/s PCIe', 4: '16.0 GT/s PCIe', 5: '32.0 GT/s PCIe',
       6: '64.0 GT/s PCIe'}
VIRTUAL_SWITCH = 'fffffff:ff:ff.0'


def system(*cpus, version=1):
    return '<system version="%d">\n%s</system>\n' % (version, ''.join(cpus))


def cpu(numa, *inside, facts=INTEL % 106, affinity=True):
    number = '' if numa is None else ' numaid="%d"' % numa
    mask = ' affinity="ffffffff"' if affinity else ''
    return '  <cpu%s%s %s>\n%s  </cpu>\n' % (number, mask, facts, ''.join(inside))


def pci(bus, cls, gen, width, *inside, vendor=None):
    text = ' class="0x%06x"' % cls if cls is not None else ''
    text += ' vendor="%s"' % vendor if vendor else ''
    if gen is not None:
        text += ' link_speed="%s" link_width="%d"' % (GEN.get(gen, gen), width)
    return '    <pci busid="%s"%s>\n%s    </pci>\n' % (bus, text, ''.join(inside))


def bridge(bus, gen, *inside, width=16):
    return pci(bus, 0x060400, gen, width, *inside)


def gpu(dev, sm, links=(), rank=None, extra=''):
    """links: (target, count, class), or (target, count) for another GPU."""
    inside = ''.join('        <nvlink target="%s" count="%d" tclass="0x%06x"/>\n' %
                     (link + (0x030200,) if len(link) == 2 else link) for link in links)
    return '      <gpu dev="%d" sm="%d" rank="%d" gdr="1"%s>\n%s      </gpu>\n' % (
        dev, sm, dev if rank is None else rank, extra, inside)


def amd_gpu(dev, gcn, peers, rank=None):
    inside = ''.join('        <xgmi target="%s" count="1" tclass="0x120000"/>\n' % p for p in peers)
    return '      <gpu dev="%d" sm="104" gcn="%s" arch="38911" rank="%d" gdr="1">\n%s      </gpu>\n' % (
        dev, gcn, dev if rank is None else rank, inside)


def net(name, dev, mbit, guid=None, port=1):
    return ('      <nic>\n        <net name="%s" dev="%d" speed="%d" port="%d" guid="%s" '
            'maxconn="131072" gdr="1"/>\n      </nic>\n' % (name, dev, mbit, port,
                                                             guid or '0x%x' % (0x1000 + dev)))


def bus(number):
    return '0000:%02x:00.0' % number


def rail(first, gen, dev, sm, links, mbit, name='mlx5_%d'):
    """A switch with one GPU and one NIC."""
    return bridge(bus(first), gen,
                  pci(bus(first + 1), 0x030200, gen, 16, gpu(dev, sm, links), vendor='0x10de'),
                  pci(bus(first + 2), 0x020700, gen, 16, net(name % dev, dev, mbit)))


def switches(counts):
    return [('0000:f%d:00.0' % i, n, 0x068000) for i, n in enumerate(counts)]


def hgx(sm, gen, links, mbit, model, n=8):
    rails = [rail(16 * (i + 1), gen, i, sm, links, mbit) for i in range(n)]
    return system(cpu(0, *rails[:n // 2], facts=INTEL % model),
                  cpu(1, *rails[n // 2:], facts=INTEL % model))


def socket_dump(sm, links, model):
    """A dump of a job over sockets: no RDMA device, eth0 below each CPU."""
    gpus = [bridge(bus(16 * (i + 1)), 5, pci(bus(16 * (i + 1) + 1), 0x030200, 5, 16,
                                             gpu(i, sm, links))) for i in range(8)]
    return system(*(cpu(s, *gpus[4 * s:4 * s + 4], net('eth0', 0, 10000, '0x0'),
                        facts=INTEL % model) for s in range(2)))


def perlmutter():
    ids = [bus(3), bus(0x41), bus(0x82), bus(0xc1)]
    cpus = []
    for dev, numa in enumerate((3, 0, 1, 2)):
        peers = [(ids[k], 4) for k in range(4) if k != dev]
        cpus.append(cpu(numa, pci(ids[dev], 0x030200, 4, 16, gpu(dev, 80, peers)),
                        pci(bus(0x21 + dev), 0x020000, 4, 16,
                            net('cxi%d' % dev, dev, 200000).replace('gdr=', 'net="1" gdr=')),
                        facts=AMD))
    return system(*cpus)


def cloud(gen, per_cpu, n_cpus, nic_class, facts, n_nics=None):
    """A vendor's file: kinds by class, invented switches."""
    number, nics, cpus = 0, 0, []
    for s in range(n_cpus):
        inside = []
        for _ in range(per_cpu):
            number += 1
            inside.append(pci('%04x:00:00.0' % number, 0x030200, gen, 16))
            if n_nics is None or nics < n_nics:
                nics += 1
                inside.append(pci('%04x:00:00.0' % (0x100 + number), nic_class, gen, 16))
        cpus.append(cpu(s, bridge('ffff:ff:%02x.0' % (s + 1), gen, *inside), facts=facts))
    return system(*cpus)


def p5_noclass():
    text = '<!-- a comment first -->\n<system version="1">\n'
    for s in range(2):
        text += '  <cpu numaid="%d">\n' % s
        for g in range(4):
            text += '    <pci busid="0000:%x0:00.0">\n' % (4 * s + g + 1)
            for leaf in range(4):
                text += ('      <pci busid="0000:%x%x:00.0" link_speed="32 GT/s PCIe/s" '
                         'link_width="16"/> <!-- leaf -->\n' % (4 * s + g + 1, leaf + 1))
            text += '    </pci>\n'
        text += '  </cpu>\n'
    return text + '</system>\n'


def sparse(counts):
    text, number = '<system version="1">\n', 0x10
    for s, n in enumerate(counts):
        text += '  <cpu numaid="%d">\n' % s
        for _ in range(n):
            text += '    <pci busid="0000:00:%02x.0"/>\n' % number
            number += 1
        text += '  </cpu>\n'
    return text + '</system>\n'


def pairs_no_pcie():
    cpus = []
    for i in range(4):
        inside = pci('%04x:00:00.0' % (i + 1), 0x030200, '', 0,
                     gpu(i, 80, [('%04x:00:00.0' % ((i ^ 1) + 1), 12)]))
        cpus.append(cpu(i, inside + (net('eth0', 0, 100000, '0x0') if i == 0 else ''), facts=AMD))
    return system(*cpus)


def deep_switch():
    cpus = []
    links = switches([2] * 6)
    for s in range(2):
        inside = [pci(bus(4), 0x020000, 4, 16, net('bond_0', 0, 200000))] if s == 0 else []
        for k in range(2):
            first = 0x20 + 0x60 * s + 0x20 * k
            inside.append(bridge(bus(first), 4, *(
                bridge(bus(first + 1 + 8 * j), 4, bridge(
                    bus(first + 2 + 8 * j), 4,
                    pci(bus(first + 3 + 8 * j), 0x030200, 4, 16, gpu(4 * s + 2 * k + j, 80, links))),
                       *([pci(bus(first + 4 + 8 * j), 0x020000, 4, 16,
                              net('bond_%d' % (2 * s + k + 1), 2 * s + k + 1, 200000))] if j else []))
                for j in range(2))))
        cpus.append(cpu(s, *inside))
    return system(*cpus)


def gb300():
    links = [(VIRTUAL_SWITCH, 18, 0x068000)]
    cpus = []
    for s in range(2):
        gpus = []
        for k in range(2):
            dev = 2 * s + k
            text = gpu(dev, 103, links).replace('</gpu>', '  <c2c bw="44712" count="5"/>\n      </gpu>')
            gpus.append(bridge('%04x:00:00.0' % (8 + dev), 4, bridge(
                '%04x:01:00.0' % (8 + dev), 6, pci('%04x:06:00.0' % (8 + dev), 0x030200, 6, 16, text)),
                               width=1))
        nic = pci('0000:03:00.0', 0x020700, 5, 16, net('mlx5_0', 0, 100000)) if s == 0 else ''
        cpus.append(cpu(s, *gpus, nic, facts='arch="arm64" host_hash="no-hex!"'))
    return system(*cpus)


def l20():
    cpus, dev, nic = [], 0, 0
    for s in range(2):
        inside = []
        for k in range(4):
            first = 0x10 + 0x60 * s + 0x10 * k
            inside.append(bridge(bus(first), 5, bridge(
                bus(first + 1), 5, *(pci(bus(first + 2 + j), 0x030200, 4, 16,
                                         gpu(dev + 4 * j + (dev // 4) * 4, 89, rank=2 * dev + j))
                                     for j in range(2))),
                                 pci(bus(first + 8), 0x020000, 5, 16, net('mlx5_%d' % nic, nic, 400000))))
            dev += 1
            nic += 1
        cpus.append(cpu(s, *inside, facts=INTEL % 143))
    return system(*cpus)


def plain(sm, gen, counts, nics, facts=INTEL % 106, numbers=None, nic_cpu=0):
    cpus, dev = [], 0
    for s, n in enumerate(counts):
        inside = []
        for _ in range(n):
            inside.append(pci(bus(0x10 + 0x10 * dev), 0x030000, gen, 16, gpu(dev, sm)))
            dev += 1
        cpus.append(cpu(numbers[s] if numbers else s, *inside, *(nics if s == nic_cpu else ()),
                        facts=facts))
    return system(*cpus)


def virtual_nics():
    fake = ''.join(net(name, i + 1, 10000, '0x%x' % (i + 1), 0) for i, name in enumerate(
        ['tunl0', 'br-7001', 'br-7002'] + ['cali%04x' % i for i in range(12)]))
    real = pci(bus(0x22), 0x020000, 3, 4, net('enp34s0f0', 0, 1000, '0x0', 0))
    return system(*(cpu(n, pci(bus(0x10 + 0x20 * n), 0x030000, 4, 16, gpu((0, 1, 3, 4)[n], 89, rank=n)),
                        real if n == 1 else '', fake, facts=AMD) for n in range(4)))


def docker_nics():
    one = [pci('0000:1a:00.%d' % i, 0x020000, 3, 4, net('eno%d' % (i + 1), i, 1000)) for i in range(2)]
    fake = ''.join(net(('br-%d' if i < 2 else 'veth%d') % i, 2 + i, 10000) for i in range(8))
    return plain(86, 3, (2, 2), one + [fake], facts=INTEL % 85)


def xgmi_mesh(version, order=range(8)):
    ids = ['0000:%x1:00.0' % (i + 1) for i in range(8)]
    rails = [bridge('0000:%x0:00.0' % (i + 1), 5,
                    pci(ids[i], 0x120000, 5, 16, amd_gpu(order[i], 'gfx942', [p for p in ids if p != ids[i]],
                                                         rank=i)),
                    pci('0000:%x2:00.0' % (i + 1), 0x020700, 5, 16, net('mlx5_%d' % i, i, 400000)))
             for i in range(8)]
    return system(cpu(0, *rails[:4], facts=INTEL % 143), cpu(1, *rails[4:], facts=INTEL % 143),
                  version=version)


def xgmi_partial():
    near = {0: (1, 2, 6), 1: (0, 3, 5), 2: (0, 3, 4), 3: (1, 2, 7), 4: (2, 5, 6), 5: (1, 4, 7),
            6: (0, 4, 7), 7: (3, 5, 6)}
    ids = ['0000:c%x:00.0' % i for i in range(8)]
    gpus = [pci(ids[i], 0x038000, 4, 16, amd_gpu(i, '910', [ids[p] for p in near[i]])) for i in range(8)]
    nic = bridge(bus(0x91), 4, pci(bus(0x94), 0x020000, 1, 1, net('eth0', 0, 1000, '0x0', 0)), width=4)
    return system(cpu(0, *gpus, nic, facts=AMD), version=2)


def mi60():
    def leaf(first, n, dev):
        return [bridge(bus(first + 3 * j), 3, pci(bus(first + 3 * j + 1), 0x038000, 4, 16,
                                                  amd_gpu(dev + j, '906', []))) for j in range(n)]
    parts = [bridge(bus(0x20 + 0x40 * k), 3, *leaf(0x21 + 0x40 * k, 4, 4 * k),
                    pci(bus(0x30 + 0x40 * k), 0x020700, 3, 16, net('mlx5_%d' % k, k, 100000)))
             for k in range(2)]
    return system(cpu(0, *parts, facts=INTEL % 85), version=2)


def dual_port():
    ports = [pci('0000:81:00.%d' % i, 0x020000, 3, 16, net('mlx5_%d' % i, i, 100000, '0xfeed'))
             for i in range(2)]
    return plain(89, 4, (1, 1), ports, facts=AMD, numbers=(3, 2))


def bridge_pair():
    gpus = [pci(bus(1 + i), 0x030000, 4, 16, gpu(i, 86, [(bus(2 - i), 4)])) for i in range(2)]
    return system(cpu(-1, *gpus, pci(bus(0x30), 0x020000, 3, 8, net('enp48s0', 0, 10000)),
                      affinity=False))


def h200_vm():
    return system(cpu(-1, pci('0000:05:00.0', 0x030200, 4, 16,
                              gpu(0, 90, [(VIRTUAL_SWITCH, 18, 0x068000)])),
                      pci('0000:06:00.0', 0x020700, 5, 16, net('mlx5_0', 0, 400000)),
                      facts=INTEL % 207))


def gb10():
    text = gpu(0, 121).replace('</gpu>', '  <c2c bw="69000" count="5"/>\n      </gpu>')
    nics = [pci('000%d:01:00.%d' % (2 * i, i), None, 5, 4,
                net('roce%d' % i, i, 200000).replace(' port="1"', '')) for i in range(2)]
    return system(cpu(None, pci('000f:01:00.0', None, 1, 16, text), *nics, facts='arch="arm64"',
                      affinity=False))


def trimmed():
    return system(cpu(0, pci(bus(0x41), 0x030000, 4, 16, gpu(0, 86, [(bus(0x61), 4)])),
                      facts=INTEL % 143),
                  cpu(1, net('mlx5_0+mlx5_1', 0, 200000), facts=INTEL % 143))


def parts():
    links = [(VIRTUAL_SWITCH, 36, 0x068000)]
    text = ''.join(gpu(0, 107, links, rank=i).replace(
        '</gpu>', '  <c2c bw="65767" count="6"/>\n      </gpu>') for i in range(2))
    return system(cpu(0, pci('0000:01:00.0', 0x030200, 6, 2, text), facts='arch="arm64"'))


def attr_order():
    text = system(cpu(0, rail(0x50, 3, 0, 90, switches([5, 4, 5, 4]), 400000), facts=INTEL % 143))
    return text.replace('<pci busid="0000:51:00.0" class="0x030200"', '<pci class="0x030200" busid="0000:51:00.0"')


# name: (file, lines of the summary with physical rates, lines that differ with NCCL's, a notice)
MACHINES = {
    'v100_cloud': (cloud(4, 4, 2, 0x020700, INTEL % 85, n_nics=1),
                   {'gpus': '8 (by class)', 'cpus': '2', 'fabric': 'unknown', 'pcie': 31.51,
                    'nics': '1 (by class): 1 x unknown', 'cpu to cpu': 'unknown'},
                   {'pcie': 24, 'cpu to cpu': 10}, 'fabric unknown'),
    'a100_cloud': (cloud(4, 2, 4, 0x020700, AMD),
                   {'gpus': '8 (by class)', 'cpus': '4', 'fabric': 'unknown', 'pcie': 31.51,
                    'nics': '8 (by class): 8 x unknown'}, {'pcie': 24, 'cpu to cpu': 16},
                   'fabric unknown'),
    'a100_cloud_gen3': (cloud(3, 4, 2, 0x020000, INTEL % 85, n_nics=4),
                        {'gpus': '8 (by class)', 'pcie': 15.75, 'nics': '4 (by class): 4 x unknown'},
                        {'pcie': 12, 'cpu to cpu': 10}, 'fabric unknown'),
    'h100_cloud': (cloud(5, 4, 2, 0x020700, INTEL % 143),
                   {'gpus': '8 (by class)', 'fabric': 'unknown', 'pcie': 63.02,
                    'nics': '8 (by class): 8 x unknown'}, {'pcie': 48, 'cpu to cpu': 22},
                   'fabric unknown'),
    'pcie_unknown_pairs': (pairs_no_pcie(),
                           {'gpus': '4', 'cpus': '4',
                            'fabric': 'nvlink, 12 links per GPU, pairs, 1 of 3 peers', 'pair': (2, 300),
                            'pcie': 'unknown', 'nics': '1: 1 x 100 Gbit/s'},
                           {'pair': (2, 240), 'cpu to cpu': 16}, 'PCIe rate unknown'),
    'p5_noclass': (p5_noclass(),
                   {'gpus': 'unknown (none stated, 32 devices without a class)', 'cpus': '2',
                    'fabric': 'unknown', 'pcie': 63.02, 'nics': 'unknown', 'cpu to cpu': 'unknown'},
                   {'pcie': 48}, 'states no class'),
    'sparse': (sparse((4, 5)),
               {'gpus': 'unknown (none stated, 9 devices without a class)', 'cpus': '2',
                'fabric': 'unknown', 'pcie': 'unknown', 'nics': 'unknown', 'cpu to cpu': 'unknown'},
               {}, 'states no class'),
    'sparse_one_cpu': (sparse((4,)), {'gpus': 'unknown (none stated, 4 devices without a class)',
                                      'cpus': '1', 'pcie': 'unknown', 'nics': 'unknown'}, {},
                       'states no architecture'),
    'a100_mesh': (perlmutter(),
                  {'gpus': '4', 'cpus': '4',
                   'fabric': 'nvlink, 12 links per GPU, all pairs, 3 of 3 peers', 'pair': (6, 100),
                   'pcie': 31.51, 'nics': '4: 4 x 200 Gbit/s'},
                  {'pair': (6, 80), 'pcie': 24, 'cpu to cpu': 16}, None),
    'a100_deep_switch': (deep_switch(),
                         {'gpus': '8', 'cpus': '2',
                          'fabric': 'nvlink, 12 links per GPU, switch, 7 of 7 peers',
                          'pair': (28, 300), 'pcie': 31.51, 'nics': '5: 5 x 200 Gbit/s'},
                         {'pair': (28, 240), 'pcie': 24, 'cpu to cpu': 10}, None),
    'h800_cut': (hgx(90, 5, switches([2] * 4), 400000, 143).replace('gdr="1"/>', 'gdr="1" coll="1"/>'),
                 {'gpus': '8', 'fabric': 'nvlink, 8 links per GPU, switch, 7 of 7 peers',
                  'pair': (28, 200), 'pcie': 63.02, 'nics': '8: 8 x 400 Gbit/s'},
                 {'pair': (28, 164.8), 'pcie': 48, 'cpu to cpu': 22}, None),
    'h200_sockets': (socket_dump(90, switches([5, 5, 4, 4]), 207),
                     {'gpus': '8', 'cpus': '2',
                      'fabric': 'nvlink, 18 links per GPU, switch, 7 of 7 peers', 'pair': (28, 450),
                      'pcie': 63.02, 'nics': '1: 1 x 10 Gbit/s'},
                     {'pair': (28, 370.8), 'pcie': 48, 'cpu to cpu': 40},
                     'nic eth0 is listed at several places'),
    'b200_virtual_switch': (socket_dump(100, [(VIRTUAL_SWITCH, 18, 0x068000)], 207),
                            {'fabric': 'nvlink, 18 links per GPU, switch (virtual id), 7 of 7 peers',
                             'pair': (28, 900), 'pcie': 63.02, 'nics': '1: 1 x 10 Gbit/s'},
                            {'pair': (28, 721.8), 'pcie': 48, 'cpu to cpu': 40},
                            'nic eth0 is listed at several places'),
    'gb300_tray': (gb300(),
                   {'gpus': '4', 'cpus': '2', 'gpu to cpu': (4, 223.6),
                    'fabric': 'nvlink, 18 links per GPU, switch (virtual id), 3 of 3 peers',
                    'pair': (6, 900), 'pcie': 1.97, 'nics': '1: 1 x 100 Gbit/s'},
                   {'pair': (6, 721.8), 'pcie': 1.5, 'cpu to cpu': 6, 'gpu to cpu': (4, 223.6)},
                   'implausible'),
    'l20': (l20(), {'gpus': '16', 'cpus': '2', 'fabric': 'none', 'pcie': 31.51,
                    'nics': '8: 8 x 400 Gbit/s'}, {'pcie': 24, 'cpu to cpu': 22}, None),
    'rtx3090': (plain(86, 4, (4, 4), [pci(bus(0xe0), 0x020700, 4, 16, net('mlx5_0', 0, 56000))],
                      nic_cpu=1),
                {'gpus': '8', 'fabric': 'none', 'pcie': 31.51, 'nics': '1: 1 x 56 Gbit/s'},
                {'pcie': 24, 'cpu to cpu': 10}, None),
    'virtual_nics': (virtual_nics(),
                     {'gpus': '4', 'cpus': '4', 'fabric': 'none', 'pcie': 31.51,
                      'nics': '16: 1 x 1 Gbit/s; virtual: 15 x 10 Gbit/s'},
                     {'pcie': 24, 'cpu to cpu': 16}, 'virtual'),
    'dual_port': (dual_port(),
                  {'gpus': '2', 'cpus': '2', 'fabric': 'none', 'pcie': 31.51,
                   'nics': '2: 2 x 100 Gbit/s',
                   'card': '0000:81:00.0: 2 ports share PCIe of 126 Gbit/s'},
                  {'pcie': 24, 'cpu to cpu': 16,
                   'card': '0000:81:00.0: 2 ports share PCIe of 96 Gbit/s'}, None),
    'docker_nics': (docker_nics(), {'gpus': '4', 'fabric': 'none', 'pcie': 15.75,
                                    'nics': '10: 2 x 1 Gbit/s; virtual: 8 x 10 Gbit/s'},
                    {'pcie': 12, 'cpu to cpu': 10}, 'virtual'),
    'a6000_pair': (bridge_pair(),
                   {'gpus': '2', 'cpus': '1 (no number)',
                    'fabric': 'nvlink, 4 links per GPU, pairs, 1 of 1 peers', 'pair': (1, 56.25),
                    'pcie': 31.51, 'nics': '1: 1 x 10 Gbit/s'},
                   {'pair': (1, 48), 'pcie': 24}, 'no NUMA node number'),
    'mi300x': (xgmi_mesh(2),
               {'gpus': '8', 'fabric': 'xgmi, 7 links per GPU, all pairs, 7 of 7 peers',
                'pair': (28, 64), 'pcie': 63.02, 'nics': '8: 8 x 400 Gbit/s'},
               {'pair': (28, 48), 'pcie': 48, 'cpu to cpu': 22}, None),
    'mi300x_permuted': (xgmi_mesh(2, (1, 0, 5, 3, 2, 4, 7, 6)),
                        {'fabric': 'xgmi, 7 links per GPU, all pairs, 7 of 7 peers',
                         'pair': (28, 64)}, {'pair': (28, 48)}, None),
    'mi250': (xgmi_partial(),
              {'gpus': '8', 'cpus': '1', 'fabric': 'xgmi, 3 links per GPU, partial mesh, 3 of 7 peers',
               'pair': (12, None), 'pcie': 31.51, 'nics': '1: 1 x 1 Gbit/s'},
              {'pair': (12, 36), 'pcie': 24}, 'no rate is known'),
    'mi60': (mi60(), {'gpus': '8', 'fabric': 'none', 'pcie': 15.75, 'nics': '2: 2 x 100 Gbit/s'},
             {'pcie': 12}, None),
    'h200_vm': (h200_vm(),
                {'gpus': '1', 'cpus': '1 (no number)',
                 'fabric': 'nvlink, 18 links per GPU, switch (virtual id), 0 of 0 peers',
                 'pair': (1, 450), 'pcie': 31.51, 'nics': '1: 1 x 400 Gbit/s'},
                {'pair': (1, 370.8), 'pcie': 24}, 'no NUMA node number'),
    'gb10': (gb10(), {'gpus': '1', 'cpus': '1 (no number)', 'fabric': 'none', 'gpu to cpu': (1, 345),
                      'pcie': 4.0, 'nics': '2: 2 x 200 Gbit/s'}, {'pcie': 3}, 'Gen1'),
    'trimmed': (trimmed(),
                {'gpus': '1', 'cpus': '2',
                 'fabric': 'nvlink, 4 links per GPU, other ends not listed, 0 of 0 peers',
                 'pair': 'none', 'pcie': 31.51, 'nics': '1: 1 x 200 Gbit/s'},
                {'pcie': 24, 'cpu to cpu': 22}, 'is not listed'),
    'two_parts': (parts(),
                  {'gpus': '2 on 1 devices', 'cpus': '1', 'gpu to cpu': (2, 394.6),
                   'fabric': 'nvlink, 36 links per GPU, switch (virtual id), 1 of 1 peers',
                   'pair': (1, 900), 'pcie': 14.75, 'nics': '0'},
                  {'pair': (1, 721.8), 'pcie': 12, 'gpu to cpu': (2, 394.6)}, 'share them'),
    'attribute_order': (attr_order(),
                        {'gpus': '1', 'fabric': 'nvlink, 18 links per GPU, switch, 0 of 0 peers',
                         'pair': (1, 450), 'pcie': 15.75, 'nics': '1: 1 x 400 Gbit/s'},
                        {'pair': (1, 370.8), 'pcie': 12}, None),
}
