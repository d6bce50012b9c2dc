"""What is in a backup, and which backup may be restored. No IO.

    BACKUP/manifest.json       written last: without it the backup was not finished
    BACKUP/metadata/…, BACKUP/bookie-1/…

The manifest is one object of JSON. Its `sha256` is that of the object without it, with sorted keys and no blanks.

Rules:

1. A backup without a manifest, or with one that is not whole, is no backup. One of a newer format is for a newer
   release.
2. The names of files are below the backup, whatever a manifest says.
3. A file of an earlier backup stands for a file of the present one if both are of the same store, and name, length and
   time of the last change are equal; and only files that are written once (entry logs, tables of RocksDB).
"""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from magnetar_core.runtime.types import MagnetarError

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
"""Of the manifest and of the files that it names. A reader takes this one and older ones."""


class BackupRefused(MagnetarError):
    """A backup cannot be made here, or this one cannot be restored; the text says why."""


class Stored(NamedTuple):
    """A file of a backup."""

    name: str
    """Relative to the data folder, with slashes."""
    bytes: int
    sha256: str
    """In hexadecimal digits."""
    changed_ns: int
    """When its original was changed last, by the file system."""


class Manifest(NamedTuple):
    """The content of a backup."""

    release: str
    """Of the program that made it."""
    made_ms: int
    instance_id: str
    """Of the store: it changes with each restore."""
    bookies: int
    files: tuple[Stored, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def encode(manifest: Manifest) -> bytes:
    value = {
        "format": FORMAT,
        **manifest._asdict(),
        "files": [file._asdict() for file in manifest.files],
    }
    return json.dumps({**value, "sha256": _digest(value)}, indent=1).encode() + b"\n"


def decode(data: bytes, source: str) -> Manifest:
    """Rules 1 and 2; *source* names the backup in errors. Raises BackupRefused."""
    try:
        value = json.loads(data)
        if not isinstance(value, dict):
            raise TypeError
        if isinstance(value["format"], int) and value["format"] > FORMAT:
            raise BackupRefused(
                f"{source} was made by a newer release ({value.get('release', 'unknown')}): restore it with that"
            )
        if value.pop("sha256") != _digest(value):
            raise ValueError("its checksum is wrong")
        files = tuple(Stored(**file) for file in value["files"])
        value.pop("format")
        manifest = Manifest(**{**value, "files": files})
    except (ValueError, TypeError, KeyError) as error:
        raise BackupRefused(f"{source}: {MANIFEST} is damaged ({error!r}); this backup cannot be used") from None
    for file in files:
        if not is_below(file.name):
            raise BackupRefused(f"{source}: {MANIFEST} names the file {file.name!r}, which is not below the backup")
    return manifest


def is_below(name: str) -> bool:
    """Rule 2."""
    parts = name.split("/")
    return bool(name) and "\0" not in name and not any(part in ("", ".", "..") for part in parts)


def reusable(earlier: Manifest | None, instance_id: str) -> dict[tuple[str, int, int], Stored]:
    """(name, length, time of the last change) → the file of an *earlier* backup that may stand for it (rule 3)."""
    if earlier is None or earlier.instance_id != instance_id:
        return {}
    return {(file.name, file.bytes, file.changed_ns): file for file in earlier.files if _is_written_once(file.name)}


def _is_written_once(name: str) -> bool:
    folder, _, last = name.rpartition("/")
    return last.endswith(".sst") or (last.endswith(".log") and folder.endswith("/current"))  # RocksDB has *.log, too


def room_problem(needed: int, free: int, total: int, *, is_own_disk: bool) -> str:
    """Why *needed* bytes must not be written to a disk; empty if they may. A twentieth of a disk that a store writes to
    stays free: with less a bookie takes no entries."""
    kept = total // 20 if is_own_disk else 0
    if needed + kept <= free:
        return ""
    beside = f", and {kept} have to stay free for the store itself" if kept else ""
    return f"{needed} bytes are to be written, {free} are free{beside}"


def difference(there: Sequence[str], manifest: Manifest) -> str:
    """Which files a backup lacks, of those that its manifest names; empty if it has all."""
    missing = sorted({file.name for file in manifest.files} - set(there))
    return "" if not missing else f"{len(missing)} files are missing, the first is {missing[0]}"


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
