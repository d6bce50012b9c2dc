"""Records in the metadata store that are one JSON object in one node: clusters, tenants, namespaces, partitions. No IO.

Rules:

1. A record is only written with the version that was read: of two changes at the same time neither is lost.
2. Members that we do not know are kept.
3. A node without a value is not a record: the store makes such nodes as parents of others. A record can be created
   there.

RecordError
 ├─ NoRecord
 ├─ RecordExists
 ├─ RecordChanged      others changed it during each attempt
 ├─ RecordInUse        another record needs it
 └─ InvalidRecord      the values to be stored are not valid
"""

import json
from collections.abc import Callable
from typing import Any, Final

from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    MetadataStore,
    Node,
    NoNode,
    NotEmpty,
    VersionConflict,
)
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import Corruption, MagnetarError

# How often a change is tried when others change the record at the same time.
ATTEMPTS_MAX: Final = 10


class RecordError(MagnetarError):
    """A record could not be read or changed as requested; the text is for the operator."""


class NoRecord(RecordError):
    """There is no such record."""


class RecordExists(RecordError):
    """The record that should be created exists."""


class RecordChanged(RecordError):
    """Others changed the record during each attempt to change it."""


class RecordInUse(RecordError):
    """The record that should be deleted is needed by another one."""


class InvalidRecord(RecordError):
    """The values that should be stored are not valid."""


class JsonRecords:
    """Reads and writes the records of one kind."""

    def __init__(self, store: MetadataStore, kind: str) -> None:
        """*kind* is what a record is called in errors, such as `Tenant`."""
        self._store = store
        self._kind = kind

    async def get(self, path: str) -> dict[str, Any]:
        """The record at *path*. Raises NoRecord, Corruption, MetadataError."""
        node = await self._store.get(path)
        if node is None:
            raise NoRecord(f"{self._kind} does not exist")
        return parse_record(node)

    async def create(self, path: str, record: dict[str, Any], exists: str) -> None:
        """Create a record. Raises RecordExists with the text *exists*, MetadataError."""
        node = await self._store.get(path)
        if node is not None and node.value:
            raise RecordExists(exists)
        try:
            await self._store.put(path, to_json(record), NO_NODE if node is None else node.version)
        except VersionConflict:
            raise RecordExists(exists) from None

    async def change(self, path: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        """Replace the record by what *change* makes of it; it may be called several times, and may refuse by raising.

        Raises NoRecord, RecordChanged, Corruption, MetadataError.
        """
        for _ in range(ATTEMPTS_MAX):
            node = await self._store.get(path)
            if node is None:
                raise NoRecord(f"{self._kind} does not exist")
            try:
                await self._store.put(path, to_json(change(parse_record(node))), node.version)
                return
            except VersionConflict:
                continue
        raise RecordChanged("Concurrent modification")

    async def delete(self, path: str) -> None:
        """Delete a record. Raises NoRecord, RecordInUse (the node has children), MetadataError."""
        try:
            await self._store.delete(path)
        except NoNode:
            raise NoRecord(f"{self._kind} does not exist") from None
        except NotEmpty:
            raise RecordInUse(f"{self._kind} is not empty") from None


def to_json(record: Any) -> bytes:
    """Compact JSON, as Apache writes it."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()


def parse_record(node: Node) -> dict[str, Any]:
    """The JSON object in a node; an empty one for a node without a value. Raises Corruption."""
    try:
        record = parse_json(node.value) if node.value else {}
    except ValueError as error:
        raise Corruption(f"{node.path} does not hold JSON: {error}") from None
    if not isinstance(record, dict):
        raise Corruption(f"{node.path} does not hold a JSON object")
    return record
