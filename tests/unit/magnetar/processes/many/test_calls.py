"""Who answers a call to the one address of a service."""

import pytest

from magnetar.processes.many.calls import Way, bookie_way, broker_way, named_broker


@pytest.mark.parametrize(
    ("path", "way"),
    [
        ("/metrics", Way.METRICS),
        ("/metrics/", Way.METRICS),
        ("/status.html", Way.ALL),
        ("/admin/v2/brokers/health", Way.ALL),
        ("/admin/v2/brokers/ready", Way.ALL),
        ("/admin/v2/broker-stats/topics", Way.MERGED),
        ("/admin/v2/brokers/local/127.0.0.1:8081/ownedNamespaces", Way.NAMED),
        ("/admin/v2/brokers/local", Way.ANY),
        ("/admin/v2/persistent/public/default/t/stats", Way.ANY),
        ("/lookup/v2/topic/persistent/public/default/t", Way.ANY),
        ("/", Way.ANY),
    ],
)
def test_a_call_to_brokers_is_answered_by_any_unless_it_is_about_each(path: str, way: Way) -> None:
    assert broker_way("GET", path) is way


def test_the_broker_in_a_path_is_found() -> None:
    assert named_broker("/admin/v2/brokers/local/host:8081/ownedNamespaces") == "host:8081"


@pytest.mark.parametrize(
    ("path", "way"),
    [
        ("/metrics", Way.METRICS),
        ("/heartbeat", Way.ALL),
        ("/api/v1/bookie/is_ready", Way.ALL),
        ("/api/v1/bookie/list_bookies", Way.ANY),
        ("/api/v1/ledger/list", Way.ANY),
        ("/api/v1/autorecovery/bookie", Way.FIRST),
        ("/manage/v1/bookies", Way.FIRST),
        ("/dashboard/", Way.FIRST),
        ("/api/v1/bookie/state", Way.ONE),
        ("/api/v1/bookie/gc", Way.ONE),
        ("/api/v1/magnetar/status", Way.ONE),
        ("/api/v1/config/server_config", Way.ONE),
    ],
)
def test_a_call_to_bookies_is_about_one_unless_it_is_about_the_cluster(path: str, way: Way) -> None:
    assert bookie_way("GET", path) is way
