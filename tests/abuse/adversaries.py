"""Schemas and values that are small as bytes and large as work, drawn from a grammar of what decoders and comparisons
have stumbled over: wide, deep, recursive, exponential, names that collide, numbers and counts beyond all sense.

Schemas are made as text: what makes JSON of values stops at a depth at which others still read.
"""

import base64
import json
import random
from collections.abc import Callable
from typing import Final

from google.protobuf import descriptor_pb2 as pb

from broker.wire.pulsar_pb2 import Schema

Draw = Callable[[random.Random], str]


def record(name: str, *fields: tuple[str, str]) -> str:
    """The text of a record; the fields' types are text, too."""
    inside = ",".join(f'{{"name":{json.dumps(field)},"type":{kind}}}' for field, kind in fields)
    return f'{{"type":"record","name":{json.dumps(name)},"fields":[{inside}]}}'


def wide(rng: random.Random) -> str:
    kind = rng.choice(['"null"', '["null","long"]', '"string"', '{"type":"array","items":"null"}'])
    return record("W", *((f"f{number}", kind) for number in range(rng.choice([100, 1_000, 3_000]))))


def deep(rng: random.Random) -> str:
    head, tail = rng.choice(
        [
            ('{"type":"array","items":', "}"),
            ('{"type":"map","values":', "}"),
            ('["null",', "]"),
            ('{"type":', "}"),
            ('{"type":"array","items":["null",', "]}"),
        ]
    )
    depth = rng.choice([10, 25, 60, 500, 5_000])
    return head * depth + '"null"' + tail * depth


def chain(rng: random.Random) -> str:
    """Records in records, as deep as the text is long."""
    made = record("E", ("x", '"int"'))
    for number in range(rng.choice([10, 60, 300])):
        made = record(f"C{number}", ("x", made))
    return made


def recursive(rng: random.Random) -> str:
    inner = rng.choice(['"N"', '["null","N"]', '{"type":"array","items":"N"}', '{"type":"map","values":["N","null"]}'])
    return record("N", *((f"n{number}", inner) for number in range(rng.choice([1, 2, 10, 200]))))


def exponential(rng: random.Random) -> str:
    """Each record names the next several times: without a memory of what was looked at, it takes for ever."""
    names = rng.choice([2, 2, 3, 10])
    depth = rng.choice([10, 17, 30, 40])
    made = record(f"R{depth}", ("x", rng.choice(['"int"', '"R0"'])))
    for number in reversed(range(depth)):
        fields = [("a", made), *((f"b{more}", f'"R{number + 1}"') for more in range(1, names))]
        made = record(f"R{number}", *fields)
    return made


def colliding(rng: random.Random) -> str:
    name = rng.choice(["X", "a.X", "int", "record", "__proto__", "", "a..b", "\0", "x" * 5_000, "😀", "Top"])
    one = record(name, ("f", rng.choice(['"int"', '"string"', f'"{"y" * 100}"'])))
    other = record(name, ("f", '"bytes"'), ("f", '"long"'))
    return rng.choice([f"[{one},{other}]", record("Y", ("p", one), ("q", other)), f"[{one},{one}]"])


def swollen(rng: random.Random) -> str:
    size = rng.choice([0, -1, 2**31 - 1, 2**63, 10**40])
    symbols = ",".join(f'"S{number}"' for number in range(rng.choice([0, 2, 5_000])))
    branches = ",".join(f'{{"type":"fixed","name":"F{n}","size":1}}' for n in range(rng.choice([2, 500, 3_000])))
    digits = f'"precision":{rng.choice([1, 38, 2**31])},"scale":{rng.choice([0, -1, 2**31])}'
    return rng.choice(
        [
            f'{{"type":"fixed","name":"F","size":{size}}}',
            f'{{"type":"enum","name":"E","symbols":[{symbols}]}}',
            f'{{"type":"bytes","logicalType":"decimal",{digits}}}',
            f"[{branches}]",
            f'{{"type":"string","default":{"[" * 500}{"]" * 500}}}',
            '{"type":"array","items":"null"}',
            '{"type":"map","values":"null"}',
        ]
    )


GRAMMAR: Final[tuple[Draw, ...]] = (wide, deep, chain, recursive, exponential, colliding, swollen)


def avro(rng: random.Random, number: int) -> tuple[str, str]:
    """A definition, and the same with one field more, so that one is compared with the other. *number*: of the input;
    each part of the grammar has its turn."""
    kinds = [GRAMMAR[number % len(GRAMMAR)], *rng.choices(GRAMMAR, k=rng.choice([0, 0, 1]))]
    fields = [(f"f{at}", kind(rng)) for at, kind in enumerate(kinds)]
    return record("Top", *fields), record("Top", *fields, ("more", '["null","string"]'))


def protobuf(rng: random.Random) -> tuple[bytes, bytes]:
    """Messages of which each has the next one, several times and deep, as Pulsar writes a PROTOBUF_NATIVE schema."""
    depth, fields = rng.choice([3, 25, 60, 300]), rng.choice([1, 2, 10])
    file = pb.FileDescriptorProto(name="p.proto", package="p", syntax="proto3")
    for number in range(depth):
        made = file.message_type.add(name=f"M{number}")
        following = (number + 1) % depth if rng.random() < 0.5 else min(number + 1, depth - 1)
        for field in range(fields):
            made.field.add(name=f"f{field}", number=field + 1, label=1, type=11, type_name=f".p.M{following}")
    found = []
    for more in (False, True):
        if more:
            file.message_type[0].field.add(name="more", number=fields + 1, label=1, type=9)
        descriptors = pb.FileDescriptorSet(file=[file]).SerializeToString()
        root = {"rootMessageTypeName": "p.M0", "rootFileDescriptorName": "p.proto"}
        found.append(json.dumps({"fileDescriptorSet": base64.b64encode(descriptors).decode(), **root}).encode())
    return found[0], found[1]


def schemas(rng: random.Random, number: int) -> tuple[int, bytes, bytes]:
    """Number of the type, a definition, and one that comes after it."""
    kind = rng.choice([Schema.Avro, Schema.Avro, Schema.Avro, Schema.Json, Schema.ProtobufNative, Schema.KeyValue])
    if kind == Schema.ProtobufNative:
        return kind, *protobuf(rng)
    first, second = (text.encode() for text in avro(rng, number))
    if kind == Schema.KeyValue:
        head = len(first).to_bytes(4)
        return kind, head + first + head + first, head + first + len(second).to_bytes(4) + second
    if rng.random() < 0.05:
        first = first[: rng.randrange(len(first))]
    return kind, first, second


# Pulsar's numbers, which the topic API has; the binary protocol's are its own.
NUMBERS: Final = {
    Schema.Json: 2, Schema.Protobuf: 3, Schema.Avro: 4, Schema.KeyValue: 15, Schema.ProtobufNative: 20,
}  # fmt: skip


def long(number: int) -> bytes:
    """As Avro writes it."""
    number = (number << 1 if number >= 0 else (-number << 1) - 1) & (2**64 - 1)
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))


def value(rng: random.Random) -> bytes:
    """Bytes that claim to be much, whatever the schema is."""
    pieces = [
        lambda: long(rng.choice([2**60, 2**31, -(2**62), -(2**63), 2**63 - 1, 100_000, 10_000_000])),
        lambda: b"\xff" * rng.choice([9, 10, 11, 5_000]),
        lambda: b"\x02" * rng.choice([1, 100, 5_000]),
        lambda: bytes(rng.choice([1, 16, 5_000])),
        lambda: long(-(2**40)) + long(1),
        lambda: rng.randbytes(rng.choice([1, 40, 400])),
    ]
    return b"".join(rng.choice(pieces)() for _ in range(rng.randrange(1, 6)))
