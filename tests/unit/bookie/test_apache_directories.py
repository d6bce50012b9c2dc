"""Our bookie opens directories that Apache's bookie wrote (tests/vectors/disk)."""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from bookie.startup import Opened, StorageSettings, open_storage
from bookie.storage.entry_log import format as log_format
from bookie.storage.index import RocksIndex
from bookie.storage.journal import format as journal_format
from bookie.storage.journal.format import Scan
from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.runtime.files import OsFiles
from tests.support.bookie_vectors import VECTORS

FOLDERS = ["db-journal4", "db-journal5-clean", "db-journal5-killed", "db-journal6-align512-readonly"]


def unpacked(folder: str, tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Unpack the folder; (what was written, what its files hold)."""
    source = VECTORS / "disk" / folder
    with tarfile.open(source / "bookie.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return json.loads((source / "written.json").read_text()), json.loads((source / "contents.json").read_text())


def opened(tmp_path: Path) -> Opened:
    return open_storage(
        OsFiles(),
        [str(tmp_path / "journal/current")],
        [str(tmp_path / "ledgers/current")],
        StorageSettings(),
        RocksIndex,
        1,
    )


def checksum_of(found: Opened, ledger_id: int, entry_id: int) -> str | None:
    entry = found.storage.read(ledger_id, entry_id).entry
    return None if entry is None else f"{crc32c(entry):08x}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_entry_of_an_apache_bookie_is_read_back(folder: str, tmp_path: Path) -> None:
    written, contents = unpacked(folder, tmp_path)
    expected: dict[tuple[int, int], str] = {}
    for operation in written["operations"]:
        if operation["op"] == "add" and operation["rc"] == 0:
            expected[operation["ledger"], operation["entry"]] = operation["storedCrc32c"]
    assert len(expected) > 70
    for _ in range(2):  # the second time from our own journal and marks
        found = opened(tmp_path)
        assert {key: checksum_of(found, *key) for key in expected} == expected
        for row in contents["ledgers"]:
            ledger = found.rules.ledgers.get(row["ledger"])
            assert ledger is not None
            assert ledger.master_key.hex() == row["masterKey"]
            assert ledger.encode().hex() == row["raw"]
        fenced = {ledger.ledger_id for ledger in found.rules.ledgers if ledger.fenced}
        assert fenced == {3, 9}
        explicit = found.rules.ledgers.get(6)
        assert explicit is not None
        if folder != "db-journal5-killed":  # that format has no record for it, and it was never flushed
            assert explicit.explicit_lac.hex() == "000000000000000600000000000000029015f24f"
        for writer in found.writers:
            writer.close()
        found.storage.close()


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_journal_of_an_apache_bookie_scans_to_what_it_holds(folder: str, tmp_path: Path) -> None:
    _, contents = unpacked(folder, tmp_path)
    for name, journal in contents["journals"].items():
        file = OsFiles().open(str(tmp_path / "journal/current" / name))
        header = journal_format.decode_header(file.read_at(0, 512), name)
        assert header is not None
        assert header.version == journal["version"]
        assert not header.sealed
        scan = Scan(file.read_at, header, int(name.removesuffix(".txn"), 16), name)
        found = [(record.offset, record.ledger_id, record.entry_id, f"{crc32c(record.data):08x}") for record in scan]
        assert found == [
            (record["offset"], record["ledger"], record["entry"], record["crc32c"])
            for record in journal["records"]
            if "padding" not in record
        ]
        assert (scan.end_offset, scan.torn) == (journal["endOfData"], None)
        file.close()


def test_a_sealed_entry_log_of_apache_has_the_map_that_its_records_make(tmp_path: Path) -> None:
    _, contents = unpacked("db-journal5-clean", tmp_path)
    found = opened(tmp_path)
    logs = found.storage.directories[0].logs
    made: dict[int, int] = {}
    scanned = list(logs.scan(0))
    for _, size, ledger_id, _ in scanned:
        made[ledger_id] = made.get(ledger_id, 0) + 4 + size
    assert logs.ledgers_map(0) == made
    records = [record for record in contents["entryLogs"]["0.log"]["records"] if record.get("ledger", -1) >= 0]
    assert [entry[:2] for entry in scanned] == [(record["offset"], record["size"]) for record in records]
    data = (tmp_path / "ledgers/current/0.log").read_bytes()
    header = log_format.decode_header(data[:1024], "0.log")
    theirs = data[header.map_offset :]
    assert log_format.decode_map(theirs, header, "0.log") == made
    assert len(log_format.encode_map(made)) == len(theirs)
    assert log_format.decode_map(log_format.encode_map(made), header, "0.log") == made
    found.storage.close()
