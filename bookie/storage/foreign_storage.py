"""Recognizes ledger directories of another kind of storage. No IO: the caller lists the directories.

Apache's bookie has three storages. Ours reads and writes the directories of DbLedgerStorage. The other two keep an
index file for each ledger; without reading it we would answer "no such entry" for acknowledged entries:

    DbLedgerStorage                    current/ *.log  locations/  ledgers/         RocksDB
    InterleavedLedgerStorage,
    SortedLedgerStorage                current/ *.log  <hex>/<hex>/<ledger id in hex>.idx

Those two look the same on disk: only the order of entries within a log differs.

Rule: a directory with an index file is refused, unless it has RocksDB's `locations`: Apache's conversion to
DbLedgerStorage fills that, and may leave index files there.
"""

import posixpath
import re
from collections.abc import Callable, Sequence
from typing import Final

from magnetar_core.runtime.types import MagnetarError

# Two levels of folders: bits 8 to 15 of the ledger id, then bits 0 to 7.
_FOLDER: Final = re.compile(r"[0-9a-f]{1,2}")
# While a ledger moves between directories its index file is called .idx.rloc.
_INDEX_FILE: Final = re.compile(r"[0-9a-f]+\.idx(\.rloc)?")
_LOCATIONS: Final = "locations"


class ForeignStorage(MagnetarError):
    """The directory belongs to a storage that this bookie does not have."""


def index_file_in(directory: str, list_names: Callable[[str], Sequence[str]]) -> str | None:
    """The path of an index file that makes *directory* foreign, None if there is none.

    *directory* is the `current` of a ledger directory; *list_names* gives the names in a directory.
    """
    names = list_names(directory)
    if _LOCATIONS in names:
        return None
    for outer in filter(_FOLDER.fullmatch, names):
        for inner in filter(_FOLDER.fullmatch, list_names(posixpath.join(directory, outer))):
            folder = posixpath.join(directory, outer, inner)
            for name in filter(_INDEX_FILE.fullmatch, list_names(folder)):
                return posixpath.join(folder, name)
    return None


def refuse_foreign_storage(directories: Sequence[str], list_names: Callable[[str], Sequence[str]]) -> None:
    """Raises ForeignStorage if one of *directories* (each the `current` of a ledger directory) is another storage's."""
    for directory in directories:
        name = index_file_in(directory, list_names)
        if name is not None:
            raise ForeignStorage(
                f"{directory} was written by InterleavedLedgerStorage or SortedLedgerStorage ({name} is one of their "
                "index files); this bookie only has DbLedgerStorage. Convert the directory with Apache's `bookkeeper "
                "shell convert-to-db-storage`, or give the bookie empty ledgerDirectories and let the ledgers be copied"
            )
