"""Hostile inputs, drawn from the grammars: protobuf messages by their descriptors, entries, JSON, paths, damage.

A seeded generator and no search: what the values are is decided here, by what such fields mean (ids, sizes, counts,
names), and not by coverage. The same seed draws the same inputs.
"""

import json
import random
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from tests.support.batches import plain_batch
from tests.support.damage import damaged

M = TypeVar("M", bound=Message)

NUMBERS: Final = (
    0, 1, 2, 3, 7, 64, 1_000, 65_535, 65_536, 1_000_000, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63,
    2**64 - 1, -1, -2, -(2**31), -(2**63),
)  # fmt: skip

NAMES: Final = (
    "", "t", "s", "public", "public/default", "persistent://public/default/t", "public/default/t-partition-1",
    "persistent://public/default/t-partition-999999999", "non-persistent://public/default/t", "persistent://a/b/c/d",
    "://", "persistent://", "persistent://public/../t", "..", "../../..", "/", "//", "a/b", "%2F", "%2e%2e", "\0", "\n",
    "t\r\nX-Injected: 1", "x" * 300, "x" * 5_000, "😀", "\ud7ff", "pulsar.dedup", "__compaction", "pulsar.repl.x",
    "__change_events", "persistent://pulsar/system/transaction_coordinator_assign", "(a+)+$", ".*" * 25, "NaN",
)  # fmt: skip

INT_LIMITS: Final = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64),
}

Known = Mapping[str, Callable[[random.Random], Any]]
"""Field → what it mostly is, so that an input gets further than the first check."""


def number(rng: random.Random, low: int, high: int) -> int:
    """Of low … high-1."""
    chosen = rng.choice(NUMBERS) if rng.random() < 0.7 else rng.randrange(-5, 100)
    return chosen if low <= chosen < high else rng.randrange(5)


def text(rng: random.Random) -> str:
    return rng.choice(NAMES)


def octets(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice([0, 1, 4, 20, 21, 100, 3_000]))


def message(rng: random.Random, kind: type[M], known: Known, depth: int = 0) -> M:
    """A message of *kind* with some of its fields set, each to something that it may be in the encoding."""
    made = kind()
    for field in kind.DESCRIPTOR.fields:
        if rng.random() < (0.05 if field.is_required else 0.6):
            continue
        count = rng.choice([0, 1, 2, 3, 40]) if field.is_repeated else 1
        for _ in range(count):
            _set(rng, made, field, known, depth)
    return made


def _set(rng: random.Random, made: Message, field: Any, known: Known, depth: int) -> None:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        if field.message_type.GetOptions().map_entry or depth > 3:
            return
        inner = getattr(made, field.name)
        kind = GetMessageClass(field.message_type)
        if field.is_repeated:
            inner.append(message(rng, kind, known, depth + 1))
        else:
            inner.CopyFrom(message(rng, kind, known, depth + 1))
        return
    value = _value(rng, field, known)
    if field.is_repeated:
        getattr(made, field.name).append(value)
    else:
        setattr(made, field.name, value)


def _value(rng: random.Random, field: Any, known: Known) -> Any:
    if field.name in known and rng.random() < 0.8:
        return known[field.name](rng)
    if field.cpp_type in INT_LIMITS:
        return number(rng, *INT_LIMITS[field.cpp_type])
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return rng.choice(field.enum_type.values).number
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return rng.random() < 0.5
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return octets(rng) if field.type == FieldDescriptor.TYPE_BYTES else text(rng)
    return rng.choice([0.0, -1.0, 1e300, float("inf"), float("nan")])


# ------------------------------------------------------------------------------------------ bytes


def entry(rng: random.Random) -> bytes:
    """An entry as a producer may send it."""
    metadata = MessageMetadata(producer_name="p", sequence_id=rng.randrange(100), publish_time=1)
    payload = rng.choice([b"", b"x", rng.randbytes(50), plain_batch(10, b"y")])
    if rng.random() < 0.6:
        metadata.num_messages_in_batch = rng.choice([1, 10, number(rng, -(2**31), 2**31)])
    if rng.random() < 0.4:
        metadata.compression = rng.randrange(5)  # type: ignore[assignment]
        metadata.uncompressed_size = rng.choice([len(payload), number(rng, 0, 2**32)])
        payload = rng.choice([payload, zlib.compress(payload), zlib.compress(bytes(3_000_000))])
    if rng.random() < 0.3:
        metadata.MergeFrom(message(rng, MessageMetadata, {}))
    if not metadata.IsInitialized():
        return rng.randbytes(30)
    made = encode_entry(metadata, payload)
    kind = rng.random()
    if kind < 0.15:
        return damaged(rng, made)
    if kind < 0.3:
        return made[6:]  # without the checksum, so that damage is not noticed by it
    if kind < 0.4:
        return damaged(rng, made[6:])
    if kind < 0.45:
        return struct.pack(">HI", 0x0E02, rng.choice([0, 5, 2**32 - 1])) + made
    return made


# ------------------------------------------------------------------------------------------- HTTP


def json_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(8 if depth < 4 else 5)
    if kind == 0:
        return rng.choice([None, True, False])
    if kind == 1:
        return rng.choice([*NUMBERS, 1.5, 1e300, -0.0, 10**40])
    if kind < 5:
        return text(rng)
    if kind == 5:
        return [json_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {text(rng): json_value(rng, depth + 1) for _ in range(rng.randrange(4))}


def json_body(rng: random.Random, members: tuple[str, ...]) -> bytes:
    """A body for a call that knows these members."""
    kind = rng.random()
    if kind < 0.1:
        return rng.choice([b"", b"{", b"NaN", b"\xff", b"[" * 5_000, b'{"a":' * 300, b'"', b"1e999", b"\0"])
    if kind < 0.4:
        return json.dumps(json_value(rng)).encode()
    chosen = rng.sample(members, rng.randrange(1, len(members) + 1))
    return json.dumps({name: json_value(rng, 2) for name in chosen}).encode()


# What a part of a path may be, already encoded for the wire.
PARTS: Final = (
    "t", "s", "public", "default", "standalone", "public%2Fdefault", "..", "%2E%2E", ".", "%2e", "%00", "%0A", "%2F",
    "%", "%zz", "%ff", "%C2%B2", "*", "x" * 200, "x" * 4_000, "0x00000000_0xffffffff", "0x0_0x1", "-1", "0", "9" * 30,
    "NaN",
    "%F0%9F%98%80", "a;b", "a?b", "a#b", "%25%32%46", "t-partition-0", "t-partition-999999999", "pulsar.dedup",
)  # fmt: skip


def path(rng: random.Random, template: str, known: Mapping[str, str]) -> str:
    """*template* with a value for each `{part}`: mostly an existing name, so that the server reads the rest, too."""
    made = []
    for piece in template.split("/"):
        if piece.startswith("{"):
            name = piece.strip("{}").partition(":")[0]
            usual = known.get(name)
            made.append(usual if usual is not None and rng.random() < 0.6 else rng.choice(PARTS))
        else:
            made.append(piece)
    query = rng.choice(["", "", "", "?force=true", "?authoritative=true", f"?{rng.choice(PARTS)}={rng.choice(PARTS)}"])
    return "/".join(made) + query
