#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Writes every golden file of this folder from the model in tests/model.

    golden.json      input vectors, messages, a few calls with each of their messages' CRC
    calls.txt        some hundred calls, one line each (tests/model/vectors.py tells the format)
    messages.txt     all payloads of golden.json, valid/ and invalid/ as lines (no JSON needed)
    host.txt         all host messages of valid/ and invalid/ as lines
    valid/*.bin      single messages, described by valid/index.json
    invalid/*.json   messages that a decoder must refuse or treat as poison

Golden files change only together with the version of the wire format.
"""
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, '..', 'model'))

import numpy as np  # noqa: E402

import case_list  # noqa: E402
import formats  # noqa: E402
import golden_messages as content  # noqa: E402
import header  # noqa: E402
import vectors  # noqa: E402
from ieee import bits_of, crc  # noqa: E402

GOLDEN_CALLS = (
    'layout=0,1,2,3 codecs=none', 'layout=0,1,2,3 codecs=int8', 'layout=0,1,2 codecs=fp16 op=avg',
    'layout=(0,1,2),(3,4,5,6) codecs=none;int8', 'layout=0,1,2 codecs=int8 algo=oneshot op=avg',
    'layout=(0,1,2),(3,4,5,6) codecs=bf16;int8 op=avg dtype=bf16 count=1023',
    'layout=((0,1,2),(3,4,5)),((6,7,8),(9,10,11)) codecs=none;fp16;int8:block=64',
    'layout=0,1,2 codecs=int8 inject=1:0:300:7fc00000,1:2:5:7f800000 chunk=512',
    'layout=(0),(1),(2),(3,4,5,6,7) codecs=int8 rdtype=bf16 count=1023',
    'layout=0,1,2 codecs=int8 shadow=0 inject=1:0:300:7fc00000 beta=0.875',
    'layout=(0,1,2),(3,4,5,6) codecs=fp16 op=max feedback=0 calls=1',
    'layout=0 codecs=int8 dtype=fp16',
)


def to_hex(values):
    return bits_of(values).astype('<u4').tobytes().hex()


def _vector_entries():
    for name, v in content.VECTORS.items():
        if name in content.GENERATED:
            seed, rank, call, count = content.GENERATED[name]
            yield name, {'generate': dict(seed=seed, rank=rank, call=call, count=count)}
        else:
            yield name, {'fp32': to_hex(v)}


def _message_entry(codec, name, exponent):
    f, x = formats.parse(codec), content.VECTORS[name]
    message = f.encode(x, exponent)
    return dict(codec=codec, vector=name, n=len(x), E=exponent, message=message.hex(),
                decoded=to_hex(f.decode(message, len(x), exponent)))


def _messages():
    return [_message_entry(*choice) for choice in content.choices()]


def _call_entry(line):
    case, _ = vectors.parse_line(line)
    results, lost, wire = vectors.evaluate(case), [], []
    for number, (_, result, _) in enumerate(vectors.run_calls(case)):
        lost.append(result.lost)
        if number == 0:
            wire = [[str(stage), rank, start + at, len(m), crc(np.frombuffer(m, np.uint8))]
                    for (stage, rank, start, at), m in sorted(result.messages.items(), key=str)]
    parameters = dict(token.split('=', 1) for token in case.text().split())
    return dict(parameters, **results, not_finite=lost, first_call_messages=wire)


def _lines(entries):
    return '[\n%s\n]' % ',\n'.join(json.dumps(e) for e in entries)


def _golden_json(messages):
    sections = (('wire_version', str(header.VERSION)), ('generator', '"tests/model/generate.py"'),
                ('vectors', json.dumps(dict(_vector_entries()))), ('messages', _lines(messages)),
                ('calls', _lines(_call_entry(line) for line in GOLDEN_CALLS)))
    return '{%s}\n' % ',\n'.join('"%s": %s' % s for s in sections)


def _valid_entry(name, codec, exponent, n, payload):
    decoded = formats.parse(codec).decode(payload, n, exponent)
    return dict(file=name + '.bin', codec=codec, n=n, E=exponent, decoded=to_hex(decoded))


def _valid_files():
    """({file name: bytes}, index entries) of payloads and host messages."""
    files, index = {}, []
    for name, codec, exponent, n, payload in content.valid_payloads():
        files[name + '.bin'] = payload
        index.append(_valid_entry(name, codec, exponent, n, payload))
    for name, h, codec, n, payload, with_crc in content.valid_host_messages():
        message = header.encode(h, payload, with_crc)
        files[name + '.bin'] = message
        fields = dict(vars(header.unpack(message[:header.HEADER_BYTES])))
        entry = dict(file=name + '.bin', header=fields)
        if codec is None:
            index.append(dict(entry, text=payload.decode()))
        else:
            index.append(dict(_valid_entry(name, codec, 0, n, payload), **entry))
    return files, index


def _payload_line(expect, e):
    return 'expect=%s codec=%s n=%d E=%d input=%s message=%s decoded=%s\n' % (
        expect, e['codec'], e['n'], e['E'], e.get('input', '-'), e['message'] or '-',
        e.get('decoded') or '-')


def _messages_txt(messages, files, index, invalid):
    out = [_payload_line('ok', dict(e, input=to_hex(content.VECTORS[e['vector']])))
           for e in messages]
    for e in index:
        if 'header' not in e:
            out.append(_payload_line('ok', dict(e, message=files[e['file']].hex())))
    return ''.join(out + [_payload_line(e['expect'], e) for e in invalid])


def _host_line(expect, field, message):
    e = content.EXPECTED
    return ('expect=%s field=%s sequence=%d hash=%016x stage=%d chunk_bytes=%s slot_bytes=%d '
            'message=%s\n') % (expect, field, e.sequence, e.descriptor_hash, e.stage,
                               ','.join(map(str, e.chunk_bytes)), e.slot_bytes, message or '-')


def _host_txt(files, index, invalid):
    ok = [_host_line('ok', '-', files[e['file']].hex()) for e in index if 'header' in e]
    return ''.join(ok + [_host_line('refuse', e['field'], e['message']) for e in invalid])


def _invalid_json(entries):
    return '{"receiver": %s,\n"cases": %s}\n' % (json.dumps(vars(content.EXPECTED)),
                                                 _lines(entries))


def build():
    """{path below this folder: bytes} of all golden files."""
    messages = _messages()
    files, index = _valid_files()
    payloads, hosts = list(content.invalid_payloads()), list(content.invalid_host_messages())
    out = {os.path.join('valid', name): data for name, data in files.items()}
    texts = {
        'golden.json': _golden_json(messages),
        'calls.txt': ''.join(vectors.complete(c) + '\n' for c in case_list.cases()),
        'messages.txt': _messages_txt(messages, files, index, payloads),
        'host.txt': _host_txt(files, index, hosts),
        os.path.join('valid', 'index.json'): _lines(index) + '\n',
        os.path.join('invalid', 'payload.json'): '{"cases": %s}\n' % _lines(payloads),
        os.path.join('invalid', 'host.json'): _invalid_json(hosts),
    }
    out.update((path, text.encode('ascii')) for path, text in texts.items())
    return out


def main():
    total = 0
    for path, data in sorted(build().items()):
        full = os.path.join(HERE, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, 'wb') as f:
            f.write(data)
        total += len(data)
    print('%d bytes written' % total)


if __name__ == '__main__':
    main()
