"""Where bookies stand, and whether an ensemble survives the loss of a machine or of a rack. No IO.

    bookie ──▶ host     from its registration, else from its id (host:port)
           ──▶ rack     from the node `/bookies`, else `/default-rack`

The entries of a ledger lie on runs of Qw consecutive members of the ensemble (the last is followed by the first). Each
such run is called a window here. What a window should have (`Demand`):

    racks    min(Qw, minNumRacksPerWriteQuorum) different ones; one where nobody told of racks
    hosts    as many different ones as the cluster has, up to Qw

So where all bookies are on one host, and no rack tells them apart, nothing is demanded (a developer's cluster).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.metadata.rack_records import racks_of

DEFAULT_RACK: Final = "/default-rack"
"""The rack of bookies of which nobody told one, as Apache's policy calls it."""

RACKS_MIN: Final = 2
"""Apache's default of minNumRacksPerWriteQuorum."""


class Location(NamedTuple):
    """Where one bookie stands."""

    rack: str
    host: str


class Demand(NamedTuple):
    """How many different racks and hosts each window should have."""

    racks: int
    hosts: int

    def is_met(self, racks: int, hosts: int) -> bool:
        return racks >= self.racks and hosts >= self.hosts


class Violation(NamedTuple):
    """A window that has too few racks or hosts."""

    bookies: tuple[str, ...]
    racks: frozenset[str]
    hosts: frozenset[str]
    demand: Demand

    @property
    def text(self) -> str:
        """One line for people."""
        told = []
        if len(self.racks) < self.demand.racks:
            told.append(f"in {_counted(self.racks, 'rack')} instead of {self.demand.racks}")
        if len(self.hosts) < self.demand.hosts:
            told.append(f"on {_counted(self.hosts, 'host')} instead of {self.demand.hosts}")
        if not told:
            told.append(f"partly in {DEFAULT_RACK}, which does not count as a rack")
        return f"{', '.join(self.bookies)} are {' and '.join(told)}"


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

    def of(self, bookie: str) -> Location:
        """Where *bookie* stands. One of which nothing is known stands alone, or where its id says."""
        return self.locations.get(bookie) or Location(DEFAULT_RACK, host_of(bookie))

    def racks(self, bookies: Collection[str]) -> dict[str, list[str]]:
        """Rack → those of *bookies* that stand in it, both in order."""
        found: dict[str, list[str]] = {}
        for bookie in sorted(bookies):
            found.setdefault(self.of(bookie).rack, []).append(bookie)
        return dict(sorted(found.items()))

    def hosts(self, bookies: Collection[str]) -> frozenset[str]:
        return frozenset(self.of(bookie).host for bookie in bookies)

    def demand(self, bookies: Collection[str], write_quorum: int) -> Demand:
        """What a window of *write_quorum* members should have in a cluster of *bookies*."""
        assert write_quorum >= 1
        if not self.is_aware:
            return Demand(1, 1)
        locations = [self.of(bookie) for bookie in bookies]
        racks = {one.rack for one in locations}
        hosts = {one.host for one in locations}
        # A single rack on a single host tells nothing apart, whatever its name is.
        are_told = not racks <= {DEFAULT_RACK} and (len(racks) > 1 or len(hosts) > 1)
        wanted = min(write_quorum, self.racks_min)
        return Demand(wanted if are_told or self.is_enforced else 1, max(min(write_quorum, len(hosts)), 1))

    def violations(self, ensemble: Sequence[str], write_quorum: int, bookies: Collection[str]) -> list[Violation]:
        """The windows of *ensemble* that lack racks or hosts, where *bookies* are those of the cluster."""
        demand = self.demand({*bookies, *ensemble}, write_quorum)
        found = []
        for window in windows(len(ensemble), write_quorum):
            members = tuple(ensemble[at] for at in window)
            racks = frozenset(self.of(one).rack for one in members)
            hosts = frozenset(self.of(one).host for one in members)
            is_without = self.is_aware and self.is_enforced and DEFAULT_RACK in racks
            if is_without or not demand.is_met(len(racks), len(hosts)):
                found.append(Violation(members, racks, hosts, demand))
        return found

    def is_adhering(self, ensemble: Sequence[str], write_quorum: int, bookies: Collection[str]) -> bool:
        return not self.violations(ensemble, write_quorum, bookies)

    def deficit(self, ensemble: Sequence[str], write_quorum: int, bookies: Collection[str]) -> tuple[int, int]:
        """Racks and hosts that the windows lack in all; (0, 0) means that none does. Smaller is better."""
        racks = hosts = 0
        for one in self.violations(ensemble, write_quorum, bookies):
            lacking = one.demand.racks - len(one.racks - {DEFAULT_RACK} if self.is_enforced else one.racks)
            racks += max(lacking, int(self.is_enforced and DEFAULT_RACK in one.racks), 0)
            hosts += max(one.demand.hosts - len(one.hosts), 0)
        return racks, hosts


def locations_of(racks: Mapping[str, str], hosts: Mapping[str, str]) -> dict[str, Location]:
    """Where the bookies stand that have a rack in `/bookies` (*racks*), or that were registered (*hosts*)."""
    known = {**{bookie: host_of(bookie) for bookie in racks}, **hosts}
    told = racks_of(racks, known)
    return {bookie: Location(told.get(bookie, DEFAULT_RACK), host) for bookie, host in known.items()}


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


def _counted(names: Collection[str], noun: str) -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'} ({', '.join(sorted(names))})"
