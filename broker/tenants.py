"""The administrators of tenants, kept in memory; a watch on each record tells of changes."""

from collections import OrderedDict
from typing import Final

from broker.errors import MetadataFailure
from broker.policy_rules import names_in
from broker.records import parse_record
from broker.tenancy import POLICIES_ROOT
from magnetar_core.bookkeeper.metadata.store import Cancel, MetadataError, MetadataStore
from magnetar_core.runtime.types import Corruption

# Tenants whose administrators are kept, each with a watch; also names that no tenant has, which anybody can ask for.
# With more, the least recently used one is dropped.
TENANTS_MAX: Final = 10_000


class TenantAdmins:
    """The administrators by the name of their tenant."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._known: OrderedDict[str, tuple[frozenset[str], Cancel]] = OrderedDict()

    @property
    def names(self) -> list[str]:
        """The tenants that are kept, the least recently used first."""
        return list(self._known)

    async def of(self, tenant: str) -> frozenset[str]:
        """The administrators of *tenant*; none if there is no such tenant. Raises MetadataFailure."""
        known = self._known.get(tenant)
        if known is not None:
            self._known.move_to_end(tenant)
            return known[0]
        changed = False

        def on_change() -> None:
            nonlocal changed
            changed = True
            self.forget(tenant)

        # The watch is set before the record is read, so that no change is missed in between.
        path = f"{POLICIES_ROOT}/{tenant}"
        cancel = self._store.watch_node(path, on_change)
        try:
            node = await self._store.get(path)
            admins = frozenset() if node is None else frozenset(map(str, names_in(parse_record(node), "adminRoles")))
        except (MetadataError, Corruption) as error:
            cancel()
            raise MetadataFailure(str(error)) from error
        if changed or tenant in self._known:
            cancel()
            return admins
        self._known[tenant] = (admins, cancel)
        while len(self._known) > TENANTS_MAX:
            self._known.popitem(last=False)[1][1]()
        return admins

    def forget(self, tenant: str) -> None:
        """Read the administrators of this tenant anew when they are asked for next."""
        known = self._known.pop(tenant, None)
        if known is not None:
            known[1]()

    def close(self) -> None:
        """Forget all tenants and end their watches."""
        for _, cancel in self._known.values():
            cancel()
        self._known.clear()
