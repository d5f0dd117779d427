#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The side of gloo: gloo_worker.py LIBRARY CONTROL SHARED SIDE, with torchrun's variables.

torch.distributed.all_reduce() on CPU tensors, in the loop of compare_worker.c (LIBRARY), which
calls back here. The way through Python is part of the time, as for every user of torch; it is some
microseconds. torch reduces in place.
"""
import ctypes
import os
import sys
import traceback

import torch
import torch.distributed as dist

KNOWS = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_char_p)
PREPARE = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p,
                           ctypes.c_size_t)
CALL = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p,
                        ctypes.c_size_t)
SENT_BYTES = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)


class Backend(ctypes.Structure):
    """struct compare_backend of compare_worker.h."""
    _fields_ = [('self', ctypes.c_void_p), ('version', ctypes.c_char_p), ('rank', ctypes.c_int),
                ('in_place', ctypes.c_bool), ('knows', KNOWS), ('prepare', PREPARE),
                ('call', CALL), ('sent_bytes', SENT_BYTES)]


class Gloo:
    """The vector of the calls that follow, as torch sees it."""

    def __init__(self):
        self.tensor = None

    def prepare(self, _, codec, recv, count):
        if codec != b'none':
            print('gloo: codec %s, allowed: none' % codec.decode(), file=sys.stderr)
            return False
        memory = (ctypes.c_float * count).from_address(recv)
        self.tensor = torch.frombuffer(memory, dtype=torch.float32)
        return True

    def call(self, *_):
        try:
            dist.all_reduce(self.tensor)
        except RuntimeError:
            traceback.print_exc()
            return False
        return True


def main():
    library, control, shared, side = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group('gloo', init_method='env://')
    gloo = Gloo()
    backend = Backend(
        None, ('gloo of torch %s' % torch.__version__).encode(), dist.get_rank(), True,
        KNOWS(lambda _, codec: codec == b'none'), PREPARE(gloo.prepare), CALL(gloo.call),
        SENT_BYTES(lambda _: -1))
    code = ctypes.CDLL(library).compare_worker_run(ctypes.byref(backend), control.encode(),
                                                   shared.encode(), side.encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # leaving gloo's group may wait for ranks that are gone


if __name__ == '__main__':
    main()
