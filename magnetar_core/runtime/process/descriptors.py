"""File descriptors of this process: how many there are, and what is kept for storage.

Rules:

1. The soft limit is raised to the hard one when a server starts.
2. The last part (`reserved`) is for what this process opens itself: journals, logs, metadata, its own connections to
   others. A connection from outside that would take one of these descriptors is closed at once.
3. A socket gets the lowest free number, so one with a number in the reserve says that all below it are in use: nothing
   has to be counted, and files count as much as connections.
4. The log has a line about it at most every `_LINE_S`; a metric counts each.
"""

import asyncio
import logging
import resource
from collections.abc import Callable, Iterator
from typing import Final, cast

from magnetar_core.runtime.observe import Sample

log = logging.getLogger(__name__)

# Every second one where there are few: a process with 1,024 keeps 512. A bookie has two for each of its entry logs in
# use (144 at most), its journals, its index and the metadata store; a broker a connection to each bookie.
RESERVED_SHARE: Final = 2

# With more descriptors than 8,192 the reserve does not grow any more: no storage has so many files open.
RESERVED_MAX: Final = 4_096

# A hard limit may be 2^30 in a container; tables of the system grow with the numbers in use.
DESCRIPTORS_MAX: Final = 1 << 20

_LINE_S: Final = 10.0

Factory = Callable[[], asyncio.BaseProtocol]


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one (rule 1); returns what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return _number(soft)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (ValueError, OSError) as error:  # macOS has another bound below its hard limit
        log.warning("the limit of open files stays %d of %d: %s", soft, most, error)
        return soft
    log.info("the limit of open files is raised from %d to %d; %d of them are for storage", soft, most, reserved(most))
    return most


def limit() -> int:
    """How many descriptors this process may have open now."""
    return _number(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def reserved(most: int) -> int:
    """How many of *most* descriptors no connection from outside may take (rule 2)."""
    return min(most // RESERVED_SHARE, RESERVED_MAX)


def _number(soft: int) -> int:
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft


class Descriptors:
    """Says whether a connection may come in, at all ports of a process."""

    def __init__(self, limit: Callable[[], int] = limit) -> None:
        self.limit = limit
        self._next_line_s = float("-inf")
        self.refused = 0
        """Connections that were closed because the others are for storage."""

    @property
    def for_connections(self) -> int:
        """How many descriptors connections from outside and open files may have together."""
        most = self.limit()
        return most - reserved(most)

    def refuses(self, number: int, peer: str, now_s: float) -> bool:
        """Whether the connection with the descriptor *number* must be closed (rules 2 and 3)."""
        most = self.for_connections
        if number < most:
            return False
        self.refused += 1
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + _LINE_S
            log.warning(
                "a connection of %s is closed (%d so far): %d open files are in use, and the other %d are for storage; "
                "raise the hard limit of open files (ulimit -Hn, LimitNOFILE) or let fewer clients connect",
                peer, self.refused, most, self.limit() - most,
            )  # fmt: skip
        return True


DESCRIPTORS: Final = Descriptors()
"""The descriptors of this process."""


def descriptor_samples() -> Iterator[Sample]:
    """The metrics of this process about its descriptors, for all its servers together."""
    text = "connections that were closed at once because the files that may still be opened are for storage"
    yield Sample("magnetar_connections_refused_total", DESCRIPTORS.refused, help=text)
    yield Sample("magnetar_open_files_limit", limit(), help="files and connections that the process may have open")


def guarded(make: Factory, descriptors: Descriptors = DESCRIPTORS) -> Factory:
    """*make*, but only for connections that may come in; the others are closed before anything is made for them."""

    def refuses(transport: asyncio.BaseTransport) -> bool:
        accepted = transport.get_extra_info("socket")
        if accepted is None:  # a transport of a test
            return False
        return descriptors.refuses(accepted.fileno(), peer_of(transport), asyncio.get_running_loop().time())

    return lambda: Arriving(make, refuses)


def peer_of(transport: asyncio.BaseTransport) -> str:
    """The other end of a connection, for people."""
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) > 1 else "a client"


class Arriving(asyncio.Protocol):
    """A connection until it is known whether it may come in; it belongs to what *make* makes from then on."""

    def __init__(self, make: Factory, refuses: Callable[[asyncio.BaseTransport], bool]) -> None:
        self._make = make
        self._refuses = refuses
        self._admitted: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._refuses(transport):
            cast(asyncio.Transport, transport).abort()
            return
        self._admitted = cast(asyncio.Protocol, self._make())
        transport.set_protocol(self._admitted)
        self._admitted.connection_made(transport)

    # Only called by what stands before a protocol and does not know that it was replaced.

    def data_received(self, data: bytes) -> None:
        if self._admitted is not None:
            self._admitted.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._admitted is None else self._admitted.eof_received()

    def pause_writing(self) -> None:
        if self._admitted is not None:
            self._admitted.pause_writing()

    def resume_writing(self) -> None:
        if self._admitted is not None:
            self._admitted.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._admitted is not None:
            self._admitted.connection_lost(exc)
