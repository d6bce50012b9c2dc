"""The list of a log in the metadata store, read by followers and changed by the leader of a term.

A `Term` writes with the version that it read or wrote last, and never reads again: a change that it does not know was
made by a later leader (I116).
"""

import logging
from collections.abc import Iterable
from typing import Final

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, NoSuchLedger
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.types import Corruption
from managed_ledger.errors import ManagedLedgerFenced, StorageUnavailable
from managed_ledger.records.versioned_record import VersionedRecord
from managed_ledger.state_log.errors import LeadershipLost, LogDamaged, LogUnavailable
from managed_ledger.state_log.log.log_list import LogList, decode_list, encode_list

log = logging.getLogger(__name__)

# Claims that are lost to somebody else's change before a promotion gives up. The leader before changes the list once
# in many minutes; more than a few mean that others promote themselves as well.
_CLAIMS: Final = 10


def list_path(root: str) -> str:
    return f"{root}/log"


async def read_list(store: MetadataStore, root: str) -> LogList | None:
    """The list as it is stored; None: there is no log yet. Raises LogUnavailable, Corruption."""
    return await _read(VersionedRecord(store, list_path(root)))


async def _read(record: VersionedRecord) -> LogList | None:
    try:
        value = await record.read()
    except StorageUnavailable as error:
        raise LogUnavailable(str(error)) from error
    return None if value is None else decode_list(value, record.path)


class Term:
    """The right of one leader to change the list, until another one claims it."""

    def __init__(self, store: MetadataStore, record: VersionedRecord, claimed: LogList) -> None:
        self._store = store
        self._record = record
        self.list = claimed

    @classmethod
    async def claim(cls, store: MetadataStore, root: str, leader: str, new_log: str | None) -> "Term":
        """Begin a term; *new_log* is the id of the log if there is none yet. Raises LeadershipLost, LogUnavailable."""
        for _ in range(_CLAIMS):
            record = VersionedRecord(store, list_path(root))
            stored_list = await _read(record)
            if stored_list is None and new_log is None:
                raise LogUnavailable(f"{record.path} is gone, and this node has a state of the log; restore the node")
            term = cls(store, record, stored_list if stored_list is not None else LogList(new_log or "", 0, ""))
            try:
                await term._write(term.list.claimed(leader))
            except LeadershipLost:
                continue  # the list has changed since it was read
            return term
        raise LeadershipLost(f"{list_path(root)}: others change the list all the time")

    async def add(self, ledger_id: int, first_number: int) -> None:
        """List a ledger (I117). Raises LeadershipLost, LogUnavailable (whether it is listed is not known)."""
        await self._write(self.list.with_ledger(ledger_id, first_number))

    async def drop(self, ledger_ids: tuple[int, ...], bookkeeper: BookKeeper) -> None:
        """Take ledgers off the list, then delete them and those that an earlier leader left.

        Raises LeadershipLost, LogUnavailable.
        """
        if ledger_ids:
            await self._write(self.list.without_ledgers(ledger_ids))
        deleted = [ledger_id for ledger_id in self.list.leaving if await _is_deleted(bookkeeper, ledger_id)]
        if deleted:
            await self._write(self.list.with_deleted(deleted))

    async def may_be_listed(self, ledger_id: int) -> bool:
        """After `add` raised LeadershipLost: it may have been written, its answer lost, and a later leader may have
        claimed the list with the ledger in it (I57). Its copies that are on their way cannot change the list any more.
        """
        try:
            stored_list = await _read(VersionedRecord(self._store, self._record.path))
        except (LogUnavailable, Corruption):
            return True
        return stored_list is None or stored_list.find(ledger_id) is not None

    async def check(self) -> None:
        """Ask whether this is still the present term. Raises LeadershipLost, LogUnavailable."""
        try:
            await self._record.check_unchanged()
        except ManagedLedgerFenced as error:
            raise LeadershipLost(str(error)) from error
        except StorageUnavailable as error:
            raise LogUnavailable(str(error)) from error

    async def _write(self, new_list: LogList) -> None:
        try:
            await self._record.write(encode_list(new_list))
        except ManagedLedgerFenced as error:
            raise LeadershipLost(str(error)) from error
        except StorageUnavailable as error:
            raise LogUnavailable(str(error)) from error
        self.list = new_list


async def _is_deleted(bookkeeper: BookKeeper, ledger_id: int) -> bool:
    try:
        await bookkeeper.delete_ledger(ledger_id)
    except NoSuchLedger:
        return True
    except BookKeeperError as error:
        log.warning("ledger %d is deleted later: %s", ledger_id, error)
        return False
    return True


async def fence(bookkeeper: BookKeeper, ledgers: Iterable[int], password: bytes, term: Term) -> None:
    """Close every one of *ledgers*, so that nobody writes them any more (I115).

    Raises LeadershipLost, LogUnavailable, LogDamaged (a listed ledger is gone).
    """
    for ledger_id in ledgers:
        try:
            await bookkeeper.open_ledger(ledger_id, password=password, recovery=True)
        except NoSuchLedger as error:
            await term.check()  # a later leader may have dropped it
            raise LogDamaged(f"ledger {ledger_id} is in the list, and is gone: {error}") from error
        except BookKeeperError as error:
            raise LogUnavailable(f"ledger {ledger_id} cannot be closed: {error}") from error
