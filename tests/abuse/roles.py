"""Who attacks: a client of each role at the guarded server, at each of its doors.

nobody      shows nothing            stranger    is known, and has no permission
producer    may produce in shop/n1   consumer    may consume there
boss        administers shop         admin       a super user
"""

import asyncio
import base64
import contextlib
import json
from typing import Any, Final, NamedTuple

import aiohttp
import grpc
from yarl import URL

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.security.tokens import sign
from tests.unit.broker.raw_client import RawClient

SUPER_USER: Final = "admin"
ROLES: Final = ("nobody", "stranger", "producer", "consumer", "boss", SUPER_USER)
SECRET: Final = bytes(range(32))

NAMESPACE: Final = "shop/n1"
MORE_NAMESPACES: Final = ("shop/schemas", "shop/events", "shop/much", "shop/names", "shop/theirs")
"""With the same permissions; what is left behind there changes nothing for the table of permissions."""
TOPIC: Final = f"persistent://{NAMESPACE}/top"
PARTED: Final = f"persistent://{NAMESPACE}/parted"
PARTITIONS: Final = 4

PATIENCE_S: Final = 60.0


def token_of(role: str, **claims: Any) -> str:
    return sign({"sub": role, **claims}, SECRET, "HS256")


def bearer(role: str) -> dict[str, str]:
    """The header, and the metadata over gRPC."""
    return {} if role == "nobody" else {"authorization": f"Bearer {token_of(role)}"}


class Answer(NamedTuple):
    status: int
    text: str

    @property
    def is_refused(self) -> bool:
        """For want of a right."""
        return self.status in (401, 403)


class Doors:
    """The ports of one broker. `role` is who comes in."""

    def __init__(self, ports: dict[str, Any], session: aiohttp.ClientSession) -> None:
        self.ports = ports
        self._session = session

    async def call(
        self, role: str, method: str, path: str, body: Any = None, *, data: bytes | None = None, follow: bool = True,
        headers: dict[str, str] | None = None,
    ) -> Answer:  # fmt: skip
        """One call over HTTP; *body* is sent as JSON, *data* as it is."""
        if body is not None:
            data = json.dumps(body).encode()
        shown = {**bearer(role), **({} if data is None else {"Content-Type": "application/json"}), **(headers or {})}
        url = URL(self.ports["http"] + path, encoded=True)
        for _ in range(5):
            async with self._session.request(method, url, data=data, headers=shown, allow_redirects=False) as answer:
                text = await answer.text(errors="replace")
                if answer.status != 307 or not follow:
                    return Answer(answer.status, text)
                url = URL(answer.headers["Location"], encoded=True)  # with the token: it is the other broker
        raise AssertionError(f"{method} {path} is sent in a circle")

    async def binary(self, role: str) -> RawClient:
        """Raises ConnectionError where the role is not let in."""
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.ports["binary"]))
        shown = {} if role == "nobody" else {"auth_method_name": "token", "auth_data": token_of(role).encode()}
        client.send(BaseCommand.CONNECT, client_version="raw", protocol_version=21, **shown)
        answer = await client.answer()
        if answer.type != BaseCommand.CONNECTED:
            client.close()
            raise ConnectionError(answer.error.message)
        return client

    async def ask(self, client: RawClient, kind: int, **fields: Any) -> BaseCommand:
        """Send one command; its answer, whatever else comes before."""
        client.send(kind, **fields)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(TimeoutError):  # a busy machine takes longer than what a unit test waits for
                    answer = await client.answer()
                    if answer.type == BaseCommand.PING:
                        client.send(BaseCommand.PONG)
                    elif answer.type not in (BaseCommand.MESSAGE, BaseCommand.ACTIVE_CONSUMER_CHANGE):
                        return answer

    def channel(self) -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(self.ports["grpc"], options=[("grpc.use_local_subchannel_pool", 1)])


def error_of(answer: BaseCommand) -> str:
    """The name of the error that a command was answered with; empty: it was done."""
    body = getattr(answer, BODY_OF_TYPE[answer.type])
    for name in ("error", "error_code"):
        if name in body.DESCRIPTOR.fields_by_name and body.HasField(name):
            return wire.ServerError.Name(getattr(body, name))
    return ""


assert (
    base64.b64encode(SECRET).decode() == "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
)  # as tests/abuse/server.py has it
