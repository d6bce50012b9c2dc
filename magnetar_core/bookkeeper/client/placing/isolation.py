"""Which bookies a ledger may use: groups of bookies that are kept apart. No IO.

    node `/bookies`     group → bookies                                  (`pulsar-admin bookies set-bookie-rack -g`)
    record of a ledger  "EnsemblePlacementPolicyConfig" → the groups     (a namespace with an affinity group)
    the client          the groups of ledgers whose record names none    (`bookkeeperClientIsolationGroups`)

Rules, those of Apache's IsolatedBookieEnsemblePlacementPolicy:

1. A ledger is placed on bookies of its primary groups.
2. With fewer of them than the ensemble has members, those of its secondary groups may be used as well.
3. With fewer of both, bookies that are in none of the other groups may be used as well.
4. A bookie that is in another group only is never used. In two groups a bookie counts for both.
5. A primary group `*` means all bookies; so does a node `/bookies` that is not there or names nobody.

Only bookies that can be taken now count in rules 2 and 3.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from magnetar_core.runtime.data.json_text import parse_json

POLICY_KEY: Final = "EnsemblePlacementPolicyConfig"
"""Where Apache's brokers put the placement of a ledger into its record."""

POLICY_CLASS: Final = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"
PRIMARY: Final = "isolationBookieGroups"
SECONDARY: Final = "secondaryIsolationBookieGroups"
ALL: Final = "*"


class Isolation(NamedTuple):
    """The groups of a ledger, as comma-separated names. None named: bookies that are in no group."""

    primary: str | None = None
    secondary: str | None = None

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.primary or 'none'}, then {self.secondary or 'none'}"

    @property
    def custom_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """What the record of a ledger holds of it, as Apache's brokers write it."""
        groups = {PRIMARY: self.primary, SECONDARY: self.secondary}
        properties = {name: text for name, text in groups.items() if text is not None}
        policy = {"policyClass": POLICY_CLASS, "properties": properties}
        return ((POLICY_KEY, json.dumps(policy, indent=2, separators=(",", " : "), ensure_ascii=False).encode()),)


def isolation_in(custom_metadata: Iterable[tuple[str, bytes]]) -> Isolation | None:
    """The groups that the record of a ledger names; None: none, or it cannot be understood, or by another class."""
    value = next((value for key, value in custom_metadata if key == POLICY_KEY), None)
    if value is None:
        return None
    try:
        policy = parse_json(value)
        if policy["policyClass"] != POLICY_CLASS:
            return None
        properties = policy.get("properties") or {}
        return Isolation(_joined_groups(properties.get(PRIMARY)), _joined_groups(properties.get(SECONDARY)))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _joined_groups(value: Any) -> str | None:
    """Apache reads a list of groups as text with commas."""
    if value is None:
        return None
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def usable(
    available: Collection[str],
    groups: Mapping[str, Collection[str]],
    isolation: Isolation | None,
    ensemble_size: int,
    members: Collection[str] = (),
) -> frozenset[str]:
    """Those of *available* on which the ledger may be. *groups*: group → bookies.

    *members* are bookies that stay in the ensemble; they count where rules 2 and 3 count.
    """
    everybody = frozenset(available)
    if isolation is None or not groups:
        return everybody
    primary = _names(isolation.primary)
    if ALL in primary:
        return everybody
    own = _bookies(groups, primary)
    foreign = _bookies(groups, groups.keys() - primary)
    present = everybody | frozenset(members)
    allowed = own
    if len(allowed & present) < ensemble_size:
        allowed |= _bookies(groups, _names(isolation.secondary))
    if len(allowed & present) < ensemble_size:
        allowed |= present - foreign
    return allowed & everybody


def _names(text: str | None) -> frozenset[str]:
    return frozenset(name for name in (text or "").split(",") if name)


def _bookies(groups: Mapping[str, Collection[str]], names: Iterable[str]) -> frozenset[str]:
    return frozenset(bookie for name in names for bookie in groups.get(name, ()))
