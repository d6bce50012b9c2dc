"""Limits of a bookie's HTTP admin, exceeded. See docs/limits.md."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from bookie.admin.ledger_pages import ENTRIES_PER_PAGE
from bookie.admin.questions import ledger_id_of
from bookie.admin.server import LONG_ANSWERS_MAX
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import BookieServiceInfo, bookie_endpoint
from magnetar_core.bookkeeper.metadata.bookies.register import BookieRegistration
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, Versioned
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE
from magnetar_core.bookkeeper.tls.disk_space import ask_disks
from magnetar_core.runtime.files import DiskUsage
from magnetar_core.runtime.types import Buffer
from tests.support.bookie_admin_world import Client, administered
from tests.support.bookie_disks import stored_entry
from tests.support.bookie_world import LyingWorld, add_all
from tests.support.waiting import eventually


@pytest.fixture
def world() -> LyingWorld:
    return LyingWorld()


@pytest.fixture
async def admin(world: LyingWorld) -> AsyncIterator[Client]:
    async with administered(world) as client:
        yield client


class Together:
    """Counts how many calls run at the same time."""

    def __init__(self) -> None:
        self._now = 0
        self.most = self.times = 0

    async def __aenter__(self) -> None:
        self._now += 1
        self.times += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0.001)  # so that whoever may come now does

    async def __aexit__(self, *error: object) -> None:
        self._now -= 1


class Entries:
    """A ledger of *count* entries of *size* bytes; the first of each answer is given when *may_read* is set."""

    def __init__(self, count: int, size: int = 1) -> None:
        self._count = count
        self._entry = b"x" * size
        self.may_read = asyncio.Event()
        self.may_read.set()
        self.reading = 0
        self.given = 0

    async def read(self, ledger_id: int, first: int, last: int | None) -> AsyncGenerator[tuple[int, Buffer], None]:
        self.reading += 1
        await self.may_read.wait()
        for entry_id in range(first, self._count):
            self.given += 1
            yield entry_id, self._entry
        self.reading -= 1


READ = "/api/v1/ledger/read?ledger_id=1"


async def test_entries_come_in_pages(world: LyingWorld) -> None:
    entries = Entries(2 * ENTRIES_PER_PAGE)
    async with administered(world, ledgers=entries) as admin:
        pages = [(await admin.call("GET", f"{READ}&page={page}")).json for page in (1, 2, 3)]
        assert [page.pop("Entries for page: ") for page in pages] == ["1", "2", "3"]
        assert [int(entry_id) for entry_id in pages[0]] == list(range(ENTRIES_PER_PAGE))
        assert [int(entry_id) for entry_id in pages[1]] == list(range(ENTRIES_PER_PAGE, 2 * ENTRIES_PER_PAGE))
        assert pages[2] == {}
        assert entries.given <= 2 * ENTRIES_PER_PAGE + 1, "the ledger is not read on"


async def test_local_ledgers_come_in_several_answers(admin: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.admin.server.LOCAL_LEDGERS_MAX", 3)
    await add_all(admin.bookie, (stored_entry(ledger_id, 0) for ledger_id in range(10, 15)))
    path = "/api/v1/magnetar/ledgers"
    assert (await admin.call("GET", path)).json == [10, 11, 12]
    assert (await admin.call("GET", f"{path}?count=100")).json == [10, 11, 12]
    assert (await admin.call("GET", f"{path}?first=13")).json == [13, 14]


async def test_long_answers_wait_for_each_other_and_short_ones_for_none(
    world: LyingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def noting(request: web.Request, method: str) -> int:
        nonlocal asked
        asked += 1
        return ledger_id_of(request, method)

    monkeypatch.setattr("bookie.admin.server.ledger_id_of", noting)
    entries = Entries(5)
    entries.may_read.clear()
    async with administered(world, ledgers=entries) as admin:
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(admin.call("GET", READ)) for _ in range(LONG_ANSWERS_MAX + 6)]
            await eventually(lambda: asked == len(answers) and entries.reading)
            assert entries.reading == LONG_ANSWERS_MAX
            assert (await admin.call("GET", "/api/v1/bookie/is_ready")).text == "OK"
            entries.may_read.set()
        assert [answer.result().json for answer in answers] == [{str(n): "x" for n in range(5)}] * len(answers)


async def test_a_long_answer_is_written_in_pieces(world: LyingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    write = web.StreamResponse.write

    async def noting(answer: web.StreamResponse, data: bytes) -> None:
        pieces.append(len(data))
        await write(answer, data)

    monkeypatch.setattr(web.StreamResponse, "write", noting)
    monkeypatch.setattr("bookie.admin.answers.CHUNK_BYTES", 1000)
    async with administered(world, ledgers=Entries(100, size=100)) as admin:
        assert (await admin.call("GET", READ)).json == {str(n): "x" * 100 for n in range(100)}
    assert len(pieces) >= 10
    assert max(pieces) < 1000 + 2 * 120, "two lines above it at most"


async def test_records_of_a_list_are_read_a_few_at_a_time(
    world: LyingWorld, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Together()
    read = LedgerStore.read

    async def noting(store: LedgerStore, ledger_id: int) -> Versioned:
        async with together:
            return await read(store, ledger_id)

    for ledger_id in range(10):
        await world.record_ledger(ledger_id)
    monkeypatch.setattr(LedgerStore, "read", noting)
    monkeypatch.setattr("bookie.admin.ledger_pages.RECORDS_AT_ONCE", 3)
    found = (await admin.call("GET", "/api/v1/ledger/list?print_metadata=true&decode_meta=true")).json
    assert list(found) == [str(ledger_id) for ledger_id in range(10)]
    assert (together.most, together.times) == (3, 10)


async def test_bookies_are_asked_a_few_at_a_time(
    world: LyingWorld, admin: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = Together()

    async def noting(*arguments: Any) -> DiskUsage:
        async with together:
            return await ask_disks(*arguments)

    monkeypatch.setattr("bookie.admin.cluster_view.ask_disks", noting)
    monkeypatch.setattr("bookie.admin.cluster_view.ASKED_MAX", 3)
    info = BookieServiceInfo((bookie_endpoint(*admin.bookie.address),))  # this bookie answers for the others
    for number in range(2, 11):
        other = BookieRegistration(world.store, "/ledgers", f"bookie-{number}", world.clock)
        await other.write_cookie(b"", NO_NODE)
        await other.register(info)
    found = (await admin.call("GET", "/api/v1/bookie/list_bookie_info")).json
    assert set(found) == {f"bookie-{number}" for number in range(1, 11)} | {"ClusterInfo: "}
    assert all("No answer" not in text for text in found.values())
    assert (together.most, together.times) == (3, 10)
