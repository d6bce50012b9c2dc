"""The logs in which brokers tell what they serve, over twins of bookies and metadata store."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from broker.settings.config import BrokerConfig
from broker.transfer.rosters import log as serving
from broker.transfer.rosters.log import ROOT, OtherLogs, OwnLog
from magnetar_core.bookkeeper.client.errors import BookieUnavailable
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.ledgers.holdings import Holdings
from managed_ledger.state_log.removal import remove_log
from tests.support.memory_bookkeeper import MemoryBookKeeper
from tests.support.waiting import eventually

CONFIG = BrokerConfig()


class World:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock)
        self.bookkeeper = MemoryBookKeeper()
        self.bookkeeper.lac_goes_with_entries = True
        self.parts: list[OwnLog | OtherLogs] = []

    def tell(self, broker_id: str, serves: dict[str, int], held: dict[str, Holdings] | None = None) -> OwnLog:
        told = OwnLog(
            broker_id,
            CONFIG,
            lambda: dict(serves),
            self.store.session(),
            self.bookkeeper.session().client,
            self.clock,
            (held or {}).get,
        )
        told.start()
        self.parts.append(told)
        return told

    def read(self, broker_id: str) -> OtherLogs:
        read = OtherLogs(broker_id, CONFIG, self.store.session(), self.bookkeeper.session().client, self.clock)
        read.start()
        self.parts.append(read)
        return read

    async def close(self) -> None:
        for part in self.parts:
            await part.stop()


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    for name in ("WRITE_S", "RETRY_S", "PAUSE_S"):
        monkeypatch.setattr(serving, name, 0.005)
    made = World()
    yield made
    await made.close()


def _reads(others: OtherLogs, broker_id: str, expected: list[str]) -> None:
    assert list(others.topics_of(broker_id)) == expected


async def test_the_others_read_what_a_broker_serves_and_does_not_serve_any_more(world: World) -> None:
    serves = {"t1": 0, "t2": 5}
    world.tell("a", serves)
    others = world.read("b")
    await eventually(lambda: _reads(others, "a", ["t2", "t1"]))
    del serves["t2"]
    serves["t3"] = 1
    await eventually(lambda: _reads(others, "a", ["t3", "t1"]))
    assert others.known == ["a"], "its own log is not read"


async def test_what_a_dead_broker_told_is_there_for_one_that_starts_later(world: World) -> None:
    told = world.tell("a", {"t": 3})
    first = world.read("b")
    await eventually(lambda: _reads(first, "a", ["t"]))
    await told._tasks.cancel()  # as by kill -9: nothing is closed
    late = world.read("c")
    await eventually(lambda: _reads(late, "a", ["t"]))


async def test_a_log_begins_anew_with_its_broker_and_its_former_ledgers_go(world: World) -> None:
    told = world.tell("a", {"t": 3})
    others = world.read("b")
    await eventually(lambda: _reads(others, "a", ["t"]))
    former = set(world.bookkeeper.ledgers)
    await told.stop()
    world.tell("a", {"u": 1})
    await eventually(lambda: _reads(others, "a", ["u"]))
    assert not former & set(world.bookkeeper.ledgers)


async def test_a_long_log_begins_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "EDITS_MAX", 3)
    serves: dict[str, int] = {}
    world.tell("a", serves)
    others = world.read("b")
    for number in range(8):
        serves[f"t{number}"] = 0
        await eventually(lambda: _reads(others, "a", sorted(serves)))
    assert len(world.bookkeeper.deleted) >= 2
    assert len(world.bookkeeper.ledgers) <= 2


async def test_a_log_to_which_nothing_comes_has_no_open_ledger(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "IDLE_S", 0.02)
    serves: dict[str, int] = {}
    world.tell("a", serves)
    others = world.read("b")
    await asyncio.sleep(0.05)
    assert world.bookkeeper.ledgers == {}, "there is nothing to tell"
    for number in range(4):
        serves[f"t{number}"] = 0
        await eventually(lambda: _reads(others, "a", sorted(serves)))
        await eventually(lambda: all(one.closed for one in world.bookkeeper.ledgers.values()))
    assert len(world.bookkeeper.ledgers) == 4


async def test_a_log_of_many_ledgers_begins_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "IDLE_S", 0.02)
    monkeypatch.setattr(serving, "LEDGERS_MAX", 3)
    serves: dict[str, int] = {}
    world.tell("a", serves)
    others = world.read("b")
    for number in range(8):
        serves[f"t{number}"] = 0
        await eventually(lambda: _reads(others, "a", sorted(serves)))
        await eventually(lambda: all(one.closed for one in world.bookkeeper.ledgers.values()))
    assert len(world.bookkeeper.ledgers) <= 3
    assert len(world.bookkeeper.deleted) >= 3


async def test_without_bookies_it_is_told_later(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.bookkeeper.out_of_bookies = True
    told = OwnLog("a", CONFIG, lambda: {"t": 1}, world.store, world.bookkeeper.client, world.clock)
    told.start()
    world.parts.append(told)
    await eventually(lambda: "others are not told what this broker serves" in caplog.text)
    await asyncio.sleep(0.05)
    assert caplog.text.count("others are not told") == 1, "one line, however often it is tried"
    world.bookkeeper.out_of_bookies = False
    others = world.read("b")
    await eventually(lambda: _reads(others, "a", ["t"]))


async def test_the_log_of_a_broker_that_is_gone_for_good_is_removed(world: World) -> None:
    told = world.tell("a", {"t": 1})
    others = world.read("b")
    await eventually(lambda: _reads(others, "a", ["t"]))
    await told.stop()
    await others.remove("a")
    assert others.topics_of("a") == {}
    assert world.bookkeeper.ledgers == {}
    assert await world.store.children(ROOT) == []


async def test_logs_that_are_removed_while_others_are_left_end_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = world.read("b")
    for broker_id in ("a", "c"):
        told = world.tell(broker_id, {broker_id: 1})
        await eventually(lambda broker_id=broker_id: _reads(others, broker_id, [broker_id]))  # type: ignore[misc]
        await told.stop()
    left = others._followed["a"][1]
    close, is_closing, go_on = left.close, asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        is_closing.set()
        await go_on.wait()
        await close()

    monkeypatch.setattr(left, "close", slow)
    await remove_log(world.store, world.bookkeeper.client, f"{ROOT}/a")  # by the broker itself, or by another leader
    await is_closing.wait()
    await others.remove("c")
    await others.remove("a")
    go_on.set()
    world.tell("d", {"d": 1})
    await eventually(lambda: _reads(others, "d", ["d"]))
    assert others.known == ["d"]


async def test_a_removal_that_was_cut_off_is_made_again(world: World) -> None:
    told = world.tell("a", {"t": 1})
    await eventually(lambda: bool(world.bookkeeper.ledgers))
    others = world.read("b")
    await eventually(lambda: _reads(others, "a", ["t"]))
    await told.stop()
    broken = world.bookkeeper.session()

    async def fail(what: str, ledger_id: int) -> None:
        raise BookieUnavailable("gone")

    broken.on_step = fail
    with pytest.raises(Exception, match="cannot be removed"):
        await remove_log(world.store, broken.client, f"{ROOT}/a")
    assert await world.store.exists(f"{ROOT}/a/log"), "the list goes last"
    await remove_log(world.store, world.bookkeeper.client, f"{ROOT}/a")
    await remove_log(world.store, world.bookkeeper.client, f"{ROOT}/a")
    assert not await world.store.exists(f"{ROOT}/a")
    assert world.bookkeeper.ledgers == {}


def _holds(others: OtherLogs, topic: str, expected: Holdings | None) -> None:
    assert others.holdings_of(topic) == expected


async def test_the_others_read_what_a_successor_needs(world: World) -> None:
    world.tell("a", {"t1": 0, "t2": 5}, {"t2": Holdings(3, 7, {})})
    others = world.read("b")
    await eventually(lambda: _holds(others, "t2", Holdings(3, 7, {})))
    assert others.holdings_of("t1") is None
    assert others.holdings_of("unknown") is None


async def test_of_two_that_tell_of_a_topic_the_later_version_counts(world: World) -> None:
    world.tell("a", {"t": 0}, {"t": Holdings(3, 7, {})})
    world.tell("c", {"t": 0}, {"t": Holdings(5, 9, {})})
    others = world.read("b")
    await eventually(lambda: _reads(others, "a", ["t"]))
    await eventually(lambda: _holds(others, "t", Holdings(5, 9, {})))


async def test_a_log_of_many_bytes_begins_anew(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "LOG_BYTES_MAX", 100)
    serves: dict[str, int] = {}
    world.tell("a", serves)
    others = world.read("b")
    for number in range(8):
        serves[f"t{number}"] = 0
        await eventually(lambda: _reads(others, "a", sorted(serves)))
    assert len(world.bookkeeper.deleted) >= 2
    assert len(world.bookkeeper.ledgers) <= 2


async def test_while_a_log_begins_anew_its_former_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    told = world.tell("a", {"t": 1}, {"t": Holdings(3, 7, {})})
    others = world.read("b")
    await eventually(lambda: _holds(others, "t", Holdings(3, 7, {})))
    await told.stop()
    await remove_log(world.store, world.bookkeeper.client, f"{ROOT}/a")
    await eventually(lambda: _knows_nobody(others))
    assert others.topics_of("a") == {"t": 1}
    assert others.holdings_of("t") == Holdings(3, 7, {})
    monkeypatch.setattr(serving, "LEFT_ROSTER_S", 0.0)
    assert others.topics_of("a") == {}
    assert others.holdings_of("t") is None


def _knows_nobody(others: OtherLogs) -> None:
    assert others.known == []
