"""Settings that are changed while brokers run."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import fields

import pytest

from broker.settings.config import BrokerConfig
from broker.settings.dynamic import DYNAMIC, PATH
from magnetar_core.runtime.types import MIB
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side

SETTINGS = "/admin/v2/brokers/configuration"


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def set_to(world: AdminWorld, side: Side, name: str, value: str) -> None:
    assert (await world.call(side, "POST", f"{SETTINGS}/{name}/{value}")).status == 200


def test_each_name_is_a_setting() -> None:
    assert {one.metadata["name"] for one in fields(BrokerConfig) if "name" in one.metadata} >= DYNAMIC


async def test_every_broker_applies_a_change_and_its_end(world: AdminWorld) -> None:
    a, b = await world.side(max_tenants=7), await world.side(max_tenants=8)
    await set_to(world, a, "maxTenants", "3")
    for side in (a, b):
        await eventually(lambda side=side: side.broker.config.max_tenants == 3)  # type: ignore[misc]
    assert (await world.call(b, "GET", f"{SETTINGS}/values")).json == {"maxTenants": "3"}
    assert (await world.call(b, "DELETE", f"{SETTINGS}/maxTenants")).status == 200
    await eventually(lambda: (a.broker.config.max_tenants, b.broker.config.max_tenants) == (7, 8))


async def test_a_broker_that_starts_has_what_was_changed_before(world: AdminWorld) -> None:
    await set_to(world, await world.side(), "maxTenants", "3")
    assert (await world.side()).broker.config.max_tenants == 3


async def test_open_topics_have_the_new_limits(world: AdminWorld) -> None:
    side = await world.side()
    assert (await world.call(side, "PUT", "/admin/v2/persistent/public/default/t")).status == 204
    topic = side.broker.topics[TopicName.parse("persistent://public/default/t")]
    assert not topic.publish_throttle.is_on
    await set_to(world, side, "maxPublishRatePerTopicInMessages", "5")
    await set_to(world, side, "brokerPublisherThrottlingMaxMessageRate", "6")
    await eventually(lambda: topic.publish_throttle.is_on and side.broker.publish_throttle.is_on)


async def test_super_users_change(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.callers import believe_everybody

    believe_everybody(monkeypatch)
    side = await world.side(authorization_enabled=True, super_users=("admin",))
    assert (await world.call(side, "GET", "/admin/v2/tenants", X_Role="eve")).status == 401
    assert (await world.call(side, "POST", f"{SETTINGS}/superUserRoles/admin,eve", X_Role="admin")).status == 200
    assert (await world.call(side, "GET", "/admin/v2/tenants", X_Role="eve")).status == 200


async def test_what_a_broker_has_copied_changes_too(world: AdminWorld) -> None:
    side = await world.side()
    broker, record = side.broker, {
        "managedLedgerCacheSizeMB": "3",
        "maxConcurrentTopicLoadRequest": "7",
        "maxMessagePublishBufferSizeInMB": "50",
        "loadBalancerNamespaceBundleMaxTopics": "11",
        "failureDomainsEnabled": "true",
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": "token:abc",
        "subscriptionTypesEnabled": "Exclusive",
    }  # fmt: skip
    assert (await world.call(side, "PUT", "/admin/v2/persistent/public/default/t")).status == 204
    topic = broker.topics[TopicName.parse("persistent://public/default/t")]
    await side.store.put(PATH, json.dumps(record).encode())
    await eventually(lambda: topic.limits.subscription_types == {"Exclusive"})
    assert broker.ledgers.cache.bytes_max == 3 * MIB
    assert broker.opening._load_slots._value == 7
    assert broker.publishes.limit_bytes == 50 * MIB
    assert broker.peers.headers() == {"Authorization": "Bearer abc"}
    await side.load.balance()
    assert side.load._balancer._limits.topics_max == 11
    shown = (await world.call(side, "GET", f"{SETTINGS}/values")).json
    assert shown == {**record, "brokerClientAuthenticationParameters": "*****"}


async def test_credentials_that_cannot_be_used_change_nothing(
    world: AdminWorld, caplog: pytest.LogCaptureFixture
) -> None:
    side = await world.side()
    record = {
        "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "brokerClientAuthenticationParameters": "token:a b c",
        "maxTenants": "3",
    }
    await side.store.put(PATH, json.dumps(record).encode())
    await eventually(lambda: "other brokers are asked as before" in caplog.text)
    assert side.broker.peers.headers() == {}
    assert side.broker.config.max_tenants == 3
    assert "a b c" not in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [("clusterName", "x"), ("nothing", "x"), ("maxTenants", "x"), ("brokerDeleteInactiveTopicsMode", "sometimes")],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(world: AdminWorld, name: str, value: str) -> None:
    side = await world.side()
    found = await world.call(side, "POST", f"{SETTINGS}/{name}/{value}")
    assert (found.status, name in found.reason) == (412, True)
    assert (await world.call(side, "GET", f"{SETTINGS}/values")).json == {}


async def test_values_of_others_that_are_not_valid_here_leave_the_rest_alone(world: AdminWorld) -> None:
    side = await world.side()
    record = {"maxTenants": "many", "maxNamespacesPerTenant": "4", "loadManagerClassName": "x"}
    await side.store.put(PATH, json.dumps(record).encode())
    await eventually(lambda: side.broker.config.max_namespaces_per_tenant == 4)
    await set_to(world, side, "maxTopicsPerNamespace", "9")
    node = await side.store.get(PATH)
    assert node is not None
    assert json.loads(node.value) == {**record, "maxTopicsPerNamespace": "9"}
