"""Permissions over HTTP: statuses and bodies as Apache's broker gives them, unless it says otherwise here."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from broker.policies.permissions import grant
from magnetar_core.topics.topic_name import TopicName
from tests.unit.broker.admin.admin_world import AdminWorld, Answer, Side

NS = "/admin/v2/namespaces/public/default"
TOPIC = "/admin/v2/persistent/public/default"


@pytest.fixture
async def call() -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        side: Side = await made.side()

        async def ask(method: str, path: str, body: Any = None, **more: str) -> Answer:
            return await made.call(side, method, path, body, **more)  # type: ignore[arg-type]

        ask.side = side  # type: ignore[attr-defined]
        yield ask


async def test_permissions_of_a_namespace(call: Any) -> None:
    assert (await call("GET", f"{NS}/permissions")).json == {}
    assert (await call("POST", f"{NS}/permissions/ann", ["consume", "produce"])).status == 204
    assert (await call("POST", f"{NS}/permissions/eve", [])).status == 204
    assert (await call("GET", f"{NS}/permissions")).json == {"ann": ["produce", "consume"], "eve": []}
    for role in ("ann", "eve", "ghost"):
        assert (await call("DELETE", f"{NS}/permissions/{role}")).status == 204
    assert (await call("GET", f"{NS}/permissions")).json == {}


async def test_roles_of_subscriptions(call: Any) -> None:
    assert (await call("POST", f"{NS}/permissions/subscription/s%252F1", ["eve", "bob"])).status == 204
    assert (await call("GET", f"{NS}/permissions/subscription")).json == {"s/1": ["bob", "eve"]}
    assert (await call("DELETE", f"{NS}/permissions/s%252F1/eve")).status == 204
    assert (await call("GET", f"{NS}/permissions/subscription")).json == {"s/1": ["bob"]}
    assert (await call("DELETE", f"{NS}/permissions/s%252F1/bob")).status == 204
    assert (await call("GET", f"{NS}/permissions/subscription")).json == {}
    gone = await call("DELETE", f"{NS}/permissions/s/bob")
    assert (gone.status, "no list of roles" in gone.reason) == (404, True), "Apache's answers 500 with a stack trace"


async def test_permissions_on_topics(call: Any) -> None:
    assert (await call("PUT", f"{TOPIC}/top")).status == 204
    assert (await call("PUT", f"{TOPIC}/parted/partitions", 2)).status == 204
    await call("POST", f"{NS}/permissions/ann", ["produce"])
    for name in ("top", "parted", "parted-partition-0"):
        assert (await call("POST", f"{TOPIC}/{name}/permissions/bob", ["consume"])).status == 204
        assert (await call("GET", f"{TOPIC}/{name}/permissions")).json == {"ann": ["produce"], "bob": ["consume"]}
        assert (await call("DELETE", f"{TOPIC}/{name}/permissions/bob")).status == 204
        assert (await call("GET", f"{TOPIC}/{name}/permissions")).json == {"ann": ["produce"]}
    for method, path in (("GET", ""), ("POST", "/bob"), ("DELETE", "/bob")):
        answer = await call(method, f"{TOPIC}/nope/permissions{path}", ["consume"] if method == "POST" else None)
        assert (answer.status, answer.reason) == (404, "Topic persistent://public/default/nope not found")


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
async def test_a_deleted_partitioned_topic_takes_its_permissions_with_it(call: Any, domain: str) -> None:
    topics = f"/admin/v2/{domain}/public/default"
    granted = [f"{domain}://public/default/{name}" for name in ("parted", "parted-partition-0", "other")]
    for name in ("parted", "other"):
        assert (await call("PUT", f"{topics}/{name}/partitions", 2)).status == 204
    side: Side = call.side
    await side.broker.tenancy.change("public/default", lambda old: with_grants(old, granted))
    assert (await call("DELETE", f"{topics}/parted/partitions")).status == 204
    left = (await call("GET", NS)).json["auth_policies"]["destination_auth"]
    assert set(left) == {granted[2]}


def with_grants(record: dict[str, Any], topics: list[str]) -> dict[str, Any]:
    for topic in topics:
        record = grant(record, "ann", ["produce"], TopicName.parse(topic))
    return record


@pytest.mark.parametrize(
    "path", [f"{NS}/permissions/ann", f"{NS}/permissions/subscription/s", f"{TOPIC}/t/permissions/a"]
)
async def test_what_is_no_list_is_refused(call: Any, path: str) -> None:
    for body in ({"a": 1}, "produce", [1], None):
        assert (await call("POST", path, body)).status == 400
    assert (await call("GET", f"{NS}/permissions")).json == {}


async def test_an_unknown_permission_is_refused_where_apache_stores_null(call: Any) -> None:
    refused = await call("POST", f"{NS}/permissions/ann", ["produce", "fly"])
    assert refused.status == 412
    assert "fly" in refused.reason
    assert (await call("GET", f"{NS}/permissions")).json == {}


async def test_the_mode_of_subscriptions(call: Any) -> None:
    assert (await call("GET", f"{NS}/subscriptionAuthMode")).json == "None"
    assert (await call("POST", f"{NS}/subscriptionAuthMode", "Prefix")).status == 204
    assert (await call("GET", f"{NS}/subscriptionAuthMode")).json == "Prefix"
    assert (await call("GET", NS)).json["subscription_auth_mode"] == "Prefix"
    refused = await call("POST", f"{NS}/subscriptionAuthMode", "Suffix")
    assert (refused.status, "None, Prefix" in refused.reason) == (412, True)


async def test_permissions_in_a_namespace_that_is_not_there(call: Any) -> None:
    none = "/admin/v2/namespaces/public/none"
    assert (await call("GET", f"{none}/permissions")).status == 404
    assert (await call("POST", f"{none}/permissions/ann", ["produce"])).status == 404
    assert (await call("DELETE", f"{none}/permissions/ann")).status == 404


async def test_other_members_of_the_record_stay(call: Any) -> None:
    await call("POST", f"{NS}/retention", {"retentionTimeInMinutes": 5, "retentionSizeInMB": 5})
    await call("POST", f"{NS}/permissions/ann", ["produce"])
    assert (await call("GET", f"{NS}/retention")).json["retentionTimeInMinutes"] == 5
