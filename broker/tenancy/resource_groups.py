"""The resource groups of the cluster as this broker keeps them; watches on their records report changes.

    /admin/resourcegroups/<name>      {"publishRateInMsgs": 1000, …}, as Apache's brokers keep it

Rules:

1. All groups are known, not only those that topics here are in: a topic that is opened finds its group without waiting,
   and what a group owes is not forgotten while its topics come and go.
2. A record that cannot be read changes nothing: its group keeps the rates that it had, and none at first.
3. A group that is deleted limits nobody any more; topics join it again if it is made again.
4. A change that cannot be read, since the metadata store does not answer, is read again until it can.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from broker.policies.namespace import parse_resource_group
from broker.settings.quotas import NO_GROUP_RATES
from broker.tenancy.changes import RESOURCE_GROUPS, RESOURCE_GROUPS_MAX
from broker.topic.rates.resource_group import ResourceGroup
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.pauses import GrowingPause
from magnetar_core.runtime.tasks import Failed, Tasks, attempt
from magnetar_core.runtime.types import Cancellable, Corruption

log = logging.getLogger(__name__)

# Groups that are read at the same time when the broker starts.
READS_AT_ONCE: Final = 100

# How long to wait before a change is read again; doubles from the first to the last.
RETRY_FIRST_S: Final = 1.0
RETRY_LAST_S: Final = 30.0


class ResourceGroups:
    """Resource groups by name."""

    def __init__(self, store: MetadataStore, clock: Clock, changed: Callable[[str], None], tasks: Tasks) -> None:
        """*changed* is called with the name of a group that has come or gone."""
        self._store = store
        self._clock = clock
        self._changed = changed
        self._tasks = tasks
        self._known: dict[str, tuple[ResourceGroup, Cancel]] = {}
        self._cancel: Cancel | None = None
        self._turn = asyncio.Lock()
        self._retrying: set[str] = set()
        """What will be read again (rule 4), by its path."""
        self._is_closed = False

    @property
    def by_name(self) -> Mapping[str, ResourceGroup]:
        return {name: group for name, (group, _) in self._known.items()}

    def get(self, name: str | None) -> ResourceGroup | None:
        """The group of that name, if there is one."""
        entry = None if name is None else self._known.get(name)
        return None if entry is None else entry[0]

    async def start(self) -> None:
        """Read all groups, and watch them. Raises MetadataError."""
        self._cancel = self._store.watch_children(RESOURCE_GROUPS, self._on_children)
        await self._read_all()

    def close(self) -> None:
        """Watch no more."""
        self._is_closed = True
        if self._cancel is not None:
            self._cancel()
        for _, cancel in self._known.values():
            cancel()

    def _on_children(self) -> None:
        self._follow(RESOURCE_GROUPS, self._read_all)

    def _follow(self, path: str, step: Callable[[], Awaitable[None]]) -> None:
        """*path* has changed."""
        if not self._is_closed and path not in self._retrying:
            self._tasks.spawn(self._apply_with_retries(path, step), path)

    async def _apply_with_retries(self, path: str, step: Callable[[], Awaitable[None]]) -> None:
        """Do *step* until it succeeds (rule 4)."""
        pause = GrowingPause(RETRY_FIRST_S, RETRY_LAST_S)
        while isinstance(await attempt(f"{path}: applying a change", step()), Failed) and path not in self._retrying:
            self._retrying.add(path)
            await self._clock.sleep(pause.next_s())
            self._retrying.discard(path)

    async def _read_all(self) -> None:
        """Know the groups that there are now, RESOURCE_GROUPS_MAX of them at most. Raises MetadataError."""
        async with self._turn:
            group_names = sorted(await self._store.children(RESOURCE_GROUPS))
            if len(group_names) > RESOURCE_GROUPS_MAX:
                log.error(
                    "there are %d resource groups, and the first %d by name are in force; delete some",
                    len(group_names),
                    RESOURCE_GROUPS_MAX,
                )
            used_names = group_names[:RESOURCE_GROUPS_MAX]
            for name in [name for name in self._known if name not in set(used_names)]:
                self._forget(name)
            new = [name for name in used_names if name not in self._known]
            for start in range(0, len(new), READS_AT_ONCE):
                await asyncio.gather(*(self._add(name) for name in new[start : start + READS_AT_ONCE]))

    def _forget(self, name: str) -> None:
        group, cancel = self._known.pop(name)
        cancel()
        group.use(NO_GROUP_RATES)  # rule 3
        self._changed(name)

    async def _add(self, name: str) -> None:
        """Know one more group, by its record, and watch that. Raises MetadataError."""
        group = ResourceGroup(name, self._clock.wall_ms, self._call_later)

        def on_change() -> None:
            self._follow(_path(name), lambda: self._reload(group))

        # The watch is set before the node is read, so that no change is missed in between.
        cancel = self._store.watch_node(_path(name), on_change)
        try:
            await self._read(group)
        except BaseException:
            cancel()
            raise
        self._known[name] = group, cancel
        self._changed(name)

    async def _reload(self, group: ResourceGroup) -> None:
        async with self._turn:
            if self.get(group.name) is group:
                former_rates = group.rates
                await self._read(group)
                group.updates += group.rates != former_rates

    async def _read(self, group: ResourceGroup) -> None:
        """Give *group* the rates of its record. Raises MetadataError."""
        node = await self._store.get(_path(group.name))
        if node is None:  # deleted: the watch on the list of groups reports it, and `_forget` follows
            return
        try:
            rates = parse_resource_group(node.value, node.path)
        except Corruption as error:  # rule 2
            log.error("a resource group cannot be read, and nothing of it is applied: %s", error)
            return
        if rates != group.rates:
            group.use(rates)

    def _call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable:
        return self._clock.call_later(delay_ms / 1000, callback)


def _path(name: str) -> str:
    return f"{RESOURCE_GROUPS}/{name}"
