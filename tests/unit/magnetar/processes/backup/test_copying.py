"""Copies of a standalone that is stopped: to folders and tars, and back."""

import asyncio
import errno
import os
import tarfile
from pathlib import Path

import pytest

from bookie.disks.cookie import Cookie, decode
from magnetar.processes.backup import copying
from magnetar.processes.backup.copying import back_up
from magnetar.processes.backup.door import reachable
from magnetar.processes.backup.manifest import MANIFEST, BackupRefused
from magnetar.processes.backup.restoring import RESTORING, check_restored, open_backup, restore
from magnetar.processes.backup.snapshot import Taken
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster, instance_id
from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.files import DiskUsage, OsFiles
from magnetar_core.runtime.types import MIB, MagnetarError

LOG = "bookie-1/ledgers/current/0.log"
JOURNAL = "bookie-1/journal/current/1a.txn"
FILES = {LOG: b"entries" * 1_000, JOURNAL: b"records" * 1_000}
NOT_COPIED = ("bookie-1/journal/bookie.lock", "bookie-1/journal/current/reserve", "bookie-1/ledgers/current/x.tmp")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a standalone that is stopped."""
    place = tmp_path / "data"

    async def make() -> None:
        store = await EmbeddedStore.open(place / "metadata", LoopClock())
        identity = await initialise_cluster(store)
        folders = tuple(str(place / "bookie-1" / name) for name in ("journal", "ledgers"))
        cookie = Cookie("bookie-1", folders[:1], folders[1:], identity)
        await store.put("/ledgers/cookies/bookie-1", cookie.encode())
        await store.put("/admin/policies/shop", b"{}")
        await store.close()
        for name in (*FILES, *NOT_COPIED):
            path = place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(FILES.get(name, b"not copied"))
        for folder in folders:
            Path(folder, "current", "VERSION").write_bytes(cookie.encode())

    asyncio.run(make())
    return place


def metadata_of(place: Path) -> tuple[str, Cookie, bytes]:
    """Instance id, cookie, and a record of the store in *place*."""

    async def read() -> tuple[str, Cookie, bytes]:
        store = await EmbeddedStore.open(place / "metadata", LoopClock())
        cookie, record = await store.get("/ledgers/cookies/bookie-1"), await store.get("/admin/policies/shop")
        assert cookie is not None
        assert record is not None
        identity = await instance_id(store, "/ledgers")
        await store.close()
        return identity, decode(cookie.value, "store"), record.value

    return asyncio.run(read())


@pytest.mark.parametrize("name", ["backup", "backup.tar"])
def test_a_copy_is_the_same_store_at_another_place_with_an_id_of_its_own(data: Path, tmp_path: Path, name: str) -> None:
    made = back_up(data, tmp_path / name)
    names = {file.name for file in made.manifest.files}
    assert FILES.keys() < names
    assert not names.intersection(NOT_COPIED)
    assert not any(os.path.basename(one) == "LOCK" for one in names)
    copy = tmp_path / "copy"
    assert restore(tmp_path / name, copy) == made.manifest
    assert {one: (copy / one).read_bytes() for one in FILES} == FILES
    identity, cookie, record = metadata_of(copy)
    assert record == b"{}"
    assert identity != made.manifest.instance_id == metadata_of(data)[0]
    folders = tuple(str(copy / "bookie-1" / folder) for folder in ("journal", "ledgers"))
    assert cookie == Cookie("bookie-1", folders[:1], folders[1:], identity)
    for folder in folders:
        assert decode(Path(folder, "current", "VERSION").read_bytes(), "file") == cookie
    check_restored(copy)
    with pytest.raises(BackupRefused, match="another store"):
        back_up(copy, tmp_path / "of the copy", tmp_path / "backup" if name == "backup" else _folder_of(data, tmp_path))


def _folder_of(data: Path, tmp_path: Path) -> Path:
    back_up(data, tmp_path / "a folder")
    return tmp_path / "a folder"


def test_an_earlier_backup_gives_what_is_unchanged_and_written_once(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "first")
    with (data / JOURNAL).open("ab") as file:
        file.write(b"more")
    made = back_up(data, tmp_path / "second", tmp_path / "first")
    assert made.linked_bytes >= len(FILES[LOG])
    assert (tmp_path / "first" / LOG).samefile(tmp_path / "second" / LOG)
    assert (tmp_path / "second" / JOURNAL).read_bytes() == FILES[JOURNAL] + b"more"
    (data / LOG).write_bytes(b"another content, of another length")
    back_up(data, tmp_path / "third", tmp_path / "second")
    assert (tmp_path / "third" / LOG).read_bytes() == (data / LOG).read_bytes()
    (tmp_path / "third" / LOG).unlink()
    with pytest.raises(BackupRefused, match="1 files are missing"):
        back_up(data, tmp_path / "fourth", tmp_path / "third")


def test_a_disk_that_fills_leaves_nothing_of_the_backup(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "there").mkdir()
    sync = os.fsync

    def full(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith(".txn") or ".tar" in os.readlink(f"/proc/self/fd/{fd}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(fd)

    monkeypatch.setattr(os, "fsync", full)
    for name in ("new", "there", "new.tar"):
        with pytest.raises(MagnetarError, match=r"failed, and nothing of it is left.*No space left"):
            back_up(data, tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "there"]
    assert list((tmp_path / "there").iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setattr(OsFiles, "usage", lambda *_: DiskUsage(100 * MIB, 1_000))
    with pytest.raises(BackupRefused, match=r"bytes are to be written, 1000 are free, and \d+ have to stay free"):
        back_up(data, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_restore_that_is_cut_short_starts_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(data, tmp_path / "backup")
    copy = tmp_path / "copy"

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("magnetar.processes.backup.restoring._write", full)
    with pytest.raises(MagnetarError, match=r"No space left on device\. Remove .*copy, and restore again"):
        restore(tmp_path / "backup", copy)
    monkeypatch.undo()
    assert (copy / RESTORING).exists()
    for action in (lambda: check_restored(copy), lambda: restore(tmp_path / "backup", copy)):
        with pytest.raises(MagnetarError, match="was not finished"):
            action()


def test_a_file_that_has_changed_since_stops_the_restore_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backup")
    path = tmp_path / "backup" / LOG
    path.write_bytes(FILES[LOG][:-1] + b"X")
    with pytest.raises(BackupRefused, match=f"{LOG} is damaged"):
        restore(tmp_path / "backup", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_new_disk_counts_as_empty(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "backup")
    (tmp_path / "disk" / "lost+found").mkdir(parents=True)
    restore(tmp_path / "backup", tmp_path / "disk")


def test_tars_that_are_cut_or_of_something_else_are_refused(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "backup.tar"
    back_up(data, path)
    whole = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.TarFile(path) as tar:
        assert tar.getnames()[-1] == MANIFEST
    for end in (0, 100, len(whole) // 2):
        path.write_bytes(whole[:end])
        with pytest.raises(BackupRefused):
            open_backup(path)
    with pytest.raises(BackupRefused, match="a tar has no links"):
        back_up(data, tmp_path / "other.tar", tmp_path)


def test_a_file_that_is_shorter_than_it_was_stops_the_backup(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = copying._files_of_stopped

    def longer(place: Path) -> Taken:
        taken = listed(place)
        return taken._replace(files=tuple(file._replace(bytes=file.bytes + (file.name == LOG)) for file in taken.files))

    monkeypatch.setattr(copying, "_files_of_stopped", longer)
    with pytest.raises(MagnetarError, match=r"0\.log has become 1 bytes shorter"):
        back_up(data, tmp_path / "backup")
    assert not (tmp_path / "backup").exists()


def test_a_folder_with_a_long_name_is_reached(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    with reachable(folder / "backup.socket") as path:
        assert len(path) < 100
        Path(path).write_bytes(b"")
    assert (folder / "backup.socket").exists()
