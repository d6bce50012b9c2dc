"""JSON of the admin API, to and from values. No IO. (Recorded: tests/vectors/http.)

A KEY_VALUE schema is stored as two definitions with their lengths; the API shows and takes them as one JSON text:
`{"key": …, "value": …}`, where a definition is JSON itself, or empty for a primitive type.
"""

import json
from typing import Any, Final, NamedTuple

from broker.errors import NotAllowed
from magnetar_core.runtime.data.json_text import parse_json
from managed_ledger.errors import IncompatibleSchema, InvalidPosition
from managed_ledger.ledgers.shadows import SHADOW_SOURCE
from managed_ledger.position import EARLIEST, LATEST, Position, named_position
from managed_ledger.schemas.compatibility import Schema, SchemaType, split_key_value
from managed_ledger.schemas.stored import StoredSchema

NO_SHADOWS: Final = "Shadow topics are not served by this broker; consume the topic from another subscription instead"


class BadJson(ValueError):
    """The body is not what the call takes; the text says what it takes."""


def message_id_json(position: Position, partition: int, batch_index: int = -1) -> dict[str, int]:
    return {
        "ledgerId": position.ledger_id,
        "entryId": position.entry_id,
        "partitionIndex": partition,
        "batchIndex": batch_index,
        "batchSize": 0,
    }


class Reset(NamedTuple):
    """Where a subscription is reset to, as a client asks for it."""

    position: Position
    batch_index: int
    """-1: the entry as a whole."""
    is_excluded: bool
    """Deliver what comes behind it."""


def position_from_json(body: Any) -> Position:
    """The position that a message id names. Raises BadJson."""
    if body in ("latest", "earliest"):
        return LATEST if body == "latest" else EARLIEST
    try:
        return named_position(int(body["ledgerId"]), int(body["entryId"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        raise BadJson("a message id is needed: ledgerId and entryId") from None
    except InvalidPosition as error:
        raise BadJson(str(error)) from None


def reset_from_json(body: Any) -> Reset:
    """Where a subscription is to be reset to. Raises BadJson."""
    position = position_from_json(body)
    if position in (EARLIEST, LATEST):
        return Reset(position, -1, is_excluded=False)
    try:
        batch_index = int(body.get("batchIndex", -1))
    except (TypeError, ValueError, OverflowError):
        raise BadJson("batchIndex is a whole number") from None
    # Java's clients write `excluded`; the documentation and other clients call it `isExcluded`.
    return Reset(position, batch_index, is_excluded=bool(body.get("excluded") or body.get("isExcluded")))


def partition_from_json(body: Any) -> int:
    """The number of the partition that a message id names; -1: none. Raises BadJson."""
    try:
        return int(body.get("partitionIndex", -1)) if isinstance(body, dict) else -1
    except (TypeError, ValueError, OverflowError):
        raise BadJson("partitionIndex is a whole number") from None


def properties_from_json(body: Any) -> dict[str, str]:
    """Properties, whose values are texts; an absent body stands for none. Raises BadJson."""
    if body in (None, ""):
        return {}
    if not isinstance(body, dict) or not all(isinstance(value, str) for value in body.values()):
        raise BadJson("properties are a JSON object of texts")
    return dict(body)


def topic_properties_from_json(body: Any) -> dict[str, str]:
    """The properties of a topic. Raises BadJson; NotAllowed if they make it the shadow of another one."""
    properties = properties_from_json(body)
    if SHADOW_SOURCE in properties:
        raise NotAllowed(NO_SHADOWS)
    return properties


def schema_json(stored: StoredSchema) -> dict[str, Any]:
    return {
        "version": stored.version,
        "type": stored.schema.type.name,
        "timestamp": stored.timestamp_ms,
        "data": _definition_text(stored.schema),
        "properties": dict(stored.schema.properties),
    }


def schema_from_json(body: Any) -> Schema:
    """The schema that a client sends. Raises BadJson."""
    if not isinstance(body, dict):
        raise BadJson("a schema is a JSON object with type, schema and properties")
    try:
        kind = SchemaType[body.get("type", "")]
    except (KeyError, TypeError):
        raise BadJson(f"unknown schema type {body.get('type')!r}") from None
    text = body.get("schema") or ""
    if not isinstance(text, str):
        raise BadJson("the member schema is a text")
    properties = properties_from_json(body.get("properties"))
    data = _key_value_definition(text) if kind is SchemaType.KEY_VALUE else text.encode()
    return Schema(kind, data, tuple(properties.items()))


def _definition_text(schema: Schema) -> str:
    if schema.type is not SchemaType.KEY_VALUE:
        return schema.data.decode(errors="replace")
    try:
        key, value = split_key_value(schema)
    except IncompatibleSchema:  # another program has stored it without a check; it is shown as it is
        return schema.data.decode(errors="replace")
    shown = {"key": _nested(key.data), "value": _nested(value.data)}
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


def _nested(definition: bytes) -> Any:
    try:
        return parse_json(definition) if definition else ""
    except ValueError:
        return definition.decode(errors="replace")


def _key_value_definition(text: str) -> bytes:
    try:
        parts = parse_json(text)
        sides = [parts["key"], parts["value"]]
    except (ValueError, KeyError, TypeError):
        raise BadJson('the schema of a KEY_VALUE is the text of {"key": …, "value": …}') from None
    texts = [side if isinstance(side, str) else json.dumps(side, separators=(",", ":")) for side in sides]
    return b"".join(len(text.encode()).to_bytes(4, "big") + text.encode() for text in texts)
