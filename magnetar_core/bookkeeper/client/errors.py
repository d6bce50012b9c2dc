"""The errors that an operation on a ledger can raise. No IO.

    BookKeeperError
     ├─ RemoteError             a bookie refused; the class tells why, with its code in both wire protocols
     │   ├─ NoSuchLedger        (also: no such ledger in the metadata)
     │   ├─ NoSuchEntry
     │   ├─ LedgerFenced        another client recovers the ledger; this writer must stop
     │   ├─ Unauthorized        wrong password, or the bookie does not admit this client
     │   ├─ BookieReadOnly, TooManyRequests, UnknownLedgerState, BookieIOError, BadRequest, BadVersion
     ├─ BookieUnavailable       not reachable, or the connection broke
     │   └─ NoTls               no TLS connection: most likely the settings of one side are wrong
     ├─ OperationTimeout        no answer in time
     ├─ NotEnoughBookies        no ensemble can be formed
     ├─ ImpossibleQuorum        (in `quorum`) sizes that contradict each other, or are beyond the limit
     ├─ LedgerClosed            the handle or the ledger is closed
     ├─ MetadataConflict        another client closed the ledger with a different last entry
     ├─ RecoveryFailed          too few bookies answered to know the last entry; nothing was cut, try again
     ├─ EndUnknown              too few bookies answered to know where an open ledger ends
     ├─ BeyondLastConfirmed     the entry is not (yet) confirmed
     ├─ EntryTooLarge, TooManyPending, ClientClosed
     └─ MetadataUnavailable     the metadata store did not answer, or its record cannot be used
    DigestMismatch              (from `wire.entry`) an entry is damaged

An entry is "missing" only if a bookie says so explicitly (`NoSuchEntry`, `NoSuchLedger`). After any other answer, or
none, it is unknown whether the bookie has it.
"""

from typing import ClassVar

from magnetar_core.bookkeeper.wire.entry import DigestMismatch
from magnetar_core.runtime.types import MagnetarError

__all__ = [
    "BadRequest",
    "BadVersion",
    "BeyondLastConfirmed",
    "BookKeeperError",
    "BookieIOError",
    "BookieReadOnly",
    "BookieUnavailable",
    "ClientClosed",
    "DigestMismatch",
    "EndUnknown",
    "EntryTooLarge",
    "LedgerClosed",
    "LedgerFenced",
    "MetadataConflict",
    "MetadataUnavailable",
    "NoSuchEntry",
    "NoSuchLedger",
    "NoTls",
    "NotEnoughBookies",
    "OperationTimeout",
    "RecoveryFailed",
    "RemoteError",
    "TooManyPending",
    "TooManyRequests",
    "Unauthorized",
    "UnknownLedgerState",
    "error_of",
    "is_missing",
]

_by_code: dict[tuple[int, int], "type[RemoteError]"] = {}


class BookKeeperError(MagnetarError):
    """An operation on a ledger failed."""


class RemoteError(BookKeeperError):
    """A bookie refused."""

    reason: ClassVar[str] = "refused"

    def __init_subclass__(cls, *, v2: int | None = None, v3: int | None = None) -> None:
        super().__init_subclass__()
        for version, code in ((2, v2), (3, v3)):
            if code is not None:
                assert (version, code) not in _by_code, f"two classes for v{version} code {code}"
                _by_code[version, code] = cls


class NoSuchLedger(RemoteError, v2=1, v3=402):
    """The bookie, or the metadata, does not know the ledger."""

    reason = "no such ledger"


class NoSuchEntry(RemoteError, v2=2, v3=403):
    """The bookie knows the ledger, but not the entry."""

    reason = "no such entry"


class BadRequest(RemoteError, v2=100, v3=404):
    """The bookie did not understand the request."""

    reason = "bad request"


class BookieIOError(RemoteError, v2=101, v3=501):
    """The bookie's disk failed."""

    reason = "the bookie's disk failed"


class Unauthorized(RemoteError, v2=102, v3=502):
    """The password is not that of the ledger, or the bookie does not admit this client at all."""

    reason = "wrong password, or the bookie demands TLS or another certificate"


class BadVersion(RemoteError, v2=103, v3=503):
    """The bookie does not speak this version of the protocol."""

    reason = "protocol version not supported"


class LedgerFenced(RemoteError, v2=104, v3=504):
    """Another client recovers the ledger; this writer must stop."""

    reason = "the ledger is fenced"


class BookieReadOnly(RemoteError, v2=105, v3=505):
    """The bookie takes no new entries."""

    reason = "the bookie is read-only"


class TooManyRequests(RemoteError, v2=106, v3=506):
    """The bookie is overloaded."""

    reason = "the bookie is overloaded"


class UnknownLedgerState(RemoteError, v2=107, v3=507):
    """The bookie may have lost entries of the ledger, so it never answers that one does not exist."""

    reason = "the bookie does not know whether it has lost entries"


class BookieUnavailable(BookKeeperError):
    """The bookie cannot be reached, or the connection to it broke."""


class NoTls(BookieUnavailable):
    """No TLS connection could be made: most likely the settings of one side are wrong."""


class OperationTimeout(BookKeeperError):
    """A bookie did not answer in time."""


class NotEnoughBookies(BookKeeperError):
    """Too few bookies are available for the ensemble that was asked for."""


class LedgerClosed(BookKeeperError):
    """The handle or the ledger is closed: nothing can be added."""


class MetadataConflict(BookKeeperError):
    """Another client closed the ledger, with a different last entry."""


class RecoveryFailed(BookKeeperError):
    """Too few bookies answered to know which entry is the last one. Nothing was cut; a later try may succeed."""


class EndUnknown(BookKeeperError):
    """Too few bookies answered to know where an open ledger ends."""

    def __init__(self, text: str, last_known: int) -> None:
        """*last_known*: the last entry that is certainly part of the ledger; -1 if none is."""
        super().__init__(text)
        self.last_known = last_known


class BeyondLastConfirmed(BookKeeperError):
    """The entry comes after the last confirmed one."""


class EntryTooLarge(BookKeeperError):
    """The payload does not fit into a frame; a bookie would close the connection."""


class TooManyPending(BookKeeperError):
    """More unacknowledged entries than the configuration allows for one ledger."""


class ClientClosed(BookKeeperError):
    """The client was closed."""


class MetadataUnavailable(BookKeeperError):
    """The metadata store did not answer, or what it holds about the ledger cannot be used."""


def error_of(code: int, what: str, *, version: int = 2) -> RemoteError:
    """The error that *code* stands for; *what* names bookie, ledger and entry."""
    kind = _by_code.get((version, code))
    if kind is None:
        return RemoteError(f"{what}: unknown error code {code}")
    return kind(f"{what}: {kind.reason}")


def is_missing(error: BaseException) -> bool:
    """An explicit negative: the bookie says that it does not have the entry."""
    return isinstance(error, NoSuchEntry | NoSuchLedger)
