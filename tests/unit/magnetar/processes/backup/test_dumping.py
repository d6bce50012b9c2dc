"""The records of a metadata store into a file, and back."""

import json
from pathlib import Path

import pytest

from bookie.disks.cookie import Cookie
from magnetar.processes.backup.dump_format import DumpHead, DumpWriter, check, nodes_of
from magnetar.processes.backup.dumping import adopt_bookies, dump, new_file, put_back
from magnetar.processes.backup.manifest import BackupRefused
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import SHORT_ID_LIMIT
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, OutcomeUnknown
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import MagnetarError

ROOT = "/ledgers"


def lines_of(nodes: dict[str, bytes], next_ledger: int = 0) -> list[bytes]:
    writer = DumpWriter()
    return [
        writer.head(DumpHead("0.1.0", 1, ROOT)),
        *(writer.node(path, value) for path, value in nodes.items()),
        writer.end(next_ledger),
    ]


async def content(store: MetadataStore, path: str = "/") -> dict[str, bytes]:
    node = await store.get(path)
    assert node is not None
    found = {} if path == "/" else {path: node.value}
    for name in await store.children(path):
        found |= await content(store, f"{path.rstrip('/')}/{name}")
    return found


async def full_store() -> MemoryStore:
    store = MemoryStore(LoopClock())
    await initialise_cluster(store)
    await store.put("/admin/policies/shop", b'{"a": "\xc3\xa4"}')
    await store.put("/managed-ledgers/shop/orders/persistent/paid", bytes(range(256)))
    for number in range(450):
        await store.put(f"/ledgers/00/0000/L{number:04}", b"%d" % number)
    await store.put("/ledgers/available/b1", b"", ephemeral=True)
    return store


async def test_everything_that_outlives_a_session_is_put_back(tmp_path: Path) -> None:
    store = await full_store()
    await LedgerStore(store).advance(700)
    path = tmp_path / "dump"
    counted: list[int] = []
    with new_file(path) as file:
        end = await dump(store, ROOT, file.write, 5, counted.append)
    assert end.nodes == counted[-1] == len(await content(store)) - 1, "without the bookie's registration"
    assert path.stat().st_mode & 0o777 == 0o600
    back = MemoryStore(LoopClock())
    assert await put_back(back, path) == end
    expected = await content(store)
    del expected["/ledgers/available/b1"]
    assert await content(back) == expected
    assert await LedgerStore(back).next_id() >= await LedgerStore(store).next_id() == 701


async def test_records_of_ledgers_come_last(tmp_path: Path) -> None:
    """Each ledger that a topic names is there then, also where both were made while the dump was."""
    lines: list[bytes] = []
    await dump(await full_store(), ROOT, lines.append, 5)
    paths = [path for path, _ in nodes_of(lines)]
    first = paths.index(ROOT)
    assert all(path.startswith(ROOT) for path in paths[first:])
    assert not any(path.startswith(ROOT) for path in paths[:first])
    assert len(set(paths)) == len(paths)


async def test_long_numbers_go_on_above_those_that_were_given(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    newest = (7 << 32) | 12
    path.write_bytes(b"".join(lines_of({"/ledgers/idgen-long/HOB-0000000007": b""}, newest)))
    back = MemoryStore(LoopClock())
    await put_back(back, path)
    assert await LedgerStore(back).next_id() > newest > SHORT_ID_LIMIT


async def test_nothing_is_put_into_a_store_that_has_records(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    path.write_bytes(b"".join(lines_of({"/admin": b""})))
    store = MemoryStore(LoopClock())
    await store.put("/zookeeper/config", b"")
    await put_back(store, path)
    with pytest.raises(BackupRefused, match="has records already"):
        await put_back(store, path)


def test_a_dump_that_is_cut_or_changed_anywhere_is_refused() -> None:
    data = b"".join(lines_of({"/a": b"1", "/b": b"2"}))
    check(data.splitlines(keepends=True), "dump")
    for end in range(len(data) - 1):
        with pytest.raises(BackupRefused):
            check(data[:end].splitlines(keepends=True), "dump")
    for at in range(len(data) - 1):
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        with pytest.raises(BackupRefused):
            check(changed.splitlines(keepends=True), "dump")
    lines = lines_of({"/a": b"1"})
    head = json.dumps({"magnetar metadata": 2, "release": "0.7.0"}).encode() + b"\n"
    with pytest.raises(BackupRefused, match=r"newer release \(0\.7\.0\)"):
        check([head, *lines[1:]], "dump")


async def test_the_cluster_has_no_id_until_everything_else_is_back(tmp_path: Path) -> None:
    class Breaking(MemoryStore):
        left = 2

        async def put(self, path: str, value: bytes, *args: object, **options: object) -> int:
            self.left -= 1
            if not self.left:
                raise OutcomeUnknown(path)
            return await super().put(path, value, *args, **options)  # type: ignore[arg-type]

    path = tmp_path / "dump"
    path.write_bytes(b"".join(lines_of({"/ledgers/INSTANCEID": b"1", "/ledgers/cookies/a": b"", "/ledgers/x": b""})))
    store = Breaking(LoopClock())
    with pytest.raises(OutcomeUnknown):
        await put_back(store, path)
    assert not await store.exists("/ledgers/INSTANCEID")


def test_a_file_that_is_not_finished_has_another_name(tmp_path: Path) -> None:
    path = tmp_path / "dump"
    with pytest.raises(MagnetarError, match="cannot be written"), new_file(path) as file:
        file.write(b"half") and file.seek(-1)
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"")
    with pytest.raises(BackupRefused, match="is there already"), new_file(path):
        pass


async def test_bookies_without_metadata_get_a_store_that_knows_them(tmp_path: Path) -> None:
    cookies = [Cookie(f"b{number}", ("/j",), ("/l",), "the-cluster") for number in (1, 2)]
    versions = []
    for cookie in cookies:
        versions.append(tmp_path / cookie.bookie_id)
        versions[-1].write_bytes(cookie.encode())
    store = MemoryStore(LoopClock())
    assert await adopt_bookies(store, ROOT, [*versions, versions[0]]) == cookies
    assert await initialise_cluster(store) == "the-cluster"
    node = await store.get("/ledgers/cookies/b2")
    assert node is not None
    assert node.value == cookies[1].encode()
    with pytest.raises(BackupRefused, match="knows a cluster already"):
        await adopt_bookies(store, ROOT, versions)
    versions[0].write_bytes(Cookie("b1", ("/j",), ("/l",), "another").encode())
    with pytest.raises(BackupRefused, match="not of one cluster: another, the-cluster"):
        await adopt_bookies(MemoryStore(LoopClock()), ROOT, versions)
