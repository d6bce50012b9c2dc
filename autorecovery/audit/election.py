"""Which node audits: the one that has been a candidate for longest.

    <root>/underreplication/auditorelection            the vote of the auditor, for people and tools
        V_0000000003  (ephemeral, sequential)          candidates; the smallest number audits
        V_0000000007                                   … this one watches V_0000000003

Apache's nodes take part in the same election. Rules:

1. A candidate that is not first watches only the one right before it, so that the end of
   a candidate wakes only its successor.
2. Being elected is a hint (I59, I70): two auditors at once do no harm, because marks are only ever added by them.
3. After the session was lost there is no candidate of ours any more. The node ends then (`node`), and the process
   that started it starts it anew, as with Apache.
4. A node that is started anew in the same session removes what its former candidacy left: a candidate whose
   creation was not answered, or whose deletion failed. It would stay the first of all, although no auditor runs.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar_core.bookkeeper.metadata.marks import underreplication as board
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError, MetadataStore, NoNode
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks

log = logging.getLogger(__name__)

_PREFIX: Final = "V_"

# A watch may be missed; the candidates are looked at again after this.
_LOOK_S: Final = 10.0

# The metadata store is away: time until the next try.
_RETRY_S: Final = 1.0


class AuditorElection:
    """One candidate. Used on the loop."""

    def __init__(self, store: MetadataStore, root: str, name: str, clock: Clock) -> None:
        """*name* is this node's: that of its bookie, or its host's."""
        self._store = store
        self._root = root
        self._name = name
        self._clock = clock
        self._path = board.election_path(root)
        self._own: str | None = None
        self._tasks = Tasks(f"auditor election of {name}")
        self._changed = Bell()
        self._is_stale = False
        self._cancel: Cancel | None = None
        self._watched: str | None = None
        self.is_elected = False

    async def start(
        self, on_elected: Callable[[], Awaitable[None]], on_failure: Callable[[BaseException], None]
    ) -> None:
        """Become a candidate. Raises MetadataError.

        *on_elected* is called once, when this candidate is elected; *on_failure* gets an error of it, or one
        that ends the candidacy.
        """
        self._tasks.on_failure = on_failure
        await self._remove_left_behind()
        # The session's end deletes the node; the store appends the number to its name.
        path = await self._store.put_sequential(
            f"{self._path}/{_PREFIX}", board.encode_vote(self._name), ephemeral=True
        )
        self._own = path.rpartition("/")[2]
        self._tasks.spawn(self._run(on_elected), "run")

    async def _remove_left_behind(self) -> None:
        """Rule 4. Raises MetadataError."""
        for name in await candidates(self._store, self._root):
            path = f"{self._path}/{name}"
            node = await self._store.get(path)
            if node is not None and node.own and board.voter(node.value) == self._name:
                log.warning("%s removes %s, which a former candidacy of its own left", self._name, name)
                with contextlib.suppress(NoNode):
                    await self._store.delete(path)

    async def stop(self) -> None:
        """Resign: the next candidate notices it at once."""
        await self._tasks.cancel()
        self._watch(None)
        if self._own is not None:
            own, self._own = self._own, None
            try:
                await self._store.delete(f"{self._path}/{own}")
            except NoNode:
                pass
            except MetadataError as error:
                log.warning("the candidacy of %s ends with its session, or when it starts again: %s", self._name, error)

    async def _run(self, on_elected: Callable[[], Awaitable[None]]) -> None:
        while not self.is_elected:
            self._is_stale = False
            try:
                before = await self._watch_predecessor()
            except MetadataError as error:
                log.warning("the candidates for auditor could not be read: %s", error)
                await self._clock.sleep(_RETRY_S)
                continue
            if before is None:
                self.is_elected = True
                break
            await self._changed.until(lambda: self._is_stale, self._clock, _LOOK_S)
        self._watch(None)
        log.info("%s is the auditor now", self._name)
        try:
            await self._store.put(self._path, board.encode_vote(self._name))
        except MetadataError as error:
            log.warning("the vote for %s could not be written: %s", self._name, error)
        await on_elected()

    async def _watch_predecessor(self) -> str | None:
        """The candidate right before this one, which is watched from now on; None: this candidate is first."""
        assert self._own is not None
        names = await candidates(self._store, self._root)
        number = _number(self._own)
        before = [name for name in names if _number(name) < number]
        if not before:
            return None
        if self._watched != before[-1]:
            self._watch(before[-1])
            # It may have gone before the watch was set.
            if not await self._store.exists(f"{self._path}/{before[-1]}"):
                self._on_change()
        return before[-1]

    def _watch(self, name: str | None) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        self._watched = name
        if name is not None:
            self._cancel = self._store.watch_node(f"{self._path}/{name}", self._on_change)

    def _on_change(self) -> None:
        self._is_stale = True
        self._changed.ring()


async def candidates(store: MetadataStore, root: str) -> list[str]:
    """Names of the candidates' nodes, the first one audits. Raises MetadataError."""
    names = await store.children(board.election_path(root))
    return sorted((name for name in names if name.startswith(_PREFIX) and _is_number(name)), key=_number)


async def auditor(store: MetadataStore, root: str) -> str | None:
    """The name of the node that audits; None if there is none. Raises MetadataError."""
    for name in await candidates(store, root):
        node = await store.get(f"{board.election_path(root)}/{name}")
        winner = None if node is None else board.voter(node.value)
        if winner is not None:
            return winner
    return None


def _number(name: str) -> int:
    return int(name.removeprefix(_PREFIX))


def _is_number(name: str) -> bool:
    return name.removeprefix(_PREFIX).lstrip("-").isdigit()
