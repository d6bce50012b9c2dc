"""The options of `df.write.format("magnetar")` and `df.writeStream.format("magnetar")`. No IO."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from connectors.spark.options.read import TABLE as READING
from connectors.spark.options.read import parse_topic, service_address, why_not_here
from connectors.spark.options.table import (
    BROKER_PREFIXES,
    Option,
    Parse,
    bounded,
    client_options,
    client_problems,
    flag,
    known_names,
    one_of,
    read_names,
    read_values,
    size,
    without_table_properties,
)
from magnetar_core.runtime.types import GIB, MIB, ConfigurationError
from magnetar_core.topics.topic_name import TopicName

# Options that only reading needs, and Spark's own: ignored, so that one set of options serves both.
CHECKPOINT: Final = "checkpointlocation"
UNUSED: Final = ("admin.url", "adminurl", CHECKPOINT, *known_names(READING))

VALUE_FORMATS: Final = ("binary", "avro", "json")

# Rows of one task of a stream with deduplication that wait, in all topic partitions together. Each waits for its
# comparison with a former attempt, or for the rest of its entry (1 MiB at most). 64 MiB are entries of 64 KiB and more
# for a thousand partitions.
HELD_BYTES: Final = 64 * MIB
HELD_BYTES_MIN: Final = MIB

COMPRESSIONS: Final = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")

PREFIX: Final = "pulsar.producer."


def _number(text: str) -> int:
    """Also 0. Raises ValueError."""
    if not text.isascii() or not text.isdigit():
        raise ValueError("expected a number")
    return int(text)


def _topic(text: str) -> TopicName | None:
    """Raises ConfigurationError."""
    return parse_topic(text) if text else None


# Names of Java's producer configuration → arguments of the official client.
_PRODUCER: Final[Mapping[str, tuple[str, Parse]]] = {
    "batchingEnabled": ("batching_enabled", flag),
    "batchingMaxMessages": ("batching_max_messages", _number),
    "batchingMaxBytes": ("batching_max_allowed_size_in_bytes", _number),
    "batchingMaxPublishDelayMicros": ("batching_max_publish_delay_ms", lambda text: max(_number(text) // 1000, 1)),
    "chunkingEnabled": ("chunking_enabled", flag),
    "compressionType": ("compression_type", one_of(*COMPRESSIONS)),
    "maxPendingMessages": ("max_pending_messages", _number),
    "sendTimeoutMs": ("send_timeout_millis", _number),
}

TABLE: Final = (
    Option("service.url", "service_url", service_address, ("serviceUrl",)),
    Option("topic", "topic", _topic, ("path",)),
    Option("valueFormat", "value_format", one_of(*VALUE_FORMATS)),
    Option("deduplication", "deduplication", flag),
    Option("deduplicationHeldBytes", "held_bytes", bounded(size, HELD_BYTES_MIN, 1024 * GIB, "at least 1m")),
)

# A task has many messages at once, and waits for room.
_DEFAULTS: Final[Mapping[str, Any]] = {
    "batching_enabled": True,
    "block_if_queue_full": True,
    "max_pending_messages": 5_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """A write, checked."""

    service_url: str
    topic: TopicName | None
    """None: each row names its topic."""
    value_format: str = "binary"
    deduplication: bool = False
    """Batches of a stream that are repeated are in the topics once."""
    held_bytes: int = HELD_BYTES
    """Bytes of rows that one task keeps in memory for deduplication."""
    producer: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the official client; the compression by its name."""
    broker_options: Mapping[str, str] = field(default_factory=dict)
    """`pulsar.client.…` in lower case."""
    unused: tuple[str, ...] = ()
    """Names of options that were given and have no effect."""


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Raises ConfigurationError with every problem at once."""
    problems: list[str] = []
    options = without_table_properties(options)
    given = read_names(TABLE, options, problems, _why_not)
    values = read_values(TABLE, given, problems)
    producer = {**_DEFAULTS, **_producer_arguments(options, problems)}
    if not given.get("service.url"):
        problems.append("no service.url: set it to the address of the brokers, pulsar://host:6650")
    problems += [*_contradictions(given, values, producer), *client_problems(options)]
    if problems:
        raise ConfigurationError("; ".join(problems))
    values.setdefault("topic", None)
    unused = tuple(
        key for key in options if key.lower() in UNUSED and key.lower() not in {CHECKPOINT, *known_names(TABLE)}
    )
    return WriteOptions(**values, producer=producer, broker_options=client_options(options), unused=unused)


def _contradictions(given: Mapping[str, str], values: Mapping[str, Any], producer: Mapping[str, Any]) -> Iterator[str]:
    """What does not go together."""
    is_once = bool(values.get("deduplication"))
    if is_once and producer.get("chunking_enabled"):
        yield "deduplication and pulsar.producer.chunkingEnabled cannot both be on: chunks of a message have one number"
    if not is_once and "deduplicationHeldBytes" in given:
        yield "deduplicationHeldBytes belongs to deduplication=true"
    if is_once and "batching_max_publish_delay_ms" in producer:
        yield (
            "pulsar.producer.batchingMaxPublishDelayMicros has no meaning with deduplication=true, where a batch ends "
            "by its messages and bytes"
        )
    if producer["batching_enabled"] and producer.get("chunking_enabled"):
        yield "pulsar.producer.batchingEnabled and chunkingEnabled cannot both be on: leave batchingEnabled out"
    without = "chunkingEnabled" if producer.get("chunking_enabled") else "batchingEnabled=false"
    for name, (argument, _) in _PRODUCER.items():
        if name.startswith("batchingMax") and argument in producer and not producer["batching_enabled"]:
            yield f"{PREFIX}{name} has no meaning with {without}"


def _producer_arguments(options: Mapping[str, str], problems: list[str]) -> dict[str, Any]:
    """The arguments of the official client that the user has given."""
    producers = {f"{PREFIX}{name}".lower(): producer_option for name, producer_option in _PRODUCER.items()}
    arguments: dict[str, Any] = {}
    for key, value in options.items():
        if key.lower() in producers:
            argument, parse = producers[key.lower()]
            try:
                arguments[argument] = parse(value.strip())
            except ValueError as error:
                problems.append(f"{key}={value}: {error}")
    if arguments.get("chunking_enabled"):
        arguments.setdefault("batching_enabled", False)  # clients do not have both
    return arguments


def _why_not(lowered: str, key: str) -> str | None:
    """What is wrong with an option that is not in the table (`read_names`)."""
    if lowered.startswith(PREFIX):
        every = [f"{PREFIX}{name}" for name in _PRODUCER]
        is_there = lowered in map(str.lower, every)
        return "" if is_there else f"option {key} is not supported; there are {', '.join(every)}"
    if lowered in UNUSED or lowered.startswith(BROKER_PREFIXES):
        return ""
    return why_not_here(lowered, key)
