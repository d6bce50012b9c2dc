"""Creates the ledgers of topics."""

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import StorageUnavailable


async def new_ledger(bookkeeper: BookKeeper, name: str, config: ManagedLedgerConfig) -> LedgerWriteHandle:
    """A new ledger for the managed ledger *name*, which no record names yet. Raises StorageUnavailable."""
    try:
        return await bookkeeper.create_ledger(
            ensemble_size=config.ensemble_size,
            write_quorum=config.write_quorum,
            ack_quorum=config.ack_quorum,
            digest_type=config.digest_type,
            password=config.password,
            custom_metadata=(
                ("application", b"pulsar"),
                ("component", b"managed-ledger"),
                ("pulsar/managed-ledger", name.encode()),
                *config.placement,
            ),
        )
    except BookKeeperError as error:
        raise StorageUnavailable(f"{name}: cannot create a ledger: {error}") from error
