"""Reads which namespaces are in an anti-affinity group, and which brokers in a failure domain.

What a namespace's own record says is read each time. Who else is in its group is known from one reading of all records
of local policies, which counts for a while: only bundles of such namespaces cause it. A record that cannot be read
counts as one without a group, or as a domain without brokers, and is logged: that groups are apart is a wish, and
no client is refused because of it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from broker.ownership.placing.anti_affinity import LOCAL_POLICIES, domains_path, parse_domain, parse_group
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import SingleFlight, Tasks
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# How long a reading of all records counts. A namespace that comes into a group is known at once where it is assigned;
# that another one left the group is known after so long.
VALID_S: Final = 30.0

# Namespaces of one group that are looked at, the first by name: the owners of each of them are read whenever a bundle
# of the group is assigned. More namespaces than brokers share brokers anyway.
MEMBERS_MAX: Final = 256

# Records that are read at the same time.
_READS_MAX: Final = 64


class GroupRecords:
    """The groups and domains of one cluster. All methods raise MetadataError."""

    def __init__(self, store: MetadataStore, clock: Clock, cluster: str, *, knows_domains: Callable[[], bool]) -> None:
        """*knows_domains*: `failureDomainsEnabled`."""
        self._store = store
        self._clock = clock
        self._cluster = cluster
        self._knows_domains = knows_domains
        self._groups: dict[str, list[str]] = {}
        self._read_s = float("-inf")
        self._tasks = Tasks("anti-affinity groups")
        self._reading: SingleFlight[str, dict[str, list[str]]] = SingleFlight(self._tasks, "reading the groups in")

    async def stop(self) -> None:
        await self._tasks.cancel()

    async def members(self, namespace: str) -> list[str]:
        """The namespaces of the group of *namespace*, itself among them; none where it is in no group."""
        group = await self._group_of(namespace)
        if group is None:
            return []
        groups = self._groups
        is_old = self._clock.monotonic() - self._read_s >= VALID_S
        if is_old or namespace not in groups.get(group, ()):
            groups = await self._reading.do(self._cluster, self._read)
        names = groups.get(group, [])
        if len(names) > MEMBERS_MAX:
            log.warning(
                "anti-affinity group %s has %d namespaces; the first %d by name count", group, len(names), MEMBERS_MAX
            )
        return sorted({namespace, *names[:MEMBERS_MAX]})

    async def domains(self) -> dict[str, str]:
        """Broker → failure domain; empty where they do not count."""
        if not self._knows_domains() or not self._cluster:
            return {}
        domain_of: dict[str, str] = {}
        root = domains_path(self._cluster)
        for name in sorted(await self._store.children(root)):
            node = await self._store.get(f"{root}/{name}")
            if node is None:
                continue
            try:
                brokers = parse_domain(node.value, node.path)
            except Corruption as error:
                log.warning("a failure domain counts as empty: %s", error)
                continue
            for broker in brokers:
                domain_of.setdefault(broker, name)
        return domain_of

    async def _group_of(self, namespace: str) -> str | None:
        node = await self._store.get(f"{LOCAL_POLICIES}/{namespace}")
        if node is None:
            return None
        try:
            return parse_group(node.value, node.path)
        except Corruption as error:
            log.warning("%s counts as in no anti-affinity group: %s", namespace, error)
            return None

    async def _read(self) -> dict[str, list[str]]:
        """Group → its namespaces, in order."""
        slots = asyncio.Semaphore(_READS_MAX)

        async def group_of(namespace: str) -> str | None:
            async with slots:
                return await self._group_of(namespace)

        names = [
            f"{tenant}/{name}"
            for tenant in await self._store.children(LOCAL_POLICIES)
            for name in await self._store.children(f"{LOCAL_POLICIES}/{tenant}")
        ]
        groups: dict[str, list[str]] = {}
        for name, group in zip(names, await asyncio.gather(*map(group_of, names)), strict=True):
            if group is not None:
                groups.setdefault(group, []).append(name)
        self._groups = {group: sorted(members) for group, members in groups.items()}
        self._read_s = self._clock.monotonic()
        return self._groups
