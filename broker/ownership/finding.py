"""Which broker serves a topic: lookups, and those that wait for a bundle.

`bundle.next_action` decides; here it is done. A lookup for a bundle whose owner does not answer waits until the owner's
session has ended: a client that is refused backs off, and loses more time than this wait takes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from broker.names import Bundles
from broker.ownership.bundle import Action, Lookup, OwnerNode, Phase, next_action
from broker.ownership.entries import Entries, Entry
from broker.ownership.keeping import Keeper
from broker.ownership.membership import Membership
from broker.ownership.placing.ranking import Ranking
from broker.ownership.probing import Probes, Sign
from broker.ownership.rules import BrokerAddress, Located, NoBrokerAvailable
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import SingleFlight, Tasks
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName

# How long a lookup waits for the end of a dead owner's session. Clients wait 30 s for a lookup. Sessions take 2 s in a
# developer's cluster and 30 s in Apache's configuration; there the client has to retry.
TAKEOVER_WAIT_S: Final = 20.0

# For an owner that has not answered by then, its answer and a change of its node are waited for together.
QUICKLY_S: Final = 0.25

# An owner that did not answer is tested again after so long: it may have been busy, or have been started again.
PROBE_AGAIN_S: Final = 1.0


class _StillAway(NoBrokerAvailable, code=NoBrokerAvailable.code):
    """A bundle was waited for and is not served yet; another lookup may wait longer."""


class Finder:
    """Finds the owners of bundles for one broker, or makes it the owner."""

    def __init__(
        self,
        clock: Clock,
        tasks: Tasks,
        entries: Entries,
        members: Membership,
        ranking: Ranking,
        keeper: Keeper,
        probes: Probes,
        bundles_of: Callable[[str], Awaitable[Bundles]],
        bundles_now: Callable[[str], Awaitable[Bundles]],
        takeover_wait_s: float,
    ) -> None:
        """*bundles_of* gives a namespace's bundles or raises what clients are told; *bundles_now* reads them anew."""
        self._clock = clock
        self._tasks = tasks
        self._entries = entries
        self._members = members
        self._ranking = ranking
        self._keeper = keeper
        self._probes = probes
        self._bundles_of = bundles_of
        self._bundles_now = bundles_now
        self.takeover_wait_s = takeover_wait_s
        """Seconds that a lookup waits for a bundle whose owner is gone, or gives it back."""
        self.on_awaited: Callable[[TopicName], None] = lambda topic: None
        """Called with a topic that is asked for, whose owner does not answer and which this broker will take."""
        self._locating: SingleFlight[tuple[str, bool], Located | bool] = SingleFlight(tasks, "finding the owner of")

    async def better_broker(self, bundle: str) -> tuple[str, BrokerAddress] | None:
        """As `Ranking.better_broker`. Raises NoBrokerAvailable, MetadataError, Corruption."""
        namespace = bundle.rpartition("/")[0]
        return await self._ranking.better_broker(bundle, self._entries.names_in(namespace))

    async def would_take(self, bundle: str) -> bool:
        """Whether this broker is the one that shall have the bundle once it is free. Raises MetadataError, Corruption,
        NoBrokerAvailable."""
        return not self._members.is_leaving and await self.better_broker(bundle) is None

    async def locate(self, topic: TopicName, *, authoritative: bool) -> Located:
        """Find the broker that serves *topic*; acquires its bundle if this broker comes first.

        Waits for the end of a dead owner's session and for a bundle that is being given back. Raises
        NoBrokerAvailable, StoreUnavailable, Corruption, and what *bundles_of* raises for a namespace that does not
        exist.
        """
        if not self._members.broker_id:
            raise NoBrokerAvailable("This broker is starting")
        bundles = self._entries.keep_bundles(topic.namespace, await self._bundles_of(topic.namespace))
        deadline = self._clock.monotonic() + self.takeover_wait_s
        while True:
            name = bundles.bundle_of(topic)
            entry = self._entries.get(name)
            if entry is not None and entry.is_served:
                return Located(here=True, broker=self._members.address)
            if self._tasks.is_closed:
                raise NoBrokerAvailable("This broker is stopping")
            try:
                answer = await self._located(topic, name, authoritative, deadline)
            except _StillAway as error:
                if self._clock.monotonic() >= deadline:
                    raise NoBrokerAvailable(f"No broker was available to own {topic}: {error}") from error
                continue  # another lookup has waited for as long as it may; this one came later
            if isinstance(answer, Located):
                return answer
            if not answer:
                bundles = await self._bundles_now(topic.namespace)
                self._entries.keep_bundles(topic.namespace, bundles)

    async def _located(self, topic: TopicName, name: str, authoritative: bool, deadline: float) -> Located | bool:
        """As `_find_or_take`. After a failure thousands of lookups wait for the same few bundles: one for each bundle
        asks for all."""
        with self._entries.using(name) as entry:
            entry.asked.add(topic)
            if entry.is_owner_away:
                self.on_awaited(topic)
            return await self._locating.do((name, authoritative), partial(self._find, name, authoritative, deadline))

    async def _find(self, name: str, authoritative: bool, deadline: float) -> Located | bool:
        """`_find_or_take`, once for all lookups that ask for the bundle meanwhile."""
        with self._entries.using(name) as entry:
            try:
                return await self._find_or_take(entry, authoritative, deadline)
            finally:
                entry.is_owner_away = False
                entry.asked.clear()

    async def _find_or_take(self, entry: Entry, authoritative: bool, deadline: float) -> Located | bool:
        """Find the broker that serves a bundle, or make it this one (True).

        False: there is no such bundle any more. Raises NoBrokerAvailable, _StillAway at *deadline*.
        """
        while True:
            node = await self._entries.owner_node(entry.name) if entry.phase is Phase.AWAY else None
            lookup = Lookup(self._members.address, self._members.is_leaving, authoritative)
            match next_action(entry, node, lookup):
                case Action.SERVE:
                    return True
                case Action.AWAIT_RETURN:
                    if not await self._moved(entry, deadline):
                        raise _StillAway(f"Namespace bundle {entry.name} is being unloaded")
                case Action.SEND_TO_PROMISED:
                    return Located(here=False, broker=entry.promised, redirect=True, authoritative=True)
                case Action.RANK:
                    elsewhere = await self.better_broker(entry.name)
                    if elsewhere is not None:
                        return Located(here=False, broker=elsewhere[1], redirect=True, authoritative=True)
                    if not await self._keeper.take(entry):
                        return False
                case Action.TAKE:
                    if not await self._keeper.take(entry):
                        return False
                case Action.REMOVE_FORMER:
                    assert node is not None
                    await self._keeper.remove_former(entry, node)
                case Action.AWAIT_OWNER:
                    assert node is not None
                    if not await self._entries.wait_for_change(entry.name, node, deadline):
                        raise _StillAway(f"Namespace bundle {entry.name} is being unloaded by {node.owner.native_url}")
                case Action.ASK_OWNER:
                    assert node is not None
                    if await self._owner_answers(entry, node, deadline):
                        return Located(here=False, broker=node.owner)

    async def _owner_answers(self, entry: Entry, node: OwnerNode, deadline: float) -> bool:
        """Whether the owner of a bundle answers; False after a while: look again. Raises _StillAway at *deadline*."""
        if (is_alive := await self._answers_unless_changed(entry.name, node)) is not False:
            return bool(is_alive)
        if not entry.is_owner_away and await self._would_take_quietly(entry.name):
            entry.is_owner_away = True
            for topic in entry.asked:
                self.on_awaited(topic)
        elif await self._entries.wait_for_change(
            entry.name, node, min(deadline, self._clock.monotonic() + PROBE_AGAIN_S)
        ):
            self._probes.forget(node.owner)  # it may be back
        elif self._clock.monotonic() >= deadline:
            raise _StillAway(f"{node.owner.native_url} does not answer")
        return False

    async def _answers_unless_changed(self, bundle: str, node: OwnerNode) -> bool | None:
        """Whether the owner answers; None as soon as *node*, which names it, changes: it takes long to see that a
        process hangs."""
        try:
            async with asyncio.timeout(QUICKLY_S):
                return await self._answers(node.owner)
        except TimeoutError:
            name = f"ask {node.owner.native_url}"
            asking: asyncio.Task[bool] = self._tasks.spawn(self._answers(node.owner), name, awaited=True)
        while not asking.done():
            if await self._entries.wait_for_change(bundle, node, self._clock.monotonic() + QUICKLY_S):
                return None
        return asking.result()

    async def _would_take_quietly(self, bundle: str) -> bool:
        """As `would_take`, for a lookup that waits: an error is reported when the bundle is free."""
        try:
            return await self.would_take(bundle)
        except (NoBrokerAvailable, MetadataError, Corruption):
            return False

    async def _moved(self, entry: Entry, deadline: float) -> bool:
        """Wait until a bundle that is being given back has another phase; False at *deadline*."""
        left_s = max(deadline - self._clock.monotonic(), 0)
        return await entry.moved.until(lambda: not entry.is_ending, self._clock, left_s)

    async def take_when_free(self, bundle: str, wait_s: float) -> bool:
        """Own a bundle, for which `would_take` has said yes, as soon as its owner has given it back or is dead.

        Whether it is ours; False if another broker was quicker, or after *wait_s*. Raises MetadataError, Corruption.
        """
        deadline = self._clock.monotonic() + wait_s
        with self._entries.using(bundle) as entry:
            entry.takers += 1
            try:
                while not entry.is_owned:
                    node = await self._entries.owner_node(bundle)
                    if node is None:
                        return await self._keeper.acquire(bundle)
                    if not await self._entries.wait_for_change(entry.name, node, deadline):
                        return False
                return True
            finally:
                entry.takers -= 1

    async def _answers(self, broker: BrokerAddress) -> bool:
        return await self._probes.sign(broker) is Sign.ANSWERS
