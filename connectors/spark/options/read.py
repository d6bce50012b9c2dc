"""The options of `spark.read.format("magnetar")`. No IO.

Spark gives all names in lower case and all values as text. A misspelt option is the commonest error of users, so an
unknown one is refused with the nearest name. The names are those of pulsar-spark and of Kafka's connector, where these
have the option.
"""

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from connectors.spark.ranges import Position, Times
from magnetar_core.bookkeeper.wire.framing import LARGEST_FRAME_BYTES_MAX, MAX_FRAME_BYTES
from magnetar_core.runtime.types import MIB, ConfigurationError
from managed_ledger.message_id import MessageId
from managed_ledger.messages import CHUNKED_BYTES_MAX
from managed_ledger.topic_name import TopicName, TopicNameError

# name as documented → other accepted names
KNOWN: Final[dict[str, tuple[str, ...]]] = {
    "metadata.url": ("metadataServiceUri", "metadataUrl"),
    "topic": ("path", "subscribe"),
    "topics": ("paths",),
    "topicsPattern": ("subscribePattern",),
    "includeInternal": (),
    "startingOffsets": (),
    "endingOffsets": (),
    "startingTimestamp": ("startingTime",),
    "endingTimestamp": ("endingTime",),
    "publishTimeSlack": (),
    "compacted": ("readCompacted",),
    "pushDownFilters": (),
    "backlogOf": ("ackedBy",),
    "minPartitions": (),
    "maxPartitions": (),
    "targetPartitionBytes": (),
    "failOnDataLoss": (),
    "maxMessagesPerTrigger": ("maxOffsetsPerTrigger",),
    "maxBytesPerTrigger": (),
    "subscription": ("predefinedSubscription",),
    "service.url": ("serviceUrl",),
    "columns": (),
    "valueFormat": (),
    "mode": (),
    "keyFormat": (),
    "encrypted": (),
    "unionSchemas": (),
    "bookkeeper.readTimeoutMs": (),
    "bookkeeper.tlsDirectory": (),
    "bookkeeper.nettyMaxFrameSizeBytes": (),
    "maxUnpackedBytes": (),
    "ledgersRoot": (),
}

# Options of other connectors that do not exist here: refused by name, so that nobody believes they work.
NOT_YET: Final = (
    "assign",
    "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "includeHeaders", "columnStyle",
    "subscriptionPrefix", "pollTimeoutMs", "waitingForNonExistedTopic",
)  # fmt: skip

# Options of other connectors that are called otherwise here.
INSTEAD: Final = {
    "allowDifferentTopicSchemas": "valueFormat=binary leaves the values of topics with different schemas as they are, "
    "unionSchemas=true decodes each by its own",
}

# Options with which other connectors reach a broker. Accepted, so that their jobs run here; reading needs no broker.
BROKER: Final = ("admin.url", "adminUrl")
BROKER_PREFIXES: Final = ("pulsar.client.", "pulsar.admin.", "pulsar.reader.", "pulsar.producer.")

# Properties that Spark keeps of every table (`CREATE TABLE … USING magnetar`). They come beside the options, and each
# option a second time with `option.` in front.
TABLE_PROPERTIES: Final = frozenset(
    {"provider", "owner", "comment", "location", "external", "is_managed_location", "collation"}
)
_AGAIN: Final = "option."

# Which options only one kind of read has.
ONLY_BATCH: Final = ("endingOffsets", "endingTimestamp", "compacted", "pushDownFilters", "backlogOf")
ONLY_STREAM: Final = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "subscription")

UNPACKED_BYTES: Final = 20 * MIB
"""What an entry may unpack to, unless an option says otherwise: four times the largest message, as at brokers
(`maxUncompressedEntrySize`). Spark's JVM holds a row of this size up to four times on its heap, for each task."""

TARGET_BYTES: Final = 128 * MIB
PARTITIONS_MAX: Final = 10_000
"""Spark plans 10,000 tasks in half a second; more than that is a mistake in the options."""

LATEST: Final[Position] = (-1, -1)
"""As the place where a stream begins: behind what is there when it begins."""

VALUE_FORMATS: Final = ("binary", "string", "avro", "json", "protobuf", "keyvalue", "auto")

KEY_FORMATS: Final = ("binary", "string")

ENCRYPTED: Final = ("error", "raw")

_SIZE: Final = re.compile(r"([0-9]{1,15})\s*([kmg]?)b?", re.IGNORECASE)
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_PATTERN: Final = re.compile(
    r"((persistent://)?(?P<tenant>[-=:.\w]+)/(?P<namespace>[-=:.\w]+)/)?(?P<local>[^/]+)", re.ASCII
)

_MILLISECONDS: Final = re.compile(r"[0-9]{5,16}")
_DURATION: Final = re.compile(r"([0-9]{1,9})\s*(ms|s|m|h)", re.IGNORECASE)

SLACK_MS: Final = 10 * 60_000
"""How far the clocks of producers and brokers may be apart, with the time that a message is on its way."""

_EARLIEST_PLACES: Final = ("earliest", -2, "-2")
_LATEST_PLACES: Final = ("latest", -1, "-1")


def parse_topic(name: str) -> TopicName:
    """From the forms in which clients take topics. Raises ConfigurationError."""
    try:
        topic = TopicName.parse(name)
    except TopicNameError as error:
        raise ConfigurationError(f"topic {error}") from None
    if not topic.is_persistent:
        raise ConfigurationError(f"topic {name}: only persistent topics have ledgers to read")
    return topic


Offsets = Mapping[TopicName, Mapping[int, Position]]


class Kind(Enum):
    """What is to be done with the topics."""

    BATCH = "spark.read"
    STREAM = "spark.readStream"
    EITHER = "not known yet"
    """Spark asks for the columns before it says."""


class Mode(Enum):
    """Spark's names for what happens to entries and values that cannot be read; the first is the default."""

    FAILFAST = "FAILFAST"
    """The read fails."""
    PERMISSIVE = "PERMISSIVE"
    """They are rows of nulls with what is stored and what is wrong."""
    DROPMALFORMED = "DROPMALFORMED"
    """They are no rows."""


@dataclass(frozen=True, slots=True)
class TopicsPattern:
    """Topics of one namespace whose names match; *local* is a regular expression for the last part of the name."""

    tenant: str
    namespace: str
    local: str
    includes_internal: bool = False
    """Topics of brokers, and others whose names begin with `__`."""
    names_namespace: bool = False
    """It was written out; else it is the default one."""


class Place(NamedTuple):
    """Where the bookies are, and how they are asked."""

    metadata_url: str
    ledgers_root: str
    read_timeout_s: float
    tls_directory: str
    frame_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A read, checked. Offsets are by topic and partition (0 where there are none); a missing one is no bound."""

    metadata_url: str
    topics: tuple[TopicName, ...]
    """Empty with a pattern."""
    pattern: TopicsPattern | None = None
    starting: Offsets = field(default_factory=dict)
    ending: Offsets = field(default_factory=dict)
    times: Times | None = None
    """Only messages that were published then."""
    starts_latest: bool = False
    """A stream begins behind what is there, where no offsets are given."""
    max_messages: int | None = None
    """Of one batch of a stream, about."""
    max_bytes: int | None = None
    subscription: str = ""
    """By which the brokers keep what a stream has not read; empty: none."""
    service_url: str = ""
    broker_options: Mapping[str, str] = field(default_factory=dict)
    """`pulsar.client.…` in lower case, for who needs a broker."""
    min_partitions: int = 1
    max_partitions: int = PARTITIONS_MAX
    target_bytes: int = TARGET_BYTES
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = ()
    value_format: str = "binary"
    key_is_text: bool = False
    """The column `__key` is text, not bytes."""
    passes_encrypted: bool = False
    """Encrypted entries are rows, as they are; otherwise the read fails."""
    union_schemas: bool = False
    """Each topic is decoded by its own schema, into the columns of all."""
    mode: Mode = Mode.FAILFAST
    read_timeout_s: float = 30.0
    frame_bytes_max: int = MAX_FRAME_BYTES
    """The largest answer of a bookie; an entry fits into it."""
    unpacked_bytes_max: int = UNPACKED_BYTES
    """What a compressed entry may unpack to."""
    ledgers_root: str = ""
    """Empty: the one in the metadata URL."""
    compacted: bool = False
    """Of what compaction has looked at only the last message of each key, and what came since."""
    backlog_of: str = ""
    """A subscription: only what it has not consumed; empty: everything."""
    push_down_filters: bool = False
    """Spark's filters leave out what cannot pass."""
    slack_ms: int = SLACK_MS
    tls_directory: str = ""
    """Folder with tls.crt, tls.key and ca.crt, on every machine that reads; empty: bookies are asked in clear."""
    unused: tuple[str, ...] = ()
    """Names of options that were given and have no effect."""

    @property
    def place(self) -> Place:
        return Place(
            self.metadata_url, self.ledgers_root, self.read_timeout_s, self.tls_directory, self.frame_bytes_max
        )


def parse_options(options: Mapping[str, str], kind: Kind = Kind.BATCH) -> ReadOptions:
    """Raises ConfigurationError with every problem at once."""
    problems: list[str] = []
    given = _canonical(options, problems)
    for name in {Kind.BATCH: ONLY_STREAM, Kind.STREAM: ONLY_BATCH}.get(kind, ()):
        if name in given:
            problems.append(f"option {name} has no meaning for {kind.value}")
    pattern = _pattern(given, problems)
    topics = _topics(given, problems) if pattern is None else ()
    if not given.get("metadata.url"):
        problems.append("no metadata.url: set it to zk:host:port of the cluster, or rocksdb:DIR of a standalone")
    value_format = given.get("valueFormat", "binary").lower()
    if value_format not in VALUE_FORMATS:
        problems.append(f"valueFormat={value_format}: expected one of {', '.join(VALUE_FORMATS)}")
    key_is_text = _one_of(given, "keyFormat", KEY_FORMATS, problems) == "string"
    passes_encrypted = _one_of(given, "encrypted", ENCRYPTED, problems) == "raw"
    if passes_encrypted and value_format != "binary":
        problems.append(
            f"encrypted=raw passes values as they are, which valueFormat={value_format} cannot decode; set "
            "valueFormat=binary"
        )
    union_schemas = _flag(given, "unionSchemas", False, problems)
    if union_schemas and value_format in ("binary", "string"):
        problems.append(f"unionSchemas=true has no meaning for valueFormat={value_format}; set valueFormat=auto")
    mode = Mode(_one_of(given, "mode", tuple(Mode.__members__), problems))
    columns = _list(given.get("columns", ""))
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        problems.append(f"columns has {', '.join(twice)} more than once")
    minimum = _number(given, "minPartitions", 1, problems)
    maximum = _number(given, "maxPartitions", max(PARTITIONS_MAX, minimum), problems)
    if minimum > maximum:
        problems.append(f"minPartitions={minimum} is more than maxPartitions={maximum}")
    target_bytes = size_option(given, "targetPartitionBytes", TARGET_BYTES, problems)
    read_timeout_s = _number(given, "bookkeeper.readTimeoutMs", 30_000, problems) / 1000
    frame_bytes_max = _number(given, "bookkeeper.nettyMaxFrameSizeBytes", MAX_FRAME_BYTES, problems)
    if not MIB <= frame_bytes_max <= LARGEST_FRAME_BYTES_MAX:
        problems.append(
            f"bookkeeper.nettyMaxFrameSizeBytes={frame_bytes_max}: expected {MIB} to {LARGEST_FRAME_BYTES_MAX}, as it "
            "is set in the bookies"
        )
    unpacked_bytes_max = size_option(given, "maxUnpackedBytes", UNPACKED_BYTES, problems)
    if not MIB <= unpacked_bytes_max <= CHUNKED_BYTES_MAX:
        problems.append(f"maxUnpackedBytes={unpacked_bytes_max}: expected 1m to {CHUNKED_BYTES_MAX // MIB}m")
    fail_on_data_loss = _flag(given, "failOnDataLoss", True, problems)
    starting, starts_latest = _starting(given, kind, topics, problems)
    ending = _offsets(given, "endingOffsets", "latest", topics, problems)
    push_down = _flag(given, "pushDownFilters", False, problems)
    slack_ms = _slack(given, problems)
    times = _times(given, slack_ms, problems)
    if "publishTimeSlack" in given and times is None and not push_down:
        problems.append("publishTimeSlack belongs to startingTimestamp, endingTimestamp and pushDownFilters")
    compacted = _flag(given, "compacted", False, problems)
    if compacted and (starting or ending):
        problems.append(
            "compacted=true reads the last message of each key of a whole topic; leave out startingOffsets and "
            "endingOffsets, or compacted"
        )
    backlog_of = given.get("backlogOf", "")
    if "backlogOf" in given and not backlog_of:
        problems.append("backlogOf is empty: expected the name of a subscription")
    if compacted and backlog_of:
        problems.append("backlogOf and compacted cannot both be given: what compaction kept is not what was consumed")
    max_messages = _number(given, "maxMessagesPerTrigger", 1, problems) if "maxMessagesPerTrigger" in given else None
    max_bytes = size_option(given, "maxBytesPerTrigger", 1, problems) if "maxBytesPerTrigger" in given else None
    if "subscription" in given and not given.get("service.url"):
        problems.append("subscription needs service.url, the address of the brokers: pulsar://host:6650")
    if problems:
        raise ConfigurationError("; ".join(problems))
    return ReadOptions(
        metadata_url=given["metadata.url"],
        topics=topics,
        pattern=pattern,
        starting=starting,
        starts_latest=starts_latest,
        ending=ending,
        times=times,
        max_messages=max_messages,
        max_bytes=max_bytes,
        subscription=given.get("subscription", ""),
        service_url=given.get("service.url", ""),
        broker_options={
            key.lower(): value for key, value in options.items() if key.lower().startswith("pulsar.client.")
        },
        compacted=compacted,
        backlog_of=backlog_of,
        push_down_filters=push_down,
        slack_ms=slack_ms,
        min_partitions=minimum,
        max_partitions=maximum,
        target_bytes=target_bytes,
        fail_on_data_loss=fail_on_data_loss,
        columns=columns,
        value_format=value_format,
        key_is_text=key_is_text,
        passes_encrypted=passes_encrypted,
        union_schemas=union_schemas,
        mode=mode,
        read_timeout_s=read_timeout_s,
        frame_bytes_max=frame_bytes_max,
        unpacked_bytes_max=unpacked_bytes_max,
        ledgers_root=given.get("ledgersRoot", ""),
        tls_directory=given.get("bookkeeper.tlsDirectory", ""),
        unused=_unused(options, needs_broker="subscription" in given),
    )


def _unused(options: Mapping[str, str], *, needs_broker: bool) -> tuple[str, ...]:
    """Those that mean brokers, as far as none is needed."""
    names = {name.lower() for name in BROKER}
    prefixes: tuple[str, ...] = BROKER_PREFIXES
    if needs_broker:
        prefixes = tuple(one for one in prefixes if one != "pulsar.client.")
    else:
        names |= {name.lower() for name in ("service.url", *KNOWN["service.url"])}
    return tuple(key for key in options if key.lower() in names or key.lower().startswith(prefixes))


def _canonical(options: Mapping[str, str], problems: list[str]) -> dict[str, str]:
    """Values by documented name, without surrounding spaces."""
    names = {alias.lower(): name for name, aliases in KNOWN.items() for alias in (name, *aliases)}
    later = {name.lower(): name for name in NOT_YET}
    instead = {name.lower(): name for name in INSTEAD}
    broker = {name.lower() for name in BROKER}
    given: dict[str, str] = {}
    sources: dict[str, str] = {}
    for key, value in without_table_properties(options).items():
        lowered = key.lower()
        if lowered in names:
            name = names[lowered]
            if name in given and given[name] != value.strip():
                problems.append(f"{sources[name]} and {key} mean the same and differ")
            given[name], sources[name] = value.strip(), key
        elif lowered in instead:
            problems.append(f"option {instead[lowered]} does not exist here: {INSTEAD[instead[lowered]]}")
        elif lowered in later:
            problems.append(f"option {later[lowered]} is not supported by this source")
        elif lowered not in broker and not lowered.startswith(BROKER_PREFIXES):
            nearest = difflib.get_close_matches(lowered, names, n=1)
            hint = f"; did you mean {names[nearest[0]]}?" if nearest else f"; known are {', '.join(KNOWN)}"
            problems.append(f"unknown option {key}{hint}")
    return given


def without_table_properties(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a table, or of a read without one."""
    lowered = {key.lower() for key in options}
    found = {}
    for key, value in options.items():
        if key.lower().startswith(_AGAIN):
            key = key[len(_AGAIN) :]
            if key.lower() in lowered:
                continue
        elif key.lower() in TABLE_PROPERTIES and "provider" in lowered:
            continue
        found[key] = value
    return found


def _topics(given: Mapping[str, str], problems: list[str]) -> tuple[TopicName, ...]:
    names = list(_list(given.get("topic", "")))
    listed = given.get("topics", "")
    try:
        names += json.loads(listed) if listed.startswith("[") else _list(listed)  # load(["a", "b"]) gives JSON
    except ValueError:
        problems.append(f"topics={listed}: expected names with commas between them")
    if not names:
        problems.append("no topic: set option topic, or topics with commas between them")
    found: dict[TopicName, None] = {}
    for name in names:
        try:
            found[parse_topic(name)] = None
        except ConfigurationError as error:
            problems.append(str(error))
    for topic in found:
        if topic.base != topic and topic.base in found:
            problems.append(f"topic {topic} is a partition of {topic.base}, which is read, too")
    return tuple(found)


def _pattern(given: Mapping[str, str], problems: list[str]) -> TopicsPattern | None:
    text = given.get("topicsPattern")
    internal = _flag(given, "includeInternal", False, problems)
    if text is None:
        if "includeInternal" in given:
            problems.append("includeInternal belongs to topicsPattern")
        return None
    if "topic" in given or "topics" in given:
        problems.append("topicsPattern and topic cannot both be given")
    found = _PATTERN.fullmatch(text)
    if found is None:
        problems.append(
            f"topicsPattern={text}: expected persistent://tenant/namespace/EXPRESSION, or an expression for names in "
            "public/default; tenant and namespace are plain names"
        )
        return None
    try:
        re.compile(found["local"])
    except re.error as error:
        problems.append(f"topicsPattern={text}: {error}")
    return TopicsPattern(
        found["tenant"] or "public", found["namespace"] or "default", found["local"], internal,
        names_namespace=found["tenant"] is not None,
    )  # fmt: skip


def _starting(
    given: Mapping[str, str], kind: Kind, topics: tuple[TopicName, ...], problems: list[str]
) -> tuple[Offsets, bool]:
    """(positions, whether a stream begins behind everything where there are none)."""
    neutral = "latest" if kind is Kind.STREAM and "startingTimestamp" not in given else "earliest"
    text = given.get("startingOffsets", neutral).lower()
    if kind is not Kind.BATCH and text == "latest":
        return {}, True
    return _offsets(given, "startingOffsets", "earliest", topics, problems, takes_latest=kind is not Kind.BATCH), False


def _slack(given: Mapping[str, str], problems: list[str]) -> int:
    """In milliseconds."""
    if "publishTimeSlack" not in given:
        return SLACK_MS
    matched = _DURATION.fullmatch(given["publishTimeSlack"])
    if matched is None:
        problems.append(f"publishTimeSlack={given['publishTimeSlack']}: expected a time such as 10m, 30s or 1h")
        return SLACK_MS
    return int(matched[1]) * {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}[matched[2].lower()]


def _times(given: Mapping[str, str], slack_ms: int, problems: list[str]) -> Times | None:
    found = {}
    for name, offsets in (("startingTimestamp", "startingOffsets"), ("endingTimestamp", "endingOffsets")):
        text = given.get(name)
        if text is None:
            continue
        if offsets in given:
            problems.append(f"{name} and {offsets} cannot both be given")
        try:
            found[name] = _milliseconds(text)
        except ValueError as error:
            problems.append(f"{name}={text}: expected milliseconds since 1970, or 2026-11-23T10:00:00Z ({error})")
    return Times(found.get("startingTimestamp"), found.get("endingTimestamp"), slack_ms) if found else None


def _milliseconds(text: str) -> int:
    """Since 1970; a time without a zone is one of UTC. Raises ValueError."""
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    found = datetime.fromisoformat(text)
    return round((found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp() * 1000)


def _one_of(given: Mapping[str, str], name: str, choices: tuple[str, ...], problems: list[str]) -> str:
    """The first of *choices* where nothing is given. Letters' cases do not matter."""
    text = given.get(name, choices[0])
    found = next((one for one in choices if one.lower() == text.lower()), None)
    if found is None:
        problems.append(f"{name}={text}: expected {', '.join(choices[:-1])} or {choices[-1]}")
    return found or choices[0]


def _list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _number(given: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = given.get(name)
    if text is None:
        return default
    if not _NUMBER.fullmatch(text) or int(text) < 1:
        problems.append(f"{name}={text}: expected a number of at least 1")
        return default
    return int(text)


def size_option(given: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    """An option such as 128m, in bytes; what is wrong with it goes to *problems*."""
    text = given.get(name)
    if text is None:
        return default
    found = _SIZE.fullmatch(text)
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
    given: Mapping[str, str],
    name: str,
    neutral: str,
    topics: tuple[TopicName, ...],
    problems: list[str],
    *,
    takes_latest: bool = False,
) -> Offsets:
    """`{"topic": {"0": "12:345"}}`; -2 is earliest and -1 latest, as Kafka's connector has it."""
    text = given.get(name, neutral)
    if text.lower() == neutral:
        return {}
    if text.lower() in ("earliest", "latest"):
        problems.append(f"{name}={text}: a batch read starts at earliest and ends at latest, or at given positions")
        return {}
    found: dict[TopicName, dict[int, Position]] = {}
    try:
        for given_name, partitions in json.loads(text).items():
            topic = parse_topic(given_name)
            if topics and topic not in topics:
                problems.append(f"{name}: topic {given_name} is not among those that are read")
            for partition, place in partitions.items():
                if takes_latest and place in _LATEST_PLACES:
                    found.setdefault(topic, {})[int(partition)] = LATEST
                    continue
                position = _position(place, neutral, (int(partition), topic.partition))
                if position is not None:
                    found.setdefault(topic, {})[int(partition)] = position
    except (ValueError, AttributeError, TypeError, ConfigurationError) as error:
        problems.append(f'{name}: expected {neutral} or {{"topic": {{"0": "ledger:entry"}}}} ({error})')
    return found


def _position(place: Any, neutral: str, partitions: tuple[int, ...]) -> Position | None:
    """None for the neutral end; an id of a message may name one of *partitions*. Raises ValueError."""
    if place in (*_EARLIEST_PLACES, *_LATEST_PLACES):
        meant = "earliest" if place in _EARLIEST_PLACES else "latest"
        if meant != neutral:
            raise ValueError(f"{place} makes the read empty")
        return None
    found = MessageId.parse(str(place))
    if found.partition not in (-1, *partitions):
        raise ValueError(f"{place!r} is in partition {found.partition}")
    if found.batch_index > 0:
        raise ValueError(
            f"{place!r} is inside a batch, and entries are read whole: write {found.ledger_id}:{found.entry_id} "
            f"to begin with it, {found.ledger_id}:{found.entry_id + 1} to end behind it"
        )
    if found.ledger_id < 0 or found.entry_id < 0:
        raise ValueError(f"{place!r} is not ledger:entry")
    return found.ledger_id, found.entry_id
