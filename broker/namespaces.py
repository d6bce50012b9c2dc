"""The policies of the namespaces that a broker uses, kept in memory; a watch on each record tells of changes."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from broker.errors import BrokerError, MetadataFailure, TopicNotFound
from broker.policies import NamespacePolicies
from broker.tenancy import Tenancy, namespace_path
from magnetar_core.bookkeeper.metadata.store import Cancel, MetadataError, MetadataStore
from magnetar_core.runtime.types import Corruption

# Namespaces whose policies are kept, each with a watch. With more, the least recently used one is dropped.
NAMESPACES_MAX: Final = 10_000


class Namespaces:
    """Policies by `tenant/namespace`."""

    def __init__(self, store: MetadataStore, tenancy: Tenancy, changed: Callable[[str], None]) -> None:
        """*changed* is called with the name of a namespace whose record may have changed since it was read."""
        self._store = store
        self._tenancy = tenancy
        self._changed = changed
        self._known: OrderedDict[str, tuple[NamespacePolicies, Cancel]] = OrderedDict()

    @property
    def names(self) -> list[str]:
        """The namespaces that are kept, the least recently used first."""
        return list(self._known)

    async def policies(self, name: str) -> NamespacePolicies:
        """The policies of `tenant/namespace`. Raises TopicNotFound, MetadataFailure."""
        known = self._known.get(name)
        if known is not None:
            self._known.move_to_end(name)
            return known[0]
        changed = False

        def on_change() -> None:
            nonlocal changed
            changed = True
            self._changed(name)

        # The watch is set before the record is read, so that no change is missed in between.
        cancel = self._store.watch_node(namespace_path(name), on_change)
        try:
            policies = await self._read(name)
        except BrokerError:
            cancel()
            raise
        if changed or name in self._known:
            cancel()
            return policies
        self._known[name] = (policies, cancel)
        while len(self._known) > NAMESPACES_MAX:
            self._known.popitem(last=False)[1][1]()
        return policies

    async def _read(self, name: str) -> NamespacePolicies:
        try:
            policies = await self._tenancy.policies(name)
        except (MetadataError, Corruption) as error:
            raise MetadataFailure(str(error)) from error
        if policies is None:
            raise TopicNotFound("Namespace not found")
        return policies

    def forget(self, name: str) -> None:
        """Read the policies of this namespace anew when they are asked for next."""
        known = self._known.pop(name, None)
        if known is not None:
            known[1]()

    def close(self) -> None:
        """Forget all namespaces and end their watches."""
        for _, cancel in self._known.values():
            cancel()
        self._known.clear()
