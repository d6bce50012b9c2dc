"""How a change is applied to a metadata tree, for the stores that keep the tree themselves. No IO.

`plan_put`, `plan_delete` and `plan_multi` look at the tree through `View` and return the changes that one atomic step
has to apply, parents first. They enforce rules 1 to 3 of store.py; memory.py and embedded.py apply what they return.
"""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple, Protocol

from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    Check,
    Delete,
    MetadataError,
    Node,
    NoNode,
    NotEmpty,
    Operation,
    Put,
    VersionConflict,
)

# ZooKeeper has no limit on depth; the deepest path written here has nine parts. The embedded store's keys have one byte
# for the depth.
DEPTH_MAX: Final = 250

# ZooKeeper's jute.maxbuffer, less some room for the request around the value: a value that fits one store fits all.
VALUE_BYTES_MAX: Final = 1_000_000

PERSISTENT: Final = 0
"""The owner of a node that outlives sessions; other owners are session numbers."""


class Record(NamedTuple):
    """A node as it is stored. *owner* is PERSISTENT or the session whose end removes it."""

    value: bytes
    version: int
    owner: int
    created_ms: int
    modified_ms: int


class Change(NamedTuple):
    """Set the node to *record*, or remove it (None). *appeared*: it did not exist before."""

    path: str
    record: Record | None
    appeared: bool


class View(Protocol):
    """The newest state of a tree, changes that wait for their sync included."""

    def record(self, path: str) -> Record | None: ...

    def has_children(self, path: str) -> bool: ...

    def child_names(self, path: str) -> Collection[str]: ...


def check_path(path: str) -> None:
    """Raises MetadataError if *path* is not absolute, ends with a slash or has empty parts."""
    if not path.startswith("/") or (path != "/" and (path.endswith("/") or "//" in path)) or "\0" in path:
        raise MetadataError(f"{path!r} is not a path: expected /part/part without a trailing slash")
    if path.count("/") > DEPTH_MAX:
        raise MetadataError(f"{path[:60]}… is deeper than {DEPTH_MAX} parts")


def check_value(path: str, value: bytes) -> None:
    """Raises MetadataError if *value* is larger than every store can hold."""
    if len(value) > VALUE_BYTES_MAX:
        raise MetadataError(f"{path}: a value of {len(value)} bytes; the limit is {VALUE_BYTES_MAX}")


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def name_of(path: str) -> str:
    return path.rpartition("/")[2]


def plan_put(
    view: View, path: str, value: bytes, expected_version: int | None, owner: int, now_ms: int
) -> tuple[list[Change], int]:
    """The changes that write *value*, and the version it gets. *owner* counts only if the node is new.

    Raises VersionConflict, or MetadataError for a child of an ephemeral node.
    """
    check_path(path)
    check_value(path, value)
    current = view.record(path)
    if current is None:
        if expected_version is not None and expected_version != NO_NODE:
            raise VersionConflict(f"{path} does not exist, expected version {expected_version}")
        changes = _missing_parents(view, path, now_ms)
        changes.append(Change(path, Record(value, 0, owner, now_ms, now_ms), True))
        return changes, 0
    if expected_version is not None and expected_version != current.version:
        wanted = "no node" if expected_version == NO_NODE else f"version {expected_version}"
        raise VersionConflict(f"{path} has version {current.version}, expected {wanted}")
    record = current._replace(value=value, version=current.version + 1, modified_ms=now_ms)
    return [Change(path, record, False)], record.version


def plan_delete(view: View, path: str, expected_version: int | None) -> list[Change]:
    """Raises NoNode, VersionConflict, NotEmpty."""
    check_path(path)
    current = view.record(path)
    if current is None or path == "/":
        raise NoNode(f"{path} does not exist")
    if expected_version is not None and expected_version != current.version:
        raise VersionConflict(f"{path} has version {current.version}, expected {expected_version}")
    if view.has_children(path):
        raise NotEmpty(f"{path} has children")
    return [Change(path, None, False)]


def check_operations(operations: Sequence[Operation]) -> None:
    """What every store refuses before it looks at the tree. Raises MetadataError, VersionConflict."""
    size = 0
    for operation in operations:
        check_path(operation.path)
        if isinstance(operation, Put):
            check_value(operation.path, operation.value)
            size += len(operation.value)
        elif operation.expected_version == NO_NODE:
            raise VersionConflict(f"{operation.path}: only a put may expect that there is no node")
        size += len(operation.path)
    if size > VALUE_BYTES_MAX:
        raise MetadataError(
            f"{operations[0].path}: {len(operations)} changes at once of {size} bytes; the limit is {VALUE_BYTES_MAX}"
        )


def plan_multi(view: View, operations: Sequence[Operation], now_ms: int) -> list[Change]:
    """The changes of all *operations* in their order. Raises the error of the first that is refused."""
    check_operations(operations)
    after = _After(view)
    for operation in operations:
        if isinstance(operation, Put):
            changes, _ = plan_put(
                after, operation.path, bytes(operation.value), operation.expected_version, PERSISTENT, now_ms
            )
        elif isinstance(operation, Delete):
            changes = plan_delete(after, operation.path, operation.expected_version)
        else:
            _check_version(after, operation)
            changes = []
        after.apply(changes)
    return after.changes


def _check_version(view: View, check: Check) -> None:
    current = view.record(check.path)
    if current is None:
        raise VersionConflict(f"{check.path} does not exist, expected version {check.expected_version}")
    if current.version != check.expected_version:
        raise VersionConflict(f"{check.path} has version {current.version}, expected {check.expected_version}")


class _After:
    """A tree as it will be after some changes."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._records: dict[str, Record | None] = {}
        self.changes: list[Change] = []

    def apply(self, changes: Sequence[Change]) -> None:
        self.changes += changes
        self._records.update((change.path, change.record) for change in changes)

    def record(self, path: str) -> Record | None:
        return self._records[path] if path in self._records else self._view.record(path)

    def has_children(self, path: str) -> bool:
        if any(changed != "/" and parent_of(changed) == path for changed in self._records):
            return bool(self.child_names(path))
        return self._view.has_children(path)

    def child_names(self, path: str) -> Collection[str]:
        names = set(self._view.child_names(path))
        for changed, record in self._records.items():
            if changed != "/" and parent_of(changed) == path:
                (names.discard if record is None else names.add)(name_of(changed))
        return names


def _missing_parents(view: View, path: str, now_ms: int) -> list[Change]:
    missing = []
    parent = parent_of(path)
    while parent != "/":
        ancestor = view.record(parent)
        if ancestor is not None:
            if ancestor.owner != PERSISTENT:
                raise MetadataError(f"{path}: {parent} is ephemeral and cannot have children")
            break
        missing.append(Change(parent, Record(b"", 0, PERSISTENT, now_ms, now_ms), True))
        parent = parent_of(parent)
    missing.reverse()
    return missing


def node_of(path: str, record: Record, session: int) -> Node:
    """*record* as the session numbered *session* reads it."""
    return Node(
        path,
        record.value,
        record.version,
        record.owner != PERSISTENT,
        record.owner == session,
        record.created_ms,
        record.modified_ms,
    )
