#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""codec_error: its lines, and what the codecs promise on the gradients and on made-up sets."""
import os
import sys
import unittest

import cli_support

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'docs', 'figures'))
sys.dont_write_bytecode = True
import draw_codecs  # noqa: E402

PROGRAM = 'codec_error'
AT_MOST = {'int8': .010, 'fp8': .027, 'int4': .13}  # relative error of one encode of a gradient
MODERATE, EXTREME = '1 in 100 times 10', '1 in 1000 times 1000'


class Table(unittest.TestCase):
    """Figures."""

    @classmethod
    def setUpClass(cls):
        cls.codecs, cls.sets = draw_codecs.measure(cli_support.program(PROGRAM))

    def error(self, codec, name):
        return float(self.codecs[codec][name][0])

    def test_gradients(self):
        for codec, most in AT_MOST.items():
            for name in ('lm', 'cnn'):
                self.assertLessEqual(self.error(codec, name), most, (codec, name))

    def test_hadamard(self):
        """Halves the error with moderate outliers, and does harm with extreme ones."""
        self.assertLess(2 * self.error('int4,hadamard', MODERATE), self.error('int4', MODERATE))
        self.assertGreater(self.error('int4,hadamard', EXTREME), self.error('int4', EXTREME))

    def test_every_set_of_every_codec(self):
        for codec, row in self.codecs.items():
            self.assertEqual(set(row) - {'ratio', 'e0'}, set(self.sets), codec)

    def test_lossless(self):
        for name in self.sets:
            self.assertEqual(self.codecs['fp32'][name], ('0', '1.000000', '1.00'))
            self.assertEqual(self.codecs['lossless'][name][:2], ('0', '1.000000'))

    def test_packed(self):
        """The values of int8 in fewer bytes; gradients take two thirds without any loss."""
        for name in self.sets:
            self.assertEqual(self.codecs['int8,entropy'][name][:2], self.codecs['int8'][name][:2])
        for name in ('lm', 'cnn'):
            self.assertGreater(float(self.codecs['int8,entropy'][name][2]), 5, name)
            self.assertGreater(float(self.codecs['lossless'][name][2]), 1.5, name)

    def test_page_is_complete(self):
        self.assertEqual(draw_codecs.check(self.codecs, self.sets), [])


class Options(unittest.TestCase):
    """None."""

    def test_refused(self):
        result = cli_support.run(PROGRAM, '--all')
        self.assertEqual((result.returncode, result.stdout), (2, ''))
        self.assertIn('--all', result.stderr)


if __name__ == '__main__':
    cli_support.main()
