"""Which topics there are, as rows: their ledgers, sizes, ends and schemas.

The metadata store is asked, and the bookies of open ledgers for their ends; no message is read and no broker is asked.
Where bookies are away, the row says what is known without them.
"""

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from connectors.spark.options.read import Kind, TopicsPattern, parse_options
from connectors.spark.plan.cluster import CONCURRENT_MAX, Freezer, connected
from connectors.spark.plan.planning import TopicRange
from connectors.spark.plan.topics import topics_like
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.runtime.types import ConfigurationError, MagnetarError
from magnetar_core.topics.topic_name import TopicName, decode
from managed_ledger.records.paths import ROOT
from managed_ledger.schemas.compatibility import SchemaType
from managed_ledger.schemas.registry import SchemaRegistry
from managed_ledger.schemas.stored import StoredSchema

log = logging.getLogger(__name__)

COLUMNS: Final = (
    "topic string not null, partition int, ledgers int not null, entries bigint, size_bytes bigint, end string, "
    "schema_type string, schema_versions int, schema string, problem string"
)
"""In Spark's words. One row for each partition, or topic without partitions."""


class Listed(NamedTuple):
    """A row of the list: a topic, or one of its partitions."""

    topic: str
    partition: int | None
    """None: the topic has no partitions."""
    ledgers: int
    """Ledgers that hold entries now; with a problem those that the topic's record lists."""
    entries: int | None
    size_bytes: int | None
    """Bytes of the entries, one copy of each."""
    end: str | None
    """`ledger:entry` behind the last entry, as `endingOffsets` takes it; None: the topic is empty."""
    schema_type: str | None
    """NONE, STRING, AVRO, JSON …"""
    schema_versions: int | None
    schema: str | None
    """The definition of the newest version."""
    problem: str | None
    """Why entries, size and end, or the schema, are not known."""


def list_topics(metadata_url: str, namespace: str | None, options: Mapping[str, str]) -> list[Listed]:
    """The topics of a namespace (`tenant/namespace`), or of all, by name. *options* are those of reading; a pattern
    that names its namespace is one of that namespace.

    Raises ConfigurationError, MetadataError.
    """
    given = {"metadata.url": metadata_url, "valueFormat": "auto", **options}
    if "topicspattern" not in {name.lower() for name in options}:
        given["topicsPattern"] = ".*"
    parsed = parse_options(given, Kind.BATCH)
    pattern = parsed.pattern
    assert pattern is not None, "one is given"
    wanted = _pattern_within(namespace, pattern)

    async def list_sorted() -> list[Listed]:
        async with connected(parsed.place) as (store, client, clock):
            listing = _Listing(Freezer(parsed, store, client), SchemaRegistry(client, store, clock))
            patterns = [wanted] if wanted is not None else [
                replace(pattern, tenant=tenant, namespace=local) for tenant, local in await _namespaces(store)
            ]  # fmt: skip
            matching = [topic for each_pattern in patterns for topic in await topics_like(store, each_pattern)]
            rows = await asyncio.gather(*map(listing.rows, matching))
            return sorted(
                (row for of_topic in rows for row in of_topic), key=lambda row: (row.topic, row.partition or 0)
            )

    return asyncio.run(list_sorted())


def _pattern_within(namespace: str | None, pattern: TopicsPattern) -> TopicsPattern | None:
    """The topics of one namespace; None: of all. Raises ConfigurationError."""
    named = f"{pattern.tenant}/{pattern.namespace}" if pattern.names_namespace else None
    if namespace is None:
        return None if named is None else pattern
    tenant, separator, local = namespace.partition("/")
    if not (tenant and separator and local) or "/" in local:
        raise ConfigurationError(f"namespace {namespace}: expected tenant/namespace")
    if named not in (None, namespace):
        raise ConfigurationError(f"topicsPattern is of namespace {named}, not of {namespace}; name one of them")
    return replace(pattern, tenant=tenant, namespace=local)


async def _namespaces(store: MetadataStore) -> list[tuple[str, str]]:
    """(tenant, namespace) of all that have topics with ledgers."""
    namespaces: list[tuple[str, str]] = []
    for tenant in await store.children(ROOT):
        namespaces += [(decode(tenant), decode(namespace)) for namespace in await store.children(f"{ROOT}/{tenant}")]
    return sorted(namespaces)


class _Listing:
    """Asks about topics, some at once."""

    def __init__(self, freezer: Freezer, registry: SchemaRegistry) -> None:
        self._freezer = freezer
        self._registry = registry
        self._slots = asyncio.Semaphore(CONCURRENT_MAX)

    async def rows(self, topic: TopicName) -> list[Listed]:
        """One row for each partition. Raises MetadataError."""
        async with self._slots:
            schemas = await self._schemas(topic)
            count, parts = await self._freezer.parts(topic)
            return list(
                await asyncio.gather(
                    *(
                        self._row(topic, None if count is None else number, part, schemas)
                        for number, part in enumerate(parts)
                    )
                )
            )

    async def _schemas(self, topic: TopicName) -> Sequence[StoredSchema] | MagnetarError:
        try:
            return await self._registry.versions(topic.schema_id)
        except MetadataError:
            raise
        except MagnetarError as error:
            return error

    async def _row(
        self, topic: TopicName, partition: int | None, part: TopicName, schemas: Sequence[StoredSchema] | MagnetarError
    ) -> Listed:
        problems = [f"its schema is not known: {schemas}"] if isinstance(schemas, MagnetarError) else []
        try:
            topic_range = await self._freezer.range(topic, part, partition or 0)
        except MetadataError:
            raise
        except MagnetarError as error:
            problems.append(str(error))
            row = Listed(str(topic), partition, len(await self._freezer.ledgers(part) or ()), *[None] * 7)
        else:
            row = _row_without_schema(topic, partition, topic_range)
        if not isinstance(schemas, MagnetarError):
            newest = schemas[-1].schema if schemas else None
            row = row._replace(
                schema_type=(SchemaType.NONE if newest is None else newest.type).name,
                schema_versions=len(schemas),
                schema=None if newest is None else _definition_text(newest.data),
            )
        for problem in problems:
            log.warning("%s: %s", part, problem)
        return row._replace(problem="; ".join(problems) or None)


def _row_without_schema(topic: TopicName, partition: int | None, stored: TopicRange | None) -> Listed:
    """A row without schema. *stored*: None for a partition that nobody has used yet."""
    stored = stored or TopicRange(str(topic), -1, ())
    runs = stored.runs
    end = f"{runs[-1].ledger_id}:{runs[-1].last + 1}" if runs else None
    return Listed(str(topic), partition, len(runs), stored.entries, stored.size_bytes, end, None, None, None, None)


def _definition_text(definition: bytes) -> str | None:
    """A definition as text: JSON as it is; what is not text is left out."""
    try:
        text = definition.decode()
        json.loads(text)
    except ValueError:
        return None
    return text
