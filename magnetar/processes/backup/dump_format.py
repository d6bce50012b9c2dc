"""The records of a metadata store as a file. No IO.

    {"magnetar metadata": 1, "release": "0.1.0", "made_ms": 1795242522795, "root": "/ledgers"}
    {"path": "/admin/clusters/production", "value": "eyJ…"}              one line for each node; the value in base64
    {"nodes": 1234, "next_ledger": 567, "sha256": "…"}                  the last; the digest of all before it

Rules:

1. A file without its last line, or with another digest, was not finished or is damaged: nothing of it is put back.
2. Nodes that end with a session are not in it. All others are, and the number of the next ledger, which is in none.
3. Records of ledgers come last. A cluster that runs changes meanwhile: each ledger that a topic names is there then.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from magnetar.processes.backup.manifest import BackupRefused

FORMAT: Final = 1
_NAME: Final = "magnetar metadata"


class DumpHead(NamedTuple):
    """The first line."""

    release: str
    made_ms: int
    root: str
    """Where the records of ledgers begin."""


class DumpEnd(NamedTuple):
    """The last line, without its digest."""

    nodes: int
    next_ledger: int


class DumpWriter:
    """Makes the lines, in their order."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self.nodes = 0

    def head(self, head: DumpHead) -> bytes:
        return self._line({_NAME: FORMAT, **head._asdict()})

    def node(self, path: str, value: bytes) -> bytes:
        self.nodes += 1
        return self._line({"path": path, "value": base64.b64encode(value).decode()})

    def end(self, next_ledger: int) -> bytes:
        end = DumpEnd(self.nodes, next_ledger)
        self._digest.update(_json(end._asdict()))
        return _json({**end._asdict(), "sha256": self._digest.hexdigest()}) + b"\n"

    def _line(self, value: dict[str, Any]) -> bytes:
        line = _json(value) + b"\n"
        self._digest.update(line)
        return line


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def read_head(line: bytes, source: str) -> DumpHead:
    """Raises BackupRefused."""
    try:
        facts = json.loads(line)
        number = facts.pop(_NAME)
        if number > FORMAT:
            raise BackupRefused(
                f"{source} was made by a newer release ({facts.get('release', 'unknown')}): restore it with that"
            )
        return DumpHead(**facts)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BackupRefused(f"{source} is no dump of metadata") from None


def check(lines: Iterable[bytes], source: str) -> tuple[DumpHead, DumpEnd]:
    """Read all *lines* (rule 1). Raises BackupRefused."""
    digest = hashlib.sha256()
    head: DumpHead | None = None
    last = b""
    nodes = -2
    for line in lines:
        head = head or read_head(line, source)
        digest.update(last)
        last = line
        nodes += 1
    try:
        facts = json.loads(last)
        said = facts.pop("sha256")
        end = DumpEnd(**facts)
        digest.update(_json(end._asdict()))
        is_whole = said == digest.hexdigest()
    except (ValueError, TypeError, KeyError, AttributeError):
        is_whole = False
    if head is None or not is_whole or end.nodes != nodes:
        raise BackupRefused(f"{source} was not finished, or is damaged; nothing of it was put back")
    return head, end


def nodes_of(lines: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """(path, value) of each node of a dump that was checked."""
    for line in lines:
        facts = json.loads(line)
        if "path" in facts:
            yield facts["path"], base64.b64decode(facts["value"])
