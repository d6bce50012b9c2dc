"""A small HTTP server on a thread, which answers from a table and remembers the requests."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Asked(NamedTuple):
    method: str
    path: str
    body: Any


class Canned(NamedTuple):
    """An answer; *body* goes out as JSON, unless it is bytes or None."""

    status: int = 200
    body: Any = None
    headers: tuple[tuple[str, str], ...] = ()


class HttpFake:
    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: dict[tuple[str, str], Canned] = {}
        """(method, path with query) → answer; what is not here is 404."""
        self.asked: list[Asked] = []
        self.token = ""
        """If there is one, whoever does not show it is refused (401)."""

    def answer(self, method: str, path: str, body: Any = None, status: int = 200, **headers: str) -> None:
        self.answers[method, path] = Canned(status, body, tuple(headers.items()))


@contextmanager
def http_fake() -> Iterator[HttpFake]:
    class Handler(BaseHTTPRequestHandler):
        def handle_any(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fake.asked.append(Asked(self.command, self.path, json.loads(data) if data else None))
            missing = Canned(404, {"reason": f"{self.path} is not in the table"})
            found = fake.answers.get((self.command, self.path), missing)
            if fake.token and self.headers.get("Authorization") != f"Bearer {fake.token}":
                found = Canned(401, {"reason": "HTTP 401 Authentication required"})
            body = found.body if isinstance(found.body, bytes) else json.dumps(found.body).encode()
            body = b"" if found.body is None else body
            self.send_response(found.status)
            for name, value in found.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = handle_any

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake = HttpFake(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
