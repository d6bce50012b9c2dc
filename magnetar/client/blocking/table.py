"""A table view for programs without an event loop."""

from collections.abc import ItemsView, Iterator, KeysView, Mapping, ValuesView
from types import TracebackType
from typing import Self

from magnetar.client.blocking.loop import ClientLoop
from magnetar.client.codecs.declared import T
from magnetar.client.errors import ClientClosed
from magnetar.client.values import Message
from magnetar.client.views.table import AsyncChanges, AsyncTableView


class TableView(Mapping[str, T]):
    """The last value of each key of a topic. Made by `Client.table_view`.

    It is a mapping of keys to values. A null message removes its key; messages without a key are passed over.

    Example:
        with client.table_view("prices") as view:
            print(view["apple"], len(view))
    """

    def __init__(self, loop: ClientLoop, view: AsyncTableView[T]) -> None:
        self._loop = loop
        self._view = view
        self.topic = view.topic

    def ready(self) -> Self:
        """As `AsyncTableView.ready`."""
        self._loop.run(self._view.ready())
        return self

    def changes(self) -> Iterator[Message[T]]:
        """As `AsyncTableView.changes`, to be used with `for`."""

        async def make() -> AsyncChanges[T]:
            return self._view.changes()

        return self._iterate_changes(self._loop.run(make()))

    def _iterate_changes(self, changes: AsyncChanges[T]) -> Iterator[Message[T]]:
        while True:
            try:
                message = self._loop.run(anext(changes))
            except (StopAsyncIteration, ClientClosed):
                return
            yield message

    def close(self) -> None:
        """Disconnect."""
        self._loop.run(self._view.close())

    def __getitem__(self, key: str) -> T:
        return self._view[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._view)

    def __len__(self) -> int:
        return len(self._view)

    def keys(self) -> KeysView[str]:
        return self._view.keys()

    def values(self) -> ValuesView[T]:
        return self._view.values()

    def items(self) -> ItemsView[str, T]:
        return self._view.items()

    def __repr__(self) -> str:
        return repr(self._view).removeprefix("Async")

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
