"""Reading a log from where a replica stands, as far as it is confirmed.

A ledger that is not closed is read without recovery: its writer goes on undisturbed, and only what it has confirmed is
read. Where BookKeeper says nothing of the last entry yet, the leader's marker will (see `edits`).
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, DigestMismatch, NoSuchLedger
from magnetar_core.bookkeeper.client.reading.long_poll import LongPoll
from magnetar_core.bookkeeper.client.reading.read_handle import LedgerReadHandle
from magnetar_core.runtime.types import MIB, Corruption
from managed_ledger.position import Position
from managed_ledger.state_log.edits import Record, decode
from managed_ledger.state_log.errors import LogDamaged, LogUnavailable, SnapshotUnavailable
from managed_ledger.state_log.log.log_list import LogList
from managed_ledger.state_log.replica import Replica
from managed_ledger.state_log.snapshots.format import decode_snapshot

log = logging.getLogger(__name__)

# Entries, and bytes, of one request to a bookie.
READ_ENTRIES: Final = 500
READ_BYTES: Final = 4 * MIB


class SnapshotSource(Protocol):
    """From where a node that is too far behind gets a snapshot."""

    async def fetch(self, above: int) -> bytes | None:
        """The bytes of a snapshot that covers edits behind *above*; None if nobody has one. Raises LogUnavailable."""
        ...


class NoSource:
    """Gives nothing: for a log whose nodes get no snapshots from others."""

    async def fetch(self, above: int) -> bytes | None:
        return None


class Tail:
    """Brings a replica forward."""

    def __init__(
        self, replica: Replica, bookkeeper: BookKeeper, source: SnapshotSource, password: bytes, name: str
    ) -> None:
        self._replica = replica
        self._bookkeeper = bookkeeper
        self._source = source
        self._password = password
        self._name = name
        self._handle: LedgerReadHandle | None = None
        self._poll: LongPoll | None = None

    def watch(self, on_news: Callable[[], None]) -> None:
        """Let a bookie wait for entries behind those that are known now; *on_news* is called once they may be there.

        Errors are not reported: the caller looks by the clock, too.
        """
        handle = self._handle
        if handle is None or handle.is_closed:
            return
        if self._poll is None:
            self._poll = self._bookkeeper.long_poll(on_news)
        self._poll.begin(handle.ledger_id, handle.metadata.last_segment.ensemble, handle.last_add_confirmed)

    async def unwatch(self) -> None:
        poll, self._poll = self._poll, None
        if poll is not None:
            await poll.close()

    def forget(self) -> None:
        """Open the present ledger anew: it may have been closed."""
        self._handle = None

    async def advance(self, listed: LogList) -> bool:
        """Fold all that is confirmed now. Returns whether there was anything.

        Raises LogUnavailable, SnapshotUnavailable, LogDamaged, ApplyFailed.
        """
        replica = self._replica
        former_progress = replica.position, replica.number
        if replica.log not in ("", listed.log):
            raise LogDamaged(
                f"{self._name}: this node has the state of log {replica.log}, and the list is {listed.log}"
            )
        replica.log = listed.log
        try:
            while await self._step(listed):
                pass
        except NoSuchLedger as error:
            self._handle = None
            raise LogUnavailable(f"{self._name}: the ledgers have changed: {error}") from error
        except (BookKeeperError, DigestMismatch) as error:
            self._handle = None
            raise LogUnavailable(f"{self._name}: cannot read behind {replica.position}: {error}") from error
        return (replica.position, replica.number) != former_progress

    def is_at_end(self, listed: LogList) -> bool:
        """Whether all listed ledgers are closed and folded."""
        if not listed.ledgers:
            return True
        handle = self._handle
        return (
            handle is not None
            and handle.ledger_id == listed.ledgers[-1].ledger_id == self._replica.position.ledger_id
            and handle.is_closed
            and self._replica.may_leave(handle.last_add_confirmed)
        )

    async def _step(self, listed: LogList) -> bool:
        """Fold some entries, or go to the next ledger; False: there is nothing more now."""
        replica = self._replica
        if not listed.ledgers:
            return False
        if listed.find(replica.position.ledger_id) is None:
            await self._enter(listed)
        ledger_id, entry_id = replica.position
        handle = self._handle
        if handle is None or handle.ledger_id != ledger_id:
            handle = await self._bookkeeper.open_ledger(ledger_id, password=self._password, recovery=False)
            self._handle = handle
        elif not handle.is_closed and handle.last_add_confirmed <= entry_id:
            await handle.read_last_confirmed()
        if handle.last_add_confirmed > entry_id:
            for entry in await handle.read_batch(entry_id + 1, READ_ENTRIES, READ_BYTES):
                position = Position(ledger_id, entry.entry_id)
                replica.fold(position, _decoded(entry.payload, f"{self._name}: {position}"))
            return True
        following = listed.find_next(ledger_id)
        if following is None or not handle.is_closed or not replica.may_leave(handle.last_add_confirmed):
            return False
        replica.enter(following)
        return True

    async def _enter(self, listed: LogList) -> None:
        """Go on where the replica stands before all ledgers, or in one that was dropped."""
        replica = self._replica
        first = listed.ledgers[0]
        if first.first_number == replica.number + 1:  # ledgers are dropped whole, so this is the next one
            replica.enter(first)
            return
        if first.first_number <= replica.number:
            raise LogUnavailable(f"{self._name}: the list is older than edit {replica.number}")
        data = await self._source.fetch(first.first_number - 2)
        if data is None:
            raise SnapshotUnavailable(
                f"{self._name}: edits {replica.number + 1} to {first.first_number - 1} were dropped, and no other node"
                " gives a snapshot of them; start one that has it"
            )
        try:
            snapshot = decode_snapshot(data, f"{self._name}: the snapshot of another node")
        except Corruption as error:
            raise SnapshotUnavailable(str(error)) from error
        if snapshot.log != listed.log or snapshot.number < first.first_number - 1:
            raise SnapshotUnavailable(f"{self._name}: another node's snapshot is of edit {snapshot.number}")
        log.info("%s: goes on behind edit %d with the snapshot of another node", self._name, snapshot.number)
        replica.restore(snapshot)


def _decoded(payload: memoryview, place: str) -> Record:
    try:
        return decode(payload, place)
    except Corruption as error:
        raise LogDamaged(str(error)) from error
