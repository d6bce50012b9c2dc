"""Each call and each command by each role, as Apache's broker answered it (`record_permissions`)."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

from broker.admin.server import AdminServer
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE
from tests.support.callers import believe_everybody
from tests.support.golden import REPLAYS, Report, golden, load
from tests.support.permission_calls import ROLES, Call, http_calls, world
from tests.support.permission_commands import COMMANDS, Asked
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.raw_client import RawClient

CLUSTER: Final = "standalone"
REFUSALS: Final = (401, 403)

# Calls that are refused to more roles than by Apache's broker, or with another status, and why.
HTTP_DIFFERENCES: Final = {
    "GET /status.html": "Apache's has no file of the operator here, and shows that to everybody",
    "GET /lookup/v2/topic/persistent/t1/nope/top": "Apache's tells everybody that a namespace does not exist",
    "GET /admin/v2/persistent/nope/nope/nope/stats": "Apache's tells everybody that a tenant does not exist",
    "POST /admin/v2/persistent/t1/n1/parted2/createMissedPartitions": "Apache's asks for lookup first: 401, not 403",
}
BINARY_DIFFERENCES: Final = {
    "GET_SCHEMA": "Apache's shows schemas to everybody who is connected",
    "GET_SCHEMA of a missing topic": "Apache's tells everybody that a topic does not exist",
    "GET_OR_CREATE_SCHEMA": "Apache's stores schemas for everybody who is connected",
}


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = load(f"permissions/{name}.json")
    return found


@golden(
    "permissions/*.json",
    how={REPLAYS},
    compared="for every call and command, and every role: whether it is allowed, or how it is refused; the tests below "
    "ask our broker. Here: that each role was recorded for each of them, and nothing else",
)
def test_every_role_was_recorded_for_every_call_and_command(report: Report) -> None:
    recorded = load(report.vector)
    asked = {
        "permissions/http.json": {call.name for call in http_calls(CLUSTER)},
        "permissions/binary.json": {one.name for one in COMMANDS},
    }.get(report.vector)
    for row in recorded:
        with report.row(json.dumps([row.get(name) for name in ("command", "method", "path", "role", "original")])):
            if asked is None:
                assert {"role", "original", "granted", "answer"} == row.keys()
                continue
            assert (row["command"] if "command" in row else f"{row['method']} {row['path']}") in asked
            assert list(row["answers"]) == list(ROLES)
    assert asked is None or len(recorded) == len(asked)


@pytest.fixture
async def admin(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[AdminWorld, Side]]:
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


async def test_every_call_is_refused_to_the_roles_to_which_apache_refuses_it(
    admin: tuple[AdminWorld, Side],
) -> None:
    made, side = admin
    wrong = []
    for row in vectors("http"):
        call = Call(row["method"], row["path"], row["body"])
        for role in ROLES:
            if call.method != "GET":
                await prepare(made, side)
            status, text = await ask(made, side, call, role)
            recorded = row["answers"][role]["status"]
            told = status if status in REFUSALS else "allowed"
            wanted = recorded if recorded in REFUSALS else "allowed"
            if told != wanted and not (call.name in HTTP_DIFFERENCES and (told != "allowed" or role == "nobody")):
                wrong.append(f"{call.name} by {role}: {status} {text[:100]}, Apache's {recorded}")
    assert not wrong, "\n".join(wrong)


async def test_what_differs_from_apache_is_listed_and_differs(admin: tuple[AdminWorld, Side]) -> None:
    made, side = admin
    rows = {f"{row['method']} {row['path']}": row for row in vectors("http")}
    for name in HTTP_DIFFERENCES:
        row = rows[name]
        told = [(await ask(made, side, Call(row["method"], row["path"], row["body"]), role))[0] for role in ROLES]
        assert told != [row["answers"][role]["status"] for role in ROLES]


async def test_each_route_was_recorded(admin: tuple[AdminWorld, Side]) -> None:
    _, side = admin
    app = AdminServer(side.broker, side.ownership, version="0").application()
    patterns = []
    for route in app.router.routes():
        assert route.resource is not None
        told = route.resource.get_info()
        text = told.get("path") or told["pattern"].pattern
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


async def test_every_command_is_refused_to_the_roles_to_which_apache_refuses_it(
    admin: tuple[AdminWorld, Side],
) -> None:
    made, side = admin
    rows = {row["command"]: row["answers"] for row in vectors("binary")}
    wrong = []
    for asked in COMMANDS:
        for role in ROLES:
            await prepare(made, side)
            told = await answer_of(side, asked, role)
            recorded = rows[asked.name][role].get("error", rows[asked.name][role]["type"])
            is_refused, was_refused = told.startswith("Auth"), recorded.startswith("Auth")
            if told == recorded or (not is_refused and not was_refused):
                continue
            if not (asked.name in BINARY_DIFFERENCES and is_refused):
                wrong.append(f"{asked.name} by {role}: {told}, Apache's {recorded}")
    assert not wrong, "\n".join(wrong)


async def test_a_proxy_gets_what_apache_gives_it(admin: tuple[AdminWorld, Side]) -> None:
    made, side = admin
    wrong = []
    for row in vectors("proxies"):
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
        wanted = row["answer"].get("error", row["answer"]["type"])
        if told != wanted:
            wrong.append(f"{row['role']} for {row['original']!r}: {told}, Apache's {wanted}")
    assert not wrong, "\n".join(wrong)
