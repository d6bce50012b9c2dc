"""The options of `spark.read.format("magnetar")`. No IO.

Spark hands all names over in lower case and all values as text. A misspelt option is the commonest error of users, so
an unknown one is refused with the nearest name. Names are pulsar-spark's and Kafka's, as far as they have them.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from connectors.spark.planning import PARTITIONS_MAX, TARGET_BYTES
from magnetar.runtime.types import ConfigurationError

Position = tuple[int, int]

# name as documented → other accepted names
KNOWN: Final[dict[str, tuple[str, ...]]] = {
    "metadata.url": ("metadataServiceUri", "metadataUrl"),
    "topic": ("path", "subscribe"),
    "topics": (),
    "startingOffsets": (),
    "endingOffsets": (),
    "minPartitions": (),
    "maxPartitions": (),
    "targetPartitionBytes": (),
    "failOnDataLoss": (),
    "columns": (),
    "valueFormat": (),
    "bookkeeper.readTimeoutMs": (),
    "ledgersRoot": (),
}

# Known to users of other connectors, but not there yet: refused by name, so that nobody believes they work.
NOT_YET: Final = (
    "topicsPattern", "subscribePattern", "assign", "startingTime", "endingTime", "startingTimestamp", "endingTimestamp",
    "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "maxBytesPerTrigger", "maxOffsetsPerTrigger",
    "maxMessagesPerTrigger", "includeHeaders", "columnStyle", "allowDifferentTopicSchemas", "pushDownFilters",
    "publishTimeSlack", "predefinedSubscription", "subscriptionPrefix", "service.url", "serviceUrl", "admin.url",
    "adminUrl", "waitingForNonExistedTopic",
)  # fmt: skip

VALUE_FORMATS: Final = ("binary", "string", "avro", "json", "auto")

_SIZE: Final = re.compile(r"(\d+)\s*([kmg]?)b?\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A read, checked. Offsets are by topic and partition; empty means from the beginning, to the end."""

    metadata_url: str
    topics: tuple[str, ...]
    starting: Mapping[str, Mapping[int, Position]]
    ending: Mapping[str, Mapping[int, Position]]
    min_partitions: int = 1
    max_partitions: int = PARTITIONS_MAX
    target_bytes: int = TARGET_BYTES
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = ()
    value_format: str = "binary"
    read_timeout_s: float = 30.0
    ledgers_root: str = "/ledgers"


def parse_options(options: Mapping[str, str]) -> ReadOptions:
    """Raises ConfigurationError with every problem at once."""
    problems: list[str] = []
    given = _canonical(options, problems)
    topics = [given["topic"]] if "topic" in given else []
    topics.extend(name.strip() for name in given.get("topics", "").split(",") if name.strip())
    topics = [name.strip() for text in topics for name in text.split(",")]
    if not topics:
        problems.append("no topic: set option topic (or topics, comma separated)")
    if "metadata.url" not in given:
        problems.append("no metadata.url: set it to zk:host:port of the cluster, or rocksdb:DIR of a standalone")
    value_format = given.get("valueFormat", "binary").lower()
    if value_format not in VALUE_FORMATS:
        problems.append(f"valueFormat={value_format}: expected one of {', '.join(VALUE_FORMATS)}")
    made = {
        "min_partitions": _number(given, "minPartitions", 1, problems),
        "max_partitions": _number(given, "maxPartitions", PARTITIONS_MAX, problems),
        "target_bytes": _size(given, "targetPartitionBytes", TARGET_BYTES, problems),
        "read_timeout_s": _number(given, "bookkeeper.readTimeoutMs", 30_000, problems) / 1000,
        "fail_on_data_loss": _flag(given, "failOnDataLoss", True, problems),
        "starting": _offsets(given, "startingOffsets", "earliest", topics, problems),
        "ending": _offsets(given, "endingOffsets", "latest", topics, problems),
    }
    if problems:
        raise ConfigurationError("\n".join(problems))
    columns = tuple(name.strip() for name in given.get("columns", "").split(",") if name.strip())
    return ReadOptions(
        metadata_url=given["metadata.url"],
        topics=tuple(dict.fromkeys(topics)),
        columns=columns,
        value_format=value_format,
        ledgers_root=given.get("ledgersRoot", "/ledgers"),
        **made,  # type: ignore[arg-type]  # each under its own name above
    )


def _canonical(options: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    names = {alias.lower(): name for name, aliases in KNOWN.items() for alias in (name, *aliases)}
    later = {name.lower(): name for name in NOT_YET}
    given: dict[str, str] = {}
    for key, value in options.items():
        lowered = key.lower()
        if lowered in names:
            given[names[lowered]] = value
        elif lowered in later:
            problems.append(f"option {later[lowered]} is not supported yet")
        elif lowered == "paths":
            given["topics"] = ",".join(json.loads(value))
        else:
            nearest = difflib.get_close_matches(lowered, names, n=1)
            hint = f"; did you mean {names[nearest[0]]}?" if nearest else f"; known are {', '.join(KNOWN)}"
            problems.append(f"unknown option {key}{hint}")
    return given


def _number(given: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not text.isdigit() or int(text) < 1:
        problems.append(f"{name}={text}: expected a number of at least 1")
        return default
    return int(text)


def _size(given: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = given.get(name)
    if text is None:
        return default
    found = _SIZE.match(text.strip())
    if found is None or int(found[1]) == 0:
        problems.append(f"{name}={text}: expected a size such as 128m")
        return default
    return int(found[1]) * {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[found[2].lower()]


def _flag(given: Mapping[str, str], name: str, default: bool, problems: list[str]) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        problems.append(f"{name}={text}: expected true or false")
    return text == "true"


def _offsets(
    given: Mapping[str, str], name: str, neutral: str, topics: list[str], problems: list[str]
) -> dict[str, dict[int, Position]]:
    """`{"topic": {"0": "12:345"}}`; -2 is earliest and -1 latest, as Kafka's connector has it."""
    text = given.get(name, neutral).strip()
    if text.lower() == neutral:
        return {}
    if text.lower() in ("earliest", "latest"):
        problems.append(f"{name}={text}: a batch read starts at earliest and ends at latest, or at given positions")
        return {}
    found: dict[str, dict[int, Position]] = {}
    try:
        parsed = json.loads(text)
        for topic, partitions in parsed.items():
            if topic not in topics:
                problems.append(f"{name}: topic {topic} is not among those that are read")
            for partition, place in partitions.items():
                position = _position(place, neutral)
                if position is not None:
                    found.setdefault(topic, {})[int(partition)] = position
    except (ValueError, AttributeError, TypeError) as error:
        problems.append(f'{name}: expected {neutral} or {{"topic": {{"0": "ledger:entry"}}}} ({error})')
    return found


def _position(place: Any, neutral: str) -> Position | None:
    if place in ("earliest", -2, "-2", "latest", -1, "-1"):
        meant = "earliest" if place in ("earliest", -2, "-2") else "latest"
        if meant != neutral:
            raise ValueError(f"{place} makes the read empty")
        return None
    ledger, separator, entry = str(place).partition(":")
    if not separator:
        raise ValueError(f"{place!r} is not ledger:entry")
    return int(ledger), int(entry)
