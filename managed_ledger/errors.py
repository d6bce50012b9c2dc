"""What an operation on a managed ledger can fail with. No IO.

ManagedLedgerError
├── ManagedLedgerFenced       another owner took over: drop the topic, acknowledge nothing more
│   └── MetadataWentBack      … or nobody did, and the metadata store has an older record than it had
├── ManagedLedgerClosed       closed by this process
├── ManagedLedgerTerminated   no more entries, ever
├── ManagedLedgerNotFound
├── StorageUnavailable        bookies or metadata store fail at the moment; a retry later may succeed
│   ├── DataLost              … and never will: no copy of these entries is left
│   ├── OffloadedLedger       … here: the ledger is in tiered storage, where only Apache's brokers read
│   ├── RecordInDoubt         … and whether a record was written is not known
│   └── RecordUnreadable      … and never will: what is stored in the metadata store cannot be understood
├── EntryRefused              the entry can never be stored (too large); other entries are not affected
├── InvalidPosition
├── CursorNotFound
├── CursorExists
├── TransactionalTopic        it has messages of transactions, of which only Apache's brokers know which are aborted
├── ShadowTopic               an Apache broker made it as a shadow of another topic; it is not opened
└── IncompatibleSchema
"""

from magnetar_core.runtime.types import MagnetarError


class ManagedLedgerError(MagnetarError):
    """Root of the errors of managed ledgers; the texts name the managed ledger."""


class ManagedLedgerFenced(ManagedLedgerError):
    """Another broker took over. Nothing that was not acknowledged before may be acknowledged now."""


class MetadataWentBack(ManagedLedgerFenced):
    """The metadata store has an older version of a record than the one that was read or written here: somebody put old
    metadata back. Nothing is written over it."""


class ManagedLedgerClosed(ManagedLedgerError):
    """It was closed here, or is being closed."""


class ManagedLedgerTerminated(ManagedLedgerError):
    """The topic was terminated: its last position is final."""


class ManagedLedgerNotFound(ManagedLedgerError):
    """There is no such managed ledger."""


class StorageUnavailable(ManagedLedgerError):
    """Too few bookies, or the metadata store does not answer."""


class DataLost(StorageUnavailable):
    """Entries of a ledger are gone: all bookies that should have them deny them, or the ledger's record is gone."""

    def __init__(self, text: str, ledger_id: int, entry_id: int | None) -> None:
        """*entry_id* None: the whole ledger is gone."""
        super().__init__(text)
        self.ledger_id = ledger_id
        self.entry_id = entry_id


class OffloadedLedger(StorageUnavailable):
    """The ledger was moved to tiered storage, which is not read here; it is not lost."""


class RecordInDoubt(StorageUnavailable):
    """The answer to a change of a record was lost: a ledger that the change would name must not be deleted (I57)."""


class RecordUnreadable(StorageUnavailable):
    """The record of a topic or of a cursor is not what its format promises."""


class EntryRefused(ManagedLedgerError):
    """This entry can never be stored, in any ledger."""


class InvalidPosition(ManagedLedgerError):
    """The position is beyond the end, or of another ledger."""


class CursorNotFound(ManagedLedgerError):
    """There is no such cursor."""


class CursorExists(ManagedLedgerError):
    """A cursor of that name is there already."""


class ShadowTopic(ManagedLedgerError):
    """The topic shows the ledgers of another one, and has none of its own."""


class TransactionalTopic(ManagedLedgerError):
    """The topic has messages of transactions, of which some may be aborted."""


class OpenTransaction(ManagedLedgerError):
    """A transaction that has not ended has acknowledged messages of the subscription."""


class IncompatibleSchema(ManagedLedgerError):
    """The schema does not fit those that the topic has under its compatibility rule."""
