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

The search goes position by position and back again. Hosts that differ only by name are tried once, and what failed
once is remembered, so that the steps stay few also where nothing fits.
"""

import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.client.errors import NotEnoughBookies
from magnetar_core.bookkeeper.client.regions import DEFAULT_RACK, region_of
from magnetar_core.bookkeeper.client.topology import Deficit, Demand, Location, Spread, Topology, windows

# Draws at random before the search: in a cluster with room nearly every draw fits, and each that does is equally
# likely.
_DRAWS: Final = 8

# Steps of the attempts of one search; each begins anew, with other random numbers. An unlucky first choice can cost any
# number of steps, so several short attempts find more than a long one. Of some 90,000 random clusters of a dozen hosts
# at most, made to be hard, about two ensembles were missed, both of ten bookies with write quorums of 6 or 7. A step
# takes some 20 µs, so a search that finds nothing holds up the loop for about 0.1 s (0.24 s on a loaded machine; where
# regions count likewise, as most of its searches make the first attempts only).
_STEPS: Final = (300, 300, 300, 600, 600, 1_200, 1_200)

# The first attempts, where regions count: there are more searches, each asking for less than the one before.
_FEWER: Final = 2

# Sets of members that are tried for an exchange: all sets of an ensemble of six, the small ones of a larger one.
_MOVES_TRIED: Final = 64

NOTHING: Final = Demand(1, 1)
"""What every choice has."""

# Rounds of improvement of an ensemble that cannot be right. Each of them makes it better.
_ROUNDS: Final = 20


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
    concerned = _concerned(ensemble, write_quorum, everybody, topology)
    tries = 0
    for count in range(1, len(concerned) + 1):
        for positions in combinations(concerned, count):
            tries += 1
            if tries > _MOVES_TRIED:
                return best
            leaving = {at: ensemble[at] for at in positions}
            found = choose_replacements(
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
            after = tuple(found.get(at, bookie) for at, bookie in enumerate(ensemble))
            now = topology.deficit(after, write_quorum, everybody)
            if now < lacking:
                best, lacking = found, now
            if not any(lacking):
                return best
    return best


def _concerned(ensemble: Sequence[str], write_quorum: int, everybody: Collection[str], topology: Topology) -> list[int]:
    """Positions of members that stand in a window which lacks something."""
    names = {name for one in topology.violations(ensemble, write_quorum, everybody) for name in one.bookies}
    return [at for at, bookie in enumerate(ensemble) if bookie in names]


def _candidates(writable: Iterable[str], topology: Topology) -> list[str]:
    # Sorted: a set's order differs between processes, and a seed must give the same choice.
    without = topology.is_aware and topology.is_enforced
    return sorted(one for one in writable if not (without and topology.of(one).rack == DEFAULT_RACK))


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
    return [limit if _in_largest([former[at] for at in one], rules.durable) <= limit else None for one in every]


def _in_largest(regions: Sequence[str], durable: int) -> int:
    """Of copies in *regions* those in the largest regions, one less of them than durability asks for."""
    counts = map(regions.count, set(regions))
    return max(counts, default=0) if durable == 2 else sum(sorted(counts, reverse=True)[: durable - 1])


def distance(preferred: str | None, rack: str) -> int:
    """How far a replacement is from the rack that is preferred: 0 in it, 1 in its region, else 2."""
    if rack == preferred:
        return 0
    return 1 if preferred is not None and region_of(rack) == region_of(preferred) else 2


class _Class(NamedTuple):
    """Bookies that are alike: which of them is taken makes no difference."""

    location: Location
    is_quarantined: bool


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
        self._open = frozenset(positions)
        self._preferred = preferred
        self._rng = rng
        self._windows = windows(len(fixed), write_quorum)
        self._limits = limits
        self._durable = 0 if topology.regions is None else topology.regions.durable
        self._counts_regions = topology.is_aware and topology.regions is not None
        self._is_enforced = topology.is_aware and topology.is_enforced
        self._is_strict = self._is_enforced or any(one is not None for one in limits)
        self._racks_least = min(write_quorum, topology.racks_min) if self._is_enforced else 1
        self._of: list[list[int]] = [[] for _ in fixed]
        """Position → its windows."""
        for number, window in enumerate(self._windows):
            for at in window:
                self._of[at].append(number)

    def choose(self, candidates: Sequence[str], quarantined: Collection[str]) -> dict[int, str] | None:
        """Position → bookie; None where enforcement allows nothing. There are enough *candidates*."""
        count = len(self._positions)
        assert count <= len(candidates)
        good = [bookie for bookie in candidates if bookie not in quarantined]
        bad = [bookie for bookie in candidates if bookie in quarantined]
        least = max(count - len(good), 0)
        for budget in range(least, min(count, len(bad)) + 1 if self._is_strict else least + 1):
            chosen = self._choose(good, bad if budget else [], budget)
            if chosen is not None:
                return chosen
        return None

    def _choose(self, good: Sequence[str], bad: Sequence[str], budget: int) -> dict[int, str] | None:
        demand = self._topology.demand({*good, *bad, *self._members}, self._write_quorum)
        if not bad and not self._members and len(self._positions) == len(self._fixed):
            for _ in range(_DRAWS if len(good) > len(self._positions) else 1):
                drawn = self._rng.sample(good, len(self._positions))
                located = [self._topology.of(one) for one in drawn]
                if not any(self._deficit(located, [demand] * len(self._windows))) and self._excess(located) == 0:
                    return dict(enumerate(drawn))
        pools: dict[_Class, list[str]] = {}
        for names, is_quarantined in ((good, False), (bad, True)):
            for bookie in names:
                pools.setdefault(_Class(self._topology.of(bookie), is_quarantined), []).append(bookie)
        wanted = [self._attainable(window, demand, pools) for window in self._windows]
        found = _Search(self, pools, wanted, budget).run(_STEPS[:_FEWER] if self._counts_regions else _STEPS)
        if found is None:
            for less, steps in self._relaxed(wanted):
                found = _Search(self, pools, less, budget).run(steps)
                if found is not None:
                    break
            if found is None and self._is_strict:
                return None
            found = self._improve(found or self._any(pools, budget), pools, wanted, budget)
        for names in pools.values():
            self._rng.shuffle(names)
        return {at: pools[one].pop() for at, one in found.items()}

    def _relaxed(self, wanted: Sequence[Demand]) -> Iterator[tuple[list[Demand], Sequence[int]]]:
        """What is tried in place of *wanted*, one after the other, each asking for less (rule 2), and in how many
        steps. What is enforced is looked for in as many as there are: without it nothing is chosen."""
        least = [Demand(min(one.racks, self._racks_least), 1) for one in wanted]
        tried = list(wanted)
        for less in (
            [one._replace(hosts=1) for one in wanted],
            [one._replace(hosts=1, racks=min(one.racks, self._racks_least)) for one in wanted],
            least,
        ):
            if less != tried and (self._is_strict or any(one != NOTHING for one in less)):
                tried = less
                yield less, _STEPS[:_FEWER] if self._counts_regions and less != least else _STEPS
            if not self._counts_regions:
                break
        if self._is_strict and self._counts_regions and tried == wanted:
            yield tried, _STEPS  # there is nothing else to ask for

    def _attainable(self, window: Sequence[int], demand: Demand, pools: Mapping[_Class, Sequence[str]]) -> Demand:
        """What *window* can have at most, up to *demand*: its other members may share racks and hosts already."""
        stay = [found for at in window if (found := self._fixed[at]) is not None]
        free = len(window) - len(stay)
        racks = {one.rack for one in stay}
        hosts = {one.host for one in stay}
        all_racks = racks | {one.location.rack for one in pools}
        all_hosts = hosts | {one.location.host for one in pools}
        racks_wanted = min(demand.racks, len(racks) + free, len(all_racks))
        most = Demand(
            max(racks_wanted, self._racks_least) if free else racks_wanted,
            min(demand.hosts, len(hosts) + free, len(all_hosts)),
        )
        if not self._counts_regions:
            return most
        regions = self._even(window, pools)
        return most._replace(
            regions=min(demand.regions, len(regions)),
            copies_max=max(demand.copies_max, *regions.values()) if regions else demand.copies_max,
        )

    def _even(self, window: Sequence[int], pools: Mapping[_Class, Sequence[str]]) -> Counter[str]:
        """Region → copies, where the open positions of *window* go as evenly as bookies and other members allow."""
        copies = Counter(found.region for at in window if (found := self._fixed[at]) is not None)
        left: Counter[str] = Counter()
        for one, names in pools.items():
            left[one.location.region] += len(names)
        for _ in set(window) & set(self._positions):
            region = min((one for one in left if left[one]), key=lambda one: (copies[one], one))
            copies[region] += 1
            left[region] -= 1
        return copies

    # ----------------------------------------------------------------------------------- what is lacking

    def _deficit(self, located: Sequence[Location | None], wanted: Sequence[Demand]) -> Deficit:
        """What the windows lack; where nobody stands yet counts as another region, rack and host."""
        regions = racks = hosts = 0
        for window, demand in zip(self._windows, wanted, strict=True):
            lacking = demand.lacking(self.spread(located, window))
            regions += lacking.regions
            racks += lacking.racks
            hosts += lacking.hosts
        return Deficit(regions, racks, hosts)

    def _excess(self, located: Sequence[Location | None]) -> int:
        """What enforcement forbids: racks below the least, and copies above the limits."""
        if not self._is_strict:
            return 0
        found = 0
        for number, window in enumerate(self._windows):
            if any(at in self._open for at in window):
                found += max(self._racks_least - self.spread(located, window).racks, 0)
            found += self._above(located, number)
        return found

    def _above(self, located: Sequence[Location | None], number: int) -> int:
        """By how much the copies of a window in its largest regions are above its limit."""
        limit = self._limits[number]
        if limit is None:
            return 0
        regions = [region_of(one.rack) for at in self._windows[number] if (one := located[at]) is not None]
        return max(_in_largest(regions, self._durable) - limit, 0)

    def spread(self, located: Sequence[Location | None], window: Sequence[int]) -> Spread:
        """Over how much a window is spread, or can be as long as somebody is missing in it."""
        there = [one for at in window if (one := located[at]) is not None]
        free = len(window) - len(there)
        racks, hosts = len({one.rack for one in there}) + free, len({one.host for one in there}) + free
        if not self._counts_regions:
            return Spread(racks, hosts)
        regions = [region_of(one.rack) for one in there]
        names = set(regions)
        return Spread(racks, hosts, len(names) + free, max(map(regions.count, names), default=0))

    def can_be(self, located: Sequence[Location | None], at: int, wanted: Sequence[Demand]) -> bool:
        """No window of position *at* is beyond help."""
        windows_of = self._windows
        return all(
            wanted[one].is_met(self.spread(located, windows_of[one])) and not self._above(located, one)
            for one in self._of[at]
        )

    # ------------------------------------------------------------------------ where nothing is quite right

    def _any(self, pools: Mapping[_Class, Sequence[str]], budget: int) -> dict[int, _Class]:
        """Some class for each position, at random; *budget* of them in quarantine."""
        good = [one for one, names in pools.items() for _ in names if not one.is_quarantined]
        bad = [one for one, names in pools.items() for _ in names if one.is_quarantined]
        drawn = self._rng.sample(bad, budget) + self._rng.sample(good, len(self._positions) - budget)
        self._rng.shuffle(drawn)
        return dict(zip(self._positions, drawn, strict=True))

    def _improve(
        self,
        chosen: dict[int, _Class],
        pools: Mapping[_Class, Sequence[str]],
        wanted: Sequence[Demand],
        budget: int,
    ) -> dict[int, _Class]:
        """Exchange one member, or two with each other, for as long as less is lacking then."""

        def cost(one: Mapping[int, _Class]) -> tuple[int, Deficit, int]:
            located = list(self._fixed)
            for at, found in one.items():
                located[at] = found.location
            strangers = sum(
                distance(self._preferred[at], found.location.rack) for at, found in one.items() if self._preferred
            )
            return self._excess(located), self._deficit(located, wanted), strangers

        best, lacking = dict(chosen), cost(chosen)
        for _ in range(_ROUNDS):
            before = lacking
            for at in self._positions:
                for other in self._alternatives(best, at, pools, budget):
                    found = cost(other)
                    if found < lacking:
                        best, lacking = other, found
            if lacking == before:
                break
        return best

    def _alternatives(
        self, chosen: dict[int, _Class], at: int, pools: Mapping[_Class, Sequence[str]], budget: int
    ) -> list[dict[int, _Class]]:
        used = list(chosen.values())
        hosts = {one.location.host for one in used} | {one.host for one in self._fixed if one is not None}
        bad = sum(one.is_quarantined for one in used) - chosen[at].is_quarantined
        found = []
        tried: set[object] = set()
        order = list(pools)
        self._rng.shuffle(order)
        for one in order:
            if used.count(one) >= len(pools[one]) or one == chosen[at] or bad + one.is_quarantined > budget:
                continue
            # Hosts that hold no member yet differ by their rack only.
            like = one if one.location.host in hosts else (one.location.rack, one.is_quarantined)
            if like not in tried:
                tried.add(like)
                found.append({**chosen, at: one})
        for other in self._positions:
            if chosen[other] != chosen[at]:
                found.append({**chosen, at: chosen[other], other: chosen[at]})
        return found

    @property
    def fixed(self) -> list[Location | None]:
        return list(self._fixed)

    @property
    def write_quorum(self) -> int:
        return self._write_quorum

    @property
    def positions(self) -> Sequence[int]:
        return self._positions

    @property
    def preferred(self) -> Mapping[int, str]:
        return self._preferred

    @property
    def rng(self) -> random.Random:
        return self._rng

    def related(self, number: int) -> list[int]:
        """Positions that share a window with one that is to be filled after the first *number* of them."""
        later = self._positions[number:]
        shared = {other for at in later for window in self._of[at] for other in self._windows[window]}
        return sorted(shared)


class _Search:
    """Goes through the positions and back again until each window has what it should."""

    def __init__(
        self, placing: _Placing, pools: Mapping[_Class, Sequence[str]], wanted: Sequence[Demand], budget: int
    ) -> None:
        self._placing = placing
        self._wanted = wanted
        self._left = {one: len(names) for one, names in pools.items()}
        self._budget = budget
        self._located = placing.fixed
        self._related = [placing.related(number) for number in range(len(placing.positions) + 1)]
        self._chosen: list[_Class] = []
        self._failed: set[object] = set()
        self._steps = 0
        self._attempt = 0
        racks: dict[str, set[str]] = {}
        for one in pools:
            racks.setdefault(one.location.host, set()).add(one.location.rack)
        self._named = {host for host, found in racks.items() if len(found) > 1}
        """Hosts in more than one rack; they are like no other."""

    def run(self, attempts: Sequence[int]) -> dict[int, _Class] | None:
        """Position → class; None: there is none, or it was not found within the steps of the *attempts*."""
        if not self._is_possible():
            return None
        for self._attempt, steps in enumerate(attempts):
            self._steps = steps
            if self._fill():
                return dict(zip(self._placing.positions, self._chosen, strict=True))
            if self._steps > 0:
                return None  # everything was tried
        return None

    def _is_possible(self) -> bool:
        """By counting alone: who stands in n positions is in n * Qw windows at most. Hosts that stand too often to
        leave room for others are cut down by it, and racks with them."""
        placing, size = self._placing, len(self._located)
        if len(placing.positions) < size:
            return True
        hosts: dict[tuple[str, str], int] = {}
        for one, left in self._left.items():
            hosts[one.location] = hosts.get(one.location, 0) + left
        most = _most(hosts.values(), size, placing.write_quorum, [one.hosts for one in self._wanted])
        racks: dict[str, int] = {}
        for (rack, _), count in hosts.items():
            racks[rack] = racks.get(rack, 0) + most[count]
        most = _most(racks.values(), size, placing.write_quorum, [one.racks for one in self._wanted])
        if sum(most[count] for count in racks.values()) < size:
            return False
        # A bookie stands in Qw of the windows, or in the only one; each takes so many of a region at most.
        width = 1 if len(self._wanted) == 1 else placing.write_quorum
        room = sum(min(one.copies_max, size) for one in self._wanted) // width
        regions: dict[str, int] = {}
        for (rack, _), count in hosts.items():
            region = region_of(rack)
            regions[region] = regions.get(region, 0) + count
        return sum(min(count, room) for count in regions.values()) >= size

    def _fill(self) -> bool:
        number = len(self._chosen)
        if number == len(self._placing.positions):
            return True
        state = self._state(number)
        if state in self._failed:
            return False
        at = self._placing.positions[number]
        for one in self._choices(at, len(self._placing.positions) - number):
            if self._steps == 0:
                return False
            self._steps -= 1
            self._located[at] = one.location
            if self._placing.can_be(self._located, at, self._wanted):
                self._left[one] -= 1
                self._budget -= one.is_quarantined
                self._chosen.append(one)
                if self._fill():
                    return True
                self._chosen.pop()
                self._budget += one.is_quarantined
                self._left[one] += 1
            self._located[at] = None
        self._failed.add(state)
        return False

    def _choices(self, at: int, open_count: int) -> list[_Class]:
        """One of each kind that can stand at *at*: those of the preferred rack first, else in random order."""
        hosts = {one.host for one in self._located if one is not None}
        kinds: dict[object, tuple[_Class, int]] = {}
        rng = self._placing.rng
        for one, left in self._left.items():
            if left == 0 or (one.is_quarantined and not self._budget):
                continue
            is_own = one.location.host in hosts or one.location.host in self._named
            kind = one if is_own else (one.location.rack, one.is_quarantined, min(left, open_count))
            first, total = kinds.get(kind, (one, 0))
            total += left
            kinds[kind] = (one if rng.random() * total < left else first, total)
        preferred = self._placing.preferred.get(at)
        is_near = preferred is not None
        host: str | None = None
        # With the rack, or the host, that leaves the window, the next window has what the one before it had. Which of
        # both leads to the end depends on how the last window meets the first, so the attempts differ.
        before = self._located[at - self._placing.write_quorum]
        if before is not None:
            if preferred is None and self._attempt % 3 < 2:
                preferred = before.rack
            if self._attempt % 3 == 1:
                host = before.host
        order = [
            (
                distance(preferred, one.location.rack) if is_near else int(one.location.rack != preferred),
                one.location.host != host,
                -(rng.random() ** (1 / total)),
                one,
            )
            for one, total in kinds.values()
        ]
        return [one for *_, one in sorted(order)]

    def _state(self, number: int) -> object:
        """What the rest of the search depends on, with hosts numbered in the order in which they are met."""
        numbers: dict[str, int] = {}
        seen = tuple(
            None if at is None else (at.rack, numbers.setdefault(at.host, len(numbers)))
            for at in (self._located[position] for position in self._related[number])
        )
        open_count = len(self._placing.positions) - number
        rest: dict[object, int] = {}
        for one, left in self._left.items():
            host = one.location.host
            name = host if host in self._named else numbers.get(host, "")
            like = (one.location.rack, name, one.is_quarantined, min(left, open_count))
            rest[like] = rest.get(like, 0) + 1
        return number, self._budget, seen, frozenset(rest.items())


def _most(counts: Collection[int], size: int, write_quorum: int, wanted: Sequence[int]) -> dict[int, int]:
    """How many of *size* positions a group may have, so that windows of *write_quorum* positions can still touch as
    many groups as is *wanted* of each. *counts*: bookies of each group. As count → positions."""
    width = size if len(wanted) == 1 else write_quorum

    def touched(count: int) -> int:
        return min(len(wanted), count * width)

    def best(counts: Iterable[int], size: int) -> int:
        # Each further position of a group touches no more windows than the one before, so the greatest first.
        gains = [touched(at + 1) - touched(at) for count in counts for at in range(min(count, size))]
        return sum(sorted(gains, reverse=True)[:size])

    found = {}
    for count in set(counts):
        others = list(counts)
        others.remove(count)
        most = min(count, size)
        while most and touched(most) + best(others, size - most) < sum(wanted):
            most -= 1
        found[count] = most
    return found
