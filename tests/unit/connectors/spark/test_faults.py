"""Bookies that are dead, slow, silent or wrong: another one is asked, or the task's error says what was not to be had
where, in one line."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from connectors.spark.plan import cluster
from connectors.spark.task import reader
from connectors.spark.task.reader import EntryUnreadable
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from magnetar_core.runtime.types import MIB, Corruption
from tests.unit.connectors.spark.entries import single
from tests.unit.connectors.spark.world import SparkWorld, in_order, numbered, rows_of, spark_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SparkWorld]:
    async with spark_world(tmp_path) as made:
        yield made


def damage(world: SparkWorld, bookie: str, ledger_id: int, entry_id: int) -> None:
    stored = world.cluster.bookies[bookie].ledgers[ledger_id]
    stored[entry_id] = stored[entry_id][:-1] + bytes([stored[entry_id][-1] ^ 1])


def summaries(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(one.message) for one in caplog.records if one.message.startswith('{"topic"')]


async def test_a_summary_tells_what_was_read_and_how(world: SparkWorld, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "connectors.spark")
    handle = await world.ledger(numbered(0, 50))
    await world.topic("t", handle)
    assert await world.values("t") == in_order(0, 50)
    (calm,) = summaries(caplog)
    assert all(calm[name] >= 0 for name in ("waited_s", "opened_s", "fetched_s", "built_s", "handed_s"))
    assert {name: calm[name] for name in ("entries", "rows", "bytes", "retries", "incomplete", "runs")} == {
        "entries": 50, "rows": 50, "bytes": handle.length, "retries": 0, "incomplete": 0, "runs": 1,
    }  # fmt: skip
    ensemble, first = handle.metadata.last_segment.ensemble, handle.ledger_id % 3
    for place in (first, (first + 1) % 3):  # the two that are asked first
        damage(world, ensemble[place], handle.ledger_id, 20)
    caplog.clear()
    assert await world.values("t") == in_order(0, 50)
    (told,) = summaries(caplog)
    assert told["retries"] >= 1, "a bookie whose answer is wrong is not the last one"


async def test_entries_that_are_wrong_everywhere_are_named_with_their_bookies(world: SparkWorld) -> None:
    handle = await world.ledger(numbered(0, 50))
    await world.topic("t", handle)
    for bookie in world.cluster.bookies:
        damage(world, bookie, handle.ledger_id, 33)
    with pytest.raises(Corruption) as raised:
        await world.values("t")
    text = str(raised.value)
    assert f"default/t: entry {handle.ledger_id}:33, asked for at " in text
    assert all(bookie in text for bookie in world.cluster.bookies)
    assert "digest" in text
    assert "\n" not in text, "the last line of the task's error has the whole reason"


async def test_a_bookie_that_does_not_answer_is_not_waited_for(
    world: SparkWorld, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is asked a little later; the time-out here is beyond that of the test."""
    monkeypatch.setattr(cluster, "ClientConfig", partial(ClientConfig, speculative_read_timeout_ms=100))
    caplog.set_level(logging.INFO, "connectors.spark")
    handle = await world.ledger(numbered(0, 50))
    await world.topic("t", handle)
    found = await world.reader("t", columns="value", **{"bookkeeper.readTimeoutMs": "600000"})
    first = handle.metadata.last_segment.ensemble[handle.ledger_id % 3]
    world.cluster.bookies[first].silent = True
    assert [row["value"] for row in await asyncio.to_thread(rows_of, found)] == in_order(0, 50)
    (told,) = summaries(caplog)
    assert told["retries"] >= 1
    assert told["waited_s"] > 0


async def test_entries_that_nobody_gives_in_time_are_named_with_their_bookies(world: SparkWorld) -> None:
    handle = await world.ledger(numbered(0, 50), ensemble_size=3, write_quorum=2, ack_quorum=2)
    await world.topic("t", handle)
    found = await world.reader("t", columns="value", **{"bookkeeper.readTimeoutMs": "300"})
    for bookie in world.cluster.bookies.values():
        bookie.silent = True
    with pytest.raises(EntryUnreadable) as raised:
        await asyncio.to_thread(rows_of, found)
    ensemble = handle.metadata.last_segment.ensemble
    place = f"default/t: entry {handle.ledger_id}:0, asked for at {ensemble[0]}, {ensemble[1]}: "
    assert place in str(raised.value), "the two that have it, not the third"
    assert "\n" not in str(raised.value)
    assert not reader._connections, "the next attempt begins with new ones"
    for bookie in world.cluster.bookies.values():
        bookie.silent = False
    assert [row["value"] for row in await asyncio.to_thread(rows_of, found)] == in_order(0, 50)


@pytest.mark.parametrize("reachable", [1, 0])
async def test_a_reader_that_reaches_few_bookies_reads_what_they_have(world: SparkWorld, reachable: int) -> None:
    handle = await world.ledger(numbered(0, 50))
    await world.topic("t", handle)
    found = await world.reader("t", columns="value")
    ensemble = handle.metadata.last_segment.ensemble
    for bookie in ensemble[reachable:]:
        await world.cluster.kill(bookie, unregister=False)
    if reachable:
        assert [row["value"] for row in await asyncio.to_thread(rows_of, found)] == in_order(0, 50)
        return
    with pytest.raises(EntryUnreadable, match=rf"entry {handle.ledger_id}:0, asked for at {', '.join(ensemble)}: "):
        await asyncio.to_thread(rows_of, found)
    for bookie in ensemble:
        await world.cluster.revive(bookie)
    assert [row["value"] for row in await asyncio.to_thread(rows_of, found)] == in_order(0, 50)


async def test_entries_are_as_large_as_the_option_says(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where brokers take larger messages than 5 MiB (maxMessageSize)."""
    limit = 6 * MIB
    monkeypatch.setattr("tests.support.fake_bookies.FrameSplitter", lambda: FrameSplitter(limit))
    writer = await world.cluster.client(ClientConfig(frame_bytes_max=limit, outbox_bytes_max=2 * limit))
    handle = await writer.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    payload = bytes(range(256)) * 20_800
    for entry in (single(b"a"), single(payload), single(b"c")):
        await handle.add(entry)
    await handle.close()
    await world.topic("t", handle)
    option = {"bookkeeper.nettyMaxFrameSizeBytes": str(limit)}
    assert await world.values("t", **option) == [b"a", payload, b"c"]
    with pytest.raises(EntryUnreadable, match=r"a frame of \d+ bytes \(limit 5253120, nettyMaxFrameSizeBytes\)"):
        await world.values("t")


async def test_a_bookie_that_restarts_while_it_is_read_costs_no_row(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "FETCH_BYTES", 1_000)
    handle = await world.ledger(numbered(0, 3_000))
    await world.topic("t", handle)
    found = await world.reader("t", columns="value")
    loop = asyncio.get_running_loop()
    first = handle.metadata.last_segment.ensemble[handle.ledger_id % 3]

    async def restart() -> None:
        await world.cluster.kill(first, unregister=False)
        await world.cluster.bookies[first].start()

    def read() -> list[bytes]:
        values: list[bytes] = []
        for partition in found.partitions():
            for batch in found.read(partition):
                values += batch.column("value").to_pylist()
                asyncio.run_coroutine_threadsafe(restart(), loop).result()
        return values

    assert await asyncio.to_thread(read) == in_order(0, 3_000)
