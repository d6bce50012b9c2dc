"""Whether a record of an entry log is what its writer packed. No IO: who knows the digests is asked.

    digest known from metadata ──▶ it fits: proven │ it does not: damaged
    not known ──▶ one of those that need no password fits: proven
                  … none, and two other records of the ledger had such a one: damaged
                  … none, and nothing is known: unproven (a MAC, no digest at all, or damage)

A record that is damaged may be any entry's: what it says of its ledger and its entry is as doubtful as the rest.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeAlias

from magnetar_core.bookkeeper.wire.entry import HEADER, DigestType, EntryCodec
from magnetar_core.runtime.types import Buffer, Corruption

Digest: TypeAlias = tuple[DigestType, bytes]
"""A ledger's digest and the password that goes with it."""

_OPEN: Final = (EntryCodec(DigestType.CRC32C, b""), EntryCodec(DigestType.CRC32, b""))

# Records that must have a digest before others of their ledger are judged by it: one may fit by chance (1 of 2^32).
_PROOFS_MIN: Final = 2


class Verdict(IntEnum):
    PROVEN = 0
    UNPROVEN = 1
    DAMAGED = 2


def no_digests(ledger_id: int) -> Digest | None:
    """For who has no metadata to ask."""
    return None


class Proofs:
    """Judges records. Remembers about 100 bytes for each ledger."""

    def __init__(self, digest_of: Callable[[int], Digest | None]) -> None:
        """*digest_of(ledger id)*: None if nobody knows. It is asked once for each ledger."""
        self._digest_of = digest_of
        self._digests: dict[int, Digest | None] = {}
        self._proofs: dict[int, int] = {}
        # The records of a flush stand in the order of their ledgers, so the next one is likely of the same.
        self._ledger_id = -1
        self._codec: EntryCodec | None = None

    def judge(self, record: Buffer, ledger_id: int, entry_id: int) -> Verdict:
        """*ledger_id*, *entry_id*: what the record says of itself."""
        if entry_id < 0 or len(record) < HEADER.size:
            return Verdict.DAMAGED
        codec = self._codec_of(ledger_id)
        if codec is not None:
            return Verdict.PROVEN if _fits(codec, record, ledger_id, entry_id) else Verdict.DAMAGED
        proofs = self._proofs.get(ledger_id, 0)
        if any(_fits(one, record, ledger_id, entry_id) for one in _OPEN):
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


def _fits(codec: EntryCodec, record: Buffer, ledger_id: int, entry_id: int) -> bool:
    try:
        codec.open(record, ledger_id, entry_id)
    except Corruption:
        return False
    return True
