"""Builds a bookie's process: the bookie, its HTTP admin, and the client that reads ledgers for the admin."""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING

from bookie.bookie import Bookie, PortInUse
from bookie.config import BookieConfig
from bookie.serving.tls_listener import client_certificates
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import Files
from magnetar_core.runtime.process.daemon import Shutdown
from magnetar_core.runtime.tasks import Parts
from magnetar_core.runtime.types import MIB, Buffer

if TYPE_CHECKING:
    from aiohttp.web import Application

# Entries that are in memory at a time while a ledger is read for an operator.
_READ_ENTRIES_MAX = 1_000
_READ_BYTES_MAX = MIB

# Ledgers that the log names after a recovery that an operator asked for.
_FAILURES_NAMED = 100


class HttpPortInUse(PortInUse):
    """The port of the HTTP admin cannot be opened."""


class LedgerReader:
    """`bookie.admin.ledger_pages.LedgerAccess` over the ledger client, which is opened when it is first needed."""

    def __init__(self, store: MetadataStore, clock: Clock, root: str, config: ClientConfig | None = None) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._root = root
        self._client: BookKeeper | None = None
        self._opening = asyncio.Lock()

    async def read(self, ledger_id: int, first: int, last: int | None) -> AsyncGenerator[tuple[int, Buffer], None]:
        """See LedgerAccess. The password is taken from the ledger's record."""
        client = await self.opened()
        metadata = await client.read_metadata(ledger_id)
        handle = await client.open_ledger(ledger_id, password=metadata.password, recovery=False)
        try:
            confirmed = handle.last_add_confirmed
            last = confirmed if last is None else min(last, confirmed)
            while first <= last:
                run = await handle.read_batch(first, min(last - first + 1, _READ_ENTRIES_MAX), _READ_BYTES_MAX)
                for entry in run:
                    yield entry.entry_id, entry.payload
                first += len(run)
        finally:
            await handle.close()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()

    async def opened(self) -> BookKeeper:
        """The client. Raises MagnetarError."""
        async with self._opening:
            if self._client is None:
                client = BookKeeper(self._store, self._clock, self._config, root=self._root)
                await client.open()
                self._client = client
            return self._client


class LedgerRecovery:
    """`bookie.admin.auto_recovery.RecoveryAccess` over auto-recovery's own copying."""

    def __init__(
        self, name: str, store: MetadataStore, clock: Clock, reader: LedgerReader, root: str, bytes_per_s: float | None
    ) -> None:
        """*name* stands in the locks of ledgers that are copied; *bytes_per_s* at most; None: no limit."""
        self._name = name
        self._store = store
        self._clock = clock
        self._reader = reader
        self._root = root
        self._bytes_per_s = bytes_per_s

    async def recover(self, bookies: Sequence[str], *, delete_cookie: bool) -> str:
        """See RecoveryAccess."""
        from autorecovery.manual import ManualRecovery

        client = await self._reader.opened()
        recovery = ManualRecovery(
            self._name, self._store, client, self._clock, root=self._root, bytes_per_s=self._bytes_per_s
        )
        done = await recovery.recover(bookies)
        if delete_cookie and not done.failed:
            for bookie in bookies:
                await recovery.delete_cookie(bookie)
        text = f"{done.repaired} of {done.ledgers} ledgers are elsewhere now, {done.copied_entries} entries were copied"
        failed = "; ".join(
            f"ledger {ledger_id}: {why}" for ledger_id, why in sorted(done.failed.items())[:_FAILURES_NAMED]
        )
        return text + (f"; {len(done.failed)} failed: {failed}" if failed else "")


async def start_bookie(
    config: BookieConfig,
    store: MetadataStore,
    clock: Clock,
    files: Files,
    parts: Parts,
    shutdown: Shutdown,
    *,
    root: str,
    mounted: "Mapping[str, Application] | None" = None,
    recovery_rate: float | None = None,
    is_moved: bool = False,
) -> tuple[Bookie, str]:
    """Start a bookie and, where the settings say so, its HTTP; *parts* learns how to stop them.

    *mounted*: prefix → application that is served on the bookie's HTTP, too. *recovery_rate*: bytes a second that
    recoveries which it is asked for copy; None: no limit. *is_moved*: its directories may stand elsewhere than they
    did. Returns the bookie and the URL of its HTTP, empty if there is none. Raises MagnetarError.

    HTTP is opened first, so that health checks reach the process also while a long journal is replayed.
    """
    certificates = client_certificates(config, clock)
    bookie = Bookie(config, store, clock, files, root=root, on_failure=shutdown.fail, is_moved=is_moved)
    listening = _bind_http(config)
    if listening is None:
        await bookie.start()
        parts.add("bookie", bookie.stop)
        return bookie, ""
    host, port = listening.getsockname()[:2]
    # Here, because loading the HTTP library costs time and memory.
    from bookie.admin.server import AdminServer

    reader = LedgerReader(
        store, clock, root, ClientConfig(tls=config.client_tls, frame_bytes_max=config.frame_bytes_max)
    )
    parts.add("ledger client", reader.close)
    admin = AdminServer(
        store,
        clock,
        reader,
        root=root,
        metrics_only=config.is_metrics_only,
        certificates=certificates,
        recovery=LedgerRecovery(
            f"recovery-{socket.gethostname()}-{os.getpid()}", store, clock, reader, root, recovery_rate
        ),
        mounted=mounted,
        names={*config.http_names, config.advertised_address, socket.gethostname()},
    )
    await admin.start(listening)
    parts.add("admin", admin.stop)
    await bookie.start()
    parts.add("bookie", bookie.stop)
    admin.serve(bookie.operations)
    return bookie, url_of(host, port)


def url_of(host: str, port: int) -> str:
    """Where a browser finds what listens at *host*."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind_http(config: BookieConfig) -> socket.socket | None:
    """The HTTP socket, bound before anything is started: a port that is in use is noticed at once."""
    if config.http_address is None:
        return None
    names = ("prometheusStatsHttpAddress", "prometheusStatsHttpPort")
    if not config.is_metrics_only:
        names = ("httpServerHost", "httpServerPort")
    return bind_http(*config.http_address, names)


def bind_http(host: str, port: int, names: tuple[str, str]) -> socket.socket:
    """A socket for HTTP; *names* of the settings with host and port stand in the error. Raises HttpPortInUse."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    with contextlib.ExitStack() as stack:
        stack.callback(listening.close)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            where = f"cannot open the HTTP port {host}:{port}"
            if error.errno == errno.EADDRINUSE:
                raise HttpPortInUse(
                    f"{where}: it is in use. Stop what uses it, or set {names[1]} to another one"
                ) from None
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise HttpPortInUse(f"{where}: {reason}. Set {names[0]} or {names[1]} differently") from None
        stack.pop_all()
    return listening
