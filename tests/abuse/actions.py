"""What the table of docs/permissions.md names: each action as it is tried at each door, by any role.

A try makes what it needs as a super user, then acts as the role. It is DONE, DENIED for want of a right, or FAILED with
another error.
"""

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple

import grpc

from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics import topics_pb2 as api
from tests.abuse.roles import NAMESPACE, PARTED, SUPER_USER, TOPIC, Doors, bearer, error_of

BINARY, GRPC, HTTP = "binary", "gRPC", "HTTP"


class Outcome(Enum):
    DONE = auto()
    DENIED = auto()
    FAILED = auto()


class Told(NamedTuple):
    outcome: Outcome
    text: str


Try = Callable[[tuple[Doors, Doors], str], Awaitable[Told]]

_numbers = itertools.count()

_DENIALS: Final = ("AuthorizationError", "AuthenticationError")
# What gRPC's asyncio client says of a call that ended while it was written to; the status is lost.
_STATUS_LOST: Final = f"{grpc.StatusCode.INTERNAL} Internal error from Core"

_CODES: Final = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)

THEIRS: Final = "persistent://shop/theirs/t"
"""With a subscription `theirs`, which was granted to another role."""
OWN: Final = f"persistent://{NAMESPACE}/__change_events"


def rest(topic: str) -> str:
    return "/admin/v2/" + topic.replace("://", "/")


async def owner(doors: tuple[Doors, Doors], topic: str) -> Doors:
    """The broker that serves *topic*."""
    found = await doors[0].call(SUPER_USER, "GET", "/lookup/v2/topic/" + topic.replace("://", "/"))
    assert found.status == 200, found
    return next(one for one in doors if f':{one.ports["binary"]}"' in found.text)


# -------------------------------------------------------------------------------- how to try them


class Call(NamedTuple):
    """A call over HTTP. `NEW` in its path is a name that was not used before."""

    method: str
    path: str
    body: Any = None
    before: Sequence["Call"] = ()
    """What a super user does first."""


def http(method: str, path: str, body: Any = None, *before: Call) -> Mapping[str, Try]:
    async def attempt(doors: tuple[Doors, Doors], role: str) -> Told:
        new = f"new{next(_numbers)}"
        for call in before:
            made = await doors[0].call(SUPER_USER, call.method, call.path.replace("NEW", new), call.body)
            assert made.status < 300 or made.status == 409, (call, made)
        answer = await doors[next(_numbers) % 2].call(role, method, path.replace("NEW", new), body)
        if answer.is_refused:
            return Told(Outcome.DENIED, answer.text)
        return Told(Outcome.DONE if answer.status < 300 else Outcome.FAILED, f"{answer.status} {answer.text}")

    return {HTTP: attempt}


def binary(kind: int, *before: Call, topic: str = TOPIC, **fields: Any) -> Mapping[str, Try]:
    async def attempt(doors: tuple[Doors, Doors], role: str) -> Told:
        new = f"new{next(_numbers)}"
        for call in before:
            await doors[0].call(SUPER_USER, call.method, call.path.replace("NEW", new), call.body)
        named = topic.replace("NEW", new)
        told = {name: text.replace("NEW", new) if isinstance(text, str) else text for name, text in fields.items()}
        if "namespace" not in told:
            told["topic"] = named
        door = await owner(doors, named)
        try:
            client = await door.binary(role)
        except ConnectionError as error:
            return Told(Outcome.DENIED, str(error))
        try:
            answer = await door.ask(client, kind, request_id=1, **told)
        finally:
            client.close()
        problem = error_of(answer)
        outcome = Outcome.DENIED if problem in _DENIALS else Outcome.FAILED if problem else Outcome.DONE
        return Told(outcome, str(answer))

    return {BINARY: attempt}


def unary(method: str, request: Any, *before: Call) -> Mapping[str, Try]:
    """A call over gRPC; `NEW` as above."""

    async def attempt(doors: tuple[Doors, Doors], role: str) -> Told:
        new = f"new{next(_numbers)}"
        for call in before:
            await doors[0].call(SUPER_USER, call.method, call.path.replace("NEW", new), call.body)
        made = type(request)()
        made.CopyFrom(request)
        topic = getattr(request, "topic", "").replace("NEW", new)
        if topic:
            made.topic = topic
        door = await owner(doors, topic) if topic else doors[0]
        async with door.channel() as channel:
            call = channel.unary_unary(
                f"/magnetar.topics.v1.Topics/{method}", request_serializer=bytes, response_deserializer=bytes
            )
            return await _told(call(made.SerializeToString(), metadata=list(bearer(role).items())))

    return {GRPC: attempt}


def stream(method: str, request: Any) -> Mapping[str, Try]:
    async def attempt(doors: tuple[Doors, Doors], role: str) -> Told:
        made = type(request)()
        made.CopyFrom(request)
        if isinstance(made, api.ConsumeRequest) and made.open.subscription == "NEW":
            made.open.subscription = f"new{next(_numbers)}"
        door = await owner(doors, made.open.topic)
        while (told := await once(door, role, made)).text == _STATUS_LOST:
            pass
        return told

    async def once(door: Doors, role: str, made: Any) -> Told:
        async with door.channel() as channel:
            call = channel.stream_stream(
                f"/magnetar.topics.v1.Topics/{method}", request_serializer=bytes, response_deserializer=bytes
            )(metadata=list(bearer(role).items()))

            async def opened() -> None:
                await call.write(made.SerializeToString())
                await call.read()

            told = await _told(opened())
            call.cancel()
            return told

    return {GRPC: attempt}


async def _told(call: Awaitable[Any]) -> Told:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        outcome = Outcome.DENIED if error.code() in _CODES else Outcome.FAILED
        return Told(outcome, f"{error.code()} {error.details()}")
    return Told(Outcome.DONE, "")


# ----------------------------------------------------------------------------------- the actions

_TOP: Final = rest(TOPIC)
_PARTED: Final = rest(PARTED)
_NS: Final = f"/admin/v2/namespaces/{NAMESPACE}"
_SCHEMA: Final = {"type": "STRING", "schema": "", "properties": {}}
_SCHEMA_PATH: Final = f"/admin/v2/schemas/{NAMESPACE}/schemed/schema"
_T: Final = BaseCommand
_NEW: Final = Call("PUT", f"{_TOP}-NEW")
_SUBSCRIPTION: Final = Call("PUT", f"{_PARTED}/subscription/NEW")
_OWN: Final = Call("PUT", rest(OWN))
_GROUP: Final = Call("PUT", "/admin/v2/resourcegroups/one", {"publishRateInMsgs": 1_000_000})
_NS_OF_THEIRS: Final = "/admin/v2/namespaces/shop/theirs"

_PRODUCER: Final[dict[str, Any]] = {"producer_id": 1}
_CONSUMER: Final[dict[str, Any]] = {"consumer_id": 1, "subType": wire.CommandSubscribe.Shared}


def opening(topic: str, subscription: str = "NEW") -> api.ConsumeRequest:
    return api.ConsumeRequest(open=api.ConsumeRequest.Open(topic=topic, subscription=subscription, type=api.SHARED))


def publishing(topic: str) -> api.PublishRequest:
    return api.PublishRequest(open=api.PublishRequest.Open(topic=topic))


ACTIONS: Final[Mapping[str, Mapping[str, Try]]] = {
    "read metrics": http("GET", "/metrics/"),
    "list the clusters": http("GET", "/admin/v2/clusters"),
    "ask for the brokers": unary("ListBrokers", api.ListBrokersRequest()),
    "look up a topic": {
        **binary(_T.LOOKUP),
        **unary("Lookup", api.LookupRequest(topic=TOPIC)),
        **http("GET", "/lookup/v2/topic/" + TOPIC.replace("://", "/")),
    },
    "ask how many partitions a topic has": {
        **binary(_T.PARTITIONED_METADATA, topic=PARTED),
        **unary("GetTopic", api.GetTopicRequest(topic=PARTED)),
        **http("GET", f"{_PARTED}/partitions"),
    },
    "produce": {**binary(_T.PRODUCER, **_PRODUCER), **stream("Publish", publishing(TOPIC))},
    "consume": {
        **binary(_T.SUBSCRIBE, subscription="NEW", **_CONSUMER),
        **stream("Consume", opening(TOPIC)),
    },
    "list the topics of a namespace": {
        **binary(_T.GET_TOPICS_OF_NAMESPACE, namespace=NAMESPACE),
        **unary("ListTopics", api.ListTopicsRequest(namespace=NAMESPACE)),
        **http("GET", f"/admin/v2/persistent/{NAMESPACE}"),
    },
    "read the statistics of a topic": {
        **unary("GetTopicStats", api.GetTopicStatsRequest(topic=TOPIC)),
        **http("GET", f"{_PARTED}/partitioned-stats"),
    },
    "read a schema": {
        **binary(_T.GET_SCHEMA, Call("POST", _SCHEMA_PATH, _SCHEMA), topic=f"persistent://{NAMESPACE}/schemed"),
        **unary("GetSchema", api.GetSchemaRequest(topic=f"persistent://{NAMESPACE}/schemed")),
        **http("GET", _SCHEMA_PATH, None, Call("POST", _SCHEMA_PATH, _SCHEMA)),
    },
    "upload a schema": {
        **binary(_T.GET_OR_CREATE_SCHEMA, Call("PUT", f"/admin/v2/persistent/{NAMESPACE}/schemed"), topic=f"persistent://{NAMESPACE}/schemed",
                 schema=wire.Schema(name="", type=wire.Schema.String, schema_data=b"")),
        **http("POST", _SCHEMA_PATH, _SCHEMA),
    },
    "ask for the last message": {
        **unary("GetLastMessageId", api.GetLastMessageIdRequest(topic=TOPIC)),
    },
    "list the subscriptions of a topic": http("GET", f"{_PARTED}/subscriptions"),
    "create a subscription": http("PUT", f"{_PARTED}/subscription/NEW"),
    "skip the backlog of a subscription": http("POST", f"{_PARTED}/subscription/NEW/skip_all", None, _SUBSCRIPTION),
    "reset a subscription": http("POST", f"{_PARTED}/subscription/NEW/resetcursor/0", None, _SUBSCRIPTION),
    "write the properties of a subscription": http(
        "PUT", f"{_PARTED}/subscription/NEW/properties", {"a": "b"}, _SUBSCRIPTION
    ),
    "remove a subscription": http("DELETE", f"{_PARTED}/subscription/NEW", None, _SUBSCRIPTION),
    "clear the backlogs of a namespace": http("POST", f"{_NS}/clearBacklog"),
    "remove a subscription from a namespace": http("POST", f"{_NS}/unsubscribe/NEW", None, _SUBSCRIPTION),
    "use a subscription of another role": {
        **binary(_T.SUBSCRIBE, topic=THEIRS, subscription="theirs", **_CONSUMER),
        **stream("Consume", opening(THEIRS, "theirs")),
        **http("POST", f"{rest(THEIRS)}/subscription/theirs/skip_all"),
    },
    "clear its backlog in the namespace": http("POST", f"{_NS_OF_THEIRS}/clearBacklog/theirs"),
    "clear all backlogs where it is": http("POST", f"{_NS_OF_THEIRS}/clearBacklog"),
    "create a topic": {
        **unary("CreateTopic", api.CreateTopicRequest(topic=f"{TOPIC}-NEW")),
        **http("PUT", f"{_TOP}-NEW"),
    },
    "delete a topic": {
        **unary("DeleteTopic", api.DeleteTopicRequest(topic=f"{TOPIC}-NEW"), _NEW),
        **http("DELETE", f"{_TOP}-NEW", None, _NEW),
    },
    "unload a topic": http("PUT", f"{_TOP}/unload"),
    "truncate a topic": http("DELETE", f"{_TOP}-NEW/truncate", None, _NEW),
    "compact a topic": http("PUT", f"{_TOP}-NEW/compaction", None, _NEW),
    "terminate a topic": http("POST", f"{_TOP}-NEW/terminate", None, _NEW),
    "write the properties of a topic": http("PUT", f"{_PARTED}/properties", {"a": "b"}),
    "grant a permission": http("POST", f"{_NS}/permissions/NEW", ["functions"]),
    "grant a permission on a topic": http("POST", f"{_TOP}/permissions/NEW", ["functions"]),
    "read the policies of a namespace": http("GET", f"{_NS}/retention"),
    "set a policy of a namespace": http("POST", f"{_NS}/maxProducersPerTopic", 10_000),
    "set a policy of a topic": http("POST", f"{_TOP}/maxProducers", 10_000),
    "create a namespace": http("PUT", "/admin/v2/namespaces/shop/NEW"),
    "delete a namespace": http("DELETE", "/admin/v2/namespaces/shop/NEW", None,
                               Call("PUT", "/admin/v2/namespaces/shop/NEW")),
    "read a tenant": http("GET", "/admin/v2/tenants/shop"),
    "put a namespace into a resource group": http("POST", f"{_NS}/resourcegroup/one", None, _GROUP),
    "list the tenants": http("GET", "/admin/v2/tenants"),
    "create a tenant": http("PUT", "/admin/v2/tenants/NEW", {"adminRoles": [], "allowedClusters": ["standalone"]}),
    "unload a namespace": http("PUT", f"{_NS}/unload"),
    "change the broker's settings": http("POST", "/admin/v2/brokers/configuration/maxTenants/0"),
    "name where a bookie stands": http(
        "POST", "/admin/v2/bookies/racks-info/10.0.0.1:3181?group=default", {"rack": "/r1"}
    ),
    "produce to `__change_events`": {
        **binary(_T.PRODUCER, topic=OWN, **_PRODUCER),
        **stream("Publish", publishing(OWN)),
    },
    "consume from `__change_events`": {
        **binary(_T.SUBSCRIBE, topic=OWN, subscription="NEW", **_CONSUMER),
        **stream("Consume", opening(OWN)),
    },
    "look up `__change_events`": {
        **binary(_T.LOOKUP, topic=OWN),
        **unary("Lookup", api.LookupRequest(topic=OWN)),
        **http("GET", "/lookup/v2/topic/" + OWN.replace("://", "/")),
    },
    "delete `__change_events`": http("DELETE", f"{rest(OWN)}?force=true", None, _OWN),
    "produce to `__transaction_buffer_snapshot`": binary(
        _T.PRODUCER, topic=f"persistent://{NAMESPACE}/__transaction_buffer_snapshot", **_PRODUCER
    ),
    "produce to `pulsar/system`": {
        **binary(_T.PRODUCER, topic="persistent://pulsar/system/abused", **_PRODUCER),
        **stream("Publish", publishing("persistent://pulsar/system/abused")),
    },
    "use the subscription `__compaction`": {
        **binary(_T.SUBSCRIBE, subscription="__compaction", **_CONSUMER),
        **stream("Consume", opening(TOPIC, "__compaction")),
        **http("DELETE", f"{_PARTED}/subscription/__compaction"),
    },
}  # fmt: skip
