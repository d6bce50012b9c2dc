"""This broker as one of those that live: its node, the load that it reports, and who leads.

/loadbalance/brokers/<id>                 ephemeral: a living broker, and its load
/loadbalance/leader                       ephemeral: the leader, which tools ask about the cluster
"""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any, Final

from broker.ownership.load.report import BrokerLoad
from broker.ownership.nodes import decode_leader, decode_loaded_broker, encode_broker, encode_leader
from broker.ownership.rules import BrokerAddress
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    Cancel,
    MetadataError,
    MetadataStore,
    NoNode,
    OutcomeUnknown,
    VersionConflict,
)
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks

log = logging.getLogger(__name__)

BROKERS: Final = "/loadbalance/brokers"
LEADER: Final = "/loadbalance/leader"

_RETRY_S: Final = 1.0


class Membership:
    """The nodes of one broker that say that it lives."""

    def __init__(
        self, store: MetadataStore, clock: Clock, tasks: Tasks, version: str, kinds: Mapping[str, bool]
    ) -> None:
        """*kinds*: `persistent`, `non_persistent` → whether this broker serves such topics."""
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._version = version
        self._kinds = dict(kinds)
        self._started_ms = clock.wall_ms()
        self._load: Mapping[str, Any] | None = None  # as it was reported last
        self._cancel_leader: Cancel | None = None
        self.broker_id = ""
        """`host:web port`; empty before the start."""
        self.address = BrokerAddress("")
        self.retry_s = _RETRY_S
        """After so many seconds a request is made again that the metadata store did not answer."""
        self.is_leader = False
        self.is_leaving = False
        """This broker takes no bundles any more, and gives away those that it has."""

    async def start(self, broker_id: str, address: BrokerAddress) -> None:
        """Raises MetadataError."""
        self.broker_id, self.address = broker_id, address
        self._cancel_leader = self._store.watch_node(LEADER, self._on_leader_changed)
        await self._register()
        await self._campaign()

    def stop(self) -> list[str]:
        """Do nothing any more; returns the paths of the nodes that may be ours."""
        if self._cancel_leader is not None:
            self._cancel_leader()
        return [f"{BROKERS}/{self.broker_id}", *([LEADER] if self.is_leader else [])]

    async def leave(self) -> None:
        """Stop being a broker that others send clients to. Raises MetadataError."""
        self.is_leaving = True
        self.is_leader = False
        for path in (f"{BROKERS}/{self.broker_id}", LEADER):
            await give_back(self._store, path)

    async def register_again(self) -> None:
        """Make the nodes of this broker again, in a new session; tries until they are there."""
        while True:
            try:
                await self._register()
                await self._campaign()
                return
            except MetadataError as error:
                log.warning("cannot register this broker again yet: %s", error)
                await self._clock.sleep(self.retry_s)

    async def brokers(self) -> dict[str, BrokerAddress]:
        """The registered brokers by id; some may have just died. Raises MetadataError, Corruption."""
        return {broker_id: address for broker_id, (address, _) in (await self.loaded_brokers()).items()}

    async def loaded_brokers(self) -> dict[str, tuple[BrokerAddress, BrokerLoad]]:
        """The registered brokers by id, and the load that each has reported. Raises MetadataError, Corruption."""
        ids = await self._store.children(BROKERS)
        nodes = await asyncio.gather(*(self._store.get(f"{BROKERS}/{broker_id}") for broker_id in ids))
        return {
            broker_id: decode_loaded_broker(node.value, node.path)
            for broker_id, node in zip(ids, nodes, strict=True)
            if node is not None
        }

    async def leader(self) -> tuple[str, str]:
        """(broker id, HTTP URL) of the leader; empty texts while there is none. Raises MetadataError, Corruption."""
        node = await self._store.get(LEADER)
        return ("", "") if node is None else decode_leader(node.value, node.path)

    def report_of(self, load: Mapping[str, Any] | None) -> bytes:
        """The node of this broker, with this load."""
        return encode_broker(self.address, self._version, self._started_ms, load, **self._kinds)

    async def report_load(self, load: Mapping[str, Any]) -> None:
        """Report the load of this broker (`load.report.encode_load`) to the others. Raises MetadataError."""
        self._load = load
        node = await self._store.get(f"{BROKERS}/{self.broker_id}")
        if node is not None and node.own:  # else it is reported when this broker registers again
            await self._store.put(node.path, self.report_of(load), node.version, ephemeral=True)

    async def _register(self) -> None:
        """Make our node, at a path that no other living broker uses; that of a dead process is removed."""
        path = f"{BROKERS}/{self.broker_id}"
        while True:
            try:
                await self._store.put(path, self.report_of(self._load), NO_NODE, ephemeral=True)
                return
            except (VersionConflict, OutcomeUnknown):
                node = await self._store.get(path)
                if node is not None and node.own:
                    return
                if node is not None:
                    await remove(self._store, path, node.version)

    async def _campaign(self) -> None:
        value = encode_leader(self.broker_id, self.address)
        try:
            await self._store.put(LEADER, value, NO_NODE, ephemeral=True)
            self.is_leader = True
        except (VersionConflict, OutcomeUnknown):
            node = await self._store.get(LEADER)
            self.is_leader = node is not None and node.own

    def _on_leader_changed(self) -> None:
        if not self.is_leaving:
            self._tasks.spawn(self._campaign_quietly(), "leader")

    async def _campaign_quietly(self) -> None:
        with contextlib.suppress(MetadataError):
            await self._campaign()


async def give_back(store: MetadataStore, path: str) -> None:
    """Remove a node if it is still ours; another broker may own it by now. Raises MetadataError."""
    node = await store.get(path)
    if node is not None and node.own:
        with contextlib.suppress(NoNode, VersionConflict):
            await store.delete(path, node.version)


async def remove(store: MetadataStore, path: str, version: int) -> None:
    """Remove a node that is still as it was read; the caller reads it again. Raises MetadataError."""
    with contextlib.suppress(NoNode, VersionConflict, OutcomeUnknown):
        await store.delete(path, version)
