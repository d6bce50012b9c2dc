import errno
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.runtime.files import DIRECT_BYTES_MAX, File, Files, OsFiles, read_file, replace_file


@pytest.fixture(params=["os", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, str]:
    files: Files = OsFiles() if request.param == "os" else MemoryFiles()
    directory = str(tmp_path / "disk")
    files.make_directories(directory)
    return files, directory


def test_appends_stand_one_behind_the_other(place: tuple[Files, str]) -> None:
    files, directory = place
    file = files.create(directory + "/a")
    assert file.append([b"12", memoryview(b"345")]) == 0
    assert file.append([b"6"]) == 5
    assert file.read_at(1, 100) == b"23456"
    file.write_at(0, b"X")
    assert read_file(files, directory + "/a") == b"X23456"
    file.write_at(2, b"ab", b"", memoryview(b"cdef"))
    assert read_file(files, directory + "/a") == b"X2abcdef"
    file.truncate(2)
    assert file.append([b"!"]) == 2
    file.close()


PARTS = [(0, 0), (0, 1), (1, 4095), (4095, 2), (4096, 8192), (5000, 100_000), (0, 300_001), (300_000, 1)]


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_read_past_the_cache_is_as_one_through_it(place: tuple[Files, str], is_prepared: bool) -> None:
    files, directory = place
    file = files.create(directory + "/a")
    if is_prepared:
        file.prepare_read_once()
    data = random.Random(7).randbytes(300_001)
    file.append([data])
    for is_synced in (False, True):
        for offset, size_bytes in [*PARTS, (0, 400_000), (290_000, 90_000), (300_001, 10), (500_000, 10)]:
            assert file.read_once_at(offset, size_bytes) == data[offset : offset + size_bytes], (offset, is_synced)
        file.sync()
    file.append([b"more"])
    assert file.read_once_at(299_000, 1_005) == data[299_000:] + b"more"
    files.remove(directory + "/a")
    assert file.read_once_at(5_000, 200_000) == data[5_000:205_000], "its name is gone, it is not"
    file.close()


@pytest.fixture
def direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> File:
    """A file that was prepared; on any file system, and as if it had reads past its cache."""
    file = OsFiles().create(f"{tmp_path}/a")
    whole = os.open
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda path, flags: whole(path, flags & ~os.O_DIRECT))
        file.prepare_read_once()
    return file


def test_what_was_read_past_the_cache_is_not_changed_by_the_next_read(direct: File) -> None:
    direct.append([b"a" * 4096, b"b" * 4096])
    first, second = direct.read_once_at(0, 4096), direct.read_once_at(4096, 4096)
    assert (first, second) == (b"a" * 4096, b"b" * 4096)
    direct.close()


def test_a_part_too_large_to_be_read_past_the_cache_is_read_through_it(direct: File) -> None:
    data = random.Random(8).randbytes(DIRECT_BYTES_MAX + 5)
    direct.append([data])
    assert direct.read_once_at(0, len(data)) == data
    assert direct.read_once_at(3, DIRECT_BYTES_MAX) == data[3 : 3 + DIRECT_BYTES_MAX]
    direct.close()


def test_a_file_that_cannot_be_opened_past_the_cache_is_read_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = OsFiles().create(f"{tmp_path}/a")
    file.append([b"abc" * 5000])

    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr(os, "open", refuse)
    file.prepare_read_once()
    monkeypatch.setattr(os, "preadv", refuse)
    assert file.read_once_at(3, 10_000) == b"abc" * 3333 + b"a"
    monkeypatch.undo()
    file.close()


def test_a_disk_that_wants_other_parts_is_read_through_the_cache_from_then_on(
    direct: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct.append([b"abc" * 5000])
    asked = 0

    def refuse(*_: object) -> int:
        nonlocal asked
        asked += 1
        raise OSError(errno.EINVAL, "not so")

    monkeypatch.setattr(os, "preadv", refuse)
    for _ in range(2):
        assert direct.read_once_at(3, 10_000) == b"abc" * 3333 + b"a"
    assert asked == 1
    monkeypatch.undo()
    direct.close()


def test_threads_read_past_the_cache_into_memory_of_their_own(direct: File) -> None:
    data = random.Random(9).randbytes(64 * 4096)
    direct.append([data])
    begin = threading.Barrier(8)

    def read(thread: int) -> bool:
        begin.wait()
        parts = [(thread + number) % 60 * 4096 + 7 for number in range(300)]
        return all(direct.read_once_at(at, 8192) == data[at : at + 8192] for at in parts)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(read, range(8)))
    direct.close()


def test_a_disk_that_fails_is_told_and_not_read_in_another_way(direct: File, monkeypatch: pytest.MonkeyPatch) -> None:
    direct.append([bytes(5000)])

    def fail(*_: object) -> int:
        raise OSError(errno.EIO, "bad sector")

    monkeypatch.setattr(os, "preadv", fail)
    with pytest.raises(OSError, match="bad sector"):
        direct.read_once_at(0, 4096)
    direct.close()


def test_a_file_that_is_closed_is_closed_twice(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    file = OsFiles().create(f"{tmp_path}/a")
    file.prepare_read_once()
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_short_write_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, views, offset: whole(fd, [b"".join(views)[:5]], offset))
    file = OsFiles().create(str(tmp_path / "a"))
    pieces = [b"one", b"", b"twotwo", b"threethree", b"4"]
    assert file.append(pieces) == 0
    file.write_at(1, *pieces)
    assert file.read_at(0, 100) == b"o" + b"".join(pieces)
    assert file.size_bytes() == 1 + sum(map(len, pieces))
    file.close()


def test_thousands_of_buffers_are_written_whole(place: tuple[Files, str]) -> None:
    files, directory = place
    file = files.create(directory + "/a")
    pieces = [bytes([number % 251]) * (number % 7) for number in range(5000)]
    file.append(pieces)
    assert read_file(files, directory + "/a") == b"".join(pieces)
    file.close()


def test_replace_leaves_only_the_new_content(place: tuple[Files, str]) -> None:
    files, directory = place
    replace_file(files, directory + "/mark", b"one")
    replace_file(files, directory + "/mark", b"two")
    assert read_file(files, directory + "/mark") == b"two"
    assert files.list(directory) == ["mark"]


def test_a_file_is_not_created_twice(place: tuple[Files, str]) -> None:
    files, directory = place
    files.create(directory + "/a").close()
    with pytest.raises(FileExistsError):
        files.create(directory + "/a")
    with pytest.raises(FileNotFoundError):
        files.open(directory + "/b")


def test_a_lock_is_held_once(place: tuple[Files, str]) -> None:
    files, directory = place
    lock = files.lock(directory + "/lock")
    with pytest.raises(BlockingIOError):
        files.lock(directory + "/lock")
    lock.release()
    files.lock(directory + "/lock").release()


def test_what_was_synced_survives_every_crash() -> None:
    files = MemoryFiles()
    files.make_directories("/d")
    file = files.create("/d/a")
    file.append([b"synced"])
    file.sync()
    files.sync_directory("/d")
    file.append([b"x" * 2000])
    lengths = set()
    for seed in range(200):
        after = files.crash(random.Random(seed))
        content = read_file(after, "/d/a")
        assert content.startswith(b"synced")
        assert set(content[6:]) <= {0, ord("x")}
        lengths.add(len(content))
    assert min(lengths) == 6
    assert max(lengths) == 2006
    assert read_file(files.crash(random.Random(0), unsynced=0), "/d/a") == b"synced"


def test_a_file_whose_directory_was_not_synced_may_be_gone() -> None:
    files = MemoryFiles()
    files.make_directories("/d")
    files.create("/d/a").sync()
    there = {files.crash(random.Random(seed)).exists("/d/a") for seed in range(50)}
    assert there == {True, False}


def test_replace_is_atomic_over_a_crash() -> None:
    files = MemoryFiles()
    files.make_directories("/d")
    replace_file(files, "/d/mark", b"old!")

    images: list[MemoryFiles] = []
    files.on_operation.append(lambda kind, path: images.extend(files.crash(random.Random(seed)) for seed in range(20)))
    replace_file(files, "/d/mark", b"new!")
    assert len(images) >= 80
    assert {read_file(image, "/d/mark") for image in images} == {b"old!", b"new!"} or {
        read_file(image, "/d/mark") for image in images
    } == {b"old!"}


def test_a_full_disk_refuses_and_keeps_what_it_has() -> None:
    files = MemoryFiles(capacity_bytes=10)
    files.make_directories("/d")
    file = files.create("/d/a")
    file.append([b"12345678"])
    with pytest.raises(OSError, match="no space") as raised:
        file.append([b"901"])
    assert raised.value.errno == errno.ENOSPC
    assert read_file(files, "/d/a") == b"12345678"
    assert files.usage("/d").free_bytes == 2


def test_what_is_stored_is_its_owners_and_the_groups_alone(tmp_path: Path) -> None:
    files, former = OsFiles(), os.umask(0)
    try:
        files.make_directories(f"{tmp_path}/a/b")
        files.create(f"{tmp_path}/a/b/file").close()
        files.lock(f"{tmp_path}/a/lock").release()
        replace_file(files, f"{tmp_path}/a/b/replaced", b"x")
    finally:
        os.umask(former)
    modes = {str(one.relative_to(tmp_path)): one.stat().st_mode & 0o777 for one in tmp_path.rglob("*")}
    assert modes == {"a": 0o750, "a/b": 0o750, "a/b/file": 0o640, "a/lock": 0o640, "a/b/replaced": 0o640}


def test_others_come_to_a_folder_where_it_and_all_above_it_let_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = OsFiles()
    made, elsewhere = tmp_path / "data/journal/current", tmp_path / "elsewhere/current"
    for folder in (made, elsewhere):
        folder.mkdir(parents=True)
    above = {str(one): os.stat(one) for one in tmp_path.parents}
    stat = os.stat

    def as_if_open(path: Any, **more: Any) -> os.stat_result:
        found = stat(path, **more)
        return os.stat_result((found.st_mode | 0o001, *found[1:])) if path in above else found

    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "stat", as_if_open)
    for folder in (made, made.parent, made.parent.parent, elsewhere, elsewhere.parent):
        folder.chmod(0o755)
    assert files.lets_others_in(str(made))
    for folder in (made, made.parent, made.parent.parent):
        folder.chmod(0o750)
        assert not files.lets_others_in(str(made)), folder
        folder.chmod(0o755)
    made.parent.parent.chmod(0o750)
    made.rmdir()
    made.symlink_to(elsewhere)  # a journal on a disk of its own: its place counts, and not that of the link
    assert files.lets_others_in(str(made))
    elsewhere.chmod(0o711)
    assert files.lets_others_in(str(made)), "names of files can be guessed"
    elsewhere.chmod(0o700)
    assert not files.lets_others_in(str(made))
