"""The parts of a bookie's process: where its HTTP listens, and the rebuild of an index while the bookie is stopped."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bookie.bookie import Bookie, PortInUse
from bookie.config import IGNORED_SETTINGS, BookieConfig
from bookie.disks.directories import DirectoryInUse
from magnetar.processes import announced
from magnetar.processes.bookies.bookie import start_bookie
from magnetar.processes.bookies.rebuild import OfflineRebuild
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.runtime.config import load
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.process.daemon import Shutdown
from magnetar_core.runtime.tasks import Parts
from magnetar_core.runtime.types import ConfigurationError, MagnetarError
from tests.support.bookie_disks import stored_entry
from tests.support.serving import CONFIG, BookieMachines, Wire

pytestmark = pytest.mark.both_loops

PROMETHEUS = "org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider"


@asynccontextmanager
async def process(**changes: Any) -> AsyncIterator[tuple[Bookie, str]]:
    world, parts = BookieMachines(), Parts()
    await initialise_cluster(world.store)
    config = replace(CONFIG, **changes)
    try:
        yield await start_bookie(config, world.store, world.clock, OsFiles(), parts, Shutdown(), root="/ledgers")
    finally:
        await parts.stop()


@pytest.fixture
def on_disk(tmp_path: Path) -> dict[str, Any]:
    return {
        "journal_directories": (str(tmp_path / "journal"),),
        "ledger_directories": (str(tmp_path / "ledgers"),),
    }


async def status_of(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return answer.status


# -- where it listens


@pytest.mark.parametrize(
    ("values", "address", "metrics_only"),
    [
        ({}, None, False),
        ({"httpServerEnabled": "true"}, ("127.0.0.1", 8000), False),
        (
            {"httpServerEnabled": "true", "httpServerHost": "0.0.0.0", "httpServerPort": "8080"},
            ("0.0.0.0", 8080),
            False,
        ),
        ({"statsProviderClass": PROMETHEUS, "prometheusStatsHttpPort": "9000"}, ("0.0.0.0", 9000), True),
        ({"statsProviderClass": PROMETHEUS, "httpServerEnabled": "true"}, ("127.0.0.1", 8000), False),
        ({"statsProviderClass": PROMETHEUS, "prometheusStatsHttpEnable": "false"}, None, False),
        ({"statsProviderClass": "org.example.Other"}, None, False),
    ],
)
def test_http_is_off_and_on_loopback_unless_configured(
    values: dict[str, str], address: tuple[str, int] | None, metrics_only: bool
) -> None:
    config = load(BookieConfig, values, ignored=IGNORED_SETTINGS)
    assert (config.http_address, config.is_metrics_only) == (address, metrics_only)


def test_a_port_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"httpServerPort \(70000\)"):
        load(BookieConfig, {"httpServerPort": "70000"})


async def test_without_the_setting_there_is_no_http(on_disk: dict[str, Any]) -> None:
    async with process(**on_disk) as (_, url):
        assert url == ""


async def test_with_it_the_admin_answers(on_disk: dict[str, Any]) -> None:
    async with process(http_enabled=True, http_port=0, **on_disk) as (_, url):
        assert await status_of(url + "/api/v1/bookie/is_ready") == 200


async def test_metrics_may_be_alone(on_disk: dict[str, Any]) -> None:
    async with process(stats_provider=PROMETHEUS, stats_host="127.0.0.1", stats_port=0, **on_disk) as (_, url):
        assert await status_of(url + "/metrics") == 200
        assert await status_of(url + "/api/v1/bookie/state") == 404


async def test_a_port_that_is_taken_is_found_before_anything_is_touched(
    tmp_path: Path, on_disk: dict[str, Any]
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(PortInUse, match="httpServerPort"):
            async with process(http_enabled=True, http_port=other.getsockname()[1], **on_disk):
                pass
    assert not list(tmp_path.iterdir())


# -- log lines


def test_log_lines_are_json_if_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool, str]] = []
    monkeypatch.setattr(
        announced, "start_logging", lambda level, *, as_json, path: asked.append((level, as_json, path))
    )
    announced.start_server_logging()
    announced.start_server_logging("WARNING")
    monkeypatch.setenv("MAGNETAR_LOG_FORMAT", "JSON")
    monkeypatch.setenv("MAGNETAR_LOG_LEVEL", "debug")
    monkeypatch.setenv("MAGNETAR_LOG_FILE", "/var/log/x.log")
    announced.start_server_logging()
    assert asked == [("INFO", False, ""), ("WARNING", False, ""), ("DEBUG", True, "/var/log/x.log")]


# -- rebuild of the index


@pytest.fixture
def rebuild(on_disk: dict[str, Any]) -> Callable[[], OfflineRebuild]:
    return lambda: OfflineRebuild(replace(CONFIG, **on_disk), OsFiles(), BookieMachines().clock)


@pytest.mark.parametrize("with_ledgers", [False, True])
async def test_entries_are_there_after_the_index_was_rebuilt(
    on_disk: dict[str, Any], rebuild: Callable[[], OfflineRebuild], with_ledgers: bool
) -> None:
    world = BookieMachines()
    await initialise_cluster(world.store)
    config = replace(CONFIG, **on_disk)

    async def live(use: Callable[[Wire, int], Awaitable[None]]) -> None:
        bookie = Bookie(config, world.store, world.clock, OsFiles())
        await bookie.start()
        wire = await Wire.connect(bookie)
        for entry_id in range(20):
            await use(wire, entry_id)
        wire.close()
        await bookie.stop()

    async def write(wire: Wire, entry_id: int) -> None:
        assert await wire.add(stored_entry(5, entry_id, b"x")) == 0

    async def read(wire: Wire, entry_id: int) -> None:
        assert await wire.read(5, entry_id) == stored_entry(5, entry_id, b"x")

    await live(write)
    offline = rebuild()
    begun: list[int] = []
    (directory,) = offline.directories
    assert offline.log_count(directory) == 1
    done = await asyncio.to_thread(
        lambda: offline.rebuild(directory, with_ledgers=with_ledgers, on_log=lambda: begun.append(1))
    )
    offline.close()
    assert (done.entries, done.ledgers, len(begun)) == (20, 1, 1)
    assert bool(done.problems) == with_ledgers
    await live(read)


async def test_the_index_of_a_bookie_that_runs_is_left_alone(
    on_disk: dict[str, Any], rebuild: Callable[[], OfflineRebuild]
) -> None:
    async with process(**on_disk):
        with pytest.raises(DirectoryInUse):
            rebuild()


def test_no_directory_is_made_for_a_rebuild(tmp_path: Path, rebuild: Callable[[], OfflineRebuild]) -> None:
    with pytest.raises(MagnetarError, match="ledgerDirectories"):
        rebuild()
    assert not list(tmp_path.iterdir())
