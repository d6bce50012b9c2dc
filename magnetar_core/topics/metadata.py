"""The metadata of a message: how many fields are worked on, which texts are none, and the message of the topic API that
they describe. No IO.
"""

from collections.abc import Container, Iterable
from typing import Final, Protocol

from magnetar_core.runtime.data.varint import read_varint
from magnetar_core.runtime.types import KIB, Buffer
from magnetar_core.topics.topics_pb2 import Message

# Properties of a message. Each is looked at where the metadata are read, in half a microsecond.
PROPERTIES_MAX: Final = 10_000

# Its key, or ordering key: the hash by which Key_Shared subscriptions give it to a consumer takes 0.2 µs a byte.
KEY_BYTES_MAX: Final = 64 * KIB

# All fields of its metadata. There are thirty others, some of which may repeat.
METADATA_FIELDS_MAX: Final = PROPERTIES_MAX + 100

# Metadata of this size are not looked through for it first: they are read within some milliseconds, whatever they are.
ORDINARY_METADATA_BYTES: Final = 64 * KIB


class Property(Protocol):
    """One property."""

    key: str
    value: str


class Metadata(Protocol):
    """What MessageMetadata and SingleMessageMetadata have in common."""

    partition_key: str
    partition_key_b64_encoded: bool
    ordering_key: bytes
    event_time: int
    null_value: bool

    @property
    def properties(self) -> Iterable[Property]: ...

    def HasField(self, field_name: str) -> bool: ...


def fields_problem(metadata: Buffer, keys: Container[int] = ()) -> str | None:
    """Why encoded metadata of a message are too much to work on; None: they are not. Looks no further than it must.

    *keys*: the tags of its keys.
    """
    view, at, end = memoryview(metadata), 0, len(metadata)
    try:
        for _ in range(METADATA_FIELDS_MAX):
            if at >= end:
                return None
            tag, at = read_varint(view, at)
            kind = tag & 7
            if kind == 0:
                _, at = read_varint(view, at)
            elif kind == 1:
                at += 8
            elif kind == 2:
                size, at = read_varint(view, at)
                at += size
                if tag in keys and size > KEY_BYTES_MAX:
                    return f"its key has {size} bytes, more than {KEY_BYTES_MAX}; give it a shorter one"
            elif kind == 5:
                at += 4
    except (IndexError, ValueError):
        return None  # its decoder says what is wrong with it
    if at >= end:
        return None
    return f"it has more than {PROPERTIES_MAX} properties, or as many other fields; give it fewer"


def has_broken_text(metadata: Metadata) -> bool:
    """Whether its key or a property is not UTF-8."""
    if is_broken(metadata.partition_key):
        return True
    # Most have none, and to walk over none takes 0.4 µs a message.
    properties = metadata.properties
    return bool(properties) and any(is_broken(item.key) or is_broken(item.value) for item in properties)


def is_broken(text: object) -> bool:
    """The library gives bytes where a text is not UTF-8, instead of refusing it."""
    return isinstance(text, bytes)


def describe(message: Message, metadata: Metadata) -> None:
    """Set in *message* what its *metadata* say, but for its place and number."""
    if metadata.HasField("partition_key"):
        message.key = metadata.partition_key
        message.key_is_base64 = metadata.partition_key_b64_encoded
    for item in metadata.properties:
        message.properties[item.key] = item.value
    if metadata.event_time:
        time_ms = metadata.event_time
        message.event_time_ms = time_ms - 2**64 if time_ms >= 2**63 else time_ms  # producers may claim any number
    if metadata.ordering_key:
        message.ordering_key = metadata.ordering_key
    if metadata.null_value:
        message.is_null = True
