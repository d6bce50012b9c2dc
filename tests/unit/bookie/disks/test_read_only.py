"""When and for which reasons a bookie is read-only, and which reasons survive a restart."""

import asyncio
import errno
import tarfile

import pytest

from bookie.admin.operations import DiskFileKind
from bookie.bookie import Bookie
from bookie.disks.mode import DiskFull, NotChanged
from bookie.disks.read_only import (
    DiskCheck,
    DiskLimits,
    DiskState,
    Reason,
    Status,
    check_disk,
    decode_status,
    encode_status,
    judge,
)
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, cookie_path, state_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, State
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.runtime.files import DiskUsage, read_file
from magnetar_core.runtime.types import GIB, Corruption
from tests.support import bookie_requests
from tests.support.bookie_disks import CODEC, KEY, on_each_operation, stored_entry
from tests.support.bookie_vectors import VECTORS
from tests.support.bookie_world import LyingWorld
from tests.support.lifecycle import cancel, drain
from tests.support.serving import HurriedClock, Wire
from tests.support.waiting import eventually

RECOVERY, HIGH = v2.FLAG_RECOVERY_ADD, v2.FLAG_HIGH_PRIORITY
EREADONLY = 105
LIMITS = DiskLimits(full_share=0.95, warn_share=0.90, room_share=0.85, full_bytes=10)
STATUS = "/bookie/ledgers/current/BOOKIE_STATUS"


@pytest.fixture
def world() -> LyingWorld:
    return LyingWorld(HurriedClock())


async def registered(world: LyingWorld) -> tuple[set[str], set[str]]:
    writable = set(await world.store.children("/ledgers/available")) - {"readonly"}
    return writable, set(await world.store.children("/ledgers/available/readonly"))


# -- disks, judged without any


@pytest.mark.parametrize(
    ("free", "was_full", "state"),
    [
        (500, False, DiskState.GOOD),
        (99, False, DiskState.WARN),
        (51, False, DiskState.WARN),
        (49, False, DiskState.FULL),
        (149, True, DiskState.FULL),
        (151, True, DiskState.GOOD),
        (0, False, DiskState.FULL),
    ],
)
def test_a_disk_is_full_above_one_mark_and_has_room_below_a_lower_one(
    free: int, was_full: bool, state: DiskState
) -> None:
    assert check_disk("/d", 1000, free, was_full, LIMITS).state is state


def test_a_disk_with_too_few_free_bytes_is_full_whatever_its_share() -> None:
    limits = LIMITS._replace(full_bytes=200)
    check = check_disk("/d", 1000, 199, False, limits)
    assert check.state is DiskState.FULL
    assert check.text == "/d: 80.1% of the disk is used, 199 bytes are free (200 are needed)"


def test_a_disk_without_any_size_is_full() -> None:
    assert check_disk("/d", 0, 0, False, LIMITS).state is DiskState.FULL


def checks(states: str) -> list[DiskCheck]:
    meaning = {"g": DiskState.GOOD, "f": DiskState.FULL, "u": DiskState.UNREADABLE, "w": DiskState.WARN}
    return [DiskCheck(f"/{n}", meaning[c], 100 * n, 1000, f"/{n} is {c}") for n, c in enumerate(states, 1)]


@pytest.mark.parametrize(
    ("ledgers", "journals", "on_any", "disk", "error", "some"),
    [
        ("gg", "g", True, None, None, None),
        ("gf", "g", True, "/2 is f", None, None),
        ("gf", "g", False, None, None, frozenset({1})),
        ("ff", "g", False, "/1 is f; /2 is f", None, None),
        ("gw", "f", False, "/1 is f", None, None),
        ("gu", "g", False, None, "/2 is u", None),
    ],
)
def test_what_full_directories_mean_together(
    ledgers: str, journals: str, on_any: bool, disk: str | None, error: str | None, some: frozenset[int] | None
) -> None:
    verdict = judge(checks(ledgers), checks(journals), on_any)
    assert (verdict.disk, verdict.error, verdict.full_ledger_directories) == (disk, error, some)
    assert verdict.free_bytes == 100


# -- the status file


def test_the_status_file_of_an_apache_bookie_is_read_as_an_operators() -> None:
    with tarfile.open(VECTORS / "disk" / "db-journal6-align512-readonly" / "bookie.tar.gz") as archive:
        member = archive.extractfile("ledgers/current/BOOKIE_STATUS")
        assert member is not None
        data = member.read()
    assert decode_status(data, "f") == Status(1795242522795, {Reason.OPERATOR: "BOOKIE_STATUS says so"})


def test_the_first_line_of_a_status_file_is_apaches() -> None:
    kept = {Reason.DRAINING: "replaced by b4", Reason.OPERATOR: ""}
    data = encode_status(kept, 1795242522795)
    assert data.split(b"\n")[0] == b"1,READ_ONLY,1795242522795"
    assert decode_status(data, "f") == Status(1795242522795, kept)
    assert encode_status({}, 5) == b"1,READ_WRITE,5\n"
    assert decode_status(b"1,READ_WRITE,5\n", "f") == Status(5, {})


def test_newer_status_files_say_who_did_it() -> None:
    assert decode_status(b"1,READ_ONLY,5,false\n", "f").kept == {}
    assert list(decode_status(b"1,READ_ONLY,5,true\n", "f").kept) == [Reason.OPERATOR]


@pytest.mark.parametrize("data", [b"", b"\n", b"2,READ_ONLY,5\n", b"1,CLOSED,5\n", b"1,READ_ONLY\n", b"\xff\xfe"])
def test_a_damaged_status_file_is_named(data: bytes) -> None:
    with pytest.raises(Corruption, match=r"/d/BOOKIE_STATUS.*remove the file"):
        decode_status(data, "/d/BOOKIE_STATUS")


# -- a whole bookie


async def test_reasons_hold_side_by_side_and_each_goes_by_its_own_cause(world: LyingWorld) -> None:
    async with world.serving(disk_check_interval_ms=1000) as bookie:
        wire, operations = await Wire.connect(bookie), bookie.operations
        assert await wire.add(stored_entry(1, 0)) == 0
        await drain(world.store, "bookie-1", "me", "replaced by b4")
        await eventually(lambda: bookie.operations.state().reasons == {Reason.DRAINING: "me: replaced by b4"})
        assert await wire.add(stored_entry(1, 1)) == EREADONLY
        world.usage_of = lambda directory: DiskUsage(100 * GIB, GIB)
        await eventually(lambda: set(bookie.operations.state().reasons) == {Reason.DRAINING, Reason.DISK})
        with pytest.raises(NotChanged, match="`magnetar bookies cancel bookie-1` ends it"):
            await operations.parts.mode.clear(Reason.DRAINING)
        await cancel(world.store, "bookie-1")
        await eventually(lambda: set(bookie.operations.state().reasons) == {Reason.DISK})
        assert bookie.is_read_only
        assert await wire.add(stored_entry(1, 1)) == EREADONLY
        assert await registered(world) == (set(), {"bookie-1"})
        world.usage_of = lambda directory: DiskUsage(100 * GIB, 50 * GIB)
        await eventually(lambda: not bookie.is_read_only)
        assert await wire.add(stored_entry(1, 1)) == 0
        async with asyncio.timeout(30):
            while await registered(world) != ({"bookie-1"}, set()):
                await asyncio.sleep(0.005)


async def test_a_bookie_serves_what_it_has_from_a_file_system_that_is_read_only(world: LyingWorld) -> None:
    """As the system makes it after an error of the disk: nothing is written, and the bookie neither ends nor lies."""
    async with world.serving(write_cache_mib=1, disk_check_interval_ms=1000) as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 0)) == 0

        def refuse(what: str, path: str) -> None:
            raise OSError(errno.EROFS, "Read-only file system", path)

        heal = on_each_operation(world.files, refuse)
        assert await wire.add(stored_entry(1, 1)) == EREADONLY
        world.usage_of = lambda directory: DiskUsage(100 * GIB, 50 * GIB, is_read_only=True)
        bookie.checkpointer.flush()
        await eventually(lambda: bookie.checkpointer.flush_failures)
        await eventually(lambda: set(bookie.operations.state().reasons) == {Reason.ERROR})
        text = bookie.operations.state().reasons[Reason.ERROR]
        assert "/bookie/ledgers/current: its file system is read-only; mount it anew" in text
        assert await wire.read(1, 0) == stored_entry(1, 0)
        assert world.failures == []
        heal()
        world.usage_of = lambda directory: DiskUsage(100 * GIB, 50 * GIB)
        await eventually(lambda: not bookie.is_read_only)
        assert await wire.add(stored_entry(1, 1)) == 0
        await eventually(lambda: bookie.server.write_cache.is_empty)
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert [await wire.read(1, entry_id) for entry_id in (0, 1)] == [stored_entry(1, 0), stored_entry(1, 1)]


async def test_an_operators_reason_survives_restarts_and_a_disks_does_not(world: LyingWorld) -> None:
    world.usage_of = lambda directory: DiskUsage(100 * GIB, GIB)
    async with world.serving() as bookie:
        assert set(bookie.operations.state().reasons) == {Reason.DISK}
        await bookie.parts.mode.set(Reason.OPERATOR, "the rack  moves\ntoday")
    world.usage_of = lambda directory: DiskUsage(100 * GIB, 50 * GIB)
    async with world.serving() as bookie:
        assert bookie.operations.state().reasons == {Reason.OPERATOR: "the rack moves today"}
        assert await registered(world) == (set(), {"bookie-1"})
        await bookie.parts.mode.clear(Reason.OPERATOR)
    async with world.serving() as bookie:
        assert not bookie.is_read_only
        assert read_file(world.files, STATUS).startswith(b"1,READ_WRITE,")


async def test_a_bookie_that_is_drained_is_read_only_from_its_first_registration_on(world: LyingWorld) -> None:
    async with world.serving():
        pass
    await drain(world.store, "bookie-1")
    seen: list[set[str]] = []
    watcher = world.store.session()

    async def look() -> None:
        seen.append(set(await watcher.children("/ledgers/available")) - {"readonly"})

    async with asyncio.TaskGroup() as looks:

        def on_change() -> None:
            looks.create_task(look())

        watcher.watch_children("/ledgers/available", on_change)
        async with world.serving() as bookie:
            assert bookie.operations.state().reasons == {Reason.DRAINING: "me"}
            assert await registered(world) == (set(), {"bookie-1"})
            assert await (await Wire.connect(bookie)).add(stored_entry(1, 0)) == EREADONLY
            assert not any(seen), "it was registered as writable"
            await cancel(world.store, "bookie-1")
            await eventually(lambda: not bookie.is_read_only)
        await watcher.close()
    async with world.serving() as bookie:
        assert not bookie.is_read_only


async def test_a_state_that_cannot_be_read_leaves_the_bookie_as_it_is(
    world: LyingWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """I60"""
    async with world.serving() as bookie:
        await drain(world.store, "bookie-1")
        await eventually(lambda: bookie.is_read_only)
        await world.store.put(state_path("/ledgers", "bookie-1"), b"{}")
        await eventually(lambda: "bookie bookie-1 stays read-only" in caplog.text)
    async with world.serving() as bookie:
        assert bookie.operations.state().reasons == {Reason.DRAINING: "me"}
        await world.store.delete(state_path("/ledgers", "bookie-1"))
        await eventually(lambda: not bookie.is_read_only)


@pytest.mark.parametrize("is_drained", [True, False])
async def test_a_bookie_that_was_removed_while_it_runs_takes_no_entries(
    world: LyingWorld, is_drained: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a cookie it could not start again. One that was cut off has not seen that it was drained before."""
    monkeypatch.setattr("bookie.disks.draining.LOOK_S", 2.0)
    async with world.serving() as bookie:
        states = BookieStates(world.store)
        if is_drained:
            await drain(world.store, "bookie-1")
            await eventually(lambda: bookie.is_read_only)
            await states.move("bookie-1", State.DRAINED, Actor.AUDITOR, "auditor", "", 3)
            await states.remove("bookie-1", await states.read("bookie-1"), "me", 4)
        else:
            await world.store.delete(cookie_path("/ledgers", "bookie-1"))
        await eventually(
            lambda: "removed from the cluster" in bookie.operations.state().reasons.get(Reason.DRAINING, "")
        )
        assert "bookie bookie-1 was removed from the cluster" in caplog.text

        async def is_shown() -> bool:
            return await registered(world) == (set(), {"bookie-1"})

        await eventually(is_shown)
        await asyncio.sleep(0.1)
        assert bookie.is_read_only


async def test_nothing_is_kept_where_that_is_switched_off(world: LyingWorld) -> None:
    async with world.serving(persist_status=False) as bookie:
        await bookie.parts.mode.set(Reason.OPERATOR)
        assert bookie.is_read_only
    async with world.serving(persist_status=False) as bookie:
        assert not bookie.is_read_only


async def test_a_reason_that_cannot_be_kept_is_said_to_be_so(world: LyingWorld) -> None:
    async with world.serving() as bookie:

        def fail(kind: str, path: str) -> None:
            if "BOOKIE_STATUS" in path:
                raise OSError(errno.EROFS, "read-only file system", path)

        stop = on_each_operation(world.files, fail)
        with pytest.raises(NotChanged, match="read-only now, but a restart will forget it"):
            await bookie.parts.mode.set(Reason.OPERATOR)
        assert bookie.is_read_only
        stop()


async def test_what_ends_by_itself_cannot_be_set_by_hand(world: LyingWorld) -> None:
    async with world.serving(force_read_only=True) as bookie:
        for reason, text in ((Reason.DISK, "ends by itself"), (Reason.FORCED, "forceReadOnlyBookie")):
            with pytest.raises(NotChanged, match=text):
                await bookie.parts.mode.clear(reason)


async def test_recovery_writes_to_a_full_bookie_while_the_reserve_lasts(world: LyingWorld) -> None:
    async with world.serving(disk_check_interval_ms=1000, min_usable_bytes_high_priority=GIB) as bookie:
        wire = await Wire.connect(bookie)
        world.usage_of = lambda directory: DiskUsage(100 * GIB, 2 * GIB)
        await eventually(lambda: bookie.is_read_only)
        assert await wire.add(stored_entry(1, 0), RECOVERY | HIGH) == 0
        assert await wire.add(stored_entry(1, 1), RECOVERY) == EREADONLY  # re-replication looks for other bookies
        blob = CODEC.explicit_lac(1, 0)
        answer = await (await Wire.connect(bookie)).ask_v3(bookie_requests.write_lac_request(1, 1, 0, KEY, blob))
        assert int(answer.status) == v3.V3Error.EREADONLY
        world.usage_of = lambda directory: DiskUsage(100 * GIB, GIB // 2)
        await eventually(lambda: not bookie.operations.state().available_for_high_priority_writes)
        assert await wire.add(stored_entry(1, 1), RECOVERY | HIGH) == EREADONLY


async def test_one_full_directory_of_several_refuses_only_its_ledgers_if_told_so(world: LyingWorld) -> None:
    world.usage_of = lambda directory: DiskUsage(100 * GIB, GIB if "/l1/" in directory else 50 * GIB)
    directories = ("/bookie/l0", "/bookie/l1")
    async with world.serving(ledger_directories=directories, read_only_on_any_full=False) as bookie:
        wire = await Wire.connect(bookie)
        assert [await wire.add(stored_entry(ledger_id, 0)) for ledger_id in range(4)] == [0, EREADONLY, 0, EREADONLY]
        assert await registered(world) == ({"bookie-1"}, set())
    async with world.serving(ledger_directories=directories) as bookie:
        assert await (await Wire.connect(bookie)).add(stored_entry(2, 1)) == EREADONLY
        assert await registered(world) == (set(), {"bookie-1"})


async def test_a_full_disk_ends_a_bookie_that_may_not_be_read_only(world: LyingWorld) -> None:
    async with world.serving(read_only_mode=False, disk_check_interval_ms=1000) as bookie:
        world.usage_of = lambda directory: DiskUsage(100 * GIB, GIB)
        await eventually(lambda: bookie.failure is not None)
        assert isinstance(bookie.failure, DiskFull)
        assert not bookie.operations.state().running


async def test_a_disk_that_cannot_be_looked_at_is_an_error_until_it_can(world: LyingWorld) -> None:
    def gone(directory: str) -> DiskUsage:
        raise OSError(errno.EIO, "input/output error")

    good = world.usage_of
    async with world.serving(disk_check_interval_ms=1000) as bookie:
        world.usage_of = gone
        await eventually(lambda: bookie.is_read_only)
        (text,) = bookie.operations.state().reasons.values()
        assert "/bookie/ledgers/current cannot be looked at: input/output error" in text
        assert await (await Wire.connect(bookie)).add(stored_entry(1, 0), RECOVERY | HIGH) == EREADONLY
        world.usage_of = good
        await eventually(lambda: not bookie.is_read_only)


# -- what operators see


async def test_operators_see_files_marks_ledgers_and_numbers(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        wire, operations = await Wire.connect(bookie), bookie.operations
        for ledger_id in (3, 1, 2):
            assert await wire.add(stored_entry(ledger_id, 0)) == 0
        assert operations.is_ready
        assert operations.list_ledgers() == [1, 2, 3]
        assert operations.list_ledgers(2, 1) == [2]
        operations.parts.checkpointer.flush()
        await eventually(lambda: bookie.server.write_cache.is_empty)
        (mark,) = operations.last_log_marks()
        journals = await operations.list_disk_files(DiskFileKind.JOURNAL)
        assert journals == {"/bookie/storage/journal/current": [mark.file_name]}
        assert mark.offset > 512
        logs = await operations.list_disk_files(DiskFileKind.ENTRY_LOG)
        assert logs == {"/bookie/ledgers/current": ["0.log"]}
        info = operations.info()
        assert (info.total_bytes, info.free_bytes, info.ledgers) == (100 * GIB, 80 * GIB, 3)
        samples = {(sample.name, sample.labels[1:]): sample.value for sample in operations.metrics()}
        assert samples["magnetar_bookie_adds_total", ()] == 3
        assert samples["magnetar_bookie_read_only_reason", (("reason", "disk"),)] == 0
        assert samples["magnetar_bookie_disk_free_bytes", (("directory", "/bookie/ledgers/current"),)] == 80 * GIB
    assert operations.state().shutting_down


async def test_sanity_writes_everywhere_and_asks_over_the_socket(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        assert await bookie.operations.sanity() == (outcome := await bookie.operations.sanity())
        assert (outcome.passed, outcome.read_only, outcome.problems) == (True, False, ())

        def fail(kind: str, path: str) -> None:
            if path.endswith("journal/current/sanity.tmp") and kind == "sync":
                raise OSError(errno.EIO, "broken", path)

        stop = on_each_operation(world.files, fail)
        outcome = await bookie.operations.sanity()
        assert not outcome.passed
        assert "/bookie/storage/journal/current" in outcome.problems[0]
        stop()
    assert not world.files.exists("/bookie/storage/journal/current/sanity.tmp")


def test_a_bookie_that_was_not_started_has_no_operations(world: LyingWorld) -> None:
    bookie: Bookie = world.bookie()
    with pytest.raises(AssertionError, match="not started"):
        _ = bookie.operations
