"""The OpenAPI document: it is valid, tells of every call, and each call answers as it tells."""

import json
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from autorecovery.admin.calls import PREFIX
from autorecovery.admin.schema import INTEGER, STRING, array, closed, one_of, problem_of
from autorecovery.admin.tokens import Role, line_of
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import cookie_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import State
from tests.support.waiting import eventually
from tests.unit.autorecovery.admin.management_world import ROOT, managed


@pytest.mark.parametrize("needs_token", [False, True])
async def test_the_document_is_valid_and_served_to_everybody(needs_token: bool, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(line_of("one", Role.READ, "t"))
    async with managed(1, tokens=tokens if needs_token else None) as world:
        found = (await world.call("GET", "/openapi.json")).json
        OpenAPIV31SpecValidator(found).validate()
        assert found["openapi"] == "3.1.0"
        assert ("security" in found) is needs_token
        told = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
        assert told == {(call.method, PREFIX + call.path) for call in world.server.calls}
        assert "/work" not in json.dumps(found)


@pytest.mark.usefixtures("hurried")
async def test_every_call_of_the_document_answers_as_it_tells() -> None:
    """`call` compares each answer with the document; here is one success of every call."""
    async with managed(4) as world:
        node = await world.nodes.start("one")
        await eventually(lambda: node.election.is_elected)
        cookie = (await world.get("/bookies/bookie-0/cookie"))["cookie"]
        await world.store.delete(cookie_path(ROOT, "bookie-0"))
        async with world.http_of("bookie-1", is_ours=True):
            for method, path, body in (
                ("PUT", "/bookies/bookie-0/cookie", {"cookie": cookie}),
                ("GET", "/bookies", None),
                ("PUT", "/bookies/bookie-0/state", {"state": "draining", "why": "a test"}),
                ("GET", "/bookies/bookie-0/state", None),
                ("GET", "/bookies/bookie-1/serving", None),
                ("PUT", "/bookies/bookie-1/serving", {"mode": "read-only"}),
                ("POST", "/safe-to-remove", {"bookies": ["bookie-0"]}),
                ("GET", "/auto-recovery", None),
                ("PUT", "/auto-recovery", {"enabled": True}),
                ("GET", "/auto-recovery/auditor", None),
                ("POST", "/auto-recovery/audit", None),
                ("GET", "/auto-recovery/delay", None),
                ("PUT", "/auto-recovery/delay", {"seconds": 1}),
                ("GET", "/under-replicated-ledgers", None),
                ("GET", "/overview", None),
                ("POST", "/recoveries", {"bookies": ["bookie-2"]}),
                ("GET", "/recoveries", None),
            ):
                found = await world.call(method, path, body)
                assert found.status < 300, (path, found)
            (recovery,) = found.json["recoveries"]
            await world.get(f"/recoveries/{recovery['id']}")
        registered = await world.call("POST", "/callbacks", {"url": "http://127.0.0.1:1/", "states": ["drained"]})
        callback = registered.json["id"]
        posted = await world.call("POST", "/reports", {"ledger_id": 7, "kind": "data-loss", "text": "gone"})
        for method, path, body in (
            ("GET", "/callbacks", None),
            ("POST", f"/callbacks/{callback}/test", None),
            ("GET", f"/callbacks/{callback}", None),
            ("DELETE", f"/callbacks/{callback}", None),
            ("GET", "/reports", None),
            ("GET", f"/reports/{posted.json['id']}", None),
            ("PUT", f"/reports/{posted.json['id']}", {"state": "mended", "note": "by hand"}),
        ):
            found = await world.call(method, path, body)
            assert found.status < 300, (path, found)
        await world.cluster.kill("bookie-0")

        async def is_drained() -> bool:
            return bool((await world.get("/bookies/bookie-0/state"))["state"] == State.DRAINED)

        await eventually(is_drained)
        assert (await world.call("DELETE", "/bookies/bookie-0/cookie")).status == 200
        done = {name for name, status in world.exercised if status < 300}
        assert sorted({call.name for call in world.server.calls} - done) == []


# ------------------------------------------------------------------------------------------ bodies

SCHEMA = closed(
    {
        "name": {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^[a-z]*$"},
        "count": {"type": "integer", "minimum": 0, "maximum": 9},
        "kind": one_of(("a", "b")),
        "list": array(INTEGER, minItems=1, maxItems=2, uniqueItems=True),
        "maybe": {"type": ["string", "null"]},
        "share": {"type": "number", "minimum": 0.5},
        "texts": {"type": "object", "additionalProperties": STRING},
    },
    "count", "kind", "list", "maybe", "share", "texts",
)  # fmt: skip

BODIES: tuple[tuple[Any, str], ...] = (
    ({"name": "a"}, ""),
    ({"name": "a", "count": 3, "kind": "a", "list": [1, 2], "maybe": None, "share": 1, "texts": {"a": "b"}}, ""),
    ([], "the body is []; it must be an object"),
    ({}, "the body lacks 'name'"),
    ({"name": "a", "x": 1}, "the body has 'x', which is not known"),
    ({"name": ""}, "name: '' should be non-empty"),
    ({"name": "abcd"}, "name: 'abcd' is too long"),
    ({"name": "A"}, "name: 'A' does not match"),
    ({"name": 1}, "name is 1; it must be a string"),
    ({"name": "a", "count": True}, "count is True; it must be an integer"),
    ({"name": "a", "count": 1.0}, "count is 1.0; it must be an integer"),
    ({"name": "a", "kind": "c" * 1_000}, "kind is 'ccc"),
    ({"name": "c" * 1_000}, "name: 'ccc"),
    ({"name": "a", "count": 10}, "count: 10 is greater than the maximum of 9"),
    ({"name": "a", "kind": "c"}, "kind is 'c'; it must be one of a, b"),
    ({"name": "a", "list": []}, "list: [] should be non-empty"),
    ({"name": "a", "list": [1, 2, 3]}, "list: [1, 2, 3] is too long"),
    ({"name": "a", "list": [1, 1]}, "list: [1, 1] has non-unique elements"),
    ({"name": "a", "list": [1, "b"]}, "list[1] is 'b'; it must be an integer"),
    ({"name": "a", "maybe": 1}, "maybe is 1; it must be a string or null"),
    ({"name": "a", "share": 0.1}, "share: 0.1 is less than the minimum of 0.5"),
    ({"name": "a", "texts": {"a": 1}}, "texts.a is 1; it must be a string"),
)


@pytest.mark.parametrize(("body", "problem"), BODIES, ids=[problem or "good" for _, problem in BODIES])
def test_a_body_is_checked_as_json_schema_has_it(body: Any, problem: str) -> None:
    found = problem_of(SCHEMA, body)
    assert (found or "").startswith(problem)
    assert (found is None) == (problem == "")


def test_a_limit_is_named_with_the_value_that_breaks_it() -> None:
    assert problem_of(SCHEMA, {"name": "abcd"}) == "name: 'abcd' is too long (maxLength: 3)"
    assert problem_of(SCHEMA, {"name": "a", "list": [1] * 1_000}) == (
        f"list: {str([1] * 1_000)[:80]}… {'1, ' * 22}1] is too long (maxItems: 2)"
    )
