"""The HTTP admin of a bookie in this process, over real sockets. Apache's answers are compared in tests/golden."""

import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import aiohttp
import pytest

from bookie.admin.ledger_pages import LEDGERS_PER_PAGE
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState, Segment, ledger_path
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.types import Buffer, MagnetarError
from tests.support.bookie_admin_world import Client, administered
from tests.support.lifecycle import drain
from tests.support.serving import BookieMachines
from tests.support.waiting import eventually


@pytest.fixture
def world() -> BookieMachines:
    return BookieMachines()


@pytest.fixture
async def admin(world: BookieMachines) -> AsyncIterator[Client]:
    async with administered(world) as client:
        yield client


async def new_ledger(world: BookieMachines, count: int, *, password: bytes = b"", close: bool = True) -> int:
    """A ledger with the entries `entry 0`, `entry 1`, …"""
    client = BookKeeper(world.store, world.clock)
    await client.open()
    try:
        handle = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1, password=password)
        for number in range(count):
            await handle.add(f"entry {number}".encode())
        if close:
            await handle.close()
        else:
            await handle.abandon()
        return handle.ledger_id
    finally:
        await client.close()


# -- before and after the start


async def test_a_bookie_that_starts_is_alive_and_not_ready(world: BookieMachines) -> None:
    async with administered(world, is_started=False) as admin:
        assert (await admin.call("GET", "/heartbeat")).text == "OK\n"
        assert (await admin.call("GET", "/metrics")).status == 200
        assert (await admin.call("GET", "/api/v1/bookie/is_ready")).status == 503
        state = await admin.call("GET", "/api/v1/bookie/state")
        assert (state.status, state.text) == (503, "the bookie is starting; it does not serve yet")
        admin.admin.serve(admin.bookie.operations)
        assert (await admin.call("GET", "/api/v1/bookie/is_ready")).text == "OK"
        assert (await admin.call("GET", "/api/v1/bookie/state")).json["running"]


async def test_a_bookie_that_failed_is_not_ready_and_says_why(admin: Client) -> None:
    admin.bookie.operations._lifecycle.failure = OSError("the disk is gone")
    found = await admin.call("GET", "/api/v1/bookie/is_ready")
    assert (found.status, found.text) == (503, "the disk is gone")
    assert not (await admin.call("GET", "/api/v1/bookie/state")).json["running"]


# -- ledgers


@pytest.mark.parametrize("password", [b"", b"secret"])
async def test_entries_are_read_whatever_the_password(world: BookieMachines, admin: Client, password: bytes) -> None:
    ledger_id = await new_ledger(world, 5, password=password)
    path = f"/api/v1/ledger/read?ledger_id={ledger_id}"
    assert (await admin.call("GET", path)).json == {str(number): f"entry {number}" for number in range(5)}
    assert (await admin.call("GET", path + "&start_entry_id=1&end_entry_id=2")).json == {"1": "entry 1", "2": "entry 2"}
    assert (await admin.call("GET", path + "&page=2")).json == {"Entries for page: ": "2"}
    assert (await admin.call("GET", path + "&start_entry_id=4&end_entry_id=3")).status == 500
    assert list((await admin.call("GET", path + "&start_entry_id=4&end_entry_id=9")).json) == ["4"]


async def test_reading_an_open_ledger_leaves_it_open(world: BookieMachines, admin: Client) -> None:
    ledger_id = await new_ledger(world, 3, close=False)
    # The last entry is not confirmed by another one yet.
    found = (await admin.call("GET", f"/api/v1/ledger/read?ledger_id={ledger_id}")).json
    assert list(found) in (["0", "1"], ["0", "1", "2"])
    assert (await LedgerStore(world.store).read(ledger_id)).metadata.state is LedgerState.OPEN


async def test_an_empty_ledger_has_no_entries(world: BookieMachines, admin: Client) -> None:
    ledger_id = await new_ledger(world, 0)
    assert (await admin.call("GET", f"/api/v1/ledger/read?ledger_id={ledger_id}")).json == {}


async def test_bytes_that_are_no_ascii_are_replaced(world: BookieMachines) -> None:
    class Entries:
        async def read(self, ledger_id: int, first: int, last: int | None) -> AsyncGenerator[tuple[int, Buffer], None]:
            yield 0, b"a\xff\x00"

    async with administered(world, ledgers=Entries()) as admin:
        found = await admin.call("GET", "/api/v1/ledger/read?ledger_id=1")
        assert found.json == {"0": "a�\x00"}
        assert found.headers["X-Content-Type-Options"] == "nosniff"


async def test_an_answer_that_cannot_be_finished_is_cut(world: BookieMachines) -> None:
    class Broken:
        async def read(self, ledger_id: int, first: int, last: int | None) -> AsyncGenerator[tuple[int, Buffer], None]:
            for entry_id in range(100):
                yield entry_id, bytes(10_000)
            raise MagnetarError("the other bookies are gone")

    async with administered(world, ledgers=Broken()) as admin:
        with pytest.raises(aiohttp.ClientError):
            await admin.call("GET", "/api/v1/ledger/read?ledger_id=1")
        assert (await admin.call("GET", "/heartbeat")).status == 200


async def test_records_are_listed_in_pages_and_a_damaged_one_is_no_end(world: BookieMachines, admin: Client) -> None:
    store = LedgerStore(world.store)
    metadata = LedgerMetadata(
        ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C, segments=(Segment(0, ("b",)),)
    )
    for ledger_id in range(LEDGERS_PER_PAGE + 5):
        if ledger_id != 3:
            await store.create_with_id(ledger_id, metadata)
    await world.store.put(ledger_path("/ledgers", 3), b"junk", NO_NODE)
    path = "/api/v1/ledger/list?print_metadata=true&decode_meta=true"
    first, second = [(await admin.call("GET", f"{path}&page={page}")).json for page in (1, 2)]
    assert list(first) == [str(ledger_id) for ledger_id in range(LEDGERS_PER_PAGE)]
    assert list(second) == [str(ledger_id) for ledger_id in range(LEDGERS_PER_PAGE, LEDGERS_PER_PAGE + 5)]
    assert "junk" in first["3"]["problem"]
    assert first["4"]["state"] == "OPEN"
    assert (await admin.call("GET", path)).json == first | second
    assert (await admin.call("GET", "/api/v1/ledger/list")).json == dict.fromkeys(first | second)


async def test_a_deleted_ledger_is_gone(world: BookieMachines, admin: Client) -> None:
    ledger_id = await new_ledger(world, 1)
    for _ in range(2):
        found = await admin.call("DELETE", f"/api/v1/ledger/delete?ledger_id={ledger_id}")
        assert found.json == f"Deleted ledger: {ledger_id}"
    assert (await admin.call("GET", f"/api/v1/ledger/metadata?ledger_id={ledger_id}")).status == 500


# -- mode, garbage


async def test_pages_of_other_sites_change_nothing(admin: Client) -> None:
    path, body = "/api/v1/bookie/state/readonly", {"readOnly": True}
    for origin in ("http://evil.example", "null"):
        refused = await admin.call("PUT", path, body, {"Origin": origin})
        assert (refused.status, origin in refused.text) == (403, True)
        assert (await admin.call("GET", path, headers={"Origin": origin})).json == {"readOnly": False}
    assert (await admin.call("PUT", path, body, {"Origin": admin.url})).json == {"readOnly": True}


async def test_an_answer_to_head_has_no_body(world: BookieMachines, admin: Client) -> None:
    """A client would take a body for the beginning of the next answer."""
    await new_ledger(world, 1)
    for _ in range(3):
        assert (await admin.call("HEAD", "/api/v1/ledger/list")).text == ""
    assert len((await admin.call("GET", "/api/v1/ledger/list")).json) == 1


async def test_a_reason_is_taken_back_alone(world: BookieMachines, admin: Client) -> None:
    path = "/api/v1/bookie/state/readonly"
    await admin.call("PUT", path, {"readOnly": True, "detail": "a new disk"})
    await drain(world.store, "bookie-1", "me", "an old disk")
    await eventually(lambda: len(admin.bookie.operations.state().reasons) == 2)
    status = (await admin.call("GET", "/api/v1/magnetar/status")).json
    assert status["state"]["reasons"] == {"operator": "a new disk", "draining": "me: an old disk"}
    assert (await admin.call("PUT", path, {"readOnly": False})).json == {"readOnly": True}
    refused = await admin.call("PUT", path, {"readOnly": False, "reason": "draining"})
    assert "`magnetar bookies cancel bookie-1` ends it" in refused.text
    assert (await admin.call("GET", path)).json == {"readOnly": True}


async def test_garbage_is_collected_on_demand(admin: Client) -> None:
    began_s = time.monotonic()
    await admin.call("PUT", "/api/v1/bookie/gc", {"forceMajor": False, "forceMinor": True})
    await admin.bookie.parts.collector.settled()
    details = (await admin.call("GET", "/api/v1/bookie/gc_details")).json
    assert [one["minorCompactionCounter"] for one in details] == [1]
    status = (await admin.call("GET", "/api/v1/magnetar/status")).json
    assert (status["gc"]["rounds"], status["gc"]["phase"]) == (1, "idle")
    assert 0 < admin.bookie.parts.collector.status().last_round_s < time.monotonic() - began_s


async def test_ledgers_in_doubt_are_told_and_given_up(world: BookieMachines, admin: Client) -> None:
    saved = world.store.saved()
    ledger_id = await new_ledger(world, 1)
    world.store.put_back(saved)
    path = "/api/v1/magnetar/ledger_doubts"
    await eventually(lambda: admin.bookie.parts.collector.status().doubt.ledgers == 1)
    found = (await admin.call("GET", path)).json
    assert (found["ledgers"], found["ranges"]) == (1, [f"{ledger_id}"])
    assert found["sinceMs"] > 0
    assert (await admin.call("GET", "/api/v1/magnetar/status")).json["gc"]["doubt"] == found
    assert (await admin.call("DELETE", path)).json == {"ledgers": 1}
    assert (await admin.call("GET", path)).json == {"sinceMs": None, "ledgers": 0, "ranges": []}


async def test_compaction_is_suspended_and_resumed_by_kind(admin: Client) -> None:
    path = "/api/v1/bookie/gc"
    for verb, kinds, major, minor in (
        ("suspend", {"suspendMajor": True}, "true", "false"),
        ("suspend", {"suspendMinor": True}, "true", "true"),
        ("resume", {"resumeMinor": True}, "true", "false"),
        ("suspend", {"suspendMinor": True}, "true", "true"),
        ("resume", {"resumeMajor": True}, "false", "true"),
        ("suspend", {"suspendMajor": True}, "true", "true"),
        ("resume", {"resumeMajor": True, "resumeMinor": True}, "false", "false"),
    ):
        assert (await admin.call("PUT", f"{path}/{verb}_compaction", kinds)).status == 200
        found = (await admin.call("GET", f"{path}/suspend_compaction")).json
        assert found == {"isMinorGcSuspended": minor, "isMajorGcSuspended": major}


async def test_the_scrub_says_how_far_it_is(world: BookieMachines, admin: Client) -> None:
    ledger_id = await new_ledger(world, 3)
    assert (await admin.call("GET", "/api/v1/magnetar/ledgers")).json == [ledger_id]
    assert (await admin.call("GET", f"/api/v1/magnetar/ledgers?first={ledger_id + 1}")).json == []
    assert (await admin.call("PUT", "/api/v1/magnetar/scrub")).status == 200
    while (found := (await admin.call("GET", "/api/v1/magnetar/scrub")).json)["running"]:
        pass
    assert (found["passes"], found["ledgersDone"], found["ledgers"], found["entriesLost"]) == (1, 1, 1, 0)


async def test_a_rebuild_of_the_index_says_how_far_it_is(world: BookieMachines, admin: Client) -> None:
    await new_ledger(world, 3)
    path = "/api/v1/magnetar/rebuild_index"
    assert (await admin.call("GET", path)).json["startedMs"] is None
    assert (await admin.call("POST", path)).status == 404
    assert (await admin.call("PUT", path)).json["running"]
    while (found := (await admin.call("GET", path)).json)["running"]:
        pass
    assert (found["rebuilds"], found["ledgersDone"], found["ledgers"], found["problemCount"]) == (1, 1, 1, 0)
    assert (await admin.call("GET", "/api/v1/magnetar/status")).json["indexRebuild"] == found
    assert "magnetar_bookie_index_rebuilds_total" in (await admin.call("GET", "/metrics")).text


# -- refusals


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", "bookie/state/readonly", None, 400),
        ("PUT", "bookie/state/readonly", {}, 400),
        ("PUT", "bookie/state/readonly", {"readOnly": "perhaps"}, 400),
        ("PUT", "bookie/state/readonly", {"readOnly": True, "reason": "disk"}, 400),
        ("PUT", "bookie/state/readonly", b"{", 500),
        ("PUT", "bookie/state/readonly", b" " * 100_000, 413),
        ("PUT", "bookie/gc/suspend_compaction", {"suspendMajor": False}, 400),
        ("PUT", "bookie/entry_location_compact", {"entryLocationRocksDBCompact": False}, 400),
        ("PUT", "bookie/entry_location_compact", {"entryLocationRocksDBCompact": True, "entryLocations": "/no"}, 400),
        ("GET", "bookie/list_disk_file?file_type=all", None, 400),
        ("GET", "bookie/list_bookies?type=wo", None, 400),
        ("GET", "ledger/metadata?ledger_id=x", None, 400),
        ("GET", "ledger/metadata?ledger_id=-1", None, 400),
        ("GET", f"ledger/metadata?ledger_id={2**63}", None, 400),
        ("GET", "ledger/list?print_metadata=true&page=0", None, 400),
        ("POST", "ledger/list", None, 404),
        ("PUT", "autorecovery/trigger_audit", None, 404),
        ("PUT", "autorecovery/status", None, 400),
        ("PUT", "autorecovery/status?enabled=maybe", None, 400),
        ("GET", "autorecovery/who_is_auditor", None, 404),
        ("GET", "autorecovery/list_under_replicated_ledger", None, 404),
        ("PUT", "autorecovery/lost_bookie_recovery_delay", {"delay_seconds": -1}, 400),
        ("PUT", "autorecovery/lost_bookie_recovery_delay", {"delay_seconds": True}, 400),
        ("PUT", "autorecovery/lost_bookie_recovery_delay", None, 404),
        ("PUT", "autorecovery/bookie", {"bookie_src": []}, 400),
        ("PUT", "autorecovery/bookie", {"bookie_src": ["no/bookie"]}, 400),
        ("PUT", "autorecovery/bookie", {"bookie_src": ["b"] * 101}, 400),
        ("PUT", "autorecovery/bookie", {"bookie_src": ["b"]}, 501),
        ("PUT", "autorecovery/decommission", {"bookie_src": 7}, 400),
    ],
)
async def test_what_is_wrong_is_refused_in_words(admin: Client, method: str, path: str, body: Any, status: int) -> None:
    found = await admin.call(method, f"/api/v1/{path}", body)
    assert found.status == status
    assert found.text
    assert not (await admin.call("GET", "/api/v1/bookie/state/readonly")).json["readOnly"]


async def test_nothing_changes_with_get_or_post(admin: Client) -> None:
    """A page can make a browser send such requests to another server without asking that server first."""
    for methods in admin.admin._table().values():
        assert set(methods) <= {"GET", "PUT", "DELETE"}


# -- metrics


async def test_numbers_have_apaches_names_and_ours(world: BookieMachines, admin: Client) -> None:
    await new_ledger(world, 4)
    text = (await admin.call("GET", "/metrics")).text
    lines = set(text.splitlines())
    assert 'bookkeeper_server_ADD_ENTRY_count{success="true"} 4.0' in lines
    assert "bookie_ledgers_count 1.0" in lines
    assert "bookie_SERVER_STATUS 1.0" in lines
    assert "bookie_ledger_writable_dirs 1.0" in lines
    assert 'magnetar_bookie_adds_total{bookie="bookie-1"} 4.0' in lines
    await admin.call("PUT", "/api/v1/bookie/state/readonly", {"readOnly": True})
    assert "bookie_SERVER_STATUS 0.0" in (await admin.call("GET", "/metrics")).text.splitlines()
    assert (await admin.call("POST", "/metrics")).status == 403


def test_a_bookie_without_http_does_not_load_its_library() -> None:
    program = (
        "import sys, magnetar.processes.bookies.bookie, magnetar.processes.servers; print('aiohttp' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
