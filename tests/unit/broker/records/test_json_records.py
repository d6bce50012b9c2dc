"""Records of one JSON object: nothing is lost when two write at once."""

from typing import Any

import pytest

from broker.records.json_records import ATTEMPTS_MAX, JsonRecords, NoRecord, RecordChanged, RecordExists, RecordInUse
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.types import Corruption
from tests.support.manual_clock import ManualClock


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(ManualClock())


@pytest.fixture
def records(store: MemoryStore) -> JsonRecords:
    return JsonRecords(store, "Thing")


async def test_a_record_is_made_once(store: MemoryStore, records: JsonRecords) -> None:
    with pytest.raises(NoRecord, match="Thing does not exist"):
        await records.get("/a")
    await records.create("/a", {"x": 1}, "there already")
    with pytest.raises(RecordExists, match="there already"):
        await records.create("/a", {"x": 2}, "there already")
    assert await records.get("/a") == {"x": 1}


async def test_a_parent_of_others_is_no_record(store: MemoryStore, records: JsonRecords) -> None:
    await records.create("/a/b", {}, "")
    assert await records.get("/a") == {}
    await records.create("/a", {"x": 1}, "")
    with pytest.raises(RecordInUse, match="Thing is not empty"):
        await records.delete("/a")


async def test_a_change_is_made_to_what_the_other_one_wrote(store: MemoryStore, records: JsonRecords) -> None:
    await records.create("/a", {"others": 1}, "")
    other = MemoryStore.put
    calls = 0

    def change(old: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        return {**old, "ours": old["others"]}

    async def put(path: str, value: bytes, version: int | None = None, **more: Any) -> int:
        if calls == 1:
            await other(store, path, b'{"others":2}')
        return await other(store, path, value, version, **more)

    store.put = put  # type: ignore[method-assign, assignment]
    await records.change("/a", change)
    assert await records.get("/a") == {"others": 2, "ours": 2}
    assert calls == 2


async def test_whoever_is_always_overtaken_is_told(store: MemoryStore, records: JsonRecords) -> None:
    await records.create("/a", {}, "")
    other, calls = MemoryStore.put, 0

    async def put(path: str, value: bytes, version: int | None = None, **more: Any) -> int:
        nonlocal calls
        calls += 1
        await other(store, path, b"{}")
        return await other(store, path, value, version, **more)

    store.put = put  # type: ignore[method-assign, assignment]
    with pytest.raises(RecordChanged):
        await records.change("/a", lambda old: old)
    assert calls == ATTEMPTS_MAX


@pytest.mark.parametrize("value", [b"?", b"[]", b"\xff", b"1"])
async def test_what_is_no_object_is_named(store: MemoryStore, records: JsonRecords, value: bytes) -> None:
    await store.put("/a", value)
    with pytest.raises(Corruption, match="/a does not hold"):
        await records.get("/a")


async def test_what_is_not_there_is_not_changed_or_deleted(records: JsonRecords) -> None:
    with pytest.raises(NoRecord):
        await records.change("/a", lambda old: old)
    with pytest.raises(NoRecord):
        await records.delete("/a")
