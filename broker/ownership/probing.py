"""Whether other brokers live: asked at their binary ports, with something that the process itself must answer.

    connect ──▶ PING ──▶ PONG, or anything else, or the end of the connection        it lives
       │          └──▶ nothing within ANSWER_S                                       it hangs (SIGSTOP, a dead disk)
       └──▶ refused: nobody has the port      └──▶ no answer within CONNECT_S: its machine is away, or slow

A connection alone says little: the system accepts it for a process that stands still. Apache's brokers answer a PING
before CONNECT too, without a log line and without asking who it is (`PulsarHandler.handlePing`). At a port that has TLS
only, the handshake is the question.

Nothing is decided here, and an answer may be wrong a moment later: ownership is what the metadata store says.
"""

import asyncio
import ssl
from enum import Enum
from typing import Final, Protocol
from urllib.parse import urlsplit

from broker.ownership.rules import BrokerAddress
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import command
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import SingleFlight, Tasks

CONNECT_S: Final = 0.5

# A broker that takes over thousands of topics on a busy machine may be away from its sockets for a second.
ANSWER_S: Final = 2.0

# How long a sign counts, so that a thousand lookups ask once. That a broker hangs took longer to learn.
VALID_S: Final = 0.2
HANGS_VALID_S: Final = 1.0

# Brokers whose last sign is kept; a cluster has some dozens.
KEPT_MAX: Final = 1_000

_PING: Final = command(wire.BaseCommand.PING)


class Sign(Enum):
    """What a broker showed of itself."""

    ANSWERS = "answers"
    REFUSES = "refuses"
    """Nobody has its port."""
    AWAY = "away"
    """It cannot be reached; it, its machine or this one may be slow."""
    HANGS = "hangs"
    """It takes connections and says nothing."""


class Probes(Protocol):
    """Whether other brokers live."""

    async def sign(self, broker: BrokerAddress) -> Sign: ...

    async def is_gone(self, broker: BrokerAddress) -> bool: ...

    def forget(self, broker: BrokerAddress) -> None: ...


class Prober:
    """Asks the other brokers, for one of them."""

    def __init__(self, clock: Clock, tasks: Tasks) -> None:
        self._clock = clock
        self._asking: SingleFlight[str, Sign] = SingleFlight(tasks, "asking")
        self._signs: dict[str, tuple[float, Sign]] = {}
        self._context: ssl.SSLContext | None = None

    async def sign(self, broker: BrokerAddress) -> Sign:
        """What *broker* shows now, or showed a moment ago."""
        url = broker.native_url
        asked_s, sign = self._signs.get(url, (float("-inf"), Sign.AWAY))
        if self._clock.monotonic() - asked_s < (HANGS_VALID_S if sign is Sign.HANGS else VALID_S):
            return sign
        return await self._asking.do(url, lambda: self._ask(url))

    async def is_gone(self, broker: BrokerAddress) -> bool:
        """Whether nobody has the ports of *broker*, neither that of the binary protocol nor that of HTTP: its process
        is gone. A machine that does not answer proves nothing."""
        urls = [url for url in (broker.native_url, broker.http_url or broker.https_url) if url]
        return len(urls) == 2 and all(await asyncio.gather(*map(_refuses, urls)))

    @property
    def kept(self) -> int:
        """Brokers whose last sign is kept."""
        return len(self._signs)

    def forget(self, broker: BrokerAddress) -> None:
        """Ask it again the next time."""
        self._signs.pop(broker.native_url, None)

    async def _ask(self, url: str) -> Sign:
        sign = await self._shown(url)
        now_s = self._clock.monotonic()
        if len(self._signs) >= KEPT_MAX:
            fresh_s = now_s - HANGS_VALID_S
            self._signs = {url: seen for url, seen in self._signs.items() if seen[0] > fresh_s}
        self._signs[url] = (now_s, sign)
        return sign

    async def _shown(self, url: str) -> Sign:
        try:
            reader, writer = await _connect(url)
        except ConnectionRefusedError:
            return Sign.REFUSES
        except (OSError, TimeoutError, ValueError):
            return Sign.AWAY
        try:
            async with asyncio.timeout(ANSWER_S):
                if url.startswith("pulsar+ssl:"):
                    await writer.start_tls(self._any_peer())
                    return Sign.ANSWERS
                writer.write(_PING)
                if await reader.read(1):
                    return Sign.ANSWERS
        except TimeoutError:
            return Sign.HANGS
        except OSError:  # of TLS, too: the peer spoke, or ended the connection
            pass
        finally:
            writer.transport.abort()
        # It ended the connection: because it wants no such client, or because it ended itself at this moment.
        try:
            _, writer = await _connect(url)
        except ConnectionRefusedError:
            return Sign.REFUSES
        except (OSError, TimeoutError):
            return Sign.AWAY
        writer.transport.abort()
        return Sign.ANSWERS

    def _any_peer(self) -> ssl.SSLContext:
        """Accepts any peer: the question is whether it lives, not who it is, and nothing is said to it."""
        if self._context is None:
            self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._context.check_hostname = False
            self._context.verify_mode = ssl.CERT_NONE
        return self._context


async def _refuses(url: str) -> bool:
    try:
        _, writer = await _connect(url)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError, ValueError):
        return False
    writer.transport.abort()
    return False


async def _connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises OSError, TimeoutError, ValueError (not a URL of a broker)."""
    parts = urlsplit(url)
    async with asyncio.timeout(CONNECT_S):
        return await asyncio.open_connection(parts.hostname, parts.port)
