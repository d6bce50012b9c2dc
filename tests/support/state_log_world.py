"""Nodes of a replicated state log over twins of bookies, metadata store and disk.

The machine is a dictionary that also keeps every edit that it applied, so that a test can compare histories.
"""

import json
import random
from collections.abc import Callable
from typing import Any, cast

from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock, LoopClock
from managed_ledger.state_log.config import StateLogConfig
from managed_ledger.state_log.log.log_list import LogList, decode_list
from managed_ledger.state_log.members import MemberNodes
from managed_ledger.state_log.snapshots.disk import SnapshotStore
from managed_ledger.state_log.state_log import StateLog
from tests.support.faulty_store import FaultyStore
from tests.support.memory_bookkeeper import MemoryBookKeeper

ROOT = "/dictionary"


class Dictionary:
    """`{"key": …, "value": …}` sets; `{"fail": …}` raises."""

    def __init__(self) -> None:
        self.words: dict[str, Any] = {}
        self.history: list[tuple[str, int]] = []

    def apply(self, edit: bytes, time_ms: int) -> Any:
        found = json.loads(edit)
        if "fail" in found:
            raise RuntimeError(found["fail"])
        before = self.words.get(found["key"])
        self.words[found["key"]] = found["value"]
        self.history.append((edit.decode(), time_ms))
        return before

    def snapshot(self) -> bytes:
        return json.dumps([sorted(self.words.items()), self.history]).encode()

    def restore(self, state: bytes) -> None:
        words, history = json.loads(state)
        self.words = dict(words)
        self.history = [(edit, time_ms) for edit, time_ms in history]

    @property
    def edits(self) -> list[str]:
        return [edit for edit, _ in self.history]


def setting(key: str, value: Any) -> bytes:
    return json.dumps({"key": key, "value": value}).encode()


async def at_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """Instead of a thread: a test decides when what happens."""
    return function(*arguments)


class Peers:
    """A snapshot source that asks the nodes of the world."""

    def __init__(self, world: "World", name: str) -> None:
        self._world = world
        self._name = name
        self.fetches = 0
        self.given = 0

    async def fetch(self, above: int) -> bytes | None:
        self.fetches += 1
        for node in self._world.nodes:
            if node.name != self._name and node.is_alive:
                data = await node.log.newest_snapshot(above)
                if data is not None:
                    self.given += 1
                    return data
        return None


class Node:
    """One process, as it were; `die` leaves everything as a kill would."""

    def __init__(self, world: "World", name: str, files: MemoryFiles | None = None) -> None:
        self.name = name
        self.machine = Dictionary()
        self.files = MemoryFiles() if files is None else files
        self.files.locks.clear()  # of a process that died
        self.session = world.store.session()
        self.store = FaultyStore(self.session)
        self.bookkeeper = world.bookkeeper.session()
        self.peers = Peers(world, name)
        store = cast(MetadataStore, self.store)
        self.members = MemberNodes(store, ROOT, name, "", world.clock)
        self.log = StateLog(
            self.machine, name, world.config, bookkeeper=self.bookkeeper.client, store=store, clock=world.clock,
            snapshots=SnapshotStore(self.files, "/snapshots"), source=self.peers, members=self.members,
            rng=random.Random(world.rng.random()), in_thread=at_once,
        )  # fmt: skip
        self.is_alive = True

    async def open(self) -> "Node":
        await self.log.open()
        await self.members.start(self.log.snapshots.covered)
        return self

    async def die(self) -> None:
        """Nothing that it does has an effect any more; its session ends."""
        self.is_alive = False
        for handle in self.bookkeeper.handles:
            handle.listener = None
        leading = self.log._leading
        if leading is not None:
            leading._on_lost = lambda error: None
            if leading._timer is not None:
                leading._timer.cancel()
            await leading._tasks.cancel()
        await self.log._tasks.cancel()
        await self.members._tasks.cancel()
        await self.session.close()

    async def set(self, key: str, value: Any) -> Any:
        return (await self.log.propose(setting(key, value))).result


class World:
    def __init__(self, *, clock: Clock | None = None, seed: int = 1, **settings: Any) -> None:
        self.rng = random.Random(seed)
        self.clock = LoopClock() if clock is None else clock
        self.store = MemoryStore(self.clock)
        self.bookkeeper = MemoryBookKeeper()
        self.bookkeeper.lac_goes_with_entries = True
        quick: dict[str, Any] = {"marker_s": 0.001, "poll_s": 0.001, "poll_idle_s": 0.004, "retry_s": 0.005}
        self.config = StateLogConfig(**{"root": ROOT, **quick, **settings})
        self.nodes: list[Node] = []

    async def node(self, name: str, files: MemoryFiles | None = None) -> Node:
        made = Node(self, name, files)
        self.nodes.append(made)
        return await made.open()

    async def list(self) -> LogList:
        node = await self.store.get(f"{ROOT}/log")
        assert node is not None
        return decode_list(node.value, node.path)

    async def close(self) -> None:
        for node in self.nodes:
            if node.is_alive:
                await node.log.close()
                await node.members.stop()
