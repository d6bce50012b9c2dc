"""Each call and each command by each role, as Apache's broker answered it (`record_permissions`)."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

import pytest

from broker.admin.page.files import PREFIX
from broker.admin.refusals import REFUSED_CALLS
from broker.admin.server import AdminServer
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE
from tests.support.callers import believe_everybody
from tests.support.golden import REPLAYS, Report, golden, load
from tests.support.permission_calls import OFFLOAD_CALLS, RESOURCE_GROUP_CALLS, ROLES, Call, http_calls, world
from tests.support.permission_commands import COMMANDS, Asked
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.raw_client import RawClient

CLUSTER: Final = "standalone"
REFUSALS: Final = (401, 403)


@asynccontextmanager
async def guarded(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[AdminWorld, Side]]:
    """A broker with authorization on and what the recorder made."""
    believe_everybody(monkeypatch)
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        side = await made.side(
            cluster_name=CLUSTER,
            authorization_enabled=True,
            super_users=("admin", "proxyadmin"),
            proxy_roles=("proxy", "proxyadmin"),
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
        )
        await prepare(made, side)
        yield made, side


@pytest.fixture
async def admin(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[AdminWorld, Side]]:
    async with guarded(monkeypatch) as made:
        yield made


async def ask(made: AdminWorld, side: Side, call: Call, role: str) -> tuple[int, str]:
    path = call.path.replace("BROKER", side.id)
    if role == "nobody":
        answer = await made.call(side, call.method, path, call.body)
    else:
        answer = await made.call(side, call.method, path, call.body, X_Role=role)
    return answer.status, answer.text


async def prepare(made: AdminWorld, side: Side) -> None:
    for call in world(CLUSTER):
        await ask(made, side, call, "admin")


SINCE_4_2 = "/(?P<topic>[^/]+)/subscriptionExpirationTime"
"""Not recorded: 4.0.8 has it for namespaces only."""


async def test_each_route_was_recorded(admin: tuple[AdminWorld, Side]) -> None:
    _, side = admin
    app = AdminServer(side.broker, side.ownership, version="0").application()
    refused = {
        (method, path.partition(":0x")[0] + "}" if ":0x" in path else path) for method, path, *_ in REFUSED_CALLS
    }
    patterns = []
    for route in app.router.routes():
        assert route.resource is not None
        told = route.resource.get_info()
        text = told.get("path") or told["pattern"].pattern
        if text == "/" or text.startswith(PREFIX):  # the page for people, which Apache's brokers do not have
            continue
        if (route.method, told.get("path") or told["formatter"]) in refused:
            continue
        if text.endswith(SINCE_4_2):
            continue
        if "rest" not in text:  # what no other route takes
            patterns.append((route.method, text))
    calls = [(call.method, call.path.partition("?")[0]) for call in http_calls(CLUSTER)]
    for method, pattern in patterns:
        if method == "HEAD":
            continue
        taken = [path for one, path in calls if method in (one, "*") and re.fullmatch(pattern, path)]
        assert taken, f"{method} {pattern} was not recorded"


async def test_a_route_without_a_declared_right_cannot_be_added(admin: tuple[AdminWorld, Side]) -> None:
    _, side = admin
    server = AdminServer(side.broker, side.ownership, version="0")
    app = server.application()
    missing = [str(route) for route in app.router.routes() if route.handler not in server.operations]
    assert not missing


async def test_the_brokers_own_topics_are_changed_and_read_by_super_users_alone(admin: tuple[AdminWorld, Side]) -> None:
    """Not as Apache's brokers, to which they are topics like others."""
    own = "/t1/n1/__change_events"
    tells = re.compile(r"/position/|/ledger/|examinemessage|/subscriptions$|/permissions$|/backlogSize")
    asked = [
        call._replace(path=re.sub(r"/t1/n1/top[^/?]*", own, call.path))
        for call in http_calls(CLUSTER)
        if "/t1/n1/top" in call.path and (call.method != "GET" or tells.search(call.path.partition("?")[0]))
    ]
    asked = [call for call in asked if not call.path.endswith("/version")]  # it asks for one by its definition
    assert {call.method for call in asked} == {"GET", "PUT", "POST", "DELETE"}
    for call in asked:
        for role in ("nobody", "anonymous", "producer", "consumer", "boss"):
            status, text = await ask(*admin, call, role)
            assert status in (*REFUSALS, 405), (role, call, status, text)  # 405: nobody may do it by this method
        assert (await ask(*admin, call, "admin"))[0] not in REFUSALS, call
    told = Call("GET", f"/admin/v2/persistent{own}/stats")
    assert (await ask(*admin, told, "producer"))[0] not in REFUSALS


async def test_what_is_refused_by_name_is_told_to_those_who_might_do_it(admin: tuple[AdminWorld, Side]) -> None:
    calls = [
        Call("POST", f"/admin/v2/{path}") for path in ("clusters/standalone/migrate", "namespaces/t1/n1/migration")
    ]
    for call in [*OFFLOAD_CALLS, *calls]:
        told = {role: (await ask(*admin, call, role))[0] for role in ROLES}
        assert told.pop("admin") == (200 if call.method == "GET" else 412)
        assert told.pop("boss") == (401 if "clusters" in call.path else 200 if call.method == "GET" else 412)
        assert set(told.values()) <= {401, 403}, (call, told)


async def test_resource_groups_are_for_super_users_alone(admin: tuple[AdminWorld, Side]) -> None:
    for call in RESOURCE_GROUP_CALLS:
        told = {role: (await ask(*admin, call, role))[0] for role in ROLES}
        assert told.pop("admin") in (200, 204), call
        assert set(told.values()) == {401}, (call, told)


async def test_super_users_alone_put_namespaces_into_resource_groups(admin: tuple[AdminWorld, Side]) -> None:
    """Apache's let a tenant's administrator: it would use another tenant's budget, or leave the one that it has."""
    await ask(*admin, RESOURCE_GROUP_CALLS[0], "admin")
    space = "/admin/v2/namespaces/t1/n1/resourcegroup"
    told = [await ask(*admin, Call("POST", f"{space}/{name}"), "boss") for name in ("one", "none")]
    assert {status for status, _ in told} == {403}
    assert told[0][1] == told[1][1], "which groups there are is not told"
    assert (await ask(*admin, Call("POST", f"{space}/one"), "admin"))[0] == 204
    assert (await ask(*admin, Call("DELETE", space), "boss"))[0] == 403
    assert (await ask(*admin, Call("GET", space), "boss")) == (200, "one"), "of its own namespace it is told"
    assert (await ask(*admin, Call("DELETE", space), "admin"))[0] == 204


@pytest.mark.parametrize(
    ("member", "value", "refused"),
    [("resource_group_name", "one", 403), ("delayed_delivery_policies", {"active": False, "tickTime": 1000}, 401)],
)
async def test_a_new_namespace_brings_no_policy_that_its_maker_may_not_set(
    admin: tuple[AdminWorld, Side], member: str, value: object, refused: int
) -> None:
    for role, wanted in (("boss", refused), ("admin", 204)):
        assert (await ask(*admin, Call("PUT", "/admin/v2/namespaces/t1/new", {member: value}), role))[0] == wanted
    empty = {"resource_group_name": "", "delayed_delivery_policies": None}  # as Go's library sends it
    assert (await ask(*admin, Call("PUT", "/admin/v2/namespaces/t1/newer", empty), "boss"))[0] == 204


async def answer_of(side: Side, asked: Asked, role: str) -> str:
    """The error, or the type of the answer, as it was recorded."""
    client = await RawClient.connect(side.broker.port, introduce=False)
    try:
        client.send(
            wire.BaseCommand.CONNECT,
            client_version="raw",
            protocol_version=21,
            auth_data=b"" if role == "nobody" else role.encode(),
        )
        await client.expect(wire.BaseCommand.CONNECTED)
        for kind, fields in (*asked.before, (asked.kind, asked.fields)):
            client.send(kind, **fields)
            found = shown(await client.answer())
            if found.endswith("Error"):
                break
        return found
    finally:
        client.close()


def shown(made: wire.BaseCommand) -> str:
    body = getattr(made, BODY_OF_TYPE[made.type])
    for name in ("error", "error_code"):
        if name in body.DESCRIPTOR.fields_by_name and body.HasField(name):
            return wire.ServerError.Name(getattr(body, name))
    return wire.BaseCommand.Type.Name(made.type)


async def compare_http(made: AdminWorld, side: Side, report: Report) -> None:
    is_prepared = True
    for row in load(report.vector):
        call = Call(row["method"], row["path"], row["body"])
        for role in ROLES:
            if call.method != "GET" and not is_prepared:
                await prepare(made, side)
            status, text = await ask(made, side, call, role)
            if call.method != "GET":
                is_prepared = status in REFUSALS  # then it has changed nothing
            recorded = row["answers"][role]["status"]
            with report.row(f"{call.name} {role}"):
                told, wanted = (one if one in REFUSALS else "allowed" for one in (status, recorded))
                assert told == wanted, f"{status} {text[:100]}, Apache's {recorded}"


async def compare_commands(made: AdminWorld, side: Side, report: Report) -> None:
    rows = {row["command"]: row["answers"] for row in load(report.vector)}
    assert rows.keys() == {asked.name for asked in COMMANDS}
    is_prepared = True
    for asked in COMMANDS:
        for role in ROLES:
            if not is_prepared:
                await prepare(made, side)
            told = await answer_of(side, asked, role)
            is_prepared = told.startswith("Auth") and not asked.before  # then it has changed nothing
            recorded = rows[asked.name][role].get("error", rows[asked.name][role]["type"])
            with report.row(f"{asked.name} {role}"):
                are_refused = told.startswith("Auth"), recorded.startswith("Auth")
                assert told == recorded or not any(are_refused), f"{told}, Apache's {recorded}"


async def compare_proxies(made: AdminWorld, side: Side, report: Report) -> None:
    for row in load(report.vector):
        if row["role"] == row["original"]:  # refused when it connects, which is not for these rules to decide
            continue
        grants = Call("POST", "/admin/v2/namespaces/t1/n1/permissions/proxy", row["granted"])
        await ask(made, side, grants, "admin")
        client = await RawClient.connect(side.broker.port, introduce=False)
        client.send(
            wire.BaseCommand.CONNECT,
            client_version="raw",
            protocol_version=21,
            auth_data=row["role"].encode(),
            original_principal=row["original"] or "",
        )
        await client.expect(wire.BaseCommand.CONNECTED)
        client.send(wire.BaseCommand.LOOKUP, topic="persistent://t1/n1/top", request_id=9)
        told = shown(await client.answer())
        client.close()
        with report.row(f"{row['role']} for {row['original']} with {len(row['granted'])} permissions"):
            assert told == row["answer"].get("error", row["answer"]["type"])


COMPARE: Final = {"http": compare_http, "binary": compare_commands, "proxies": compare_proxies}


@golden(
    "permissions/*.json",
    how={REPLAYS},
    compared="for each call, command and role whether it is refused, by which status (401 or 403) or error; what those "
    "get who are not refused is left aside",
)
def test_answers_to_each_role(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    async def replay() -> None:
        async with guarded(monkeypatch) as (made, side):
            await COMPARE[report.vector.rpartition("/")[2].removesuffix(".json")](made, side, report)

    asyncio.run(replay())
