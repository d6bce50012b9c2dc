"""Changes that are asked for while others are under way go to ZooKeeper together, as one transaction.

    few changes      each is a request of its own
    many at once     [create a] [set b v3] [create c-]  ──▶ one transaction ──▶ each gets its own answer

After a failure a broker changes thousands of nodes within a second: a request costs it and the server more than the
change itself, and the server's log is synced for each transaction. A transaction is all or nothing, and these changes
have nothing to do with each other: if one is refused, nothing of the transaction has happened, and each is sent alone.

Changes are sent in the order in which they were asked for. One whose caller was cancelled while it waited is not sent:
the caller, who undoes what it had begun, would be overtaken by its own change. The order of a refused transaction's
changes is open, as it is for any that do not wait for each other.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, SessionLost, StoreUnavailable
from magnetar_core.runtime.tasks import Tasks

# Requests under way, alone or groups, from which on changes wait for each other. With two the server has the next one
# in hand while its answer to the first is on its way.
UNDER_WAY_MAX: Final = 2

# Of one transaction. The server takes 1 MiB; a few hundred kilobytes keep others from waiting for it.
GROUP_MAX: Final = 100
GROUP_BYTES_MAX: Final = 256 * 1024

_OVERHEAD_BYTES: Final = 100  # of one change, besides path and value


class Change(NamedTuple):
    """One change of one node."""

    path: str
    epoch: int
    """The session under which it was decided."""
    of_session: bool
    """Whether it makes an ephemeral node."""
    size_bytes: int
    alone: Callable[[], Any]
    """Hands it to kazoo as a request of its own."""
    join: Callable[[Any], None]
    """Adds it to a transaction of kazoo's."""
    operations: int | None = None
    """The number of its operations, if it is itself a transaction; its answer is a list of their answers."""


class Sender(Protocol):
    """Sends changes to ZooKeeper."""

    async def send_change(self, change: Change) -> Any:
        """One change, alone. Raises MetadataError and kazoo's errors that say why a change was refused."""
        ...

    async def send_group(self, changes: Sequence[Change]) -> Sequence[Any] | None:
        """Several as one transaction: the answers of all operations; None: refused, and nothing was changed.

        Raises MetadataError.
        """
        ...

    @property
    def epoch(self) -> int:
        """Counts sessions."""
        ...


class ChangeGroups:
    """Sends the changes of one session with ZooKeeper. For one event loop."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._waiting: deque[tuple[Change, asyncio.Future[Any]]] = deque()
        self._under_way = 0
        self._tasks = Tasks("changes of metadata")

    async def send(self, change: Change) -> Any:
        """The answer to *change*. Raises what `Sender.send_change` raises."""
        if self._under_way < UNDER_WAY_MAX and not self._waiting:
            self._under_way += 1
            try:
                return await self._sender.send_change(change)
            finally:
                self._on_answer()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((change, answer))
        return await answer

    def _on_answer(self) -> None:
        """A request has been answered: send the changes that wait."""
        self._under_way -= 1
        assert self._under_way >= 0, "more requests were answered than sent"
        while self._under_way < UNDER_WAY_MAX and (group := self._next_group()):
            self._under_way += 1
            self._tasks.spawn(self._send_group(group), "a group of changes")

    def _next_group(self) -> list[tuple[Change, asyncio.Future[Any]]]:
        """The changes that waited longest, as many as fit together. One that is too large is a group of its own."""
        group: list[tuple[Change, asyncio.Future[Any]]] = []
        size_bytes, epoch = 0, self._sender.epoch
        while self._waiting and len(group) < GROUP_MAX:
            following, answer = self._waiting[0]
            if not answer.done():  # done: cancelled
                size_bytes += following.size_bytes + _OVERHEAD_BYTES
                if group and (size_bytes > GROUP_BYTES_MAX or following.epoch != epoch):
                    break
                group.append((following, answer))
            self._waiting.popleft()
            if group and group[0][0].epoch != epoch:
                break
        return group

    async def _send_group(self, group: list[tuple[Change, asyncio.Future[Any]]]) -> None:
        try:
            answers = None
            if len(group) > 1:
                try:
                    answers = await self._sender.send_group([change for change, _ in group])
                except MetadataError as error:
                    for change, answer in group:
                        _fail_unless_done(answer, _error_of(change, error))
                    return
            if answers is None:
                await asyncio.gather(*(self._send_alone(change, answer) for change, answer in group))
                return
            left = iter(answers)
            for change, answer in group:
                result = next(left) if change.operations is None else list(islice(left, change.operations))
                if not answer.done():
                    answer.set_result(result)
        except BaseException as error:
            for change, answer in group:  # a defect, or the end of the process: nobody must wait for ever
                _fail_unless_done(answer, MetadataError(f"{change.path}: {error!r}"))
            raise
        finally:
            self._on_answer()

    async def _send_alone(self, change: Change, answer: "asyncio.Future[Any]") -> None:
        try:
            result = await self._sender.send_change(change)
        except Exception as error:
            _fail_unless_done(answer, error)
        else:
            if not answer.done():
                answer.set_result(result)


def _error_of(change: Change, error: MetadataError) -> MetadataError:
    """What the failure of a transaction is for one of its changes."""
    text = f"{change.path}, sent with others: {error}"
    if isinstance(error, SessionLost) and not change.of_session:
        return StoreUnavailable(text)
    return type(error)(text)


def _fail_unless_done(answer: "asyncio.Future[Any]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
