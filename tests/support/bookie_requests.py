"""Requests that Apache's clients send to bookies, and ours do not: for tests of a bookie's answers."""

from collections.abc import Iterable
from typing import Final

from magnetar_core.bookkeeper.wire import codec_v3

HIGH_PRIORITY: Final = 100
"""The priority that Apache's client sends for recovery."""


def add_request(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    master_key: bytes,
    body: bytes,
    *,
    recovery: bool = False,
    write_flags: int = 0,
    priority: int = 0,
) -> bytes:
    """A whole add frame; *body* is the stored entry."""
    made = codec_v3.request(codec_v3.ADD_ENTRY, txn_id, priority=priority)
    add = made.addRequest
    add.ledgerId, add.entryId, add.masterKey, add.body = ledger_id, entry_id, master_key, body
    if write_flags:
        add.writeFlags = write_flags
    if recovery:
        add.flag = codec_v3.RECOVERY_ADD
    return codec_v3.frame_of(made)


def write_lac_request(txn_id: int, ledger_id: int, lac: int, master_key: bytes, body: bytes) -> bytes:
    """A whole frame; *body* comes from `EntryCodec.explicit_lac`."""
    made = codec_v3.request(codec_v3.WRITE_LAC, txn_id)
    write = made.writeLacRequest
    write.ledgerId, write.lac, write.masterKey, write.body = ledger_id, lac, master_key, body
    return codec_v3.frame_of(made)


def read_lac_request(txn_id: int, ledger_id: int) -> bytes:
    made = codec_v3.request(codec_v3.READ_LAC, txn_id)
    made.readLacRequest.ledgerId = ledger_id
    return codec_v3.frame_of(made)


def force_ledger_request(txn_id: int, ledger_id: int) -> bytes:
    made = codec_v3.request(codec_v3.FORCE_LEDGER, txn_id)
    made.forceLedgerRequest.ledgerId = ledger_id
    return codec_v3.frame_of(made)


def encode_availability(entry_ids: Iterable[int]) -> bytes:
    """The answer to GET_LIST_OF_ENTRIES for *entry_ids*, in strictly ascending order."""
    made = codec_v3.Availability()
    made.add(entry_ids)
    return made.encoded()
