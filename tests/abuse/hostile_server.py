"""Servers that our commands, clients and brokers ask, and that answer what none of ours would.

    commands, brokers ──▶ HostileHttp ──redirect──▶ Trap          the token must not come there
    topic API         ──▶ HostileGrpc ──lookup────▶ (an address)  nor there

`elsewhere.example` is a host of somebody else: this module's resolver leads it to this machine, where the trap listens.
"""

import contextlib
import json
import random
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import grpc
import pytest

from magnetar_core.topics import topics_pb2 as api
from tests.abuse import inputs

TOKEN: Final = "eyJhbGciOiJub25lIn0.the-secret-of-somebody.x"
IN_A_FILE: Final = "what stands in a file of the user"
ELSEWHERE: Final = "elsewhere.example"

Answer = Callable[[str], bytes]
"""The first line of a request → the bytes that are sent, after which the connection ends."""


class _Handler(socketserver.BaseRequestHandler):
    server: "Listener"

    def handle(self) -> None:
        with contextlib.suppress(OSError):
            self.request.settimeout(1)
            data = self.server.gather(self.request)
            self.request.sendall(self.server.answer(data.partition(b"\r\n")[0].decode("latin-1")))


class Listener(socketserver.ThreadingTCPServer):
    """On a thread; each connection has one request."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, answer: Answer, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answer = answer
        self.got = bytearray()
        """All that clients sent."""
        self._context = context
        self._thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def gather(self, connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data and (more := connection.recv(1 << 16)):
            data += more
        self.got += data
        return data

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        if self._context is not None:
            connection.settimeout(1)
            connection = self._context.wrap_socket(connection, server_side=True)
        return connection, address

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names below `example` are this machine."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *more: Any, **named: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        is_there = name.rstrip(".").lower().endswith(".example")
        return resolve("127.0.0.1" if is_there else host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


@pytest.fixture
def trap() -> Iterator[Listener]:
    with Listener(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]") as made:
        yield made


# -------------------------------------------------------------------------------------- over HTTP


HOSTS: Final = (
    ELSEWHERE, ELSEWHERE.upper(), f"{ELSEWHERE}.", f"127.0.0.1.{ELSEWHERE}", "localhost.example", "localhost.x.example",
)  # fmt: skip
"""Of somebody else, whatever they begin with."""


def location(rng: random.Random, here: int, trap: int, file: Path, hosts: Sequence[str]) -> str:
    """Where no credentials may go: another host, out of HTTP, or nowhere. Some are read by one library in one way and
    by another one in another."""
    there = rng.choice(hosts)
    port = f"{there}:{trap}"
    if rng.random() < 0.4:
        return f"http://{port}/x"
    return rng.choice(
        [
            f"http://{port}/x", f"HTTP://{port}/x", f"//{port}/x", f"https://{port}/", f"http:{port}", f"///{port}/x",
            f"http://127.0.0.1:{here}@{port}/", f"http://{port}\\@127.0.0.1:{here}/", f"http://{port}#@127.0.0.1/",
            f"http://{port}?@127.0.0.1/", f"http:\\\\{port}\\x", f"\thttp://{port}/", f"ht\ttp://{port}/",
            f"http://{port}/\t", f"http://[::1]@{port}/", f"http://{port},127.0.0.1/", f"http://localhost@{port}",
            f"http://127.0.0.1%2f@{port}/", f"http://user:word@{port}/", f"http://{there}\u3002x:{trap}/",
            f"file://{file}", f"FILE://{file}", f"file:{file}", f"file://localhost{file}", f"ftp://{port}{file}",
            f"local_file://{file}", f"url:file://{file}", "data:application/json,[]", f"gopher://{port}/",
            "javascript:x", "/x", "", "?", ".", "http://", "http://[", "http://127.0.0.1:99999/",
            "http://127.0.0.1:port/", "\0", "x" * 5_000, "http://" + "a." * 2_000 + "example/",
        ]
    )  # fmt: skip


def garbage(rng: random.Random) -> bytes:
    return rng.choice(
        [
            b"", b"\0\0\0\x05nonsense", b"<html>", b"[" * 100_000, b'{"a":' * 20_000, b"9" * 5_000, b"1e999", b"NaN",
            b'"\\ud800"', b'["\\ud800\\n\\u001b[2J"]', b"\xff\xfe\x00", b'{"partitions": -1}', b'{"partitions": 1e400}',
            b'{"partitions": 4000000000}', rng.randbytes(100), json.dumps(inputs.json_value(rng)).encode(),
            json.dumps({inputs.text(rng): inputs.json_value(rng)}).encode(),
        ]
    )  # fmt: skip


def answer_of_http(rng: random.Random, body: bytes) -> bytes:
    """*body* as it is, or in a form that has something wrong."""
    plain = b"Content-Length: %d\r\n\r\n" % len(body) + body
    return rng.choice(
        [
            *[b"HTTP/1.1 200 OK\r\n" + plain] * 4,
            b"HTTP/1.1 %d What\r\n" % rng.choice([204, 304, 400, 401, 404, 429, 500, 503, 999]) + plain,
            b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + body,
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n" + body,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n" + body,
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + body,
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n" + plain,
            b"HTTP/1.1 200 OK\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 500 + b"\r\n",
            b"HTTP/1.1 100 Continue\r\n\r\n" * 100,
            b"HTTP/9.9 200 OK\r\n" + plain, b"HTTP/1.1 -1 x\r\n" + plain, b"HTTP/1.1 2\r\n\r\n", b"HTTP/1.1", b"", body,
        ]
    )  # fmt: skip


def redirect(rng: random.Random, target: str) -> bytes:
    status = rng.choice([301, 302, 303, 307, 308])
    head = f"HTTP/1.1 {status} Moved\r\nLocation: ".encode() + target.encode()
    return head + b"\r\nContent-Length: 0\r\n\r\n"


# -------------------------------------------------------------------------------------- over gRPC


def address(rng: random.Random, here: str, trap: int) -> str:
    there = f"{ELSEWHERE}:{trap}"
    return rng.choice(
        [
            there, there.upper(), f"127.0.0.1.{there}", f"{here}@{there}", f"{there}@{here}", f"localhost:{there}",
            f"{here},{there}", f"ipv4:{here},{there}", f"dns:{there}", f"dns:///{there}", f"unix:/tmp/x:{trap}",
            f"unix-abstract:x:{trap}", f"xds:///x:{trap}", f"http://{there}", f"{here}/{there}", f"{there}#{here}",
            f"{here}\0{there}", f"[::1]{there}", f"[::1%25{there}", f"127.0.0.1 {there}", "", ":", ":1", "x:",
            "localhost:99999", "localhost:\u0663", "x" * 5_000 + ":1", here,
        ]
    )  # fmt: skip


_ANSWERS: Final[dict[str, Any]] = {
    "Lookup": api.LookupResponse, "GetTopic": api.GetTopicResponse, "Publish": api.PublishResponse,
    "Consume": api.ConsumeResponse, "GetLastMessageId": api.GetLastMessageIdResponse,
    "CreateTopic": api.CreateTopicResponse, "ListTopics": api.ListTopicsResponse,
    "ListBrokers": api.ListBrokersResponse, "GetTopicStats": api.GetTopicStatsResponse,
    "DeleteTopic": api.DeleteTopicResponse, "GetSchema": api.GetSchemaResponse,
    "WatchTopics": api.WatchTopicsResponse,
}  # fmt: skip
_KNOWN: Final[inputs.Known] = {
    "partitions": lambda rng: rng.choice([0, 0, 1, 3, -1, 2**31 - 1]),
    "json": lambda rng: garbage(rng).decode("latin-1"),
    "max_message_bytes": lambda rng: rng.choice([0, 5_000_000, -1, 2**63 - 1]),
    "count": lambda rng: rng.choice([1, 1, 0, -1, 2**31 - 1]),
    "first_sequence_id": lambda rng: rng.choice([0, 0, 1, 2**63]),
    "topic": lambda rng: rng.choice(["t", "persistent://public/default/t", inputs.text(rng)]),
}


class HostileGrpc:
    """One that answers as `draw` says, by a source of its own for each call: the order of calls is nobody's."""

    def __init__(self, seed: str) -> None:
        self.address = ""
        self._seed = seed
        self.trap = 0
        self.tokens = 0
        """Calls with the token that came here, where it belongs."""
        self._calls = 0
        self._server: Any = None

    async def start(self, trap: int) -> None:
        self.trap = trap
        self._server = grpc.aio.server()
        hostile = self

        class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]  # the library has no types
            def service(self, handler_call_details: Any) -> Any:
                return grpc.stream_stream_rpc_method_handler(hostile._serve(handler_call_details))

        self._server.add_generic_rpc_handlers((Handler(),))
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def _serve(self, details: Any) -> Any:
        method = details.method.rpartition("/")[2]
        self._calls += 1
        self.tokens += any(TOKEN in str(value) for _, value in details.invocation_metadata)
        rng = random.Random(f"{self._seed} {method} {self._calls}")

        async def serve(requests: Any, context: Any) -> Any:
            if rng.random() < 0.1:
                codes = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
                await context.abort(rng.choice(codes), rng.choice(["", "x", "\u001b[2J", "y" * 3_000]))
            is_stream = method in ("Publish", "Consume", "WatchTopics")
            for number in range(rng.choice([0, 1, 3]) if is_stream and rng.random() < 0.5 else 1):
                if number:
                    await anext(aiter(requests), None)
                yield self._answer(rng, method)

        return serve

    def _answer(self, rng: random.Random, method: str) -> bytes:
        if rng.random() < 0.1:
            return garbage(rng)[:10_000]
        made = inputs.message(rng, _ANSWERS.get(method, api.LookupResponse), _KNOWN)
        if method == "Lookup":
            made.address = self.address if rng.random() < 0.6 else address(rng, self.address, self.trap)
            made.ask_there = rng.random() < 0.2
        if method == "ListBrokers":
            made.addresses[:] = [self.address]
        encoded: bytes = made.SerializeToString()
        return encoded
