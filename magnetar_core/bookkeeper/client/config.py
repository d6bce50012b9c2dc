"""Settings of the BookKeeper client, under the names that Apache's broker and client give them. No IO."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from magnetar_core.bookkeeper.client.placing.regions import REGIONS_MIN, RegionRules, problems, rules_of
from magnetar_core.bookkeeper.client.placing.topology import RACKS_MIN
from magnetar_core.bookkeeper.wire.framing import MAX_FRAME_BYTES
from magnetar_core.runtime.config import setting
from magnetar_core.runtime.types import MIB
from magnetar_core.security.tls.files import TlsFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """How the client treats bookies."""

    timeout_s: float = setting(
        "bookkeeperClientTimeoutInSeconds", 30.0, help="an add or read without an answer fails after this"
    )
    connect_timeout_ms: int = setting(
        "clientConnectTimeoutMillis", 10_000, help="a connection that is not made within this time has failed"
    )
    channels_per_bookie: int = setting(
        "bookkeeperNumberOfChannelsPerBookie", 1, help="connections to each bookie; a ledger uses one of them"
    )
    speculative_read_timeout_ms: int = setting(
        "bookkeeperClientSpeculativeReadTimeoutInMillis",
        2_000,
        help="ask the next replica as well after this; 0 turns it off",
    )
    quarantine_s: float = setting(
        "bookkeeperClientHealthCheckQuarantineTimeInSeconds",
        30.0,
        help="how long new ensembles avoid a bookie after it failed (Apache: 1800 after five errors)",
    )
    batch_read_enabled: bool = setting(
        "bookkeeperEnableBatchRead", True, help="read runs of entries in one request where E equals Qw"
    )
    rackaware_policy_enabled: bool = setting(
        "bookkeeperClientRackawarePolicyEnabled",
        True,
        help="copies of an entry go to different racks (node /bookies) and hosts; false: bookies are chosen at random",
    )
    racks_min: int = setting(
        "bookkeeperClientMinNumRacksPerWriteQuorum",
        RACKS_MIN,
        help="racks over which the copies of an entry are spread at least, where racks are told",
        least=1,
    )
    racks_enforced: bool = setting(
        "bookkeeperClientEnforceMinNumRacksPerWriteQuorum",
        False,
        help="no ledger is made that has fewer racks; bookies in /default-rack are not used then",
    )
    regionaware_policy_enabled: bool = setting(
        "bookkeeperClientRegionawarePolicyEnabled",
        False,
        help="a rack is told as /region/rack; copies of an entry go to all regions, and to different racks in each",
    )
    regions_to_write: str = setting(
        "reppRegionsToWrite", "", help="regions, `eu;us;asia`; with it acknowledged entries are in several of them"
    )
    regions_min: int = setting(
        "reppMinimumRegionsForDurability",
        REGIONS_MIN,
        help="regions over which any ack quorum is spread, with reppRegionsToWrite",
    )
    regions_bind_replacements: bool = setting(
        "reppEnableDurabilityEnforcementInReplace", True, help="the same for a bookie that takes the place of another"
    )
    regions_validated: bool = setting("reppEnableValidation", True, help="false is refused: every choice is checked")
    isolation_groups: str = setting(
        "bookkeeperClientIsolationGroups",
        "",
        help="groups of bookies (node /bookies) for ledgers whose record names none, comma separated; empty: all",
    )
    secondary_isolation_groups: str = setting(
        "bookkeeperClientSecondaryIsolationGroups", "", help="used as well when those have too few bookies"
    )
    frame_bytes_max: int = setting(
        "nettyMaxFrameSizeBytes", MAX_FRAME_BYTES, help="largest frame; must be that of the bookies"
    )
    # Entries of one ledger without an acknowledgement. At 64 bytes each they take some 30 MB of memory. Topics have
    # smaller limits, so reaching this one means that those do not work.
    pending_adds_max: int = setting(
        "maxPendingAddsPerLedger", 200_000, help="unacknowledged entries of one ledger, above it adds are refused"
    )
    pending_bytes_max: int = setting(
        "maxPendingBytesPerLedger", 512 * MIB, help="unacknowledged bytes of one ledger, above it adds are refused"
    )
    # Bytes that wait for a bookie which does not take them. Adds complete without the slowest bookie, so nothing else
    # bounds its queue. Above the limit new entries wait. Replacing the bookie instead would send everything again to
    # the next one, which is no faster.
    outbox_bytes_max: int = setting(
        "maxOutboxBytesPerBookie", 64 * MIB, help="unsent bytes for one bookie, above it new entries wait"
    )
    # Only for a bookie whose outbox is full: it holds up all writers, so its silence must be noticed before the
    # time-out of an add.
    full_silence_s: float = setting(
        "maxSilenceOfFullBookieInSeconds",
        5.0,
        help="a bookie with a full outbox that neither answers nor takes data for this long counts as failed",
    )

    hold_adds_s: float = setting(
        "holdAddsWithoutBookiesInSeconds",
        30.0,
        help="how long entries wait for bookies to come back when too few are left, before they fail; 0: at once",
    )

    slow_add_ms: int = setting(
        "bookkeeperClientSlowAddMillis",
        1_000,
        help="an add that takes longer is logged with its stages and bookies, one line a second at most; 0: none",
    )

    local_host: str = ""
    """The host of this client: where a bookie runs on it as well, bookies of that one's region are read first."""

    tls: TlsFiles | None = None
    """The files for TLS to bookies; None: without TLS. With TLS, a bookie that does not offer it counts as
    unreachable: there is no fallback."""

    @property
    def region_rules(self) -> RegionRules | None:
        """None: placement knows racks at most."""
        if not self.regionaware_policy_enabled:
            return None
        return rules_of(self.regions_to_write, self.regions_min, binds_replacements=self.regions_bind_replacements)

    def with_frames(self, frame_bytes_max: int) -> "ClientConfig":
        """The same for bookies whose largest frame is *frame_bytes_max*; the outbox holds one."""
        outbox_bytes_max = max(frame_bytes_max, self.outbox_bytes_max)
        return replace(self, frame_bytes_max=frame_bytes_max, outbox_bytes_max=outbox_bytes_max)

    def problems(self) -> Iterator[str]:
        yield from problems(
            self.regions_to_write,
            self.regions_min,
            is_validated=self.regions_validated,
            is_aware=self.regionaware_policy_enabled,
            switch="bookkeeperClientRegionawarePolicyEnabled=true",
        )
        if self.racks_enforced and not (self.rackaware_policy_enabled or self.regionaware_policy_enabled):
            yield (
                "bookkeeperClientEnforceMinNumRacksPerWriteQuorum=true needs "
                "bookkeeperClientRackawarePolicyEnabled=true: without it nobody looks at racks"
            )
        if self.timeout_s <= 0:
            yield f"bookkeeperClientTimeoutInSeconds ({self.timeout_s}) must be above 0"
        if self.hold_adds_s < 0:
            yield f"holdAddsWithoutBookiesInSeconds ({self.hold_adds_s}) must not be negative"
        if self.full_silence_s <= 0:
            yield f"maxSilenceOfFullBookieInSeconds ({self.full_silence_s}) must be above 0"
        if self.outbox_bytes_max < self.frame_bytes_max:
            yield (
                f"maxOutboxBytesPerBookie ({self.outbox_bytes_max}) must hold the largest frame "
                f"(nettyMaxFrameSizeBytes {self.frame_bytes_max})"
            )
        if self.slow_add_ms < 0:
            yield f"bookkeeperClientSlowAddMillis ({self.slow_add_ms}) must not be negative"
        if self.channels_per_bookie < 1:
            yield f"bookkeeperNumberOfChannelsPerBookie ({self.channels_per_bookie}) must be at least 1"
        if self.frame_bytes_max < 1 * MIB:
            yield f"nettyMaxFrameSizeBytes ({self.frame_bytes_max}) must be at least {MIB}"
