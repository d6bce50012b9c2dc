"""TLS on the bookie port: the client's side of START_TLS.

    client ── START_TLS (third protocol, in clear) ──▶ bookie
           ◀─ EOK (in clear) ──────────────────────
           ══ TLS handshake ═══════════════════════
           ── GET_BOOKIE_INFO ──▶ ◀── EOK or EUA ──    what the bookie thinks of our certificate
           ══ whatever protocol it will be ════════

Rules:

1. A client with TLS settings never sends a request in clear: a bookie that does not offer TLS counts as unreachable.
2. Bytes that arrive before they are expected end the connection.
"""

import asyncio
import ssl
from typing import Final, TypeVar

from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame
from magnetar_core.runtime.types import KIB
from magnetar_core.security.tls.contexts import HANDSHAKE_S, Certificates
from magnetar_core.security.tls.files import TlsFiles

P = TypeVar("P", bound=asyncio.BaseProtocol)

# The answers to START_TLS and GET_BOOKIE_INFO are below 100 bytes; they may carry more fields one day.
_ANSWER_BYTES_MAX: Final = 4 * KIB


class TlsFailed(ConnectionError):
    """No TLS connection could be made; the text says why and what to do."""


class _Greeter(asyncio.Protocol):
    """Sends the requests that come before the first real one; each waits for its answer."""

    def __init__(self) -> None:
        self._splitter = FrameSplitter(_ANSWER_BYTES_MAX)
        self._answer: asyncio.Future[int] | None = None
        self._end: BaseException | None = None

    async def ask(self, transport: asyncio.Transport, request: bytes) -> int:
        """The status of the answer. Raises TlsFailed, OSError."""
        if self._end is not None:
            raise self._end
        self._answer = asyncio.get_running_loop().create_future()
        transport.write(request)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        try:
            frames = self._splitter.feed(data)
            statuses = [v3.parse_response(frame).status for frame in frames]
        except MalformedFrame as error:
            self._fail(TlsFailed(f"its answer to START_TLS cannot be read: {error}"))
            return
        if not statuses and not self._splitter.is_between_frames:
            return
        if len(statuses) != 1 or not self._splitter.is_between_frames or answer is None or answer.done():
            self._fail(TlsFailed("it sent more than was asked for"))
        else:
            answer.set_result(statuses[0])

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error if isinstance(error, OSError) else TlsFailed("it closed the connection"))

    def _fail(self, error: BaseException) -> None:
        self._end = self._end or error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._end)


async def connect(protocol: P, host: str, port: int, certificates: Certificates) -> tuple[asyncio.Transport, P]:
    """Connect to a bookie over TLS. *protocol* is connected after the bookie has admitted this client.

    Raises TlsFailed and other OSErrors. Only the handshake has a time limit here.
    """
    loop = asyncio.get_running_loop()
    greeter = _Greeter()
    plain, _ = await loop.create_connection(lambda: greeter, host, port)
    transport = plain
    try:
        status = await greeter.ask(transport, v3.start_tls_request(0))
        if status == v3.V3Error.EBADREQ:
            raise TlsFailed("it does not offer TLS; switch it on there, or off here")
        if status != v3.V3Error.EOK:
            raise TlsFailed(f"it refused START_TLS with status {status}")
        greeter = _Greeter()
        context = certificates.context
        try:
            secure = await loop.start_tls(
                transport, greeter, context, server_hostname=host, ssl_handshake_timeout=HANDSHAKE_S
            )
            if secure is None:  # event loops return None if this side aborted the connection
                raise ConnectionAbortedError("the connection was ended")
        except ssl.SSLCertVerificationError as error:
            trusted = certificates.files.trusted
            raise TlsFailed(f"its certificate is not accepted: {error.verify_message} ({trusted})") from None
        except ssl.SSLError as error:
            raise TlsFailed(f"the TLS handshake failed: {error.reason or error}") from None
        except (ConnectionError, TimeoutError) as error:
            raise TlsFailed(f"the TLS handshake ended: {error or type(error).__name__}") from None
        transport = secure
        # In TLS 1.3 the client's handshake ends before the bookie has checked its certificate. So ask it something.
        try:
            status = await greeter.ask(transport, v3.bookie_info_request(1, v3.TOTAL_DISK_CAPACITY))
        except OSError as error:
            raise TlsFailed(_not_admitted(certificates.files, error)) from None
        if status == v3.V3Error.EUA:
            raise TlsFailed(
                "it does not admit this client: its authorizedRoles must have the role in the client's certificate "
                f"({certificates.files.own or 'there is none'}; OU=0:role)"
            )
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
    except BaseException:
        transport.abort()
        plain.abort()
        raise
    return transport, protocol


def _not_admitted(files: TlsFiles, error: OSError) -> str:
    reason = getattr(error, "reason", None) or str(error) or type(error).__name__
    if not files.own:
        return f"it ended the connection; it may demand a certificate, and none is set here ({reason})"
    return f"it ended the connection; most likely it does not accept the certificate {files.own} ({reason})"


async def open_stream(
    host: str, port: int, certificates: Certificates | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream to a bookie; in clear without *certificates*. Raises OSError."""
    if certificates is None:
        return await asyncio.open_connection(host, port)
    reader = asyncio.StreamReader()
    transport, protocol = await connect(asyncio.StreamReaderProtocol(reader), host, port, certificates)
    return reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
