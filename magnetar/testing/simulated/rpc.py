"""gRPC over the simulated network: what our server and our client use of `grpc.aio`, with its promises.

    channel ──one connection a channel──▶ server
    frame   ┌────────────┬──────────┬──────────┬──────┐
            │ length (4) │ call (4) │ kind (1) │ body │     length counts what follows it
            └────────────┴──────────┴──────────┴──────┘
    client  BEGIN (path, metadata) · MESSAGE … · HALF_CLOSE     CANCEL at any time     PING, which is answered
    server  MESSAGE … · END (status, details)

A connection that is lost ends its calls: at the client with UNAVAILABLE, at the server their tasks are cancelled. A
server that says nothing to a PING for 5 s counts as lost, as with the settings of `magnetar.client.brokers`.
"""

import asyncio
import json
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import grpc

_HEAD: Final = struct.Struct(">IIB")

_BEGIN, _MESSAGE, _HALF_CLOSE, _CANCEL, _END, _PING, _PONG = range(7)

PING_S: Final = 10.0
PONG_S: Final = 5.0
CONNECT_S: Final = 20.0

_CODES: Final = {code.name: code for code in grpc.StatusCode}


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


class _Link:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.peer = "ipv4:{}:{}".format(*writer.get_extra_info("peername"))

    def put(self, call: int, kind: int, body: bytes = b"") -> None:
        self._writer.write(_HEAD.pack(5 + len(body), call, kind) + body)

    async def drain(self) -> None:
        """Wait until the connection takes more. Raises ConnectionError."""
        await self._writer.drain()

    async def next(self) -> tuple[int, int, bytes]:
        """(call, kind, body). Raises OSError, EOFError."""
        length, call, kind = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
        return call, kind, await self._reader.readexactly(length - 5)

    def close(self) -> None:
        self._writer.close()


class _Messages:
    """The messages of one direction of a call that have arrived."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._has_ended = False

    def put(self, message: bytes | None) -> None:
        """None is the end."""
        self._queue.put_nowait(message)

    async def next(self, decode: Callable[[bytes], Any]) -> Any:
        if not self._has_ended:
            message = await self._queue.get()
            if message is not None:
                return decode(message)
            self._has_ended = True
        return grpc.aio.EOF


# -------------------------------------------------------------------------------- client


class SimulatedCall:
    """As `grpc.aio.StreamStreamCall`, as far as it is used."""

    def __init__(self, channel: "SimulatedChannel", path: str, metadata: Any, encode: Any, decode: Any) -> None:
        self._channel = channel
        self._encode = encode
        self._decode = decode
        self._messages = _Messages()
        self._ended: asyncio.Future[tuple[grpc.StatusCode, str]] = asyncio.get_running_loop().create_future()
        self._link: _Link | None = None
        self.number = channel.number()
        self._beginning = asyncio.ensure_future(self._begin(path, metadata))

    async def _begin(self, path: str, metadata: Any) -> None:
        try:
            link = await self._channel.link()
        except (OSError, TimeoutError) as error:
            self.end(grpc.StatusCode.UNAVAILABLE, f"failed to connect: {error}")
            return
        if not self._ended.done():
            self._link = link
            self._channel.calls[self.number] = self
            link.put(self.number, _BEGIN, json.dumps([path, list(metadata or ())]).encode())

    async def write(self, message: Any) -> None:
        await self._beginning
        if self._ended.done() or self._link is None:
            raise asyncio.InvalidStateError("the call has ended")
        self._link.put(self.number, _MESSAGE, self._encode(message))
        await self._link.drain()

    async def done_writing(self) -> None:
        await self._beginning
        if self._link is not None and not self._ended.done():
            self._link.put(self.number, _HALF_CLOSE)

    async def read(self) -> Any:
        message = await self._messages.next(self._decode)
        if message is grpc.aio.EOF:
            code, details = await self._ended
            if code is not grpc.StatusCode.OK:
                raise _error(code, details)
        return message

    def cancel(self) -> bool:
        if self._ended.done():
            return False
        if self._link is not None:
            self._link.put(self.number, _CANCEL)
        self._beginning.cancel()
        self.end(grpc.StatusCode.CANCELLED, "Locally cancelled by application!")
        return True

    def cancelled(self) -> bool:
        return self._ended.done() and self._ended.result()[0] is grpc.StatusCode.CANCELLED

    async def code(self) -> grpc.StatusCode:
        return (await self._ended)[0]

    async def details(self) -> str:
        return (await self._ended)[1]

    def arrived(self, message: bytes) -> None:
        self._messages.put(message)

    def end(self, code: grpc.StatusCode, details: str) -> None:
        if not self._ended.done():
            self._ended.set_result((code, details))
            self._messages.put(None)
            self._channel.calls.pop(self.number, None)


class SimulatedChannel:
    """As `grpc.aio.Channel`, as far as it is used. It connects when the first call begins, and anew after a loss."""

    def __init__(self, address: str) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._numbers = 0
        self._link: _Link | None = None
        self._connecting: asyncio.Task[_Link] | None = None
        self._reading: asyncio.Task[None] | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._answered = asyncio.Event()
        self.calls: dict[int, SimulatedCall] = {}

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def link(self) -> _Link:
        """The connection. Raises OSError, TimeoutError."""
        if self._link is not None:
            return self._link
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.ensure_future(self._connect())
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> _Link:
        async with asyncio.timeout(CONNECT_S):
            link = _Link(*await asyncio.open_connection(self._host, self._port))
        self._link = link
        self._reading = asyncio.ensure_future(self._read(link))
        self._pinging = asyncio.ensure_future(self._ping(link))
        return link

    async def _read(self, link: _Link) -> None:
        try:
            while True:
                number, kind, body = await link.next()
                self._answered.set()
                call = self.calls.get(number)
                if call is None:
                    continue
                if kind == _MESSAGE:
                    call.arrived(body)
                elif kind == _END:
                    name, details = json.loads(body)
                    call.end(_CODES[name], details)
        except (OSError, EOFError):
            self._on_link_lost(link)

    async def _ping(self, link: _Link) -> None:
        while self._link is link:
            await asyncio.sleep(PING_S)
            self._answered.clear()
            link.put(0, _PING)
            try:
                async with asyncio.timeout(PONG_S):
                    await self._answered.wait()
            except TimeoutError:
                self._on_link_lost(link)

    def _on_link_lost(self, link: _Link) -> None:
        if self._link is link:
            self._link = None
            link.close()
            for call in list(self.calls.values()):
                call.end(grpc.StatusCode.UNAVAILABLE, "the connection was lost")

    def stream_stream(self, path: str, *, request_serializer: Any, response_deserializer: Any) -> Any:
        def begin(*, metadata: Any = None) -> SimulatedCall:
            return SimulatedCall(self, path, metadata, request_serializer, response_deserializer)

        return begin

    def unary_unary(self, path: str, *, request_serializer: Any, response_deserializer: Any) -> Any:
        async def ask(request: Any, *, timeout: float | None = None, metadata: Any = None) -> Any:
            call = SimulatedCall(self, path, metadata, request_serializer, response_deserializer)
            try:
                async with asyncio.timeout(timeout):
                    try:
                        await call.write(request)
                        await call.done_writing()
                    except (asyncio.InvalidStateError, ConnectionError):
                        pass  # reading says why
                    answer = await call.read()
            except TimeoutError:
                raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
            finally:
                call.cancel()
            assert answer is not grpc.aio.EOF, "a call of one answer ended without it"
            return answer

        return ask

    async def close(self) -> None:
        for call in list(self.calls.values()):
            call.cancel()
        link, self._link = self._link, None
        if link is not None:
            link.close()
        for task in (self._connecting, self._reading, self._pinging):
            if task is not None:
                task.cancel()


# -------------------------------------------------------------------------------- server


class _Details(NamedTuple):
    """As `grpc.HandlerCallDetails`."""

    method: str
    invocation_metadata: Any


class ServedCall:
    """As the context of a handler of `grpc.aio`, as far as it is used."""

    def __init__(self, link: _Link, number: int, metadata: Any, handler: Any) -> None:
        self._link = link
        self._number = number
        self._metadata = metadata
        self._handler = handler
        self.messages = _Messages()
        self._is_done = False
        self._is_cancelled = False

    async def read(self) -> Any:
        return await self.messages.next(self._handler.request_deserializer)

    async def write(self, answer: Any) -> None:
        self._link.put(self._number, _MESSAGE, self._handler.response_serializer(answer))
        await self._link.drain()

    def peer(self) -> str:
        return self._link.peer

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}

    def invocation_metadata(self) -> Any:
        return tuple((name, value) for name, value in self._metadata)

    def cancelled(self) -> bool:
        return self._is_cancelled

    def done(self) -> bool:
        return self._is_done

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        """Raises AbortError."""
        self._end(code, details)
        raise grpc.aio.AbortError

    async def serve(self) -> None:
        """Run the handler to its end."""
        handler = self._handler
        try:
            if handler.response_streaming:
                await handler.stream_stream(None, self)
            else:
                await self.write(await handler.stream_unary(None, self))
            self._end(grpc.StatusCode.OK, "")
        except grpc.aio.AbortError:
            pass
        except asyncio.CancelledError:
            self._is_cancelled = True
            self._end(grpc.StatusCode.CANCELLED, "the call was cancelled")
            raise
        except ConnectionError:
            self._is_done = True

    def _end(self, code: grpc.StatusCode, details: str) -> None:
        if not self._is_done:
            self._is_done = True
            self._link.put(self._number, _END, json.dumps([code.name, details]).encode())


class SimulatedServer:
    """As `grpc.aio.Server`, as far as it is used."""

    def __init__(self, **_: Any) -> None:
        self._handlers: list[Any] = []
        self._ports: list[asyncio.Server] = []
        self._addresses: list[str] = []
        self._links: dict[_Link, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        self._handlers.extend(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Those of reflection, which nobody asks in a simulation."""

    def add_insecure_port(self, address: str) -> int:
        self._addresses.append(address)
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        for address in self._addresses:
            host, _, port = address.rpartition(":")
            self._ports.append(await asyncio.start_server(self._connected, host, int(port)))

    async def stop(self, grace: float | None) -> None:
        """As the library: no new calls, those under way are cancelled after *grace* seconds."""
        for port in self._ports:
            port.close()
        if self._tasks:
            await asyncio.wait(list(self._tasks), timeout=grace or 0)
        for task in list(self._tasks):
            task.cancel()
        for link in list(self._links):
            link.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(reader, writer)
        self._links[link] = None
        calls: dict[int, tuple[ServedCall, asyncio.Task[None]]] = {}
        try:
            while True:
                number, kind, body = await link.next()
                if kind == _PING:
                    link.put(0, _PONG)
                elif kind == _BEGIN:
                    self._begin(link, calls, number, *json.loads(body))
                elif number in calls:
                    call, task = calls[number]
                    if kind == _CANCEL:
                        task.cancel()
                    else:
                        call.messages.put(body if kind == _MESSAGE else None)
        except (OSError, EOFError):
            pass
        finally:
            self._links.pop(link, None)
            link.close()
            for _, task in calls.values():
                task.cancel()

    def _begin(
        self,
        link: _Link,
        calls: dict[int, tuple[ServedCall, asyncio.Task[None]]],
        number: int,
        path: str,
        metadata: Any,
    ) -> None:
        services = (handler.service(_Details(path, metadata)) for handler in self._handlers)
        handler = next((each for each in services if each is not None), None)
        if handler is None:
            text = json.dumps([grpc.StatusCode.UNIMPLEMENTED.name, "Method not found!"])
            link.put(number, _END, text.encode())
            return
        call = ServedCall(link, number, metadata, handler)
        task = asyncio.ensure_future(call.serve())
        self._tasks[task] = None
        calls[number] = call, task

        def ended(_: object) -> None:
            self._tasks.pop(task, None)
            calls.pop(number, None)

        task.add_done_callback(ended)
