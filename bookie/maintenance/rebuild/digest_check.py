"""Whether a record of an entry log is what its writer packed. No IO: a callable returns the digests of ledgers.

    digest known from metadata ──▶ it fits: proven │ it does not: damaged
    not known ──▶ one of those that need no password fits: proven
                  … none, and two other records of the ledger had such a one: damaged
                  … none, and nothing is known: unproven (a MAC, no digest at all, or damage)

A damaged record may belong to any entry: its ledger and entry ids are as doubtful as its other bytes.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeAlias

from magnetar_core.bookkeeper.wire.entry import HEADER, DigestType, EntryCodec
from magnetar_core.runtime.types import Buffer, Corruption

Digest: TypeAlias = tuple[DigestType, bytes]
"""A ledger's digest type and password."""

_OPEN: Final = (EntryCodec(DigestType.CRC32C, b""), EntryCodec(DigestType.CRC32, b""))

# How many records must fit a digest before other records of the ledger are judged by it: one may fit by chance (1 of
# 2^32).
_PROOFS_MIN: Final = 2


class Verdict(IntEnum):
    PROVEN = 0
    UNPROVEN = 1
    DAMAGED = 2


def no_digests(ledger_id: int) -> Digest | None:
    """The digests for rebuilds without metadata: that of no ledger is known."""
    return None


class DigestCheck:
    """Judges records. It keeps about 100 bytes for each ledger."""

    def __init__(self, digest_of: Callable[[int], Digest | None]) -> None:
        """*digest_of(ledger id)*: None if the digest is not known. It is called once for each ledger."""
        self._digest_of = digest_of
        self._digests: dict[int, Digest | None] = {}
        self._proofs: dict[int, int] = {}
        # The records of a flush are sorted by ledger, so the next one is probably of the same ledger.
        self._ledger_id = -1
        self._codec: EntryCodec | None = None

    def judge(self, record: Buffer, ledger_id: int, entry_id: int) -> Verdict:
        """*ledger_id*, *entry_id*: the ids in the record."""
        if entry_id < 0 or len(record) < HEADER.size:
            return Verdict.DAMAGED
        codec = self._codec_of(ledger_id)
        if codec is not None:
            return Verdict.PROVEN if _has_digest(codec, record, ledger_id, entry_id) else Verdict.DAMAGED
        proofs = self._proofs.get(ledger_id, 0)
        if any(_has_digest(open_codec, record, ledger_id, entry_id) for open_codec in _OPEN):
            self._proofs[ledger_id] = min(proofs + 1, _PROOFS_MIN)
            return Verdict.PROVEN
        return Verdict.DAMAGED if proofs >= _PROOFS_MIN else Verdict.UNPROVEN

    def _codec_of(self, ledger_id: int) -> EntryCodec | None:
        if ledger_id != self._ledger_id:
            if ledger_id not in self._digests:
                self._digests[ledger_id] = self._digest_of(ledger_id)
            digest = self._digests[ledger_id]
            self._ledger_id = ledger_id
            self._codec = None if digest is None else EntryCodec(*digest)
        return self._codec


def _has_digest(codec: EntryCodec, record: Buffer, ledger_id: int, entry_id: int) -> bool:
    try:
        codec.open(record, ledger_id, entry_id)
    except Corruption:
        return False
    return True
