"""Rights that change while a broker runs: they count at once, for new requests and for those who are there."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from broker.errors import MetadataFailure, NoSuchTenant, NotAuthorized
from broker.grpc.service import GrpcServer
from broker.policies.namespace import new_policies
from broker.records.json_records import to_json
from broker.security.authorization import Need, Operation, about_tenant, about_topic
from broker.security.rechecks import recheck
from broker.settings.quotas import NO_SUBSCRIPTIONS, InactiveTopics
from broker.wire import pulsar_pb2 as wire
from magnetar_core.security.caller import TRUSTED, Caller
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName
from tests.support.callers import believe_everybody
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import open_grpc
from tests.unit.broker.raw_client import RawClient

__all__ = ["world"]

TOP = "persistent://public/default/top"
NAME = TopicName.parse(TOP)
_T = wire.BaseCommand


@pytest.fixture
async def guarded(world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> BrokerInMemory:
    believe_everybody(monkeypatch)
    await world.restart(authorization_enabled=True, super_users=("root",))
    return world


async def grant(made: BrokerInMemory, **roles: list[str]) -> None:
    """Exactly these permissions in public/default, stored by another broker."""
    record = new_policies(made.config.cluster_name, 4)
    record["auth_policies"]["namespace_auth"] = roles
    await made.store.put("/admin/policies/public/default", to_json(record))


async def connect(made: BrokerInMemory, role: str) -> RawClient:
    client = await RawClient.connect(made.broker.port, introduce=False)
    client.send(_T.CONNECT, client_version="raw", protocol_version=21, auth_data=role.encode())
    await client.expect(_T.CONNECTED)
    return client


async def is_refused(client: RawClient, kind: int, **fields: Any) -> bool:
    client.send(kind, request_id=9, **fields)
    answer = await client.answer()
    if answer.type == _T.ERROR:
        assert answer.error.error == wire.AuthorizationError
        return True
    return False


async def test_a_grant_counts_for_the_next_request(guarded: BrokerInMemory) -> None:
    client = await connect(guarded, "ann")
    assert await is_refused(client, _T.PRODUCER, topic=TOP, producer_id=1)
    await grant(guarded, ann=["produce"])

    async def may_produce() -> bool:
        return not await is_refused(client, _T.PRODUCER, topic=TOP, producer_id=1)

    await eventually(may_produce)
    assert await is_refused(
        client, _T.SUBSCRIBE, topic=TOP, subscription="s", subType=wire.CommandSubscribe.Exclusive, consumer_id=1
    )
    client.close()


async def test_who_may_not_any_more_is_disconnected_and_the_others_stay(guarded: BrokerInMemory) -> None:
    await grant(guarded, ann=["produce"], bob=["consume"], cid=["produce", "consume"])
    clients = {role: await connect(guarded, role) for role in ("ann", "bob", "cid")}
    await eventually(lambda: _may(guarded, "ann"))
    await clients["ann"].produce(TOP)
    await clients["bob"].subscribe(TOP)
    await clients["cid"].produce(TOP)
    await clients["cid"].subscribe(TOP, subscription="other")
    await grant(guarded, cid=["produce", "consume"])
    assert (await clients["ann"].answer()).type == _T.CLOSE_PRODUCER
    assert (await clients["bob"].answer()).type == _T.CLOSE_CONSUMER
    topic = guarded.broker.topics[NAME]
    assert [str(one.caller) for one in topic.producers.values()] == ["cid"]
    assert await clients["cid"].nothing_came()
    assert await is_refused(clients["ann"], _T.PRODUCER, topic=TOP, producer_id=2)
    for client in clients.values():
        client.close()


class Held:
    """Holds the second question about each client: the records were changed, and are read anew."""

    def __init__(self, made: BrokerInMemory, monkeypatch: pytest.MonkeyPatch, operation: Operation) -> None:
        self.asked = 0
        self.go_on = asyncio.Event()
        self._operation = operation
        self._check = made.broker.access.check
        monkeypatch.setattr(made.broker.access, "check", self.check)

    async def check(self, caller: Caller, need: Need) -> None:
        if need.operation is self._operation:
            self.asked += 1
            if self.asked == 2:
                await self.go_on.wait()
        await self._check(caller, need)


@pytest.mark.parametrize("topic", [TOP, f"non-{TOP}"])
async def test_a_topic_that_is_closed_while_its_client_is_asked_for_again_leaves_no_dead_producer_or_consumer(
    topic: str, guarded: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(guarded, "root")
    bundle = (await guarded.broker.namespace("public/default")).bundles.bundle_of(TopicName.parse(topic))
    subscribe = {"topic": topic, "subscription": "s", "subType": wire.CommandSubscribe.Shared, "consumer_id": 1}
    for operation, kind, fields in (
        (Operation.PRODUCE, _T.PRODUCER, {"topic": topic, "producer_id": 1}),
        (Operation.CONSUME, _T.SUBSCRIBE, subscribe),
    ):
        with monkeypatch.context() as patch:
            held = Held(guarded, patch, operation)
            client.send(kind, request_id=3, **fields)
            await eventually(lambda held=held: held.asked == 2)  # type: ignore[misc]
            await guarded.broker.opening.unload_bundle(bundle)
            assert await client.nothing_came(), "a close would be of what its client does not know yet"
            held.go_on.set()
            assert await client.refused() == wire.ServiceNotReady
    await client.produce(topic)
    await client.subscribe(topic)
    client.publish(1, 0)
    assert {(await client.answer()).type for _ in range(2)} == {_T.SEND_RECEIPT, _T.MESSAGE}
    client.close()


@pytest.mark.parametrize("is_fenced", [False, True])
async def test_a_producer_whose_wait_for_the_topic_ends_while_it_is_asked_for_again_is_told_so(
    is_fenced: bool, guarded: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(guarded, "root")
    await client.produce(TOP, producer_access_mode=wire.Exclusive)
    held = Held(guarded, monkeypatch, Operation.PRODUCE)
    mode = wire.WaitForExclusive
    client.send(_T.PRODUCER, request_id=4, topic=TOP, producer_id=2, producer_access_mode=mode)
    await eventually(lambda: held.asked == 2)
    if is_fenced:
        fencing = wire.ExclusiveWithFencing
        client.send(_T.PRODUCER, request_id=6, topic=TOP, producer_id=3, producer_access_mode=fencing)
        assert (await client.expect(_T.CLOSE_PRODUCER)).close_producer.producer_id == 1
        assert (await client.expect(_T.PRODUCER_SUCCESS)).producer_success.request_id == 6
    else:
        client.send(_T.CLOSE_PRODUCER, producer_id=1, request_id=5)
        await client.expect(_T.SUCCESS)
        assert await client.nothing_came()
    held.go_on.set()
    if is_fenced:
        assert await client.refused() == wire.ProducerFenced
        assert await client.nothing_came()
    else:
        answer = (await client.expect(_T.PRODUCER_SUCCESS)).producer_success
        assert (answer.request_id, answer.producer_ready) == (4, True)
        client.publish(2, 0)
        await client.expect(_T.SEND_RECEIPT)
    client.close()


async def _may(made: BrokerInMemory, role: str) -> bool:
    try:
        await made.broker.access.check(Caller(role), about_topic(Operation.LOOKUP, NAME))
    except NotAuthorized:
        return False
    return True


async def test_an_administrator_counts_as_soon_as_the_tenant_names_it(guarded: BrokerInMemory) -> None:
    async def may() -> bool:
        try:
            await guarded.broker.access.check(Caller("boss"), about_tenant(Operation.LIST_NAMESPACES, "public"))
        except NotAuthorized:
            return False
        return True

    assert not await may()
    record = {"allowedClusters": [guarded.config.cluster_name], "adminRoles": ["boss"]}
    await guarded.store.put("/admin/policies/public", to_json(record))
    await eventually(may)
    await guarded.store.put("/admin/policies/public", to_json({**record, "adminRoles": []}))

    async def may_not() -> bool:
        return not await may()

    await eventually(may_not)


async def administrators(made: BrokerInMemory, *roles: str) -> None:
    """Exactly these of the tenant `public`, stored by another broker."""
    record = {"allowedClusters": [made.config.cluster_name], "adminRoles": list(roles)}
    await made.store.put("/admin/policies/public", to_json(record))


@pytest.mark.parametrize("topic", [TOP, f"non-{TOP}"])
@pytest.mark.parametrize("is_super", [False, True])
async def test_an_administrator_that_is_none_any_more_is_disconnected_and_the_others_stay(
    guarded: BrokerInMemory, topic: str, is_super: bool
) -> None:
    broker = guarded.broker
    if is_super:
        await broker.settings.set("superUserRoles", "root,boss")
    await administrators(guarded, *([] if is_super else ["boss"]), "chief")
    await grant(guarded, ann=["produce", "consume"])
    clients = {role: await connect(guarded, role) for role in ("boss", "chief", "ann", "root")}
    await eventually(lambda: _may(guarded, "ann"))
    for role, client in clients.items():
        await client.produce(topic)
        await client.subscribe(topic, subscription=f"of {role}")
    if is_super:
        await broker.settings.set("superUserRoles", "root")
    else:
        await administrators(guarded, "chief")
    client = clients.pop("boss")
    assert {(await client.answer()).type for _ in range(2)} == {_T.CLOSE_PRODUCER, _T.CLOSE_CONSUMER}
    assert await is_refused(client, _T.PRODUCER, topic=topic, producer_id=2)
    client.close()
    for client in clients.values():
        assert await client.nothing_came()
        client.close()


async def test_a_list_that_an_administrator_watches_ends_when_it_is_none_any_more(
    guarded: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.serving.topic_lists.SETTLE_S", 0.01)
    await administrators(guarded, "boss", "chief")
    clients = {role: await connect(guarded, role) for role in ("boss", "chief")}
    for client in clients.values():
        client.send(_T.WATCH_TOPIC_LIST, request_id=7, watcher_id=1, namespace="public/default", topics_pattern=".*")
        await client.expect(_T.WATCH_TOPIC_LIST_SUCCESS)
    await administrators(guarded, "chief")
    await guarded.broker.opening.create_topic(NAME)
    await clients["chief"].expect(_T.WATCH_TOPIC_UPDATE)
    assert await clients["boss"].nothing_came()
    for client in clients.values():
        client.close()


async def test_many_clients_are_asked_about_in_turns(guarded: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.security.rechecks.CLIENTS_PER_TURN", 2)
    await administrators(guarded, "boss")
    client = await connect(guarded, "boss")
    for number in range(1, 8):
        await client.produce(TOP, producer_id=number, producer_name=f"p{number}")
    asked: list[Need] = []
    per_turn = [0]
    check = guarded.broker.access.check

    async def counted(caller: Caller, need: Need) -> None:
        asked.append(need)
        per_turn[-1] += 1
        await check(caller, need)

    def turn() -> None:
        per_turn.append(0)
        if len(asked) < 7:
            asyncio.get_running_loop().call_soon(turn)

    monkeypatch.setattr(guarded.broker.access, "check", counted)
    asyncio.get_running_loop().call_soon(turn)
    await recheck(guarded.broker.access, guarded.broker.topics[NAME])
    assert len(asked) == 7
    assert max(per_turn) <= 2
    client.close()


async def test_a_deleted_topic_takes_its_permissions_with_it(guarded: BrokerInMemory) -> None:
    broker = guarded.broker
    topic = await broker.opening.create_topic(NAME)
    record = new_policies(guarded.config.cluster_name, 4)
    record["auth_policies"]["destination_auth"] = {TOP: {"ann": ["produce"]}, TOP + "2": {"ann": ["produce"]}}
    await guarded.store.put("/admin/policies/public/default", to_json(record))
    await broker.deleting.delete_topic(topic.name)
    left = await broker.tenancy.namespace("public/default")
    assert left["auth_policies"]["destination_auth"] == {TOP + "2": {"ann": ["produce"]}}


async def grant_on_partitions(made: BrokerInMemory) -> None:
    """A partitioned topic with a grant on itself and on a partition, beside a grant on another topic."""
    record = new_policies(made.config.cluster_name, 4)
    names = (TOP, f"{TOP}-partition-0", TOP + "2")
    record["auth_policies"]["destination_auth"] = {name: {"ann": ["produce"]} for name in names}
    await made.store.put("/admin/policies/public/default", to_json(record))
    await made.broker.partitioned.create(NAME, 1)


async def granted_topics(made: BrokerInMemory) -> set[str]:
    record = await made.broker.tenancy.namespace("public/default")
    return set(record["auth_policies"]["destination_auth"])


async def test_a_partitioned_topic_that_nobody_uses_takes_its_permissions_with_it(guarded: BrokerInMemory) -> None:
    await guarded.restart(delete_inactive_partitioned=True)
    await grant_on_partitions(guarded)
    topic = await guarded.broker.opening.create_topic(NAME.with_partition(0))
    await topic.apply_policies(replace(topic.policies, inactive_topics=InactiveTopics(True, NO_SUBSCRIPTIONS, -1)))
    await guarded.broker.periodic.delete_inactive_topics()
    assert await granted_topics(guarded) == {TOP + "2"}


async def test_a_partitioned_topic_that_is_deleted_over_grpc_takes_its_permissions_with_it(
    guarded: BrokerInMemory,
) -> None:
    await grant_on_partitions(guarded)
    await guarded.broker.opening.create_topic(NAME.with_partition(0))
    await guarded.broker.deleting.delete_topic(NAME.with_partition(0))
    assert await granted_topics(guarded) == {TOP, TOP + "2"}, "the partition is deleted, and not yet the topic"
    port = await open_grpc(guarded)
    assert await status_of(port, "DeleteTopic", api.DeleteTopicRequest(topic=TOP), "root") == "OK"
    assert await granted_topics(guarded) == {TOP + "2"}
    await port.stop()


async def test_nothing_is_asked_where_authorization_is_off(world: BrokerInMemory) -> None:
    assert world.broker.access.is_open
    await world.broker.access.check(Caller("anybody"), about_tenant(Operation.DELETE_TENANT, "public"))


async def test_a_trusted_caller_may_do_everything(guarded: BrokerInMemory) -> None:
    await guarded.broker.access.check(TRUSTED, about_tenant(Operation.DELETE_TENANT, "public"))


async def test_who_may_do_it_cannot_be_found_out_where_the_record_is_damaged(guarded: BrokerInMemory) -> None:
    await guarded.store.put("/admin/policies/public/default", b"[secret]")
    access = guarded.broker.access
    await access.check(Caller("root"), about_topic(Operation.LOOKUP, NAME))
    with pytest.raises(MetadataFailure) as refused:
        await access.check(Caller("ann"), about_topic(Operation.LOOKUP, NAME))
    assert "secret" not in str(refused.value)


async def test_a_permission_that_goes_while_a_producer_is_made_counts(
    guarded: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    await grant(guarded, ann=["produce", "consume"])
    await eventually(lambda: _may(guarded, "ann"))
    client = await connect(guarded, "ann")
    broker = guarded.broker
    schema = broker.producer_schema

    async def while_it_is_made(*arguments: Any) -> bytes:
        await grant(guarded)

        async def may_not() -> bool:
            return not await _may(guarded, "ann")

        await eventually(may_not)
        return await schema(*arguments)

    monkeypatch.setattr(broker, "producer_schema", while_it_is_made)
    assert await is_refused(client, _T.PRODUCER, topic=TOP, producer_id=1)
    assert not broker.topics[NAME].producers
    client.close()


# ------------------------------------------------------------------------------------------ the topic API


@pytest.fixture
async def port(guarded: BrokerInMemory) -> AsyncIterator[GrpcServer]:
    await guarded.store.put(
        "/admin/policies/public",
        to_json({"allowedClusters": [guarded.config.cluster_name], "adminRoles": ["boss"]}),
    )
    await grant(guarded, producer=["produce"], consumer=["consume"])
    await guarded.broker.opening.create_topic(NAME)
    server = await open_grpc(guarded)
    yield server
    await server.stop()


REQUESTS: dict[str, Any] = {
    "Lookup": api.LookupRequest(topic=TOP),
    "GetTopic": api.GetTopicRequest(topic=TOP),
    "GetLastMessageId": api.GetLastMessageIdRequest(topic=TOP),
    "CreateTopic": api.CreateTopicRequest(topic=TOP + "2"),
    "DeleteTopic": api.DeleteTopicRequest(topic=TOP + "3"),
    "ListTopics": api.ListTopicsRequest(),
    "WatchTopics": api.WatchTopicsRequest(),
    "ListBrokers": api.ListBrokersRequest(),
    "GetTopicStats": api.GetTopicStatsRequest(topic=TOP),
    "GetSchema": api.GetSchemaRequest(topic=TOP),
    "Publish": api.PublishRequest(open=api.PublishRequest.Open(topic=TOP)),
    "Consume": api.ConsumeRequest(open=api.ConsumeRequest.Open(topic=TOP, subscription="s", type=api.SHARED)),
}
PUBLISH = "/magnetar.topics.v1.Topics/Publish"
ADMINISTRATORS = {"boss", "root"}
MAY = {
    "Lookup": {"producer", "consumer"},
    "GetTopic": {"producer", "consumer"},
    "GetLastMessageId": {"consumer"},
    "CreateTopic": set(),
    "DeleteTopic": set(),
    "ListTopics": {"producer", "consumer"},
    "WatchTopics": {"producer", "consumer"},
    "ListBrokers": {"anonymous", "producer", "consumer"},
    "GetTopicStats": {"producer", "consumer"},
    "GetSchema": {"producer", "consumer"},
    "Publish": {"producer"},
    "Consume": {"consumer"},
}


async def status_of(port: GrpcServer, method: str, request: Any, role: str) -> str:
    """How a call of *role* ends, or OK if a stream is opened."""
    said = (("x-role", role),) if role else ()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port.port}") as channel:
        path = f"/magnetar.topics.v1.Topics/{method}"
        try:
            if method in ("Publish", "Consume", "WatchTopics"):
                call = channel.stream_stream(path, lambda one: one.SerializeToString(), bytes)(metadata=said)
                await call.write(request)
                first = await call.read()
                if first is not grpc.aio.EOF:
                    call.cancel()
                    return "OK"
                return str((await call.code()).name)
            await channel.unary_unary(path, lambda one: one.SerializeToString(), bytes)(request, metadata=said)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"


@pytest.mark.parametrize("role", ["", "anonymous", "producer", "consumer", "boss", "root"])
async def test_each_call_of_the_topic_api_asks(port: GrpcServer, role: str) -> None:
    assert set(REQUESTS) == {one.name for one in api.DESCRIPTOR.services_by_name["Topics"].methods}
    for method, request in REQUESTS.items():
        status = await status_of(port, method, request, role)
        if not role:
            assert status == "UNAUTHENTICATED", method
        elif role in MAY[method] | ADMINISTRATORS:
            assert status not in ("UNAUTHENTICATED", "PERMISSION_DENIED"), method
        else:
            assert status == "PERMISSION_DENIED", method


OWN = "persistent://public/default/__change_events"


async def test_at_the_binary_port_the_brokers_own_topics_are_for_super_users(guarded: BrokerInMemory) -> None:
    await grant(guarded, ann=["produce", "consume"])
    await eventually(lambda: _may(guarded, "ann"))
    client, root = await connect(guarded, "ann"), await connect(guarded, "root")
    await root.produce(OWN)
    for kind, fields in (
        (_T.PRODUCER, {"producer_id": 1}),
        (_T.SUBSCRIBE, {"consumer_id": 1, "subscription": "s", "subType": wire.CommandSubscribe.Exclusive}),
        (_T.SUBSCRIBE, {"consumer_id": 1, "subscription": "r", "subType": wire.CommandSubscribe.Exclusive,
                        "durable": False}),
    ):  # fmt: skip
        for topic in (OWN, f"{OWN}-partition-0"):
            assert await is_refused(client, kind, topic=topic, **fields)
    assert not guarded.broker.topics[TopicName.parse(OWN)].subscriptions
    client.send(_T.LOOKUP, topic=OWN, request_id=4)
    assert (await client.answer()).lookupTopicResponse.response == wire.CommandLookupTopicResponse.Connect
    await root.subscribe(OWN)
    client.close()
    root.close()


async def test_over_grpc_the_brokers_own_topics_are_for_super_users(port: GrpcServer) -> None:
    requests: dict[str, Any] = {
        "Publish": api.PublishRequest(open=api.PublishRequest.Open(topic=OWN)),
        "Consume": api.ConsumeRequest(open=api.ConsumeRequest.Open(topic=OWN, subscription="s")),
        "CreateTopic": api.CreateTopicRequest(topic=OWN),
        "DeleteTopic": api.DeleteTopicRequest(topic=OWN, force=True),
    }
    for method, request in requests.items():
        for role in ("producer", "consumer", "boss"):
            assert await status_of(port, method, request, role) == "PERMISSION_DENIED", (method, role)
        assert await status_of(port, method, request, "root") in ("OK", "ALREADY_EXISTS"), method


async def test_the_calls_of_an_administrator_that_is_none_any_more_end(
    port: GrpcServer, guarded: BrokerInMemory
) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port.port}") as channel:
        calls = {}
        for role in ("boss", "root"):
            for method in ("Publish", "Consume"):
                path = f"/magnetar.topics.v1.Topics/{method}"
                made = channel.stream_stream(path, lambda one: one.SerializeToString(), bytes)
                calls[role, method] = call = made(metadata=(("x-role", role),))
                await call.write(REQUESTS[method])
                assert await call.read() is not grpc.aio.EOF
        await administrators(guarded)
        for method in ("Publish", "Consume"):
            async with asyncio.timeout(10):
                assert await calls["boss", method].code() is not grpc.StatusCode.OK, method
            assert await status_of(port, method, REQUESTS[method], "boss") == "PERMISSION_DENIED"
            assert not calls["root", method].done()


async def reflected(port: GrpcServer, role: str) -> str:
    """How the question which services there are ends."""
    said = (("x-role", role),) if role else ()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port.port}") as channel:
        path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        method = channel.stream_stream(path, lambda one: one.SerializeToString(), bytes)
        call = method(iter([asked]), metadata=said)  # a write of our own fails where the refusal is there before it
        try:
            while await call.read() is not grpc.aio.EOF:
                pass
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        return "OK"


async def test_what_services_there_are_is_told_to_those_who_are_authenticated(port: GrpcServer) -> None:
    assert {role: await reflected(port, role) for role in ("", "anonymous", "producer", "root")} == {
        "": "UNAUTHENTICATED", "anonymous": "OK", "producer": "OK", "root": "OK"
    }  # fmt: skip
    assert await checked_health(port) == "OK", "load balancers ask for it"


async def checked_health(port: GrpcServer) -> str:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port.port}") as channel:
        call = channel.unary_unary("/grpc.health.v1.Health/Check", lambda one: one.SerializeToString(), bytes)(
            health_pb2.HealthCheckRequest()
        )
        return str((await call.code()).name)


async def test_a_publish_call_ends_when_its_client_may_not_produce_any_more(
    guarded: BrokerInMemory, port: GrpcServer
) -> None:
    await grant(guarded, ann=["produce"], bob=["produce"])
    await eventually(lambda: _may(guarded, "bob"))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port.port}") as channel:
        calls: dict[str, Any] = {}
        for role in ("ann", "bob"):
            method = channel.stream_stream(PUBLISH, lambda one: one.SerializeToString(), api.PublishResponse.FromString)
            call = method(metadata=(("x-role", role),))
            await call.write(REQUESTS["Publish"])
            assert (await call.read()).HasField("opened")
            calls[role] = call
        await grant(guarded, bob=["produce"])
        with pytest.raises(grpc.aio.AioRpcError):
            await calls["ann"].read()
        assert (await calls["ann"].code()).name == "UNAVAILABLE"
        await calls["bob"].write(api.PublishRequest(first_sequence_id=0, messages=[api.Message(payload=b"x")]))
        async with asyncio.timeout(5):
            assert (await calls["bob"].read()).receipts
        calls["bob"].cancel()
    assert await status_of(port, "Publish", REQUESTS["Publish"], "ann") == "PERMISSION_DENIED"


async def test_that_a_tenant_is_not_there_is_told_where_apaches_brokers_tell_it(guarded: BrokerInMemory) -> None:
    """Seen on 4.0.8: the first question of a client, and HTTP but for the tenant itself."""
    access, caller = guarded.broker.access, Caller("ann")
    ghost, missing = (TopicName.parse(f"persistent://{space}/x") for space in ("ghost/none", "public/none"))
    with pytest.raises(NoSuchTenant, match=r"^Tenant does not exist$"):
        await access.check(caller, about_topic(Operation.GET_STATS, ghost))
    with pytest.raises(NotAuthorized, match="needs the permission"):
        await access.check(caller, about_topic(Operation.GET_STATS, missing))
    with pytest.raises(NotAuthorized, match="needs an administrator"):
        await access.check(caller, about_tenant(Operation.GET_TENANT, "ghost"))
    client = await connect(guarded, "ann")
    for topic, code in (ghost, wire.TopicNotFound), (missing, wire.AuthorizationError):
        client.send(_T.PARTITIONED_METADATA, request_id=1, topic=topic.full)
        assert (await client.expect(_T.PARTITIONED_METADATA_RESPONSE)).partitionMetadataResponse.error == code
        client.send(_T.LOOKUP, request_id=2, topic=topic.full)
        assert (await client.expect(_T.LOOKUP_RESPONSE)).lookupTopicResponse.error == wire.AuthorizationError
        assert await is_refused(client, _T.PRODUCER, topic=topic.full, producer_id=1)
    client.close()
