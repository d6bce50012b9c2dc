"""The brokers of a cluster: their addresses, who serves a topic, and calls that are repeated while none answers.

A stream to the owner of a topic is opened here once; `stream.py` opens it again when the topic moves to another broker.

Rules:

1. A call that waits ends at its limit, whatever it waits for, and with the reason that came last.
2. At an address where no call has succeeded yet it is asked what speaks there (`base.ports`). One that is no gRPC port
   is not tried again, unless nothing else is left.
"""

import asyncio
import contextlib
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from magnetar.client.access import Access, WithChannels
from magnetar.client.base.arguments import wrong
from magnetar.client.base.closing import Closing
from magnetar.client.base.ports import Speaks, listen, problem
from magnetar.client.base.rpc import CLOSED, FORKED, check_fork, grpc, log, mark_in_child
from magnetar.client.base.states import OnState, StateChange
from magnetar.client.base.telemetry import Telemetry
from magnetar.client.errors import ClientClosed, TopicError, TopicUnavailable, error_of
from magnetar_core.runtime.pauses import GrowingPause
from magnetar_core.security.followed import KnownHosts
from magnetar_core.topics import topics_pb2 as api

SERVICE: Final = "magnetar.topics.v1.Topics"

# Waits between two attempts: short at first, since a takeover takes well under a second, then up to a second.
BACKOFF_FIRST_S: Final = 0.02
BACKOFF_LAST_S: Final = 1.0

# Time of one attempt at a call that brokers answer at once: a frozen broker must not use up the whole timeout.
ATTEMPT_S: Final = 5.0

# How long a first call at an address may take before it is asked what speaks there, and the pause between two such
# questions.
UNHEARD_S: Final = 0.4
LISTEN_PAUSE_S: Final = 2.0

# Redirects of one lookup.
LOOKUPS_MAX: Final = 20

# A name or an address, and a port. gRPC reads more in a target: schemes (`ipv4:`, `unix:`), lists.
_ADDRESS: Final = re.compile(r"([^\s:/@,#?\\\[\]\0]+|\[[0-9A-Fa-f:.]+(%[0-9A-Za-z]+)?\]):[0-9]{1,5}")

# The text that gRPC's asyncio client gives in place of the broker's status when the call ended while we were writing to
# it (grpc/grpc issue 36066). Nearly always the topic has moved; the real reason shows when the call is opened again.
_STATUS_LOST: Final = "Internal error from Core"

_RETRIED: Final = frozenset({"UNAVAILABLE", "CANCELLED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"})

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Without it gRPC's own limit of a minute would hold where the network drops every packet.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Our own attempts come sooner than gRPC's.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


def is_retried(error: TopicError) -> bool:
    """Whether another attempt may succeed."""
    return error.code in _RETRIED


def topic_error(error: BaseException) -> TopicError:
    """The TopicError for an error of gRPC."""
    if isinstance(error, TopicError):
        return error
    if isinstance(error, grpc.aio.AioRpcError):
        return error_of(error.code().name, error.details() or error.code().name)
    return TopicUnavailable(f"the call broke off: {error}", "UNAVAILABLE")


def is_cancelled() -> bool:
    """Whether it is this task that was cancelled: gRPC raises the same error for its calls."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Backoff(GrowingPause):
    """Waits that grow, with a random part, so that clients do not all return at the same moment."""

    def __init__(self) -> None:
        super().__init__(BACKOFF_FIRST_S, BACKOFF_LAST_S)

    async def wait(self) -> None:
        await asyncio.sleep(self.next_s() * random.uniform(0.7, 1.0))


def check_address(address: str) -> None:
    """Check that *address* is host:port. Raises TypeError, ValueError; for a URL of another port it says which client
    takes it."""
    if not isinstance(address, str):
        raise wrong("an address", address, "host:port, as str")
    scheme, is_url, _ = address.partition("://")
    if is_url and scheme in ("pulsar", "pulsar+ssl"):
        raise ValueError(
            f"{address!r} is the binary protocol, for the clients of Pulsar (pulsar.Client): the topic API is at the "
            "gRPC port of the broker, 6648 of a standalone; write host:port"
        )
    if is_url and scheme in ("http", "https"):
        raise ValueError(f"{address!r} is HTTP: the topic API is at the gRPC port of the broker; write host:port")
    if is_url or _ADDRESS.fullmatch(address) is None:
        raise ValueError(f"{address!r} is not host:port" + (f": leave {scheme}:// out" if is_url else ""))


class WrongPort(TopicUnavailable):
    """What speaks at an address is not the topic API, or not as this client wants to speak."""


class Brokers:
    """The brokers of a cluster, as far as we know their addresses."""

    def __init__(
        self,
        addresses: Sequence[str],
        timeout_s: float,
        access: Access | None = None,
        on_state: OnState | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """*on_state* is told of the states of producers and consumers, *telemetry* of messages."""
        if not addresses:
            raise ValueError("a client needs the address of at least one broker, host:port of its gRPC port")
        for address in addresses:
            check_address(address)
        check_fork()
        self.addresses = list(addresses)
        self.timeout_s = timeout_s
        self.on_state = on_state
        self.telemetry = telemetry
        self._access = access or Access()
        self._known = KnownHosts(addresses, self._access.trusted_hosts)
        self.is_closed = False
        self._at = 0
        self._channels: dict[str, Any] = {}
        self.last_error = "the broker does not answer"
        """Why the last attempt at a call that is repeated has failed."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self.is_inherited = False
        """They were made by a process of which this is a child."""
        mark_in_child(self)
        self._reached = set[str]()
        """Addresses at which a call has succeeded."""
        self._wrong: dict[str, str] = {}
        """Addresses at which something else speaks, and what is to be done."""
        self._heard: dict[str, tuple[float, str]] = {}
        """Address → when it was asked what speaks there, and why nobody can be reached there."""

    def check_loop(self) -> asyncio.AbstractEventLoop:
        """The loop to which these belong, which runs. Raises ClientClosed in any other."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self.is_inherited:
                raise ClientClosed(FORKED)
            if self._loop is not None:
                raise ClientClosed(
                    "this client belongs to another event loop: its tasks and connections are there. Make a client of "
                    "its own in each asyncio.run"
                )
            self._loop = loop
        return loop

    def tell(self, change: StateChange) -> None:
        """Call what the program wants to be called. Its errors are its own, and end nothing here."""
        assert self.on_state is not None, "nobody asked to be told"
        try:
            self.on_state(change)
        except Exception:
            log.exception("on_state has failed for %s", change)

    def channel(self, address: str) -> Any:
        self.check_loop()
        if self.is_closed:
            raise ClientClosed(CLOSED)
        known = self._channels.get(address)
        if known is None:
            known = self._channels[address] = self._access.channel(address, _OPTIONS)
        return known

    @property
    def is_stranded(self) -> bool:
        """The loop of these is closed, or in another process: nothing can be waited for any more."""
        return self.is_inherited or (self._loop is not None and self._loop.is_closed())

    @property
    def has_channels(self) -> bool:
        return bool(self._channels)

    def end_soon(self, closing: Closing) -> None:
        """Begin *closing* on the loop, if it still runs."""
        loop = self._loop
        if self.is_stranded or loop is None or not loop.is_running():
            self.drop()
            return
        with contextlib.suppress(RuntimeError):  # it has ended since
            loop.call_soon_threadsafe(closing.begin)

    def drop(self) -> None:
        """The end without a loop."""
        self.is_closed = True
        if not self.is_inherited:
            self._channels.clear()

    async def close(self) -> None:
        self.is_closed = True
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def ask(self, address: str, method: str, request: Any, answer: Any) -> Any:
        """One attempt at one broker. Raises TopicError."""
        call = self.channel(address).unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        metadata = self._access.metadata()
        try:
            asked = call(request, timeout=min(ATTEMPT_S, self.timeout_s), metadata=metadata)
            if address not in self._reached and not isinstance(self._loop, WithChannels):
                await self._wait_for_first(address, asked)
            response = await asked
        except (grpc.aio.AioRpcError, grpc.aio.UsageError) as error:
            raise await self._reason(address, topic_error(error)) from None
        except asyncio.CancelledError:
            if self.is_closed and not is_cancelled():  # the channel was closed
                raise ClientClosed(CLOSED) from None
            raise
        self._reached.add(address)
        if response is None:  # the library gives None for what it cannot decode
            raise garbage(address)
        return response

    async def _wait_for_first(self, address: str, asked: Any) -> None:
        """Wait for the answer to the first call at *address*, and find out in time if it cannot come (rule 2)."""
        waiting = asyncio.ensure_future(asked.code())
        try:
            done, _ = await asyncio.wait([waiting], timeout=UNHEARD_S)
            if not done:
                await self._listen(address, "")
        finally:
            waiting.cancel()
            if address in self._wrong:
                asked.cancel()

    async def _reason(self, address: str, error: TopicError) -> TopicError:
        """Why a call at *address* has ended with *error*; in words of ours if nobody was reached there."""
        if error.code == "UNAVAILABLE" and address not in self._reached:
            try:
                why = await self._listen(address, str(error))
            except WrongPort as wrong_port:
                return wrong_port
            if why:
                return TopicUnavailable(why, error.code)
        elif error.code not in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"):
            self._reached.add(address)  # somebody answers
        return error

    async def _listen(self, address: str, details: str) -> str:
        """Why nobody is reached at *address*, for whom gRPC says *details*; empty if it is not known. Raises
        WrongPort."""
        loop = self.check_loop()
        at, why = self._heard.get(address, (-LISTEN_PAUSE_S, ""))
        if isinstance(loop, WithChannels) or loop.time() < at + LISTEN_PAUSE_S:
            return why
        try:
            heard = await listen(address, self._access.context())
        except OSError as error:  # a file of certificates
            return str(error)
        if self.is_closed:
            raise ClientClosed(CLOSED)
        uses_tls = self._access.uses_tls
        text = problem(heard, address, uses_tls=uses_tls)
        if not text and "CERTIFICATE_VERIFY_FAILED" in details:
            text = f"{address}: its certificate is not trusted; give tls_trust_certs_file"
        if text:
            log.error("%s", text)
            self._wrong[address] = text
            raise WrongPort(text, "UNAVAILABLE")
        self._wrong.pop(address, None)
        why = ""
        if heard.kind is Speaks.REFUSES:
            why = f"{address} cannot be reached: {heard.detail}"
        elif heard.kind is Speaks.SILENT:
            why = f"{address} takes connections and does not answer: a broker that is held up, or another kind of port"
        self._heard[address] = loop.time(), why
        return why

    async def ask_any(self, method: str, request: Any, answer: Any, timeout_s: float | None = None) -> Any:
        """The answer of any broker; while none can be reached, all are tried again. Raises TopicError."""

        async def attempt() -> Any:
            address = self.addresses[self._at % len(self.addresses)]
            try:
                return await self.ask(address, method, request, answer)
            except TopicError:
                self._at += 1
                raise

        return await self.retry(attempt, timeout_s)

    async def ask_owner(self, topic: str, method: str, request: Any, answer: Any) -> Any:
        """The answer of the broker that serves *topic*. Raises TopicError."""

        async def attempt() -> Any:
            return await self.ask(await self.owner(topic), method, request, answer)

        return await self.retry(attempt)

    async def retry(self, attempt: Callable[[], Any], timeout_s: float | None = None) -> Any:
        """Repeat *attempt* while it fails with an error that may pass, until the timeout (by default that of
        operations). Raises TopicError."""
        if timeout_s is None:
            timeout_s = self.timeout_s
        last: TopicError = TopicUnavailable("the broker does not answer", "UNAVAILABLE")
        backoff = Backoff()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    try:
                        return await attempt()
                    except WrongPort as error:
                        if self._wrong.keys() >= set(self.addresses):
                            texts = "; ".join(self._wrong[address] for address in self.addresses)
                            raise TopicUnavailable(texts, error.code) from None
                        last = error
                    except TopicError as error:
                        if not is_retried(error):
                            raise
                        last = error
                    self.last_error = str(last)
                    log.debug("trying again: %s", last)
                    await backoff.wait()
        except TimeoutError:
            raise TopicUnavailable(
                f"{last} (tried for {timeout_s:g} s at {', '.join(self.addresses)})",
                last.code or "UNAVAILABLE",
            ) from None

    async def owner(self, topic: str) -> str:
        """The broker that serves *topic*; one attempt. Raises TopicError."""
        address = self.addresses[self._at % len(self.addresses)]
        authoritative = False
        try:
            for _ in range(LOOKUPS_MAX):
                request = api.LookupRequest(topic=topic, authoritative=authoritative)
                answer = await self.ask(address, "Lookup", request, api.LookupResponse)
                await self._check(answer.address, address)
                address = answer.address
                if not answer.ask_there:
                    return str(address)
                authoritative = answer.authoritative
        except TopicError:
            self._at += 1
            raise
        raise TopicUnavailable(f"{topic}: {LOOKUPS_MAX} brokers sent us on; try again later", "UNAVAILABLE")

    async def _check(self, target: str, server: str) -> None:
        """Check that this client may go on to *target*, to which *server* sends it. Raises TopicError."""
        try:
            check_address(target)
        except ValueError:
            raise garbage(server) from None
        access = self._access
        if access.token is None or access.tls_trust_certs_file is not None or self._known.has(target):
            return
        try:
            listed = await self.ask(server, "ListBrokers", api.ListBrokersRequest(), api.ListBrokersResponse)
            self._known.learn(listed.addresses)
        except TopicError as error:
            if error.code != "UNIMPLEMENTED":  # an older broker
                raise
        if not self._known.has(target):
            raise error_of(
                "PERMISSION_DENIED",
                f"{server} sends this client on to {target}, which is not a broker of the cluster ({self._known}); the "
                "token is not sent there. If it is one, name its host in addresses or trusted_hosts",
            )

    async def open(self, topic: str, method: str, first: Any, request: Any, answer: Any) -> tuple[Any, Any]:
        """One attempt to open a stream at the topic's owner: (call, first answer). Raises TopicError."""
        return await self._open_at(await self.owner(topic), topic, method, first, request, answer)

    async def open_anywhere(self, what: str, method: str, first: Any, request: Any, answer: Any) -> tuple[Any, Any]:
        """The same at any broker, for errors that say *what* it is about."""
        address = self.addresses[self._at % len(self.addresses)]
        try:
            if address not in self._reached:  # by a call that is answered at once it is found out who speaks (rule 2)
                await self.ask(address, "ListBrokers", api.ListBrokersRequest(), api.ListBrokersResponse)
            return await self._open_at(address, what, method, first, request, answer)
        except TopicError:
            self._at += 1
            raise

    async def _open_at(
        self, address: str, topic: str, method: str, first: Any, request: Any, answer: Any
    ) -> tuple[Any, Any]:
        call = self.channel(address).stream_stream(
            f"/{SERVICE}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )(metadata=self._access.metadata())
        try:
            async with asyncio.timeout(self.timeout_s):
                await call.write(first)
                opened = await call.read()
            if opened is grpc.aio.EOF:
                raise await ended(call, topic)
            if opened is None:
                raise garbage(address)
            return call, opened
        except BaseException as error:
            call.cancel()
            if isinstance(error, asyncio.CancelledError) and self.is_closed and not is_cancelled():
                raise ClientClosed(CLOSED) from None
            if isinstance(error, TimeoutError):
                raise TopicUnavailable(f"{topic}: {address} does not answer", "UNAVAILABLE") from None
            if isinstance(error, grpc.aio.AioRpcError | grpc.aio.UsageError | asyncio.InvalidStateError):
                raise await ended(call, topic) from None
            raise


def garbage(server: str) -> TopicError:
    """The error for an answer that cannot be read."""
    return TopicError(f"{server} answers what no broker says; is it the gRPC port of a Magnetar broker?", "INTERNAL")


async def ended(call: Any, topic: str) -> TopicError:
    """The error that says why *call* is over."""
    code, details = await call.code(), await call.details()
    if code is grpc.StatusCode.OK or details == _STATUS_LOST:
        return TopicUnavailable(f"{topic}: the broker ended the call", "UNAVAILABLE")
    return error_of(code.name, details or code.name)
