#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The test machine itself: what a command in it gets and gives, that two RoCE devices talk over a
link that can be made lossy, and that nothing is left behind."""
import glob
import os
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
RUN = os.path.join(HERE, 'run.py')


def vm(*args, **kwargs):
    return subprocess.run([sys.executable, RUN, *args], check=False, capture_output=True,
                          text=True, timeout=280, **kwargs)


def shell(script, *options):
    return vm(*options, '--', 'sh', '-c', script)


def command_lines():
    for path in glob.glob('/proc/[0-9]*/cmdline'):
        try:
            with open(path, errors='replace', encoding='utf-8') as file:
                yield file.read()
        except OSError:
            pass  # it has ended


# A server on one device, a client on the other; the client's result is the script's. The server is
# not waited for: one whose last acknowledgement was lost may never learn that the client has ended.
PING_PONG = '''{before}
timeout 90 ibv_rc_pingpong -d rxe1 -g 1 -n {rounds} -c >/dev/null &
until grep -q :4853 /proc/net/tcp; do # 18515, the server's port
    kill -0 $! || exit 2
    sleep 0.1
done
timeout 60 ibv_rc_pingpong -d rxe0 -g 1 -n {rounds} -c 127.0.0.1 || exit 1
kill $!
tc -s qdisc show dev veth0
'''


class Command(unittest.TestCase):
    def test_exit_code_and_both_outputs(self):
        done = shell('echo out; echo err >&2; exit 9')
        self.assertEqual((done.returncode, done.stdout, done.stderr), (9, 'out\n', 'err\n'))

    def test_a_signal_is_an_exit_code(self):
        self.assertEqual(shell('kill -KILL $$').returncode, 128 + 9)

    def test_folder_and_environment_are_the_callers(self):
        with tempfile.TemporaryDirectory() as folder:
            done = vm('--', 'sh', '-c', 'pwd; echo $WORD $DSC_VM', cwd=folder,
                      env=dict(os.environ, WORD='a b'))
            self.assertEqual(done.stdout, folder + '\na b 1\n')

    def test_the_hosts_files_are_seen_and_kept(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, 'file')
            with open(path, 'w', encoding='utf-8') as file:
                file.write('before')
            done = shell('cat %s; echo after >%s; cat %s' % (path, path, path))
            self.assertEqual(done.stdout, 'beforeafter\n')
            with open(path, encoding='utf-8') as file:
                self.assertEqual(file.read(), 'before')

    def test_the_clock_is_right(self):
        self.assertAlmostEqual(int(shell('date +%s').stdout), time.time(), delta=5)

    def test_much_output_arrives_whole(self):
        done = shell('seq 200000')
        self.assertEqual(done.stdout.split(), [str(i + 1) for i in range(200000)])

    def test_memory_that_may_be_locked(self):
        self.assertEqual(shell('ulimit -l', '--memlock', '65536').stdout, '64\n')

    def test_time_runs_out(self):
        start = time.monotonic()
        done = shell('echo began; sleep 100', '--timeout=-58')  # of 60 s for the machine itself
        self.assertEqual((done.returncode, done.stdout), (124, 'began\n'))
        self.assertLess(time.monotonic() - start, 20)

    def test_nothing_is_left_even_when_it_is_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            with subprocess.Popen([sys.executable, RUN, 'sh', '-c', 'echo on; sleep 100'],
                                  stdout=subprocess.PIPE,
                                  env=dict(os.environ, TMPDIR=folder)) as process:
                self.assertEqual(process.stdout.read(3), b'on\n')
                process.terminate()
            self.assertEqual(os.listdir(folder), [])
            self.assertNotIn(folder, ' '.join(command_lines()))

    def test_a_missing_emulator_is_a_skip_with_the_reason(self):
        with tempfile.TemporaryDirectory() as folder:
            done = vm('true', env=dict(os.environ, PATH=folder))
            self.assertEqual(done.returncode, 77)
            self.assertIn('package qemu-system-x86', done.stderr)


class Rdma(unittest.TestCase):
    def test_two_active_devices(self):
        done = shell('cat /sys/class/infiniband/rxe[01]/ports/1/state')
        self.assertEqual(done.stdout, '4: ACTIVE\n' * 2)

    def test_data_crosses_the_link(self):
        done = shell(PING_PONG.format(before='', rounds=100))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('100 iters', done.stdout)

    def test_a_lossy_link_loses_and_data_arrives(self):
        loss = 'tc qdisc add dev veth0 root netem loss 10%'
        done = shell(PING_PONG.format(before=loss, rounds=200))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r'dropped [1-9]')

    def test_the_links_mtu(self):
        done = shell('ibv_devinfo -d rxe0', '--mtu', '1500')
        self.assertRegex(done.stdout, r'active_mtu:\s+1024')


if __name__ == '__main__':
    prepared = vm('--prepare')
    if prepared.returncode == 77:
        print(prepared.stderr)
        sys.exit(77)
    unittest.main()
