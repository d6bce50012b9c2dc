"""The form of answers and of requests over HTTP, as scripts and tools of Apache's brokers know it (4.0.8, seen)."""

import gzip
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import pulsar
import pytest

from broker.settings.dynamic import PATH as SETTINGS
from tests.unit.broker.admin.admin_world import AdminWorld, Side

ADMIN = "/admin/v2"
TOPIC = f"{ADMIN}/persistent/public/default/t"


@pytest.fixture
async def side() -> AsyncIterator[tuple[AdminWorld, Side]]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        side = await world.side()
        assert (await world.call(side, "PUT", TOPIC)).status == 204
        yield world, side


async def test_json_is_compact_and_texts_are_as_they_are(side: tuple[AdminWorld, Side]) -> None:
    world, broker = side
    stats = await world.call(broker, "GET", f"{TOPIC}/stats")
    assert '"msgInCounter":0,' in stats.text
    refused = await world.call(broker, "GET", f"{ADMIN}/persistent/public/default/n%C3%B6/stats")
    assert refused.text.startswith('{"reason":')
    assert "nö" in refused.text


async def test_texts_are_compressed_for_those_that_take_gzip(side: tuple[AdminWorld, Side]) -> None:
    _, broker = side
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        for path, is_compressed in ((f"{TOPIC}/stats", True), ("/metrics", True), (f"{ADMIN}/brokers/ready", False)):
            for given in ("gzip, deflate", "identity"):
                async with session.get(f"{broker.http_url}{path}", headers={"Accept-Encoding": given}) as answer:
                    body = await answer.read()
                    wanted = "gzip" if is_compressed and given != "identity" else None
                    assert answer.headers.get("Content-Encoding") == wanted, (path, given)
                    text = (gzip.decompress(body) if wanted else body).decode()
                    assert text.startswith(("{", "#", "ok")), path
                    assert (answer.headers.get("Vary") == "Accept-Encoding") == is_compressed


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        (f"{ADMIN}/namespaces/public", "GET,HEAD,OPTIONS"),
        (f"{TOPIC}/stats", "GET,HEAD,OPTIONS"),
        (f"{ADMIN}/tenants/public", "DELETE,GET,HEAD,POST,PUT,OPTIONS"),
    ],
)
async def test_a_path_tells_its_methods_and_has_no_patch(
    side: tuple[AdminWorld, Side], path: str, methods: str
) -> None:
    world, broker = side
    answer = await world.call(broker, "OPTIONS", path)
    assert (answer.status, answer.headers["Allow"]) == (200, methods)
    answer = await world.call(broker, "PATCH", path)
    assert (answer.status, answer.headers["Allow"]) == (405, methods)


async def test_of_what_is_not_there_no_methods_are_told(side: tuple[AdminWorld, Side]) -> None:
    world, broker = side
    assert (await world.call(broker, "OPTIONS", f"{ADMIN}/nothing")).status == 404
    assert (await world.call(broker, "OPTIONS", f"{ADMIN}/namespaces/a/b/c/d/e")).status == 501


@pytest.mark.parametrize(
    ("body", "status"),
    [("abc", 400), ("{}", 406), ("true", 400), ('"x"', 400), ("[3]", 400), ("0", 406), ("-1", 406), ('"3"', 204)],
)
async def test_a_number_of_partitions_that_is_not_a_number_is_a_bad_request(
    side: tuple[AdminWorld, Side], body: str, status: int
) -> None:
    world, broker = side
    async with (
        aiohttp.ClientSession() as session,
        session.put(
            f"{broker.http_url}{ADMIN}/persistent/public/default/p/partitions",
            data=body,
            headers={"Content-Type": "application/json"},
        ) as answer,
    ):
        assert answer.status == status, await answer.text()
    count = await world.call(broker, "GET", f"{ADMIN}/persistent/public/default/p/partitions")
    assert (count.json.get("partitions") or 0) == (3 if status == 204 else 0)


async def test_null_is_the_same_as_nothing_in_a_policy(side: tuple[AdminWorld, Side]) -> None:
    world, broker = side
    path = f"{ADMIN}/namespaces/public/default/autoTopicCreation"
    given = {"allowAutoTopicCreation": True, "topicType": "non-partitioned", "defaultNumPartitions": None}
    assert (await world.call(broker, "POST", path, given)).status == 204
    assert (await world.call(broker, "GET", path)).json == {
        "allowAutoTopicCreation": True,
        "topicType": "non-partitioned",
    }
    refused = await world.call(broker, "POST", path, {**given, "topicType": "partitioned"})
    assert refused.status == 412
    assert "[defaultNumPartitions] cannot be null when the type is partitioned." in refused.text


async def test_a_negative_time_of_expiration_is_refused_in_apaches_words(side: tuple[AdminWorld, Side]) -> None:
    world, broker = side
    refused = await world.call(broker, "POST", f"{ADMIN}/namespaces/public/default/subscriptionExpirationTime", -2)
    assert (refused.status, refused.json) == (412, {"reason": "Invalid value for subscription expiration time"})


async def test_a_value_of_a_setting_may_have_slashes(side: tuple[AdminWorld, Side]) -> None:
    world, broker = side
    path = f"{ADMIN}/brokers/configuration/superUserRoles/%7B%22key%2F123%22%7D"
    assert (await world.call(broker, "POST", path)).status == 200
    node = await world.store.get(SETTINGS)
    assert node is not None
    assert json.loads(node.value) == {"superUserRoles": '{"key/123"}'}


async def test_peeking_without_the_subscription_begins_at_the_start_and_makes_none(
    side: tuple[AdminWorld, Side],
) -> None:
    world, broker = side

    async def peeked(number: int) -> tuple[int, str]:
        answer = await world.call(broker, "GET", f"{TOPIC}/subscription/none/position/{number}")
        return answer.status, answer.text

    assert (await peeked(1))[0] == 404

    def publish() -> None:
        client = pulsar.Client(broker.url)
        producer = client.create_producer("persistent://public/default/t", batching_enabled=False)
        for number in range(2):
            producer.send(f"m{number}".encode())
        client.close()

    await world.run(publish)
    assert [await peeked(number) for number in (1, 2)] == [(200, "m0"), (200, "m1")]
    assert await peeked(3) == (404, '{"reason":"Message not found"}')
    assert (await world.call(broker, "GET", f"{TOPIC}/subscriptions")).json == []
