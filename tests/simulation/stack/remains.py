"""What must hold in a cluster that has nothing to do any more, beside what `checks` says of subscriptions and budgets.

1. Each bookie stands in the register once, in the list that fits its mode.
2. Each entry of a closed ledger is on as many of the bookies that its record names as the ledger's ack quorum says.
3. The ledgers whose records say that they are a topic's or a subscription's are named there. Only a broker that ends
   between the two writes, or does not hear an answer, may leave some.
4. Topics have the policies that are stored for them, whatever they missed.
5. Nothing goes in a circle: callbacks and requests to the metadata server within some seconds have a limit.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from broker.policies.namespace import parse_policies
from broker.tenancy.changes import namespace_path
from magnetar.inspect.stray_rules import entries_of
from magnetar.testing.simulated.cluster import BOOKIE_PORT, ROOT, SimulatedCluster
from magnetar.testing.simulated.loop import Process, VirtualClock
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import NoSuchLedger
from magnetar_core.bookkeeper.client.reading.entry_lists import EntryLists
from magnetar_core.bookkeeper.client.wire.pool import ConnectionPool
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.runtime.types import MagnetarError
from managed_ledger.records.paths import cursor_path, ledger_path
from managed_ledger.records.pulsar_records import decode_cursor_info, decode_ledger_info

IDLE_S: Final = 10.0

# Of one machine and second. A cluster that is idle has some 15 and 2, the most that was seen of 300 lives: 60 and 7.
CALLS_MAX: Final = 150
REQUESTS_MAX: Final = 15


async def registered(cluster: SimulatedCluster) -> str:
    """Rule 1; empty where it holds."""
    root = cluster.server.root
    writable = set(await root.children(f"{ROOT}/available")) - {"readonly"}
    read_only = set(await root.children(f"{ROOT}/available/readonly"))
    for machine in cluster.bookies:
        bookie_id = f"{machine.name}:{BOOKIE_PORT}"
        assert machine.bookie is not None, "all machines are up"
        mode = machine.bookie.parts.mode
        wanted = (False, True) if mode.is_read_only else (True, False)
        if (bookie_id in writable, bookie_id in read_only) != wanted:
            return f"{machine} is read-only for {mode.texts}; registered are {sorted(writable)}, {sorted(read_only)}"
    return ""


async def lacking(cluster: SimulatedCluster, process: Process) -> str:
    """Rule 2; empty where it holds. *process* asks the bookies."""
    return await process.run(_lacking(cluster))


async def _lacking(cluster: SimulatedCluster) -> str:
    clock = VirtualClock(cluster.loop)
    store = cluster.server.session(clock)
    directory = BookieDirectory(store, ROOT, clock)
    pool = ConnectionPool(directory, clock, ClientConfig())
    lists = EntryLists(pool)
    try:
        await directory.start()
        async for ledger_id, metadata in _ledgers(cluster):
            if not metadata.is_closed or metadata.last_entry_id < 0:
                continue
            there = {each: entries_of(await lists.of(each, ledger_id)) for each in sorted(metadata.bookies())}
            for entry_id in range(metadata.last_entry_id + 1):
                ensemble = metadata.ensemble_for(entry_id)
                places = [(entry_id + number) % len(ensemble) for number in range(metadata.write_quorum)]
                copies = sum(there[ensemble[place]] >> entry_id & 1 for place in places)
                if copies < metadata.ack_quorum:
                    return f"entry {entry_id} of ledger {ledger_id} has {copies} copies: {metadata}"
    except MagnetarError as error:
        return f"entries cannot be listed: {error}"
    finally:
        await pool.close()
        await directory.stop()
        await store.close()
    return ""


async def _ledgers(cluster: SimulatedCluster) -> AsyncIterator[tuple[int, LedgerMetadata]]:
    ledgers = LedgerStore(cluster.server.root, ROOT)
    for ledger_id in [each async for each in ledgers.list()]:
        with contextlib.suppress(NoSuchLedger):  # it goes just now
            yield ledger_id, (await ledgers.read(ledger_id)).metadata


async def unnamed(cluster: SimulatedCluster) -> list[str]:
    """Rule 3: the ledgers that nobody names, in words."""
    root = cluster.server.root
    strangers = []
    async for ledger_id, metadata in _ledgers(cluster):
        fields = {name: value.decode(errors="replace") for name, value in metadata.custom_metadata}
        topic, cursor = fields.get("pulsar/managed-ledger", ""), fields.get("pulsar/cursor", "")
        if not topic:
            continue
        node = await root.get(cursor_path(topic, cursor) if cursor else ledger_path(topic))
        if node is None:
            named = []
        elif cursor:
            named = [decode_cursor_info(node.value, cursor).cursorsLedgerId]
        else:
            named = [info.ledgerId for info in decode_ledger_info(node.value, topic).ledgerInfo]
        if ledger_id not in named:
            strangers.append(f"ledger {ledger_id} of {cursor or 'its own'} in {topic}, which names {named}")
    return strangers


async def outdated(cluster: SimulatedCluster) -> str:
    """Rule 4; empty where it holds."""
    for machine in cluster.brokers:
        broker = machine.broker
        assert broker is not None, "all machines are up"
        for topic in list(broker.topics.values()):
            stored = await cluster.server.root.get(namespace_path(topic.name.namespace))
            if stored is None:
                continue
            wanted = broker.in_force.combined(
                topic.name, parse_policies(stored.value, topic.name.namespace, machine.config.cluster_name), ()
            )
            if not topic.policies.is_same_but_for_bundles(wanted):
                return f"{machine}: {topic.name} has other policies than its namespace: {topic.policies.raw}"
    return ""


class Circles:
    """Rule 5."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self.calls = self.requests = 0.0
        """Of a machine and second."""

    async def look(self) -> str:
        """Empty where it holds."""
        loop, server = self._cluster.loop, self._cluster.server
        calls, requests = loop.calls, server.requests
        await asyncio.sleep(IDLE_S)
        share = IDLE_S * len(self._cluster.machines)
        self.calls, self.requests = (loop.calls - calls) / share, (server.requests - requests) / share
        if self.calls > CALLS_MAX or self.requests > REQUESTS_MAX:
            return f"an idle machine makes {self.calls:.0f} calls and {self.requests:.1f} metadata requests a second"
        return ""
