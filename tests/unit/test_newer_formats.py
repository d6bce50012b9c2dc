"""What a newer release has written is refused by name, wherever a format has a version: nobody takes it for damage."""

from collections.abc import Callable

import pytest

from bookie.disks import cookie
from bookie.storage.entry_log import format as entry_log
from bookie.storage.journal import format as journal
from magnetar_core.bookkeeper.metadata.ledgers import ledger_metadata
from magnetar_core.runtime.types import Corruption, MagnetarError
from managed_ledger.state_log import edits
from managed_ledger.state_log.log import log_list
from managed_ledger.state_log.snapshots import format as snapshots

JOURNAL = journal.MAGIC + (journal.VERSION_MAX + 1).to_bytes(4, "big") + bytes(600)
ENTRY_LOG = b"BKLO" + (entry_log.VERSION + 1).to_bytes(4, "big") + bytes(1_016)

NEWER: dict[str, Callable[[], object]] = {
    "journal": lambda: journal.decode_header(JOURNAL, "it"),
    "entry log": lambda: entry_log.decode_header(ENTRY_LOG, "it"),
    "cookie": lambda: cookie.decode(b'6\nfuture: "x"\n', "it"),
    "record of a ledger": lambda: ledger_metadata.decode(b"BookieMetadataFormatVersion\t4\n\x00"),
    "entry of a state log": lambda: edits.decode(bytes([edits.VERSION + 1]) + bytes(60), "it"),
    "list of a state log": lambda: log_list.decode_list(b'{"version": 2}', "it"),
    "snapshot of a state log": lambda: snapshots.decode_snapshot(b"MGSNAP\x00\x02" + bytes(100), "it"),
}


@pytest.mark.parametrize("read", NEWER.values(), ids=NEWER)
def test_it_says_to_start_the_newer_release(read: Callable[[], object]) -> None:
    with pytest.raises(Corruption, match=r"; start the newer release that wrote it$") as refused:
        read()
    assert isinstance(refused.value, MagnetarError)
