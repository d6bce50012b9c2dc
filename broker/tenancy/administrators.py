"""The administrators of tenants, kept in memory; a watch on each record reports changes."""

from collections.abc import Callable
from typing import Final

from broker.errors import metadata_errors
from broker.policies.rules import names_in
from broker.records.json_records import parse_record
from broker.records.watched import Watched
from broker.tenancy.changes import POLICIES_ROOT
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore

# Tenants whose administrators are kept, each with a watch. With more, the least recently used one is dropped.
TENANTS_MAX: Final = 10_000


class _NoTenant(Exception):
    """There is none of that name, so nothing is kept: anybody can ask for names, and would push others out."""


class TenantAdmins:
    """The administrators by the name of their tenant."""

    def __init__(self, store: MetadataStore, changed: Callable[[str], None]) -> None:
        """*changed* is called with the name of a tenant whose record may have changed since it was read."""
        self._store = store
        self._known = Watched(store, lambda tenant: (_path(tenant),), self._read, changed, lambda: TENANTS_MAX)

    @property
    def names(self) -> list[str]:
        """The tenants that are kept, the least recently used first."""
        return self._known.names

    async def admins_of(self, tenant: str) -> frozenset[str] | None:
        """The administrators of *tenant*; None if there is no such tenant. Raises MetadataFailure."""
        try:
            return await self._known.get(tenant)
        except _NoTenant:
            return None

    async def _read(self, tenant: str) -> frozenset[str]:
        with metadata_errors():
            node = await self._store.get(_path(tenant))
            if node is None:
                raise _NoTenant(tenant)
            return frozenset(map(str, names_in(parse_record(node), "adminRoles")))

    def forget(self, tenant: str) -> None:
        """Read the administrators of this tenant anew when they are asked for next."""
        self._known.forget(tenant)

    def close(self) -> None:
        """Forget all tenants and end their watches."""
        self._known.close()


def _path(tenant: str) -> str:
    return f"{POLICIES_ROOT}/{tenant}"
