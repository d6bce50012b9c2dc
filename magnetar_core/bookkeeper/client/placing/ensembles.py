"""Which bookies form an ensemble. No IO: the caller passes the bookies, where they stand and the random numbers.

Rules, the stronger first:

1. Bookies in quarantine are taken only when there are not enough others.
2. Where an ensemble exists that has the regions, racks and hosts that each window should have (`topology`), such a one
   is chosen; else one that has regions and racks; else one that has the regions; else one that lacks as little as the
   search finds.
3. A replacement comes from the rack of the bookie that it replaces, or else from its region, where that does not cost
   rule 2.
4. Everything else is random.

With enforcement of racks, bookies of the default rack are not candidates, and an ensemble that has fewer racks than the
setting says is refused. Where durability is asked for (`regions`), an ensemble is refused in which the bookies of some
ack quorum span too few regions; a replacement likewise, but in windows that were not durable before it. Rule 1 is
weaker than both.

The positions are filled one by one, in several random orders, each with what costs least there; then members are
exchanged for as long as less is lacking. The search has an end: a rare ensemble that could be right is missed
(`tests/property/test_placement.py` compares with all that there are).
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.client.errors import NotEnoughBookies
from magnetar_core.bookkeeper.client.placing.regions import DEFAULT_RACK, region_of
from magnetar_core.bookkeeper.client.placing.topology import Demand, Location, Spread, Topology, windows

# Draws at random before that: in a cluster with room nearly every draw fits, and each that does is equally likely.
_DRAWS: Final = 4

# Orders in which the positions are filled, each one by one with what costs least there. Nearly always the first fits.
_ORDERS: Final = 12

# Windows that are looked at in one choice, at most, so that it is done within some 15 ms. With it four of 600 drawn
# ensembles of 6 to 10 bookies lacked more than they had to, and none of 1,600 smaller ones.
_STEPS: Final = 1_500

# Sets of members that are tried for an exchange: all sets of an ensemble of six, the small ones of a larger one.
_MOVES_TRIED: Final = 64

NOTHING: Final = Demand(1, 1)
"""What every choice has."""


def choose_ensemble(
    writable: Collection[str],
    ensemble_size: int,
    quarantined: Collection[str],
    rng: random.Random,
    *,
    write_quorum: int | None = None,
    ack_quorum: int | None = None,
    topology: Topology | None = None,
) -> tuple[str, ...]:
    """*ensemble_size* different bookies. Raises NotEnoughBookies.

    *write_quorum* None: every entry goes to the whole ensemble. *ack_quorum* None: durability is not looked at.
    *topology* None: nothing is known but the ids.
    """
    topology = topology or Topology()
    write_quorum = write_quorum or ensemble_size
    candidates = _candidates(writable, topology)
    if len(candidates) >= ensemble_size:
        fixed: list[str | None] = [None] * ensemble_size
        limits = [_copies_max(topology, ack_quorum) for _ in windows(ensemble_size, write_quorum)]
        placing = _Placing(topology, write_quorum, fixed, range(ensemble_size), {}, limits, rng)
        chosen = placing.choose(candidates, quarantined)
        if chosen is not None:
            return tuple(chosen[at] for at in range(ensemble_size))
    raise NotEnoughBookies(_refusal(writable, ensemble_size, write_quorum, ack_quorum, topology))


def choose_replacements(
    writable: Collection[str],
    ensemble: Sequence[str],
    failed: Mapping[int, str],
    unreachable: Collection[str],
    quarantined: Collection[str],
    rng: random.Random,
    *,
    write_quorum: int | None = None,
    ack_quorum: int | None = None,
    topology: Topology | None = None,
) -> dict[int, str]:
    """A new bookie for each failed position, as far as there are enough: position → bookie.

    Members of the ensemble and the bookies in *unreachable* are not considered. May be empty or partial. With
    enforcement it is empty where the racks or regions of the windows concerned cannot be had.
    """
    topology = topology or Topology()
    excluded = {*ensemble, *failed.values(), *unreachable}
    candidates = _candidates([bookie for bookie in writable if bookie not in excluded], topology)
    positions = list(failed)[: len(candidates)]
    if not positions:
        return {}
    fixed = [None if at in failed else bookie for at, bookie in enumerate(ensemble)]
    preferred = {at: topology.of(failed[at]).rack for at in positions}
    write_quorum = write_quorum or len(ensemble)
    limits = _limits_after(ensemble, failed, write_quorum, ack_quorum, topology)
    placing = _Placing(topology, write_quorum, fixed, positions, preferred, limits, rng)
    return placing.choose(candidates, quarantined) or {}


def choose_moves(
    writable: Collection[str],
    ensemble: Sequence[str],
    unreachable: Collection[str],
    quarantined: Collection[str],
    rng: random.Random,
    *,
    write_quorum: int,
    ack_quorum: int | None = None,
    topology: Topology,
) -> dict[int, str]:
    """Members to exchange so that an ensemble lacks less than before: position → bookie.

    As few as make up for everything; where nothing does, those that make up for most. Empty: it cannot be better.
    """
    usable = [bookie for bookie in writable if bookie not in unreachable]
    everybody = {*usable, *ensemble}
    best: dict[int, str] = {}
    lacking = topology.deficit(ensemble, write_quorum, everybody)
    if not any(lacking):
        return best
    concerned = _positions_that_lack(ensemble, write_quorum, everybody, topology)
    tries = 0
    for count in range(1, len(concerned) + 1):
        for positions in combinations(concerned, count):
            tries += 1
            if tries > _MOVES_TRIED:
                return best
            leaving = {at: ensemble[at] for at in positions}
            replacements = choose_replacements(
                writable,
                ensemble,
                leaving,
                unreachable,
                quarantined,
                rng,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                topology=topology,
            )
            after = tuple(replacements.get(at, bookie) for at, bookie in enumerate(ensemble))
            now = topology.deficit(after, write_quorum, everybody)
            if now < lacking:
                best, lacking = replacements, now
            if not any(lacking):
                return best
    return best


def _positions_that_lack(
    ensemble: Sequence[str], write_quorum: int, everybody: Collection[str], topology: Topology
) -> list[int]:
    """Positions of members that stand in a window which lacks something."""
    names = {name for violation in topology.violations(ensemble, write_quorum, everybody) for name in violation.bookies}
    return [at for at, bookie in enumerate(ensemble) if bookie in names]


def _candidates(writable: Iterable[str], topology: Topology) -> list[str]:
    # Sorted: a set's order differs between processes, and a seed must give the same choice.
    without = topology.is_aware and topology.is_enforced
    return sorted(bookie for bookie in writable if not (without and topology.of(bookie).rack == DEFAULT_RACK))


def _refusal(
    writable: Collection[str], ensemble_size: int, write_quorum: int, ack_quorum: int | None, topology: Topology
) -> str:
    asked = f"an ensemble of {ensemble_size} bookies is asked for"
    durable = 0 if topology.regions is None or ack_quorum is None else topology.regions.durable
    if not topology.is_aware or len(writable) < ensemble_size or not (topology.is_enforced or durable > 1):
        return f"{asked}, writable are: {', '.join(sorted(writable)) or 'none'}"
    wanted = []
    if topology.is_enforced:
        racks_min = min(write_quorum, topology.racks_min)
        wanted.append(
            f"whose write quorums of {write_quorum} each span {racks_min} racks (enforced; {DEFAULT_RACK} does not "
            "count)"
        )
    if durable > 1:
        wanted.append(
            f"in which any {ack_quorum} copies of an entry span {durable} regions (reppMinimumRegionsForDurability)"
        )
    racks = "; ".join(f"{rack}: {', '.join(names)}" for rack, names in topology.racks(writable).items())
    return f"{asked} {' and '.join(wanted)}, writable are {racks}"


def _copies_max(topology: Topology, ack_quorum: int | None) -> int | None:
    """Copies that the largest regions of a window, one less than durability asks for, may have together; None: any
    number. With one more, an ack quorum of them would span too few regions."""
    if ack_quorum is None or not topology.is_aware or topology.regions is None or topology.regions.durable <= 1:
        return None
    return ack_quorum - 1


def _limits_after(
    ensemble: Sequence[str],
    failed: Mapping[int, str],
    write_quorum: int,
    ack_quorum: int | None,
    topology: Topology,
) -> list[int | None]:
    """`_copies_max` of each window for replacements: none where the members that fail did not keep it either."""
    limit = _copies_max(topology, ack_quorum)
    every = windows(len(ensemble), write_quorum)
    rules = topology.regions
    if limit is None or rules is None or not rules.binds_replacements:
        return [None] * len(every)
    former = [topology.of(failed.get(at, bookie)).region for at, bookie in enumerate(ensemble)]
    return [limit if _in_largest([former[at] for at in window], rules.durable) <= limit else None for window in every]


def _in_largest(regions: Sequence[str], durable: int) -> int:
    """Of copies in *regions* those in the largest regions, one less of them than durability asks for."""
    counts = map(regions.count, set(regions))
    return max(counts, default=0) if durable == 2 else sum(sorted(counts, reverse=True)[: durable - 1])


def distance(preferred: str | None, rack: str) -> int:
    """How far a replacement is from the rack that is preferred: 0 in it, 1 in its region, else 2."""
    if rack == preferred:
        return 0
    return 1 if preferred is not None and region_of(rack) == region_of(preferred) else 2


class _Kind(NamedTuple):
    """Bookies that are alike: which of them is taken makes no difference."""

    location: Location
    is_quarantined: bool


class _Cost(NamedTuple):
    """What a choice lacks. Smaller is better, and what stands first counts more."""

    excess: int
    """What enforcement forbids: racks below the least, and copies above the limits."""
    regions: int
    racks: int
    hosts: int
    strangers: int
    """How far replacements are from the racks of those that they replace (rule 3)."""


_Chosen = dict[int, _Kind]


class _Placing:
    """One choice: which bookies stand at the open positions of an ensemble."""

    def __init__(
        self,
        topology: Topology,
        write_quorum: int,
        fixed: Sequence[str | None],
        positions: Sequence[int],
        preferred: Mapping[int, str],
        limits: Sequence[int | None],
        rng: random.Random,
    ) -> None:
        """*fixed*: who stays; None at *positions*, which are to be filled, and where nobody will stand. *limits*: of
        each window (`_copies_max`)."""
        self._topology = topology
        self._write_quorum = write_quorum
        self._members = [bookie for bookie in fixed if bookie is not None]
        self._fixed = [None if bookie is None else topology.of(bookie) for bookie in fixed]
        self._positions = list(positions)
        self._preferred = preferred
        self._rng = rng
        self._windows = windows(len(fixed), write_quorum)
        self._limits = limits
        self._durable = 0 if topology.regions is None else topology.regions.durable
        self._counts_regions = topology.is_aware and topology.regions is not None
        is_enforced = topology.is_aware and topology.is_enforced
        self._is_strict = is_enforced or any(limit is not None for limit in limits)
        least = min(write_quorum, topology.racks_min) if is_enforced else 1
        self._racks_least = [least if not set(positions).isdisjoint(window) else 1 for window in self._windows]
        self._of: list[list[int]] = [[] for _ in fixed]
        """Position → its windows."""
        for number, window in enumerate(self._windows):
            for at in window:
                self._of[at].append(number)
        self._steps = 0
        self._demand = NOTHING

    def choose(self, candidates: Sequence[str], quarantined: Collection[str]) -> dict[int, str] | None:
        """Position → bookie; None where enforcement allows nothing. There are enough *candidates*."""
        count = len(self._positions)
        assert count <= len(candidates)
        good = [bookie for bookie in candidates if bookie not in quarantined]
        bad = [bookie for bookie in candidates if bookie in quarantined]
        least = max(count - len(good), 0)
        self._steps = _STEPS
        for budget in range(least, min(count, len(bad)) + 1 if self._is_strict else least + 1):
            chosen = self._choose(good, bad if budget else [], budget)
            if chosen is not None:
                return chosen
        return None

    def _choose(self, good: Sequence[str], bad: Sequence[str], budget: int) -> dict[int, str] | None:
        self._demand = self._topology.demand({*good, *bad, *self._members}, self._write_quorum)
        if not bad and len(self._positions) == len(self._fixed):
            for _ in range(_DRAWS):
                drawn = self._rng.sample(good, len(self._positions))
                if not any(self._sum([self._topology.of(bookie) for bookie in drawn], range(len(self._windows)), ())):
                    return dict(enumerate(drawn))
        pools: dict[_Kind, list[str]] = {}
        for names, is_quarantined in ((good, False), (bad, True)):
            for bookie in names:
                pools.setdefault(_Kind(self._topology.of(bookie), is_quarantined), []).append(bookie)
        best: _Chosen = {}
        least: _Cost | None = None
        for attempt in range(_ORDERS if len(self._positions) > 1 else 1):  # of one position all was looked at
            chosen = self._filled(pools, budget, in_order=attempt % 2 == 1)
            cost = self._cost(chosen)
            if any(cost):
                chosen, cost = self._improved(chosen, cost, pools)
            if least is None or cost < least:
                best, least = chosen, cost
            if not any(least) or self._steps <= 0:
                break
        assert least is not None
        if self._is_strict and least.excess:
            return None
        for names in pools.values():
            self._rng.shuffle(names)
        return {at: pools[kind].pop() for at, kind in best.items()}

    def _filled(self, pools: Mapping[_Kind, Sequence[str]], budget: int, *, in_order: bool) -> _Chosen:
        """Each position gets what costs least there, with those that are filled already."""
        left = {kind: len(names) for kind, names in pools.items()}
        order = list(self._positions)
        if in_order:
            first = self._rng.randrange(len(order))
            order = order[first:] + order[:first]
        else:
            self._rng.shuffle(order)
        located = list(self._fixed)
        chosen: _Chosen = {}
        # In quarantine are those that the others do not suffice for, at positions by lot.
        in_quarantine = set(self._rng.sample(order, budget))
        for at in order:
            kinds = [kind for kind, count in left.items() if count and kind.is_quarantined == (at in in_quarantine)]
            cheapest = self._cheapest(located, at, kinds, left)
            left[cheapest] -= 1
            chosen[at] = cheapest
            located[at] = cheapest.location
        return chosen

    def _cheapest(
        self, located: list[Location | None], at: int, kinds: Sequence[_Kind], left: Mapping[_Kind, int]
    ) -> _Kind:
        """Of those that cost the same at position *at*, any, in proportion to how many there are."""
        hosts = {location.host for location in located if location is not None}
        costs: dict[Location, _Cost] = {}
        by_cost: dict[_Cost, list[_Kind]] = {}
        for kind in kinds:
            rack, host = kind.location
            like = Location(rack, host if host in hosts else "")  # hosts without a member are alike
            if like not in costs:
                located[at] = kind.location
                costs[like] = self._cost_at(located, at)
            by_cost.setdefault(costs[like], []).append(kind)
        located[at] = None
        equal = by_cost[min(by_cost)]
        return self._rng.choices(equal, [left[kind] for kind in equal])[0]

    def _improved(self, chosen: _Chosen, cost: _Cost, pools: Mapping[_Kind, Sequence[str]]) -> tuple[_Chosen, _Cost]:
        """Exchange one member, or two with each other, for as long as less is lacking then."""
        is_better = True
        while is_better and self._steps > 0:
            is_better = False
            for at in self._rng.sample(self._positions, len(self._positions)):
                for other in self._alternatives(chosen, at, pools):
                    now = self._cost(other)
                    if now < cost:
                        chosen, cost, is_better = other, now, True
        return chosen, cost

    def _alternatives(self, chosen: _Chosen, at: int, pools: Mapping[_Kind, Sequence[str]]) -> list[_Chosen]:
        used = Counter(chosen.values())
        alternatives = [
            {**chosen, at: kind}
            for kind, names in pools.items()
            if kind != chosen[at] and kind.is_quarantined == chosen[at].is_quarantined and used[kind] < len(names)
        ]
        alternatives += [
            {**chosen, at: chosen[other], other: chosen[at]}
            for other in self._positions
            if chosen[other].location != chosen[at].location
        ]
        self._rng.shuffle(alternatives)
        return alternatives

    # ----------------------------------------------------------------------------------- what is lacking

    def _cost(self, chosen: _Chosen) -> _Cost:
        located = list(self._fixed)
        for at, kind in chosen.items():
            located[at] = kind.location
        return self._sum(located, range(len(self._windows)), chosen)

    def _cost_at(self, located: Sequence[Location | None], at: int) -> _Cost:
        """What the windows of position *at* lack; where nobody stands yet counts as another region, rack and host."""
        return self._sum(located, self._of[at], (at,))

    def _sum(self, located: Sequence[Location | None], numbers: Sequence[int], positions: Iterable[int]) -> _Cost:
        excess = regions = racks = hosts = 0
        demand = self._demand
        self._steps -= len(numbers)
        for number in numbers:
            spread = self._spread_of(located, self._windows[number])
            racks += max(demand.racks - spread.racks, 0)
            hosts += max(demand.hosts - spread.hosts, 0)
            if self._counts_regions:
                regions += max(demand.regions - spread.regions, 0) + max(spread.copies - demand.copies_max, 0)
            if self._is_strict:
                excess += max(self._racks_least[number] - spread.racks, 0) + self._copies_above_limit(located, number)
        strangers = 0
        if self._preferred:
            strangers = sum(
                distance(self._preferred[at], location.rack)
                for at in positions
                if (location := located[at]) is not None
            )
        return _Cost(excess, regions, racks, hosts, strangers)

    def _copies_above_limit(self, located: Sequence[Location | None], number: int) -> int:
        """By how much the copies of a window in its largest regions are above its limit."""
        limit = self._limits[number]
        if limit is None:
            return 0
        regions = [region_of(location.rack) for at in self._windows[number] if (location := located[at]) is not None]
        return max(_in_largest(regions, self._durable) - limit, 0)

    def _spread_of(self, located: Sequence[Location | None], window: Sequence[int]) -> Spread:
        there = [location for at in window if (location := located[at]) is not None]
        free = len(window) - len(there)
        racks = len({location.rack for location in there}) + free
        hosts = len({location.host for location in there}) + free
        if not self._counts_regions:
            return Spread(racks, hosts)
        regions = [region_of(location.rack) for location in there]
        names = set(regions)
        return Spread(racks, hosts, len(names) + free, max(map(regions.count, names), default=0))
