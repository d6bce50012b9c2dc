"""Which brokers may serve the bundles of a namespace, by the isolation policies of the cluster. No IO.

    namespace that a policy names   its primary brokers; its secondary ones too while fewer than `min_limit` primary
                                    brokers are there
    any other namespace             every broker that is primary for no policy

Rules:

1. A broker is known by its host: the patterns are compared with the whole of it, without its port.
2. A namespace that several policies name belongs to the first of them, in the order in which they are stored.
3. Policies decide where a bundle goes that nobody serves, and where the load manager may move one. A bundle that is
   served elsewhere stays there until it is unloaded, as with Apache's brokers.

    /admin/clusters/<cluster>/namespaceIsolationPolicies
        {name: {namespaces, primary, secondary, auto_failover_policy}}

(As Apache's `NamespaceIsolationPolicies` and `LoadManagerShared`.)
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import Corruption

MIN_AVAILABLE: Final = "min_available"
"""The one type of `auto_failover_policy`: secondary brokers serve while there are too few primary ones."""

# Compiled patterns that are kept: a cluster has a few policies with a few patterns each.
PATTERNS_MAX: Final = 1_000


def isolation_path(cluster: str) -> str:
    """The node with the isolation policies of a cluster."""
    return f"/admin/clusters/{cluster}/namespaceIsolationPolicies"


@dataclass(frozen=True, slots=True)
class IsolationPolicy:
    """Some namespaces, and the brokers that are for them; all are patterns."""

    name: str
    namespaces: tuple[str, ...]
    primary: tuple[str, ...]
    secondary: tuple[str, ...]
    min_limit: int
    """With fewer primary brokers the secondary ones serve too."""

    def names(self, namespace: str) -> bool:
        return _matches(self.namespaces, namespace)

    def is_primary(self, broker: str) -> bool:
        return _matches(self.primary, broker)

    def is_secondary(self, broker: str) -> bool:
        return _matches(self.secondary, broker)


@lru_cache(PATTERNS_MAX)
def _compiled(pattern: str) -> re.Pattern[str] | None:
    """None: it is not a pattern, and matches nothing. Another program may have stored it."""
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None


def is_pattern(text: str) -> bool:
    return _compiled(text) is not None


def _matches(patterns: Iterable[str], text: str) -> bool:
    return any((regex := _compiled(pattern)) is not None and regex.fullmatch(text) is not None for pattern in patterns)


def parse_isolation(value: bytes, path: str) -> tuple[IsolationPolicy, ...]:
    """The policies in that node, in their order. Raises Corruption."""
    try:
        record = parse_json(value) if value else {}
        return tuple(isolation_policy(name, policy) for name, policy in record.items())
    except (ValueError, AttributeError, TypeError, KeyError) as error:
        raise Corruption(f"{path}: expected the JSON of isolation policies, found {value[:80]!r}") from error


def isolation_policy(name: str, record: Mapping[str, Any]) -> IsolationPolicy:
    """One policy from its JSON. Raises ValueError, AttributeError, TypeError, KeyError."""
    failover = record["auto_failover_policy"]["parameters"]
    return IsolationPolicy(
        name,
        _texts(record["namespaces"]),
        _texts(record["primary"]),
        _texts(record["secondary"]),
        int(failover["min_limit"]),
    )


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(pattern, str) for pattern in value):
        raise ValueError("expected a list of patterns")
    return tuple(value)


def candidates(namespace: str, hosts: Mapping[str, str], policies: Iterable[IsolationPolicy]) -> set[str]:
    """The brokers that may serve *namespace*, of those that are there (*hosts*: id → host)."""
    all_policies = list(policies)
    policy = next((each for each in all_policies if each.names(namespace)), None)  # rule 2
    if policy is None:
        return {broker for broker, host in hosts.items() if not any(each.is_primary(host) for each in all_policies)}
    primary = {broker for broker, host in hosts.items() if policy.is_primary(host)}
    if len(primary) >= policy.min_limit:
        return primary
    return primary | {broker for broker, host in hosts.items() if policy.is_secondary(host)}


def host_of(broker_id: str) -> str:
    """The host in the id `host:port` of a broker."""
    return broker_id.rpartition(":")[0] or broker_id
