"""Ledgers that Apache's brokers have moved to tiered storage (S3, Google Cloud Storage, Azure, files). No IO.

The record of a topic keeps them (`offloadContext`) with driver, place and a UUID; when the copy is complete and the
bookies' one is deleted, it says `bookkeeperDeleted`. Apache's jcloud offloader (4.0.8) names two objects after them:

    <uuid>-ledger-<ledger>              the entries, in blocks
    <uuid>-ledger-<ledger>-index        where the blocks are

They are not read here. Such a ledger is there: it is neither lost nor damaged.
"""

from collections.abc import Iterable
from uuid import UUID

from managed_ledger.records.records_pb2 import ManagedLedgerInfo

_MASK = 2**64 - 1


def is_offloaded(info: ManagedLedgerInfo.LedgerInfo) -> bool:
    """Whether a copy in tiered storage is complete."""
    return info.offloadContext.complete


def only_offloaded(info: ManagedLedgerInfo.LedgerInfo) -> bool:
    """Whether the ledger is in tiered storage, and its entries are not on bookies any more."""
    return info.offloadContext.complete and info.offloadContext.bookkeeperDeleted


def place_of(info: ManagedLedgerInfo.LedgerInfo) -> str:
    """Driver, bucket and object of a ledger in tiered storage, as text for people."""
    context = info.offloadContext
    of_driver = {item.key: item.value for item in context.driverMetadata.properties}
    uuid = UUID(int=(context.uidMsb & _MASK) << 64 | context.uidLsb & _MASK)
    where = [f"{context.driverMetadata.name or 'tiered storage'}"]
    if "bucket" in of_driver:
        where.append(f"bucket {of_driver['bucket']}")
    for name in ("serviceEndpoint", "region"):
        if of_driver.get(name):
            where.append(of_driver[name])
    return f"{', '.join(where)}, object {uuid}-ledger-{info.ledgerId}"


def what_stays(infos: Iterable[ManagedLedgerInfo.LedgerInfo]) -> list[str]:
    """Objects that stay in tiered storage when ledgers are removed here, as text."""
    return [place_of(info) for info in infos if is_offloaded(info)]
