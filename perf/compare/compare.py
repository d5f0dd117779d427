#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""DSComm beside gloo (torch) and Open MPI: same data, sizes and links, in turn.

links: four ranks in four network namespaces over TCP, each link held to 1 Gbit/s both ways. slow: the
same at 100 Mbit/s, top-k beside gloo alone. Both need root, else they are left out. local: two ranks
on this machine over shared memory and TCP, unlimited.
run.sh installs and builds what this needs. docs/perf.md explains the figures.

Exit code: 0 when every figure is within its limit, 1 when one is not or a side failed, 2 bad
option.
"""
import argparse
import json
import os
import re
import signal
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
sys.dont_write_bytecode = True
import judge  # noqa: E402
import measure  # noqa: E402
import netns  # noqa: E402
import sides  # noqa: E402
import tables  # noqa: E402

DOCS = os.path.join(ROOT, 'docs')
FIGURES = os.path.join(DOCS, 'figures')
PARTS = ('links', 'slow', 'local')
UNITS = {'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}
SIZES = '4K,16K,64K,256K,1M,4M,16M,64M'
QUICK = {'sizes': '4K,256K,4M,64M', 'link_bytes': '32M', 'rounds': 3, 'link_calls': 1,
         'raw_seconds': 1, 'slow_bytes': '4M'}


def size(text):
    number, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1)
    if not number.isdigit() or not 4 <= int(number) * unit <= 1 << 31 or int(number) * unit % 4:
        raise argparse.ArgumentTypeError('%r, allowed: 4 to 2G, a multiple of 4, with K, M or G' %
                                         text)
    return int(number) * unit


def sizes_list(text):
    return sorted({size(part) for part in text.split(',')})


def positive(text):
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise argparse.ArgumentTypeError('%r, allowed: 1 to 1000' % text)
    return int(text)


def seconds(text):
    if not text.isdigit() or not 1 <= int(text) <= sides.COMMAND_MAX_S:
        raise argparse.ArgumentTypeError('%r, allowed: 1 to %d' % (text, sides.COMMAND_MAX_S))
    return int(text)


def codec_list(text):
    """By space, because specs have commas of their own."""
    codecs = text.split()
    for codec in codecs or ['']:
        if re.split('[:,]', codec)[0] not in measure.ERR_MAX:
            raise argparse.ArgumentTypeError('%r, allowed: %s, with options after a colon' %
                                             (codec, ' '.join(measure.ERR_MAX)))
    return codecs


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--build', default=os.path.join(ROOT, 'build', 'compare'),
                        help='folder of compare_dscomm and compare_mpi')
    parser.add_argument('--only', choices=PARTS, help='one part')
    parser.add_argument('--quick', action='store_true', help='under a minute, for a first look')
    parser.add_argument('--codecs', type=codec_list, default=list(measure.CODECS),
                        help='over links, in one word, by space (%s)' % ' '.join(measure.CODECS))
    parser.add_argument('--sizes', type=sizes_list, default=SIZES, help='local, by comma')
    parser.add_argument('--link-size', type=size, default='64M', dest='link_bytes')
    parser.add_argument('--link-calls', type=positive, default=3, help='per round')
    parser.add_argument('--slow-size', type=size, default='64M', dest='slow_bytes',
                        help='over the slow links, where gloo takes 9 s for it')
    parser.add_argument('--rounds', type=positive, default=7)
    parser.add_argument('--raw-seconds', type=positive, default=2, help='of iperf3 per round')
    parser.add_argument('--rate', default='1gbit', help='of each link, as tc writes it')
    parser.add_argument('--timeout', type=seconds, default=120, metavar='S',
                        help='for the calls of a side in a round')
    parser.add_argument('--json', metavar='FILE', help='write the result')
    parser.add_argument('--plots', metavar='FOLDER', help='draw plots into it')
    parser.add_argument('--from', metavar='FILE', dest='from_file',
                        help='judge a result that was written before, measure nothing')
    parser.add_argument('--write-docs', action='store_true',
                        help='tables, plots and result into docs/; needs all parts, a full run')
    args = parser.parse_args()
    if args.quick:
        parser.set_defaults(**QUICK)
        args = parser.parse_args()
    if args.write_docs and (args.quick or args.only):
        parser.error('--write-docs needs all parts of a full run, not --quick or --only')
    return args


def measured(args):
    result = {'version': 1, 'machine': measure.machine(), 'quick': args.quick, 'left_out': None,
              **dict.fromkeys(PARTS)}
    wanted = [args.only] if args.only else list(PARTS)
    problem = netns.why_not() if wanted != ['local'] else None
    if problem:
        print('compare: links are left out: ' + problem, file=sys.stderr)
        result['left_out'] = problem
        wanted = [name for name in wanted if name == 'local']
    for name in wanted:
        result[name] = measure.PARTS[name](args)
    result['machine']['busy_after'] = measure.busy_share()
    return result


def write_json(result, path):
    with open(path, 'w', encoding='utf-8') as handle:
        json.dump(result, handle, indent=1)
        handle.write('\n')


def write_page(name, text):
    """Replaces what docs/perf.md has between the marks of that name."""
    begin, end = '<!-- %s: begin -->' % name, '<!-- %s: end -->' % name
    path = os.path.join(DOCS, 'perf.md')
    with open(path, encoding='utf-8') as handle:
        page = handle.read()
    if page.count(begin) != 1 or page.count(end) != 1:
        raise netns.Failed('%s: needs one "%s" and one "%s"' % (path, begin, end))
    head, rest = page.split(begin)
    with open(path, 'w', encoding='utf-8') as handle:
        handle.write('%s%s\n%s\n%s%s' % (head, begin, text, end, rest.split(end)[1]))


def write_docs(result, text):
    """Everything that docs/perf.md shows of a run."""
    import plots  # matplotlib is not needed otherwise
    if not all(result.get(name) for name in PARTS):
        raise netns.Failed('--write-docs needs all parts: %s' % result['left_out'])
    write_json(result, os.path.join(FIGURES, 'compare.json'))
    plots.draw(result, FIGURES)
    write_page('compare', text)


def load(path):
    with open(path, encoding='utf-8') as handle:
        try:
            result = json.load(handle)
        except ValueError as error:
            raise netns.Failed('%s: %s, allowed: what --json wrote' % (path, error)) from error
    if result.get('version') != 1:
        raise netns.Failed('%s: version %r, allowed: 1' % (path, result.get('version')))
    return result


def run(args):
    result = load(args.from_file) if args.from_file else measured(args)
    figures = judge.figures_of(result)
    result['figures'] = figures
    text = tables.report(result, figures)
    print(text, end='')
    if args.json:
        write_json(result, args.json)
    if args.plots:
        import plots  # matplotlib is not needed otherwise
        plots.draw(result, args.plots)
    if args.write_docs:
        write_docs(result, text)
    return 0 if judge.all_hold(figures) else 1


def main():
    args = parse_args()
    sides.clean_environment()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # so that namespaces and ranks are removed
    try:
        return run(args)
    except (netns.Failed, OSError) as failed:
        print('compare: %s' % failed, file=sys.stderr)
        return 1


if __name__ == '__main__':
    sys.exit(main())
