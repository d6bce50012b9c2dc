"""Which bookies form an ensemble. No IO: the caller passes the bookies, where they stand and the random numbers.

Rules, the stronger first:

1. Bookies in quarantine are taken only when there are not enough others.
2. Where an ensemble exists that has the racks and hosts that each window should have (`topology`), such a one is
   chosen; else one that has the racks; else one that lacks as little as the search finds.
3. A replacement comes from the rack of the bookie that it replaces, where that does not cost rule 2.
4. Everything else is random.

With enforcement, bookies of the default rack are not candidates, an ensemble that lacks racks is refused, and rule 1
is weaker than that.

The search goes position by position and back again. Hosts that differ only by name are tried once, and what failed
once is remembered, so that the steps stay few also where nothing fits.
"""

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.client.errors import NotEnoughBookies
from magnetar_core.bookkeeper.client.topology import DEFAULT_RACK, Demand, Location, Topology, windows

# Draws at random before the search: in a cluster with room nearly every draw fits, and each that does is equally
# likely.
_DRAWS: Final = 8

# Steps of the attempts of one search; each begins anew, with other random numbers. An unlucky first choice can cost any
# number of steps, so several short attempts find more than a long one. Of some 90,000 random clusters of a dozen hosts
# at most, made to be hard, about two ensembles were missed, both of ten bookies with write quorums of 6 or 7. A step
# takes some 20 µs, so a search that finds nothing holds up the loop for about 0.1 s (0.24 s on a loaded machine).
_STEPS: Final = (300, 300, 300, 600, 600, 1_200, 1_200)

# Sets of members that are tried for an exchange: all sets of an ensemble of six, the small ones of a larger one.
_MOVES_TRIED: Final = 64

# Rounds of improvement of an ensemble that cannot be right. Each of them makes it better.
_ROUNDS: Final = 20


def choose_ensemble(
    writable: Collection[str],
    ensemble_size: int,
    quarantined: Collection[str],
    rng: random.Random,
    *,
    write_quorum: int | None = None,
    topology: Topology | None = None,
) -> tuple[str, ...]:
    """*ensemble_size* different bookies. Raises NotEnoughBookies.

    *write_quorum* None: every entry goes to the whole ensemble. *topology* None: nothing is known but the ids.
    """
    topology = topology or Topology()
    write_quorum = write_quorum or ensemble_size
    candidates = _candidates(writable, topology)
    if len(candidates) >= ensemble_size:
        fixed: list[str | None] = [None] * ensemble_size
        placing = _Placing(topology, write_quorum, fixed, range(ensemble_size), {}, rng)
        chosen = placing.choose(candidates, quarantined)
        if chosen is not None:
            return tuple(chosen[at] for at in range(ensemble_size))
    raise NotEnoughBookies(_refusal(writable, ensemble_size, write_quorum, topology))


def choose_replacements(
    writable: Collection[str],
    ensemble: Sequence[str],
    failed: Mapping[int, str],
    unreachable: Collection[str],
    quarantined: Collection[str],
    rng: random.Random,
    *,
    write_quorum: int | None = None,
    topology: Topology | None = None,
) -> dict[int, str]:
    """A new bookie for each failed position, as far as there are enough: position → bookie.

    Members of the ensemble and the bookies in *unreachable* are not considered. May be empty or partial. With
    enforcement it is empty where the racks of the windows concerned cannot be had.
    """
    topology = topology or Topology()
    excluded = {*ensemble, *failed.values(), *unreachable}
    candidates = _candidates([bookie for bookie in writable if bookie not in excluded], topology)
    positions = list(failed)[: len(candidates)]
    if not positions:
        return {}
    fixed = [None if at in failed else bookie for at, bookie in enumerate(ensemble)]
    preferred = {at: topology.of(failed[at]).rack for at in positions}
    placing = _Placing(topology, write_quorum or len(ensemble), fixed, positions, preferred, rng)
    return placing.choose(candidates, quarantined) or {}


def choose_moves(
    writable: Collection[str],
    ensemble: Sequence[str],
    unreachable: Collection[str],
    quarantined: Collection[str],
    rng: random.Random,
    *,
    write_quorum: int,
    topology: Topology,
) -> dict[int, str]:
    """Members to exchange so that an ensemble lacks fewer racks and hosts than before: position → bookie.

    As few as make up for everything; where nothing does, those that make up for most. Empty: it cannot be better.
    """
    usable = [bookie for bookie in writable if bookie not in unreachable]
    everybody = {*usable, *ensemble}
    best: dict[int, str] = {}
    lacking = topology.deficit(ensemble, write_quorum, everybody)
    if lacking == (0, 0):
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
                topology=topology,
            )
            after = tuple(found.get(at, bookie) for at, bookie in enumerate(ensemble))
            now = topology.deficit(after, write_quorum, everybody)
            if now < lacking:
                best, lacking = found, now
            if lacking == (0, 0):
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


def _refusal(writable: Collection[str], ensemble_size: int, write_quorum: int, topology: Topology) -> str:
    asked = f"an ensemble of {ensemble_size} bookies is asked for"
    if not (topology.is_aware and topology.is_enforced) or len(writable) < ensemble_size:
        return f"{asked}, writable are: {', '.join(sorted(writable)) or 'none'}"
    wanted = min(write_quorum, topology.racks_min)
    racks = "; ".join(f"{rack}: {', '.join(names)}" for rack, names in topology.racks(writable).items())
    return (
        f"{asked} whose write quorums of {write_quorum} each span {wanted} racks (enforced; {DEFAULT_RACK} does not "
        f"count), writable are {racks}"
    )


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
        rng: random.Random,
    ) -> None:
        """*fixed*: who stays; None at *positions*, which are to be filled, and where nobody will stand."""
        self._topology = topology
        self._write_quorum = write_quorum
        self._members = [bookie for bookie in fixed if bookie is not None]
        self._fixed = [None if bookie is None else topology.of(bookie) for bookie in fixed]
        self._positions = list(positions)
        self._preferred = preferred
        self._rng = rng
        self._windows = windows(len(fixed), write_quorum)
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
        is_strict = self._topology.is_aware and self._topology.is_enforced
        for budget in range(least, min(count, len(bad)) + 1 if is_strict else least + 1):
            chosen = self._choose(good, bad if budget else [], budget, is_strict=is_strict)
            if chosen is not None:
                return chosen
        return None

    def _choose(
        self, good: Sequence[str], bad: Sequence[str], budget: int, *, is_strict: bool
    ) -> dict[int, str] | None:
        demand = self._topology.demand({*good, *bad, *self._members}, self._write_quorum)
        if not bad and not self._members and len(self._positions) == len(self._fixed):
            for _ in range(_DRAWS if len(good) > len(self._positions) else 1):
                drawn = self._rng.sample(good, len(self._positions))
                if self._deficit([self._topology.of(one) for one in drawn], [demand] * len(self._windows)) == (0, 0):
                    return dict(enumerate(drawn))
        pools: dict[_Class, list[str]] = {}
        for names, is_quarantined in ((good, False), (bad, True)):
            for bookie in names:
                pools.setdefault(_Class(self._topology.of(bookie), is_quarantined), []).append(bookie)
        wanted = [self._attainable(window, demand, pools, is_strict) for window in self._windows]
        found = _Search(self, pools, wanted, budget).run()
        if found is None and any(one.hosts > 1 for one in wanted):
            found = _Search(self, pools, [Demand(one.racks, 1) for one in wanted], budget).run()
            if found is not None:
                found = self._improve(found, pools, wanted, budget)
        if found is None:
            if is_strict:
                return None
            found = self._improve(self._any(pools, budget), pools, wanted, budget)
        for names in pools.values():
            self._rng.shuffle(names)
        return {at: pools[one].pop() for at, one in found.items()}

    def _attainable(self, window: Sequence[int], demand: Demand, pools: Collection[_Class], is_strict: bool) -> Demand:
        """What *window* can have at most, up to *demand*: its other members may share racks and hosts already."""
        stay = [found for at in window if (found := self._fixed[at]) is not None]
        free = len(window) - len(stay)
        racks = {one.rack for one in stay}
        hosts = {one.host for one in stay}
        all_racks = racks | {one.location.rack for one in pools}
        all_hosts = hosts | {one.location.host for one in pools}
        return Demand(
            demand.racks if is_strict and free else min(demand.racks, len(racks) + free, len(all_racks)),
            min(demand.hosts, len(hosts) + free, len(all_hosts)),
        )

    # ----------------------------------------------------------------------------------- what is lacking

    def _deficit(self, located: Sequence[Location | None], wanted: Sequence[Demand]) -> tuple[int, int]:
        """Racks and hosts that the windows lack; where nobody stands yet counts as another one."""
        racks_lacking = hosts_lacking = 0
        for window, demand in zip(self._windows, wanted, strict=True):
            racks, hosts = self.spread(located, window)
            racks_lacking += max(demand.racks - racks, 0)
            hosts_lacking += max(demand.hosts - hosts, 0)
        return racks_lacking, hosts_lacking

    @staticmethod
    def spread(located: Sequence[Location | None], window: Sequence[int]) -> tuple[int, int]:
        """How many racks and hosts a window has, or can have as long as somebody is missing in it."""
        there = [one for at in window if (one := located[at]) is not None]
        free = len(window) - len(there)
        return len({one.rack for one in there}) + free, len({one.host for one in there}) + free

    def can_be(self, located: Sequence[Location | None], at: int, wanted: Sequence[Demand]) -> bool:
        """No window of position *at* is beyond help."""
        windows_of = self._windows
        return all(wanted[one].is_met(*self.spread(located, windows_of[one])) for one in self._of[at])

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

        def cost(one: Mapping[int, _Class]) -> tuple[int, int, int]:
            located = list(self._fixed)
            for at, found in one.items():
                located[at] = found.location
            strangers = sum(self._preferred.get(at) != found.location.rack for at, found in one.items())
            return (*self._deficit(located, wanted), strangers if self._preferred else 0)

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

    def run(self) -> dict[int, _Class] | None:
        """Position → class; None: there is none, or it was not found within the steps."""
        if not self._is_possible():
            return None
        for self._attempt, steps in enumerate(_STEPS):
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
        return sum(most[count] for count in racks.values()) >= size

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
            (one.location.rack != preferred, one.location.host != host, -(rng.random() ** (1 / total)), one)
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
