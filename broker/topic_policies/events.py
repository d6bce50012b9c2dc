"""The messages of the system topic `__change_events`: one for each change of a topic's policies, in Avro.

    key      persistent://tenant/namespace/topic      for this cluster; with `__G__` in front: for all clusters
    value    PulsarEvent: what happened, and all policies of the topic as they are now; no value: it has none any more

The last message of a key counts. `change_events.avsc` is the schema that Apache's brokers register, byte for byte: with
another text the topic would get a second version of the same schema.
"""

import io
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final, NamedTuple

import fastavro

from broker.topic_policies.record import NONE_SET, Record
from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.messages import messages_of
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.topic_name import TopicName, TopicNameError

CHANGES: Final = "__change_events"
"""The local name of the system topic, of which each namespace has one."""

GLOBAL: Final = "__G__"

SCHEMA: Final = (files("broker.topic_policies") / "change_events.avsc").read_text(encoding="utf-8")
SCHEMA_PROPERTIES: Final = {"__jsr310ConversionEnabled": "false", "__alwaysAllowNull": "true"}
"""With which Apache's clients register a schema that they made from a class."""

_PARSED: Final = fastavro.parse_schema(json.loads(SCHEMA))


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


def metadata_of(topic: TopicName, *, is_global: bool, cluster: str, is_removal: bool) -> MessageMetadata:
    """The metadata of such a message, without what its producer adds."""
    made = MessageMetadata(partition_key=key_of(topic, is_global=is_global), partition_key_b64_encoded=False)
    if not is_global:
        made.replicate_to.append(cluster)
    if is_removal:
        made.null_value = True
    return made


def changes_in(entry: Buffer, schemas: Mapping[bytes, Any]) -> list[Change]:
    """The changes that an entry holds, in order; a message that is no such event is passed over.

    *schemas*: version → schema with which values were written, for versions other than ours.

    Raises Corruption.
    """
    metadata, messages = messages_of(entry)
    found = []
    for message in messages:
        single = message.single
        key = metadata.partition_key if single is None else single.partition_key
        is_removal = metadata.null_value if single is None else single.null_value
        is_global = key.startswith(GLOBAL)
        try:
            topic = TopicName.parse(key.removeprefix(GLOBAL))
        except TopicNameError:
            continue
        written = schemas.get(metadata.schema_version)
        policies = None if is_removal or not message.payload else _decode(bytes(message.payload), written)
        found.append(Change(topic, is_global, policies))
    return found


def _decode(value: bytes, written: Any) -> Record | None:
    try:
        event: Any = fastavro.schemaless_reader(io.BytesIO(value), written or _PARSED, _PARSED)
        policies = (event.get("topicPoliciesEvent") or {}).get("policies")
    except Exception as error:  # the library raises what the bytes lead it to
        raise Corruption(f"an event of {CHANGES} cannot be decoded: {type(error).__name__}: {error}") from error
    if event.get("eventType") not in (None, "TOPIC_POLICY") or event.get("actionType") == "DELETE":
        return None
    return _known(policies) if policies else None


def _known(record: Mapping[str, Any]) -> Record:
    """The members that are set."""
    return {name: value for name, value in record.items() if value is not None and name != "isGlobal"}


def parse_schema(text: str) -> Any:
    """A schema with which other brokers have written. Raises Corruption."""
    try:
        return fastavro.parse_schema(json.loads(text))
    except Exception as error:
        raise Corruption(f"a schema of {CHANGES} cannot be read: {type(error).__name__}: {error}") from error
