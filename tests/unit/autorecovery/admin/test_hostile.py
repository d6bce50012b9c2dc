"""Drawn inputs at every call: each answer is one that the document tells of, and none is a defect."""

import json
import random
from typing import Any
from urllib.parse import quote

import pytest

from autorecovery.admin.calls import Call, JsonSchema
from tests.unit.autorecovery.admin.management_world import World, managed

INPUTS = 60

TEXTS = (
    "", "a", "bookie-0", "bookie-1", ".", "..", "readonly", "é", "\ud800", "\x00", "a/b", "%2e", "x" * 300, "active",
    "draining", "5\nbookieHost: \"bookie-0\"\njournalDir: \"/j\"\nledgerDirs: \"1\\t/l\"\n", "1" * 30, "-1",
)  # fmt: skip
NUMBERS = (0, 1, -1, 2**31, 2**63, 10**40, 1.5, 1e308, True, None)


def drawn(rng: random.Random, schema: JsonSchema, depth: int = 0) -> Any:
    """Mostly what *schema* wants, sometimes something else."""
    if depth > 4 or rng.random() < 0.08:
        return rng.choice([*TEXTS, *NUMBERS, [], {}, [[]], {"a": {}}])
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else rng.choice(list(kinds))
    if kind == "object":
        found = {
            name: drawn(rng, inner, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if rng.random() < 0.9
        }
        return found | ({rng.choice(TEXTS): 1} if rng.random() < 0.05 else {})
    if kind == "array":
        return [drawn(rng, schema["items"], depth + 1) for _ in range(rng.choice([0, 1, 1, 2, 101]))]
    if kind == "boolean":
        return rng.choice([True, False])
    return rng.choice(TEXTS) if kind == "string" else rng.choice(NUMBERS)


async def send(world: World, rng: random.Random, call: Call) -> int:
    path = call.path
    for name in call.path_parameters:
        text = rng.choice([*TEXTS, "bookie-0", "bookie-1"]) or "x"
        path = path.replace("{" + name + "}", quote(text.encode("utf-8", "surrogatepass"), safe="").replace(".", "%2e"))
    query = [
        f"{name}={quote(rng.choice(TEXTS), safe='', errors='replace')}" for name in call.query if rng.random() < 0.7
    ]
    body = None if call.body is None else json.dumps(drawn(rng, call.body))
    found = await world.call(
        call.method, path + ("?" + "&".join(query) if query else ""), None if body is None else body.encode(),
        {"Content-Type": "application/json"}, raw=True,
    )  # fmt: skip
    told = world.server.document["paths"]["/manage/v1" + call.path][call.method.lower()]["responses"]
    assert str(found.status) in told, (call.name, path, body, found)
    assert isinstance(found.json, dict)
    return found.status


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_comes_is_answered_as_the_document_tells(seed: int) -> None:
    async with managed(2) as world:
        for call in world.server.calls:
            rng = random.Random(f"{seed} {call.name}")
            statuses = [await send(world, rng, call) for _ in range(INPUTS)]
            assert 500 not in statuses
        assert (await world.call("GET", "/bookies")).status == 200
