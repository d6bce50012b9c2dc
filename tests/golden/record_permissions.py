"""Records what an Apache broker answers to each role: `python -m tests.golden.record_permissions`.

The broker has authentication by token and authorization on, `superUserRoles=admin,proxyadmin` and
`proxyRoles=proxy,proxyadmin`; its secret is SECRET as `data:;base64,…` in `tokenSecretKey`, its cluster `standalone`.

    python -m tests.golden.record_permissions http://127.0.0.1:8080 127.0.0.1:6650
"""

import base64
import hashlib
import hmac
import json
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Final

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE, command, parse_frame
from tests.support.permission_calls import ROLES, Call, http_calls, world
from tests.support.permission_commands import COMMANDS, Asked

FOLDER: Final = Path(__file__).parents[1] / "vectors" / "permissions"
SECRET: Final = b"0123456789abcdef0123456789abcdef"
CLUSTER: Final = "standalone"
TIMEOUT_S: Final = 20.0


def token(role: str) -> str:
    """A token of *role*, signed with SECRET."""

    def encoded(part: bytes) -> bytes:
        return base64.urlsafe_b64encode(part).rstrip(b"=")

    head = encoded(b'{"alg":"HS256"}') + b"." + encoded(json.dumps({"sub": role}).encode())
    return (head + b"." + encoded(hmac.new(SECRET, head, hashlib.sha256).digest())).decode()


class Http:
    """The broker's HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url
        (self.broker,) = json.loads(self.ask(Call("GET", "/admin/v2/brokers"), "admin")[1])

    def ask(self, call: Call, role: str) -> tuple[int, str]:
        """(status, body)."""
        path = call.path.replace("BROKER", getattr(self, "broker", ""))
        request = urllib.request.Request(self._url + path, method=call.method)
        if role != "nobody":
            request.add_header("Authorization", f"Bearer {token(role)}")
        if call.body is not None:
            request.data = json.dumps(call.body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except TimeoutError:
            return 0, "no answer"


def record_http(http: Http) -> list[dict[str, Any]]:
    """One row for each call: the status and the reason that each role got."""
    rows = []
    for call in http_calls(CLUSTER):
        answers = {}
        for role in ROLES:
            if call.method != "GET":
                for made in world(CLUSTER):
                    http.ask(made, "admin")
            status, body = http.ask(call, role)
            answers[role] = {"status": status, **({"body": body[:300]} if status >= 400 else {})}
        rows.append({"method": call.method, "path": call.path, "body": call.body, "answers": answers})
        print(call.name, {role: one["status"] for role, one in answers.items()}, flush=True)
    return rows


class Binary:
    """One connection as one role."""

    def __init__(self, address: str, role: str, original: str | None = None) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
        self._data = b""
        shown: dict[str, Any] = (
            {} if role == "nobody" else {"auth_method_name": "token", "auth_data": token(role).encode()}
        )
        if original is not None:
            shown["original_principal"] = original
        self.greeting = self.ask(wire.BaseCommand.CONNECT, client_version="raw", protocol_version=21, **shown)

    def ask(self, kind: int, **fields: Any) -> dict[str, Any]:
        """The answer to one command: its type, and its error."""
        self._socket.sendall(command(kind, **fields))
        while True:
            while len(self._data) < 4 or len(self._data) < int.from_bytes(self._data[:4]) + 4:
                try:
                    more = self._socket.recv(1 << 16)
                except TimeoutError:
                    return {"type": "nothing"}
                if not more:
                    return {"type": "closed"}
                self._data += more
            size = int.from_bytes(self._data[:4]) + 4
            frame, self._data = self._data[4:size], self._data[size:]
            made, _ = parse_frame(memoryview(frame))
            if made.type == wire.BaseCommand.PING:
                continue
            return _shown(made)

    def close(self) -> None:
        self._socket.close()


def _shown(made: wire.BaseCommand) -> dict[str, Any]:
    found: dict[str, Any] = {"type": wire.BaseCommand.Type.Name(made.type)}
    body = getattr(made, BODY_OF_TYPE[made.type])
    for name in ("error", "error_code"):
        if name in body.DESCRIPTOR.fields_by_name and body.HasField(name):
            found["error"] = wire.ServerError.Name(getattr(body, name))
            found["message"] = getattr(body, "message", "") or getattr(body, "error_message", "")
    return found


def record_binary(http: Http, address: str) -> list[dict[str, Any]]:
    """One row for each command: what each role got."""
    rows = []
    for asked in COMMANDS:
        answers = {}
        for role in ROLES:
            for made in world(CLUSTER):
                http.ask(made, "admin")
            answers[role] = _answer(address, asked, role)
        rows.append({"command": asked.name, "answers": answers})
        print(asked.name, {role: one.get("error", one["type"]) for role, one in answers.items()}, flush=True)
    return rows


def _answer(address: str, asked: Asked, role: str) -> dict[str, Any]:
    client = Binary(address, role)
    try:
        if client.greeting["type"] != "CONNECTED":
            return client.greeting
        for kind, fields in asked.before:
            found = client.ask(kind, **fields)
            if "error" in found:
                return {"before": True, **found}
        return client.ask(asked.kind, **asked.fields)
    finally:
        client.close()


def record_proxies(http: Http, address: str) -> list[dict[str, Any]]:
    """What a proxy's connection and its lookup get, for pairs of the proxy's and the original role."""
    rows = []
    lookup = {"topic": "persistent://t1/n1/top", "request_id": 9}
    for granted in ([], ["produce", "consume"]):
        if granted:
            http.ask(Call("POST", "/admin/v2/namespaces/t1/n1/permissions/proxy", granted), "admin")
        for role in ("proxy", "proxyadmin", "producer", "admin"):
            for original in (None, "", "anonymous", "producer", "admin", "proxy", "proxyadmin"):
                client = Binary(address, role, original)
                found = client.greeting
                if found["type"] == "CONNECTED":
                    found = client.ask(wire.BaseCommand.LOOKUP, **lookup)
                client.close()
                rows.append({"role": role, "original": original, "granted": granted, "answer": found})
                print(rows[-1], flush=True)
    http.ask(Call("DELETE", "/admin/v2/namespaces/t1/n1/permissions/proxy"), "admin")
    return rows


def main() -> None:
    http = Http(sys.argv[1])
    for made in world(CLUSTER):
        http.ask(made, "admin")
    found = {
        "http": lambda: record_http(http),
        "binary": lambda: record_binary(http, sys.argv[2]),
        "proxies": lambda: record_proxies(http, sys.argv[2]),
    }
    for name in sys.argv[3:] or list(found):
        text = json.dumps(found[name](), indent=1, ensure_ascii=False)
        (FOLDER / f"{name}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
