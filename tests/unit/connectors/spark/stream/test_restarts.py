"""What may change between two runs of a query over one checkpoint, as the table in docs/spark.md says."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from connectors.spark.stream.offsets import StreamOffset
from magnetar_core.runtime.types import ConfigurationError
from tests.unit.connectors.spark.entries import single
from tests.unit.connectors.spark.stream.test_driver import KEEPING, Broker, Query, everything, run
from tests.unit.connectors.spark.world import SparkWorld, in_order, numbered, spark_world

PAGE: Final = Path(__file__).parents[5] / "docs/spark.md"
EARLIEST: Final = {"startingOffsets": "earliest"}
BOTH: Final = {"topicsPattern": "t|u", **EARLIEST}

Change = Callable[[SparkWorld, "Runs", pytest.MonkeyPatch], Awaitable[None]]
CHANGES: Final[dict[str, Change]] = {}


def change(row: str) -> Callable[[Change], Change]:
    """Registers what tries a row of the table."""

    def registered(tries: Change) -> Change:
        CHANGES[row] = tries
        return tries

    return registered


class Runs:
    """Runs of one query."""

    def __init__(self, world: SparkWorld) -> None:
        self._world = world
        self.checkpoint: dict[str, Any] = {}

    async def run(self, **options: str) -> list[Any]:
        """The values of all batches of a run, sorted."""
        return sorted(value for batch in await self.batches(**options) for value in batch)

    async def batches(self, **options: str) -> list[list[bytes]]:
        """The batches of a run."""
        found: list[list[bytes]] = await run(self._world, everything, self.checkpoint, **options)
        return found

    def places(self) -> dict[str, tuple[int, int]]:
        """Where the query goes on in each topic, by the last part of its name."""
        offset = StreamOffset.from_json(json.loads(self.checkpoint["committed"]))
        return {part.topic.rpartition("/")[2]: position for part, position in offset.positions.items()}


async def more(world: SparkWorld, name: str, *ledgers: Any, first: int = 3, count: int = 2) -> list[Any]:
    """The topic gets a further ledger; returns all that it has."""
    has = [*ledgers, await world.ledger(numbered(first, count))]
    await world.topic(name, *has)
    return has


@change("more topics (`topics`, `topicsPattern`)")
async def more_topics(world: SparkWorld, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.topic("u", await world.ledger([single(b"u")]))
    await runs.run(**EARLIEST)
    assert await runs.run(topicsPattern="t|u", startingOffsets="latest") == [b"u"]


@change("fewer topics")
async def fewer_topics(world: SparkWorld, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    of_u = await more(world, "u", first=5, count=1)
    assert await runs.run(**BOTH) == [*in_order(0, 3), b"5"]
    place = runs.places()["u"]
    await more(world, "u", *of_u, first=6, count=1)
    assert await runs.run(**EARLIEST) == []
    assert runs.places()["u"] == place
    assert await runs.run(**BOTH) == [b"6"]


@change("other topics alone")
async def other_topics(world: SparkWorld, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.topic("u", await world.ledger([single(b"u")]))
    await runs.run(**EARLIEST)
    before = dict(runs.checkpoint)
    for options in ({"topic": "u"}, {"topicsPattern": "u.*"}):
        with pytest.raises(ConfigurationError, match=r"the checkpoint is one of .*/t, and the query reads .*u"):
            await runs.run(**options, **EARLIEST)
    assert runs.checkpoint == before


@change("`startingOffsets`, `startingTimestamp`")
async def the_beginning(world: SparkWorld, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    await runs.run(**EARLIEST)
    assert await runs.run(startingOffsets="latest") == []
    assert await runs.run(**EARLIEST) == []
    assert await runs.run(startingTimestamp="2001-01-01") == []


@change("`maxMessagesPerTrigger`, `maxBytesPerTrigger`")
async def limits(world: SparkWorld, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await runs.batches(**EARLIEST) == [in_order(0, 3)]
    await more(world, "t", runs.places()["t"][0] - 1, first=3, count=2)
    assert await runs.batches(maxMessagesPerTrigger="1") == [[b"3"], [b"4"]]


@change("`minPartitions`, `targetPartitionBytes`")
async def tasks(world: SparkWorld, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def planned(query: Query) -> None:
        query.reader.prepareForTriggerAvailableNow()
        assert query.plan()

    await run(world, planned, runs.checkpoint, **EARLIEST)
    counts: list[int] = []

    def counted(query: Query) -> list[bytes]:
        end = json.loads(query.checkpoint["offset"])
        counts.append(len(query.reader.partitions(query.start(), end)))
        return query.process()

    assert sorted(await run(world, counted, runs.checkpoint, minPartitions="3", **EARLIEST)) == in_order(0, 3)
    assert counts == [3]


@change("`columns`, `valueFormat`, `mode`")
async def columns(world: SparkWorld, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    await runs.run(**EARLIEST)
    await more(world, "t", runs.places()["t"][0] - 1, first=3, count=1)
    assert await runs.run(valueFormat="string", columns="value,__key", mode="PERMISSIVE") == ["3"]


@change("`failOnDataLoss`, `failOnNewSchema`")
async def tolerance(world: SparkWorld, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    await runs.run(maxMessagesPerTrigger="1", **EARLIEST)
    runs.checkpoint["committed"] = runs.checkpoint["committed"].replace(f'"{runs.places()["t"][0]}:0"', '"0:1"')
    await more(world, "t", first=7, count=1)
    assert await runs.run(failOnDataLoss="false") == [b"7"]
    await more(world, "t", runs.places()["t"][0] - 1, first=8, count=1)
    assert await runs.run(failOnDataLoss="false", failOnNewSchema="false") == [b"8"]


@change("`subscription`: another, or one where there was none")
async def subscriptions(world: SparkWorld, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(world, monkeypatch)
    await runs.run(**EARLIEST)
    assert broker.marks == {}
    assert await runs.run(**KEEPING) == []
    assert "t" in broker.marks
    another = Broker(world, monkeypatch)
    assert await runs.run(**{**KEEPING, "subscription": "another"}) == []
    assert "t" in another.marks


@change("`metadata.url`: the same cluster at another address")
async def another_address(world: SparkWorld, runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    await runs.run(**EARLIEST)
    place = Path(world.url.removeprefix("rocksdb:"))
    link = place.parent / "elsewhere"
    link.symlink_to(place)
    assert await runs.run(**{"metadata.url": f"rocksdb:{link}"}) == []


def test_the_page_has_these_changes() -> None:
    section = PAGE.read_text().partition("### What may change between runs\n")[2].partition("\n## ")[0]
    lines = [line.split(" | ")[0].removeprefix("| ") for line in section.splitlines() if line.startswith("| ")]
    assert lines[1:] == list(CHANGES)


@pytest.mark.parametrize("row", CHANGES)
async def test_a_change_does_what_the_page_says(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with spark_world(tmp_path) as world:
        await more(world, "t", first=0, count=3)
        await CHANGES[row](world, Runs(world), monkeypatch)
