#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What `auto` chooses on two hosts, beside everything that it could have chosen.

Two hosts of two ranks each: four network namespaces, told apart by DSCOMM_HOST_ID. Ranks of a host
talk over shared memory and have the same half of the CPUs; hosts talk over links of 1 Gbit/s, 10
Gbit/s and as fast as the machine copies. For each kind of link, in this order:

    link_perf    measures both tiers and writes a profile
    dscomm_tune  predicts the time of every setting from it, before anything runs
    the sweep    every setting in turn with `auto`, which reads the same profile; on 1 Gbit/s gloo

Exit code: 0 when every figure is within its limit, 1 when one is not or a side failed, 2 bad
option, 77 where it cannot run: not root, a tool is missing, no namespaces.
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
sys.dont_write_bytecode = True
import compare  # noqa: E402
import judge  # noqa: E402
import measure  # noqa: E402
import netns  # noqa: E402
import sides  # noqa: E402
import tables  # noqa: E402

HOSTS = ('A', 'A', 'B', 'B')
# Longest packets. Shorter ones let less pass on the shaper's credit, but only at 1 Gbit/s the CPUs have
# the time to send them: at 10 they halve the rate.
RATES = {'1gbit': 32768, '10gbit': 65536, 'unshaped': 65536}
ALGORITHMS = ('oneshot', 'twoshot', 'tiered')
CHUNKS = (129024, 257024)  # bytes; the second is the default
CODECS = ('none', 'bf16', 'int8', 'fp8')  # what the budget of `auto`, balanced, admits
EXTRA = 'int4:signed'  # tiered alone: beyond the budget
SIZES = '64K,1M,16M,64M'
SHOWN = 4  # settings of a size in the table; the JSON has all
AUTO_RATIO, AUTO_US = 1.10, 50.0  # auto may take so much longer than the best of the sweep
SIM_ERROR = {'small': 0.30, 'large': 0.15}  # of a prediction, below and from 1 MiB
TIERED_OVER_GLOO = {'int8': (5.0, 7.0), EXTRA: (5.0, 8.0)}
GLOO_BYTES = 64 << 20


def setting_name(algorithm, chunk):
    return '%s-%dK' % (algorithm, chunk >> 10)


def settings():
    """Sides of the sweep by name: how each is run."""
    return {setting_name(algorithm, chunk): (algorithm, chunk)
            for algorithm in ALGORITHMS for chunk in CHUNKS}


def environment(algorithm, chunk):
    return {'DSCOMM_ALGORITHM': algorithm, 'DSCOMM_CHUNK_BYTES': str(chunk)}


def program(args, name):
    return os.path.join(args.programs, name)


def run_link_perf(net, args, path):
    """A profile of the links as they are now."""
    port = str(sides.free_port())
    ranks = []
    for rank, host in enumerate(HOSTS):
        env = {'RANK': str(rank), 'WORLD_SIZE': str(len(HOSTS)), 'MASTER_ADDR': net.address(0),
               'MASTER_PORT': port, 'DSCOMM_SOCKET_IFNAME': 'eth0', 'DSCOMM_HOST_ID': host}
        ranks.append(net.start(rank, [program(args, 'link_perf'), '-o', path], env,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE))
    netns.wait_for(net, ranks, 120, 'link_perf')


def table_of(args, profile, n_bytes):
    """Every candidate of the tuner with its expected time, from the profile alone."""
    words = [program(args, 'dscomm_tune'), '--explain', '--profile', profile, '--nodes', '2',
             '--local', '2', '--size', str(n_bytes), '--budget', 'aggressive', '--json']
    found = json.loads(netns.sh(*words))
    return (found[0] if isinstance(found, list) else found)['options']


def predicted_us(options, codec, algorithm, chunk, n_elems):
    """Of the candidate that is most like a setting; None: there is none. Chunks that hold all of
    the vector are alike."""
    like = [o for o in options if (o['codec'], o['shape']) == (codec, algorithm) and o['total_ns']]
    if not like:
        return None
    wanted = min(chunk // 4, n_elems)
    return min(like, key=lambda o: abs(min(o['chunk_elems'], n_elems) - wanted))['total_ns'] / 1e3


def predictions(args, profile):
    rows = []
    for n_bytes in args.sizes:
        options = table_of(args, profile, n_bytes)
        for name, (algorithm, chunk) in settings().items():
            for codec in codecs_of(algorithm):
                expected = predicted_us(options, codec, algorithm, chunk, n_bytes // 4)
                if expected is not None:
                    rows.append({'side': name, 'codec': codec, 'bytes': n_bytes, 'us': expected})
    return rows


def codecs_of(algorithm):
    return CODECS + ((EXTRA,) if algorithm == 'tiered' else ())


def jobs_for(n_bytes, rate):
    jobs = [(name, codec) for name, (algorithm, _) in settings().items()
            for codec in codecs_of(algorithm)]
    jobs.append(('auto', 'auto'))
    if rate == '1gbit' and n_bytes == GLOO_BYTES:
        jobs.append(('gloo', 'none'))
    return jobs


def starters(rate, profile):
    found = {name: sides.dscomm('auto', environment(*how), HOSTS)
             for name, how in settings().items()}
    found['auto'] = sides.dscomm('auto', {'DSCOMM_PROFILE': profile, 'DSCOMM_LOG_LEVEL': 'info'},
                                 HOSTS)
    if rate == '1gbit':
        found['gloo'] = sides.gloo
    return found


def decisions(stage):
    """What auto says that it chose, line by line."""
    with open(stage.sides['auto'].log, encoding='utf-8', errors='replace') as handle:
        return [line.strip() for line in handle if re.search(r'\bauto\b', line)]


def cpus_of_ranks():
    """Each host's part of the CPUs; None: there are too few."""
    usable = sorted(os.sched_getaffinity(0))
    hosts = sorted(set(HOSTS))
    share = len(usable) // len(hosts)
    parts = {host: usable[i * share:(i + 1) * share] for i, host in enumerate(hosts)}
    return [','.join(map(str, parts[host])) for host in HOSTS] if share else None


def measure_case(args, rate):
    net = netns.Network(len(HOSTS), None if rate == 'unshaped' else rate, cpus_of_ranks(),
                        RATES[rate])
    rows = []
    with sides.Stage(net, args.build, len(HOSTS), args.timeout) as stage:
        profile = os.path.join(stage.folder, 'profile.json')
        run_link_perf(net, args, profile)
        predicted = predictions(args, profile)
        measure.start(stage, starters(rate, profile))
        for n_bytes in args.sizes:
            measure.say('%d bytes, links %s' % (n_bytes, rate))
            rows += measure.alternate(stage, jobs_for(n_bytes, rate), n_bytes,
                                      *shape_of_calls(n_bytes, args.rounds))
        said = decisions(stage)
        with open(profile, encoding='utf-8') as handle:
            measured_links = json.load(handle)
    return {'rate': rate, 'rows': rows, 'predicted': predicted, 'decisions': said,
            'profile': measured_links}


def shape_of_calls(n_bytes, rounds):
    """Rounds, calls to warm up, timed calls per round. Two at least to warm up: a job begins with
    a new residual, whose two vectors change places, so it takes two calls to touch both."""
    n_calls = max(2, min(50, (16 << 20) // n_bytes))
    return rounds, max(2, n_calls // 4), n_calls


# ---- figures ----

def best_of_sweep(case, n_bytes):
    rows = [row for row in case['rows'] if row['bytes'] == n_bytes and
            row['side'] not in ('auto', 'gloo') and row['codec'] in CODECS]
    return min(rows, key=lambda row: row['median_us'])


def auto_figures(case):
    for n_bytes in judge.sizes_of(case):
        best = best_of_sweep(case, n_bytes)
        auto = judge.row_of(case, 'auto', 'auto', n_bytes)
        limit = max(AUTO_RATIO, 1 + AUTO_US / best['median_us'])
        yield judge.figure('%s, %s: auto / best (%s %s)' %
                           (case['rate'], tables.size_text(n_bytes), best['side'], best['codec']),
                           auto['median_us'] / best['median_us'], True, limit)


def sim_error(case, row):
    for guess in case['predicted']:
        if all(guess[key] == row[key] for key in ('side', 'codec', 'bytes')):
            return guess['us'] / row['median_us'] - 1
    return None


def sim_figures(case):
    """The error of predictions: the median and the worst of all settings."""
    for name, limit in SIM_ERROR.items():
        errors = [abs(sim_error(case, row)) for row in case['rows']
                  if sim_error(case, row) is not None and
                  (row['bytes'] >= 1 << 20) == (name == 'large')]
        if errors:
            yield judge.figure('%s: prediction, %s, median error' %
                               (case['rate'], '>= 1 MiB' if name == 'large' else '< 1 MiB'),
                               statistics.median(errors), True, limit)
            yield judge.figure('%s: prediction, %s, worst error' %
                               (case['rate'], '>= 1 MiB' if name == 'large' else '< 1 MiB'),
                               max(errors), True, limit)


def gloo_figures(case):
    gloo = judge.row_of(case, 'gloo', 'none', GLOO_BYTES)
    if gloo is None:
        return
    for codec, (passes, goal) in TIERED_OVER_GLOO.items():
        rows = [row for row in case['rows'] if row['side'].startswith('tiered') and
                (row['codec'], row['bytes']) == (codec, GLOO_BYTES)]
        best = min(row['median_us'] for row in rows)
        yield judge.figure('%s, 64 MiB: flat gloo fp32 / tiered %s' % (case['rate'], codec),
                           gloo['median_us'] / best, False, passes, goal)


def figures_of(result):
    return [f for case in result['cases']
            for part in (auto_figures, sim_figures, gloo_figures) for f in part(case)]


# ---- the table ----

def shown(rows):
    """The fastest settings, and whom everybody asks about."""
    fastest = sorted(rows, key=lambda row: row['median_us'])
    flat = [row for row in fastest if row['side'].startswith('twoshot') and row['codec'] == 'none']
    return [row for row in fastest if row in fastest[:SHOWN] or row in flat[:1] or
            row['side'] in ('auto', 'gloo')]


def case_table(case):
    rows = []
    for n_bytes in judge.sizes_of(case):
        for row in shown([row for row in case['rows'] if row['bytes'] == n_bytes]):
            error = sim_error(case, row)
            rows.append([tables.size_text(n_bytes), row['side'], row['codec'],
                         tables.time_text(row['median_us']),
                         '-' if error is None else '%+.0f %%' % (100 * error), '%.1e' % row['err']])
    return tables.table(['size', 'setting', 'codec', 'time', 'prediction off by', 'err'], rows)


def choices(case):
    """What auto chose for each size, by its own words; rank 0's, the others say the same. What
    --write-docs keeps has none."""
    pattern = r'0/\d+ TUNE INFO auto: count (\d+) [^:]*: (.*)'
    found = [re.search(pattern, line) for line in case.get('decisions', [])]
    return '\n'.join('- %s: %s' % (tables.size_text(4 * int(match.group(1))), match.group(2))
                     for match in found if match)


def report(result):
    parts = ['%d cores (%s), Linux %s. Others used %.0f%% of the cores before and %.0f%% after.' % (
        result['machine']['cores'], result['machine']['cpu'], result['machine']['kernel'],
        100 * result['machine']['busy_before'], 100 * result['machine']['busy_after'])]
    for case in result['cases']:
        parts += ['Links: %s. `auto` said:' % tables.rate_text(case['rate']), choices(case),
                  case_table(case)]
    return '\n\n'.join(parts + [tables.figure_table(result['figures'])]) + '\n'


# ---- the program ----

def parse_args():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--build', default=os.path.join(ROOT, 'build', 'compare'),
                        help='folder of compare_dscomm')
    parser.add_argument('--programs', default=os.path.join(ROOT, 'build', 'release', 'perf'),
                        help='folder of link_perf and dscomm_tune')
    parser.add_argument('--rate', action='append', choices=RATES, help='repeat for more (all)')
    parser.add_argument('--sizes', type=compare.sizes_list, default=SIZES)
    parser.add_argument('--rounds', type=compare.positive, default=5)
    parser.add_argument('--timeout', type=compare.seconds, default=120, metavar='S',
                        help='for the calls of a side in a round')
    parser.add_argument('--json', metavar='FILE', help='write the result')
    parser.add_argument('--from', metavar='FILE', dest='from_files', action='append',
                        help='judge results that were written before; repeat for more links')
    parser.add_argument('--write-docs', action='store_true', help='tables and result into docs/')
    args = parser.parse_args()
    args.rate = args.rate or list(RATES)
    return args


def why_not(args):
    """Why this machine cannot do it, or None."""
    for path in (os.path.join(args.build, 'compare_dscomm'), program(args, 'link_perf'),
                 program(args, 'dscomm_tune')):
        if not os.access(path, os.X_OK):
            return 'needs %s: perf/compare/run.sh tiers builds it' % path
    return netns.why_not()


def measured(args):
    result = {'version': 1, 'machine': measure.machine(),
              'cases': [measure_case(args, rate) for rate in args.rate]}
    result['machine']['busy_after'] = measure.busy_share()
    return result


def loaded(paths):
    """One result of several, of different links."""
    results = [compare.load(path) for path in paths]
    return {**results[0], 'cases': [case for result in results for case in result['cases']]}


def run(args):
    result = loaded(args.from_files) if args.from_files else measured(args)
    result['figures'] = figures_of(result)
    print(report(result), end='')
    if args.json:
        compare.write_json(result, args.json)
    if args.write_docs:
        compare.write_page('tiers', report(result))
        for case in result['cases']:
            del case['profile'], case['decisions']  # long, and in the tables as far as they matter
        compare.write_json(result, os.path.join(compare.FIGURES, 'tiers.json'))
    return 0 if judge.all_hold(result['figures']) else 1


def main():
    args = parse_args()
    sides.clean_environment()
    problem = None if args.from_files else why_not(args)
    if problem:
        print('tiers: skipped: ' + problem, file=sys.stderr)
        return 77
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # so that namespaces and ranks are removed
    try:
        return run(args)
    except (netns.Failed, OSError) as failed:
        print('tiers: %s' % failed, file=sys.stderr)
        return 1


if __name__ == '__main__':
    sys.exit(main())
