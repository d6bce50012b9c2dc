"""Our numbers under Apache's names, where the thing is the same: dashboards and alarms made for Apache's bookie work.

They come without labels of ours, as Apache's do, and as gauges: the names of its counters do not end in `_total`.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from bookie.operations import BookieOperations
from bookie.read_only import DiskState
from magnetar.runtime.observe import Sample
from magnetar.runtime.types import MagnetarError

Labels = tuple[tuple[str, str], ...]


class _Apaches(NamedTuple):
    name: str
    labels: Labels = ()


# Our name without its prefix, and the labels beside `bookie` → Apache's name and labels. Several that are one add up.
_NAMES: Final[dict[tuple[str, Labels], _Apaches]] = {
    ("adds_total", ()): _Apaches("bookkeeper_server_ADD_ENTRY_count", (("success", "true"),)),
    ("adds_refused_total", ()): _Apaches("bookkeeper_server_ADD_ENTRY_count", (("success", "false"),)),
    ("reads_total", ()): _Apaches("bookkeeper_server_READ_ENTRY_count"),
    ("adds_in_flight", ()): _Apaches("bookkeeper_server_ADD_ENTRY_IN_PROGRESS"),
    ("reads_in_flight", ()): _Apaches("bookkeeper_server_READ_ENTRY_IN_PROGRESS"),
    ("add_bytes_total", ()): _Apaches("bookie_WRITE_BYTES"),
    ("ledgers", ()): _Apaches("bookie_ledgers_count"),
    ("write_cache_bytes", ()): _Apaches("bookie_write_cache_size"),
    ("read_cache_bytes", ()): _Apaches("bookie_read_cache_size"),
    ("gc_deleted_ledgers_total", ()): _Apaches("bookie_DELETED_LEDGER_COUNT"),
    ("gc_moved_ledgers_total", ()): _Apaches("bookie_DELETED_LEDGER_COUNT"),
    ("entry_logs", ()): _Apaches("bookie_ACTIVE_ENTRY_LOG_COUNT"),
    ("entry_log_bytes", ()): _Apaches("bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES"),
    ("compactions_total", (("kind", "minor"),)): _Apaches("bookie_MINOR_COMPACTION_COUNT"),
    ("compactions_total", (("kind", "major"),)): _Apaches("bookie_MAJOR_COMPACTION_COUNT"),
}

_PREFIX: Final = "magnetar_bookie_"


def apache_samples(operations: BookieOperations) -> Iterator[Sample]:
    """What `operations.metrics()` says, in Apache's words."""
    found: dict[_Apaches, tuple[float, str]] = {}
    for sample in operations.metrics():
        labels = tuple(label for label in sample.labels if label[0] != "bookie")
        apaches = _NAMES.get((sample.name.removeprefix(_PREFIX), labels))
        if apaches is not None:
            value, _ = found.get(apaches, (0.0, ""))
            found[apaches] = value + sample.value, sample.help
    for (name, labels), (value, help_text) in found.items():
        yield Sample(name, value, labels, help_text)
    state = operations.state()
    writable = not state.read_only and state.running
    yield Sample("bookie_SERVER_STATUS", writable, (), "1: writable, 0: read-only")
    try:
        looks = operations.info().disks
    except MagnetarError:  # a disk that cannot be asked; the other numbers are there
        return
    directories = len(operations.config.ledger_directories)
    full = sum(look.state in (DiskState.FULL, DiskState.UNREADABLE) for look in looks[:directories])
    yield Sample("bookie_ledger_num_dirs", directories, (), "ledger directories")
    yield Sample("bookie_ledger_writable_dirs", directories - full, (), "ledger directories that take entries")
