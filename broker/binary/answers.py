"""Answers of one connection: those known at once, and those that a task has later. No IO.

Answers that come later may overtake each other; clients match them by their request id.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, Final

from broker.binary.flow import OUTBOX_HIGH_BYTES, Arrivals, ClientFlow
from broker.errors import BrokerError
from broker.topic.ports import NOT_KNOWN, NextBroker, Outbox, Spawn
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import NO_ID, command

log = logging.getLogger(__name__)

_T = wire.BaseCommand
_PONG = command(_T.PONG)


class Answers:
    """Sends answers to one client. Also takes the commands that lead to an answer and to nothing else."""

    __slots__ = ("_address", "_arrivals", "_flow", "_outbox", "_spawn", "source")

    def __init__(self, flow: ClientFlow, outbox: Outbox, spawn: Spawn, address: str, arrivals: Arrivals) -> None:
        self.source: Hashable = None
        """Whose turn it is (`broker.arrivals`); None until it is known who the client is."""
        self._arrivals = arrivals
        self._flow = flow
        self._outbox = outbox
        self._spawn = spawn
        self._address = address

    def write(self, frame: bytes) -> None:
        """Send *frame*, which is a whole answer."""
        self._flow.write(frame)

    def success(self, request_id: int) -> None:
        """Tell the client that a request was done."""
        self._flow.write(success_frame(request_id))

    def error(self, request_id: int, code: int, text: str) -> None:
        """Tell the client that a request was refused; *code* is a ServerError of the protocol."""
        self._flow.write(error_frame(request_id, code, text))

    async def is_alive(self) -> bool:
        """Ask the client (PING) and wait for a sign of life; a connection that gives none is closed."""
        # The caller wants the place of a producer or consumer: those of a closed connection may have to leave yet.
        return await self._outbox.is_alive() and not self._flow.is_closed

    def later(
        self,
        work: Callable[[], Awaitable[bytes | None]],
        failed: Callable[[int, str], bytes | None],
        what: str,
        *,
        arrives: bool = False,
        looks_up: bool = False,
    ) -> None:
        """Run *work* in a task and send the frame it returns, or the one that *failed* makes of its error.

        None sends nothing. *what* names the task in the log. *arrives*: a client that comes to a topic; *looks_up*: a
        lookup.
        """
        arrives = arrives or looks_up
        flow = self._flow
        size_bytes = flow.command_bytes

        async def run() -> None:
            try:
                self._arrivals.work_for(self.source)
                if flow.unsent_bytes > OUTBOX_HIGH_BYTES:  # answers may be large: the client has to read them first
                    await self._outbox.until_drained()
                async with self._arrivals.looking_up() if looks_up else contextlib.nullcontext():
                    answer = await work()
            except BrokerError as error:
                answer = failed(error.code, str(error))
            except Exception as error:
                log.exception("%s: %s failed", self._address, what)
                answer = failed(wire.UnknownError, f"{type(error).__name__}: {error}")
            finally:
                flow.on_answer(size_bytes, arrives=arrives)
            if answer is not None:
                flow.write(answer)

        flow.on_request(size_bytes, arrives=arrives)
        self._spawn(run(), what)

    def later_or_error(self, work: Callable[[], Awaitable[bytes | None]], request_id: int, what: str) -> None:
        """Like `later`; an error is answered with ERROR."""
        self.later(work, lambda code, text: error_frame(request_id, code, text), what)

    # -------------------------------------------------------------------------------- commands

    def on_ping(self, ping: wire.CommandPing) -> None:
        """Answer PING."""
        self._flow.write(_PONG)

    def ignore(self, body: object) -> None:
        """A command that needs no answer (PONG: whatever arrives is a sign of life)."""

    def refuse_transactions(self, body: Any) -> None:
        """Refuse a command about transactions."""
        self.error(body.request_id, wire.NotAllowedError, "Transactions are not enabled.")

    def refuse_scalable(self, body: Any) -> None:
        """Refuse a request of Pulsar 5.0 about scalable topics, or for the places of coordinators of transactions, by
        the answer that the client waits for."""
        kind, number = _SCALABLE[type(body)]
        which = {number: getattr(body, number)}
        self._flow.write(command(kind, error=wire.NotAllowedError, message=NO_SCALABLE_TOPICS, **which))


NO_SCALABLE_TOPICS: Final = "Scalable topics and their transactions are not served here; use persistent:// topics."

# A request → the type of its answer, and the field of both that says which request it is.
_SCALABLE: Final[Mapping[type[Any], tuple[int, str]]] = {
    wire.CommandScalableTopicLookup: (_T.SCALABLE_TOPIC_UPDATE, "session_id"),
    wire.CommandScalableTopicSubscribe: (_T.SCALABLE_TOPIC_SUBSCRIBE_RESPONSE, "request_id"),
    wire.CommandScalableTopicUnsubscribe: (_T.ERROR, "request_id"),
    wire.CommandWatchScalableTopics: (_T.WATCH_SCALABLE_TOPICS_UPDATE, "watch_id"),
    wire.CommandWatchTcAssignments: (_T.WATCH_TC_ASSIGNMENTS_UPDATE, "watch_id"),
}


def success_frame(request_id: int) -> bytes:
    """The frame that says that a request was done."""
    return command(_T.SUCCESS, request_id=request_id)


def error_frame(request_id: int, code: int, text: str) -> bytes:
    """The frame that refuses a request with *code*, a ServerError of the protocol."""
    return command(_T.ERROR, request_id=request_id, error=code, message=text)


def close_frame(kind: int, next_broker: NextBroker = NOT_KNOWN, **client: int) -> bytes:
    """The frame that says that the broker has closed the producer or consumer *client*."""
    return command(
        kind,
        request_id=NO_ID,
        assignedBrokerServiceUrl=next_broker.service_url or None,
        assignedBrokerServiceUrlTls=next_broker.service_url_tls or None,
        **client,
    )
