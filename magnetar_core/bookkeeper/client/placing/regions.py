"""Regions of bookies: what the settings ask for, and how many copies each region takes. No IO.

    rack `/eu/rack-1` ──▶ region `eu`        (the first part; `/eu` alone is a region with one rack)
    no rack told      ──▶ `default-region`   (counts as a region, as Apache's UnknownRegion)

Rules, those of Apache's RegionAwareEnsemblePlacementPolicy:

1. The copies of an entry are spread over all regions, or as many as there are copies; none takes more than its share,
   rounded up.
2. With `reppRegionsToWrite`, any ack quorum of an entry's copies must span `reppMinimumRegionsForDurability` regions:
   an entry that is acknowledged survives the loss of all regions but that many less one. New ensembles are refused
   otherwise, and so are replacements unless `reppEnableDurabilityEnforcementInReplace` is false.
3. For that the quorums must be large enough: Qa at least the regions asked for, and more than what is left of Qw when
   the smallest of them is lost. The names of the regions only say how many there should be; bookies of others are used
   as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

POLICY_CLASS: Final = "org.apache.bookkeeper.client.RegionAwareEnsemblePlacementPolicy"

DEFAULT_REGION: Final = "default-region"
"""The region of bookies of which nobody told a rack."""

DEFAULT_RACK: Final = "/default-rack"
"""The rack of bookies of which nobody told one, as Apache's policy calls it."""

REGIONS_MIN: Final = 2
"""Apache's default of reppMinimumRegionsForDurability."""

# Racks whose region is remembered; a rack has several bookies, and clusters have a few thousand of these at most.
RACKS_MAX: Final = 1_000


@lru_cache(RACKS_MAX)
def region_of(rack: str) -> str:
    """The region in which a rack stands."""
    return DEFAULT_REGION if rack == DEFAULT_RACK else rack.strip("/").partition("/")[0]


@dataclass(frozen=True, slots=True)
class RegionRules:
    """What is to be kept where placement knows regions."""

    durable: int = 0
    """Regions that any ack quorum spans, at least; 0: nothing is asked for (rule 2)."""
    binds_replacements: bool = True
    """Rule 2 holds for a bookie that takes the place of another, too."""

    def quorum_problem(self, write_quorum: int, ack_quorum: int) -> str | None:
        """Why ledgers with these quorums cannot keep rule 2, whatever bookies there are."""
        if not self.durable:
            return None
        least = max(write_quorum - write_quorum // self.durable + 1, self.durable)
        if ack_quorum >= least:
            return None
        if write_quorum < self.durable:
            return (
                f"reppMinimumRegionsForDurability={self.durable} needs a write quorum of {self.durable} at least, "
                f"it is {write_quorum}"
            )
        return (
            f"reppMinimumRegionsForDurability={self.durable} needs an ack quorum of {least} at least with a write "
            f"quorum of {write_quorum}, it is {ack_quorum}: fewer acknowledgements can all come from too few regions"
        )


def rules_of(regions_to_write: str, regions_min: int, *, binds_replacements: bool) -> RegionRules:
    """From the settings; without `reppRegionsToWrite` no durability is asked for, as with Apache's."""
    if not names_in(regions_to_write):
        return RegionRules()
    return RegionRules(regions_min, binds_replacements)


def names_in(regions_to_write: str) -> tuple[str, ...]:
    """The regions in `reppRegionsToWrite` (`eu;us;asia`), each once."""
    return tuple(dict.fromkeys(name.strip() for name in regions_to_write.split(";") if name.strip()))


def problems(
    regions_to_write: str, regions_min: int, *, is_validated: bool, is_aware: bool, switch: str
) -> Iterator[str]:
    """What is wrong with the settings; *switch* is the one that makes placement know regions."""
    names = names_in(regions_to_write)
    if names and not is_aware:
        yield f"reppRegionsToWrite={regions_to_write} needs {switch}: without it nobody looks at regions"
    if names and len(names) < regions_min:
        yield (
            f"reppRegionsToWrite={regions_to_write} names {len(names)} region{'' if len(names) == 1 else 's'}, and "
            f"reppMinimumRegionsForDurability={regions_min} asks for more"
        )
    if not is_validated:
        yield (
            "reppEnableValidation=false is not there: every choice is checked; for ledgers that need not span regions "
            "remove reppRegionsToWrite"
        )


def shares(copies: int, regions: int) -> list[int]:
    """How many of *copies* each of *regions* takes, the larger ones first (rule 1)."""
    assert regions >= 1
    each, rest = divmod(copies, regions)
    return [each + 1] * rest + [each] * (regions - rest)
