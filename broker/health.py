"""The health check of a broker: writes one entry to a managed ledger reserved for it and reads it back."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol
from urllib.parse import quote

from broker.errors import StorageFailure
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.types import Corruption
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import Position

# The health check writes and reads one message; Apache's check has the same time-out.
HEALTH_TIMEOUT_S: Final = 10.0


class Ledgers(Protocol):
    """Opens managed ledgers (`managed_ledger.factory.ManagedLedgerFactory`)."""

    async def open(self, name: str) -> ManagedLedger: ...


class HealthCheck:
    """Checks the storage; several checks may run at the same time."""

    def __init__(self, ledgers: Ledgers, broker_id: Callable[[], str], now_ms: Callable[[], int]) -> None:
        self._ledgers = ledgers
        self._broker_id = broker_id
        self._now_ms = now_ms
        self._appends = _Appends()

    async def run(self) -> None:
        """Raises StorageFailure, Corruption: what was read is not what was written."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                await self._write_and_read()
        except (TimeoutError, ManagedLedgerError, MetadataError) as error:
            raise StorageFailure(f"the storage does not work: {str(error) or 'no answer in time'}") from error

    async def _write_and_read(self) -> None:
        name = f"pulsar/{quote(self._broker_id(), safe=':.-')}/persistent/healthcheck"
        ledger = await self._ledgers.open(name)
        ledger.listener = self._appends
        payload = f"health {self._now_ms()}".encode()
        done: asyncio.Future[Position] = asyncio.get_running_loop().create_future()
        ledger.append([payload], [done])
        position = await done
        answer = ledger.read(position, 1, len(payload))
        entries = answer if isinstance(answer, Sequence) else await answer
        if bytes(entries[0].data) != payload:
            raise Corruption(f"{name}: entry {position} is not what was written")


class _Appends:
    """Completes the future of each append of the health check."""

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence["asyncio.Future[Position]"]) -> None:
        for entry_id, done in enumerate(contexts, first_entry_id):
            if not done.done():
                done.set_result(Position(ledger_id, entry_id))

    def on_append_failed(self, contexts: Sequence["asyncio.Future[Position]"], error: ManagedLedgerError) -> None:
        for done in contexts:
            if not done.done():
                done.set_exception(error)

    def on_closed(self, error: ManagedLedgerError) -> None:
        """Pending appends are reported one by one; the next check opens the ledger again."""
