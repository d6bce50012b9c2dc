"""The bookie port with TLS: every connection begins here, and is handed to the server once it is admitted.

A connection that was handed over is the same object, at the same cost, as on a bookie without TLS: its frames do not
pass through this module.

Rules:

1. START_TLS comes first, alone: bytes after it in the same chunk are too early and end the connection. Reading stops
   before the answer is written, so all later bytes belong to the handshake.
2. START_TLS on a connection that was handed over, or is secure already, is refused with EBADREQ.
3. A handshake has a time limit. A failed handshake ends only its own connection.
4. Failures are counted, and at most one log line a second names the client and the reason.
5. A client that is not admitted may keep the connection, as with Apache's bookies, and gets EUA for every request. No
   more requests are read while it leaves the answers unread.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from bookie.access import START_TLS_BYTES_MAX, Rules, is_start_tls, refusal_of
from bookie.config import BookieConfig
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import LENGTH, FrameSplitter, MalformedFrame
from magnetar_core.bookkeeper.wire.unfinished import Unfinished
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.security.tls.contexts import HANDSHAKE_S, Certificates, client_context, server_context

log = logging.getLogger(__name__)

_HEAD_BYTES: Final = LENGTH.size + 1  # a frame's length, and the byte by which the protocols differ

# The first bytes of a TLS handshake. Read as a length they would mean a frame of 369 MB.
_CLIENT_HELLO: Final = b"\x16\x03"

# At most one line a second: a misconfigured client connects again and again, and so may all clients of a cluster.
_LINE_S: Final = 1.0


def server_certificates(config: BookieConfig, clock: Clock) -> Certificates | None:
    """The certificates of the bookie port; None where it takes clear text only. Raises ConfigurationError."""
    if config.tls is None:
        return None
    make = partial(server_context, client_certificates=config.asks_for_certificates)
    return Certificates(config.tls, make, clock)


def client_certificates(config: BookieConfig, clock: Clock) -> Certificates | None:
    """The certificates for connections to other bookies; None: clear text. Raises ConfigurationError."""
    return None if config.client_tls is None else Certificates(config.client_tls, client_context, clock)


class _RefusalLog:
    """Log lines about clients that were not admitted, at a limited rate (rule 4)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_s = float("-inf")
        self._left_out = 0

    def say(self, text: str) -> None:
        now = self._clock.monotonic()
        if now < self._next_s:
            self._left_out += 1
            return
        self._next_s = now + _LINE_S
        more = f" ({self._left_out} more like this since the last line)" if self._left_out else ""
        self._left_out = 0
        log.warning("%s%s", text, more)


class TlsListener:
    """Makes the protocol objects of new connections; ends connections that are not admitted yet when the bookie
    stops."""

    def __init__(
        self,
        rules: Rules,
        certificates: Certificates,
        admit: Callable[[], asyncio.Protocol],
        frame_bytes_max: int,
        clock: Clock,
        unfinished: Unfinished,
        *,
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        """*admit* makes the protocol object of an admitted connection."""
        self.rules = rules
        self.certificates = certificates
        self.admit = admit
        self.frame_bytes_max = frame_bytes_max
        self.unfinished = unfinished
        self.handshake_s = handshake_s
        self.refusal_log = _RefusalLog(clock)
        self.handshakes_failed = 0
        self.refused_in_clear = 0
        self.refused_roles = 0
        self.malformed = 0
        self.is_closed = False
        self.waiting: set[TlsHandshake] = set()
        self.tasks = Tasks("TLS handshakes")

    def new_connection(self) -> "TlsHandshake":
        return TlsHandshake(self)

    async def close(self) -> None:
        self.abort()
        await self.tasks.cancel()

    def abort(self) -> None:
        """End at once every connection that is not admitted yet, and admit no more."""
        self.is_closed = True
        for handshake in tuple(self.waiting):
            handshake.abort()


class TlsHandshake(asyncio.Protocol):
    """One connection until it is admitted."""

    def __init__(self, listener: TlsListener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport
        self._peer = "?"
        self._is_open = False
        self._is_secure = False
        self._is_shaking_hands = False
        self._is_v2 = False
        self._is_refusal_logged = False
        self._is_slow = False
        self._waits_for_room = False
        # Received bytes that were not parsed yet: less than a START_TLS in clear; after a handshake, at most what the
        # ssl library returns at once.
        self._early: list[bytes] = []
        self._splitter = FrameSplitter(listener.frame_bytes_max)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own class
        self._peer = str(transport.get_extra_info("peername"))
        self._is_open = True
        self._listener.waiting.add(self)
        if self._listener.is_closed:
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_open = False
        self._listener.waiting.discard(self)
        self._listener.unfinished.forget(self)
        self._splitter.give_up_held()
        self._early.clear()

    def abort(self) -> None:
        self._is_open = False
        self._listener.waiting.discard(self)
        self._transport.abort()

    def pause_writing(self) -> None:
        self._is_slow = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_slow = False
        self._update_reading()

    def _update_reading(self) -> None:
        if self._is_shaking_hands or not self._is_open:
            return
        if self.is_read:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    # -- a frame that is not whole (`Unfinished` knows this connection as a `Sender`)

    @property
    def is_read(self) -> bool:
        return not self._is_slow and not self._waits_for_room

    def wait_for_room(self) -> None:
        self._waits_for_room = True
        self._update_reading()

    def go_on_with_frame(self) -> None:
        self._waits_for_room = False
        self._update_reading()

    def end_frame(self, problem: str) -> None:
        self._listener.refusal_log.say(f"closing the connection of {self._peer}: {problem}")
        self.abort()

    def data_received(self, data: bytes) -> None:
        if not self._is_open:
            return
        if self._is_shaking_hands:
            self._early.append(data)  # it arrived with the end of the handshake
        elif self._listener.rules.admits_in_clear:
            self._sniff(data)
        else:
            self._refuse(data)

    def _sniff(self, data: bytes) -> None:
        """TLS is offered, not demanded: the first frame shows whether the client wants it."""
        self._early.append(data)
        data = b"".join(self._early)
        if len(data) < _HEAD_BYTES:
            return
        if data.startswith(_CLIENT_HELLO):
            self._began_at_once()
            return
        (length,) = LENGTH.unpack_from(data)
        end = LENGTH.size + length
        if v3.is_v3(memoryview(data)[LENGTH.size :]) and 0 < length <= START_TLS_BYTES_MAX:
            if len(data) < end:
                return
            txn_id = is_start_tls(memoryview(data)[LENGTH.size : end])
            if txn_id is not None:
                self._early.clear()
                self._start_tls(txn_id, is_alone=len(data) == end)
                return
        self._hand_on()

    def _refuse(self, data: bytes) -> None:
        """The client has not shown the TLS or the role that is demanded: refuse every request, except START_TLS."""
        try:
            frames = self._splitter.feed(data)
            held_bytes, missing_bytes = self._splitter.held_bytes, self._splitter.missing_bytes
            self._listener.unfinished.on_held(self, held_bytes, missing_bytes, is_new=bool(frames))
            for at, frame in enumerate(frames):
                if not self._is_open:
                    return
                txn_id = None if self._is_secure or self._is_v2 else is_start_tls(frame)
                if txn_id is not None:
                    is_alone = at == len(frames) - 1 and self._splitter.is_between_frames
                    self._start_tls(txn_id, is_alone=is_alone)
                    return
                answer = refusal_of(frame, self._is_v2)
                self._is_v2 = self._is_v2 or not v3.is_v3(frame)
                self._log_refusal()
                self._transport.write(answer)
        except MalformedFrame as error:
            if not self._is_secure and data.startswith(_CLIENT_HELLO):
                self._began_at_once()
                return
            self._listener.malformed += 1
            self._listener.refusal_log.say(f"closing the connection of {self._peer}: {error}")
            self.abort()

    def _log_refusal(self) -> None:
        if not self._is_refusal_logged and not self._is_secure:
            self._is_refusal_logged = True
            self._listener.refused_in_clear += 1
            self._listener.refusal_log.say(f"refusing {self._peer}, which asks in clear text: this bookie demands TLS")

    def _began_at_once(self) -> None:
        self._handshake_failed("it began without START_TLS, with which clients of bookies ask for TLS")

    def _handshake_failed(self, reason: str) -> None:
        self._listener.handshakes_failed += 1
        self._listener.refusal_log.say(f"the TLS handshake with {self._peer} failed: {reason}")
        self.abort()

    def _start_tls(self, txn_id: int, *, is_alone: bool) -> None:
        if not is_alone:  # rule 1
            self._handshake_failed("it sent something behind START_TLS")
            return
        self._is_shaking_hands = True
        self._transport.pause_reading()
        answer = v3.response(v3.START_TLS, txn_id, v3.V3Error.EOK)
        answer.startTLSResponse.SetInParent()
        self._transport.write(v3.frame_of(answer))
        self._listener.tasks.spawn(self._shake_hands(), self._peer)

    async def _shake_hands(self) -> None:
        listener = self._listener
        clear = self._transport
        try:
            # The loop resumes reading by itself and passes the bytes to the ssl library.
            secure = await asyncio.get_running_loop().start_tls(
                clear, self, listener.certificates.context, server_side=True, ssl_handshake_timeout=listener.handshake_s
            )
            if secure is None:  # event loops return None if this side aborted the connection
                raise ConnectionAbortedError("the connection was ended")
        except OSError as error:  # the errors of the ssl library and of the time limit are OSErrors, too
            if listener.is_closed:
                self.abort()
            else:
                self._handshake_failed(_reason_of(error))
            return
        except BaseException:
            self.abort()
            raise
        self._transport = secure
        self._is_shaking_hands = False
        self._is_secure = True
        if not self._is_open:
            self._transport.abort()
            return
        refusal = listener.rules.refusal(secure.get_extra_info("peercert"))
        if refusal is None:
            self._hand_on()
            return
        listener.refused_roles += 1
        listener.refusal_log.say(f"refusing {self._peer}: {refusal}")
        early, self._early = self._early, []
        self._splitter = FrameSplitter(listener.frame_bytes_max)
        for data in early:
            self.data_received(data)

    def _hand_on(self) -> None:
        """The connection is admitted: hand it over, with the bytes it has sent already."""
        early, self._early = self._early, []
        self._listener.waiting.discard(self)
        admitted = self._listener.admit()
        self._transport.set_protocol(admitted)
        admitted.connection_made(self._transport)
        if early:
            admitted.data_received(b"".join(early))


def _reason_of(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    if isinstance(error, ConnectionResetError) or (isinstance(error, ConnectionError) and not str(error)):
        return "it ended the connection; it may not accept this bookie's certificate"
    return str(error) or type(error).__name__
