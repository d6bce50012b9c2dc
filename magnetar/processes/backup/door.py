"""The socket in the data folder of a standalone, where `magnetar backup` asks for a snapshot.

    connect ──▶ a line of JSON: {"taken": …} or {"problem": …} ──▶ whoever asked copies ──▶ it closes: removed

Who may open the socket may read the files beside it: no other right is asked. The snapshot lasts as long as the
connection, so a command that is killed leaves nothing behind.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from magnetar.processes.backup.snapshot import Snapshot, Taken
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import MagnetarError

log = logging.getLogger(__name__)

SOCKET: Final = "backup.socket"

# So long a command waits at most for the removal of its snapshot, of which nobody needs to know.
_REMOVED_S: Final = 30.0

_MODE: Final = stat.S_IRUSR | stat.S_IWUSR


class BackupDoor:
    """Takes one snapshot at a time for those who connect. Used on the loop."""

    def __init__(self, data: Path, snapshot: Snapshot) -> None:
        self._path = data / SOCKET
        self._snapshot = snapshot
        self._server: asyncio.Server | None = None
        self._tasks = Tasks("backups")
        self._is_taken = False

    async def open(self) -> None:
        """Listen. Where the file system has no sockets, a standalone works without: it is backed up when it is
        stopped."""
        try:
            self._path.unlink(missing_ok=True)  # of a process that was killed: this one has the folder's lock
            listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            with contextlib.ExitStack() as stack:
                stack.callback(listening.close)
                with reachable(self._path) as path:
                    listening.bind(path)
                    os.chmod(path, _MODE)  # before it listens
                self._server = await asyncio.start_unix_server(self._connected, sock=listening)
                stack.pop_all()
        except OSError as error:
            log.warning("no backup can be made while this runs: %s cannot be opened: %s", self._path, error)

    async def close(self) -> None:
        """End the snapshot that there is, and take no more."""
        if self._server is not None:
            self._server.close()
        await self._tasks.cancel()
        await self._snapshot.remove()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._tasks.is_closed:
            writer.close()
        else:
            self._tasks.spawn(self._serve(reader, writer), "backup")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._is_taken:
                writer.write(_line({"problem": "another backup of this folder is being made; try again later"}))
                return
            self._is_taken = True
            try:
                await self._serve_caller(reader, writer)
            finally:
                self._is_taken = False
        except OSError:
            pass  # whoever asked is gone
        finally:
            writer.close()

    async def _serve_caller(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            taken = await self._snapshot.take()
        except MagnetarError as error:
            writer.write(_line({"problem": str(error)}))
            return
        try:
            writer.write(_line({"taken": taken}))
            await writer.drain()
            await reader.read(1)  # nothing is sent: it returns when the other side closes
        finally:
            await self._snapshot.remove()


class Lent:
    """The other side: a snapshot of a process that runs, until `close`. Blocks."""

    def __init__(self, data: Path) -> None:
        """Raises FileNotFoundError or ConnectionRefusedError where no standalone listens, MagnetarError if none can be
        taken, OSError."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with reachable(data / SOCKET) as path:
                self._socket.connect(path)
            with self._socket.makefile("rb") as answer:
                line = answer.readline()
            if not line.endswith(b"\n"):
                raise MagnetarError(f"the standalone of {data} ended while it took a snapshot")
            facts = json.loads(line)
            if "problem" in facts:
                raise MagnetarError(str(facts["problem"]))
            self.taken = Taken.of(facts["taken"])
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the snapshot back; returns when it is removed, or the process has ended."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(_REMOVED_S)
            self._socket.shutdown(socket.SHUT_WR)
            while self._socket.recv(1):
                pass
        self._socket.close()


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A short name of *path*: that of a socket has at most 107 bytes, and a data folder may be longer."""
    if len(os.fsencode(path)) < 100 or not os.path.isdir("/proc/self/fd"):
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def _line(value: dict[str, object]) -> bytes:
    return json.dumps(value).encode() + b"\n"
