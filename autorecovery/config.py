"""Settings of auto-recovery, under the names that Apache's `bookkeeper.conf` gives them. No IO."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from autorecovery.ledgers.checks import Depth
from magnetar_core.bookkeeper.client.placing import regions
from magnetar_core.bookkeeper.client.placing.topology import RACKS_MIN
from magnetar_core.runtime.apache_lists import read_kinds
from magnetar_core.runtime.config import loop_stall_setting, setting
from magnetar_core.runtime.types import MIB

_RACKS: Final = "org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy"
_RANDOM: Final = "org.apache.bookkeeper.client.DefaultEnsemblePlacementPolicy"

# Groups of bookies count with each of them (`isolation`), so this one is the policy of racks.
_GROUPS: Final = "org.apache.pulsar.bookie.rackawareness.IsolatedBookieEnsemblePlacementPolicy"

IGNORED_SETTINGS: Final[Mapping[str, str]] = read_kinds("autorecovery", "without_effect.conf")
"""Apache's settings that are accepted and mean nothing here."""

PLACEMENT_POLICIES: Final = (_RACKS, regions.POLICY_CLASS, _GROUPS, _RANDOM)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoveryConfig:
    """How auditor and worker of one node behave."""

    loop_stall_warn_ms: int = loop_stall_setting()
    lost_bookie_delay_s: int = setting(
        "lostBookieRecoveryDelay",
        0,
        help="a bookie alone may be away for so many seconds before its ledgers are copied; counts until somebody "
        "sets another one for the cluster",
    )
    bookie_check_s: int = setting(
        "auditorPeriodicBookieCheckInterval",
        86_400,
        help="seconds between two audits of lost bookies without a reason; 0: only one at the start",
    )
    ledger_check_s: int = setting(
        "auditorPeriodicCheckInterval",
        604_800,
        help="seconds in which the ends of every copy of every ledger are read once; 0: never",
    )
    entry_check_s: int = setting(
        "auditorPeriodicEntryCheckInterval",
        0,
        help="seconds in which every entry of every copy is read once; 0: never",
    )
    list_check_s: int = setting(
        "auditorReplicasCheckInterval",
        0,
        help="seconds in which every bookie is asked once for the list of entries that it has of each ledger; 0: never",
    )
    open_grace_ms: int = setting(
        "openLedgerRereplicationGracePeriod",
        30_000,
        help="so long a writer may take to replace a lost bookie; then its ledger is closed and copied",
    )
    retry_ms_max: int = setting(
        "lockReleaseOfFailedLedgerGracePeriod",
        300_000,
        help="longest wait between two attempts to repair a ledger; twelve times that while copies of it fail",
        least=1_000,
    )
    bytes_per_s: int = setting(
        "replicationRateByBytes",
        -1,
        help="bytes a second that this node copies, and reads to check all entries, at most; recoveries by hand have "
        "the same limit once more; -1: no limit",
        least=-1,
    )
    # Of small ledgers most of the time goes by in waiting for the metadata store: with 48 at a time nine of them were
    # repaired for six with 16. What they copy together is limited by `pace`; each has 64 reads while it is looked at.
    ledgers_max: int = setting(
        "replicationLedgersAtOnce", 48, help="ledgers that this node repairs at the same time", least=1, most=1_000
    )
    verification_percent: int = setting(
        "auditorLedgerVerificationPercentage",
        0,
        help="0: the first and last entry of each copy are read before a ledger counts as whole, 100: all of them",
        most=100,
        choices=(0, 100),
        why="a sample proves little; 0 is for the ends of each copy, 100 for all entries",
    )

    placement_check_s: int = setting(
        "auditorPeriodicPlacementPolicyCheckInterval",
        0,
        help="seconds between two checks whether the copies of each ledger are spread enough; 0: never",
    )
    mends_placement: bool = setting(
        "repairedPlacementPolicyNotAdheringBookieEnabled",
        False,
        help="copies that the placement check finds in too few regions, racks or hosts are moved",
    )
    racks_min: int = setting(
        "minNumRacksPerWriteQuorum",
        RACKS_MIN,
        help="racks over which the copies of an entry are spread at least, where racks are told",
        least=1,
    )
    racks_enforced: bool = setting(
        "enforceMinNumRacksPerWriteQuorum",
        False,
        help="no copy is made that leaves the copies of an entry in fewer racks, nor one in /default-rack",
    )

    placement_policy: str = setting(
        "ensemblePlacementPolicy",
        _RACKS,
        help="Apache's class for the place of copies: by racks, by regions (RegionAwareEnsemblePlacementPolicy), or at "
        "random (DefaultEnsemblePlacementPolicy); as the brokers have it",
    )
    regions_to_write: str = setting(
        "reppRegionsToWrite", "", help="regions, `eu;us;asia`; with it acknowledged entries are in several of them"
    )
    regions_min: int = setting(
        "reppMinimumRegionsForDurability",
        regions.REGIONS_MIN,
        help="regions over which any ack quorum is spread, with reppRegionsToWrite",
    )
    regions_bind_replacements: bool = setting(
        "reppEnableDurabilityEnforcementInReplace",
        True,
        help="no copy is made that leaves an entry in fewer regions than that",
    )
    regions_validated: bool = setting("reppEnableValidation", True, help="false is refused: every choice is checked")

    tokens_file: str = setting(
        "managementTokensFile",
        "",
        help="file with the tokens of the management interface (`magnetar autorecovery token`); empty: everybody may "
        "read, and only this host may change anything",
    )

    @property
    def depth(self) -> Depth:
        """How much of a copy is read before a ledger counts as whole."""
        return Depth.ALL if self.verification_percent == 100 else Depth.ENDS

    @property
    def rate(self) -> float | None:
        """Bytes a second; None: no limit."""
        return None if self.bytes_per_s < 0 else float(self.bytes_per_s)

    @property
    def knows_regions(self) -> bool:
        return self.placement_policy == regions.POLICY_CLASS

    @property
    def knows_racks(self) -> bool:
        return self.placement_policy != _RANDOM

    def problems(self) -> Iterator[str]:
        if self.placement_policy not in PLACEMENT_POLICIES:
            known = ", ".join(PLACEMENT_POLICIES)
            yield f"ensemblePlacementPolicy={self.placement_policy} is not there; there are {known}"
        if self.racks_enforced and not self.knows_racks:
            yield f"enforceMinNumRacksPerWriteQuorum=true: with ensemblePlacementPolicy={_RANDOM} nobody looks at racks"
        yield from regions.problems(
            self.regions_to_write,
            self.regions_min,
            is_validated=self.regions_validated,
            is_aware=self.knows_regions,
            switch=f"ensemblePlacementPolicy={regions.POLICY_CLASS}",
        )
        if 0 <= self.bytes_per_s < MIB:
            yield f"replicationRateByBytes ({self.bytes_per_s}) must be -1 or at least {MIB}: one run has that much"
