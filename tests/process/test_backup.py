"""Backups of a standalone: made while it works, restored elsewhere, refused when they are not whole; and moved data."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.backup.door import SOCKET, Lent
from magnetar.processes.backup.manifest import MANIFEST
from magnetar.processes.backup.snapshot import SNAPSHOT
from tests.support.processes import Load, Standalone, client_of, prepare, until
from tests.support.shell import run_command

pytestmark = pytest.mark.process

TOPIC: Final = "persistent://public/default/kept"

# Much happens in a second: ledgers and entry logs end, and garbage is collected and compacted.
BUSY: Final = """
managedLedgerMaxEntriesPerLedger=50
managedLedgerMinLedgerRolloverTimeMinutes=0
gcWaitTime=200
flushInterval=200
minorCompactionInterval=1
majorCompactionInterval=2
journalMaxSizeMB=2
"""


def backup(server: Standalone, target: Path, *options: str, code: int = 0) -> str:
    """What it printed, or why it failed."""
    ended = run_command("backup", str(target), "--data", str(server.data), *options)
    assert ended.returncode == code, (ended.stdout, ended.stderr)
    return ended.stdout if code == 0 else ended.stderr


def restore(source: Path, data: Path, *, code: int = 0) -> str:
    ended = run_command("restore", str(source), "--data", str(data))
    assert ended.returncode == code, (ended.stdout, ended.stderr)
    return ended.stdout if code == 0 else ended.stderr


def snapshots(data: Path) -> list[Path]:
    return list(data.rglob(SNAPSHOT))


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(("first", "second"), id="folders"),
        pytest.param(("one.tar",), id="tar", marks=pytest.mark.long("one more start; unit tests read and write tars")),
    ],
)
def test_what_was_acknowledged_before_a_backup_is_there_after_it_is_restored_elsewhere(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    settings = tmp_path / "standalone.conf"
    settings.write_text(BUSY)
    options = ("--bookies", "2", "--config", str(settings))
    last = tmp_path / names[-1]
    with Standalone(tmp_path / "data", *options) as server:
        prepare(AdminClient(server.admin_url))
        with Load(server.service_url, TOPIC) as load:
            earlier: tuple[str, ...] = ()
            for name in names:
                load.wait_for(1_000)
                receipts = dict(load.receipts)
                backup(server, tmp_path / name, *earlier)
                assert snapshots(server.data) == []
                earlier = ("--since", str(tmp_path / name))
            load.finish()
            load.check()  # the original goes on
        if len(names) > 1:
            linked = [path for path in last.rglob("*.log") if path.stat().st_nlink > 1]
            assert linked, "entry logs that the first backup has are not copied again"
        wide = [str(path) for path in (last, *last.rglob("*")) if path.stat().st_mode & 0o077]
        assert wide == [], "nobody else may read a backup"
        copy = Standalone(tmp_path / "copy", *options)
        assert f"--data {copy.data} --bookies 2" in restore(last, copy.data)
        with copy:  # beside the original
            load.receipts = receipts
            load.check(copy.service_url)
            with client_of(copy.service_url) as client:
                client.create_producer("persistent://public/default/new").send(b"it takes more")
            assert copy.stop(signal.SIGTERM) == 0
            assert copy.errors == "", "nothing is in doubt or missing"
        with client_of(server.service_url) as client:
            client.create_producer("persistent://public/default/new").send(b"so does the original")


def test_a_standalone_that_is_stopped_or_was_killed_is_backed_up_as_it_is(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server, Load(server.service_url, TOPIC) as load:
        prepare(AdminClient(server.admin_url))
        load.wait_for(1_000)
        load.finish()
        server.stop(signal.SIGKILL)
        assert (server.data / SOCKET).exists()
        backup(server, tmp_path / "backup")
        restore(tmp_path / "backup", tmp_path / "copy")
        with Standalone(tmp_path / "copy") as copy:
            load.check(copy.service_url)


def test_data_that_were_moved_start_when_they_are_said_to_be(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data", "--bookies", "2") as server, Load(server.service_url, TOPIC) as load:
        load.wait_for(500)
        load.finish()
        server.stop(signal.SIGTERM)
        server.data.rename(tmp_path / "elsewhere")
        moved = Standalone(tmp_path / "elsewhere", "--bookies", "2")
        with pytest.raises(
            AssertionError, match="if all of them were moved to these paths, start it once with --moved"
        ):
            moved.start()
        moved.process = None
        once = Standalone(tmp_path / "elsewhere", "--bookies", "2", "--moved")
        with once:
            load.check(once.service_url)
            once.stop(signal.SIGTERM)
        with moved:
            load.check(moved.service_url)


def test_backups_that_are_not_whole_are_refused_by_name(tmp_path: Path) -> None:
    server = Standalone(tmp_path / "data")
    with server, client_of(server.service_url) as client:
        client.create_producer(TOPIC).send(b"one")
        backup(server, tmp_path / "backup")
        assert "is not empty" in backup(server, tmp_path / "backup", code=2)
        assert "is in the folder that is to be backed up" in backup(server, server.data / "backup", code=2)
        assert "does not exist" in backup(server, tmp_path / "b", "--since", str(tmp_path / "nothing"), code=2)
    manifest = tmp_path / "backup" / MANIFEST
    whole = manifest.read_bytes()
    copy = tmp_path / "copy"

    def refused() -> str:
        said = restore(tmp_path / "backup", copy, code=2)
        assert not copy.exists(), "nothing is written before the backup was found good"
        return said

    manifest.unlink()
    assert "one that was not finished" in refused()
    manifest.write_bytes(whole[:-20])
    assert "manifest.json is damaged" in refused()
    manifest.write_text(json.dumps({**json.loads(whole), "format": 2, "release": "0.9.0"}))
    assert "was made by a newer release (0.9.0): restore it with that" in refused()
    manifest.write_bytes(whole)
    journal = next((tmp_path / "backup").rglob("*.txn"))
    content = journal.read_bytes()
    journal.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert f"{journal.relative_to(tmp_path / 'backup')} is damaged" in refused()
    journal.unlink()
    assert "1 files are missing" in refused()
    journal.write_bytes(content)
    copy.mkdir()
    (copy / "something").write_bytes(b"")
    assert "is not empty" in restore(tmp_path / "backup", copy, code=2)
    (copy / "something").rename(copy / "RESTORING")
    assert "was not finished. Remove" in restore(tmp_path / "backup", copy, code=2)
    with pytest.raises(AssertionError, match=r"was not finished\. Remove"):
        Standalone(copy).start()


def test_a_command_that_is_killed_harms_nothing(tmp_path: Path) -> None:
    with Standalone(tmp_path / "data") as server, client_of(server.service_url) as client:
        producer = client.create_producer(TOPIC)
        producer.send(b"one")
        command = (
            f"import time; from pathlib import Path; from magnetar.processes.backup.door import Lent; "
            f"lent = Lent(Path({str(server.data)!r})); print(len(lent.taken.files), flush=True); time.sleep(60)"
        )
        holder = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        assert int(holder.stdout.readline()) > 5
        assert snapshots(server.data)
        assert "another backup of this folder is being made" in backup(server, tmp_path / "backup", code=2)
        assert not (tmp_path / "backup").exists()
        holder.kill()
        holder.wait()
        holder.stdout.close()
        until(lambda: not snapshots(server.data), "its snapshot is removed")
        backup(server, tmp_path / "backup")
        lent = Lent(server.data)
        server.stop(signal.SIGKILL)
        assert all(Path(file.path).exists() for file in lent.taken.files), "what was linked outlives the process"
        lent.close()
        server.start()
        assert snapshots(server.data) == []
        producer.send(b"two")


def test_no_folder_of_a_standalone_is_no_backup(tmp_path: Path) -> None:
    said = run_command("backup", str(tmp_path / "backup"), "--data", str(tmp_path / "data"))
    assert said.returncode == 2
    assert "is not the folder of a standalone" in said.stderr
