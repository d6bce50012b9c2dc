"""Reads what namespaces hold that only Apache's brokers serve; nothing is fenced or changed."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeVar

from broker.names import remote_cluster
from broker.policies.namespace import WRITES, WRITES_STOPPED
from broker.tenancy.changes import POLICIES_ROOT, namespace_path
from broker.topic.reading.subscription import REPLICATED
from magnetar.inspect.contents import Contents, RemoteCursor, TieredLedgers
from magnetar.inspect.findings import Unasked
from magnetar.inspect.inspector import CONCURRENT_MAX, Inspector
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import MagnetarError
from magnetar_core.topics.topic_name import PARTITIONED_TOPICS, PERSISTENT, TopicName, decode
from managed_ledger.cursors.stored_cursor import stored_cursor
from managed_ledger.ledgers.shadows import SHADOW_SOURCE
from managed_ledger.ledgers.topic_record import stored_record
from managed_ledger.position import Position
from managed_ledger.records.offloaded import only_offloaded, place_of
from managed_ledger.records.paths import ROOT, ledger_path
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from managed_ledger.transactions.pending_acks import PENDING_ACKS
from managed_ledger.transactions.snapshots import SNAPSHOT_TOPICS, TransactionNotes

T = TypeVar("T")
R = TypeVar("R")

_TRANSACTION_LOGS: Final = "__transaction_log_"
_SYSTEM: Final = "pulsar/system"
_SCALABLE_TOPICS: Final = "/topics"
_COORDINATORS: Final = "/txn/tc"
"""Where a broker of 5.0 keeps who coordinates transactions, if they are kept in the metadata store."""


class ClusterContents(NamedTuple):
    contents: tuple[Contents, ...]
    has_coordinator: bool
    topics_left: int
    """Topics that were not looked at for want of time."""
    unasked: tuple[Unasked, ...]


class ContentsReader:
    """One reading; used once."""

    def __init__(self, inspector: Inspector, look_s: float) -> None:
        self._inspector = inspector
        self._store = inspector.store
        self._until_s = inspector.clock.monotonic() + look_s
        self._bookkeeper = BookKeeper(inspector.store, inspector.clock, inspector.pool.config, root=inspector.root)
        self._unasked: list[Unasked] = []
        self._left = 0

    async def read(self, namespaces: Sequence[str]) -> ClusterContents:
        """*namespaces*: `tenant/namespace`; empty: all. Raises MetadataError, BookKeeperError."""
        await self._bookkeeper.open()
        try:
            names = namespaces or await self._namespaces()
            contents = [await self._namespace(name) for name in names]
            return ClusterContents(tuple(contents), await self._has_coordinator(), self._left, tuple(self._unasked))
        finally:
            await self._bookkeeper.close()

    async def _namespaces(self) -> list[str]:
        return [
            f"{tenant}/{namespace}"
            for tenant in sorted(await self._store.children(POLICIES_ROOT))
            for namespace in sorted(await self._store.children(f"{POLICIES_ROOT}/{tenant}"))
        ]

    async def _has_coordinator(self) -> bool:
        logs = await self._store.children(f"{ROOT}/{_SYSTEM}/persistent")
        return any(name.startswith(_TRANSACTION_LOGS) for name in logs) or await self._store.exists(_COORDINATORS)

    async def _namespace(self, namespace: str) -> Contents:
        contents = Contents(namespace)
        try:
            contents = await self._policies(contents)
            return await self._topics(contents)
        except MagnetarError as error:
            self._unasked.append(Unasked(f"what namespace {namespace} holds", str(error)))
            return contents

    async def _policies(self, contents: Contents) -> Contents:
        node = await self._store.get(namespace_path(contents.namespace))
        try:
            policies = parse_json(node.value) if node is not None and node.value else {}
        except ValueError:
            policies = None
        if not isinstance(policies, dict):
            self._unasked.append(Unasked(f"the policies of namespace {contents.namespace}", "its record is not JSON"))
            return contents
        clusters = policies.get("replication_clusters")
        offload, filters = policies.get("offload_policies"), policies.get("entryFilters")
        return replace(
            contents,
            replicated_to=tuple(map(str, clusters)) if isinstance(clusters, list) and len(clusters) > 1 else (),
            offload_driver=_member(offload, "managedLedgerOffloadDriver"),
            entry_filters=_member(filters, "entryFilterNames"),
            stops_writes=_member(policies.get("properties"), WRITES) == WRITES_STOPPED,
        )

    async def _topics(self, contents: Contents) -> Contents:
        namespace = contents.namespace
        encoded = sorted(await self._store.children(f"{ROOT}/{namespace}/persistent"))
        names = [decode(name) for name in encoded]
        tenant, _, local = namespace.partition("/")
        topics = [TopicName(PERSISTENT, tenant, local, name) for name in names]
        served = [topic for topic in topics if not topic.is_system]
        is_replicated = bool(contents.replicated_to)
        holdings = await self._look_at_each(served, lambda topic: self._topic(topic, is_replicated))
        transactional: Iterable[str] = ()
        if not set(SNAPSHOT_TOPICS).isdisjoint(encoded):
            transactional = await TransactionNotes(self._store, self._bookkeeper, b"").topics_with_transactions(
                namespace
            )
        partitioned = await self._partitioned(namespace)
        shadows = await self._look_at_each(partitioned, lambda name: self._shadow(namespace, name))
        return replace(
            contents,
            transactional=tuple(sorted(_local(name) for name in transactional)),
            pending_acks=tuple(name.removesuffix(PENDING_ACKS) for name in names if name.endswith(PENDING_ACKS)),
            tiered=tuple(item.tiered for item in holdings if item.tiered is not None),
            remote_cursors=tuple(cursor for item in holdings for cursor in item.remote_cursors),
            replicated_subscriptions=tuple(name for item in holdings for name in item.replicated_subscriptions),
            shadows=tuple(item.shadow for item in holdings if item.shadow) + tuple(filter(None, shadows)),
            scalable=tuple(map(decode, sorted(await self._store.children(f"{_SCALABLE_TOPICS}/{namespace}")))),
        )

    async def _partitioned(self, namespace: str) -> list[str]:
        return sorted(await self._store.children(f"{PARTITIONED_TOPICS}/{namespace}/persistent"))

    async def _shadow(self, namespace: str, encoded: str) -> str:
        """The partitioned topic, if it is a shadow."""
        node = await self._store.get(f"{PARTITIONED_TOPICS}/{namespace}/persistent/{encoded}")
        try:
            record = parse_json(node.value) if node is not None and node.value else {}
        except ValueError:
            return ""  # a client that asks for its partitions gets the error
        properties = record.get("properties") if isinstance(record, dict) else None
        is_shadow = isinstance(properties, dict) and SHADOW_SOURCE in properties
        return decode(encoded) if is_shadow else ""

    async def _look_at_each(self, items: Sequence[T], look: Callable[[T], Awaitable[R]]) -> list[R]:
        """What *look* returns for each, as far as the time goes."""
        answers: list[R] = []
        for at in range(0, len(items), CONCURRENT_MAX):
            if self._inspector.clock.monotonic() > self._until_s:
                self._left += len(items) - at
                break
            answers += await asyncio.gather(*map(look, items[at : at + CONCURRENT_MAX]))
        return answers

    async def _topic(self, topic: TopicName, is_replicated: bool) -> "_Holding":
        name = topic.managed_ledger_name
        try:
            record = await stored_record(self._store, name)
            cursors = [decode(cursor) for cursor in await self._store.children(ledger_path(name))]
            if record is None:
                return _Holding()
            moved = [info for info in record.ledgerInfo if only_offloaded(info)]
            return _Holding(
                TieredLedgers(topic.local, len(moved), place_of(moved[0])) if moved else None,
                topic.local if any(item.key == SHADOW_SOURCE for item in record.properties) else "",
                *await self._cursors(topic, record, cursors, is_replicated),
            )
        except MagnetarError as error:
            self._unasked.append(Unasked(f"what topic {topic} holds", str(error)))
            return _Holding()

    async def _cursors(
        self, topic: TopicName, record: ManagedLedgerInfo, cursors: Iterable[str], is_replicated: bool
    ) -> tuple[tuple[RemoteCursor, ...], tuple[str, ...]]:
        """(cursors of replication, subscriptions that are replicated)"""
        remote, replicated = [], []
        for cursor in sorted(cursors):
            cluster = remote_cluster(cursor)
            if not cluster and not is_replicated:
                continue
            state = await stored_cursor(self._store, self._bookkeeper, topic.managed_ledger_name, cursor)
            if state is None:
                continue
            if cluster:
                remote.append(RemoteCursor(topic.local, cluster, _held_bytes(record, state.mark_delete_position)))
            elif state.properties.get(REPLICATED):
                replicated.append(f"{topic.local}: {cursor}")
        return tuple(remote), tuple(replicated)


class _Holding(NamedTuple):
    """What one topic holds."""

    tiered: TieredLedgers | None = None
    shadow: str = ""
    remote_cursors: tuple[RemoteCursor, ...] = ()
    replicated_subscriptions: tuple[str, ...] = ()


def _held_bytes(record: ManagedLedgerInfo, position: Position) -> int:
    """The bytes of the closed ledgers that a cursor at *position* keeps."""
    return sum(info.size for info in record.ledgerInfo if info.ledgerId >= position.ledger_id)


def _member(record: Mapping[str, Any] | None, name: str) -> str:
    return str(record.get(name) or "") if isinstance(record, dict) else ""


def _local(topic: str) -> str:
    return topic.rsplit("/", 1)[-1]
