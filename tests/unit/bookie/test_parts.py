"""Unit tests of caches, ledgers, entry logs, cookies and settings."""

import errno

import pytest

from bookie.config import IGNORED_SETTINGS, BookieConfig
from bookie.disks.cookie import Cookie, CookieMismatch, decode, is_new_bookie
from bookie.storage.entry_log import format as log_format
from bookie.storage.entry_log.files import EntryLogs, list_logs
from bookie.storage.ledgers import Ledger, Ledgers, explicit_lac_of
from bookie.storage.ledgers import decode as decode_ledger
from bookie.storage.read_cache import ReadCache
from bookie.storage.write_cache import ENTRY_OVERHEAD_BYTES, LET_GO_MAX, WriteCache, let_go, pieces_in_order
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.runtime.config import load
from magnetar_core.runtime.types import ConfigurationError, Corruption
from tests.support.bookie_disks import CODEC, KEY, stored_entry


def test_a_flushing_half_is_read_until_it_is_flushed() -> None:
    cache = WriteCache(1000)
    cache.put(1, 0, b"old")
    half = cache.swap()
    cache.put(1, 0, b"new")
    cache.put(1, 1, b"x")
    assert half == {1: {0: b"old"}}
    assert (cache.get(1, 0), cache.get(1, 1), cache.entry_ids(1)) == (b"new", b"x", {0, 1})
    assert cache.swap() is half, "a half that is not flushed yet is given again"
    cache.flushed()
    assert cache.swap() == {1: {0: b"new", 1: b"x"}}
    assert cache.get(1, 0) == b"new"
    cache.flushed()
    assert cache.get(1, 0) is None
    assert cache.is_empty


def test_the_cache_is_full_when_one_half_is_and_the_other_is_not_free() -> None:
    cache = WriteCache(2 * (ENTRY_OVERHEAD_BYTES + 50))
    states = [(cache.wants_flush, cache.is_full)]
    for step in (
        lambda: cache.put(1, 0, bytes(50)),
        cache.swap,
        lambda: cache.put(1, 1, bytes(50)),
        cache.flushed,
    ):
        step()
        states.append((cache.wants_flush, cache.is_full))
    assert states == [(False, False), (True, False), (False, False), (True, True), (True, False)]


def test_entries_are_flushed_by_ledger_and_entry() -> None:
    cache = WriteCache(1000)
    for key in ((3, 1), (1, 10), (3, 0), (1, 9)):
        cache.put(*key, b"")
    whole = [(1, 9, b""), (1, 10, b""), (3, 0, b""), (3, 1, b"")]
    assert list(pieces_in_order(cache.swap(), 1000, 1000)) == [whole]
    assert list(pieces_in_order(cache.swap(), 1000, 3)) == [whole[:3], whole[3:]]
    assert list(pieces_in_order({}, 1000, 3)) == []


@pytest.mark.parametrize(("bytes_max", "sizes"), [(20, [2, 2, 1]), (21, [3, 2]), (1, [1, 1, 1, 1, 1])])
def test_a_piece_of_a_flush_ends_with_the_entry_that_fills_it(bytes_max: int, sizes: list[int]) -> None:
    cache = WriteCache(1000)
    for number in range(5):
        cache.put(number % 2, number, bytes(10))
    assert [len(piece) for piece in pieces_in_order(cache.swap(), bytes_max, 1000)] == sizes


@pytest.mark.parametrize(("ledgers", "entries", "rests"), [(1, 2 * LET_GO_MAX, 2), (2 * LET_GO_MAX, 1, 2), (3, 100, 0)])
def test_a_flushed_half_is_given_back_in_steps(ledgers: int, entries: int, rests: int) -> None:
    cache = WriteCache(1000)
    for ledger_id in range(ledgers):
        cache.put_run(ledger_id, range(entries), [b"x"] * entries)
    half = cache.swap()
    cache.put(0, 0, b"later")
    assert cache.flushed() is half
    left = []
    let_go(half, lambda: left.append(sum(map(len, half.values()))))
    assert (len(left), half) == (rests, {})
    assert cache.get(0, 0) == b"later"


def test_the_read_cache_lets_the_oldest_go() -> None:
    cache = ReadCache(3 * (ENTRY_OVERHEAD_BYTES + 10))
    cache.put_run(1, [(n, bytes(10)) for n in range(5)])
    assert [cache.get(1, n) is not None for n in range(5)] == [False, False, True, True, True]
    cache.put_run(1, [(3, b"0123456789")])
    cache.discard(1, 4)
    assert (len(cache), cache.get(1, 3), cache.get(1, 4)) == (2, b"0123456789", None)
    cache.discard(1, 2)
    cache.discard(1, 3)
    assert cache.bytes == 0
    ReadCache(0).put_run(1, [(0, b"x")])


def test_of_many_entries_the_read_cache_lets_some_go_together() -> None:
    """The first key of a dict is looked for past all that were removed."""
    cache = ReadCache(1_000 * ENTRY_OVERHEAD_BYTES)
    cache.put_run(1, [(n, b"") for n in range(1_000)])
    assert len(cache) == 1_000
    cache.put_run(1, [(1_000, b"")])
    assert (len(cache), cache.get(1, 10), cache.get(1, 11)) == (990, None, b"")
    assert cache.bytes == 990 * ENTRY_OVERHEAD_BYTES


def test_what_the_read_cache_gave_is_counted_and_what_it_has_not_is_not() -> None:
    cache = ReadCache(1 << 20)
    cache.put_run(1, [(0, b"x"), (1, b"")])
    assert [cache.get(1, entry_id) for entry_id in (0, 1, 2, 0)] == [b"x", b"", None, b"x"]
    assert cache.hits == 3


def test_lacs_only_grow_and_wake_those_who_wait() -> None:
    ledger = Ledger(1, KEY)
    heard: list[int] = []
    ledger.wait(heard.append)
    ledger.see_lac(-1)
    assert heard == []
    ledger.see_explicit_lac(CODEC.explicit_lac(1, 5))
    ledger.see_explicit_lac(CODEC.explicit_lac(1, 3))
    assert (heard, ledger.last_add_confirmed, explicit_lac_of(ledger.explicit_lac)) == ([5], 5, 5)
    ledger.wait(heard.append)
    ledger.wake(5)
    ledger.stop_waiting(heard.append)
    assert heard == [5, 5]


def test_ledger_rows_are_golden() -> None:
    row = bytes.fromhex("080110011a14211fee83876df6969c2c2302091b84de9fdb2952")
    ledger = decode_ledger(3, row)
    assert (ledger.fenced, ledger.is_fence_durable, ledger.is_tail_known) == (True, True, False)
    assert ledger.encode() == row
    with pytest.raises(Corruption, match="ledger 3"):
        decode_ledger(3, b"\xff\xff")


def test_rows_that_were_not_written_are_taken_again() -> None:
    ledgers = Ledgers()
    ledgers.create(2, KEY)
    ledgers.create(1, KEY)
    rows = ledgers.take_dirty()
    assert [row[0] for row in rows] == [1, 2]
    assert not ledgers.is_dirty
    ledgers.not_written(rows)
    assert ledgers.take_dirty() == rows


def test_a_full_entry_log_is_sealed_with_its_map() -> None:
    files = MemoryFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 4096)
    entries = [(1 + n % 2, n, stored_entry(1 + n % 2, n, b"x" * 500)) for n in range(12)]
    located = logs.append(entries)
    logs.sync()
    for (ledger_id, entry_id, entry), (_, _, location) in zip(entries, located, strict=True):
        assert logs.read(location, ledger_id, entry_id) == entry
    assert files.list("/l") == ["0.log", "1.log", "2.log", "lastId"]
    assert files.open("/l/lastId").read_at(0, 9) == b"2\n"
    for log_id in (0, 1):
        made: dict[int, int] = {}
        for _, size, ledger_id, _ in logs.scan(log_id):
            made[ledger_id] = made.get(ledger_id, 0) + 4 + size
        assert logs.ledgers_map(log_id) == made
    with pytest.raises(Corruption, match=r"2.log: not sealed"):
        logs.ledgers_map(2)
    again = EntryLogs(files, "/l", 4096)
    assert again.append([entries[0]])[0][2] >> 32 == 3, "an old log gets no new entries"


def test_a_log_that_is_read_while_it_is_removed_is_not_kept_open() -> None:
    """Its disk space would not be free before the bookie ends."""
    files = MemoryFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 4096)
    ((_, _, location),) = logs.append([(1, 0, stored_entry(1, 0))])
    logs.close()

    def read(kind: str, path: str) -> None:
        if path == "/l/0.log":
            assert logs.read(location, 1, 0) == stored_entry(1, 0)

    files.on_operation.append(read)
    opened = logs.remove(0)
    assert opened is not None, "the caller closes it"
    with pytest.raises(FileNotFoundError):
        logs.read(location, 1, 0)


def test_a_log_that_is_ended_gets_its_map_and_no_further_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    files = MemoryFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 1 << 20)
    logs.end_log()
    assert list_logs(files, "/l") == [], "there is none to end"
    (first,) = logs.append([(1, 0, stored_entry(1, 0))])
    logs.sync()
    logs.end_log()
    assert list(logs.ledgers_map(0)) == [1]
    assert logs.current_log_id is None
    (second,) = logs.append([(1, 1, stored_entry(1, 1))])
    assert (first[2] >> 32, second[2] >> 32) == (0, 1)

    def full(_: EntryLogs) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(EntryLogs, "_seal", full)
    logs.end_log()
    assert logs.current_log_id is None
    monkeypatch.undo()
    (third,) = logs.append([(1, 2, stored_entry(1, 2))])
    assert third[2] >> 32 == 2
    assert logs.read_run(1, [(1, second[2])], 10_000)[0][1] == stored_entry(1, 1)


def test_runs_are_read_in_one_go_and_end_at_a_log() -> None:
    files = MemoryFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 8192)
    entries = [(1, n, stored_entry(1, n, bytes(n * 30))) for n in range(40)]
    wanted = [(entry_id, location) for _, entry_id, location in logs.append(entries)]
    got: list[tuple[int, bytes]] = []
    while len(got) < 40:
        part = logs.read_run(1, wanted[len(got) :], 1 << 20)
        assert part
        got += part
    assert got == [(entry_id, entry) for _, entry_id, entry in entries]
    assert len(logs.read_run(1, wanted, 1)) == 1
    with pytest.raises(Corruption, match="expected ledger 2 entry 0, found"):
        logs.read_run(2, wanted, 1 << 20)
    with pytest.raises(Corruption, match="ends before it"):
        logs.read(log_format.location(0, 1 << 20), 1, 0)


def test_a_run_ends_before_a_location_that_leads_to_another_entry() -> None:
    files = MemoryFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 8192)
    located = logs.append([(1, n, stored_entry(1, n, bytes(20))) for n in range(5)])
    wanted = [(entry_id, location) for _, entry_id, location in located]
    wanted[3] = (30, wanted[3][1])
    assert [entry_id for entry_id, _ in logs.read_run(1, wanted, 1 << 20)] == [0, 1, 2]
    assert len(logs.read_records(1, wanted, 1 << 20)[0]) == 3
    with pytest.raises(Corruption, match="expected ledger 1 entry 30, found 56 bytes of ledger 1 entry 3"):
        logs.read_records(1, wanted[3:], 1 << 20)


def test_records_are_read_as_they_stand_in_the_log() -> None:
    files = MemoryFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 8192)
    entries = [(1, n, stored_entry(1, n, bytes(n * 20))) for n in range(30)]
    between = [(2, n, stored_entry(2, n, b"other")) for n in range(30)]
    located = logs.append([one for pair in zip(entries, between, strict=True) for one in pair][:40])
    located += logs.append(entries[20:])
    wanted = [(entry_id, location) for ledger_id, entry_id, location in located if ledger_id == 1]
    got = b""
    while wanted:
        ends, buffers = logs.read_records(1, wanted, 1 << 20)
        data = b"".join(buffers)
        assert ends == sorted(ends)
        assert len(data) == ends[-1]
        got += data
        del wanted[: len(ends)]
    assert got == b"".join(len(entry).to_bytes(4) + entry for _, _, entry in entries)


@pytest.mark.parametrize("sizes", [(900_000, 900_100), (200_000, 220_000, 200_000), (100_000, 300_000, 5)])
def test_large_entries_are_read_whole_alone_and_together(sizes: tuple[int, ...]) -> None:
    files = MemoryFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 1 << 24)
    entries = [(1, n, stored_entry(1, n, bytes([n + 1]) * size)) for n, size in enumerate(sizes)]
    located = logs.append([*entries, (2, 0, stored_entry(2, 0, b"other"))])
    wanted = [(entry_id, location) for ledger_id, entry_id, location in located if ledger_id == 1]
    whole = [(entry_id, entry) for _, entry_id, entry in entries]
    assert [(entry_id, logs.read(location, 1, entry_id)) for entry_id, location in wanted] == whole
    assert logs.read_run(1, wanted[:1], 1 << 20) == whole[:1]
    ends, buffers = logs.read_records(1, wanted[-1:], 1 << 20)
    assert b"".join(buffers) == len(whole[-1][1]).to_bytes(4) + whole[-1][1]
    assert ends == [4 + len(whole[-1][1])]
    together = logs.read_run(1, wanted, 1 << 24)
    assert together == whole[: len(together)]
    similar = max(sizes) < 1.1 * min(sizes)
    assert len(together) == len(sizes) or not similar, "entries of about one size are read together"


def test_a_large_entry_that_is_cut_short_is_damage() -> None:
    files = MemoryFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 1 << 24)
    ((_, _, location),) = logs.append([(1, 0, stored_entry(1, 0, bytes(100_000)))])
    logs.sync()
    files.open("/l/0.log", writable=True).truncate((location & 0xFFFFFFFF) + 50_000)
    with pytest.raises(Corruption, match=r"ledger 1 entry 0, a record of 100036 bytes is cut short"):
        logs.read(location, 1, 0)


@pytest.mark.parametrize("entry_bytes", [10, 700, 5000])
def test_what_does_not_fit_into_a_log_goes_to_the_next_also_within_one_call(entry_bytes: int) -> None:
    files = MemoryFiles()
    files.make_directories("/l")
    logs = EntryLogs(files, "/l", 4096)
    entries = [(1 + n // 9, n, stored_entry(1 + n // 9, n, bytes(entry_bytes))) for n in range(20)]
    located = [place for first in range(0, 20, 7) for place in logs.append(entries[first : first + 7])]
    logs.close()
    assert [place[:2] for place in located] == [entry[:2] for entry in entries]
    for (ledger_id, entry_id, location), (_, _, entry) in zip(located, entries, strict=True):
        assert logs.read(location, ledger_id, entry_id) == entry
    for log_id in {location >> 32 for _, _, location in located}:
        size = sum(logs.ledgers_map(log_id).values())  # raises if it is not what stands in the log
        assert size <= 4096 or entry_bytes > 4096


def test_maps_of_many_ledgers_are_cut_into_records() -> None:
    sizes = {ledger_id: ledger_id * 10 for ledger_id in range(25_000)}
    data = log_format.encode_map(sizes)
    assert log_format.decode_map(data, log_format.Header(1, 0, 25_000), "x") == sizes
    assert int.from_bytes(data[:4]) == 20 + 10_000 * 16
    with pytest.raises(Corruption):
        log_format.decode_map(data[:-1], log_format.Header(1, 0, 25_000), "x")


GOLDEN_COOKIE = (
    b'5\nbookieHost: "127.0.0.1:3188"\njournalDir: "/var/lib/bookie7/journal"\n'
    b'ledgerDirs: "1\\t/var/lib/bookie7/ledgers"\ninstanceId: "4ef1deb4-9b63-4beb-b4e8-2049dc99bf38"\n'
)
COOKIE = Cookie(
    "127.0.0.1:3188",
    ("/var/lib/bookie7/journal",),
    ("/var/lib/bookie7/ledgers",),
    "4ef1deb4-9b63-4beb-b4e8-2049dc99bf38",
)


def test_cookies_are_golden() -> None:
    assert COOKIE.encode() == GOLDEN_COOKIE
    assert decode(GOLDEN_COOKIE, "x") == COOKIE
    same_index = GOLDEN_COOKIE + b'indexDirs: "1\\t/var/lib/bookie7/ledgers"\n'
    assert decode(same_index, "x") == COOKIE
    old = b"3\nhost:1\n/j\n2\t/a\t/b\n"
    assert decode(old, "x") == Cookie("host:1", ("/j",), ("/a", "/b"), "")


@pytest.mark.parametrize("text", [b"", b"five\n", b"5\nbookieHost: 3\n", b"2\nx\n", b"\xff\xfe", GOLDEN_COOKIE[:-60]])
def test_what_is_no_cookie_is_named(text: bytes) -> None:
    with pytest.raises(Corruption, match=r"^/d/VERSION is no cookie"):
        decode(text, "/d/VERSION")


def test_the_table_of_cookies() -> None:
    nothing, data = {"/j": False, "/l": False}, {"/j": False, "/l": True}
    none, one, both = {"/j": None, "/l": None}, {"/j": COOKIE, "/l": None}, {"/j": COOKIE, "/l": COOKIE}
    assert is_new_bookie(COOKIE, None, none, nothing)
    assert is_new_bookie(COOKIE, None, one, nothing)  # cut short before the store was told
    assert not is_new_bookie(COOKIE, COOKIE, both, data)
    assert not is_new_bookie(COOKIE, COOKIE, both, nothing)
    for stored, on_disk, holds in (
        (None, none, data),
        (None, both, data),
        (COOKIE, one, data),
        (COOKIE, none, nothing),
    ):
        with pytest.raises(CookieMismatch):
            is_new_bookie(COOKIE, stored, on_disk, holds)


def test_settings_have_apaches_names_and_are_checked_together() -> None:
    text = {
        "bookiePort": "3182",
        "journalDirectories": "/a,/b",
        "dbStorage_writeCacheMaxSizeMb": "16",
        "journalMaxGroupWaitMSec": "1",
    }
    config = load(BookieConfig, text, ignored=IGNORED_SETTINGS)
    assert (config.port, config.journal_directories, config.write_cache_mib) == (3182, ("/a", "/b"), 16)
    with pytest.raises(ConfigurationError) as problems:
        load(
            BookieConfig,
            {**text, "journalMaxGroupWaitMSec": "abc", "numAddWorkerThreads": "abc"},
            ignored=IGNORED_SETTINGS,
        )
    wrong = [f"{name}=abc: expected a number" for name in ("journalMaxGroupWaitMSec", "numAddWorkerThreads")]
    assert str(problems.value).splitlines() == wrong
    with pytest.raises(ConfigurationError) as problems:
        load(BookieConfig, {"journalFormatVersionToWrite": "4", "journalAlignmentSize": "100", "bookiePort": "-1"})
    for name in ("journalFormatVersionToWrite", "journalAlignmentSize", "bookiePort"):
        assert name in str(problems.value)
