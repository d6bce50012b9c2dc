"""What the load manager does about the load of the brokers: which bundle moves, which is split. No IO and no clock.

Rules:

1. One bundle at a time moves, from the most loaded broker to the least loaded one.
2. It moves only if their usage differs by more than the threshold, and did so in the round before as well: a short peak
   moves nothing. These two need not have been the most and the least loaded then: which of several idle brokers uses
   the least changes with every report.
3. It moves only if the difference is smaller afterwards. The share of a bundle in its broker's traffic says how much
   of the usage goes with it; half of the difference is the best it can be.
4. A bundle that has moved stays where it is for the grace period, and nothing moves before the two brokers of the last
   move have reported their load after it. Others may have reported theirs long ago: a load that does not change is
   reported rarely.
5. A broker that uses little of what it has gives nothing away, however little others use.
6. No bundle moves to a broker that isolation policies keep from it, nor to one where the namespaces of its
   anti-affinity group are less apart (`anti_affinity`).
7. Of each namespace one bundle is split at a time, the one that is furthest above a limit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.ownership.load.report import BrokerLoad, BundleLoad
from broker.settings.config import BrokerConfig
from magnetar_core.runtime.types import MIB

# Rule 5: with less than a fifth of a machine in use, a move costs clients more than it gives them.
USAGE_MIN: Final = 0.2


class Move(NamedTuple):
    """*bundle* goes from one broker to another; both by id."""

    bundle: str
    source: str
    destination: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceLimits:
    """When bundles move and are split, from the settings."""

    threshold: float
    """Rule 2, as a share of a broker."""
    grace_ms: float
    topics_max: int
    sessions_max: int
    messages_max: float
    bytes_max: float
    bundles_max: int
    """Bundles of a namespace; with so many none of them is split."""


def balance_limits(config: BrokerConfig) -> BalanceLimits:
    return BalanceLimits(
        threshold=config.shedding_threshold_percent / 100,
        grace_ms=config.shedding_grace_minutes * 60_000,
        topics_max=config.bundle_max_topics,
        sessions_max=config.bundle_max_sessions,
        messages_max=config.bundle_max_messages,
        bytes_max=config.bundle_max_mbytes * MIB,
        bundles_max=config.namespace_max_bundles,
    )


def _everything(bundle: str, broker: str) -> bool:
    return True


def _ends(usage: Mapping[str, float]) -> tuple[str, str] | None:
    """The most and the least loaded broker; None: there are fewer than two."""
    if len(usage) < 2:
        return None
    ordered = sorted(usage, key=lambda broker: (usage[broker], broker))
    return ordered[-1], ordered[0]


class Balancer:
    """Remembers what was seen and done in the rounds before."""

    def __init__(self, limits: BalanceLimits) -> None:
        self._limits = limits
        self._former: Mapping[str, float] = {}
        """What each broker used in the round before; empty after a move."""
        self._moved_ms: dict[str, int] = {}
        self._last_move: tuple[int, frozenset[str]] = (0, frozenset())
        """When it was, and between which brokers."""

    def next_move(
        self, loads: Mapping[str, BrokerLoad], now_ms: int, may_serve: Callable[[str, str], bool] = _everything
    ) -> Move | None:
        """The move of this round; None: there is none. *loads* is by the ids of the brokers that are there.

        *may_serve*: whether a bundle may be at a broker.
        """
        grace_ends_ms = now_ms - self._limits.grace_ms
        self._moved_ms = {bundle: ms for bundle, ms in self._moved_ms.items() if ms > grace_ends_ms}
        usage = {broker: load.usage for broker, load in loads.items()}
        former_usage, self._former = self._former, usage
        pair = _ends(usage)
        if pair is None or not (self._is_unequal(pair, usage) and self._is_unequal(pair, former_usage)):  # rule 2
            return None
        source, destination = pair
        last_ms, concerned = self._last_move
        if any(loads[broker].at_ms <= last_ms for broker in concerned & loads.keys()):  # rule 4
            return None
        difference = loads[source].usage - loads[destination].usage
        bundle = self._best_bundle(loads[source], difference, lambda name: may_serve(name, destination))
        return None if bundle is None else Move(bundle, source, destination)

    def use(self, limits: BalanceLimits) -> None:
        """Other limits hold from the next round on."""
        self._limits = limits

    def on_moved(self, move: Move, now_ms: int, *, is_done: bool = True) -> None:
        """The move was made. Not *is_done*: it was tried in vain; that counts as well, so that others have their turn,
        but it changed no load that would have to be reported."""
        self._moved_ms[move.bundle] = now_ms
        if is_done:
            self._last_move = now_ms, frozenset((move.source, move.destination))
        self._former = {}

    def _is_unequal(self, pair: tuple[str, str], usage: Mapping[str, float]) -> bool:
        """Rules 2 and 5, for the more and the less loaded one of two brokers."""
        fuller_usage, emptier_usage = (usage.get(broker) for broker in pair)
        if fuller_usage is None or emptier_usage is None or fuller_usage < USAGE_MIN:
            return False
        return fuller_usage - emptier_usage > self._limits.threshold

    def _best_bundle(self, load: BrokerLoad, difference: float, may_move: Callable[[str], bool]) -> str | None:
        """Rules 3 and 6. The bundle with the most traffic of those that do not make the other broker the more loaded
        one."""
        whole = load.total
        if not load.bundles or not (whole.bytes or whole.messages):
            return None
        usages = ((name, load.usage_of(name)) for name in load.bundles if name not in self._moved_ms)
        usage_by_name = {name: usage for name, usage in usages if 0 < usage < difference and may_move(name)}
        # Nearest to half of the difference: that leaves the two most alike.
        return min(usage_by_name, key=lambda name: (abs(usage_by_name[name] - difference / 2), name), default=None)

    # -------------------------------------------------------------------------------- splits

    def splits(self, loads: Mapping[str, BrokerLoad], bundle_counts: Mapping[str, int]) -> list[tuple[str, str]]:
        """(bundle, id of its owner) of what is to be split (rule 7). *bundle_counts*: the bundles of each namespace;
        one that is not in it is left alone."""
        worst: dict[str, tuple[float, str, str]] = {}
        for owner, load in loads.items():
            for bundle, bundle_load in load.bundles.items():
                namespace = bundle.rpartition("/")[0]
                excess = self.excess(bundle_load)
                if excess > 1 and bundle_counts.get(namespace, self._limits.bundles_max) < self._limits.bundles_max:
                    worst[namespace] = max(worst.get(namespace, (0.0, "", "")), (excess, bundle, owner))
        return [(bundle, owner) for _, bundle, owner in sorted(worst.values(), reverse=True)]

    def excess(self, bundle: BundleLoad) -> float:
        """How much of its limits a bundle uses; above 1 it is split. A bundle with a single topic cannot be."""
        limits = self._limits
        if bundle.topics < 2:
            return 0.0
        parts = (
            (bundle.topics, limits.topics_max),
            (bundle.producers + bundle.consumers, limits.sessions_max),
            (bundle.messages, limits.messages_max),
            (bundle.bytes, limits.bytes_max),
        )
        return max((used / limit for used, limit in parts if limit > 0), default=0.0)


def is_report_due(
    now: BrokerLoad, reported: BrokerLoad, *, threshold: float, interval_max_ms: int, is_changed: bool
) -> bool:
    """Whether a broker's load has to be reported anew: its bundles changed, the last report is old, or it differs by
    more than *threshold* (a share of what was *reported*) in anything that counts."""
    if is_changed or now.bundles.keys() != reported.bundles.keys() or now.at_ms - reported.at_ms >= interval_max_ms:
        return True
    if abs(now.usage - reported.usage) > threshold:
        return True
    return any(abs(new - old) > threshold * max(old, 1.0) for new, old in zip(now.total, reported.total, strict=True))
