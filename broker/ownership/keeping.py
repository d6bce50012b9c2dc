"""The bundles of one broker: their nodes are made, kept and removed here.

    /namespace/<tenant>/<namespace>/<range>   ephemeral: the owner of a bundle

The node of a bundle that is not ours is made and removed under the lock of that bundle alone: what is removed in the
background, after a failure, is never the node with which the bundle becomes ours again. A node that is ours says
nothing yet: whether there is such a bundle is asked when the node is there.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from broker.errors import NotReady, TopicNotFound
from broker.names import Bundles
from broker.ownership.bundle import Event, OwnerNode, Phase
from broker.ownership.entries import Entries, Entry
from broker.ownership.membership import Membership, give_back, remove
from broker.ownership.nodes import encode_owner
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    MetadataError,
    MetadataStore,
    OutcomeUnknown,
    SessionLost,
    StoreUnavailable,
    VersionConflict,
)
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Corruption, MagnetarError

log = logging.getLogger(__name__)


class Keeper:
    """Takes bundles for one broker, and gives them back."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        tasks: Tasks,
        entries: Entries,
        members: Membership,
        bundles_now: Callable[[str], Awaitable[Bundles]],
        on_lost: Callable[[list[str]], None],
        *,
        resumes: bool,
    ) -> None:
        """*bundles_now* reads the bundles of a namespace anew; *on_lost* is called with the names of bundles that are
        not ours any more; *resumes*: what is ours when the session ends is taken up again in the next one."""
        self._store = store
        self._clock = clock
        self._tasks = tasks
        self._entries = entries
        self._members = members
        self._bundles_now = bundles_now
        self._on_lost = on_lost
        self._resumes = resumes
        self._sessions_ended = 0

    async def acquire(self, bundle: str) -> bool:
        """Own a bundle that is free; whether it is ours now. Raises StoreUnavailable and the like."""
        with self._entries.using(bundle) as entry:
            return not self._members.is_leaving and await self.take(entry) and entry.is_owned

    async def take(self, entry: Entry) -> bool:
        """Try to become the owner. The caller then reads the node again to see which broker is.

        False: there is no such bundle any more. That is asked when the node is ours: whoever splits a bundle stores
        the new ones before the node of the old one goes, so an answer that comes after our node cannot be outdated.
        """
        async with entry.lock:
            if entry.phase is not Phase.AWAY:
                return True
            session = self._sessions_ended
            if not await self._claim(entry):
                node = await self._entries.owner_node(entry.name)
                if node is None or not node.is_own or node.is_unloading:
                    return True
            is_there = False
            try:
                is_there = await self._is_there(entry)
            finally:
                if not is_there:
                    self._give_back_later(entry)
            if is_there:
                self._adopt([entry], session)
                log.info("owning %s", entry.name)
            return is_there

    async def _is_there(self, entry: Entry) -> bool:
        """Whether the namespace has such a bundle. Raises what *bundles_now* raises."""
        bundles = await self._bundles_now(entry.namespace)
        is_there = entry.name.rpartition("/")[2] in bundles.ranges
        if is_there:
            # From now on it is known which topics are ours, before any of them is asked for.
            self._entries.keep_bundles(entry.namespace, bundles)
        return is_there

    async def _claim(self, entry: Entry) -> bool:
        """Make the owner's node; False: there is one already, or there may be."""
        try:
            await self._store.put(entry.path, encode_owner(self._members.address), NO_NODE, ephemeral=True)
        except (VersionConflict, OutcomeUnknown):
            return False
        return True

    def _adopt(self, entries: Sequence[Entry], session: int) -> None:
        """Own bundles whose nodes were made in *session*; if that has ended, the nodes are gone, or not ours."""
        for entry in entries:
            entry.own(self._store.watch_node(entry.path, partial(self._on_node, entry)))
        if session != self._sessions_ended:
            self._go_on_without_nodes(entries)

    async def split(self, bundle: str, after: Bundles, store: Callable[[], Awaitable[None]]) -> list[str]:
        """Own the bundles that *after* has instead of *bundle*, and release *bundle*. Its topics stay open.

            nodes of the parts ──▶ *store*: the namespace has the bundles *after* ──▶ the node of the whole goes

        At each moment every broker finds an owner: this one. Returns the parts. Raises NotReady (the bundle is not
        ours, or is being given back), MetadataError and what *store* raises; nothing has changed then.
        """
        namespace, _, text = bundle.rpartition("/")
        low, _, high = text.partition("_")
        inside = [part for part in after.ranges if low <= part.partition("_")[0] and part.partition("_")[2] <= high]
        assert text not in after.ranges, f"{bundle} is not split"
        assert inside, f"{bundle} has no parts"
        with contextlib.ExitStack() as stack:
            whole = stack.enter_context(self._entries.using(bundle))
            if whole.phase is not Phase.OWNED:
                raise NotReady(
                    f"Namespace bundle {bundle} is not served by this broker, or is being moved or split; retry"
                )
            parts = [stack.enter_context(self._entries.using(f"{namespace}/{part}")) for part in inside]
            await self._split(whole, parts, after, store)
        log.info("split %s into %s", bundle, ", ".join(inside))
        return [part.name for part in parts]

    async def _split(
        self, whole: Entry, parts: Sequence[Entry], after: Bundles, store: Callable[[], Awaitable[None]]
    ) -> None:
        whole.move(Event.SPLIT)
        session = self._sessions_ended
        try:
            for part in parts:
                await self._claim_part(part, whole)
            current_bundles = await self._store_parts(whole.namespace, parts, after, store)
        except BaseException:
            for part in parts:
                if part.phase is Phase.PART and part.whole is whole:
                    part.move(Event.KEPT)
                    self._give_back_later(part)
            if whole.phase is Phase.SPLITTING:
                whole.move(Event.KEPT)
            raise
        self._adopt(parts, session)
        if whole.is_served:  # also where it was lost and taken again meanwhile
            whole.move(Event.CUT)
        self._entries.keep_bundles(whole.namespace, current_bundles)
        self._give_back_later(whole)

    async def _claim_part(self, part: Entry, whole: Entry) -> None:
        """Make the node of a part. Raises NotReady: another broker has it; MetadataError."""
        async with part.lock:
            if part.phase is Phase.AWAY:
                part.move(Event.PART)
                part.whole = whole
                if await self._claim(part):
                    return
                node = await self._entries.owner_node(part.name)
                if node is not None and node.is_own:
                    return
        raise NotReady(f"{part.name}, a part of {whole.name}, has an owner already; retry")

    async def _store_parts(
        self, namespace: str, parts: Sequence[Entry], after: Bundles, store: Callable[[], Awaitable[None]]
    ) -> Bundles:
        """Run *store*; where it fails, look whether the namespace has the *parts*: they are stored before the policies
        that repeat them, and an answer can be lost. Returns the bundles of the namespace. Raises what *store* raises.
        """
        try:
            await store()
        except MagnetarError as error:
            log.warning("whether %s has the parts of a bundle is not known: %s", namespace, error)
            while True:
                try:
                    current_bundles = await self._bundles_now(namespace)
                    break
                except MetadataError:
                    await self._clock.sleep(self._members.retry_s)
            # Not whether it has just those of *after*: other brokers split theirs meanwhile.
            if not {part.name for part in parts} <= {f"{namespace}/{text}" for text in current_bundles.ranges}:
                raise
            return current_bundles
        return after

    async def unload(self, bundle: str, close_topics: Callable[[], Awaitable[None]]) -> None:
        """Release a bundle: take no new clients, close its topics with *close_topics*, remove its node.

        If closing fails, the bundle is reported as lost and the error is passed on. Raises MetadataError.
        """
        with self._entries.using(bundle) as entry:
            if entry.phase is Phase.SPLITTING or entry.phase is Phase.PART:
                raise NotReady(f"Namespace bundle {bundle} is being split; retry")
            if entry.phase is Phase.OWNED:
                entry.move(Event.UNLOAD)
                try:
                    if await self._say_unloading(entry):
                        await self._close(entry, close_topics)
                finally:
                    # It is kept where nothing was done: it may be lost, which the watch reports.
                    entry.move(Event.KEPT if entry.is_owned else Event.RETURNED)
            while entry.is_ending:
                await entry.moved.rung()

    async def _say_unloading(self, entry: Entry) -> bool:
        """Write into a bundle's node that it is being given back; whether it is still ours. Raises MetadataError."""
        node = await self._store.get(entry.path)
        if node is None or not node.own:
            return False
        value = encode_owner(self._members.address, disabled=True)
        with contextlib.suppress(OutcomeUnknown):  # stored or not, going on is right: where it is, others wait
            await self._store.put(entry.path, value, node.version, ephemeral=True)
        return True

    async def _close(self, entry: Entry, close_topics: Callable[[], Awaitable[None]]) -> None:
        """The part of `unload` between the two changes of the node."""
        try:
            await close_topics()
        except BaseException:
            self._lose([entry])
            raise
        finally:
            if entry.phase is Phase.UNLOADING:
                entry.move(Event.CLOSED)
            try:
                await give_back(self._store, entry.path)
            except MetadataError as error:
                log.warning("%s is not served any more and could not be given back yet: %s", entry.name, error)
                self._give_back_later(entry)

    async def remove_former(self, entry: Entry, node: OwnerNode) -> None:
        """Remove the node of a bundle that is not ours, which was read as ours.

        The metadata store compares versions, and another broker's new node may have the same one. So it is read once
        more, and only what is sent in the next moment can hit such a node; its owner then sees that it has lost it.
        """
        async with entry.lock:
            if entry.phase is Phase.AWAY and await self._entries.owner_node(entry.name) == node:
                await remove(self._store, entry.path, node.version)

    def _give_back_later(self, entry: Entry) -> None:
        """Remove, in the background, the node of a bundle that is not ours any more, if the node is still ours."""
        if not self._tasks.is_closed:  # else the end of the session removes it
            self._tasks.spawn(self._give_back_until_done(entry.name), f"give back {entry.name}")

    async def _give_back_until_done(self, name: str) -> None:
        """Try to remove the node until it is gone, or until the bundle is ours again."""
        with self._entries.using(name) as entry:
            while True:
                async with entry.lock:
                    if entry.phase is not Phase.AWAY:  # it was taken again
                        return
                    with contextlib.suppress(MetadataError):
                        await give_back(self._store, entry.path)
                        return
                await self._clock.sleep(self._members.retry_s)

    def _on_node(self, entry: Entry) -> None:
        """The watch on the node of a bundle has reported something."""
        if entry.is_owned:
            self._tasks.spawn(self._check_owned(entry), f"check {entry.name}")

    async def _check_owned(self, entry: Entry) -> None:
        """Something happened to the node of a bundle of ours: look whether it is still ours, and lose the bundle if
        not.

        While the session is lost that says nothing: the nodes are made again then (`_resume_owned`).
        """
        while entry.is_owned and not entry.is_resuming:
            session = self._sessions_ended
            try:
                node = await self._store.get(entry.path)
            except MetadataError:
                await self._clock.sleep(self._members.retry_s)
                continue
            is_ours = node is not None and node.own
            if not is_ours and entry.is_owned and not entry.is_resuming and session == self._sessions_ended:
                self._lose([entry])
            return

    def _lose(self, entries: Iterable[Entry]) -> None:
        """These bundles are not ours any more: move them, and report those that were."""
        names = sorted(entry.name for entry in entries)
        for name in names:
            with self._entries.using(name) as entry:
                if entry.is_owned:
                    entry.move(Event.LOST)
        if names:
            log.warning("not owning %s any more", ", ".join(names))
            self._on_lost(names)

    def on_session_lost(self) -> None:
        """The session has ended, and with it all nodes of ours."""
        self._sessions_ended += 1
        self._go_on_without_nodes([entry for entry in self._entries if entry.is_owned])

    def _go_on_without_nodes(self, entries: Sequence[Entry]) -> None:
        """The session in which the nodes of these bundles were made has ended: make the nodes again in the next
        session, or lose the bundles where this broker does not resume, or leaves."""
        if not self._resumes or self._members.is_leaving:
            self._lose(entries)
            return
        for entry in entries:
            entry.is_resuming = True
        self._tasks.spawn(self._resume_owned(), "taking up again what was owned")

    async def _resume_owned(self) -> None:
        """Take up again, in a new session, what was owned in the one before."""
        await self._members.register_again()
        while resuming := sorted(entry.name for entry in self._entries if entry.is_resuming):
            session = self._sessions_ended
            with self._entries.using(resuming[0]) as entry:
                try:
                    is_ours = await self._take_up_again(entry)
                except TopicNotFound:  # the namespace was deleted
                    is_ours = False
                except (MetadataError, Corruption) as error:
                    log.warning("whether %s is still ours is not known: %s", entry.name, error)
                    await self._clock.sleep(self._members.retry_s)
                    continue
                if session == self._sessions_ended:  # else the session was lost once more
                    entry.is_resuming = False
                    if not is_ours and entry.is_owned:
                        self._lose([entry])
                        self._give_back_later(entry)

    async def _take_up_again(self, entry: Entry) -> bool:
        """Whether the bundle is ours in this session, and still a bundle: whoever had it meanwhile may have split it.

        Raises MetadataError, and what *bundles_now* raises.
        """
        async with entry.lock:  # a bundle that is cut meanwhile gives its node back after this
            while entry.is_served:
                if not await self._claim(entry):
                    node = await self._store.get(entry.path)
                    if node is None:
                        continue
                    if not node.own:
                        return False
                if not await self._is_there(entry):
                    return False
                log.info("still owning %s", entry.name)
                return True
        return False

    async def give_all_back(self, others: Iterable[str]) -> None:
        """Remove the nodes of all bundles of ours, and those at the paths *others*; nothing is taken any more."""
        paths = [*(entry.path for entry in self._entries if entry.is_owned), *others]
        for entry in self._entries:
            entry.unwatch()
        await self._tasks.cancel()
        self._entries.clear()
        for path in paths:
            try:
                await give_back(self._store, path)
            except (StoreUnavailable, SessionLost) as error:
                log.warning("what this broker owns is free when its session ends: %s", error)
                return  # each further node would wait as long for the same failure
            except MetadataError as error:
                log.warning("%s stays until the session ends: %s", path, error)
