"""How the values of the topics that are read together become columns: decided once, at `load()`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from connectors.spark.options.read import Mode, ReadOptions
from connectors.spark.values.decoding import CORRUPT, REASON
from connectors.spark.values.kinds import fields_of, kind_of, values_of
from connectors.spark.values.records import PlainValues, Values, nullable_field
from magnetar_core.runtime.types import ConfigurationError
from managed_ledger.schemas.compatibility import SchemaType
from managed_ledger.schemas.stored import StoredSchema

if TYPE_CHECKING:
    from connectors.spark.plan.cluster import FrozenTopic


def value_fields(options: ReadOptions, frozen: "Sequence[FrozenTopic]") -> list[t.StructField]:
    """The columns of the values. Raises ConfigurationError."""
    if options.union_schemas:
        fields = _united_columns(options, frozen)
        return [*fields, *_corrupt_columns(options)]
    kind = _common_kind(options, frozen)
    if kind in ("binary", "string"):
        return [*fields_of(kind, None, ""), *_corrupt_columns(options)]
    return [*fields_of(kind, frozen[0].schemas[-1], str(frozen[0].topic)), *_corrupt_columns(options)]


def _corrupt_columns(options: ReadOptions) -> list[t.StructField]:
    if options.mode is not Mode.PERMISSIVE:
        return []
    return [t.StructField(CORRUPT, t.BinaryType(), True), t.StructField(REASON, t.StringType(), True)]


def _united_columns(options: ReadOptions, frozen: "Sequence[FrozenTopic]") -> list[t.StructField]:
    """The columns of all topics, by name in the order in which they come. Raises ConfigurationError for two types."""
    if not frozen:
        raise ConfigurationError("unionSchemas=true needs topics to take the schemas from, and none matches")
    columns: dict[str, tuple[t.StructField, str]] = {}
    for topic in frozen:
        for field in _fields_of_topic(options.value_format, _newest(topic), str(topic.topic)):
            known, first = columns.setdefault(field.name, (field, str(topic.topic)))
            _check_same(known, first, field, str(topic.topic))
    return [field for field, _ in columns.values()]


def _fields_of_topic(wanted: str, newest: StoredSchema | None, topic: str) -> list[t.StructField]:
    """The fields of a topic, with nulls allowed everywhere: a field that one topic demands, another may not have."""
    fields = fields_of(_kind(wanted, newest, topic), newest, topic)
    return [nullable_field(field) for field in fields]


def _check_same(known: t.StructField, first: str, field: t.StructField, topic: str) -> None:
    if known.dataType != field.dataType:
        raise ConfigurationError(
            f"column {field.name} is {known.dataType.simpleString()} in {first} and {field.dataType.simpleString()} in "
            f"{topic}; read them apart, or with valueFormat=binary"
        )


def _common_kind(options: ReadOptions, frozen: "Sequence[FrozenTopic]") -> str:
    """What `kinds` calls the values; `auto` is decided by the topics' schema. Raises ConfigurationError."""
    wanted = options.value_format
    if wanted in ("binary", "string"):
        return wanted
    if not frozen:
        raise ConfigurationError(f"valueFormat={wanted} needs a topic to take the schema from, and none matches")
    newest = _newest(frozen[0])
    if not all(_is_same_schema(newest, _newest(other)) for other in frozen):
        listed = "; ".join(f"{topic.topic}: {_schema_text(_newest(topic))}" for topic in frozen)
        raise ConfigurationError(
            f"the topics have different schemas: {listed}; read them apart, with unionSchemas=true, or with "
            "valueFormat=binary"
        )
    return _kind(wanted, newest, str(frozen[0].topic))


def _schema_text(schema: StoredSchema | None) -> str:
    if schema is None:
        return "no schema"
    text = f"{schema.schema.type.name}, version {schema.version}"
    try:
        fields = fields_of(kind_of(schema), schema, "")
    except ConfigurationError:
        return text
    return f"{text}: {', '.join(f'{field.name} {field.dataType.simpleString()}' for field in fields)}"


def _kind(wanted: str, newest: StoredSchema | None, topic: str) -> str:
    stored_kind = kind_of(newest)
    if wanted == "protobuf" and newest is not None and newest.schema.type is SchemaType.PROTOBUF:
        raise ConfigurationError(
            f"the schema of {topic} is PROTOBUF, which does not tell the numbers of all fields; register it as "
            "PROTOBUF_NATIVE, or use valueFormat=binary"
        )
    if wanted not in ("auto", stored_kind):
        kind = SchemaType.NONE if newest is None else newest.schema.type
        formats = {"binary": "binary, or string", "primitive": "auto"}.get(stored_kind, f"{stored_kind}, or auto")
        raise ConfigurationError(f"valueFormat={wanted}, but the schema of {topic} is {kind.name}; use {formats}")
    return stored_kind


def _newest(topic: "FrozenTopic") -> StoredSchema | None:
    return topic.schemas[-1] if topic.schemas else None


def _is_same_schema(first: StoredSchema | None, second: StoredSchema | None) -> bool:
    if first is None or second is None:
        return first is second
    if first.schema.type is SchemaType.KEY_VALUE and dict(first.schema.properties) != dict(second.schema.properties):
        return False  # they say what the halves are
    return first.schema[:2] == second.schema[:2]


class ValueColumns:
    """How values become columns: fixed by the schemas that the topics have at `load()`. Can be pickled.

    Topics have the schema of the first one; united, each has its own, and so have those that join a stream.
    """

    def __init__(self, options: ReadOptions, frozen: "Sequence[FrozenTopic]") -> None:
        self._wanted = options.value_format
        self._fails_fast = options.mode is Mode.FAILFAST
        self._united_columns: dict[str, t.StructField] | None = None
        self._newest: dict[str, StoredSchema | None] = {}
        self._first: StoredSchema | None = None
        if options.union_schemas:
            self._kind = ""
            self._united_columns = {field.name: field for field in _united_columns(options, frozen)}
            self._newest = {str(topic.topic): _newest(topic) for topic in frozen}
            return
        self._kind = _common_kind(options, frozen)
        self._first = frozen[0].schemas[-1] if self.needs_schema else None

    @property
    def needs_schema(self) -> bool:
        """Whether the versions of a topic's schema are needed to decode its values."""
        return self._united_columns is not None or self._kind not in ("binary", "string")

    def values(self, topic: str, versions: Sequence[StoredSchema]) -> Values | None:
        """What decodes the values of *topic*; None leaves them as they are. Raises ConfigurationError."""
        if self._united_columns is not None:
            return self._own_values(topic, versions, self._united_columns)
        newest = self._first
        if newest is None:
            return PlainValues(is_text=True) if self._kind == "string" and not self._fails_fast else None
        if not versions:
            raise ConfigurationError(f"{topic} has no schema, and is read with the others as {self._kind}")
        return values_of(self._kind, versions, newest, topic)

    def unread(self, topic: str, versions: Sequence[StoredSchema]) -> list[str]:
        """The columns of the newest of *versions* that are not those of the query, or not with this type: the topic has
        got them since `load()`, or joined later."""
        united = self._united_columns or {}
        has_joined = bool(united) and topic not in self._newest
        known = self._newest.get(topic) if united else self._first
        newest = versions[-1] if versions else None
        if not has_joined and (known is None or newest is None or newest.deleted or _is_same_schema(known, newest)):
            return []
        try:
            fields = _fields_of_topic(self._wanted, newest, topic)
        except ConfigurationError:  # a schema of another kind: its values are wrong for the query, not left out
            return []
        if has_joined:  # `values` refuses a field of another type than its column
            return [field.name for field in fields if field.name not in united]
        before = _fields_of_topic(self._wanted, known, topic)
        return [field.name for field in fields if field not in before]

    def _own_values(
        self, topic: str, versions: Sequence[StoredSchema], united: Mapping[str, t.StructField]
    ) -> Values | None:
        """Decodes by the newest schema that the topic had at `load()`; a topic that joined later by its newest now."""
        newest = self._newest[topic] if topic in self._newest else (versions[-1] if versions else None)
        kind = _kind(self._wanted, newest, topic)
        for field in _fields_of_topic(self._wanted, newest, topic):
            if field.name in united:
                _check_same(united[field.name], "the query", field, topic)
        if newest is None:
            return PlainValues(is_text=False)
        return values_of(kind, versions or [newest], newest, topic)
