"""The HTTP admin of a bookie in this process, and the cluster that Apache's answers were recorded in."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Final

import aiohttp

from bookie.admin.auto_recovery import RecoveryAccess
from bookie.admin.ledger_pages import LedgerAccess
from bookie.admin.server import AdminServer
from bookie.bookie import Bookie
from bookie.config import BookieConfig
from magnetar.processes.bookies.bookie import LedgerReader
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import BookieServiceInfo, bookie_endpoint
from magnetar_core.bookkeeper.metadata.bookies.register import BookieRegistration
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import (
    LedgerMetadata,
    LedgerState,
    Segment,
    encode,
    ledger_path,
)
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.types import Buffer, MagnetarError
from tests.support.bookie_disks import stored_entry
from tests.support.golden import load
from tests.support.serving import CONFIG, BookieMachines, Wire
from tests.unit.broker.admin.admin_world import Answer

Call = Callable[[str, str, Any], Awaitable[Answer]]

ROOT: Final = "/ledgers"
LIST: Final = "http/543-get-api-v1-ledger-list.json"
RECORDS: Final = "http/545-get-api-v1-ledger-list-print-metadata-true-decode-meta-true-page-1.json"


# Ledgers whose record of format 3 says when they were made; of the others the node does.
TIMED: Final = (17, 18)


class Client:
    """Makes calls of one bookie's admin."""

    def __init__(self, bookie: Bookie, admin: AdminServer, url: str, session: aiohttp.ClientSession) -> None:
        self.bookie = bookie
        self.admin = admin
        self.url = url
        self._session = session

    async def call(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._session.request(method, self.url + path, data=data, headers=headers) as answer:
            return Answer(answer.status, await answer.text(), dict(answer.headers))


@asynccontextmanager
async def administered(
    world: BookieMachines,
    config: BookieConfig = CONFIG,
    *,
    ledgers: LedgerAccess | None = None,
    recovery: RecoveryAccess | None = None,
    is_started: bool = True,
) -> AsyncIterator[Client]:
    """A bookie with its admin. Not *is_started*: the admin listens, the bookie does not serve yet."""
    reader = LedgerReader(world.store, world.clock, ROOT)
    async with world.serving(config) as bookie:
        admin = AdminServer(world.store, world.clock, reader if ledgers is None else ledgers, recovery=recovery)
        listening = socket_on_a_free_port()
        await admin.start(listening)
        if is_started:
            admin.serve(bookie.operations)
        url = "http://{}:{}".format(*listening.getsockname())
        try:
            async with aiohttp.ClientSession() as session:
                yield Client(bookie, admin, url, session)
        finally:
            await admin.stop()
            await reader.close()


def socket_on_a_free_port() -> Any:
    import socket

    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    return made


# ------------------------------------------------------------------------------- the recorded cluster


class RecordedEntries:
    """Ledger 7 of the recorded cluster; its entries are on bookies that are not here."""

    async def read(self, ledger_id: int, first: int, last: int | None) -> AsyncGenerator[tuple[int, Buffer], None]:
        if ledger_id != 7:
            raise MagnetarError(f"ledger {ledger_id} does not exist")
        entries = load("http/550-get-api-v1-ledger-read-ledger-id-7.json")["response"]["json"]
        for entry_id, payload in entries.items():
            if first <= int(entry_id) and (last is None or int(entry_id) <= last):
                yield int(entry_id), payload.encode()


class NotedRecovery:
    """`RecoveryAccess` that notes what it is asked for; its work ends when it is let to."""

    def __init__(self) -> None:
        self.asked: list[tuple[tuple[str, ...], bool]] = []
        self.may_end = asyncio.Event()

    async def recover(self, bookies: Sequence[str], *, delete_cookie: bool) -> str:
        self.asked.append((tuple(bookies), delete_cookie))
        await self.may_end.wait()
        return "0 of 0 ledgers"


@asynccontextmanager
async def recorded_cluster() -> AsyncIterator[Call]:
    """A bookie with the id, the directories and the neighbours of the recorded one."""
    world = BookieMachines()
    config = replace(
        CONFIG,
        bookie_id="127.0.0.1:3181",
        advertised_address="127.0.0.1",
        journal_directories=("/var/lib/bookie0/journal",),
        ledger_directories=("/var/lib/bookie0/ledgers",),
    )
    await initialise_cluster(world.store, ROOT)
    async with administered(world, config, ledgers=RecordedEntries(), recovery=NotedRecovery()) as client:
        wire = await Wire.connect(client.bookie)
        assert await wire.add(stored_entry(7, 0)) == 0
        wire.close()
        client.bookie.checkpointer.flush()  # so that there is an entry log
        await client.bookie.checkpointer.finish()
        # The others answer where this one does.
        info = BookieServiceInfo((bookie_endpoint(*client.bookie.address),))
        for bookie_id in ("127.0.0.1:3182", "127.0.0.1:3183", "node-d"):
            other = BookieRegistration(world.store, ROOT, bookie_id, world.clock)
            await other.write_cookie(b"", NO_NODE)
            await other.register(info)
        await _elect_and_mark(world)
        await _write_records(world)
        yield client.call


async def _elect_and_mark(world: BookieMachines) -> None:
    """An auditor, and ledger 14 without one of its copies."""
    root = f"{ROOT}/underreplication"
    vote = b'bookieId: "127.0.0.1:3183"\n'
    await world.store.put(f"{root}/auditorelection/V_0000000000", vote, NO_NODE)
    await world.store.put(f"{root}/ledgers/0000/0000/0000/000e/urL0000000014", b'replica: "node-d"\n', NO_NODE)


async def _write_records(world: BookieMachines) -> None:
    """The records of all ledgers that were there; those of the second page are not known, and like the first."""
    known = {int(name): record for name, record in load(RECORDS)["response"]["json"].items()}
    for name in load(LIST)["response"]["json"]:
        record = known.get(int(name), known[0])
        path = ledger_path(ROOT, int(name))
        await world.store.put(path, encode(_metadata(record)), NO_NODE)


def _metadata(record: dict[str, Any]) -> LedgerMetadata:
    version = record["metadataFormatVersion"]
    digest = record["digestType"] or "CRC32"
    return LedgerMetadata(
        ensemble_size=record["ensembleSize"],
        write_quorum=record["writeQuorumSize"],
        ack_quorum=record["ackQuorumSize"],
        digest_type=DigestType.HMAC if digest == "MAC" else DigestType[digest],
        password=base64.b64decode(record["password"]),
        state=LedgerState[record["state"]],
        length=record["length"],
        last_entry_id=record["lastEntryId"],
        ctime_ms=record["ctime"] if version == 2 or record["ledgerId"] in TIMED else None,
        custom_metadata=tuple((name, base64.b64decode(value)) for name, value in record["customMetadata"].items()),
        ctoken=record["ctoken"],
        format_version=version,
        segments=tuple(
            Segment(int(first), tuple(member["id"] for member in ensemble))
            for first, ensemble in record["allEnsembles"].items()
        ),
    )
