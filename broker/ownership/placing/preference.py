"""Which broker should serve a bundle. No IO, no clock.

    bundle free  ──▶ the broker that comes first in the bundle's order of the living brokers takes it
    bundle owned ──▶ its owner; if the owner does not answer, wait until its session ends, then as above

For a namespace with an anti-affinity group the failure domain that serves the fewest namespaces of the group comes
first, and in it the broker that serves the fewest (`anti_affinity`); what follows decides among such equals.

Brokers that use much more of their machine than the least loaded one come last. Of the others the broker with the
fewest bundles of the namespace comes first; among equals they have turns by the place of the bundle in the range of
hashes, so that brokers that are asked at the same moment agree without communicating, and each gets as many. How much a
broker uses is what it reported last, minus what went with the bundles that it has given away since, plus what came with
those that it took: else all bundles of a namespace that is unloaded would go to the broker that reported the least.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import Final

from broker.ownership.load.report import BrokerLoad
from broker.ownership.placing.anti_affinity import Spread

# Brokers whose usage differs by less count as equally loaded: reports are seconds old, and many bundles are assigned at
# once after a start.
EQUAL_USAGE: Final = 0.2

# With more free bundles than this, the others are not placed first: so many are spread well enough by their places.
FREE_MAX: Final = 128


def preference(
    bundle: str,
    brokers: Iterable[str],
    owned: Mapping[str, int],
    usage: Mapping[str, float] | None = None,
    free: Collection[str] = (),
    spread: Spread | None = None,
) -> list[str]:
    """*brokers* in order: the broker that should serve *bundle* comes first.

    *owned*: the number of bundles that each broker has. *usage*: the share of its machine that each broker uses.

    *free*: the bundles of the namespace without an owner. Clients ask for many of them at the same moment, and all
    would go to the broker with the fewest bundles. So the free bundles that come before *bundle* are placed first, in
    this computation only. Their order depends on the names alone: all brokers come to the same result.

    *spread*: which brokers serve the anti-affinity group of the namespace; None: the namespace is in no group.
    """
    all_brokers, counts = tuple(brokers), Counter(owned)
    if len(free) <= FREE_MAX and all_brokers:
        hash_key = (_reversed_low_bits(bundle), bundle)
        for _, other in sorted((_reversed_low_bits(candidate), candidate) for candidate in free):
            if (_reversed_low_bits(other), other) >= hash_key:
                break
            taker = _ranked(other, all_brokers, counts, usage, spread)[0]
            counts[taker] += 1
            spread = None if spread is None else spread.with_bundle_on(taker)
    return _ranked(bundle, all_brokers, counts, usage, spread)


def _ranked(
    bundle: str,
    brokers: Iterable[str],
    owned: Mapping[str, int],
    usage: Mapping[str, float] | None,
    spread: Spread | None,
) -> list[str]:
    all_brokers, used = sorted(brokers), usage or {}
    least_usage = min((used.get(broker, 0.0) for broker in all_brokers), default=0.0)

    levels = {} if spread is None else spread.levels(all_brokers)

    def load(broker: str) -> tuple[tuple[int, int], float, int]:
        extra_usage = used.get(broker, 0.0) - least_usage
        return levels.get(broker, (0, 0)), extra_usage if extra_usage > EQUAL_USAGE else 0.0, owned.get(broker, 0)

    order: list[str] = []
    for _, group in groupby(sorted(all_brokers, key=load), key=load):  # each in the order of the ids still
        equals = list(group)
        turn = _index_of_broker(bundle, len(equals))
        if spread is not None:
            equals = spread.in_turns(equals)
            turn = (spread.turn + _reversed_low_bits(bundle)) % len(equals)
        order += equals[turn:] + equals[:turn]
    return order


def _index_of_broker(bundle: str, count: int) -> int:
    """Which of *count* equal brokers, 0 for the first, a bundle goes to.

    Bundles are asked for at the same moment by hundreds of clients, when nobody owns any: a hash of the name would give
    one of two brokers ten of sixteen as often as not. The namespace says with whom it begins, so that namespaces of one
    bundle are spread.
    """
    namespace = bundle.rpartition("/")[0]
    first = int.from_bytes(hashlib.blake2b(namespace.encode(), digest_size=8).digest()) % count
    return (first + _reversed_low_bits(bundle)) % count


def _reversed_low_bits(bundle: str) -> int:
    """The bits of the lower end of a bundle's range in reverse order: 2^k equal bundles have the numbers below 2^k."""
    try:
        low = int(bundle.rpartition("/")[2].partition("_")[0], 16)
    except ValueError:
        low = 0  # not a range: its node was made by hand
    return int(f"{low % 2**32:032b}"[::-1], 2)


def expected_usage(
    namespace: str, loads: Mapping[str, BrokerLoad], owned: Mapping[str, Collection[str]]
) -> dict[str, float]:
    """The share of its machine that each broker of *loads* will use with the bundles of *namespace* that it owns now.

    *owned*: their names by the id of the broker. What a bundle brings is known from the broker that reported it; a
    bundle that no broker reported brings nothing.
    """
    brings: dict[str, float] = {}
    expected: dict[str, float] = {}
    for broker, load in loads.items():
        expected[broker] = load.usage
        own_bundles = owned.get(broker, ())
        for bundle in load.bundles:
            if bundle.rpartition("/")[0] == namespace and bundle not in own_bundles:
                brings[bundle] = load.usage_of(bundle)
                expected[broker] -= brings[bundle]
    for broker, load in loads.items():
        expected[broker] += sum(
            brings.get(bundle, 0.0) for bundle in owned.get(broker, ()) if bundle not in load.bundles
        )
    return {broker: max(usage, 0.0) for broker, usage in expected.items()}
