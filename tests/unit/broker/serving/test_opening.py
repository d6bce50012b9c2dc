"""What a broker says of topics when it opens them."""

import json

import pytest

from broker.policies.namespace import new_policies
from magnetar_core.topics.topic_name import TopicName
from tests.unit.broker.conftest import BrokerInMemory

PATH = "/admin/policies/public/default"


async def replicate(world: BrokerInMemory, *clusters: str) -> None:
    policies = {**new_policies("lab", 4), "replication_clusters": list(clusters)}
    await world.store.put(PATH, json.dumps(policies).encode())


async def opened(world: BrokerInMemory, name: str) -> None:
    await world.broker.opening.persistent(TopicName.parse(name), create=True)


async def test_a_namespace_that_others_replicate_is_served_and_said_once(
    world: BrokerInMemory, caplog: pytest.LogCaptureFixture
) -> None:
    await replicate(world, "lab", "east", "west")
    for name in ("a", "b"):
        await opened(world, name)
    said = [record.message for record in caplog.records if "replicated" in record.message]
    assert len(said) == 1
    assert said[0].startswith(
        "namespace public/default is to be replicated to east, west. This broker does not do that"
    )


async def test_of_a_namespace_of_this_cluster_nothing_is_said(
    world: BrokerInMemory, caplog: pytest.LogCaptureFixture
) -> None:
    await replicate(world, "lab")
    await opened(world, "a")
    assert not [record for record in caplog.records if "replicated" in record.message]


async def test_so_many_namespaces_are_remembered(
    world: BrokerInMemory, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.serving.opening.WARNED_MAX", 1)
    await replicate(world, "lab", "east")
    world.broker.opening._warned["public/other"] = "east"
    await opened(world, "a")
    assert list(world.broker.opening._warned) == ["public/default"]
