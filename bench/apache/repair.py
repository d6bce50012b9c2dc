"""A bookie is killed, and auto-recovery gives its ledgers their copies back: four bookies and one node of each brand.

    many small ledgers    ledgers a minute, and the time from the kill until no record names the dead bookie
    small entries         bytes copied a second, ledgers of 10 MiB in entries of 1 KiB
    large entries         the same, ledgers of 32 MiB in entries of 16 KiB
    beside a writer       the writer's p99 while large entries are copied, divided by its p99 before, and how fast
                          they are copied then

Apache's node runs with its default settings and, in a row of its own, with larger batches, which is the best that we
found for it. The dead bookie's share of the bytes is counted, not what was read and written for it.
"""

import asyncio
import contextlib
import random
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.apache.rig import BenchError
from bench.apache.table import SIDES, Side, Table, percentile
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import KIB, MIB
from tests.support.mixed_cluster import Brand, MixedCluster

BOOKIES: Final = 4
REPAIR_MAX_S: Final = 900.0


class Looks(NamedTuple):
    """For repaired ledgers."""

    records: int
    """Read in one look."""
    pause_s: float
    """Until the next one, where none of them was repaired."""


_OFTEN: Final = Looks(20, 0.05)

# The looks take processor time of the writer, too, in one process with them.
_BESIDE: Final = Looks(2, 0.5)

# Beside the defaults: Apache's copies one batch after the other, so larger ones wait less often.
BEST_OF_APACHE: Final[dict[str, Any]] = {"rereplicationEntryBatchSize": 1_000}

SMALL: Final = "re-replication, ledgers of 100 entries of 1 KiB"
MEDIUM: Final = "re-replication, ledgers of 10 MiB in entries of 1 KiB"
LARGE: Final = "re-replication, ledgers of 32 MiB in entries of 16 KiB"
WHOLE: Final = "kill of a bookie to all copies back, 1,000 small ledgers on four bookies"
BESIDE: Final = "re-replication beside a writer, ledgers of 32 MiB in entries of 16 KiB"
CALM: Final = "p99 of a writer beside re-replication, divided by its p99 before"


@dataclass(frozen=True, slots=True)
class Load:
    """What is written before the kill."""

    ledgers: int
    entries: int
    entry_bytes: int


class Repaired(NamedTuple):
    """Of the ledgers that lost a copy."""

    ledgers: int
    whole_s: float
    """From the kill to the last one."""
    rest: int
    """That were left when the first were found repaired."""
    rest_s: float
    """From then on."""


class Clusters:
    """A cluster of one side, and the ledger client that fills it."""

    def __init__(self, cluster: MixedCluster, bookkeeper: BookKeeper) -> None:
        self.cluster = cluster
        self.bookkeeper = bookkeeper

    async def fill(self, load: Load) -> dict[int, tuple[str, ...]]:
        """Ledgers of two copies → their bookies."""
        turns = asyncio.Semaphore(16)
        payload = bytes(load.entry_bytes)

        async def one() -> tuple[int, tuple[str, ...]]:
            async with turns:
                handle = await self.bookkeeper.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
                for first in range(0, load.entries, 100):
                    count = min(100, load.entries - first)
                    await handle.wait_for(handle.append([payload] * count) + count - 1)
                await handle.close()
                return handle.ledger_id, handle.metadata.last_segment.ensemble

        return dict(await asyncio.gather(*(one() for _ in range(load.ledgers))))

    async def kill_and_wait(self, ledgers: dict[int, tuple[str, ...]], looks: Looks = _OFTEN) -> Repaired:
        """Reads few records at a time: the metadata store works for the repair meanwhile."""
        lost = self.cluster.of("bookie")[-1]
        left = [ledger_id for ledger_id, ensemble in ledgers.items() if lost.bookie_id in ensemble]
        count = len(left)
        killed_s = time.monotonic()
        lost.kill()

        async def still(ledger_ids: Sequence[int]) -> list[int]:
            if time.monotonic() - killed_s > REPAIR_MAX_S:
                raise BenchError(f"{len(left)} of {count} ledgers are not repaired {REPAIR_MAX_S:.0f} s after the kill")
            records = [(one, await self.bookkeeper.read_metadata(one)) for one in ledger_ids]
            return [ledger_id for ledger_id, record in records if lost.bookie_id in record.bookies()]

        random.shuffle(left)
        while len(await still(left[: looks.records])) == len(left[: looks.records]):
            await asyncio.sleep(looks.pause_s)
        begun_s = time.monotonic()
        left = await still(left)
        rest = len(left)
        while left:
            some = await still(left[: looks.records])
            if len(some) == len(left[: looks.records]):
                await asyncio.sleep(looks.pause_s)
            left = left[looks.records :] + some
        ended_s = time.monotonic()
        return Repaired(count, ended_s - killed_s, rest, ended_s - begun_s)

    async def latencies_ms(self, seconds: float) -> list[float]:
        """Of a writer that has one entry of 1 KiB under way, to all bookies that stay, each of which must have it."""
        staying = BOOKIES - 1
        handle = await self.bookkeeper.create_ledger(ensemble_size=staying, write_quorum=staying, ack_quorum=staying)
        found = []
        end_s = time.monotonic() + seconds
        while (began_s := time.monotonic()) < end_s:
            await handle.add(bytes(KIB))
            found.append((time.monotonic() - began_s) * 1000)
            await asyncio.sleep(0.002)
        await handle.close()
        return sorted(found)


@contextlib.asynccontextmanager
async def cluster_of(directory: Path, brand: Brand, settings: dict[str, Any]) -> AsyncIterator[Clusters]:
    with MixedCluster(directory) as cluster:
        cluster.start_zookeeper()
        cluster.initialise(brand)
        for _ in range(BOOKIES):
            cluster.add("bookie", brand, wait=False)
        for server in cluster.of("bookie"):
            server.wait_ready()
        clock = LoopClock()
        store = await open_store(cluster.metadata_url, clock, session_timeout_s=20.0)
        bookkeeper = BookKeeper(store, clock, ClientConfig())
        await bookkeeper.open()
        try:
            cluster.add("autorecovery", brand, lostBookieRecoveryDelay=0, **settings)
            yield Clusters(cluster, bookkeeper)
        finally:
            await bookkeeper.close()
            await store.close()


async def ledgers_a_minute(place: Path, brand: Brand, settings: dict[str, Any], ledgers: int) -> tuple[float, float]:
    """(ledgers a minute, seconds from the kill to the end)."""
    async with cluster_of(place, brand, settings) as made:
        filled = await made.fill(Load(ledgers, 100, KIB))
        found = await made.kill_and_wait(filled)
        return found.rest / max(found.rest_s, 0.05) * 60, found.whole_s


async def megabytes_a_second(place: Path, brand: Brand, settings: dict[str, Any], load: Load) -> float:
    async with cluster_of(place, brand, settings) as made:
        filled = await made.fill(load)
        return rate_of(brand, load, await made.kill_and_wait(filled))


async def beside_a_writer(place: Path, brand: Brand, settings: dict[str, Any], load: Load) -> tuple[float, float]:
    """(MiB a second, the writer's p99 beside it divided by its p99 before)."""
    async with cluster_of(place, brand, settings) as made:
        filled = await made.fill(load)
        before = await made.latencies_ms(5.0)
        repair = asyncio.ensure_future(made.kill_and_wait(filled, _BESIDE))
        during: list[float] = []
        while not repair.done():
            during += await made.latencies_ms(2.0)
        rate = rate_of(brand, load, await repair)
        return rate, percentile(sorted(during), 0.99) / percentile(before, 0.99)


def rate_of(brand: Brand, load: Load, found: Repaired) -> float:
    """MiB of the lost copies a second, from the end of the dead bookie's session to the last changed record."""
    seconds = max(found.whole_s - _SESSION_S[brand], found.rest_s, 0.05)
    return found.ledgers * load.entries * load.entry_bytes / MIB / seconds


# Until the session of the killed bookie has ended nobody can know that it is gone.
_SESSION_S: Final[dict[str, float]] = {"ours": 2.0, "apache": 6.0}

# Apache's needs longer for a ledger: fewer of them give the same rate.
_LEDGERS: Final[dict[str, int]] = {"ours": 1_000, "apache": 120}
_MEDIUM: Final[dict[str, Load]] = {"ours": Load(80, 10_000, KIB), "apache": Load(20, 10_000, KIB)}
_LARGE: Final = Load(40, 2 * KIB, 16 * KIB)


def run(directory: Path, rounds: int, seconds: float, table: Table) -> list[str]:
    variants: Sequence[tuple[Side, str, dict[str, Any]]] = [
        ("apache", ", Apache at its defaults", {}),
        ("apache", ", Apache at its best", BEST_OF_APACHE),
    ]
    for _, suffix, _ in variants:
        goal = ">= 10" if "defaults" in suffix else ">= 2"
        table.row(SMALL + suffix, "ledgers/min", goal=goal)
        table.row(MEDIUM + suffix, "MiB/s", goal=goal)
        table.row(LARGE + suffix, "MiB/s", goal=goal)
    table.row(BESIDE, "MiB/s")
    table.row(CALM, "", goal="<= 1.5 x")
    for number in range(rounds):
        for side in SIDES:
            for _, suffix, settings in variants if side == "apache" else [("ours", "", {})]:
                place = directory / f"{side}-{number}"
                names = [suffix] if side == "apache" else [one for _, one, _ in variants]
                try:
                    rate, whole_s = asyncio.run(ledgers_a_minute(place / "small", side, settings, _LEDGERS[side]))
                    medium = asyncio.run(megabytes_a_second(place / "medium", side, settings, _MEDIUM[side]))
                    large = asyncio.run(megabytes_a_second(place / "large", side, settings, _LARGE))
                    beside, calm = asyncio.run(beside_a_writer(place / "beside", side, settings, _LARGE))
                except (BenchError, AssertionError, OSError) as error:
                    table.fail(SMALL + names[0], "ledgers/min", side, str(error))
                    continue
                finally:
                    shutil.rmtree(place, ignore_errors=True)
                for name in names:
                    table.add(SMALL + name, "ledgers/min", side, rate)
                    table.add(MEDIUM + name, "MiB/s", side, medium)
                    table.add(LARGE + name, "MiB/s", side, large)
                if side == "ours":
                    table.add(WHOLE, "s", side, whole_s)
                if side == "ours" or not settings:
                    table.add(BESIDE, "MiB/s", side, beside)
                    table.add(CALM, "", side, calm)
                print(
                    f"  {side}{suffix}: {rate:,.0f} ledgers/min, {medium:,.1f} and {large:,.1f} MiB/s, "
                    f"{beside:,.1f} MiB/s beside a writer, p99 x {calm:.2f}",
                    flush=True,
                )
    return ["Rates of the 'ours' columns are the same figures in both rows; sessions of bookies: ours 2 s, Apache 6 s."]
