"""A file of a bookie that is gone, empty, cut, or another bookie's: what the next start makes of it, by kinds of files.

whole     everything is served, as if nothing had been
told      what is left is served; what is gone is an error or unknown, and the bookie says what it lacks
refused   the bookie does not start, and names the file and a way out

Never: an entry that was acknowledged is "not there", a fence is forgotten, and nothing is said.

A journal that lost its newest groups looks as if a power cut had torn a write that nobody was told of; what tells them
apart is the file `synced`.
"""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.storage.journal.format import decode_mark, decode_place
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import Segment
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.types import MagnetarError
from tests.support.bookie_disks import KEY, stored_entry
from tests.support.bookie_world import add_all, ledger_metadata
from tests.support.serving import Wire

ENOLEDGER, ENOENTRY, EIO, EFENCED, EUNKNOWN = 1, 2, 101, 104, 107
LEDGERS: Final = (1, 2, 3)
FENCED: Final = 4
RUN: Final = 5
"""Entries of each ledger in one life of the bookie."""

Damage = Callable[[Path, Path], None]


def removed(path: Path, other: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def emptied(path: Path, other: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        path.mkdir()
    else:
        path.write_bytes(b"")


def cut(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def another(path: Path, other: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        shutil.copytree(other, path)
    else:
        path.write_bytes(other.read_bytes())


class Place:
    """Two bookies that were killed: three lives of each, the last with entries in the journal only."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.store = MemoryStore(LoopClock())
        self.entries: dict[tuple[int, int], bytes] = {}

    def bookie(self, number: int = 1) -> Bookie:
        root = self.base / str(number)
        config = BookieConfig(
            port=0, listen_address="127.0.0.1", bookie_id=f"bookie-{number}", journal_directories=(f"{root}/journal",),
            ledger_directories=(f"{root}/ledgers",), journal_preallocation_mib=0, write_cache_mib=8, read_cache_mib=1,
            reserve_mib=0, stop_wait_ms=0,
        )  # fmt: skip
        return Bookie(config, self.store, LoopClock(), OsFiles())

    async def fill(self) -> None:
        await initialise_cluster(self.store)
        ledgers = LedgerStore(self.store)
        for number, offset in ((1, 0), (2, 100)):
            for ledger_id in (*LEDGERS, FENCED):
                segments = (Segment(0, (f"bookie-{number}",)),)
                await ledgers.create_with_id(ledger_id + offset, ledger_metadata(segments=segments))
            for life in range(3):
                bookie = self.bookie(number)
                await bookie.start()
                await self._add(bookie, offset, 2 * life)
                if life == 1:
                    await (await Wire.connect(bookie)).ask(
                        v2.read_request(FENCED + offset, v2.LAST_ENTRY, v2.FLAG_DO_FENCING, KEY)
                    )
                if life == 2:
                    bookie.checkpointer.flush()
                    await bookie.checkpointer._idle.wait()
                    await self._add(bookie, offset, 2 * life + 1)
                    shutil.copytree(self.base / str(number), self.base / f"killed-{number}")
                await bookie.stop()

    async def _add(self, bookie: Bookie, offset: int, run: int) -> None:
        some = {
            (ledger_id + offset, entry_id): stored_entry(ledger_id + offset, entry_id, b"x" * 300)
            for ledger_id in LEDGERS
            for entry_id in range(run * RUN, (run + 1) * RUN)
        }
        await add_all(bookie, some.values())
        if not offset:
            self.entries |= some

    def as_killed(self) -> Path:
        root = self.base / "1"
        shutil.rmtree(root)
        shutil.copytree(self.base / "killed-1", root)
        return root

    async def _refusal(self, bookie: Bookie) -> str:
        try:
            await bookie.start()
        except MagnetarError as error:
            return str(error)
        return ""

    async def outcome(self, path: Path) -> str:
        """What a start comes to, with everything checked that must never be."""
        bookie = self.bookie()
        refusal = await self._refusal(bookie)
        if refusal:
            assert path.name in refusal or str(path.parent) in refusal, f"it does not name the file: {refusal}"
            assert any(way in refusal for way in WAYS_OUT), f"no way out: {refusal}"
            return "refused"
        try:
            wire = await Wire.connect(bookie)
            answers = {key: await wire.read(*key) for key in self.entries}
            lacking = {key: answer for key, answer in answers.items() if answer != self.entries[key]}
            lost = bookie.parts.lost_logs.status()
            is_told = bool(lost.logs) or bookie.parts.integrity.status().is_needed
            for key, answer in lacking.items():
                assert answer in (EIO, EUNKNOWN) or is_told, f"{key} is answered with {answer!r}, and nothing is said"
            assert await wire.add(stored_entry(FENCED, 0)) == EFENCED
            return "told" if is_told else "whole"
        finally:
            await bookie.stop()


WAYS_OUT: Final = (
    "bring the file back", "restore it", "dataIntegrityChecking=true", "may be removed", "put it back", "Put back",
)  # fmt: skip


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("gone"))
    asyncio.run(place.fill())
    return place


def newest(folder: Path, pattern: str) -> Path:
    return sorted(folder.glob(pattern))[-1]


# Kind of file → where it is, below the bookie's folder.
FILES: Final[dict[str, Callable[[Path], Path]]] = {
    "how far it was synced": lambda root: root / "journal/current/synced",
    "the marked journal": lambda root: newest(root / "journal/current", "*.txn"),
    "an older journal": lambda root: sorted((root / "journal/current").glob("*.txn"))[0],
    "the journal's cookie": lambda root: root / "journal/current/VERSION",
    "the journal's folder": lambda root: root / "journal/current",
    "lastMark": lambda root: root / "ledgers/current/lastMark",
    "lastId": lambda root: root / "ledgers/current/lastId",
    "a sealed log": lambda root: root / "ledgers/current/0.log",
    "the newest log": lambda root: newest(root / "ledgers/current", "*.log"),
    "the ledgers' cookie": lambda root: root / "ledgers/current/VERSION",
    "the ledgers' folder": lambda root: root / "ledgers/current",
    "locations": lambda root: root / "ledgers/current/locations",
    "a table of locations": lambda root: newest(root / "ledgers/current/locations", "*.sst"),
    "the newest locations": lambda root: newest(root / "ledgers/current/locations", "*.log"),
    "the list of locations": lambda root: newest(root / "ledgers/current/locations", "MANIFEST-*"),
    "CURRENT of locations": lambda root: root / "ledgers/current/locations/CURRENT",
    "rows of ledgers": lambda root: root / "ledgers/current/ledgers",
    "a table of rows": lambda root: newest(root / "ledgers/current/ledgers", "*.sst"),
    "the newest rows": lambda root: newest(root / "ledgers/current/ledgers", "*.log"),
    "the list of rows": lambda root: newest(root / "ledgers/current/ledgers", "MANIFEST-*"),
    "CURRENT of rows": lambda root: root / "ledgers/current/ledgers/CURRENT",
    "the sign of a start": lambda root: root / "ledgers/current/DIRTY",
}

# … → what comes of it when it is removed, emptied, cut, another's. (-: a folder is not cut.)
OUTCOMES: Final = {
    "how far it was synced": "whole whole whole refused",
    "the marked journal": "refused refused refused refused",
    "an older journal": "whole whole whole whole",
    "the journal's cookie": "refused refused refused refused",
    "the journal's folder": "refused refused - refused",
    "lastMark": "whole refused refused refused",
    "lastId": "whole whole whole whole",
    "a sealed log": "told told told told",
    "the newest log": "told told told told",
    "the ledgers' cookie": "refused refused refused refused",
    "the ledgers' folder": "refused refused - refused",
    "locations": "whole whole - told",
    "a table of locations": "whole whole whole whole",
    "the newest locations": "whole told told told",
    "the list of locations": "whole whole whole whole",
    "CURRENT of locations": "whole whole whole whole",
    "rows of ledgers": "told told - told",
    "a table of rows": "told told told told",
    "the newest rows": "told whole whole whole",
    "the list of rows": "told told told told",
    "CURRENT of rows": "told told told whole",
    "the sign of a start": "whole whole whole whole",
}


def cases() -> Iterator[tuple[str, Damage, str]]:
    for kind, outcomes in OUTCOMES.items():
        for damage, outcome in zip((removed, emptied, cut, another), outcomes.split(), strict=True):
            if outcome != "-":
                yield kind, damage, outcome


@pytest.mark.parametrize(
    ("kind", "damage", "outcome"), [pytest.param(*one, id=f"{one[0]} {one[1].__name__}") for one in cases()]
)
async def test_a_file_that_is_gone_is_told_of_or_harmless(
    filled: Place, kind: str, damage: Damage, outcome: str
) -> None:
    root = filled.as_killed()
    path, other = FILES[kind](root), FILES[kind](filled.base / "killed-2")
    damage(path, other)
    assert await filled.outcome(path) == outcome


@pytest.mark.parametrize("kept", ["before its mark", "up to its mark", "but for its last group"])
async def test_a_journal_that_is_cut_anywhere_is_refused(filled: Place, kept: str) -> None:
    root = filled.as_killed()
    path = FILES["the marked journal"](root)
    mark = decode_mark((root / "ledgers/current/lastMark").read_bytes(), "lastMark")
    end = decode_place((root / "journal/current/synced").read_bytes())
    assert int(path.stem, 16) == mark.file_id == end.file_id
    assert mark.offset < end.offset
    last = end.offset - 4_096
    size = {"before its mark": mark.offset - 1, "up to its mark": mark.offset, "but for its last group": last}[kept]
    path.write_bytes(path.read_bytes()[:size])
    assert await filled.outcome(path) == "refused"
    (root / "journal/current/synced").unlink()  # as after a power cut
    if kept != "before its mark":
        bookie = filled.bookie()
        await bookie.start()
        await bookie.stop()
