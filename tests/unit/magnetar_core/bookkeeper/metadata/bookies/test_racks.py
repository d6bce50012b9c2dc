"""The node `/bookies`: as Pulsar's tools write it, as it is read, watched and changed."""

import pytest

from magnetar_core.bookkeeper.metadata.bookies.rack_records import decode_racks, encode_racks, normal_rack, racks_of
from magnetar_core.bookkeeper.metadata.bookies.racks import RackDirectory, RackRecords, racks_path
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.types import Corruption
from tests.support.manual_clock import ManualClock
from tests.support.waiting import settle

WRITTEN = b'{"default":{"10.0.0.1:3181":{"rack":"/rack-1","hostname":"node-1"},"b2":{"rack":"rack-2/"}},"other":{}}'


def test_a_node_is_read_and_written_again() -> None:
    record = decode_racks(WRITTEN)
    assert record.racks == {"10.0.0.1:3181": "/rack-1", "b2": "/rack-2"}
    assert decode_racks(encode_racks(record.groups)) == record
    assert decode_racks(b"") == decode_racks(b"{}")


@pytest.mark.parametrize("value", [b"[]", b"no", b"\xff\xfe", b"{", b'"text"', b"[" * 5000])
def test_what_is_no_record_is_corruption(value: bytes) -> None:
    with pytest.raises(Corruption, match="racks of the bookies"):
        decode_racks(value)


def test_an_entry_that_makes_no_sense_does_not_hide_the_others() -> None:
    record = decode_racks(b'{"g":{"a":{"rack":"/r"},"b":{"rack":7},"c":null},"h":[]}')
    assert record.racks == {"a": "/r"}
    assert len(record.problems) == 3


@pytest.mark.parametrize(
    ("told", "rack"),
    [("/r", "/r"), ("r", "/r"), ("/r/", "/r"), (" /a/b ", "/a/b"), ("/", None), ("", None), (None, None)],
)
def test_names_of_racks(told: str | None, rack: str | None) -> None:
    assert normal_rack(told) == rack


def test_a_bookie_is_in_the_rack_of_its_machine() -> None:
    hosts = {"10.0.0.1:3181": "10.0.0.1", "10.0.0.1:3182": "10.0.0.1", "named": "10.0.0.1", "far": "10.0.0.9"}
    racks = {"10.0.0.1:3181": "/one"}
    assert racks_of(racks, hosts) == {"10.0.0.1:3181": "/one", "10.0.0.1:3182": "/one", "named": "/one"}
    racks["10.0.0.1:3182"] = "/two"
    assert racks_of(racks, hosts) == racks, "two racks on one machine: nobody can say where a third one is"


def test_the_node_is_beside_the_ledgers() -> None:
    assert racks_path("/ledgers") == "/bookies"
    assert racks_path("/pulsar/ledgers") == "/pulsar/bookies"


async def test_the_directory_follows_the_node_and_keeps_what_it_knows_of_a_damaged_one() -> None:
    store = MemoryStore(ManualClock(), session_timeout_s=10.0)
    racks = RackDirectory(store.session(), ManualClock())
    await racks.start()
    assert not racks.racks
    await store.put("/bookies", WRITTEN)
    await settle()
    assert racks.racks == {"10.0.0.1:3181": "/rack-1", "b2": "/rack-2"}
    before = racks.racks
    await store.put("/bookies", b"damaged")
    await settle()
    assert racks.racks is before
    assert "racks of the bookies" in racks.problems[0]
    await store.delete("/bookies")
    await settle()
    assert not racks.racks
    assert racks.problems == ()
    await racks.stop()


async def test_changes_move_a_bookie_between_groups_and_remove_empty_ones() -> None:
    store = MemoryStore(ManualClock(), session_timeout_s=10.0)
    records = RackRecords(store)
    assert await records.read() is None
    assert not await records.remove("a")
    await records.put("one", "a", {"rack": "/r", "hostname": "h"})
    await records.put("one", "b", {"rack": "/r"})
    await records.put("two", "a", {"rack": "/s"})
    assert await records.read() == {"one": {"b": {"rack": "/r"}}, "two": {"a": {"rack": "/s"}}}
    assert await records.remove("a")
    assert await records.read() == {"one": {"b": {"rack": "/r"}}}
    assert not await records.remove("a")


async def test_two_writers_lose_nothing_of_each_other() -> None:
    store = MemoryStore(ManualClock(), session_timeout_s=10.0)
    first, second = RackRecords(store.session()), RackRecords(store.session())
    for number in range(5):
        await first.put("g", f"a{number}", {"rack": "/r"})
        await second.put("g", f"b{number}", {"rack": "/r"})
    found = await first.read()
    assert found is not None
    assert len(found["g"]) == 10


async def test_a_node_that_would_lose_something_is_not_written() -> None:
    store = MemoryStore(ManualClock(), session_timeout_s=10.0)
    await store.put("/bookies", b'{"g":{"a":{"rack":7}}}')
    with pytest.raises(Corruption, match="correct the node"):
        await RackRecords(store).put("g", "b", {"rack": "/r"})
