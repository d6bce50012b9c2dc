"""Which brokers should serve the namespaces of an anti-affinity group. No IO.

    namespace ──▶ its group     /admin/local-policies/<namespace>                     namespaceAntiAffinityGroup
    broker    ──▶ its domain    /admin/clusters/<cluster>/failureDomain/<domain>      {brokers}, by the ids of brokers

Rules, those of Apache's ModularLoadManagerImpl and LoadManagerShared:

1. A free bundle of a namespace with a group goes to the failure domain that serves the fewest namespaces of the group,
   and there to the broker that serves the fewest. Among equals the load decides, as for any bundle.
2. A broker serves a namespace when it owns one bundle of it or more; a domain serves it once for each such broker. The
   namespace itself counts. Names of groups differ in more than capital letters.
3. Failure domains count only with `failureDomainsEnabled`. Brokers that are in none are one domain together.
4. Only brokers that may serve the namespace count (`isolation`): what others serve cannot be helped.
5. The load manager moves a bundle only where no more namespaces of the group fail together with it, in the domain
   first and then on the broker, than where it is. (Apache's load manager does not look where the bundle will go.)
6. It is a wish: where all brokers but one are gone, that one serves them all. What is together stays so until it is
   unloaded, as with Apache's brokers.

Namespaces of a group that nobody serves are assigned at the same moment after a start, by brokers that do not ask each
other. So among equals they have turns, and brokers of different domains follow each other in them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import Corruption

ANTI_AFFINITY_GROUP: Final = "namespaceAntiAffinityGroup"
LOCAL_POLICIES: Final = "/admin/local-policies"

NO_DOMAIN: Final = "default"
"""The domain of brokers that are in none, as Apache's brokers call it."""


def domains_path(cluster: str) -> str:
    """The node whose children are the failure domains of a cluster."""
    return f"/admin/clusters/{cluster}/failureDomain"


def parse_group(value: bytes, path: str) -> str | None:
    """The group in a namespace's local policies, as it is compared (rule 2); None: it has none. Raises Corruption."""
    group = _object(value, path).get(ANTI_AFFINITY_GROUP)
    if group is not None and not isinstance(group, str):
        raise Corruption(f"{path}: {ANTI_AFFINITY_GROUP} is not a text: {group!r:.100}")
    return (group or "").strip().casefold() or None


def parse_domain(value: bytes, path: str) -> tuple[str, ...]:
    """The ids of the brokers in a failure domain. Raises Corruption."""
    brokers = _object(value, path).get("brokers") or []
    if not isinstance(brokers, list) or not all(isinstance(broker, str) for broker in brokers):
        raise Corruption(f"{path}: the brokers of a failure domain are not a list of names: {brokers!r:.100}")
    return tuple(brokers)


def _object(value: bytes, path: str) -> dict[str, Any]:
    try:
        record = parse_json(value) if value else {}
    except ValueError as error:
        raise Corruption(f"{path}: {error}") from error
    if not isinstance(record, dict):
        raise Corruption(f"{path}: expected a JSON object, found {value[:60]!r}")
    return record


@dataclass(frozen=True, slots=True)
class Spread:
    """Who serves the namespaces of one group now, as one of them is assigned."""

    namespace: str
    """The one that is assigned."""
    serving: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Broker → the namespaces of the group that it serves."""
    domains: Mapping[str, str] = field(default_factory=dict)
    """Broker → failure domain; empty: they do not count (rule 3)."""
    turn: int = 0
    """The place of the namespace among those of the group that nobody serves."""

    def levels(self, brokers: Iterable[str]) -> dict[str, tuple[int, int]]:
        """How well off the namespace would be on each of *brokers*, smaller being better (rule 1): namespaces of the
        group in its domain, and on itself."""
        counts = {broker: len(self.serving.get(broker, ())) for broker in brokers}
        if not self.domains:
            return {broker: (0, count) for broker, count in counts.items()}
        in_domain: Counter[str] = Counter()
        for broker, count in counts.items():
            in_domain[self._domain(broker)] += count
        return {broker: (in_domain[self._domain(broker)], count) for broker, count in counts.items()}

    def group_members_near(self, broker: str, brokers: Iterable[str]) -> tuple[int, int]:
        """How many namespaces of the group would be in the domain of *broker*, and how many on it, with this namespace
        among them: so many fail together."""
        here = self.serving.get(broker, frozenset())
        near = [self.serving.get(peer, frozenset()) for peer in brokers if self._domain(peer) == self._domain(broker)]
        in_domain = here.union(*near) | {self.namespace} if self.domains else frozenset()
        return len(in_domain), len(here | {self.namespace})

    def in_turns(self, brokers: Collection[str]) -> list[str]:
        """*brokers* so that those of one domain are as far from each other as they can be."""
        numbers: Counter[str] = Counter()
        order = []
        for broker in sorted(brokers):
            domain = self._domain(broker)
            order.append((numbers[domain], domain, broker))
            numbers[domain] += 1
        return [broker for *_, broker in sorted(order)]

    def with_bundle_on(self, broker: str) -> "Spread":
        """As it is when *broker* has taken another bundle of the namespace."""
        has = self.serving.get(broker, frozenset())
        return replace(self, serving={**self.serving, broker: has | {self.namespace}})

    def without(self, broker: str) -> "Spread":
        """As it is when *broker* does not serve the namespace any more."""
        has = self.serving.get(broker, frozenset())
        return replace(self, serving={**self.serving, broker: has - {self.namespace}})

    def _domain(self, broker: str) -> str:
        return self.domains.get(broker, NO_DOMAIN) if self.domains else ""


def spread_of(namespace: str, owners: Mapping[str, Collection[str]], domains: Mapping[str, str]) -> Spread:
    """*owners*: each namespace of the group, itself among them → the brokers that serve it."""
    assert namespace in owners, f"{namespace} is not in its own group"
    serving: dict[str, set[str]] = {}
    for member, brokers in owners.items():
        for broker in brokers:
            serving.setdefault(broker, set()).add(member)
    waiting = sorted(member for member, brokers in owners.items() if not brokers or member == namespace)
    return Spread(
        namespace,
        {broker: frozenset(names) for broker, names in serving.items()},
        domains,
        waiting.index(namespace),
    )


def may_move(spread: Spread, source: str, destination: str, brokers: Collection[str], *, is_last: bool) -> bool:
    """Whether one bundle of the namespace may go from *source* to *destination* (rule 5). *brokers* may serve it;
    *is_last*: the source has no other bundle of the namespace."""
    if spread.namespace in spread.serving.get(destination, ()):
        return True  # it is together with what is there already
    all_brokers = {*brokers, source, destination}
    remaining = spread.without(source) if is_last else spread
    return remaining.group_members_near(destination, all_brokers) <= spread.group_members_near(source, all_brokers)
