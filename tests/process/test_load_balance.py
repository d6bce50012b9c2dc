"""Bundles move between real brokers by a shedding strategy, while the official client publishes to all of them.

The network is what counts: its speed is set so that all load on one broker is four fifths of it. What a broker tells of
it depends on the bytes alone, not on how busy the machine is that runs the tests.

What must hold: the moves end, and bring what the strategy wants; where it is content nothing moves; no client sees an
error, and what was acknowledged is there exactly once. The other strategies are in tests/simulation/test_shedding_sim.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pulsar
import pytest

from broker.names import Bundles
from broker.ownership.load.report import BrokerLoad, decode_load
from broker.settings.groups.load import LOAD_CLASSES, ONE_BUNDLE
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster, Member
from magnetar_core.topics.topic_name import TopicName
from tests.support.processes import QUIET, cluster_of, received, until
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

BUNDLES: Final = 8
MESSAGE_BYTES: Final = 1_024
PAUSE_S: Final = 0.025  # one message for each topic
# What all topics bring is four fifths of it: BUNDLES messages each 25 ms, in bits.
NETWORK_GBPS: Final = BUNDLES * MESSAGE_BYTES / PAUSE_S * 8 / 1024 / 1_000_000 / 0.8

ROUND_S: Final = 1.2
LOOK_S: Final = 0.2
SETTINGS: Final[Mapping[str, object]] = {
    "loadBalancerSheddingIntervalMinutes": ROUND_S / 60,
    "loadBalancerHostUsageCheckIntervalMinutes": ROUND_S / 60,
    "loadBalancerResourceQuotaUpdateIntervalMinutes": ROUND_S / 60,
    "loadBalancerSheddingGracePeriodMinutes": 0,  # nothing but the strategies keeps bundles from going to and fro
    "loadBalancerReportUpdateMinIntervalMillis": 200,
    "loadBalancerReportUpdateThresholdPercentage": 1,
    "statsUpdateFrequencyInSecs": 1,
    "loadBalancerOverrideBrokerNicSpeedGbps": NETWORK_GBPS,
    "loadBalancerCPUResourceWeight": 0,
    "loadBalancerSheddingEnabled": "false",
    "loadBalancerAutoBundleSplitEnabled": "false",
    "managedLedgerDefaultEnsembleSize": 1,
    "managedLedgerDefaultWriteQuorum": 1,
    "managedLedgerDefaultAckQuorum": 1,
}


class Strategy(NamedTuple):
    """Each bundle is a tenth of a broker; no threshold is at a multiple of that, where chance would decide."""

    shedder: str
    settings: Mapping[str, object]
    rounds: int
    """After so many it knows the load of the bundles."""

    @property
    def of_brokers(self) -> dict[str, object]:
        return {**SETTINGS, "loadBalancerLoadSheddingStrategy": self.shedder, **self.settings}


OURS: Final = Strategy(ONE_BUNDLE, {"loadBalancerBrokerThresholdShedderPercentage": 25}, rounds=3)
AVERAGE: Final = Strategy(
    f"{LOAD_CLASSES}AvgShedder",
    {
        "loadBalancerLoadPlacementStrategy": f"{LOAD_CLASSES}AvgShedder",
        "loadBalancerAvgShedderLowThreshold": 25,
        "loadBalancerAvgShedderHighThreshold": 35,
        "maxUnloadPercentage": 0.5,
        "minUnloadMessage": 10,
    },
    rounds=10,
)


def near_each_other(usage: list[float]) -> bool:
    return usage[-1] - usage[0] < 0.3


class Spread:
    """A cluster with a namespace of several bundles, and a topic in each of them."""

    NAMESPACE: Final = "public/spread"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.admin = AdminClient(cluster.admin_urls)
        self.admin.call("PUT", f"/admin/v2/namespaces/{self.NAMESPACE}", {"bundles": {"numBundles": BUNDLES}})
        self.admin.call("POST", f"/admin/v2/namespaces/{self.NAMESPACE}/deduplication", True)
        bundles, found = Bundles.equal(BUNDLES), dict[str, TopicName]()
        for number in range(10_000):
            topic = TopicName.parse(f"persistent://{self.NAMESPACE}/t{number}")
            found.setdefault(bundles.bundle_of(topic), topic)
        self.topics = [found[bundle] for bundle in sorted(found)]
        assert len(self.topics) == BUNDLES

    @property
    def running(self) -> list[Member]:
        return [one for one in self.cluster.members("broker") if self.cluster.is_running(one.name)]

    def ask(self, member: Member, method: str, path: str) -> Any:
        return AdminClient(f"http://{member.address}:{member.web_port}").call(method, path)

    def place(self, member: Member, topics: list[TopicName]) -> None:
        """Have a broker take bundles that nobody serves."""
        for topic in topics:
            found = self.ask(member, "GET", f"/lookup/v2/topic/{topic.rest_path}?authoritative=true")
            assert found["brokerUrl"].endswith(f":{member.port}"), found

    def loads(self) -> dict[str, BrokerLoad]:
        """What each broker that runs would tell now."""
        return {
            one.name: decode_load(self.ask(one, "GET", "/admin/v2/broker-stats/load-report")) for one in self.running
        }

    def usage(self) -> list[float]:
        """Shares of the network, the least first."""
        return sorted(load.bandwidth_in for load in self.loads().values())

    def owners(self) -> dict[str, str]:
        """Bundle → name of the broker that has it."""
        return {
            bundle: name
            for name, load in self.loads().items()
            for bundle in load.bundles
            if bundle.startswith(self.NAMESPACE)
        }

    def moves(self) -> int:
        """Bundles that the leaders have had moved, of those that run."""
        return sum(self.metric(one, "pulsar_lb_unload_bundle_total") for one in self.running)

    def metric(self, member: Member, name: str) -> int:
        text = AdminClient(f"http://{member.address}:{member.web_port}").answer("GET", "/metrics/").body.decode()
        (line,) = [one for one in text.splitlines() if one.startswith(f"{name}{{")]
        return int(float(line.rpartition(" ")[2]))

    def leader(self) -> Member:
        broker_id = self.admin.call("GET", "/admin/v2/brokers/leaderBroker")["brokerId"]
        (found,) = [one for one in self.running if broker_id.endswith(f":{one.web_port}")]
        return found

    def set(self, name: str, value: str) -> None:
        AdminClient([f"http://{one.address}:{one.web_port}" for one in self.running]).call(
            "POST", f"/admin/v2/brokers/configuration/{name}/{value}"
        )

    def let_it_move(self, on: bool = True) -> None:
        self.set("loadBalancerSheddingEnabled", str(on).lower())


class Traffic:
    """The same number of messages a second to each of some topics, by the official client."""

    def __init__(self, url: str, topics: list[TopicName]) -> None:
        self._client = pulsar.Client(url, logger=QUIET, operation_timeout_seconds=60)
        self._url = url
        self._topics = topics
        self.failures: Counter[str] = Counter()
        self.sent = 0
        self.acknowledged: set[tuple[int, int]] = set()
        self._producers = [
            self._client.create_producer(
                topic.full, producer_name=f"of-{topic.local}", send_timeout_millis=0,
                max_pending_messages=20_000, batching_enabled=False,
            )
            for topic in topics
        ]  # fmt: skip
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _publish(self) -> None:
        due = time.monotonic()
        while not self._stop.wait(max(due - time.monotonic(), 0)):
            due += PAUSE_S  # what was late is caught up with: the rate is what counts
            body = b"%d " % self.sent
            for number, producer in enumerate(self._producers):
                producer.send_async(body.ljust(MESSAGE_BYTES, b"."), partial(self._on_sent, (number, self.sent)))
            self.sent += 1

    def _on_sent(self, message: tuple[int, int], result: Any, _: Any) -> None:
        if result == pulsar.Result.Ok:
            self.acknowledged.add(message)
        else:
            self.failures[str(result)] += 1

    def finish(self) -> None:
        """Everything sent is acknowledged, and is stored once and in order."""
        self._stop.set()
        self._thread.join(10)
        every = {(topic, number) for topic in range(len(self._topics)) for number in range(self.sent)}
        until(lambda: self.acknowledged == every or bool(self.failures), "all are acknowledged", timeout_s=60)
        assert self.failures == {}
        for topic in self._topics:
            stored = [int(message.data().split(b" ", 1)[0]) for message in received(self._client, topic.full)]
            assert stored == list(range(self.sent)), topic

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)
        self._client.close()


@contextmanager
def traffic(spread: Spread) -> Iterator[Traffic]:
    made = Traffic(spread.cluster.service_url, spread.topics)
    try:
        yield made
    finally:
        made.close()


@contextmanager
def spread_of(folder: Path, strategy: Strategy, brokers: int) -> Iterator[Spread]:
    with cluster_of(folder / "cluster", bookies=1, brokers=brokers, broker_settings=strategy.of_brokers) as cluster:
        yield Spread(cluster)


def rounds(number: int) -> None:
    """Let so many rounds of the leader pass: that nothing happens can only be seen by waiting."""
    time.sleep(number * ROUND_S)


def is_told(spread: Spread, usage: float) -> bool:
    return abs(sum(spread.usage()) - usage) < 0.1


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(OURS, id="ours", marks=pytest.mark.long("load is told in seconds; the rule has a simulation")),
        pytest.param(AVERAGE, id="AvgShedder", marks=pytest.mark.long("ten rounds until its averages are true")),
    ],
)
def test_load_on_one_broker_is_spread_by_the_next_leader_and_then_stays(tmp_path: Path, strategy: Strategy) -> None:
    """The former leader is killed when it has stored the averages of the bundles, with which the next one begins."""
    with spread_of(tmp_path, strategy, 3) as spread:
        former = spread.leader()
        loaded = next(one for one in spread.running if one.name != former.name)
        spread.place(loaded, spread.topics)
        with traffic(spread) as load:
            until(lambda: is_told(spread, 0.8), "the load is told", each_s=LOOK_S)
            rounds(strategy.rounds)
            assert spread.moves() == 0, "shedding is off"
            assert set(spread.owners().values()) == {loaded.name}
            spread.cluster.kill(former.name)
            spread.let_it_move()
            until(lambda: is_told(spread, 0.8) and near_each_other(spread.usage()), "the load is spread", each_s=LOOK_S)
            assert spread.leader().name != former.name
            assert len(spread.usage()) == 2
            rounds(3)
            before, moves = spread.owners(), spread.moves()
            assert moves > 0
            rounds(4)
            assert (spread.owners(), spread.moves()) == (before, moves)
            load.finish()
