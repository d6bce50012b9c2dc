"""Brokers of both kinds beside each other: Apache's, which tells nobody what it serves, stands still and is killed."""

import asyncio
from pathlib import Path

import pytest

from broker.ownership import probing
from broker.ownership.probing import Prober, Sign
from broker.ownership.rules import BrokerAddress
from magnetar.inspect.broker_admin import AdminClient
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.tasks import Tasks
from tests.support.mixed_cluster import MixedCluster
from tests.support.processes import Load, until


def sign_of(url: str) -> Sign:
    async def ask() -> Sign:
        return await Prober(LoopClock(), Tasks("asking")).sign(BrokerAddress(url))

    return asyncio.run(ask())


def test_a_broker_of_apaches_that_stands_still_is_noticed_and_what_it_served_is_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing, "ANSWER_S", 5.0)
    with MixedCluster(tmp_path / "cluster") as cluster:
        cluster.start_zookeeper()
        cluster.initialise("apache")
        for _ in range(3):
            cluster.add("bookie", "ours")
        apache = cluster.add("broker", "apache")
        topic = "persistent://public/default/by-apache"
        AdminClient([apache.admin_url]).create_topic(topic, 0)
        assert AdminClient([apache.admin_url]).owner_url(topic) == apache.service_url
        ours = cluster.add("broker", "ours")
        assert sign_of(apache.service_url) is Sign.ANSWERS
        url = f"{apache.service_url},{ours.service_url.removeprefix('pulsar://')}"
        with Load(url, topic) as load:
            load.wait_for(500)
            apache.pause()
            monkeypatch.setattr(probing, "ANSWER_S", 1.0)
            assert sign_of(apache.service_url) is Sign.HANGS
            apache.resume()
            until(lambda: sign_of(apache.service_url) is Sign.ANSWERS, "it answers again")
            apache.kill()
            assert sign_of(apache.service_url) is Sign.REFUSES
            load.wait_for(500)
            assert AdminClient([ours.admin_url]).owner_url(topic) == ours.service_url
            load.finish()
