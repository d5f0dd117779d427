# SPDX-License-Identifier: Apache-2.0
"""Which calls are kept as golden lines, one generator per question that they answer."""
from itertools import product

from vectors import Case

FLAT = {p: ','.join(map(str, range(p))) for p in (*range(1, 10), 32, 33, 40, 70)}
L3, L4 = FLAT[3], FLAT[4]
L34 = '(0,1,2),(3,4,5,6)'
L16 = '(0),(1,2,3,4,5,6)'
L52 = '(0,1,2,3,4),(5,6)'
L1115 = '(0),(1),(2),(3,4,5,6,7)'
L223 = '((0,1,2),(3,4,5)),((6,7,8),(9,10,11))'
CROSSED = '(0,3,5),(1,2,4,6)'
WIDE_BELOW = '(%s),(34,35)' % ','.join(map(str, range(34)))
WIDE_ABOVE = ','.join('(%d)' % r for r in range(35))
UNEVEN = '((0,1),(2)),((3,4,5))'
THREE_OF_8 = '((0,1,2),(3)),((4,5),(6),(7))'

CODECS = ('none', 'fp32', 'fp16', 'bf16', 'int8', 'int8:block=16', 'int8:block=32', 'int8:block=64',
          'int8:block=128')
SMALL = ('int4', 'int4:block=16', 'int4:block=32', 'int4:block=128', 'int4:block=256', 'fp8',
         'fp8:e5m2')
MX = ('mxfp8', 'mxfp8,ceil', 'mxfp8:e5m2', 'mxfp8:e5m2,ceil', 'mxfp4', 'mxfp4,ceil', 'mxint8',
      'mxint8,ceil', 'nvfp4')
MAIN = ('none', 'fp16', 'bf16', 'int8')
NEWS = '1:0:300:7fc00000,1:2:5:7f800000'      # call 1: a NaN from rank 0, an Inf from rank 2


def every_codec():
    for c in CODECS:
        yield Case(L4, c)
        yield Case(L3, c, 'avg')
        yield Case(L34, c, calls=2)
        yield Case(L3, c, algo='oneshot', calls=2)


def sixteen_bit_data():
    for c, dtype in product(MAIN + ('fp32',), ('fp16', 'bf16')):
        yield Case(L3, c, 'sum', dtype)
        yield Case(L34, c, 'avg', dtype)
        yield Case(L3, c, 'avg', dtype, 'oneshot')
        yield Case(L34, c, 'sum', dtype, calls=2)


def layouts():
    for c in MAIN:
        yield Case(L1115, c, calls=2)
        yield Case(L223, c, calls=2)
        yield Case('0', c, dtype='bf16')
        yield Case('0', c, 'avg')
    for layout in (CROSSED, UNEVEN, '(0,1),(2,3)', '(1),(0)', '((0))'):
        yield Case(layout, 'int8', calls=2)
        yield Case(layout, 'fp16', 'avg', calls=2)


def one_codec_per_tier():
    for codecs in ('none;int8', 'bf16;int8', 'fp16;int8', 'int8;fp16', 'int8;none', 'fp32;int8',
                   'none;bf16'):
        yield Case(L34, codecs)
        yield Case(L34, codecs, 'avg', 'bf16')
    for codecs in ('none;none;int8', 'none;fp16;int8:block=64', 'int8;bf16;fp16'):
        yield Case(L223, codecs, calls=2)
        yield Case(L223, codecs, 'avg', 'fp16', calls=2)


def sizes():
    for n in (0, 1, 2, 255, 256, 257, 1023, 70001):
        yield Case(L4, 'int8', count=n, calls=2)
        yield Case(L3, 'int8', algo='oneshot', count=n, calls=2)
    for n in (0, 1, 257, 1023):
        yield Case(L34, 'none;int8', 'avg', count=n, calls=2)
        yield Case(L4, 'bf16', dtype='bf16', count=n, calls=2)
        yield Case('0', 'int8', count=n, calls=1)
    yield Case(L34, 'none;int8', count=70001, calls=2)
    yield Case(L3, 'fp16', 'avg', 'fp16', count=70001, calls=2)


def group_sizes():
    for p in range(1, 10):
        yield Case(FLAT[p], 'int8', count=3000, calls=2)
        yield Case(FLAT[p], 'none', 'avg', count=1023, calls=2)
        yield Case(FLAT[p], 'fp16', count=3000, calls=2)
        yield Case(FLAT[p], 'int8:block=64', 'avg', algo='oneshot', count=1023, calls=2)
        yield Case(FLAT[p], 'none', algo='oneshot', feedback=0, count=257, calls=2)


def wide_groups():
    yield Case(FLAT[40], 'int8', count=20000, calls=2)
    yield Case(FLAT[40], 'none', 'avg', 'bf16', count=20000, calls=2)
    yield Case(FLAT[40], 'int8', algo='oneshot', count=600, calls=2)
    yield Case(FLAT[32], 'fp16', count=9001, calls=2)
    yield Case(FLAT[33], 'fp16', count=9001, calls=2)
    yield Case(FLAT[33], 'int8', count=255, calls=2)
    yield Case(FLAT[70], 'int8', count=20011, calls=1)
    yield Case(WIDE_BELOW, 'none;int8', count=20011, calls=2)
    yield Case(WIDE_ABOVE, 'bf16;int8', 'avg', count=9001, calls=2)


def news():
    """NaN and Inf: they arrive, they poison their unit only, the residual comes back."""
    for c in MAIN:
        yield Case(L3, c, inject=NEWS)
        yield Case(L34, c, 'avg', inject=NEWS)
        yield Case(L3, c, algo='oneshot', inject=NEWS)
        yield Case(L3, c, feedback=0, inject=NEWS)
    yield Case(L34, 'none;int8', inject=NEWS)
    yield Case(L3, 'int8', dtype='bf16', inject='0:1:77:ff80,1:2:0:7fc1')
    yield Case(L3, 'none', dtype='fp16', inject='0:1:77:fc00,1:2:0:7e33')
    yield Case(L3, 'none', inject='0:0:9:7f800000,0:1:9:ff800000,1:0:0:ff812345')


def extremes():
    """Finite values that overflow somewhere, tiny blocks, -0."""
    huge = '0:0:1:7f7fffff,1:1:2:ff7fffff,1:2:300:7f000000,1:0:300:7f000000'
    for c in MAIN:
        yield Case(L3, c, inject=huge)
        yield Case(L3, c, 'avg', inject=huge)
        yield Case(L3, c, algo='oneshot', inject=huge)
    big_half = '0:0:3:7bff,0:1:3:7bff,1:0:5:7bff,2:2:5:fbff'
    yield Case(L3, 'none', dtype='fp16', inject=big_half)
    yield Case(L3, 'int8', 'avg', 'fp16', inject=big_half)
    yield Case(L3, 'fp16', dtype='bf16', inject='0:0:3:7149,1:1:9:f149')
    zeros = '0:0:0:80000000,0:1:0:80000000,0:2:0:80000000'
    tiny = ',' + ','.join('%d:%d:1:0d7fffff' % (t, q) for t in range(3) for q in range(3))
    for c in MAIN:
        yield Case(L3, c, count=2, inject=zeros + tiny)
        yield Case(L3, c, count=2, feedback=0, inject=zeros + tiny)


def feedback_options():
    for beta in (0.875, 0.1):
        yield Case(L34, 'int8', beta=beta)
        yield Case(L3, 'fp16', algo='oneshot', beta=beta)
    for c in MAIN:
        yield Case(L34, c, feedback=0)
        yield Case(L3, c, 'avg', feedback=0)
        yield Case(L3, c, feedback=0)
    for layout, codecs in ((L3, 'none'), (L34, 'none;int8'), (L3, 'int8'), ('0', 'none')):
        yield Case(layout, codecs, known_zero=1, inject='0:0:0:80000000')
        yield Case(layout, codecs, dtype='bf16', known_zero=1)


def residual_storage():
    for kind in (dict(rdtype='bf16'), dict(shadow=0)):
        for c in ('none', 'fp16', 'int8', 'int8:block=32'):
            yield Case(L3, c, **kind)
            yield Case(L3, c, inject=NEWS, **kind)
            yield Case(L34, c, 'avg', 'bf16', **kind)
            yield Case(L3, c, 'avg', 'bf16', 'oneshot', **kind)
            yield Case(L3, c, algo='oneshot', inject=NEWS, **kind)
        yield Case(L34, 'none;int8', beta=0.875, inject=NEWS, **kind)
        yield Case('0', 'int8', dtype='fp16', **kind)
    yield Case(L3, 'int8', inject='1:0:1:7f7fffff', shadow=0)
    yield Case(L3, 'none', dtype='fp16', inject='0:0:3:7bff,0:1:3:7bff', shadow=0)


def max_and_min():
    for op in ('max', 'min'):
        for c in MAIN:
            yield Case(L34, c, op, feedback=0, inject=NEWS)
        yield Case(L3, 'int8', op, algo='oneshot', feedback=0, inject=NEWS)
        yield Case(L3, 'none', op, 'bf16', feedback=0, inject='0:0:0:8000,0:1:0:8000,0:2:0:0000')
        yield Case(FLAT[33], 'none', op, 'fp16', feedback=0, calls=1)


def chunk_sizes():
    """The same bits as with whole pieces; only the padding, hence sent, may change."""
    for chunk in (256, 512, 1024):
        yield Case(L4, 'int8:block=32', chunk=chunk)
        yield Case(L34, 'none;int8', count=20011, calls=2, chunk=chunk)
        yield Case(L3, 'int8', 'avg', algo='oneshot', inject=NEWS, chunk=chunk)
        yield Case(L3, 'bf16', dtype='bf16', chunk=chunk)


def narrow_types(codecs):
    for c, dtype in product(codecs, ('fp16', 'bf16')):
        yield Case(L34, c, 'avg', dtype, calls=2)
        yield Case(L3, c, 'sum', dtype, 'oneshot', inject='0:0:3:7f80', calls=2)


def special_values(codecs):
    """Overflow, what is not finite, and the other kinds of residual."""
    huge = '0:0:1:7f7fffff,1:1:2:ff7fffff,1:2:300:7f000000,1:0:300:7f000000'
    for c in codecs:
        yield Case(L3, c, inject=huge)
        yield Case(L3, c, 'max', feedback=0, inject=NEWS, calls=2)
        yield Case(L3, c, rdtype='bf16', inject=NEWS)
        yield Case(L3, c, shadow=0, inject=NEWS)
        yield Case(L3, c, count=700, beta=0.875, chunk=256)


def small_codes():
    """int4 and fp8 where every_codec() and the others look for the older ones."""
    for c in SMALL:
        yield Case(L4, c)
        yield Case(L3, c, 'avg')
        yield Case(L34, c, calls=2)
        yield Case(L3, c, algo='oneshot', calls=2)
        yield Case(L3, c, inject=NEWS)
    yield from narrow_types(('int4', 'fp8', 'fp8:e5m2'))
    for codecs in ('none;int4', 'fp8;int4', 'int4;fp16', 'bf16;fp8:e5m2'):
        yield Case(L34, codecs, calls=2)
    yield Case(L223, 'fp8;int8;int4:block=32', 'avg', calls=2)
    for n in (1, 2, 65, 257, 1023, 20011):
        yield Case(L4, 'int4', count=n, calls=2)
        yield Case(L3, 'fp8', count=n, calls=2)
    yield from special_values(('int4', 'fp8', 'fp8:e5m2'))


def top_k():
    """As small_codes(); and pieces of more than one segment, with a bad element in one of them."""
    some = ('topk:0.01', 'topk:0.05,int8', 'topk:k=33,fp8')
    for c in some:
        yield Case(L4, c, calls=4)
        yield Case(L3, c, 'avg')
        yield Case(L34, c, 'avg', 'bf16', calls=2)
        yield Case(L3, c, 'sum', 'fp16', 'oneshot', calls=2)
        yield Case(L3, c, inject=NEWS)
        yield Case(L3, c, algo='oneshot', inject=NEWS)
        yield Case(L3, c, rdtype='bf16', inject=NEWS)
        yield Case(L3, c, shadow=0, inject=NEWS)
        yield Case(L3, c, feedback=0, calls=1)
        yield Case('0,1', c, count=200003, calls=2, inject='0:0:70000:7f800000')
    for n in (1, 2, 255, 257, 1023):
        yield Case(L4, 'topk:0.01', count=n, calls=2)
    for codecs in ('none;topk:0.01', 'topk:0.1,int8;int8', 'topk:0.05;topk:0.01'):
        yield Case(L34, codecs, count=9001)
    yield Case('0,1', 'topk:0.003', count=300001, calls=2, chunk=65536)
    yield Case(L3, 'topk:k=65536', count=1023, beta=0.875, chunk=256)
    huge = '0:0:1:7f7fffff,1:1:2:ff7fffff,1:2:300:7f000000,1:0:300:7f000000'
    zeros = '0:0:0:80000000,0:1:0:80000000,0:2:0:80000000'
    for c in some:
        yield Case(L3, c, inject=huge)
        yield Case(L3, c, inject=huge, shadow=0)
        yield Case(L3, c, count=2, feedback=0, calls=1, inject=zeros)


def positions():
    """k by the place of the sender: two-shot, rows and columns, uneven tiers, both one-shots."""
    for c in ('topk:0.01,position', 'topk:k=33,int8,position'):
        yield Case(L4, c, calls=4)
        yield Case(L3, c, 'avg', 'bf16', inject='1:0:300:7fc0')
        yield Case(L3, c, algo='oneshot', inject=NEWS)
        yield Case(L34, c, calls=2)
        yield Case(UNEVEN, c, 'avg', calls=2)
    yield Case(FLAT[9], 'topk:0.02,position', algo='oneshot', count=600, calls=2)
    yield Case(FLAT[33], 'topk:0.1,fp8,position', count=9001, calls=2)
    yield Case(L34, 'none;topk:0.05,position', count=9001, calls=2)
    yield Case('0,1', 'topk:0.003,position', count=300001, calls=2, chunk=65536, momentum=0.9)
    yield Case(L3, 'topk:k=65536,position', count=1023, calls=2)
    yield Case('0', 'topk:0.01,position', calls=2)
    for coll in ('reduce_scatter', 'all_gather'):
        yield Case(L3, 'topk:0.05,position', count=900, calls=2, coll=coll)
        yield Case(FLAT[33], 'topk:0.05,position', count=300, calls=2, coll=coll)


def reused_thresholds():
    """Segments long enough for a guess; data of very different size between calls."""
    yield Case(L3, 'topk:0.01,reuse', count=40000, calls=6, inject=NEWS)
    yield Case('0,1', 'topk:0.2,int8,position,reuse', count=200003, calls=3, momentum=0.9)
    yield Case('0,1', 'topk:0.01,reuse', algo='oneshot', dtype='bf16', count=70001, calls=4,
               inject='1:0:%d:7f00' % 69999)
    yield Case(L34, 'topk:k=5,fp8,reuse', count=40000, calls=3)


def momentum():
    """u = m*u + g of the feedback object: where top-k clears it, where a bad call restores it."""
    for c in ('topk:0.01', 'topk:0.05,int8'):
        yield Case(L4, c, calls=5, momentum=0.875)
        yield Case(L3, c, 'avg', 'bf16', calls=4, momentum=0.9, rdtype='bf16', inject='1:0:300:7fc0')
        yield Case(L3, c, algo='oneshot', calls=4, momentum=0.9, inject=NEWS)
        yield Case(L34, c, 'avg', 'fp16', calls=4, momentum=0.5, beta=0.875)
    yield Case(L34, 'topk:k=33,fp8', calls=4, momentum=0.9, inject=NEWS, known_zero=1)
    yield Case('0,1', 'topk:0.01', count=200003, calls=3, momentum=0.9, inject='1:0:70000:7f800000')
    yield Case(L3, 'topk:k=9', count=700, calls=4, momentum=0.9,
               inject='1:1:2:7f7fffff,2:1:2:7f7fffff')  # m*u + g overflows
    for c in ('int8', 'none'):
        yield Case(L3, c, calls=4, momentum=0.9, known_zero=1, inject=NEWS)
    for c in ('topk:0.05', 'int8'):
        yield Case(L3, c, count=700, calls=4, momentum=0.9, inject=NEWS, coll='reduce_scatter')
    yield Case('0', 'topk:0.01', dtype='bf16', calls=3, momentum=0.9, inject='1:0:5:7fc0')


def rotations():
    """,hadamard: groups that end early, NaN in a group, on top of each inner codec."""
    for c in ('int4,hadamard', 'int8:block=16,hadamard', 'fp8,hadamard'):
        yield Case(L4, c)
        yield Case(L34, c, 'avg', 'bf16', calls=2)
        yield Case(L3, c, algo='oneshot', inject=NEWS)
        yield Case(L3, c, shadow=0, inject=NEWS)
    for n in (1, 33, 257, 20011):
        yield Case(L3, 'int4,hadamard', count=n, calls=2)
    yield Case(L34, 'none;int4,hadamard', inject='0:0:1:7f7fffff,1:1:2:ff7fffff', calls=2)


def signed():
    """int4:signed, where a negative scale or a code -8 could go astray."""
    c = 'int4:signed'
    yield Case(L4, c)
    yield Case(L34, c, 'avg', 'bf16', calls=2)
    yield Case(L3, c, algo='oneshot', inject=NEWS)
    yield Case(L3, c, 'max', feedback=0, calls=2)
    yield Case(L3, c, count=65, shadow=0, inject='0:0:1:7f7fffff,1:1:2:ff7fffff')


def draws():
    """,sr: each element, call and rank has numbers of its own, wherever pieces and chunks are cut."""
    for c in ('int8,sr', 'int4,sr'):
        yield Case(L4, c, feedback=0)
        yield Case(L34, c, 'avg', 'bf16', feedback=0, calls=2)
        yield Case(L3, c, algo='oneshot', feedback=0, inject=NEWS)
        yield Case(L3, c, 'max', feedback=0, calls=2)
        yield Case(L4, c, feedback=0, chunk=512, seed=7)
    yield Case(L34, 'none;int4:block=32,sr', feedback=0, count=20011, calls=2)
    yield Case(FLAT[33], 'int8:block=16,sr', feedback=0, count=9001, calls=1)


def powers_of_two():
    """Formats with E8M0 scales, and nvfp4 with its segments of 65536 elements."""
    for c in MX:
        yield Case(L4, c)
        yield Case(L34, c, 'avg', calls=2)
        yield Case(L3, c, algo='oneshot', inject=NEWS)
    yield from narrow_types(('mxfp8', 'mxfp4,ceil', 'nvfp4'))
    for codecs in ('none;nvfp4', 'mxfp8;nvfp4', 'nvfp4;int8', 'mxint8;mxfp4'):
        yield Case(L34, codecs, calls=2)
    for n in (1, 17, 33, 257, 1023):
        yield Case(L4, 'mxfp4', count=n, calls=2)
        yield Case(L3, 'nvfp4', count=n, calls=2)
    yield from special_values(('mxfp8', 'mxint8,ceil', 'nvfp4'))


def segments():
    """Pieces of more than one segment; chunks are whole segments, whatever was asked for."""
    yield Case('0,1', 'nvfp4', count=140001, calls=2, chunk=65536)
    yield Case('0,1', 'nvfp4', 'avg', count=140001, calls=2, chunk=256,
               inject='1:0:300:7fc00000,1:1:69000:7f800000')
    yield Case('0,1', 'nvfp4', algo='oneshot', count=140001, calls=2, chunk=65536)
    yield Case('(0,1),(2,3)', 'nvfp4;int8', count=300001, calls=1, chunk=1024)
    yield Case('0,1', 'nvfp4', dtype='bf16', count=140001, calls=2, rdtype='bf16', chunk=256)
    yield Case('0', 'nvfp4', count=140001, calls=1, chunk=256)
def halves():
    """Reduce-scatter and all-gather: equal shares at any place, with all that concerns residuals."""
    for coll in ('reduce_scatter', 'all_gather'):
        for c in MAIN + ('fp32', 'int8:block=64', 'int4', 'fp8'):
            yield Case(L4, c, count=700, coll=coll)
            yield Case(L3, c, count=1000, inject=NEWS, coll=coll)
        for c, dtype in product(MAIN, ('fp16', 'bf16')):
            yield Case(L3, c, dtype=dtype, count=700, inject='0:0:900:7f80,1:2:9:7e00', coll=coll)
        for p in (1, 2, 9, 33):
            yield Case(FLAT[p], 'int8', count=515, calls=2, coll=coll)
        yield Case(FLAT[33], 'int8', count=515, inject='1:0:300:7fc00000', calls=2, coll=coll)
        for n in (0, 1, 255, 256, 9001):
            yield Case(L3, 'int8', count=n, calls=2, coll=coll)
        yield Case(L3, 'int8', count=1000, feedback=0, inject=NEWS, coll=coll)
        yield Case(L3, 'none', count=1000, known_zero=1, inject='0:0:0:80000000', coll=coll)
        yield Case(L3, 'int8', count=9001, beta=0.875, chunk=512, inject=NEWS, coll=coll)
        for store in (dict(rdtype='bf16'), dict(shadow=0)):
            for c in ('none', 'fp16', 'int8'):
                yield Case(L3, c, dtype='bf16', count=700, inject='1:1:300:7f80', coll=coll, **store)
                yield Case(L3, c, count=700, inject=NEWS, coll=coll, **store)
    for c, dtype in product(MAIN, ('fp32', 'bf16')):
        yield Case(L3, c, 'avg', dtype, count=700, coll='reduce_scatter')
    yield Case(L3, 'int8', 'avg', count=700, inject='0:0:1:7f7fffff', coll='reduce_scatter')
    for op in ('max', 'min'):
        yield Case(L3, 'int8', op, count=700, feedback=0, inject=NEWS, coll='reduce_scatter')


def direct():
    """Broadcast and all-to-all."""
    for c in CODECS + SMALL:
        yield Case(L4, c, count=1500, feedback=0, coll='broadcast', root=2, calls=1)
        yield Case(L4, c, count=700, coll='all_to_all')
    for c, dtype in product(MAIN, ('fp32', 'fp16', 'bf16')):
        bad = '0:0:900:7f800000' if dtype == 'fp32' else '0:0:900:7f80,1:2:9:7e00'
        yield Case(L3, c, dtype=dtype, count=1500, feedback=0, inject=bad, coll='broadcast')
        yield Case(L3, c, dtype=dtype, count=700, inject=bad, coll='all_to_all')
        yield Case(L3, c, dtype=dtype, count=700, inject=bad, shadow=0, coll='all_to_all')
        yield Case(L3, c, dtype=dtype, count=700, inject=bad, rdtype='bf16', coll='all_to_all')
    for p in (1, 2, 9, 33):
        yield Case(FLAT[p], 'int8', count=2515, feedback=0, calls=1, coll='broadcast', root=p // 2)
        yield Case(FLAT[p], 'int8', count=515, calls=2, coll='all_to_all')
    for n in (0, 1, 255, 257, 9001):
        yield Case(L4, 'int8', count=n, feedback=0, calls=1, coll='broadcast', root=3)
        yield Case(L4, 'int8', count=n, calls=2, coll='all_to_all')
    yield Case(L4, 'int8', count=9001, feedback=0, chunk=512, coll='broadcast', root=1)
    yield Case(L4, 'int8', count=9001, beta=0.875, chunk=512, coll='all_to_all')
    yield Case(L3, 'none', count=1000, known_zero=1, inject='0:0:0:80000000', coll='all_to_all')


def codes_of_others():
    """The other collectives with what the codecs of powers_of_two(), top_k() and draws() bring."""
    halves_of_sums = ('reduce_scatter', 'all_gather')
    everywhere = ('mxfp8', 'mxfp4,ceil', 'nvfp4', 'int4:signed', 'int4,hadamard')
    for coll, c in product(halves_of_sums + ('all_to_all',), everywhere):
        yield Case(L4, c, count=700, coll=coll)
        yield Case(L3, c, dtype='bf16', count=1000, inject='1:0:300:7fc0,1:2:5:7f80', calls=2,
                   coll=coll)
    for coll, c in product(halves_of_sums, ('topk:0.01', 'topk:0.05,int8')):
        yield Case(L4, c, count=700, coll=coll)
        yield Case(L3, c, count=1000, inject=NEWS, coll=coll)
        yield Case('0,1', c, count=70001, calls=2, chunk=256, coll=coll)
        yield Case(L3, c, count=1000, feedback=0, calls=1, coll=coll)
    yield Case(L3, 'topk:0.01', 'avg', count=700, coll='reduce_scatter')
    for c in everywhere:
        yield Case(L4, c, count=1500, feedback=0, coll='broadcast', root=2, calls=1)
    for coll in halves_of_sums + ('broadcast', 'all_to_all'):
        for c in ('int8,sr', 'int4,sr'):
            yield Case(L3, c, count=1000, feedback=0, calls=2, chunk=512, seed=7, coll=coll)
            yield Case(L3, c, count=1001, feedback=0, calls=1, chunk=256, coll=coll)  # odd starts
        yield Case('0,1', 'nvfp4', count=140001, feedback=0, calls=1, chunk=256, coll=coll)
    yield Case(L4, 'int8:block=16,sr', count=1500, feedback=0, calls=2, coll='broadcast', root=2)


def packed():
    """lossless and int8,entropy: the bits of none and int8, and how many bytes it took to send them."""
    for c in ('lossless', 'int8,entropy'):
        yield Case(L4, c)
        yield Case(L3, c, 'avg', calls=2)
        yield Case(L34, c, 'avg', 'bf16', calls=2)
        yield Case(L3, c, 'sum', 'fp16', 'oneshot', calls=2)
        yield Case(L3, c, inject=NEWS)
        yield Case(L3, c, algo='oneshot', inject=NEWS)
        yield Case(L3, c, rdtype='bf16', inject=NEWS)
        yield Case(L3, c, shadow=0, inject=NEWS)
        yield Case(L3, c, 'max', feedback=0, inject=NEWS, calls=2)
        yield Case('0,1', c, count=40001, calls=2, chunk=8192)
        yield Case(FLAT[9], c, algo='oneshot', count=300, calls=2)  # forwarded
    for n in (1, 2, 257, 1023):
        yield Case(L4, 'lossless', count=n, calls=2)
    for codecs in ('lossless;int8,entropy', 'none;lossless', 'int8:block=16,entropy;fp16'):
        yield Case(L34, codecs, calls=2)
    yield Case(L3, 'lossless', known_zero=1, inject='0:0:0:80000000,0:1:0:80000000,0:2:0:80000000')
    yield Case(FLAT[33], 'int8,entropy', count=9001, calls=1)
    for coll, c in product(('reduce_scatter', 'all_gather', 'all_to_all'), ('lossless', 'int8,entropy')):
        yield Case(L3, c, count=1000, inject=NEWS, coll=coll)
    for c in ('lossless', 'int8,entropy'):
        yield Case(L4, c, count=2500, feedback=0, calls=1, coll='broadcast', root=2)


def tiered():
    """What the algorithm `tiered` does with a codec: fp32 below, the codec on the slowest tier."""
    for layout in (L34, L16, L52, L1115, CROSSED):
        for c in ('int8', 'bf16', 'int4:block=32', 'topk:0.05'):
            yield Case(layout, 'fp32;' + c, calls=2)
        yield Case(layout, 'fp32;int8', 'avg', 'bf16', calls=2, inject='1:0:300:7fc0,1:2:5:7f80')
        for n in (1, 3, 257):
            yield Case(layout, 'fp32;int8', count=n, calls=2)
        yield Case(layout, 'fp32;int8', count=9001, feedback=0, calls=1, chunk=512)
    for layout in (UNEVEN, THREE_OF_8):
        for c in ('none', 'int8', 'fp8'):
            yield Case(layout, 'fp32;fp32;' + c, calls=2)
        yield Case(layout, 'fp32;fp32;int8', 'avg', 'fp16', calls=2, rdtype='bf16')
        yield Case(layout, 'fp32;fp32;int8', count=5, calls=2)
        yield Case(layout, 'fp32;fp32;int8', count=9001, calls=2, chunk=512)


def cases():
    seen = set()
    for family in (every_codec, sixteen_bit_data, layouts, one_codec_per_tier, sizes, group_sizes,
                   wide_groups, news, extremes, feedback_options, residual_storage, max_and_min,
                   chunk_sizes, small_codes, top_k, rotations, draws, signed, powers_of_two, segments,
                   halves, direct, codes_of_others, momentum,
                   positions, reused_thresholds, packed, tiered):
        for case in family():
            if case not in seen:
                seen.add(case)
                yield case
