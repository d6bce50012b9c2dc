"""The bundles that one broker has something to do with, and the nodes of their owners.

A bundle is known while it is ours or somebody uses it (`using`); the bundles of a namespace are known once it was asked
for.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from broker.names import Bundles
from broker.ownership.bundle import Bundle, Event, OwnerNode, Phase
from broker.ownership.nodes import NAMESPACE, decode_owner
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell
from magnetar_core.topics.topic_name import TopicName

# Namespaces whose bundles are known here though this broker has none of them: each is 32 bytes a bundle, and is read
# again when it is asked for.
NAMESPACES_MAX: Final = 10_000


class Entry(Bundle):
    """A bundle, and what waits for it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.path = f"{NAMESPACE}/{name}"
        self.lock = asyncio.Lock()
        self.moved = Bell()
        self.users = 0
        self._unwatch: Cancel | None = None

    def own(self, unwatch: Cancel) -> None:
        """It is ours from now on; *unwatch* ends the watch of its node."""
        assert self._unwatch is None, f"{self.name} is watched already"
        self._unwatch = unwatch
        self.move(Event.CLAIMED)

    def move(self, event: Event) -> None:
        super().move(event)
        if not self.is_owned:
            self.unwatch()
        self.moved.ring()

    def unwatch(self) -> None:
        """Do not look at the node any more."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None


class Entries:
    """What one broker knows of bundles."""

    def __init__(self, store: MetadataStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._ranges: dict[str, Bundles] = {}
        self._ranges_max = NAMESPACES_MAX

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def get(self, bundle: str) -> Entry | None:
        """What is known of a bundle; None: nothing."""
        return self._entries.get(bundle)

    @contextlib.contextmanager
    def using(self, name: str) -> Iterator[Entry]:
        """What is known of a bundle; it is forgotten when it is not ours and nobody uses it."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = Entry(name)
        entry.users += 1
        try:
            yield entry
        finally:
            entry.users -= 1
            assert entry.users >= 0, f"{name} is released more often than it is used"
            if not entry.users and entry.phase is Phase.AWAY and self._entries.get(name) is entry:
                del self._entries[name]

    def clear(self) -> None:
        """Forget all bundles."""
        self._entries.clear()

    def bundle_of(self, topic: TopicName) -> str | None:
        """The bundle of a topic whose namespace was asked for before."""
        bundles = self._ranges.get(topic.namespace)
        return None if bundles is None else bundles.bundle_of(topic)

    def names_in(self, namespace: str) -> list[str]:
        """The bundles of a namespace; none if it was not asked for before."""
        bundles = self._ranges.get(namespace)
        return [] if bundles is None else [f"{namespace}/{text}" for text in bundles.ranges]

    def keep_bundles(self, namespace: str, bundles: Bundles) -> Bundles:
        """Keep the bundles of a namespace. Returns those that count: older ones, which a cache or a slow answer brings,
        do not have a bundle that is served here."""
        known = self._ranges.get(namespace)
        if known is bundles:
            return bundles
        if known is not None and known.boundaries != bundles.boundaries:
            ranges = {f"{namespace}/{text}" for text in bundles.ranges}
            for entry in self._entries.values():
                is_sure = entry.phase is Phase.OWNED and not entry.is_resuming
                if is_sure and entry.namespace == namespace and entry.name not in ranges:
                    return known
        self._ranges[namespace] = bundles
        if len(self._ranges) > self._ranges_max:
            used = {entry.namespace for entry in self._entries.values()} | {namespace}
            self._ranges = {name: kept for name, kept in self._ranges.items() if name in used}
            self._ranges_max = max(NAMESPACES_MAX, 2 * len(self._ranges))
        return bundles

    async def owner_node(self, bundle: str) -> OwnerNode | None:
        """The node of a bundle's owner; None: nobody owns it. Raises MetadataError, Corruption."""
        node = await self._store.get(f"{NAMESPACE}/{bundle}")
        if node is None:
            return None
        owner, is_unloading = decode_owner(node.value, node.path)
        return OwnerNode(owner, is_unloading, node.own, node.version)

    async def wait_for_change(self, bundle: str, node: OwnerNode, deadline: float) -> bool:
        """Wait until the owner's node is removed or changed; False at *deadline*. Raises MetadataError."""
        path = f"{NAMESPACE}/{bundle}"
        changed = asyncio.Event()
        cancel = self._store.watch_node(path, changed.set)
        try:
            present_node = await self._store.get(path)  # it may have been removed before the watch was set
            if present_node is None or present_node.version != node.version:
                return True
            async with asyncio.timeout(max(deadline - self._clock.monotonic(), 0)):
                await changed.wait()
        except TimeoutError:
            return False
        finally:
            cancel()
        return True
