"""Which topics there are, as rows: their ledgers, sizes, ends and schemas.

The metadata store is asked, and the bookies of open ledgers for their ends; no message is read and no broker is asked.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from connectors.spark.cluster import connected, freeze
from connectors.spark.options import Kind, ReadOptions, TopicsPattern, parse_options
from magnetar_core.bookkeeper.metadata.store import MetadataStore
from magnetar_core.runtime.types import ConfigurationError
from managed_ledger.names import ROOT, decode
from managed_ledger.schemas.compatibility import SchemaType

COLUMNS: Final = (
    "topic string not null, partition int, ledgers int not null, entries bigint not null, size_bytes bigint not null, "
    "end string, schema_type string not null, schema_versions int not null, schema string"
)
"""In Spark's words. One row for each partition, or topic without partitions."""


class Listed(NamedTuple):
    """A row."""

    topic: str
    partition: int | None
    """None: the topic has no partitions."""
    ledgers: int
    """Those that hold entries now."""
    entries: int
    size_bytes: int
    """Of the entries, one copy of each."""
    end: str | None
    """`ledger:entry` behind the last entry, as `endingOffsets` takes it; None: the topic is empty."""
    schema_type: str
    """NONE, STRING, AVRO, JSON …"""
    schema_versions: int
    schema: str | None
    """The definition of the newest version."""


def list_topics(metadata_url: str, namespace: str | None, options: Mapping[str, str]) -> list[Listed]:
    """The topics of a namespace (`tenant/namespace`), or of all, by name. *options* are those of reading.

    Raises ConfigurationError, MetadataError, DataLoss (unless failOnDataLoss=false).
    """
    given = {"metadata.url": metadata_url, "valueFormat": "auto", "topicsPattern": ".*", **options}
    parsed = parse_options(given, Kind.BATCH)
    assert parsed.pattern is not None, "a pattern is given"
    return asyncio.run(_list(parsed, parsed.pattern, namespace))


async def _list(options: ReadOptions, pattern: TopicsPattern, namespace: str | None) -> list[Listed]:
    if namespace is None:
        async with connected(
            options.metadata_url, options.ledgers_root, options.read_timeout_s, options.tls_directory
        ) as (store, _, _):
            namespaces = await _namespaces(store)
    else:
        tenant, separator, local = namespace.partition("/")
        if not (tenant and separator and local) or "/" in local:
            raise ConfigurationError(f"namespace {namespace}: expected tenant/namespace")
        namespaces = [(tenant, local)]
    found: list[Listed] = []
    for tenant, local in namespaces:
        found += await _listed(replace(options, pattern=replace(pattern, tenant=tenant, namespace=local)))
    return sorted(found, key=lambda one: (one.topic, one.partition or 0))


async def _namespaces(store: MetadataStore) -> list[tuple[str, str]]:
    """Those that have topics with ledgers."""
    found: list[tuple[str, str]] = []
    for tenant in await store.children(ROOT):
        found += [(decode(tenant), decode(namespace)) for namespace in await store.children(f"{ROOT}/{tenant}")]
    return sorted(found)


async def _listed(options: ReadOptions) -> list[Listed]:
    rows = []
    for frozen in await freeze(options):
        newest = frozen.schemas[-1].schema if frozen.schemas else None
        for part in frozen.ranges:
            rows.append(Listed(
                topic=str(frozen.topic),
                partition=part.partition if part.partition >= 0 else None,
                ledgers=len(part.runs),
                entries=part.entries,
                size_bytes=part.size_bytes,
                end=f"{part.runs[-1].ledger_id}:{part.runs[-1].last + 1}" if part.runs else None,
                schema_type=(SchemaType.NONE if newest is None else newest.type).name,
                schema_versions=len(frozen.schemas),
                schema=None if newest is None else _text(newest.data),
            ))  # fmt: skip
    return rows


def _text(definition: bytes) -> str | None:
    """A definition as text: JSON as it is; what is no text is left out."""
    try:
        text = definition.decode()
        json.loads(text)
    except ValueError:
        return None
    return text
