"""The options of `spark.read.format("magnetar")`. No IO.

The names are those of pulsar-spark and of Kafka's connector, where these
have the option.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final, NamedTuple

from connectors.spark.options.table import (
    BROKER,
    BROKER_PREFIXES,
    Option,
    bounded,
    client_options,
    client_problems,
    duration,
    flag,
    known_names,
    names,
    number,
    one_of,
    read_names,
    read_values,
    size,
)
from connectors.spark.ranges import Position, Times
from magnetar_core.bookkeeper.wire.framing import LARGEST_FRAME_BYTES_MAX, MAX_FRAME_BYTES
from magnetar_core.runtime.types import MIB, ConfigurationError
from magnetar_core.topics.message_id import MessageId
from magnetar_core.topics.topic_name import TopicName, TopicNameError
from managed_ledger.messages import CHUNKED_BYTES_MAX

# Options of other connectors that do not exist here, with what there is instead: refused by name, so that nobody
# believes they work.
_NO_BROKER: Final = "reading asks no broker: set metadata.url, and for writing service.url"
INSTEAD: Final = {
    # Kafka's
    "kafka.bootstrap.servers": _NO_BROKER,
    "assign": "a partition is a topic: topics=NAME-partition-0,NAME-partition-3",
    "startingOffsetsByTimestamp": "set startingTimestamp, one time for all topics",
    "endingOffsetsByTimestamp": "set endingTimestamp, one time for all topics",
    "startingOffsetsByTimestampStrategy": "leave it out: where no message is later than startingTimestamp, the read "
    "begins at the end",
    "includeHeaders": "leave it out: column __messageProperties is always there",
    "maxRecordsPerPartition": "set targetPartitionBytes, or minPartitions",
    "groupIdPrefix": "leave it out: nobody consumes; subscription names a subscription that keeps what is not read",
    "kafka.group.id": "leave it out: nobody consumes; subscription names a subscription that keeps what is not read",
    "kafkaConsumer.pollTimeoutMs": "set bookkeeper.readTimeoutMs",
    "fetchOffset.numRetries": "leave it out: another bookie is asked by itself",
    "fetchOffset.retryIntervalMs": "leave it out: another bookie is asked by itself",
    # pulsar-spark's
    "columnStyle": "leave it out: values and metadata are columns side by side",
    "pollTimeoutMs": "set bookkeeper.readTimeoutMs",
    "subscriptionPrefix": "leave it out: reading needs no subscription; subscription names one that a stream moves",
    "waitingForNonExistedTopic": "create the topic first, or set topicsPattern, whose topics join when they are there",
    "allowDifferentTopicSchemas": "valueFormat=binary leaves the values of topics with different schemas as they are, "
    "unionSchemas=true decodes each by its own",
}

# Which options only one kind of read has.
ONLY_BATCH: Final = ("endingOffsets", "endingTimestamp", "compacted", "pushDownFilters", "backlogOf")
ONLY_STREAM: Final = (
    "maxMessagesPerTrigger", "maxBytesPerTrigger", "minMessagesPerTrigger", "maxTriggerDelay", "subscription",
    "failOnNewSchema",
)  # fmt: skip

UNPACKED_BYTES: Final = 20 * MIB
"""What an entry may unpack to, unless an option says otherwise: four times the largest message, as at brokers
(`maxUncompressedEntrySize`). Spark's JVM holds a row of this size up to four times on its heap, for each task."""

TARGET_BYTES: Final = 128 * MIB
PARTITIONS_MAX: Final = 10_000
"""Spark plans 10,000 tasks in half a second; more than that is a mistake in the options."""

LATEST: Final[Position] = (-1, -1)
"""As the place where a stream begins: behind the entries that are there at that moment."""

VALUE_FORMATS: Final = ("binary", "string", "avro", "json", "protobuf", "keyvalue", "auto")

KEY_FORMATS: Final = ("binary", "string")

ENCRYPTED: Final = ("error", "raw")

_PATTERN: Final = re.compile(
    r"((persistent://)?(?P<tenant>[-=:.\w]+)/(?P<namespace>[-=:.\w]+)/)?(?P<local>[^/]+)", re.ASCII
)

_MILLISECONDS: Final = re.compile(r"[0-9]{5,16}")

SLACK_MS: Final = 10 * 60_000
"""How far the clocks of producers and brokers may be apart, with the time that a message is on its way."""

TRIGGER_DELAY_MS: Final = 15 * 60_000
"""How long a batch waits for `minMessagesPerTrigger`, as with Kafka's source."""

_METADATA_URLS: Final = ("zk:", "zk+", "rocksdb:", "memory:", "metadata-store:")
_BROKERS_URL: Final = re.compile(r"(pulsar|pulsar\+ssl|https?)://.*", re.IGNORECASE)
_WAYS_TO_METADATA: Final = "set it to zk:host:port of the cluster, or rocksdb:DIR of a standalone"

_EARLIEST_PLACES: Final = ("earliest", -2, "-2")
_LATEST_PLACES: Final = ("latest", -1, "-1")


def parse_topic(name: str) -> TopicName:
    """The topic, from any of the forms in which clients take its name. Raises ConfigurationError."""
    try:
        topic = TopicName.parse(name)
    except TopicNameError as error:
        raise ConfigurationError(
            f"topic {error}; a topic is called NAME, tenant/namespace/NAME or persistent://tenant/namespace/NAME"
        ) from None
    if not topic.is_persistent:
        raise ConfigurationError(
            f"topic {name}: only persistent topics have ledgers to read; leave it out, or read it with a client"
        )
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
    """They are left out."""


def _metadata_url(text: str) -> str:
    """Raises ValueError."""
    if _BROKERS_URL.fullmatch(text):
        raise ValueError(
            "that is the brokers' address, and reading asks the metadata store: expected zk:host:port of the cluster, "
            "or rocksdb:DIR of a standalone (its folder `metadata`)"
        )
    if text and not text.startswith(_METADATA_URLS):
        raise ValueError("expected zk:host:port of the cluster, or rocksdb:DIR of a standalone")
    return text


def service_address(text: str) -> str:
    """Raises ValueError."""
    if text.startswith(_METADATA_URLS):
        raise ValueError("that is the metadata store, which is metadata.url: expected the brokers', pulsar://host:6650")
    if text and "://" not in text:
        raise ValueError("expected the brokers' address, pulsar://host:6650")
    return text


def _subscription(text: str) -> str:
    """Raises ValueError."""
    if not text:
        raise ValueError("expected the name of a subscription")
    return text


def _columns(text: str) -> tuple[str, ...]:
    """Raises ValueError."""
    columns = names(text)
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise ValueError(f"expected each once, and {', '.join(twice)} stands there more than once")
    return columns


_FORMATS_WITH_COLUMNS: Final = frozenset(VALUE_FORMATS) - {"binary", "string"}

TABLE: Final = (
    Option("metadata.url", "metadata_url", _metadata_url, ("metadataServiceUri", "metadataUrl")),
    Option("topic", also=("path",)),
    Option("topics", also=("paths", "subscribe")),
    Option("topicsPattern", also=("subscribePattern",)),
    Option("includeInternal"),
    Option("startingOffsets"),
    Option("endingOffsets"),
    Option("startingTimestamp", also=("startingTime",)),
    Option("endingTimestamp", also=("endingTime",)),
    Option("publishTimeSlack", "slack_ms", duration),
    Option("compacted", "compacted", flag, ("readCompacted",)),
    Option("pushDownFilters", "push_down_filters", flag),
    Option("backlogOf", "backlog_of", _subscription, ("ackedBy",)),
    Option("minPartitions", "min_partitions", number),
    Option("maxPartitions", "max_partitions", number),
    Option("targetPartitionBytes", "target_bytes", size),
    Option("failOnDataLoss", "fail_on_data_loss", flag),
    Option("failOnNewSchema", "fail_on_new_schema", flag),
    Option("maxMessagesPerTrigger", "max_messages", number, ("maxOffsetsPerTrigger",)),
    Option("maxBytesPerTrigger", "max_bytes", size),
    Option("minMessagesPerTrigger", "min_messages", number, ("minOffsetsPerTrigger",)),
    Option("maxTriggerDelay", "trigger_delay_ms", duration),
    Option("subscription", "subscription", also=("predefinedSubscription",)),
    Option("service.url", "service_url", service_address, ("serviceUrl",)),
    Option("columns", "columns", _columns),
    Option("valueFormat", "value_format", one_of(*VALUE_FORMATS)),
    Option("mode", "mode", lambda text: Mode(one_of(*Mode.__members__)(text))),
    Option("keyFormat", "key_is_text", lambda text: one_of(*KEY_FORMATS)(text) == "string"),
    Option("encrypted", "passes_encrypted", lambda text: one_of(*ENCRYPTED)(text) == "raw"),
    Option("encryption.keys", "key_folder"),
    Option("unionSchemas", "union_schemas", flag),
    Option("bookkeeper.readTimeoutMs", "read_timeout_s", lambda text: number(text) / 1000),
    Option("bookkeeper.tlsDirectory", "tls_directory"),
    Option(
        "bookkeeper.nettyMaxFrameSizeBytes",
        "frame_bytes_max",
        bounded(
            number, MIB, LARGEST_FRAME_BYTES_MAX, f"{MIB} to {LARGEST_FRAME_BYTES_MAX}, as it is set in the bookies"
        ),
    ),
    Option(
        "maxUnpackedBytes",
        "unpacked_bytes_max",
        bounded(size, MIB, CHUNKED_BYTES_MAX, f"1m to {CHUNKED_BYTES_MAX // MIB}m"),
    ),
    Option("ledgersRoot", "ledgers_root"),
)
KNOWN: Final = tuple(option.name for option in TABLE)


@dataclass(frozen=True, slots=True)
class TopicsPattern:
    """Topics of one namespace whose names match; *local* is a regular expression for the last part of the name."""

    tenant: str
    namespace: str
    local: str
    includes_internal: bool = False
    """Topics of brokers, and others whose names begin with `__`."""
    names_namespace: bool = False
    """The namespace was written out; else it is the default one."""

    def names(self, topic: TopicName) -> bool:
        """Whether the name matches, whoever's topic it is."""
        is_there = topic.namespace == f"{self.tenant}/{self.namespace}"
        return is_there and re.fullmatch(self.local, topic.local) is not None


class Place(NamedTuple):
    """Where the bookies are, and how they are asked."""

    metadata_url: str
    ledgers_root: str
    read_timeout_s: float
    tls_directory: str
    frame_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """A read, checked. Offsets are by topic and partition (0 where there are none); without one there is no bound."""

    metadata_url: str
    topics: tuple[TopicName, ...]
    """Empty with a pattern."""
    pattern: TopicsPattern | None = None
    starting: Offsets = field(default_factory=dict)
    ending: Offsets = field(default_factory=dict)
    times: Times | None = None
    """Only messages of this publish time."""
    starts_latest: bool = False
    """A stream begins behind what is there, where no offsets are given."""
    max_messages: int | None = None
    """How many messages one batch of a stream has at most, but for an entry of each partition."""
    max_bytes: int | None = None
    min_messages: int | None = None
    """How many messages a batch waits for, *trigger_delay_ms* after the one before at most."""
    trigger_delay_ms: int = TRIGGER_DELAY_MS
    subscription: str = ""
    """The subscription by which the brokers keep what a stream has not read; empty: none."""
    service_url: str = ""
    broker_options: Mapping[str, str] = field(default_factory=dict)
    """`pulsar.client.…` in lower case, for reads that need a broker."""
    min_partitions: int = 1
    max_partitions: int = PARTITIONS_MAX
    target_bytes: int = TARGET_BYTES
    fail_on_data_loss: bool = True
    fail_on_new_schema: bool | None = None
    """A stream ends before it reads messages that may have columns which it has not; None: if it has all columns of the
    topics' schema."""
    columns: tuple[str, ...] = ()
    value_format: str = "binary"
    key_is_text: bool = False
    """The column `__key` is text, not bytes."""
    passes_encrypted: bool = False
    """Encrypted entries are rows, as they are; otherwise the read fails, unless it has their keys."""
    key_folder: str = ""
    """Folder with private keys, NAME.pem each, on every machine that reads: encrypted entries are decrypted."""
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
    """Only the last message of each key is read of what compaction has looked at, and all that came since."""
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
    given = read_names(TABLE, options, problems, _why_not)
    for name in {Kind.BATCH: ONLY_STREAM, Kind.STREAM: ONLY_BATCH}.get(kind, ()):
        if name in given:
            problems.append(f"option {name} has no meaning for {kind.value}")
    values = read_values(TABLE, given, problems)
    pattern = values["pattern"] = _pattern(given, problems)
    topics = values["topics"] = _topics(given, problems) if pattern is None else ()

    def is_read(topic: TopicName) -> bool:
        return pattern.names(topic) if pattern is not None else topic in topics or not topics

    values["starting"], values["starts_latest"] = _parse_starting(given, kind, is_read, problems)
    values["ending"] = _offsets(given, "endingOffsets", "latest", is_read, problems)
    values["times"] = _times(given, values.get("slack_ms", SLACK_MS), problems)
    values["max_partitions"] = values.get("max_partitions") or max(PARTITIONS_MAX, values.get("min_partitions", 1))
    problems += _contradictions(given, values)
    if "subscription" in given:
        problems += client_problems(options)
    if problems:
        raise ConfigurationError("; ".join(problems))
    return ReadOptions(
        **values,
        broker_options=client_options(options),
        unused=_unused_broker_options(options, needs_broker="subscription" in given),
    )


def _contradictions(given: Mapping[str, str], values: Mapping[str, Any]) -> Iterator[str]:
    """What does not go together."""
    if not given.get("metadata.url"):
        yield f"no metadata.url: {_WAYS_TO_METADATA}"
    if "topic" in given and "topics" in given:
        yield "topic and topics cannot both be given: name all of them in topics, with commas between them"
    value_format = values.get("value_format", "binary")
    if values.get("passes_encrypted") and value_format != "binary":
        yield (
            f"encrypted=raw passes values as they are, which valueFormat={value_format} cannot decode; set "
            "valueFormat=binary"
        )
    if values.get("passes_encrypted") and values.get("key_folder"):
        yield "encrypted=raw and encryption.keys cannot both be given: messages are decrypted, or stay as they are"
    if values.get("union_schemas") and value_format not in _FORMATS_WITH_COLUMNS:
        yield f"unionSchemas=true has no meaning for valueFormat={value_format}; set valueFormat=auto"
    if values.get("fail_on_new_schema") and value_format not in _FORMATS_WITH_COLUMNS:
        yield f"failOnNewSchema=true has no meaning for valueFormat={value_format}; set valueFormat=auto"
    if (minimum := values.get("min_partitions", 1)) > values["max_partitions"]:
        yield f"minPartitions={minimum} is more than maxPartitions={values['max_partitions']}"
    if "publishTimeSlack" in given and values["times"] is None and not values.get("push_down_filters"):
        yield "publishTimeSlack belongs to startingTimestamp, endingTimestamp and pushDownFilters"
    if values.get("compacted") and (values["starting"] or values["ending"]):
        yield (
            "compacted=true reads the last message of each key of a whole topic; leave out startingOffsets and "
            "endingOffsets, or compacted"
        )
    if values.get("compacted") and values.get("backlog_of"):
        yield "backlogOf and compacted cannot both be given: what compaction kept is not what was consumed"
    if "maxTriggerDelay" in given and "minMessagesPerTrigger" not in given:
        yield "maxTriggerDelay belongs to minMessagesPerTrigger"
    least, most = values.get("min_messages"), values.get("max_messages")
    if least is not None and most is not None and least > most:
        yield f"minMessagesPerTrigger={least} is more than maxMessagesPerTrigger={most}"
    if "subscription" in given and not values.get("service_url"):
        yield "subscription needs service.url, the address of the brokers: pulsar://host:6650"


def _unused_broker_options(options: Mapping[str, str], *, needs_broker: bool) -> tuple[str, ...]:
    """Names of given options that are about brokers, where no broker is needed."""
    names = {name.lower() for name in BROKER}
    prefixes: tuple[str, ...] = BROKER_PREFIXES
    if needs_broker:
        prefixes = tuple(prefix for prefix in prefixes if prefix != "pulsar.client.")
    else:
        names |= {name for name, option in known_names(TABLE).items() if option == "service.url"}
    return tuple(key for key in options if key.lower() in names or key.lower().startswith(prefixes))


def why_not_here(lowered: str, key: str) -> str | None:
    """What is wrong with an option of another connector (`read_names`)."""
    for name, way in INSTEAD.items():
        if name.lower() == lowered:
            return f"option {name} does not exist here: {way}"
    return f"option {key} does not exist here: {_NO_BROKER}" if lowered.startswith("kafka.") else None


def _why_not(lowered: str, key: str) -> str | None:
    """What is wrong with an option that is not in the table (`read_names`)."""
    if (why := why_not_here(lowered, key)) is not None:
        return why
    is_brokers = lowered in {name.lower() for name in BROKER} or lowered.startswith(BROKER_PREFIXES)
    return "" if is_brokers else None


def _topics(given: Mapping[str, str], problems: list[str]) -> tuple[TopicName, ...]:
    topics = list(names(given.get("topic", "")))
    listed = given.get("topics", "")
    try:
        topics += json.loads(listed) if listed.startswith("[") else names(listed)  # load(["a", "b"]) gives JSON
    except ValueError:
        problems.append(f"topics={listed}: expected names with commas between them")
    if not topics:
        problems.append("no topic: set option topic, or topics with commas between them")
    parsed: dict[TopicName, None] = {}
    for name in topics:
        try:
            parsed[parse_topic(name)] = None
        except ConfigurationError as error:
            problems.append(str(error))
    for topic in parsed:
        if topic.base != topic and topic.base in parsed:
            problems.append(f"topic {topic} is a partition of {topic.base}, which is read, too")
    return tuple(parsed)


def _pattern(given: Mapping[str, str], problems: list[str]) -> TopicsPattern | None:
    text = given.get("topicsPattern")
    internal = False
    if "includeInternal" in given:
        try:
            internal = flag(given["includeInternal"])
        except ValueError as error:
            problems.append(f"includeInternal={given['includeInternal']}: {error}")
    if text is None:
        if "includeInternal" in given:
            problems.append("includeInternal belongs to topicsPattern")
        return None
    if "topic" in given or "topics" in given:
        problems.append("topicsPattern and topic cannot both be given")
    match = _PATTERN.fullmatch(text)
    if match is None:
        problems.append(
            f"topicsPattern={text}: expected persistent://tenant/namespace/EXPRESSION, or an expression for names in "
            "public/default; tenant and namespace are plain names"
        )
        return None
    try:
        re.compile(match["local"])
    except re.error as error:
        problems.append(f"topicsPattern={text}: expected a regular expression ({error})")
    return TopicsPattern(
        match["tenant"] or "public", match["namespace"] or "default", match["local"], internal,
        names_namespace=match["tenant"] is not None,
    )  # fmt: skip


def _parse_starting(
    given: Mapping[str, str], kind: Kind, is_read: Callable[[TopicName], bool], problems: list[str]
) -> tuple[Offsets, bool]:
    """(positions, whether a stream begins behind everything where there are none)."""
    neutral = "latest" if kind is Kind.STREAM and "startingTimestamp" not in given else "earliest"
    text = given.get("startingOffsets", neutral).lower()
    if kind is not Kind.BATCH and text == "latest":
        return {}, True
    return _offsets(given, "startingOffsets", "earliest", is_read, problems, takes_latest=kind is not Kind.BATCH), False


def _times(given: Mapping[str, str], slack_ms: int, problems: list[str]) -> Times | None:
    bounds = {}
    for name, offsets in (("startingTimestamp", "startingOffsets"), ("endingTimestamp", "endingOffsets")):
        text = given.get(name)
        if text is None:
            continue
        if offsets in given:
            problems.append(f"{name} and {offsets} cannot both be given")
        try:
            bounds[name] = _milliseconds(text)
        except ValueError as error:
            problems.append(f"{name}={text}: expected milliseconds since 1970, or 2026-11-23T10:00:00Z ({error})")
    return Times(bounds.get("startingTimestamp"), bounds.get("endingTimestamp"), slack_ms) if bounds else None


def _milliseconds(text: str) -> int:
    """Since 1970; a time without a zone is one of UTC. Raises ValueError."""
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    time = datetime.fromisoformat(text)
    return round((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)


def _offsets(
    given: Mapping[str, str],
    name: str,
    neutral: str,
    is_read: Callable[[TopicName], bool],
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
    positions: dict[TopicName, dict[int, Position]] = {}
    try:
        for given_name, partitions in json.loads(text).items():
            topic = parse_topic(given_name)
            if not is_read(topic):
                problems.append(f"{name}: topic {given_name} is not among those that are read")
            for partition, place in partitions.items():
                if takes_latest and place in _LATEST_PLACES:
                    positions.setdefault(topic, {})[int(partition)] = LATEST
                    continue
                position = _position(place, neutral, (int(partition), topic.partition))
                if position is not None:
                    positions.setdefault(topic, {})[int(partition)] = position
    except (ValueError, AttributeError, TypeError, ConfigurationError) as error:
        problems.append(f'{name}: expected {neutral} or {{"topic": {{"0": "ledger:entry"}}}} ({error})')
    return positions


def _position(place: Any, neutral: str, partitions: tuple[int, ...]) -> Position | None:
    """None for the neutral end; an id of a message may name one of *partitions*. Raises ValueError."""
    if place in (*_EARLIEST_PLACES, *_LATEST_PLACES):
        meant = "earliest" if place in _EARLIEST_PLACES else "latest"
        if meant != neutral:
            raise ValueError(f"{place} makes the read empty")
        return None
    if str(place).isdecimal():
        by_time = "startingTimestamp" if neutral == "earliest" else "endingTimestamp"
        raise ValueError(f"{place} is a number, as Kafka's offsets are; {by_time} is the way by time")
    message_id = MessageId.parse(str(place))
    if message_id.partition not in (-1, *partitions):
        raise ValueError(f"{place!r} is in partition {message_id.partition}")
    if message_id.batch_index > 0:
        raise ValueError(
            f"{place!r} is inside a batch, and entries are read whole: write "
            f"{message_id.ledger_id}:{message_id.entry_id} to begin with it, "
            f"{message_id.ledger_id}:{message_id.entry_id + 1} to end behind it"
        )
    if message_id.ledger_id < 0 or message_id.entry_id < 0:
        raise ValueError(f"{place!r} is not ledger:entry")
    return message_id.ledger_id, message_id.entry_id
