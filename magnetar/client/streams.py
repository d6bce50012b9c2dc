"""Streams to brokers that come back: a link is one Publish or Consume call, opened again wherever its topic goes.

Brokers: which addresses there are, who serves a topic, calls that are repeated while nobody can answer them.
"""

import abc
import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import grpc

from magnetar.client.errors import ClientClosed, MessageRefused, TopicError, TopicUnavailable, error_of
from magnetar.client.values import Message, id_from_api, id_to_api
from magnetar_core.topics import topics_pb2 as api
from managed_ledger.message_id import EARLIEST, LATEST, MessageId

SERVICE: Final = "magnetar.topics.v1.Topics"

# Waits between two attempts: short at first, since a takeover takes well under a second, then up to a second.
BACKOFF_FIRST_S: Final = 0.02
BACKOFF_LAST_S: Final = 1.0

# One attempt at a call that answers at once, so that a broker that is frozen does not eat the whole timeout.
ATTEMPT_S: Final = 5.0

# How often a lookup may be sent on.
LOOKUPS_MAX: Final = 20

# Messages and bytes of one request. gRPC costs some 200 µs a frame, so that frames of 1,000 messages carry millions
# a second; more would only delay the first of them. Brokers take no frame that is much larger than one message.
FRAME_MESSAGES: Final = 1_000
FRAME_BYTES: Final = 256 * 1024

# What a producer has under way before `send` waits: it lies in memory until it is acknowledged.
PENDING_BYTES_MAX: Final = 32 * 1024 * 1024
PENDING_MESSAGES_MAX: Final = 50_000

# What a message counts for besides its bytes: it is an object here and in the broker.
_OVERHEAD: Final = 62

# How long closing waits for the broker to let go of a name or a subscription.
CLOSE_S: Final = 2.0

# How often messages are looked at whose time is up.
SWEEP_S: Final = 0.5

# A batch index behind those of all messages of an entry.
_WHOLE_ENTRY: Final = 2**31 - 1

# What gRPC's asyncio client says in place of the broker's status when the call ended while we were writing to it
# (grpc/grpc issue 36066). Nearly always the topic has moved; what it really was shows when the call is opened again.
_STATUS_LOST: Final = "Internal error from Core"

_RETRIED: Final = frozenset({"UNAVAILABLE", "CANCELLED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"})

_OPTIONS: Final = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # gRPC's own limit of a minute would hold instead where the network swallows everything.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Our own attempts come sooner than gRPC's.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


def is_retried(error: TopicError) -> bool:
    """Whether another attempt may go better."""
    return error.code in _RETRIED


def topic_error(error: BaseException) -> TopicError:
    """What a program is told about an error of gRPC."""
    if isinstance(error, TopicError):
        return error
    if isinstance(error, grpc.aio.AioRpcError):
        return error_of(error.code().name, error.details() or error.code().name)
    return TopicUnavailable(f"the call broke off: {error}", "UNAVAILABLE")


class Backoff:
    """Growing waits with some chance in them, so that clients do not come back all at once."""

    def __init__(self) -> None:
        self._next_s = BACKOFF_FIRST_S

    def reset(self) -> None:
        self._next_s = BACKOFF_FIRST_S

    async def wait(self) -> None:
        await asyncio.sleep(self._next_s * random.uniform(0.7, 1.0))
        self._next_s = min(self._next_s * 2, BACKOFF_LAST_S)


def check_address(address: str) -> None:
    """Raises ValueError unless it is host:port; says where else a URL of another door leads."""
    scheme, is_url, _ = address.partition("://")
    if is_url and scheme in ("pulsar", "pulsar+ssl"):
        raise ValueError(
            f"{address!r} is the binary protocol, for the clients of Pulsar (pulsar.Client): the topic API is at the "
            "gRPC port of the broker, 6648 of a standalone; write host:port"
        )
    if is_url and scheme in ("http", "https"):
        raise ValueError(f"{address!r} is HTTP: the topic API is at the gRPC port of the broker; write host:port")
    if is_url or not address.rpartition(":")[2].isdigit():
        raise ValueError(f"{address!r} is not host:port" + (f": leave {scheme}:// out" if is_url else ""))


class Brokers:
    """The brokers of a cluster, as far as we know their addresses."""

    def __init__(self, addresses: Sequence[str], timeout_s: float) -> None:
        if not addresses:
            raise ValueError("a client needs the address of at least one broker, host:port of its gRPC port")
        for address in addresses:
            check_address(address)
        self.addresses = list(addresses)
        self.timeout_s = timeout_s
        self.is_closed = False
        self._at = 0
        self._channels: dict[str, Any] = {}

    def channel(self, address: str) -> Any:
        if self.is_closed:
            raise ClientClosed("the client is closed")
        known = self._channels.get(address)
        if known is None:
            known = self._channels[address] = grpc.aio.insecure_channel(address, options=_OPTIONS)
        return known

    async def close(self) -> None:
        self.is_closed = True
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def ask(self, address: str, method: str, request: Any, answer: Any) -> Any:
        """One attempt at one broker. Raises TopicError."""
        call = self.channel(address).unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=lambda one: one.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        try:
            return await call(request, timeout=min(ATTEMPT_S, self.timeout_s))
        except grpc.aio.AioRpcError as error:
            raise topic_error(error) from None

    async def ask_any(self, method: str, request: Any, answer: Any) -> Any:
        """The answer of any broker; while none can be reached, all are tried again. Raises TopicError."""

        async def attempt() -> Any:
            address = self.addresses[self._at % len(self.addresses)]
            try:
                return await self.ask(address, method, request, answer)
            except TopicError:
                self._at += 1
                raise

        return await self.retry(attempt)

    async def ask_owner(self, topic: str, method: str, request: Any, answer: Any) -> Any:
        """The answer of the broker that serves *topic*. Raises TopicError."""

        async def attempt() -> Any:
            return await self.ask(await self.owner(topic), method, request, answer)

        return await self.retry(attempt)

    async def retry(self, attempt: Callable[[], Any]) -> Any:
        """Repeat *attempt* while it fails with what may pass, until the timeout. Raises TopicError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_s
        backoff = Backoff()
        while True:
            try:
                return await attempt()
            except TopicError as error:
                if not is_retried(error):
                    raise
                if loop.time() >= deadline:
                    raise TopicUnavailable(
                        f"{error} (tried for {self.timeout_s:g} s at {', '.join(self.addresses)})", error.code
                    ) from None
            await backoff.wait()

    async def owner(self, topic: str) -> str:
        """Who serves *topic*: one attempt. Raises TopicError."""
        address = self.addresses[self._at % len(self.addresses)]
        authoritative = False
        try:
            for _ in range(LOOKUPS_MAX):
                request = api.LookupRequest(topic=topic, authoritative=authoritative)
                found = await self.ask(address, "Lookup", request, api.LookupResponse)
                address = found.address
                if not found.ask_there:
                    return str(address)
                authoritative = found.authoritative
        except TopicError:
            self._at += 1
            raise
        raise TopicUnavailable(f"{topic}: {LOOKUPS_MAX} brokers sent us on; try again later", "UNAVAILABLE")

    async def open(self, topic: str, method: str, first: Any, request: Any, answer: Any) -> tuple[Any, Any]:
        """One attempt to open a stream at the topic's owner: (call, first answer). Raises TopicError."""
        address = await self.owner(topic)
        call = self.channel(address).stream_stream(
            f"/{SERVICE}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=answer.FromString,
        )()
        try:
            async with asyncio.timeout(self.timeout_s):
                await call.write(first)
                opened = await call.read()
            if opened is grpc.aio.EOF:
                raise await ended(call, topic)
            return call, opened
        except BaseException as error:
            call.cancel()
            if isinstance(error, TimeoutError):
                raise TopicUnavailable(f"{topic}: {address} does not answer", "UNAVAILABLE") from None
            if isinstance(error, grpc.aio.AioRpcError | asyncio.InvalidStateError):
                raise await ended(call, topic) from None
            raise


async def ended(call: Any, topic: str) -> TopicError:
    """Why *call* is over."""
    code, details = await call.code(), await call.details()
    if code is grpc.StatusCode.OK or details == _STATUS_LOST:
        return TopicUnavailable(f"{topic}: the broker ended the call", "UNAVAILABLE")
    return error_of(code.name, details or code.name)


async def _finish(task: asyncio.Task[None] | None) -> None:
    """Let a stream that was told to close come to its end."""
    if task is not None:
        await asyncio.wait([task], timeout=CLOSE_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _Link(abc.ABC):
    """A stream to the broker that serves a topic, opened again wherever the topic goes, until it is closed."""

    def __init__(self, brokers: Brokers, topic: str) -> None:
        self.topic = topic
        self._brokers = brokers
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    async def _open(self) -> Any:
        """The first call of the stream. Raises TopicError."""
        return await self._brokers.retry(self._attempt)

    def _begin(self, call: Any) -> None:
        self._task = asyncio.ensure_future(self._run(call))
        self._task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:  # nothing we know of; nobody may hang
            self._fail(TopicError(f"{self.topic}: {type(error).__name__}: {error}"))

    async def _run(self, call: Any) -> None:
        backoff = Backoff()
        while True:
            writing = asyncio.ensure_future(self._write(call))
            try:
                await self._read(call, backoff)
            except TopicError as error:
                self._broken(error)
                if self._is_closing:
                    return
                if not is_retried(error):
                    self._fail(error)
                    return
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
                call.cancel()
            while not self._is_closing:
                await backoff.wait()
                try:
                    call = await self._attempt()
                    break
                except TopicError as error:
                    # Our own former call, or others that are being sent away, may still be in the way.
                    if not is_retried(error) and error.code != "ALREADY_EXISTS":
                        self._fail(error)
                        return
            self._reopened()

    async def _read(self, call: Any, backoff: Backoff) -> None:
        """Take answers until the call is over; then raises TopicError."""
        while True:
            try:
                answer = await call.read()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                answer = grpc.aio.EOF
            if answer is grpc.aio.EOF:
                raise await ended(call, self.topic)
            backoff.reset()
            self._on_answer(answer)

    async def _write(self, call: Any) -> None:
        try:
            while True:
                request = self._next()
                if request is not None:
                    await call.write(request)
                    continue
                if self._is_closing:
                    await call.done_writing()
                    return
                self._wake.clear()
                await self._wake.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader finds out why

    async def _end(self) -> None:
        """Let the stream send what waits, then come to its end."""
        self._is_closing = True
        self._wake.set()
        await _finish(self._task)

    # What kinds of links differ in.

    @abc.abstractmethod
    async def _attempt(self) -> Any:
        """Open the call, once. Raises TopicError."""

    @abc.abstractmethod
    def _next(self) -> Any:
        """The next request; None if nothing waits."""

    @abc.abstractmethod
    def _on_answer(self, answer: Any) -> None:
        """The broker said *answer*."""

    @abc.abstractmethod
    def _fail(self, error: TopicError) -> None:
        """It cannot go on."""

    def _broken(self, error: TopicError) -> None:
        """The call is over, for whatever reason."""

    def _reopened(self) -> None:
        """There is a new call."""


# ------------------------------------------------------------------------------------------ publish


class Sending:
    """Messages of one `send` or `send_many`."""

    __slots__ = ("deadline", "first_sequence_id", "future", "ids", "messages", "size", "sizes", "waiting")

    def __init__(
        self, messages: list[Any], sizes: list[int], first_sequence_id: int, future: Any, deadline: float
    ) -> None:
        """*sizes*: what each of the messages counts for in the limits of bytes."""
        self.messages = messages
        self.first_sequence_id = first_sequence_id
        self.future = future
        self.deadline = deadline
        self.sizes = sizes
        self.size = sum(sizes)
        self.ids: list[MessageId | None] = [None] * len(messages)
        self.waiting = len(messages)


class _Piece(NamedTuple):
    sending: Sending
    start: int
    stop: int


def _fitting(piece: _Piece, messages_max: int, bytes_max: int) -> tuple[int, int]:
    """How far a frame takes *piece* that has room for so much; and the bytes of that."""
    sending, start, stop = piece
    if stop - start == len(sending.messages) <= messages_max and sending.size <= bytes_max:
        return stop, sending.size
    end, size = start, 0
    for added in sending.sizes[start : min(stop, start + messages_max)]:
        if size + added > bytes_max:
            break
        end, size = end + 1, size + added
    return end, size


class PublishLink(_Link):
    """The messages of one producer to one topic (one partition): in order, sent again until they are acknowledged."""

    def __init__(self, brokers: Brokers, topic: str, opening: Any, send_timeout_s: float) -> None:
        super().__init__(brokers, topic)
        self.producer_name = opening.producer_name
        self.last_sequence_id = -1
        self.max_message_bytes = 0
        self._opening = opening
        self._send_timeout_s = send_timeout_s
        self._next_sequence_id = 0
        self._highest_sent = -1
        self._pending: list[Sending] = []
        self._pending_bytes = 0
        self._pending_messages = 0
        self._to_write: list[_Piece] = []
        self._room = asyncio.Event()
        self._room.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._failure: TopicError | None = None
        self._sweeper: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Raises TopicError."""
        call = await self._open()
        self._next_sequence_id = self.last_sequence_id + 1
        self._begin(call)

    async def _attempt(self) -> Any:
        first = api.PublishRequest(open=self._opening)
        call, answer = await self._brokers.open(self.topic, "Publish", first, api.PublishRequest, api.PublishResponse)
        self.last_sequence_id = answer.opened.last_sequence_id
        self.producer_name = answer.opened.producer_name
        self.max_message_bytes = answer.opened.max_message_bytes
        return call

    async def submit(self, messages: list[Any], sequence_id: int | None) -> list[MessageId]:
        """Send and wait for the acknowledgement. Raises TopicError, ValueError."""
        while not self._room.is_set() and self._failure is None:
            await self._room.wait()
        if self._failure is not None:
            raise self._failure
        first = self._next_sequence_id if sequence_id is None else sequence_id
        if first <= self._highest_sent:
            raise ValueError(f"{self.topic}: sequence id {first} does not follow {self._highest_sent}")
        sizes = [one.ByteSize() + _OVERHEAD for one in messages]  # properties and keys may be large, too
        largest = max(sizes) - _OVERHEAD
        if largest > self.max_message_bytes:
            raise MessageRefused(
                f"{self.topic}: a message of {largest} bytes is larger than the broker's maxMessageSize "
                f"({self.max_message_bytes}); make it smaller"
            )
        loop = asyncio.get_running_loop()
        sending = Sending(messages, sizes, first, loop.create_future(), loop.time() + self._send_timeout_s)
        self._next_sequence_id = first + len(messages)
        self._highest_sent = self._next_sequence_id - 1
        self._pending.append(sending)
        self._to_write.append(_Piece(sending, 0, len(messages)))
        self._pending_bytes += sending.size
        self._pending_messages += len(messages)
        if self._pending_bytes > PENDING_BYTES_MAX or self._pending_messages > PENDING_MESSAGES_MAX:
            self._room.clear()
        self._idle.clear()
        self._wake.set()
        if self._sweeper is None:
            self._sweeper = loop.call_later(min(SWEEP_S, self._send_timeout_s), self._sweep)
        ids: list[MessageId] = await sending.future
        return ids

    def _sweep(self) -> None:
        self._sweeper = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for sending in [one for one in self._pending if one.deadline <= now]:
            self._settle(
                sending,
                TopicUnavailable(
                    f"{self.topic}: not acknowledged within {self._send_timeout_s:g} s; whether it is stored is not "
                    "known. Send it again under the same producer name and sequence id, with deduplication on",
                    "DEADLINE_EXCEEDED",
                ),
            )
        if self._pending:
            self._sweeper = loop.call_later(min(SWEEP_S, self._send_timeout_s), self._sweep)

    def _settle(self, sending: Sending, error: TopicError | None) -> None:
        if sending in self._pending[:1]:
            del self._pending[0]
        elif sending in self._pending:
            self._pending.remove(sending)
        else:
            return
        self._resolve(sending, error)

    def _resolve(self, sending: Sending, error: TopicError | None) -> None:
        self._pending_bytes -= sending.size
        self._pending_messages -= len(sending.messages)
        if self._pending_bytes < PENDING_BYTES_MAX // 2 and self._pending_messages < PENDING_MESSAGES_MAX // 2:
            self._room.set()
        if not self._pending:
            self._idle.set()
        if sending.future.done():
            return
        if error is None:
            sending.future.set_result(sending.ids)
        else:
            sending.future.set_exception(error)

    async def flush(self) -> None:
        """Wait until everything is acknowledged or has failed."""
        await self._idle.wait()

    # -------------------------------------------------------------------------------- the stream

    def _reopened(self) -> None:
        self._to_write = []
        for sending in self._pending:
            start = 0
            while start < len(sending.messages):
                if sending.ids[start] is not None:
                    start += 1
                    continue
                stop = start
                while stop < len(sending.messages) and sending.ids[stop] is None:
                    stop += 1
                self._to_write.append(_Piece(sending, start, stop))
                start = stop
        self._wake.set()

    def _next(self) -> api.PublishRequest | None:
        if not self._to_write:
            return None
        frame = api.PublishRequest()
        count = size = taken = 0
        following = -1
        for at, piece in enumerate(self._to_write):
            sending, start, stop = piece
            first = sending.first_sequence_id + start
            if count and first != following:
                break
            if not count:
                frame.first_sequence_id = first
            end, added = _fitting(piece, FRAME_MESSAGES - count, FRAME_BYTES - size)
            if end == start and not count:  # larger than a frame should be: one of its own
                end, added = start + 1, sending.sizes[start]
            frame.messages.extend(sending.messages[start:end])
            count += end - start
            size += added
            following = sending.first_sequence_id + end
            if end < stop:
                self._to_write[at] = _Piece(sending, end, stop)
                break
            taken = at + 1
        del self._to_write[:taken]
        return frame

    def _on_answer(self, answer: Any) -> None:
        for receipt in answer.receipts:
            self._on_receipt(receipt)
        for refusal in answer.refusals:
            error = MessageRefused(refusal.reason, "INVALID_ARGUMENT")
            for sending in list(self._pending):
                if 0 <= refusal.first_sequence_id - sending.first_sequence_id < len(sending.messages):
                    self._settle(sending, error)

    def _on_receipt(self, receipt: Any) -> None:
        first, count = receipt.first_sequence_id, receipt.count
        end = first + count
        id_ = receipt.first_id if receipt.HasField("first_id") else None
        partition = batch_index = -1
        if id_ is not None:
            partition = id_.partition if id_.HasField("partition") else -1
            batch_index = id_.batch_index if id_.HasField("batch_index") else -1
        done: list[Sending] = []
        for sending in self._pending:
            begin = max(first, sending.first_sequence_id)
            stop = min(end, sending.first_sequence_id + len(sending.messages))
            if begin >= stop:
                if sending.first_sequence_id >= end:
                    break
                continue
            for number in range(begin, stop):
                at = number - sending.first_sequence_id
                if sending.ids[at] is None:
                    sending.waiting -= 1
                    if id_ is None:
                        sending.ids[at] = EARLIEST
                    elif batch_index < 0:
                        sending.ids[at] = MessageId(id_.ledger_id, id_.entry_id, partition)
                    else:
                        sending.ids[at] = MessageId(
                            id_.ledger_id, id_.entry_id, partition, batch_index + number - first, id_.batch_size
                        )
            if not sending.waiting:
                done.append(sending)
        if done and self._pending[len(done) - 1] is done[-1]:  # nearly always: those in front, removed in one step
            del self._pending[: len(done)]
        else:
            for sending in done:
                self._pending.remove(sending)
        for sending in done:
            self._resolve(sending, None)

    def _fail(self, error: TopicError) -> None:
        self._failure = error
        for sending in list(self._pending):
            self._settle(sending, error)
        self._room.set()

    async def close(self) -> None:
        """End; what is not acknowledged fails. The name is free afterwards."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        await self._end()
        self._fail(ClientClosed(f"{self.topic}: the producer is closed"))


# ------------------------------------------------------------------------------------------ consume


class ConsumeLink(_Link):
    """One consumer of one topic (one partition): opened again until it is closed.

    `take` and the methods ending in `_soon` may be called from another thread than the loop's.
    """

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        opening: Any,
        queue: Any,
        queue_size: int,
        partition: int,
        start_ms: int,
    ) -> None:
        super().__init__(brokers, topic)
        self.partition = partition
        self.is_reader = opening.is_reader
        self.position: MessageId | None = None
        """The last message that the program took; for a reader at the end, the last one when it began."""
        self.generation = 0
        self._opening = opening
        self._queue = queue
        self._queue_size = queue_size
        self._start_ms = start_ms
        # Counted by the thread that takes, and by the loop: each writes its own, so that no count gets lost.
        self._taken = 0
        self._granted = 0
        self._is_grant_due = False
        self._unsubscribe_id = 0
        self._acks: list[MessageId] = []
        self._permits = 0
        self._requests: list[api.ConsumeRequest] = []
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._last_request_id = 0
        self._is_flush_due = False
        self._loop = asyncio.get_running_loop()
        self.failure: TopicError | None = None

    async def open(self) -> None:
        """Raises TopicError."""
        call = await self._open()
        self._begin(call)

    async def _attempt(self) -> Any:
        opening = self._opening
        if self.is_reader and self.position is not None:
            opening = api.ConsumeRequest.Open()
            opening.CopyFrom(self._opening)
            opening.from_earliest = False
            opening.start_inclusive = False
            opening.start_id.CopyFrom(id_to_api(self.position))
            if self.position.entry_id < 0:
                opening.ClearField("start_id")
                opening.from_earliest = True
        first = api.ConsumeRequest(open=opening)
        call, answer = await self._brokers.open(self.topic, "Consume", first, api.ConsumeRequest, api.ConsumeResponse)
        starts_at_end = opening.HasField("start_id") and opening.start_id.ledger_id == LATEST.ledger_id
        if (
            self.is_reader
            and self.position is None
            and (starts_at_end or not (opening.HasField("start_id") or opening.from_earliest))
        ):
            self.position = id_from_api(answer.opened.last_id)
        if self._start_ms and self.position is None:
            await self._go_to_start(call)
        self._opening.consumer_name = answer.opened.consumer_name
        self._start_anew()
        return call

    async def _go_to_start(self, call: Any) -> None:
        """A reader that begins at a time. Raises TopicError."""
        request = api.ConsumeRequest(request_id=2**63)
        request.seek.time_ms = self._start_ms
        try:
            await call.write(request)
            while True:
                answer = await call.read()
                if answer is grpc.aio.EOF:
                    raise await ended(call, self.topic)
                if answer.HasField("rewound"):
                    after = answer.rewound.after_id
                    self.position = MessageId(after.ledger_id, after.entry_id, self.partition, _WHOLE_ENTRY)
                if answer.done == request.request_id:
                    break
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise await ended(call, self.topic) from None
        if answer.error:
            raise TopicUnavailable(f"{self.topic}: {answer.error}", "UNAVAILABLE")

    def _start_anew(self) -> None:
        """What was not handed on comes again; permits count from zero."""
        self.generation += 1
        self._queue.drop(self)
        self._granted = self._taken
        self._permits = self._queue_size
        self._wake.set()

    def _fail(self, error: TopicError) -> None:
        self.failure = error
        self._queue.bell.ring()

    def _broken(self, error: TopicError) -> None:
        answers, self._answers = self._answers, {}
        self._requests.clear()
        for future in answers.values():
            if not future.done():
                future.set_exception(error)

    def _next(self) -> api.ConsumeRequest | None:
        if self._acks or self._permits:
            request = api.ConsumeRequest(permits=self._permits)
            self._permits = 0
            count = min(len(self._acks), 10_000)
            if count:
                request.acks.extend([id_to_api(one) for one in self._acks[:count]])
                del self._acks[:count]
            last = self.position
            if (
                self.is_reader
                and last is not None
                and last.entry_id >= 0
                and last.batch_index < max(last.batch_size, 1)
            ):
                request.cumulative_ack.CopyFrom(id_to_api(last))
            return request
        return self._requests.pop(0) if self._requests else None

    def _on_answer(self, answer: Any) -> None:
        if answer.HasField("rewound"):
            self._start_anew()
        if answer.deliveries:
            self._queue.put(
                self,
                [
                    Message(self.topic, delivery, message, self)
                    for delivery in answer.deliveries
                    for message in delivery.messages
                ],
            )
        if answer.done and answer.done == self._unsubscribe_id and not answer.error:
            self._is_closing = True  # or we would subscribe again
        if answer.done:
            future = self._answers.pop(answer.done, None)
            if future is not None and not future.done():
                if answer.error:
                    future.set_exception(TopicError(f"{self.topic}: {answer.error}", "FAILED_PRECONDITION"))
                else:
                    future.set_result(None)

    def is_before(self, last: MessageId) -> bool:
        """Whether a reader has yet to take *last*."""
        if self.position is not None:
            return self.position < last
        if self._opening.from_earliest:
            return True
        start = id_from_api(self._opening.start_id)
        return start <= last if self._opening.start_inclusive else start < last

    # -------------------------------------------------------------------------------- requests

    def on_taken(self, message: Message) -> None:
        """The program has *message* (from any thread)."""
        self._taken += 1
        if self.is_reader:
            self.position = message.id
        if (self._taken - self._granted) * 2 >= self._queue_size and not self._is_grant_due:
            self._is_grant_due = True
            self._loop.call_soon_threadsafe(self._grant)

    def _grant(self) -> None:
        self._is_grant_due = False
        taken = self._taken
        if taken > self._granted:
            self._permits += taken - self._granted
            self._granted = taken
            self._wake.set()

    def ack_soon(self, ids: Sequence[MessageId]) -> None:
        """Acknowledge with the next request (from any thread)."""
        self._acks.extend(ids)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon_threadsafe(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        self._wake.set()

    async def request(self, request: api.ConsumeRequest) -> None:
        """Send *request* behind the acks so far, and wait until it took effect. Raises TopicError."""
        if self.failure is not None:
            raise self.failure
        self._last_request_id += 1
        request.request_id = self._last_request_id
        if request.unsubscribe:
            self._unsubscribe_id = request.request_id
        future: asyncio.Future[None] = self._loop.create_future()
        self._answers[request.request_id] = future
        self._requests.append(request)
        self._wake.set()
        try:
            async with asyncio.timeout(self._brokers.timeout_s):
                await future
        except TimeoutError:
            raise TopicUnavailable(
                f"{self.topic}: no answer within {self._brokers.timeout_s:g} s", "DEADLINE_EXCEEDED"
            ) from None
        finally:
            self._answers.pop(request.request_id, None)

    async def close(self) -> None:
        """Send the acks that wait, then end."""
        if self._task is not None and self.failure is None and not self._task.done() and not self._is_closing:
            with contextlib.suppress(TopicError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self.request(api.ConsumeRequest())
        await self._end()
        self._fail(ClientClosed(f"{self.topic}: the consumer is closed"))
