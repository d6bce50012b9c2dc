"""How many bookies work in the directories of a service."""

from pathlib import Path

import pytest

from bookie.config import BookieConfig
from bookie.disks.cookie import Cookie
from magnetar.processes.many.recorded import FILE, check_surplus, record_processes, recorded_processes
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, cookie_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, State
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE, MetadataStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.types import ConfigurationError, Corruption

FILES = OsFiles()
ROOT = "/ledgers"


@pytest.fixture
def config(tmp_path: Path) -> BookieConfig:
    return BookieConfig(journal_directories=(str(tmp_path / "j"),), ledger_directories=(str(tmp_path / "l"),))


def _stamp(config: BookieConfig, number: int, bookie: str) -> None:
    place = Path(config.ledger_directories[0]) / f"process-{number}" / "current"
    place.mkdir(parents=True)
    (place / "VERSION").write_bytes(Cookie(bookie, ("j",), ("l",), "c").encode())


async def _store(*bookies: str) -> MetadataStore:
    store = MemoryStore(LoopClock()).session()
    for bookie in bookies:
        await store.put(cookie_path(ROOT, bookie), b"5\n", NO_NODE)
    return store


def test_directories_without_the_file_are_those_of_one_bookie(config: BookieConfig) -> None:
    assert recorded_processes(FILES, config) == 1


def test_the_number_is_stored_in_every_directory_and_the_greatest_counts(config: BookieConfig) -> None:
    record_processes(FILES, config, 3)
    (Path(config.journal_directories[0]) / FILE).write_text("2\n")
    assert recorded_processes(FILES, config) == 3


def test_a_number_that_cannot_be_read_is_not_taken_for_one(config: BookieConfig) -> None:
    record_processes(FILES, config, 2)
    (Path(config.journal_directories[0]) / FILE).write_text("two")
    with pytest.raises(Corruption, match="no number of processes"):
        recorded_processes(FILES, config)


async def test_fewer_bookies_than_recorded_are_refused_with_the_names_of_the_others(config: BookieConfig) -> None:
    record_processes(FILES, config, 3)
    _stamp(config, 1, "b-1")
    _stamp(config, 2, "b-2")
    store = await _store("b-1", "b-2")
    with pytest.raises(ConfigurationError, match=r"b-1, b-2 would be missing.*magnetar bookies drain b-1") as refused:
        await check_surplus(FILES, config, 1, store, ROOT)
    assert "--processes 3" in str(refused.value)
    with pytest.raises(ConfigurationError, match="b-2 would be missing"):
        await check_surplus(FILES, config, 2, store, ROOT)
    await check_surplus(FILES, config, 3, store, ROOT)


async def test_a_drained_bookie_may_be_left_out(config: BookieConfig) -> None:
    record_processes(FILES, config, 2)
    _stamp(config, 1, "b-1")
    store = await _store("b-1")
    states = BookieStates(store, ROOT)
    await states.move("b-1", State.DRAINING, Actor.OPERATOR, "me", "", 1)
    with pytest.raises(ConfigurationError, match="b-1"):
        await check_surplus(FILES, config, 1, store, ROOT)
    await states.move("b-1", State.DRAINED, Actor.AUDITOR, "me", "", 2)
    await check_surplus(FILES, config, 1, store, ROOT)
    assert recorded_processes(FILES, config) == 2, "the caller stores the new number"


async def test_a_bookie_that_is_gone_or_never_started_may_be_left_out(config: BookieConfig) -> None:
    record_processes(FILES, config, 3)
    _stamp(config, 1, "b-1")
    store = await _store()
    await check_surplus(FILES, config, 1, store, ROOT)
    assert recorded_processes(FILES, config) == 3
