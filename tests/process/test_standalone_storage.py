"""The storage of a standalone is seen: in its /metrics by the shipped alerts, on its page, and by `magnetar bookie`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import pulsar
import pytest
from click.testing import CliRunner

from autorecovery.reporting import report_sweep
from broker.admin.page.files import PREFIX
from broker.broker import Broker
from magnetar.cli.main import main
from magnetar.processes.standalone import start_standalone
from magnetar.processes.standalone_settings import read_standalone_settings
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
from magnetar_core.bookkeeper.metadata.damage.rules import Damage, Kind, Source
from magnetar_core.runtime.files import DiskUsage, OsFiles
from magnetar_core.runtime.process.daemon import Shutdown
from magnetar_core.runtime.tasks import Parts
from magnetar_core.runtime.types import GIB
from tests.process.test_alerts import QUIET, alerts, ask_promtool, in_thread, publish, with_promtool
from tests.support.scrapes import Scrape, promtool_test
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

HOUR_S: Final = 3_600
PRODUCER: Final = b"standalone-"
"""Begins the names that the broker gives to producers; each message has it."""


@dataclass
class Alone:
    """A standalone in this process."""

    broker: Broker
    bookie_url: str
    data: Path
    session: aiohttp.ClientSession
    free_bytes: int = 80 * GIB
    """Of 100 GiB."""

    async def text(self, path: str) -> str:
        async with self.session.get(self.broker.address.web_url(secure=False) + path) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.text()

    async def storage(self) -> Any:
        async with self.session.get(self.broker.address.web_url(secure=False) + PREFIX + "overview") as answer:
            return (await answer.json())["storage"]

    async def problems(self) -> str:
        (bookie,) = (await self.storage())["bookies"]
        return "; ".join(bookie["problems"])

    async def command(self, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """What `magnetar bookie …` prints."""
        words = ("bookie", *words, "--admin-url", self.bookie_url)
        said = await in_thread(lambda: CliRunner().invoke(main, words))
        assert said.exit_code in codes, said.output
        return str(said.output)

    async def metrics(self) -> Scrape:
        made = Scrape()
        made.add("magnetar-broker", "localhost:8080", await self.text("/metrics"))
        return made

    async def publish(self, count: int) -> None:
        def work() -> None:
            client = pulsar.Client(self.broker.address.native_url, logger=QUIET)
            publish(client, count)
            client.close()

        await in_thread(work)


@pytest.fixture
async def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Alone]:
    monkeypatch.setattr(report_sweep, "_ROUND_S", 0.05)
    async with standalone(tmp_path, monkeypatch) as made:
        yield made


@asynccontextmanager
async def standalone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Alone]:
    said: list[str] = []
    made: list[Alone] = []
    monkeypatch.setattr(
        OsFiles, "usage", lambda *_: DiskUsage(100 * GIB, made[0].free_bytes if made else Alone.free_bytes)
    )
    monkeypatch.setattr("magnetar.processes.standalone.say_ready", said.append)
    path = folder / "standalone.conf"
    path.write_text("diskCheckInterval=20\ndiskUsageWarnThreshold=0.9\n")  # as shipped there is no warning: both 0.99
    data = folder / "data"
    settings = read_standalone_settings(data, path, {}, bookies=1, service_port=0, web_port=0, first_bookie_port=0)
    parts = Parts()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(parts.stop)
        broker = await start_standalone(data, settings, parts, Shutdown())
        session = await stack.enter_async_context(aiohttp.ClientSession())
        url = said[0].partition("HTTP of bookies ")[2].partition(",")[0]
        made.append(Alone(broker, url, data, session))
        yield made[0]


async def test_each_command_for_a_bookie_works_on_a_standalone(alone: Alone) -> None:
    await alone.publish(3)
    for words, expected in {
        ("status",): "writable",
        ("info",): "free",
        ("sanity",): "",
        ("disks",): "good",
        ("marks",): "",
        ("config",): "bookiePort",
        ("metrics",): "bookie_ledger_writable_dirs 1",
        ("list",): "bookie-1",
        ("cluster",): "1 writable",
        ("cookies",): "bookie-1",
        ("gc",): "",
        ("flush",): "",
        ("scrub",): "",
        ("ledgers",): "0",
        ("ledger", "show", "0"): "bookie-1",
    }.items():
        assert expected in await alone.command(*words), words
    assert await alone.problems() == ""
    await alone.command("readonly", "on")
    assert "read-only: operator" in await alone.problems()
    await alone.command("readonly", "off")
    assert await alone.problems() == ""


async def test_what_every_user_may_read_is_on_the_page(alone: Alone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OsFiles, "lets_others_in", lambda _, directory: "/ledgers" in directory)
    assert f"{alone.data}/bookie-1/ledgers: every user of this machine may read it" in await alone.problems()
    assert 'magnetar_bookie_open_directories{bookie="bookie-1"} 1.0' in await alone.text("/metrics")


# ------------------------------------------------------------------------------------------- alerts


async def disk(alone: Alone, free_bytes: int, word: str) -> None:
    alone.free_bytes = free_bytes
    await until(alone, word)


async def until(alone: Alone, word: str) -> None:
    async with asyncio.timeout(20):
        while word not in await alone.problems():
            await asyncio.sleep(0.02)


async def damaged(alone: Alone) -> None:
    """A bit of an entry changes on the disk."""
    await alone.publish(3)
    await alone.command("flush")
    folder = alone.data / "bookie-1/ledgers/current"
    await eventually(lambda: any(PRODUCER in log.read_bytes() for log in folder.glob("*.log")))
    (log,) = folder.glob("*.log")
    with log.open("r+b") as file:
        file.seek(log.read_bytes().rindex(PRODUCER))
        file.write(PRODUCER.upper())
    while "1 entries lost" not in await alone.problems():  # a pass sees what is flushed when it begins
        await alone.command("scrub", "run", "--wait", codes=(0, 2))


async def lost(alone: Alone) -> None:
    await alone.publish(1)
    damage = Damage(0, Kind.DATA_LOSS, Source.BROKER, "a broker", "entries 7 to 8 are lost", ((7, 8),))
    await DamageReports(alone.broker.store).post(damage, 0)
    async with asyncio.timeout(20):
        while (await alone.storage())["lost_ledgers"] != 1:
            await asyncio.sleep(0.02)


PLANTED: Final[dict[str, Callable[[Alone], Awaitable[None]]]] = {
    "MagnetarBookieReadOnly": partial(disk, free_bytes=GIB // 2, word="read-only: disk"),
    "MagnetarDiskFull": partial(disk, free_bytes=7 * GIB, word="nearly full"),
    "MagnetarDamage": damaged,
    "MagnetarEntriesLost": lost,
}


@with_promtool
@pytest.mark.parametrize("alert", PLANTED)
async def test_a_shipped_alert_fires_for_a_standalone_where_its_problem_is(
    alone: Alone, alert: str, tmp_path: Path
) -> None:
    before = await alone.metrics()
    await PLANTED[alert](alone)
    after = await alone.metrics()
    firing = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) > bool 0'
    make = partial(promtool_test, "alerts.yaml", before, question=firing, lasts_s=HOUR_S)
    ask_promtool(tmp_path, [alerts()[alert]], make(after, answer=1), make(before, answer=None))


@with_promtool
async def test_no_shipped_alert_fires_for_a_standalone_that_is_well(alone: Alone, tmp_path: Path) -> None:
    before = await alone.metrics()
    await alone.publish(20)
    await alone.command("scrub", "run", "--wait")
    after = await alone.metrics()
    assert await alone.problems() == ""
    question = 'ALERTS{alertstate="firing"}'
    test = promtool_test("alerts.yaml", before, after, lasts_s=2 * HOUR_S, question=question, answer=None)
    ask_promtool(tmp_path, list(alerts().values()), test)
