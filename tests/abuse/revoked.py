"""A role whose right is taken away while its clients are connected, beside one that keeps the same right."""

import asyncio
import contextlib
import itertools
import random
from typing import Any, Final

import grpc

from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from tests.abuse.actions import opening, owner, publishing
from tests.abuse.attacks import Field, answered, grpc_opened
from tests.abuse.roles import PATIENCE_S, SUPER_USER, Doors, bearer, error_of
from tests.unit.broker.raw_client import RawClient

RIGHTS: Final = ("administrator", "namespace", "topic")
_BOTH: Final = ["produce", "consume"]
_numbers = itertools.count()


class Clients:
    """What one role has open: a producer, a consumer and a watch over the binary port, and two calls over gRPC."""

    def __init__(self, at: Doors, role: str, topic: str, *, watches: bool) -> None:
        self._at = at
        self._role = role
        self._topic = topic
        self._watches = watches
        self._channel = at.channel()
        self._calls: list[Any] = []
        self._client: RawClient

    async def open(self) -> None:
        self._client = client = await self._at.binary(self._role)
        wanted: list[tuple[int, dict[str, Any]]] = [
            (BaseCommand.PRODUCER, {"producer_id": 1}),
            (
                BaseCommand.SUBSCRIBE,
                {"consumer_id": 1, "subscription": self._role, "subType": wire.CommandSubscribe.Shared},
            ),
        ]
        for kind, fields in wanted:
            answer = await self._at.ask(client, kind, topic=self._topic, request_id=1, **fields)
            assert not error_of(answer), answer
        if self._watches:
            namespace = "/".join(self._topic.partition("://")[2].split("/")[:2])
            answer = await self._at.ask(client, BaseCommand.WATCH_TOPIC_LIST, request_id=3, watcher_id=1,
                                        namespace=namespace, topics_pattern=".*")  # fmt: skip
            assert answer.type == BaseCommand.WATCH_TOPIC_LIST_SUCCESS, answer
        for request in self._requests():
            self._calls.append(await self._call(request))

    def _requests(self) -> tuple[Any, Any]:
        return publishing(self._topic), opening(self._topic, f"{self._role}-g")

    async def _call(self, request: Any) -> Any:
        method = "Publish" if "Publish" in type(request).__name__ else "Consume"
        call = self._channel.stream_stream(
            f"/magnetar.topics.v1.Topics/{method}", request_serializer=bytes, response_deserializer=bytes
        )(metadata=list(bearer(self._role).items()))
        await call.write(request.SerializeToString())
        assert await call.read() is not grpc.aio.EOF, await call.details()
        return call

    async def all_ended(self) -> None:
        """The server has closed each, and takes none back."""
        wanted = {BaseCommand.CLOSE_PRODUCER, BaseCommand.CLOSE_CONSUMER}
        async with asyncio.timeout(PATIENCE_S):
            while wanted:
                with contextlib.suppress(TimeoutError):
                    answer = await self._client.answer()
                    wanted.discard(answer.type)
                    if answer.type == BaseCommand.PING:
                        self._client.send(BaseCommand.PONG)
        for call in self._calls:
            async with asyncio.timeout(PATIENCE_S):
                with contextlib.suppress(grpc.aio.AioRpcError):
                    while await call.read() is not grpc.aio.EOF:
                        pass
        for kind, fields in (
            (BaseCommand.PRODUCER, {"producer_id": 2}),
            (BaseCommand.SUBSCRIBE, {"consumer_id": 2, "subscription": "again", "subType": 1}),
        ):
            answer = await self._at.ask(self._client, kind, topic=self._topic, request_id=5, **fields)
            assert error_of(answer) == "AuthorizationError", answer
        for request in self._requests():
            assert (await grpc_opened(self._at, self._role, request)).startswith("PERMISSION_DENIED")

    async def go_on(self) -> None:
        """A message is taken, and the calls are there."""
        self._client.publish(1, 0)
        await answered(self._client, 1, (BaseCommand.SEND_RECEIPT,))
        assert not any(call.done() for call in self._calls), "a call of a role that kept its right has ended"

    async def next_list(self) -> bool:
        """Whether a change of the watched list comes before the answer to a request."""
        return (await self._at.ask(self._client, BaseCommand.PING)).type == BaseCommand.WATCH_TOPIC_UPDATE

    async def until_list(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(TimeoutError):
                    if (await self._client.answer()).type == BaseCommand.WATCH_TOPIC_UPDATE:
                        return

    async def close(self) -> None:
        self._client.close()
        for call in self._calls:
            call.cancel()
        await self._channel.close()


async def revoked(field: Field, rng: random.Random) -> int:
    number = next(_numbers)
    right = RIGHTS[number % len(RIGHTS)]
    tenant, leaver, stayer = f"left{number}", f"leaver{number}", f"stayer{number}"
    namespace = f"{tenant}/n"
    topic = f"persistent://{namespace}/t"

    async def make(method: str, path: str, body: Any = None) -> None:
        answer = await rng.choice(field.doors).call(SUPER_USER, method, f"/admin/v2/{path}", body)
        assert answer.status == 204, f"{method} {path}: {answer}"

    def record(*roles: str) -> dict[str, Any]:
        return {"adminRoles": list(roles), "allowedClusters": ["standalone"]}

    is_chief = right == "administrator"
    await make("PUT", f"tenants/{tenant}", record(leaver, stayer) if is_chief else record())
    await make("PUT", f"namespaces/{namespace}")
    await make("PUT", f"persistent/{namespace}/t")
    place = {"namespace": f"namespaces/{namespace}", "topic": f"persistent/{namespace}/t"}.get(right, "")
    if place:
        for role in (leaver, stayer):
            await make("POST", f"{place}/permissions/{role}", _BOTH)
    at = await owner(field.doors, topic)
    watches = right != "topic"
    leaving, staying = (Clients(at, role, topic, watches=watches) for role in (leaver, stayer))
    for clients in (leaving, staying):
        await clients.open()
    if is_chief:
        await make("POST", f"tenants/{tenant}", record(stayer))
    else:
        await make("DELETE", f"{place}/permissions/{leaver}")
    await leaving.all_ended()
    await staying.go_on()
    if watches:
        await make("PUT", f"persistent/{namespace}/more")
        await staying.until_list()
        assert not await leaving.next_list(), f"the watch of {leaver} goes on"
    for clients in (leaving, staying):
        await clients.close()
    return 5
