"""How the values of the topics that are read together become columns: decided once, at `load()`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from connectors.spark.decoding import CORRUPT
from connectors.spark.kinds import fields_of, kind_of, values_of
from connectors.spark.options import ReadOptions
from connectors.spark.values import PlainValues, Values
from magnetar_core.runtime.types import ConfigurationError
from managed_ledger.schemas.compatibility import SchemaType
from managed_ledger.schemas.registry import StoredSchema

if TYPE_CHECKING:
    from connectors.spark.cluster import FrozenTopic


def value_fields(options: ReadOptions, frozen: "Sequence[FrozenTopic]") -> list[t.StructField]:
    """The columns of the values. Raises ConfigurationError."""
    kind = _common_kind(options, frozen)
    if kind == "binary":
        return fields_of(kind, None, "")
    corrupt = [t.StructField(CORRUPT, t.BinaryType(), True)] if options.permissive else []
    if kind == "string":
        return [*fields_of(kind, None, ""), *corrupt]
    return [*fields_of(kind, frozen[0].schemas[-1], str(frozen[0].topic)), *corrupt]


def _common_kind(options: ReadOptions, frozen: "Sequence[FrozenTopic]") -> str:
    """What `kinds` calls the values; `auto` is decided by the topics' schema. Raises ConfigurationError."""
    wanted = options.value_format
    if wanted in ("binary", "string"):
        return wanted
    if not frozen:
        raise ConfigurationError(f"valueFormat={wanted} needs a topic to take the schema from, and none matches")
    first = frozen[0]
    newest = _newest(first)
    for other in frozen[1:]:
        if not _same(newest, _newest(other)):
            raise ConfigurationError(
                f"{first.topic} and {other.topic} have different schemas; read them apart, or with valueFormat=binary"
            )
    return _kind(wanted, newest, str(first.topic))


def _kind(wanted: str, newest: StoredSchema | None, topic: str) -> str:
    found = kind_of(newest)
    if wanted == "protobuf" and newest is not None and newest.schema.type is SchemaType.PROTOBUF:
        raise ConfigurationError(
            f"the schema of {topic} is PROTOBUF, which does not tell the numbers of all fields; register it as "
            "PROTOBUF_NATIVE, or use valueFormat=binary"
        )
    if wanted not in ("auto", found):
        kind = SchemaType.NONE if newest is None else newest.schema.type
        raise ConfigurationError(
            f"valueFormat={wanted}, but the schema of {topic} is {kind.name}; use valueFormat=binary"
        )
    return found


def _newest(topic: "FrozenTopic") -> StoredSchema | None:
    return topic.schemas[-1] if topic.schemas else None


def _same(one: StoredSchema | None, other: StoredSchema | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.schema.type is SchemaType.KEY_VALUE and dict(one.schema.properties) != dict(other.schema.properties):
        return False  # they say what the halves are
    return one.schema[:2] == other.schema[:2]


class ValueColumns:
    """How values become columns: fixed by the schema that the first topic has at `load()`. Can be pickled."""

    def __init__(self, options: ReadOptions, frozen: "Sequence[FrozenTopic]") -> None:
        self._kind = _common_kind(options, frozen)
        self._permissive = options.permissive
        self._newest = frozen[0].schemas[-1] if self.needs_schema else None

    @property
    def needs_schema(self) -> bool:
        """Whether the versions of a topic's schema are needed to decode its values."""
        return self._kind not in ("binary", "string")

    def values(self, topic: str, versions: Sequence[StoredSchema]) -> Values | None:
        """What decodes the values of *topic*; None leaves them as they are. Raises ConfigurationError."""
        newest = self._newest
        if newest is None:
            return PlainValues(is_text=True) if self._kind == "string" and self._permissive else None
        if not versions:
            raise ConfigurationError(f"{topic} has no schema, and is read with the others as {self._kind}")
        return values_of(self._kind, versions, newest, topic)
