"""What is read from a few nodes of the metadata store, kept as long as nobody changes them."""

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataStore

V = TypeVar("V")


class Watched(Generic[V]):
    """Values by name, each with watches on its nodes; the least recently used ones are dropped."""

    def __init__(
        self,
        store: MetadataStore,
        paths_of: Callable[[str], tuple[str, ...]],
        read: Callable[[str], Awaitable[V]],
        changed: Callable[[str], None],
        most: Callable[[], int],
    ) -> None:
        """*paths_of*: the nodes that a value is read from. *changed* is called with the name of a
        value that may have changed since it was read; whoever wants it read anew calls `forget`. *most*: how many are
        kept."""
        self._store = store
        self._paths_of = paths_of
        self._read = read
        self._changed = changed
        self._most = most
        self._known: OrderedDict[str, tuple[V, Cancel]] = OrderedDict()

    @property
    def names(self) -> list[str]:
        """What is kept, the least recently used first."""
        return list(self._known)

    async def get(self, name: str) -> V:
        """Raises what reading raises; nothing is kept then."""
        entry = self._known.get(name)
        if entry is not None:
            self._known.move_to_end(name)
            return entry[0]
        changed = False

        def on_change() -> None:
            nonlocal changed
            changed = True
            self._changed(name)

        # The watch is set before the nodes are read, so that no change is missed in between.
        watches = [self._store.watch_node(path, on_change) for path in self._paths_of(name)]

        def cancel() -> None:
            for watch in watches:
                watch()

        try:
            value = await self._read(name)
        except BaseException:
            cancel()
            raise
        if changed or name in self._known:
            cancel()
            return value
        self._known[name] = (value, cancel)
        while len(self._known) > self._most():
            self._known.popitem(last=False)[1][1]()
        return value

    def forget(self, name: str) -> None:
        """Read it anew when it is asked for next."""
        entry = self._known.pop(name, None)
        if entry is not None:
            entry[1]()

    def close(self) -> None:
        """Forget everything and end the watches."""
        for _, cancel in self._known.values():
            cancel()
        self._known.clear()
