"""Where bookies stand, and whether an ensemble survives the loss of a machine or of a rack. No IO.

    bookie ──▶ host     from its registration, else from its id (host:port)
           ──▶ rack     from the node `/bookies`, else `/default-rack`
           ──▶ region   the first part of the rack, where regions count (`regions`)

The entries of a ledger lie on runs of Qw consecutive members of the ensemble (the last is followed by the first). Each
such run is called a window here. What a window should have (`Demand`):

    racks    min(Qw, minNumRacksPerWriteQuorum) different ones; one where nobody told of racks
    hosts    as many different ones as the cluster has, up to Qw
    regions  as many different ones as the cluster has (or durability asks for), up to Qw, and in none of them more
             copies than its share, rounded up; its copies in different racks as above. Where regions do not count:
             nothing

So where all bookies are on one host, and no rack tells them apart, nothing is demanded (a developer's cluster).
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.client.placing.regions import DEFAULT_RACK, RegionRules, region_of, shares
from magnetar_core.bookkeeper.metadata.bookies.rack_records import racks_of

RACKS_MIN: Final = 2
"""Apache's default of minNumRacksPerWriteQuorum."""


class Location(NamedTuple):
    """Where one bookie stands."""

    rack: str
    host: str

    @property
    def region(self) -> str:
        return region_of(self.rack)


class Spread(NamedTuple):
    """Over how much the copies of one window are spread."""

    racks: int
    hosts: int
    regions: int = 1
    copies: int = 0
    """Copies in the region that has the most of them; 0 where regions do not count."""


class Deficit(NamedTuple):
    """What windows lack in all. Smaller is better, and what stands first counts more."""

    regions: int = 0
    """Regions that are missing, and copies that are too many in one of them."""
    racks: int = 0
    hosts: int = 0


ANY: Final = 2**31
"""Copies that one region may have where regions do not count."""


class Demand(NamedTuple):
    """Over how many different racks and hosts each window should be spread, and how over regions."""

    racks: int
    hosts: int
    regions: int = 1
    copies_max: int = ANY
    """Copies in one region, at most."""

    def lacking(self, spread: Spread) -> Deficit:
        return Deficit(
            max(self.regions - spread.regions, 0) + max(spread.copies - self.copies_max, 0),
            max(self.racks - spread.racks, 0),
            max(self.hosts - spread.hosts, 0),
        )

    def is_met(self, spread: Spread) -> bool:
        return (
            spread.racks >= self.racks
            and spread.hosts >= self.hosts
            and spread.regions >= self.regions
            and spread.copies <= self.copies_max
        )


class Violation(NamedTuple):
    """A window that is spread too little."""

    bookies: tuple[str, ...]
    racks: frozenset[str]
    hosts: frozenset[str]
    demand: Demand
    regions: tuple[tuple[str, int], ...] = ()
    """Region → its copies, in order; empty where regions do not count."""

    @property
    def spread(self) -> Spread:
        copies = max((count for _, count in self.regions), default=0)
        return Spread(len(self.racks), len(self.hosts), max(len(self.regions), 1), copies)

    @property
    def text(self) -> str:
        """One line for people."""
        faults = []
        if len(self.regions) < self.demand.regions and self.regions:
            faults.append(
                f"in {_count_of([name for name, _ in self.regions], 'region')} instead of {self.demand.regions}"
            )
        elif self.spread.copies > self.demand.copies_max:
            each = ", ".join(f"{name}: {count}" for name, count in self.regions)
            faults.append(f"unevenly in regions ({each}; at most {self.demand.copies_max} in one)")
        if len(self.racks) < self.demand.racks:
            faults.append(f"in {_count_of(self.racks, 'rack')} instead of {self.demand.racks}")
        if len(self.hosts) < self.demand.hosts:
            faults.append(f"on {_count_of(self.hosts, 'host')} instead of {self.demand.hosts}")
        if not faults:
            faults.append(f"partly in {DEFAULT_RACK}, which does not count as a rack")
        return f"{', '.join(self.bookies)} are {' and '.join(faults)}"


@dataclass(frozen=True, slots=True)
class Topology:
    """What is known of a cluster's racks and hosts, and what is to be kept."""

    locations: Mapping[str, Location] = field(default_factory=dict)
    racks_min: int = RACKS_MIN
    """Racks of a write quorum, at least."""
    is_enforced: bool = False
    """Rather no ensemble than one with fewer racks; bookies in the default rack are then not used."""
    is_aware: bool = True
    """False: neither racks nor hosts count."""
    regions: RegionRules | None = None
    """None: regions do not count; the rack is what a bookie's whole path says."""
    local_region: str | None = None
    """The region of the client itself, where it is known: its bookies are read first."""

    def of(self, bookie: str) -> Location:
        """Where *bookie* stands. One of which nothing is known stands alone, or where its id says."""
        return self.locations.get(bookie) or Location(DEFAULT_RACK, host_of(bookie))

    def racks(self, bookies: Collection[str]) -> dict[str, list[str]]:
        """Rack → those of *bookies* that stand in it, both in order."""
        by_rack: dict[str, list[str]] = {}
        for bookie in sorted(bookies):
            by_rack.setdefault(self.of(bookie).rack, []).append(bookie)
        return dict(sorted(by_rack.items()))

    def hosts(self, bookies: Collection[str]) -> frozenset[str]:
        return frozenset(self.of(bookie).host for bookie in bookies)

    def demand(self, bookies: Collection[str], write_quorum: int) -> Demand:
        """What a window of *write_quorum* members should have in a cluster of *bookies*."""
        assert write_quorum >= 1
        if not self.is_aware:
            return Demand(1, 1)
        locations = [self.of(bookie) for bookie in bookies]
        racks = {location.rack for location in locations}
        hosts = {location.host for location in locations}
        # A single rack on a single host tells nothing apart, whatever its name is.
        are_told = not racks <= {DEFAULT_RACK} and (len(racks) > 1 or len(hosts) > 1)
        wanted = min(write_quorum, self.racks_min) if are_told or self.is_enforced else 1
        wanted_hosts = max(min(write_quorum, len(hosts)), 1)
        if self.regions is None or not bookies:
            return Demand(wanted, wanted_hosts)
        by_region: dict[str, set[str]] = {}
        for location in locations:
            by_region.setdefault(location.region, set()).add(location.rack)
        if are_told:
            wanted = max(wanted, self._racks_in_regions(write_quorum, [len(region) for region in by_region.values()]))
        among = max(len(by_region), self.regions.durable)
        return Demand(wanted, wanted_hosts, min(write_quorum, among), shares(write_quorum, among)[0])

    def _racks_in_regions(self, write_quorum: int, racks: Collection[int]) -> int:
        """Racks of a window whose regions have *racks* each. Which of them takes one copy more is open, so what every
        even window can have."""
        each = zip(shares(write_quorum, len(racks)), sorted(racks), strict=True)
        return sum(min(share, self.racks_min, count) for share, count in each)

    def violations(self, ensemble: Sequence[str], write_quorum: int, bookies: Collection[str]) -> list[Violation]:
        """The windows of *ensemble* that lack racks or hosts, where *bookies* are those of the cluster."""
        demand = self.demand({*bookies, *ensemble}, write_quorum)
        violations = []
        for window in windows(len(ensemble), write_quorum):
            members = tuple(ensemble[at] for at in window)
            located = [self.of(bookie) for bookie in members]
            by_region = (
                Counter(location.region for location in located) if self.is_aware and self.regions is not None else {}
            )
            racks = frozenset(location.rack for location in located)
            hosts = frozenset(location.host for location in located)
            violation = Violation(members, racks, hosts, demand, tuple(sorted(by_region.items())))
            # Enforced racks: the default one does not count as a rack, however many others there are.
            has_default_rack = self.is_aware and self.is_enforced and DEFAULT_RACK in racks
            if has_default_rack or not demand.is_met(violation.spread):
                violations.append(violation)
        return violations

    def is_adhering(self, ensemble: Sequence[str], write_quorum: int, bookies: Collection[str]) -> bool:
        return not self.violations(ensemble, write_quorum, bookies)

    def deficit(self, ensemble: Sequence[str], write_quorum: int, bookies: Collection[str]) -> Deficit:
        """What the windows lack in all."""
        regions = racks = hosts = 0
        for violation in self.violations(ensemble, write_quorum, bookies):
            lacking = violation.demand.lacking(violation.spread)
            racks_counted = violation.racks - {DEFAULT_RACK} if self.is_enforced else violation.racks
            racks += max(
                violation.demand.racks - len(racks_counted),
                int(self.is_enforced and DEFAULT_RACK in violation.racks),
                0,
            )
            regions += lacking.regions
            hosts += lacking.hosts
        return Deficit(regions, racks, hosts)


def region_on(host: str, locations: Mapping[str, Location]) -> str | None:
    """The region of the bookies on *host*; None: there is none, they differ, or nobody told of it."""
    regions = {
        location.region
        for location in locations.values()
        if location.host == host.lower() and location.rack != DEFAULT_RACK
    }
    return next(iter(regions)) if len(regions) == 1 else None


def locations_of(racks: Mapping[str, str], hosts: Mapping[str, str]) -> dict[str, Location]:
    """Where the bookies stand that have a rack in `/bookies` (*racks*), or that were registered (*hosts*)."""
    known = {**{bookie: host_of(bookie) for bookie in racks}, **hosts}
    known_racks = racks_of(racks, known)
    return {bookie: Location(known_racks.get(bookie, DEFAULT_RACK), host) for bookie, host in known.items()}


def windows(ensemble_size: int, write_quorum: int) -> list[tuple[int, ...]]:
    """The positions of each write set; one window where all are the same set."""
    assert 1 <= write_quorum <= ensemble_size
    if write_quorum == ensemble_size:
        return [tuple(range(ensemble_size))]
    return [tuple((first + at) % ensemble_size for at in range(write_quorum)) for first in range(ensemble_size)]


def host_of(bookie: str) -> str:
    """The host in an id of the form host:port; another id stands for a host of its own."""
    host, separator, port = bookie.rpartition(":")
    return host.lower() if separator and host and port.isdigit() else bookie


def _count_of(names: Collection[str], noun: str) -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'} ({', '.join(sorted(names))})"
