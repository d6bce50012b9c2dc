"""Frames of Pulsar's binary protocol, to and from values.

    simple    ┌───────────┬──────────┬─────────────────┐
              │ total (4) │ size (4) │ command (size)  │     total = 4 + size; it does not count itself
              └───────────┴──────────┴─────────────────┘
    payload   ┌───────────┬──────────┬─────────────────┬───────────────────────────────┐
              │ total (4) │ size (4) │ command (size)  │ entry (the rest of the frame) │
              └───────────┴──────────┴─────────────────┴───────────────────────────────┘
    entry     [0e02 · size (4) · BrokerEntryMetadata] [0e01 · crc32c (4)] size (4) · MessageMetadata · payload

The entry is what a ledger stores, byte for byte as it came. Its CRC-32C covers everything behind the checksum.

SEND, SEND_RECEIPT and MESSAGE occur once per entry, so they are read and written by hand here; the tests
compare their bytes with protobuf's.
"""

import struct
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from broker.wire.pulsar_pb2 import BaseCommand, CommandSend
from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from magnetar_core.runtime.data.varint import varint as varint
from magnetar_core.runtime.types import Buffer

# What stands around a message of the maximal size: command and metadata (Pulsar's own allowance).
FRAME_PADDING_BYTES: Final = 10 * 1024

# "None" in an unsigned field: request ids of frames that answer nothing, ids of messages that were not stored.
NO_ID: Final = 2**64 - 1

BROKER_METADATA_MAGIC: Final = 0x0E02
CHECKSUM_MAGIC: Final = 0x0E01

_SIZES: Final = struct.Struct(">II")
_SIZE: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")

# type = SEND, then the body's tag. Every client writes the fields in this order.
_SEND_START: Final = memoryview(b"\x08\x06\x32")
_RECEIPT_START: Final = b"\x08\x07\x3a"
_MESSAGE_START: Final = b"\x08\x09\x4a"

# Type → name of the field that holds the body (their numbers are equal).
BODY_OF_TYPE: Final[dict[int, str]] = {
    number: BaseCommand.DESCRIPTOR.fields_by_number[number].name
    for number in BaseCommand.DESCRIPTOR.enum_types_by_name["Type"].values_by_number
}


class Send(NamedTuple):
    """A SEND as the publish path wants it."""

    producer_id: int
    sequence_id: int
    highest_sequence_id: int
    num_messages: int
    is_chunk: bool
    is_marker: bool
    is_transactional: bool
    entry: memoryview


def parse_frame(frame: memoryview) -> tuple[BaseCommand, memoryview | None]:
    """The command of a frame (without its total size), and the entry behind it if there is one.

    Raises MalformedFrame for what cannot be decoded and for commands that the protocol does not have.
    """
    end = _command_end(frame)
    try:
        command = BaseCommand.FromString(frame[4:end])  # type: ignore[arg-type]
    except DecodeError as error:
        raise MalformedFrame(f"a command that cannot be decoded: {error}") from None
    if not command.HasField("type"):
        raise MalformedFrame("a command of a type that this protocol version does not have")
    body = BODY_OF_TYPE[command.type]
    if not command.HasField(body):
        raise MalformedFrame(f"a command {BaseCommand.Type.Name(command.type)} without its body")
    if not getattr(command, body).IsInitialized():
        raise MalformedFrame(f"a command {BaseCommand.Type.Name(command.type)} lacks a required field")
    if command.type in _TYPES_WITH_TEXT and (problem := _text_problem(getattr(command, body))) is not None:
        raise MalformedFrame(f"a command {BaseCommand.Type.Name(command.type)} with a {problem}")
    return command, (frame[end:] if end < len(frame) else None)


def _text_fields(kind: Any, known: tuple[Any, ...] = ()) -> list[tuple[FieldDescriptor, bool]]:
    """The fields of *kind* that are texts, or messages with texts in them (True)."""
    text_fields = []
    for field in kind.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            text_fields.append((field, False))
            continue
        inner = field.message_type
        if inner is not None and inner not in known and _text_fields(inner, (*known, kind)):
            text_fields.append((field, True))
    return text_fields


# Properties of a producer, consumer or schema: each is some microseconds on the loop.
TEXTS_MAX: Final = 10_000

_TEXT_FIELDS: Final[dict[str, list[tuple[FieldDescriptor, bool]]]] = {}
_TYPES_WITH_TEXT: Final = frozenset(
    number
    for number, name in BODY_OF_TYPE.items()
    if _text_fields(BaseCommand.DESCRIPTOR.fields_by_name[name].message_type)
)


def _text_problem(message: Message) -> str | None:
    """What is wrong with a text in *message*: the library gives bytes for what is not UTF-8, instead of refusing it."""
    kind = message.DESCRIPTOR
    fields = _TEXT_FIELDS.get(kind.full_name)
    if fields is None:
        fields = _TEXT_FIELDS[kind.full_name] = _text_fields(kind)
    for field, has_inner in fields:
        if field.is_repeated:
            values = getattr(message, field.name)
            if len(values) > TEXTS_MAX:
                return f"{field.name} of {len(values)} elements, more than {TEXTS_MAX}"
        elif message.HasField(field.name):
            values = (getattr(message, field.name),)
        else:
            continue
        if has_inner and field.is_repeated and _are_texts(values, field.message_type):
            continue
        for value in values:
            if has_inner:
                if (inner := _text_problem(value)) is not None:
                    return inner
            elif type(value) is bytes:
                return f"{field.name} that is not UTF-8"
    return None


def _are_texts(messages: Sequence[Message], kind: Any) -> bool:
    """Whether all texts of *messages* are texts, without a step of its own for each: a producer may have 10,000
    properties. False: one is not, or there are messages in them."""
    fields = _TEXT_FIELDS.get(kind.full_name)
    if fields is None:
        fields = _TEXT_FIELDS[kind.full_name] = _text_fields(kind)
    if any(has_inner or field.is_repeated for field, has_inner in fields):
        return False
    return all(bytes not in set(map(type, map(attrgetter(field.name), messages))) for field, _ in fields)


def parse_send(frame: memoryview) -> Send | None:
    """The frame as a SEND, or None if it is another command. Raises MalformedFrame."""
    if frame[4:7] != _SEND_START:
        return None
    end = _command_end(frame)
    if end - 8 != frame[7]:  # a body of 128 bytes or more, or something behind it: nothing a client does
        command, entry = parse_frame(frame)
        body = command.send
        if entry is None:
            raise MalformedFrame("a SEND without a message")
    else:
        try:
            body = CommandSend.FromString(frame[8:end])  # type: ignore[arg-type]
        except DecodeError as error:
            raise MalformedFrame(f"a SEND that cannot be decoded: {error}") from None
        if not body.IsInitialized():
            raise MalformedFrame("a SEND lacks its producer id or sequence id")
        entry = frame[end:]
    return Send(
        body.producer_id,
        body.sequence_id,
        body.highest_sequence_id,
        body.num_messages,
        body.is_chunk,
        body.marker,
        body.HasField("txnid_most_bits") or body.HasField("txnid_least_bits"),
        entry,
    )


def _command_end(frame: memoryview) -> int:
    if len(frame) < 4:
        raise MalformedFrame(f"a frame of {len(frame)} bytes has no room for a command")
    end = 4 + int(_SIZE.unpack_from(frame)[0])
    if end > len(frame):
        raise MalformedFrame(f"a command of {end - 4} bytes in a frame of {len(frame)}")
    return end


def simple_frame(command: BaseCommand) -> bytes:
    """A whole frame without an entry."""
    body = command.SerializeToString()
    return _SIZES.pack(4 + len(body), len(body)) + body


def payload_frame(command: BaseCommand, entry: Buffer) -> tuple[bytes, Buffer]:
    """A whole frame with an entry, as two buffers."""
    body = command.SerializeToString()
    return _SIZES.pack(4 + len(body) + len(entry), len(body)) + body, entry


def command(kind: int, **fields: Any) -> bytes:
    """The simple frame of the command *kind* with these fields in its body."""
    command = BaseCommand(type=kind)  # type: ignore[arg-type]
    body = getattr(command, BODY_OF_TYPE[kind])
    body.SetInParent()
    for name, value in fields.items():
        if value is None:
            continue
        if hasattr(value, "DESCRIPTOR"):
            getattr(body, name).CopyFrom(value)
        elif isinstance(value, list | tuple):
            getattr(body, name).extend(value)
        else:
            setattr(body, name, value)
    return simple_frame(command)


def send_receipt(producer_id: int, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int) -> bytes:
    """A whole SEND_RECEIPT. NO_ID as both ids: nothing was written (a duplicate)."""
    message_id = b"\x08" + varint(ledger_id) + b"\x10" + varint(entry_id)
    body = (
        b"\x08"
        + varint(producer_id)
        + b"\x10"
        + varint(sequence_id)
        + b"\x1a"
        + varint(len(message_id))
        + message_id
        + b"\x20"
        + varint(highest_sequence_id)
    )
    # Three varints of ten bytes and a message id of 22 are 56 bytes: the lengths take one byte each.
    size = len(body) + 4
    return _SIZES.pack(size + 4, size) + _RECEIPT_START + varint(size - 4) + body


class MessageHeads:
    """Makes what stands in front of the entries that one consumer gets."""

    __slots__ = ("_consumer", "_ledger", "_ledger_id", "_partition")

    def __init__(self, consumer_id: int, partition: int) -> None:
        self._consumer = b"\x08" + varint(consumer_id) + b"\x12"
        self._partition = b"\x18" + varint(partition & NO_ID)
        self._ledger_id = -1
        self._ledger = b""

    def head(
        self,
        ledger_id: int,
        entry_id: int,
        entry_bytes: int,
        redelivery_count: int = 0,
        ack_set: Sequence[int] | None = None,
        consumer_epoch: int | None = None,
    ) -> bytes:
        """The first buffer of a MESSAGE frame; the entry of *entry_bytes* follows as the second."""
        if ledger_id != self._ledger_id:
            self._ledger_id = ledger_id
            self._ledger = b"\x08" + varint(ledger_id) + b"\x10"
        message_id = self._ledger + varint(entry_id) + self._partition
        body = self._consumer + varint(len(message_id)) + message_id
        if redelivery_count:
            body += b"\x18" + varint(redelivery_count)
        if ack_set:
            body += b"".join([b"\x20" + varint(word & NO_ID) for word in ack_set])
        if consumer_epoch is not None:
            body += b"\x28" + varint(consumer_epoch)
        command = _MESSAGE_START + varint(len(body)) + body
        size = len(command)
        return _SIZES.pack(4 + size + entry_bytes, size) + command


def checksum_verdict(entry: memoryview) -> bool | None:
    """Whether the CRC-32C of *entry* is right; None if it has none."""
    offset = _after_broker_metadata(entry)
    if len(entry) < offset + 6 or _SHORT.unpack_from(entry, offset)[0] != CHECKSUM_MAGIC:
        return None
    return bool(_SIZE.unpack_from(entry, offset + 2)[0] == crc32c(entry[offset + 6 :]))


def metadata_bytes(entry: memoryview) -> int:
    """How long the metadata of the message in *entry* are; -1 if its parts do not lie inside it, so that metadata and
    payload cannot be told apart."""
    offset = _after_broker_metadata(entry)
    if len(entry) >= offset + 2 and _SHORT.unpack_from(entry, offset)[0] == CHECKSUM_MAGIC:
        offset += 6
    if len(entry) < offset + 4:
        return -1
    size_bytes = int(_SIZE.unpack_from(entry, offset)[0])
    return size_bytes if offset + 4 + size_bytes <= len(entry) else -1


def without_broker_metadata(entry: Buffer) -> Buffer:
    """*entry* as its producer sent it."""
    if len(entry) < 2 or entry[0] != 0x0E or entry[1] != 0x02:
        return entry
    view = memoryview(entry)
    return view[_after_broker_metadata(view) :]


def without_checksum(entry: Buffer) -> Buffer:
    """*entry* for clients of protocol versions below 11, which know no checksum."""
    if len(entry) < 6 or entry[0] != 0x0E or entry[1] != 0x01:
        return entry
    return memoryview(entry)[6:]


def with_broker_metadata(metadata: bytes, entry: Buffer) -> bytes:
    """*entry* with a serialized BrokerEntryMetadata in front (one copy: a ledger stores one buffer)."""
    return _SHORT.pack(BROKER_METADATA_MAGIC) + _SIZE.pack(len(metadata)) + metadata + bytes(entry)


def _after_broker_metadata(entry: memoryview) -> int:
    if len(entry) < 6 or entry[0] != 0x0E or entry[1] != 0x02:
        return 0
    return 6 + int(_SIZE.unpack_from(entry, 2)[0])
