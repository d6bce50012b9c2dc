"""The records of a metadata store into a file, and back into an empty store.

Rules besides those of `dump_format`:

1. Nothing is put back into a store that has records: what a cluster has since would be mixed with what it had.
2. The id of the cluster is put back last: until then a bookie that is started takes the store for another cluster's.
3. The next ledger gets a number above all that were given when the dump was made.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from bookie.disks.cookie import Cookie, decode
from magnetar import __version__
from magnetar.processes.backup.dump_format import DumpEnd, DumpHead, DumpWriter, check, nodes_of
from magnetar.processes.backup.manifest import BackupRefused
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import SHORT_ID_LIMIT
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE, MetadataStore, Node
from magnetar_core.runtime.types import MagnetarError

# Nodes that are asked for, or written, at a time.
_AT_ONCE: Final = 200

_OF_ZOOKEEPER: Final = "zookeeper"
_FILE_MODE: Final = 0o600


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when the block has ended well. Raises BackupRefused, MagnetarError."""
    if target.exists():
        raise BackupRefused(f"{target} is there already; name another file, or remove it")
    partial = target.with_name(f"{target.name}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(partial, flags, _FILE_MODE), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise MagnetarError(f"{target} cannot be written: {error}") from error
    finally:
        partial.unlink(missing_ok=True)


async def dump(
    store: MetadataStore,
    root: str,
    write: Callable[[bytes], object],
    wall_ms: int,
    on_nodes: Callable[[int], None] = lambda count: None,
) -> DumpEnd:
    """Give *write* the lines of a dump of every record. *root*: where those of ledgers begin. *on_nodes(count)* is
    called on the way. Raises MetadataError."""
    writer = DumpWriter()
    write(writer.head(DumpHead(__version__, wall_ms, root)))
    for place, left_out in (("/", root), (root, "")):
        async for node in _nodes_below(store, place, left_out):
            write(writer.node(node.path, node.value))
            on_nodes(writer.nodes)
    # Asked last: it is above the numbers of all ledgers that are in the dump.
    end = DumpEnd(writer.nodes, await LedgerStore(store, root).next_id())
    write(writer.end(end.next_ledger))
    return end


async def _nodes_below(store: MetadataStore, place: str, left_out: str) -> AsyncIterator[Node]:
    """The nodes at and below *place*, without those at and below *left_out*; a parent comes before its children."""
    waiting = [place]
    while waiting:
        some = [waiting.pop() for _ in range(min(len(waiting), _AT_ONCE))]
        for node in await asyncio.gather(*map(store.get, some)):
            if node is None or node.ephemeral:
                continue
            if node.path != "/":
                yield node
            if node.children == 0:
                continue
            below = node.path.rstrip("/") + "/"
            paths = [below + name for name in await store.children(node.path)]
            waiting += [path for path in paths if path not in (left_out, f"/{_OF_ZOOKEEPER}")]


async def put_back(
    store: MetadataStore, source: Path, on_nodes: Callable[[int, int], None] = lambda count, total: None
) -> DumpEnd:
    """Put the records of a dump into *store*, which has none. *on_nodes(count, total)* is called on the way. Raises
    BackupRefused, MetadataError."""
    head, end = await asyncio.to_thread(_checked, source)
    there = [name for name in await store.children("/") if name != _OF_ZOOKEEPER]
    if there:
        raise BackupRefused(
            f"the metadata store has records already (/{', /'.join(there[:5])}); put the dump into an empty one, or "
            "below another path (zk:HOST:PORT/PATH)"
        )
    identity = f"{head.root}/INSTANCEID", b""
    count = 0
    with contextlib.closing(_nodes_in(source)) as nodes:
        while chunk := list(islice(nodes, _AT_ONCE)):
            identity = next((node for node in chunk if node[0] == identity[0]), identity)
            await asyncio.gather(*(store.put(*node) for node in chunk if node[0] != identity[0]))
            count += len(chunk)
            on_nodes(count, end.nodes)
    await _use_up_numbers(store, head.root, end.next_ledger)
    if identity[1]:
        await store.put(*identity)  # rule 2
    return end


def _checked(source: Path) -> tuple[DumpHead, DumpEnd]:
    try:
        with source.open("rb") as lines:
            return check(lines, str(source))
    except OSError as error:
        raise BackupRefused(f"{source} cannot be read: {error.strerror}") from error


def _nodes_in(source: Path) -> Generator[tuple[str, bytes], None, None]:
    with source.open("rb") as lines:
        yield from nodes_of(lines)


async def _use_up_numbers(store: MetadataStore, root: str, next_ledger: int) -> None:
    """Rule 3."""
    if next_ledger >= SHORT_ID_LIMIT:
        await store.put(f"{root}/idgen-long/HOB-{(next_ledger >> 32) + 1:010d}", b"")
    elif next_ledger:
        await LedgerStore(store, root).advance(next_ledger - 1)


# ------------------------------------------------------------------------------------- without any dump


async def adopt_bookies(store: MetadataStore, root: str, versions: list[Path]) -> list[Cookie]:
    """Make an empty *store* that of the cluster whose bookies have the files *versions* (VERSION of a directory of
    each). Returns their cookies. Raises BackupRefused, Corruption, MetadataError."""
    cookies: dict[str, Cookie] = {}
    for path in versions:
        try:
            cookie = decode(path.read_bytes(), str(path))
        except OSError as error:
            raise BackupRefused(f"{path} cannot be read: {error.strerror}") from error
        if cookies.setdefault(cookie.bookie_id, cookie) != cookie:
            raise BackupRefused(f"{path} is another cookie of bookie {cookie.bookie_id}")
    identities = {cookie.instance_id for cookie in cookies.values()}
    if len(identities) != 1 or "" in identities:
        raise BackupRefused(
            f"these bookies are not of one cluster: {', '.join(sorted(identities)) or 'none was named'}"
        )
    if await store.exists(f"{root}/INSTANCEID"):
        raise BackupRefused(f"the metadata store knows a cluster already ({root}/INSTANCEID)")
    for cookie in cookies.values():
        await store.put(f"{root}/cookies/{cookie.bookie_id}", cookie.encode(), NO_NODE)
    await store.put(f"{root}/INSTANCEID", identities.pop().encode(), NO_NODE)
    await initialise_cluster(store, root)
    return list(cookies.values())
