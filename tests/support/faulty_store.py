"""A metadata store that passes calls on to a real one, and waits or fails where a test says so."""

from collections.abc import Awaitable, Callable, Sequence

from magnetar_core.bookkeeper.metadata.stores.store import (
    ANY_VERSION,
    Cancel,
    MetadataStore,
    Node,
    Operation,
    SessionEvent,
    TreeChanged,
)

Step = Callable[[str, str], Awaitable[None]]


class FaultyStore:
    """Awaits *on_step(what, path)* around every call.

    `get`, `put`, `delete`, `multi`, `children`, `sync` come before; what is raised there keeps the call from
    being made. `put done`, `delete done` and `multi done` come after: the change has happened, whatever is raised.
    """

    def __init__(self, inner: MetadataStore, on_step: Step | None = None) -> None:
        self.inner = inner
        self.on_step = on_step

    async def _step(self, what: str, path: str) -> None:
        if self.on_step is not None:
            await self.on_step(what, path)

    async def get(self, path: str) -> Node | None:
        await self._step("get", path)
        return await self.inner.get(path)

    async def exists(self, path: str) -> bool:
        await self._step("get", path)
        return await self.inner.exists(path)

    async def put(
        self, path: str, value: bytes, expected_version: int | None = ANY_VERSION, *, ephemeral: bool = False
    ) -> int:
        await self._step("put", path)
        version = await self.inner.put(path, value, expected_version, ephemeral=ephemeral)
        await self._step("put done", path)
        return version

    async def put_sequential(self, path_prefix: str, value: bytes, *, ephemeral: bool = False) -> str:
        await self._step("put", path_prefix)
        return await self.inner.put_sequential(path_prefix, value, ephemeral=ephemeral)

    async def next_number(self, path: str) -> int:
        await self._step("get", path)
        return await self.inner.next_number(path)

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        await self._step("delete", path)
        await self.inner.delete(path, expected_version)
        await self._step("delete done", path)

    async def multi(self, operations: Sequence[Operation]) -> None:
        await self._step("multi", operations[0].path)
        await self.inner.multi(operations)
        await self._step("multi done", operations[0].path)

    async def children(self, path: str) -> list[str]:
        await self._step("children", path)
        return await self.inner.children(path)

    async def sync(self) -> None:
        await self._step("sync", "/")
        await self.inner.sync()

    def watch_node(self, path: str, changed: Callable[[], None]) -> Cancel:
        return self.inner.watch_node(path, changed)

    def watch_children(self, path: str, changed: Callable[[], None]) -> Cancel:
        return self.inner.watch_children(path, changed)

    async def watch_tree(self, path: str, changed: TreeChanged) -> Cancel:
        return await self.inner.watch_tree(path, changed)

    def watch_session(self, changed: Callable[[SessionEvent], None]) -> Cancel:
        return self.inner.watch_session(changed)

    @property
    def session_timeout_s(self) -> float:
        return self.inner.session_timeout_s

    @property
    def last_answer(self) -> float:
        return self.inner.last_answer

    def hurry(self, wait_s: float) -> None:
        self.inner.hurry(wait_s)

    async def close(self) -> None:
        await self.inner.close()
