"""What is in a backup, and which one may be restored."""

import json
from dataclasses import dataclass

import pytest

from magnetar.processes.backup.manifest import (
    FORMAT,
    BackupRefused,
    Manifest,
    Stored,
    decode,
    difference,
    encode,
    is_below,
    reusable,
    room_problem,
)

LOG = Stored("bookie-1/ledgers/current/0.log", 100, "a" * 64, 7)
TABLE = Stored("metadata/000012.sst", 50, "b" * 64, 8)
JOURNAL = Stored("bookie-1/journal/current/1a.txn", 10, "c" * 64, 9)
WAL = Stored("bookie-1/ledgers/current/locations/000008.log", 20, "d" * 64, 10)
MANIFEST = Manifest("0.1.0", 1_795_242_522_795, "4ef1deb4", 1, (LOG, TABLE, JOURNAL, WAL))


def test_a_manifest_is_read_as_it_was_written() -> None:
    assert decode(encode(MANIFEST), "backup") == MANIFEST
    assert MANIFEST.bytes == 180


def test_every_change_of_a_manifest_is_seen() -> None:
    """A digit here and there would restore a file of another length, or of another time."""
    data = encode(MANIFEST)
    for at in range(len(data)):
        for other in (data[at] ^ 1, ord("9") if data[at] != ord("9") else ord("8")):
            changed = data[:at] + bytes([other]) + data[at + 1 :]
            try:
                same = json.loads(changed) == json.loads(data)
            except ValueError:
                same = False
            if not same:
                with pytest.raises(BackupRefused):
                    decode(changed, "backup")
    for end in range(len(data) - 1):
        with pytest.raises(BackupRefused, match=r"manifest\.json is damaged"):
            decode(data[:end], "backup")


def test_a_newer_format_names_the_release_that_restores_it() -> None:
    value = json.loads(encode(MANIFEST))
    newer = json.dumps({**value, "format": FORMAT + 1, "release": "0.7.0", "more": 1}).encode()
    with pytest.raises(BackupRefused, match=r"newer release \(0\.7\.0\): restore it with that"):
        decode(newer, "backup")


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "a/../../x", "a//b", "", ".", "a/.", "a\0b"])
def test_no_file_is_outside_the_backup(name: str) -> None:
    assert not is_below(name)
    with pytest.raises(BackupRefused, match="not below the backup"):
        decode(encode(MANIFEST._replace(files=(LOG._replace(name=name),))), "backup")


def test_only_unchanged_files_that_are_written_once_stand_for_present_ones() -> None:
    former = reusable(MANIFEST, "4ef1deb4")
    assert set(former.values()) == {LOG, TABLE}
    assert former[LOG.name, 100, 7] == LOG
    assert (LOG.name, 101, 7) not in former
    assert (LOG.name, 100, 8) not in former
    assert reusable(MANIFEST, "another store") == reusable(None, "4ef1deb4") == {}


@dataclass
class Room:
    needed: int
    free: int
    total: int
    is_own_disk: bool
    is_enough: bool


@pytest.mark.parametrize(
    "room",
    [
        Room(100, 100, 1_000, False, True),
        Room(101, 100, 1_000, False, False),
        Room(100, 150, 1_000, True, True),
        Room(101, 150, 1_000, True, False),
    ],
)
def test_a_backup_leaves_the_store_room_on_its_own_disk(room: Room) -> None:
    problem = room_problem(room.needed, room.free, room.total, is_own_disk=room.is_own_disk)
    assert (problem == "") == room.is_enough


def test_missing_files_are_counted() -> None:
    assert difference([LOG.name, TABLE.name, JOURNAL.name, WAL.name, "more"], MANIFEST) == ""
    assert difference([LOG.name, WAL.name], MANIFEST) == f"2 files are missing, the first is {JOURNAL.name}"
