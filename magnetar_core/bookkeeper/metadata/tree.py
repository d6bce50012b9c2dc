"""How a change is applied to a metadata tree, for the stores that keep the tree themselves. No IO.

`plan_put` and `plan_delete` look at the tree through `View` and return the changes that one atomic step has to
apply, parents first. They enforce rules 1 to 3 of store.py; memory.py and embedded.py apply what they return.
"""

from typing import Final, NamedTuple, Protocol

from magnetar_core.bookkeeper.metadata.store import NO_NODE, MetadataError, Node, NoNode, NotEmpty, VersionConflict

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
    found = view.record(path)
    if found is None:
        if expected_version is not None and expected_version != NO_NODE:
            raise VersionConflict(f"{path} does not exist, expected version {expected_version}")
        changes = _missing_parents(view, path, now_ms)
        changes.append(Change(path, Record(value, 0, owner, now_ms, now_ms), True))
        return changes, 0
    if expected_version is not None and expected_version != found.version:
        wanted = "no node" if expected_version == NO_NODE else f"version {expected_version}"
        raise VersionConflict(f"{path} has version {found.version}, expected {wanted}")
    record = found._replace(value=value, version=found.version + 1, modified_ms=now_ms)
    return [Change(path, record, False)], record.version


def plan_delete(view: View, path: str, expected_version: int | None) -> list[Change]:
    """Raises NoNode, VersionConflict, NotEmpty."""
    check_path(path)
    found = view.record(path)
    if found is None or path == "/":
        raise NoNode(f"{path} does not exist")
    if expected_version is not None and expected_version != found.version:
        raise VersionConflict(f"{path} has version {found.version}, expected {expected_version}")
    if view.has_children(path):
        raise NotEmpty(f"{path} has children")
    return [Change(path, None, False)]


def _missing_parents(view: View, path: str, now_ms: int) -> list[Change]:
    missing = []
    parent = parent_of(path)
    while parent != "/":
        found = view.record(parent)
        if found is not None:
            if found.owner != PERSISTENT:
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
