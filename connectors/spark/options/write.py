"""The options of `df.write.format("magnetar")` and `df.writeStream.format("magnetar")`. No IO."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from connectors.spark.options.read import BROKER_PREFIXES, parse_topic, size_option, without_table_properties
from connectors.spark.options.read import KNOWN as READING
from magnetar_core.runtime.types import MIB, ConfigurationError
from managed_ledger.topic_name import TopicName

# name as documented → other accepted names
KNOWN: Final[dict[str, tuple[str, ...]]] = {
    "service.url": ("serviceUrl",),
    "topic": ("path",),
    "valueFormat": (),
    "deduplication": (),
    "deduplicationHeldBytes": (),
}
# Those that reading needs and Spark's own; so that one set of options serves both.
UNUSED: Final = (
    "admin.url", "adminurl", "checkpointlocation",
    *(name.lower() for known, aliases in READING.items() for name in (known, *aliases)),
)  # fmt: skip

VALUE_FORMATS: Final = ("binary", "avro", "json")

# Rows of one task of a stream with deduplication that wait, in all topic partitions together. Each waits for its
# comparison with a former attempt, or for the rest of its entry (1 MiB at most). 64 MiB are entries of 64 KiB and more
# for a thousand partitions.
HELD_BYTES: Final = 64 * MIB
HELD_BYTES_MIN: Final = MIB

COMPRESSIONS: Final = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")

PREFIX: Final = "pulsar.producer."


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise ValueError("expected a number")
    return int(text)


def _compression(text: str) -> str:
    for name in COMPRESSIONS:
        if name.lower() == text.lower():
            return name
    raise ValueError(f"expected one of {', '.join(COMPRESSIONS)}")


# Names of Java's producer configuration → arguments of the official client.
_PRODUCER: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "batchingEnabled": ("batching_enabled", _truth),
    "batchingMaxMessages": ("batching_max_messages", _number),
    "batchingMaxBytes": ("batching_max_allowed_size_in_bytes", _number),
    "batchingMaxPublishDelayMicros": ("batching_max_publish_delay_ms", lambda text: max(_number(text) // 1000, 1)),
    "chunkingEnabled": ("chunking_enabled", _truth),
    "compressionType": ("compression_type", _compression),
    "maxPendingMessages": ("max_pending_messages", _number),
    "sendTimeoutMs": ("send_timeout_millis", _number),
}

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
    """Of rows that one task keeps in memory for that."""
    producer: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the official client; the compression by its name."""
    broker_options: Mapping[str, str] = field(default_factory=dict)
    """`pulsar.client.…` in lower case."""


def parse_write_options(options: Mapping[str, str]) -> WriteOptions:
    """Raises ConfigurationError with every problem at once."""
    problems: list[str] = []
    names = {alias.lower(): name for name, aliases in KNOWN.items() for alias in (name, *aliases)}
    producers = {f"{PREFIX}{name}".lower(): one for name, one in _PRODUCER.items()}
    given: dict[str, str] = {}
    producer = dict(_DEFAULTS)
    options = without_table_properties(options)
    for key, value in options.items():
        lowered = key.lower()
        if lowered in names:
            given[names[lowered]] = value.strip()
        elif lowered in producers:
            argument, read = producers[lowered]
            try:
                producer[argument] = read(value.strip())
            except ValueError as error:
                problems.append(f"{key}={value}: {error}")
        elif lowered.startswith(PREFIX):
            problems.append(
                f"option {key} is not supported; there are {', '.join(f'{PREFIX}{one}' for one in _PRODUCER)}"
            )
        elif lowered not in UNUSED and not lowered.startswith(BROKER_PREFIXES):
            nearest = difflib.get_close_matches(lowered, names, n=1)
            hint = f"; did you mean {names[nearest[0]]}?" if nearest else f"; known are {', '.join(KNOWN)}"
            problems.append(f"unknown option {key}{hint}")
    if not given.get("service.url"):
        problems.append("no service.url: set it to the address of the brokers, pulsar://host:6650")
    value_format = given.get("valueFormat", "binary").lower()
    if value_format not in VALUE_FORMATS:
        problems.append(f"valueFormat={value_format}: expected one of {', '.join(VALUE_FORMATS)}")
    topic = None
    if given.get("topic"):
        try:
            topic = parse_topic(given["topic"])
        except ConfigurationError as error:
            problems.append(str(error))
    if producer.get("chunking_enabled") and "batching_enabled" not in _told(options):
        producer["batching_enabled"] = False  # clients do not have both
    deduplication = False
    try:
        deduplication = _truth(given.get("deduplication", "false"))
    except ValueError as error:
        problems.append(f"deduplication={given['deduplication']}: {error}")
    held_bytes = size_option(given, "deduplicationHeldBytes", HELD_BYTES, problems)
    if held_bytes < HELD_BYTES_MIN:
        problems.append(f"deduplicationHeldBytes={given['deduplicationHeldBytes']}: at least 1m")
    if deduplication and producer.get("chunking_enabled"):
        problems.append(
            "deduplication and pulsar.producer.chunkingEnabled cannot both be on: chunks of a message have one number"
        )
    if problems:
        raise ConfigurationError("; ".join(problems))
    return WriteOptions(
        service_url=given["service.url"],
        topic=topic,
        value_format=value_format,
        deduplication=deduplication,
        held_bytes=held_bytes,
        producer=producer,
        broker_options={key.lower(): one for key, one in options.items() if key.lower().startswith("pulsar.client.")},
    )


def _told(options: Mapping[str, str]) -> set[str]:
    """The arguments that the user has given."""
    lowered = {key.lower() for key in options}
    return {argument for name, (argument, _) in _PRODUCER.items() if f"{PREFIX}{name}".lower() in lowered}
