"""TLS on the bookie port, with Python's ssl: contexts from files, and the client's side of START_TLS.

    client ── START_TLS (third protocol, in clear) ──▶ bookie
           ◀─ EOK (in clear) ──────────────────────
           ══ TLS handshake ═══════════════════════
           ── GET_BOOKIE_INFO ──▶ ◀── EOK or EUA ──    what the bookie thinks of our certificate
           ══ whatever protocol it will be ════════

Rules:

1. A client with TLS settings never sends a request in clear: a bookie that does not offer TLS counts as unreachable.
2. Bytes that arrive before they are expected end the connection.
3. New connections use changed files. If the changed files cannot be used, this is reported, and the former ones stay in
   use.
4. An expired certificate is refused at the start, where a person sees the error. One that expires later is reported at
   each check of the files.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from magnetar_core.bookkeeper.tls.files import TlsFiles, validities
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import KIB, ConfigurationError

log = logging.getLogger(__name__)

P = TypeVar("P", bound=asyncio.Protocol)

HANDSHAKE_S: Final = 10.0
"""Limit of one handshake, on both sides. (Apache's clients: startTLSTimeoutSecs.)"""

# Automatic issuers renew certificates earlier than this. A person who renews by hand gets a week's notice.
_EXPIRES_SOON: Final = timedelta(days=7)

# The answers to START_TLS and GET_BOOKIE_INFO are below 100 bytes; they may carry more fields one day.
_ANSWER_BYTES_MAX: Final = 4 * KIB

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsFailed(ConnectionError):
    """No TLS connection could be made; the text says why and what to do."""


class Certificates:
    """A context of the ssl library, made from files, and made again when they change (rule 3).

    Loading reads small files for about a millisecond, so it is done on the loop. Raises ConfigurationError.
    """

    def __init__(self, files: TlsFiles, make: Callable[[TlsFiles], ssl.SSLContext], clock: Clock) -> None:
        self.files = files
        self._make = make
        self._clock = clock
        self._stamps = self._read_stamps()
        self._context = self._made()
        self._checked_s = clock.monotonic()

    @property
    def context(self) -> ssl.SSLContext:
        """The context for the next connection."""
        now_s = self._clock.monotonic()
        if self.files.refresh_s and now_s - self._checked_s >= self.files.refresh_s:
            self._checked_s = now_s
            stamps = self._read_stamps()
            if stamps != self._stamps:
                try:
                    self._context = self._made()
                except ConfigurationError as error:
                    log.error("the changed TLS files are not used, the former ones stay: %s", error)
                else:
                    self._stamps = stamps
                    log.info("TLS files were read anew (%s)", self.files.origin)
            elif (problem := self._expired()) is not None:
                log.error("new connections will fail: %s", problem)
        return self._context

    def _made(self) -> ssl.SSLContext:
        made = self._make(self.files)
        if (problem := self._expired()) is not None:
            raise ConfigurationError(problem)
        now = self._now()
        for begin, end in validities(_text_of(self.files.certificate))[:1]:
            if begin > now:
                log.warning("certificate %s is not valid before %s", self.files.certificate, _date(begin))
            elif end - now < min(_EXPIRES_SOON, (end - begin) / 10):
                log.warning("certificate %s expires on %s", self.files.certificate, _date(end))
        return made

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ms() / 1000, UTC)

    def _expired(self) -> str | None:
        """Rule 4: why no peer will accept these certificates, or None."""
        files, now = self.files, self._now()
        for _, end in validities(_text_of(files.certificate))[:1]:  # its issuers' certificates follow it
            if end <= now:
                return f"{files.origin}: certificate {files.certificate} expired on {_date(end)}; put a new one there"
        trusted = validities(_text_of(files.trusted))
        if trusted and all(end <= now for _, end in trusted):
            last = _date(max(end for _, end in trusted))
            return (
                f"{files.origin}: all trusted certificates in {files.trusted} have expired, the last on {last}; put "
                "a new one there"
            )
        return None

    def _read_stamps(self) -> list[tuple[int, int] | None]:
        return [_stamp(path) for path in self.files.paths]


def _date(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _text_of(path: str) -> str:
    if not path:
        return ""
    try:
        with open(path, encoding="ascii", errors="replace") as source:
            return source.read()
    except OSError:
        return ""


def _stamp(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def server_context(files: TlsFiles, *, client_certificates: bool) -> ssl.SSLContext:
    """A bookie's side. With *client_certificates* a client without a trusted one is refused.

    Raises ConfigurationError with path and reason.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.options |= ssl.OP_NO_RENEGOTIATION  # otherwise a client could demand handshakes without end
    _limit(made, files)
    _load_own(made, files)
    if client_certificates:
        made.verify_mode = ssl.CERT_REQUIRED
        _load_trusted(made, files)
    return made


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """A client's side: the bookie must have a trusted certificate; ours is shown if there is one.

    Raises ConfigurationError with path and reason.
    """
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = files.verify_hostname
    _limit(made, files)
    _load_trusted(made, files)
    if files.certificate:
        _load_own(made, files)
    return made


def _limit(context: ssl.SSLContext, files: TlsFiles) -> None:
    versions = [_VERSIONS[protocol] for protocol in files.protocols] or list(_VERSIONS.values())
    if files.ciphers:
        # The ssl library has no way to choose the suites of TLS 1.3, so a list of suites excludes that version.
        versions = [version for version in versions if version is ssl.TLSVersion.TLSv1_2]
        if not versions:
            raise ConfigurationError(f"{files.origin}: cipher suites can be chosen for TLSv1.2 only; switch that on")
        try:
            context.set_ciphers(files.ciphers)
        except ssl.SSLError:
            raise ConfigurationError(f"{files.origin}: none of the suites {files.ciphers} is there") from None
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _load_own(context: ssl.SSLContext, files: TlsFiles) -> None:
    for what, path in (("certificate", files.certificate), ("key", files.key)):
        _must_be_readable(path, what, files)
    password = ""
    if files.key_password_file:
        try:
            with open(files.key_password_file, encoding="utf-8") as source:
                password = source.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{files.origin}: no password in {files.key_password_file}: {error}") from None
    try:
        # Always with a password: without one, OpenSSL would ask for it on the terminal.
        context.load_cert_chain(files.certificate, files.key, password)
    except ssl.SSLError as error:
        reason = {
            "KEY_VALUES_MISMATCH": "the key does not belong to the certificate",
            "NO_START_LINE": "one of them is not PEM",
        }.get(error.reason or "", f"not PEM, or the password is wrong ({error.reason or error})")
        raise ConfigurationError(
            f"{files.origin}: certificate {files.certificate} with key {files.key} cannot be used: {reason}"
        ) from None


def _load_trusted(context: ssl.SSLContext, files: TlsFiles) -> None:
    _must_be_readable(files.trusted, "file of trusted certificates", files)
    try:
        context.load_verify_locations(files.trusted)
    except ssl.SSLError as error:
        reason = error.reason or str(error)
        raise ConfigurationError(f"{files.origin}: no PEM certificates in {files.trusted} ({reason})") from None


def _must_be_readable(path: str, what: str, files: TlsFiles) -> None:
    if not path:
        raise ConfigurationError(f"{files.origin}: TLS needs a {what}, and none is set")
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigurationError(f"{files.origin}: cannot read the {what} {path}: {error.strerror}") from None


# ---------------------------------------------------------------------------------- client's side


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
    made, _ = await loop.create_connection(lambda: greeter, host, port)
    transport = made
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
                f"({certificates.files.certificate or 'there is none'}; OU=0:role)"
            )
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
    except BaseException:
        transport.abort()
        made.abort()
        raise
    return transport, protocol


def _not_admitted(files: TlsFiles, error: OSError) -> str:
    reason = getattr(error, "reason", None) or str(error) or type(error).__name__
    if not files.certificate:
        return f"it ended the connection; it may demand a certificate, and none is set here ({reason})"
    return f"it ended the connection; most likely it does not accept the certificate {files.certificate} ({reason})"


async def open_stream(
    host: str, port: int, certificates: Certificates | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A stream to a bookie; in clear without *certificates*. Raises OSError."""
    if certificates is None:
        return await asyncio.open_connection(host, port)
    reader = asyncio.StreamReader()
    transport, protocol = await connect(asyncio.StreamReaderProtocol(reader), host, port, certificates)
    return reader, asyncio.StreamWriter(transport, protocol, reader, asyncio.get_running_loop())
