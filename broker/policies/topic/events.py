"""The messages of the system topic `__change_events`: one for each change of a topic's policies, in Avro.

    key      persistent://tenant/namespace/topic      for this cluster; with `__G__` in front: for all clusters
    value    PulsarEvent: what happened, and all policies of the topic as they are now; no value: it has none any more

The last message of a key counts. `change_events.avsc` is the schema that Apache's brokers register, byte for byte: with
another text the topic would get a second version of the same schema.

Without authorization anybody can write here, and with any schema: a message that cannot be read within the bounds below
is skipped and logged, as by Apache's brokers, and the messages after it count.
"""

import io
import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final, NamedTuple

import fastavro

from broker.policies.topic.avro_values import read_value
from broker.policies.topic.record import NONE_SET, Record
from magnetar_core.runtime.types import KIB, MIB, Buffer, Corruption
from magnetar_core.topics.topic_name import TopicName, TopicNameError
from managed_ledger.messages import Message
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.schemas.avro import AvroType, InvalidSchema, parse

CHANGES: Final = "__change_events"
"""The local name of the system topic, of which each namespace has one."""

GLOBAL: Final = "__G__"

SCHEMA: Final = (files("broker.policies.topic") / "change_events.avsc").read_text(encoding="utf-8")
SCHEMA_PROPERTIES: Final = {"__jsr310ConversionEnabled": "false", "__alwaysAllowNull": "true"}
"""With which Apache's clients register a schema that they made from a class."""

_PARSED: Final = fastavro.parse_schema(json.loads(SCHEMA))
_EVENT: Final = parse(SCHEMA.encode())

# An event: some hundred bytes, and fifty more for each subscription with a rate of its own.
EVENT_BYTES_MAX: Final = 1 * MIB

# The schema with which events were written; that of Apache's brokers has 9 KB.
SCHEMA_BYTES_MAX: Final = 256 * KIB


class Change(NamedTuple):
    """One message of the system topic."""

    topic: TopicName
    is_global: bool
    policies: Record | None
    """None: the topic has none any more."""


def key_of(topic: TopicName, *, is_global: bool) -> str:
    return (GLOBAL if is_global else "") + topic.full


def encode(topic: TopicName, policies: Record, *, is_global: bool, cluster: str) -> bytes:
    """The value of the message by which *topic* has *policies* from now on."""
    event = {
        "actionType": "UPDATE",
        "eventType": "TOPIC_POLICY",
        # Other clusters take over only what is meant for all.
        "replicateTo": None if is_global else [cluster],
        "topicPoliciesEvent": {
            "domain": "persistent",
            "namespace": topic.namespace.partition("/")[2],
            "policies": {**NONE_SET, **policies, "isGlobal": is_global},
            "tenant": topic.namespace.partition("/")[0],
            "topic": topic.local,
        },
    }
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _PARSED, event)
    return out.getvalue()


def event_metadata(topic: TopicName, *, is_global: bool, cluster: str, is_removal: bool) -> MessageMetadata:
    """The metadata of such a message, without what its producer adds."""
    metadata = MessageMetadata(partition_key=key_of(topic, is_global=is_global), partition_key_b64_encoded=False)
    if not is_global:
        metadata.replicate_to.append(cluster)
    if is_removal:
        metadata.null_value = True
    return metadata


class Unreadable(NamedTuple):
    """A message of the system topic that is passed over, and why."""

    problem: str


def changes_in(
    metadata: MessageMetadata, messages: Iterator[Message], written: AvroType | Unreadable
) -> Iterator[Change | Unreadable]:
    """The changes that an entry with *metadata* and *messages* holds, in order, and what cannot be read of it.

    *written*: the schema with which its values were written. Raises Corruption where its batch is damaged.
    """
    for message in messages:
        single = message.single
        key = metadata.partition_key if single is None else single.partition_key
        is_removal = metadata.null_value if single is None else single.null_value
        try:
            topic = TopicName.parse(key.removeprefix(GLOBAL))
            policies = None if is_removal or not message.payload else _decode(message.payload, written)
        except (TopicNameError, Corruption) as error:
            yield Unreadable(str(error))
        else:
            yield Change(topic, key.startswith(GLOBAL), policies)


def _decode(value: Buffer, written: AvroType | Unreadable) -> Record | None:
    """Raises Corruption."""
    if isinstance(written, Unreadable):
        raise Corruption(written.problem)
    if len(value) > EVENT_BYTES_MAX:
        raise Corruption(f"an event of {len(value)} bytes is larger than {EVENT_BYTES_MAX}")
    event = read_value(value, written, _EVENT)
    policies = (event["topicPoliciesEvent"] or {}).get("policies")
    if event["eventType"] not in (None, "TOPIC_POLICY") or event["actionType"] == "DELETE":
        return None
    return _known(policies) if policies else None


def _known(record: Mapping[str, Any]) -> Record:
    """The members that are set."""
    return {name: value for name, value in record.items() if value is not None and name != "isGlobal"}


def parse_schema(data: bytes) -> AvroType | Unreadable:
    """The schema that messages were written with; any client may have registered it, so it may be unreadable."""
    if data == SCHEMA.encode():
        return _EVENT
    if len(data) > SCHEMA_BYTES_MAX:
        return Unreadable(f"its schema has {len(data)} bytes, more than {SCHEMA_BYTES_MAX}")
    try:
        return parse(data)
    except InvalidSchema as error:
        return Unreadable(f"its schema {error}")
