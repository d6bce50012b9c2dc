"""The policies of the namespaces that a broker uses, kept in memory; watches on their records report changes."""

from collections.abc import Callable
from typing import Final

from broker.errors import TopicNotFound, metadata_errors
from broker.policies.namespace import NamespacePolicies
from broker.records.watched import Watched
from broker.tenancy.changes import Tenancy, namespace_paths
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore

# Namespaces whose policies are kept, each with a watch. With more, the least recently used one is dropped.
NAMESPACES_MAX: Final = 10_000


class Namespaces:
    """Policies by `tenant/namespace`."""

    def __init__(self, store: MetadataStore, tenancy: Tenancy, changed: Callable[[str], None]) -> None:
        """*changed* is called with the name of a namespace whose record may have changed since it was read."""
        self._tenancy = tenancy
        self._known = Watched(store, namespace_paths, self._read, changed, lambda: NAMESPACES_MAX)

    @property
    def names(self) -> list[str]:
        """The namespaces that are kept, the least recently used first."""
        return self._known.names

    async def policies(self, name: str) -> NamespacePolicies:
        """The policies of `tenant/namespace`. Raises TopicNotFound, MetadataFailure."""
        return await self._known.get(name)

    async def _read(self, name: str) -> NamespacePolicies:
        with metadata_errors():
            policies = await self._tenancy.policies(name)
        if policies is None:
            raise TopicNotFound("Namespace not found", way_out=f"make it: magnetar namespaces create {name}")
        return policies

    def forget(self, name: str) -> None:
        """Read the policies of this namespace anew when they are asked for next."""
        self._known.forget(name)

    def close(self) -> None:
        """Forget all namespaces and end their watches."""
        self._known.close()
