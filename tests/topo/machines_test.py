#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""dscomm_info --topo on files of machines of all kinds: every value that one states is found within
10%, in one kind of rate that is named, and what it does not state stays unknown.

DSC_TEST_TOPO_DIR may name a folder of collected files (xml/, matrix/ and expected.tsv); without it
these tests are skipped."""
import argparse
import csv
import os
import re
import subprocess
import sys
import tempfile
import unittest

from machines import MACHINES, hgx, system, cpu, pci, gpu, switches, net

ARGS = argparse.Namespace()
HERE = os.path.dirname(os.path.abspath(__file__))
DEFAULT_DIR = os.path.join(HERE, '..', '..', '..', 'shared', 'topo')


def info(*words):
    return subprocess.run([ARGS.info, '--topo', *words], capture_output=True, text=True, timeout=60,
                          check=False)


def parse(stdout):
    """Summary lines by name (cards as the last), and notices."""
    summary, notices, part = {}, [], None
    for line in stdout.splitlines():
        if not line.startswith('  '):
            part = line
        elif part == 'summary':
            summary[line[2:13].strip()] = line[14:]
        elif part == 'notices':
            notices.append(line[2:])
    return summary, notices


def rate(text):
    """GB/s of a line, None where it is unknown."""
    match = re.search(r'([0-9.]+) GB/s', text)
    return float(match.group(1)) if match else None


def near(value, expected):
    return value is not None and abs(value - expected) <= 0.1 * expected


class Case(unittest.TestCase):
    def check(self, summary, expected):
        for name, value in expected.items():
            line = summary.get(name)
            self.assertIsNotNone(line, '%s in %s' % (name, summary))
            if isinstance(value, str):
                self.assertEqual(line, value)
            elif isinstance(value, tuple):
                count, gbps = value
                text = line[4:] if line.startswith('c2c ') else line
                self.assertTrue(text.startswith('%d x ' % count), line)
                self.assertNotIn(',', text)
                if gbps is None:
                    self.assertIn('unknown', text)
                else:
                    self.assertTrue(near(rate(text), gbps), '%s: %s, expected %s' % (name, line, value))
            else:
                self.assertTrue(near(rate(line), value), '%s: %s, expected %s' % (name, line, value))

    def read(self, text, *options):
        with tempfile.NamedTemporaryFile('w', suffix='.xml', newline='') as handle:
            handle.write(text)
            handle.flush()
            return info(*options, handle.name)


class Machines(Case):
    """Files from the facts."""

    def test_every_machine(self):
        for name, (text, physical, nccl, notice) in MACHINES.items():
            for kind, expected in (('physical', physical), ('nccl', dict(
                    {k: v for k, v in physical.items() if k != 'cpu to cpu' and not isinstance(
                        v, (float, int))}, **nccl))):
                with self.subTest(machine=name, kind=kind):
                    result = self.read(text, '--rates', kind)
                    self.assertEqual((result.returncode, result.stderr), (0, ''), result)
                    self.assertTrue(result.stdout.startswith(
                        'rates are physical' if kind == 'physical' else "rates are NCCL's"))
                    summary, notices = parse(result.stdout)
                    self.check(summary, expected)
                    if kind == 'nccl': # may know a rate that nothing else declares
                        continue
                    if notice is None:
                        self.assertEqual(notices, [])
                    else:
                        self.assertTrue(any(notice in n for n in notices), notices)

    def test_implausible_is_marked(self):
        for name in ('gb300_tray', 'gb10'):
            self.assertIn('implausible', parse(self.read(MACHINES[name][0]).stdout)[0]['pcie'])

    def test_measurement_wins(self):
        """A measured rate replaces a declared one that is absurd."""
        with tempfile.NamedTemporaryFile('w') as more, tempfile.NamedTemporaryFile('w') as xml:
            xml.write(MACHINES['gb300_tray'][0])
            more.write('measured gpu0 numa0 55.5 # host to device\nmeasured gpu0 gpu1 781\n')
            xml.flush()
            more.flush()
            out = info(xml.name, more.name).stdout
        self.assertIn('gpu0 - numa 0: path, 55.5 GB/s measured', out)
        self.assertIn('1 x 781 GB/s', parse(out)[0]['pair'])

    def test_drawings(self):
        for name, (text, _, _, _) in MACHINES.items():
            with self.subTest(machine=name):
                dot = self.read(text, '--dot').stdout
                self.assertTrue(dot.startswith('graph topology {') and dot.endswith('}\n'))
                self.assertEqual(dot.count('{'), dot.count('}'))
                import xml.dom.minidom
                svg = xml.dom.minidom.parseString(self.read(text, '--svg').stdout)
                self.assertEqual(svg.documentElement.tagName, 'svg')
                self.assertGreater(len(svg.getElementsByTagName('rect')), 1)


def edited(old, new, count=1):
    text = hgx(90, 5, switches([5, 5, 4, 4]), 400000, 143)
    assert old in text, old
    return text.replace(old, new, count)


class Odd(Case):
    """Edits of one clean file: refused with the reason, or read with one notice."""
    CLEAN = {'gpus': '8', 'pair': (28, 450), 'pcie': 63.02, 'nics': '8: 8 x 400 Gbit/s'}

    def accepted(self, text, notice, **changes):
        result = self.read(text)
        self.assertEqual((result.returncode, result.stderr), (0, ''), result.stderr)
        summary, notices = parse(result.stdout)
        self.check(summary, dict(self.CLEAN, **changes))
        self.assertEqual(len([n for n in notices if re.search(notice, n)]), 1, notices)
        self.assertEqual(len(notices), 1, notices)

    def refused(self, text, reason):
        result = self.read(text)
        self.assertEqual((result.returncode, result.stdout), (1, ''), result)
        self.assertEqual(result.stderr.count('\n'), 1)
        self.assertRegex(result.stderr, reason)

    def test_truncated(self):
        text = hgx(90, 5, switches([5, 5, 4, 4]), 400000, 143)
        self.refused(text[:len(text) // 2], r'\.xml:\d+: (unclosed token|no element found)')
        self.refused(text[:text.rindex('</system')], r'\.xml:\d+: no element found')
        self.refused('', 'no device in it')

    def test_long_values(self):
        self.accepted(edited('sm="90" rank="0"', 'sm="90" rank="%s"' % ('9' * 255)),
                      'rank has 255 characters')

    def test_many_attributes(self):
        extra = ''.join(' vendor%d="x"' % i for i in range(9))
        result = self.read(edited('<pci busid="0000:11:00.0"', '<pci%s busid="0000:11:00.0"' % extra))
        summary, notices = parse(result.stdout)
        self.check(summary, self.CLEAN)
        self.assertEqual(len([n for n in notices if 'unknown attribute' in n]), 8)

    def test_seventeen_attributes(self):
        names = 'class="0x030200" vendor="0x10de" device="0x1" subsystem_vendor="0x1"'
        many = ''.join(' a%02d="1"' % i for i in range(12))
        result = self.read(edited('<pci busid="0000:11:00.0" class="0x030200" vendor="0x10de"',
                                  '<pci busid="0000:11:00.0" %s%s' % (names, many)))
        self.check(parse(result.stdout)[0], self.CLEAN)
        self.assertIn('attributes, NCCL refuses more than 16', result.stdout)

    def test_many_children(self):
        nics = ''.join('<pci busid="0100:%02x:%02x.0" class="0x010802"/>\n' % (i // 32, i % 32)
                       for i in range(641))
        self.accepted(edited('  </cpu>\n', nics + '  </cpu>\n'), 'more than 640 children')

    def test_byte_order_mark(self):
        self.accepted('\ufeff' + edited('gdr', 'gdr'), 'byte order mark')

    def test_line_ends(self):
        self.accepted(edited('\n', '\r\n', -1), 'CR LF')

    def test_line_break_in_tag(self):
        self.accepted(edited('sm="90" rank="0"', 'sm="90"\n rank="0"'), 'line break between attributes')

    def test_line_break_in_value(self):
        self.accepted(edited('link_speed="32.0 GT/s PCIe"', 'link_speed="32.0 GT/s PCIe\n"'),
                      'link_speed ends in a blank or line break')

    def test_version(self):
        self.accepted(edited('version="1"', 'version="3"'), 'version 3')

    def test_counts(self):
        for count, allowed in (('-1', '-1 links'), ('0', '0 links'), ('2000', '2000 links')):
            self.accepted(edited('count="5"', 'count="%s"' % count), allowed + ' to 0000:f0', pair=None)

    def check(self, summary, expected):
        super().check(summary, {k: v for k, v in expected.items() if v is not None})

    def test_duplicate_bus_id(self):
        self.accepted(edited('busid="0000:21:00.0"', 'busid="0000:11:00.0"'), 'listed twice', gpus='7',
                      pair=(21, 450))

    def test_bad_bus_id(self):
        self.accepted(edited('busid="0000:12:00.0"', 'busid="xyz"'), 'busid "xyz"')

    def test_self_link(self):
        self.accepted(edited('<nvlink target="0000:f0:00.0" count="5"',
                             '<nvlink target="0000:11:00.0" count="1"/><nvlink target="0000:f0:00.0" '
                             'count="5"'), 'link to itself')

    def test_listed_switch(self):
        result = self.read(edited('  </cpu>\n', pci('0000:f0:00.0', 0x068000, 3, 4) + '  </cpu>\n'))
        summary, notices = parse(result.stdout)
        self.check(summary, dict(self.CLEAN, fabric='nvlink, 18 links per GPU, switch, 7 of 7 peers'))
        self.assertEqual(notices, [])

    def test_asymmetric(self):
        ids = ('0000:01:00.0', '0000:02:00.0')
        text = system(cpu(0, *(pci(ids[i], 0x030200, 4, 16, gpu(i, 86, [(ids[1 - i], 4 - i)]))
                               for i in range(2))))
        summary, notices = parse(self.read(text).stdout)
        super().check(summary, {'pair': (1, 42.2)})
        self.assertEqual(len(notices), 1)
        self.assertIn('the fewer count', notices[0])

    def test_speed_missing(self):
        for speed in ('', 'speed="0" ', 'speed="-1" ', 'speed="4294967295" '):
            with self.subTest(speed=speed):
                self.accepted(edited('speed="400000" ', speed), 'speed', nics=
                              '8: 1 x unknown, 7 x 400 Gbit/s')

    def test_unknown_names(self):
        self.accepted(edited('<gpu ', '<gpu color="red" ', -1), 'unknown attribute "color" in gpu')
        self.accepted(edited('<gpu ', '<laser power="9"><gpu/></laser><gpu ', -1),
                      'unknown element "laser"')

    def test_keep(self):
        result = self.read(edited('<gpu ', '<gpu keep="1" ', -1))
        self.assertEqual(parse(result.stdout)[1], [])

    def test_misplaced(self):
        self.accepted(edited('  <cpu ', '  <net name="x" speed="1"/>\n  <cpu '), '<net> inside <system>')

    def test_two_hosts_share_bus_ids(self):
        inside = pci('0000:01:00.0', 0x030200, 5, 16, gpu(0, 90))
        text = system(*(cpu(0, inside, facts='arch="arm64" host_hash="0x%d"' % i) for i in range(2)))
        result = self.read(text)
        self.assertEqual(parse(result.stdout)[0]['gpus'], '2')
        self.assertIn('host1', result.stdout)

    def test_no_arch(self):
        import machines
        text = re.sub(r' arch="\w+"', '', machines.perlmutter())
        summary, notices = parse(self.read(text).stdout)
        super().check(summary, dict(gpus='4', pair=(6, 100)))
        self.assertTrue(any('default tier, sys' in n for n in notices), notices)

    def test_not_a_topology(self):
        self.refused('<html/>', 'root element <html>')
        self.refused('<system version="1"/>', 'no <cpu>')
        self.refused('<!DOCTYPE a [<!ENTITY x "y">]><system version="1"/>', 'document type')
        self.refused('<system version="1">' + '<cpu>' + '<pci busid="">' * 80, 'nest deeper than 64')
        self.refused('hello\n', r':1: "hello", expected gpu, nic')
        self.refused('gpu a\0b\n', 'zero byte')


TAB_MATRIX = ('\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n'
              'GPU0\t X \tNV4\tPHB\tPIX\t0-7\t0\t\tN/A\n'
              'GPU1\tNV4\t X \tSYS\tSYS\t\t1\t\tN/A\n'
              'GPU2\tPHB\tSYS\t X \tNODE\t0-7\t0-1\t\tN/A\n'
              'NIC0\tPIX\tSYS\tNODE\t X \t\t\t\t\n\nLegend:\n\n  X    = Self\n'
              '  NV#  = Connection traversing a bonded set of # NVLinks\n\nNIC Legend:\n\n'
              '  NIC0: mlx5_7\n')


class Text(Case):
    """What nvidia-smi prints, and the plain text."""

    def run_files(self, *texts, options=()):
        with tempfile.TemporaryDirectory() as folder:
            names = []
            for i, text in enumerate(texts):
                names.append(os.path.join(folder, 't%d.txt' % i))
                with open(names[-1], 'w', encoding='utf-8') as handle:
                    handle.write(text)
            return info(*options, *names)

    def lines(self, *texts, options=()):
        result = self.run_files(*texts, options=options)
        self.assertEqual((result.returncode, result.stderr), (0, ''), result.stderr)
        return result.stdout

    def test_matrix(self):
        for text in (TAB_MATRIX, TAB_MATRIX[1:], TAB_MATRIX.expandtabs()):
            out = self.lines(text)
            self.assertIn('gpu0 - gpu1: nvlink x4, unknown', out)
            self.assertIn('gpu0 - gpu2: phb', out)
            self.assertIn('gpu2 - nic0 mlx5_7: node', out)
            self.assertIn('GPU2 is at NUMA nodes 0-1', out) if '\t' in text else None
        self.assertRegex(self.lines(TAB_MATRIX), r'numa 1\n    gpu1, fabric links 4\n')

    def test_matrix_rates(self):
        """The matrix does not tell the model."""
        self.assertEqual(parse(self.lines(TAB_MATRIX))[0]['pair'], '1 x unknown')
        for sm, gbps in ((80, 100), (86, 56.25), (100, 200)):
            out = self.lines(TAB_MATRIX, options=('--sm', str(sm)))
            self.check(parse(out)[0], {'pair': (1, gbps)})
        listing = ''.join('GPU %d: NVIDIA X (UUID: y)\n' % g + '\t Link 0: 14.062 GB/s\n' * 4
                          for g in range(2))
        out = self.lines(TAB_MATRIX, listing)
        self.check(parse(out)[0], {'pair': (1, 56.25)})
        self.assertEqual([n for n in parse(out)[1] if 'rate' in n], [])

    def test_raw_rates(self):
        for raw, payload in ((25.781, 25), (25, 25), (26.562, 25), (53.125, 50), (14.062, 14.06)):
            out = self.lines('GPU 0: NVIDIA X (UUID: y)\n\t Link 0: %g GB/s\n\t Link 1: <inactive>\n' % raw)
            self.assertIn('gpu0, fabric links 1 of %g GB/s' % payload, out)

    def test_peer_access(self):
        table = ' \tGPU0\tGPU1\t\n GPU0\tX\tGNS\t\n GPU1\tOK\tX\t\n\nLegend:\n\n  OK   = Status Ok\n'
        out = self.lines(table)
        self.assertIn('gpu0 to gpu1: peer access no', out)
        self.assertIn('gpu1 to gpu0: peer access yes', out)
        self.assertEqual(parse(out)[0]['fabric'], 'unknown')

    def test_remote_devices(self):
        text = ('GPU 0: NVIDIA X (UUID: y)\n\t Link 0: Remote Device 00000000:C5:00.0: Link 46\n'
                '\t Link 1: Remote Device 00000000:C4:00.0: Link 2\n'
                '\t Link 2: Remote Device 00000000:C4:00.0: Link 32\n')
        out = self.lines(text, options=('--sm', '90'))
        self.assertIn('gpu0 - switch 0000:c5:00.0: nvlink x1, 25 GB/s', out)
        self.assertIn('gpu0 - switch 0000:c4:00.0: nvlink x2, 50 GB/s', out)

    def test_bad_matrices(self):
        for text, reason in ((TAB_MATRIX.replace('PHB', 'NV0', 1), 'GPU0 to GPU2 is "NV0"'),
                             (TAB_MATRIX.replace('NIC0\tPIX\tSYS\tNODE\t X \t\t\t\t\n', ''),
                              '4 devices are named, 3 rows'),
                             (TAB_MATRIX.replace('GPU1\tGPU2', 'GPU1\tGPU1', 1), 'two columns'),
                             (TAB_MATRIX.replace('GPU1\tNV4\t X \tSYS\tSYS\t\t1\t\tN/A', 'GPU1\tNV4'),
                              'row GPU1 has 1 cells')):
            result = self.run_files(text)
            self.assertEqual(result.returncode, 1, result)
            self.assertIn(reason, result.stderr)

    def test_plain(self):
        out = self.lines('gpu a numa 0 bus 3:0.0 sm 90\ngpu b numa 1 # far\nnic n numa 1 gbit 100\n'
                         'link a b nvlink count 4\npcie a rate 60\nmeasured b n 11.5\n')
        self.assertIn('gpu0 0000:03:00.0 sm 90, pcie 60 GB/s, fabric links 4', out)
        self.assertIn('gpu0 - gpu1: nvlink x4, 100 GB/s', out)
        self.assertIn('nic0 n, port 100 Gbit/s', out)
        self.assertIn('gpu1 - nic0 n: path, 11.5 GB/s measured', out)

    def test_bad_plain(self):
        for text, reason in (('gpu a\nlink a c nvlink\n', ':2: "c", expected a device'),
                             ('gpu a\nlink a a nvlink\n', 'two different'),
                             ('gpu a\ngpu b\nlink a b rope\n', '"rope", expected nvlink'),
                             ('gpu a\npcie a rate 0\n', '"0", expected a rate above 0'),
                             ('gpu a\npcie a rate nan\n', '"nan", expected a rate'),
                             ('gpu a sm 12345\n', '"12345", expected a number from 30 to 999'),
                             ('gpu a gbit 3\n', '"gbit", expected numa, bus or sm'),
                             ('gpu a\nnic a\n', 'expected a name that no other'),
                             ('gpu\n', 'another number of words'),
                             ('gpu %s\n' % ('x' * 70), 'at most 12 words of 63'),
                             ('# nothing\n', 'no device in it')):
            with self.subTest(text=text):
                result = self.run_files(text)
                self.assertEqual((result.returncode, result.stdout), (1, ''), result)
                self.assertIn(reason, result.stderr)

    def test_adding(self):
        result = self.run_files('gpu a\n', system(cpu(0)))
        self.assertEqual(result.returncode, 1)
        self.assertIn('cannot be added', result.stderr)
        result = self.run_files('gpu a\n', 'GPU 7: X\n\t Link 0: 25 GB/s\n')
        self.assertIn('gpu7 is not in the topology', result.stderr)

    def test_options(self):
        for words, reason in ((('--rates', 'real'), 'physical nccl'), (('--sm', '7'), '30 to 999'),
                              (('--nonsense',), 'allowed: --dot'), (('/nonexistent',), 'opening')):
            result = info(*words)
            self.assertEqual(result.returncode, 1 if words[0][0] == '/' else 2)
            self.assertEqual(result.stderr.count('\n'), 1)
            self.assertIn(reason, result.stderr)
        self.assertIn('Usage', info('--help').stdout)


class Host(Case):
    """This machine, whatever it is."""

    def test_host(self):
        result = info()
        self.assertEqual((result.returncode, result.stderr), (0, ''), result)
        self.assertIn('host0\n', result.stdout)
        self.assertGreaterEqual(int(parse(result.stdout)[0]['cpus'].split()[0]), 1)


# ---- files that others collected; nothing here knows what is in them but their table ----

def collected():
    folder = os.environ.get('DSC_TEST_TOPO_DIR', DEFAULT_DIR)
    return folder if os.path.isdir(os.path.join(folder, 'xml')) else None


@unittest.skipIf(collected() is None, 'no DSC_TEST_TOPO_DIR')
class Collected(Case):
    """Rows of expected.tsv for the files that are there."""

    def rows(self):
        with open(os.path.join(collected(), 'expected.tsv'), encoding='utf-8') as handle:
            for row in csv.DictReader(handle, delimiter='\t'):
                path = os.path.join(collected(), 'xml', row['file'] + '.xml')
                if os.path.exists(path):
                    yield row, path

    def check_rate(self, line, text):
        """A cell is a number, a number and a word, unknown or -."""
        match = re.match(r'([0-9.]+)(?![0-9.]* or)', text)
        if match:
            self.assertTrue(near(rate(line or ''), float(match.group(1))), (line, text))
        elif text.startswith('unknown'):
            self.assertEqual(line, 'unknown')

    def check_row(self, row, path, kind):
        physical = kind == 'physical'
        result = info('--rates', kind, path)
        self.assertEqual((result.returncode, result.stderr), (0, ''), result)
        summary, notices = parse(result.stdout)
        self.assertEqual(summary['gpus'].split()[0], row['gpus'].split()[0])
        self.assertEqual(summary['cpus'].split()[0], row['cpus'].split()[0])
        links = row['fabric_links_per_gpu'].split()[0]
        if links == 'unknown':
            self.assertEqual(summary['fabric'], 'unknown')
        elif links == '0':
            self.assertEqual(summary['fabric'], 'none')
        else:
            self.assertIn(' %s links per GPU' % links, summary['fabric'])
            shape = {'pair': 'pairs', 'full': 'all pairs'}.get(row['fabric_kind'].split()[0],
                                                               row['fabric_kind'].split()[0])
            self.assertIn(shape, summary['fabric'])
        self.check_rate(summary.get('pair'), row['pair_GBps_payload' if physical else 'pair_GBps_nccl'])
        if physical or not row['pcie_min_GBps'].startswith('unknown'):
            self.check_rate(summary['pcie'], row['pcie_min_GBps' if physical else 'pcie_min_GBps_nccl'])
        else: # NCCL would make up Gen3
            self.assertEqual(summary['pcie'], 'unknown')
        self.assertEqual(summary['nics'].split()[0].rstrip(':'), row['nics'].split()[0])
        match = re.match(r'[0-9]+$', row['nic_Gbps'])
        if match:
            self.assertIn(' x %s Gbit/s' % match.group(0), summary['nics'])
        if not physical and 'cpu to cpu' in summary:
            self.check_rate(summary['cpu to cpu'], row['cpu_cpu_GBps_nccl'])
        if 'warn' in row['verdict']:
            self.assertTrue(notices)

    def test_xml(self):
        n_files = 0
        for row, path in self.rows():
            for kind in ('physical', 'nccl'):
                with self.subTest(file=row['file'], kind=kind):
                    self.check_row(row, path, kind)
            n_files += 1
        self.assertGreater(n_files, 0)

    def test_texts(self):
        folder = os.path.join(collected(), 'matrix')
        for name in sorted(os.listdir(folder)):
            with self.subTest(file=name):
                self.assertEqual(info(os.path.join(folder, name)).returncode, 0)

    def test_pairs(self):
        """NVn times what each model's links carry."""
        folder = os.path.join(collected(), 'matrix')
        for part, sm, pairs in (('1617', 90, ['6 x 150 GB/s']), ('331', 80, ['6 x 100 GB/s']),
                                ('557', 86, ['1 x 42.19 GB/s']), ('ogkm', 86, ['2 x 56.25 GB/s']),
                                ('dgx1', 70, ['8 x 25 GB/s', '8 x 50 GB/s']),
                                ('simllm', 90, ['28 x 450 GB/s']), ('hopper', 90, ['6 x 450 GB/s'])):
            for name in os.listdir(folder):
                if part in name and not name.startswith('nvlink'):
                    summary = parse(info('--sm', str(sm), os.path.join(folder, name)).stdout)[0]
                    self.assertEqual(sorted(summary['pair'].split(', ')), pairs, name)


if __name__ == '__main__':
    _parser = argparse.ArgumentParser()
    _parser.add_argument('--info', required=True, help='the program')
    _, _rest = _parser.parse_known_args(namespace=ARGS)
    unittest.main(argv=[sys.argv[0]] + _rest, verbosity=2)
