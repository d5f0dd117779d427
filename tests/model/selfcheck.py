# SPDX-License-Identifier: Apache-2.0
"""Checks the model against itself: properties, known values and field vectors, no golden file.

Runs every function check_* of the modules below. A failed expectation prints one line; the last
line is 'N passed, N failed'.
"""
import sys

import check_calls
import check_codes
import check_collectives
import check_formats
import check_law
import check_mx
from expect import COUNTS


def main():
    for module in (check_formats, check_codes, check_mx, check_calls, check_collectives, check_law):
        for name, function in list(vars(module).items()):
            if name.startswith('check_'):
                function()
    print('%d passed, %d failed' % (COUNTS[True], COUNTS[False]))
    return 1 if COUNTS[False] else 0


if __name__ == '__main__':
    sys.exit(main())
