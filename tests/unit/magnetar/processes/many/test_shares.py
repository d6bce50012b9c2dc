"""What differs between the processes of a service."""

from typing import Any

import pytest

from bookie.config import BookieConfig
from broker.settings.config import BrokerConfig
from magnetar.processes.many.shares import bookie_shares, broker_shares
from magnetar_core.runtime.config import AUTO, load, parse_processes
from magnetar_core.runtime.types import ConfigurationError


def _bookie(**more: Any) -> BookieConfig:
    return BookieConfig(metadata_service_uri="zk://127.0.0.1/ledgers", **more)


def test_each_broker_has_ports_counted_up_from_the_configured_ones() -> None:
    config = BrokerConfig(
        grpc_port=6750, web_port_tls=8443, advertised_listeners="a:pulsar://h:7000,b:pulsar+ssl://h:7100"
    )
    first, second = broker_shares(config, 2)
    assert first == {
        "brokerServicePort": "6650",
        "grpcServicePort": "6750",
        "webServicePort": "8081",
        "webServicePortTls": "8444",
        "advertisedListeners": "a:pulsar://h:7000,b:pulsar+ssl://h:7100",
        "magnetarProcesses": "1",
    }
    assert second == {
        "brokerServicePort": "6651",
        "grpcServicePort": "6751",
        "webServicePort": "8082",
        "webServicePortTls": "8445",
        "advertisedListeners": "a:pulsar://h:7001,b:pulsar+ssl://h:7101",
        "magnetarProcesses": "1",
    }


def test_port_0_stays_a_free_port_for_each_process() -> None:
    for share in broker_shares(BrokerConfig(service_port=0, web_port=0), 3):
        assert (share["brokerServicePort"], share["webServicePort"]) == ("0", "0")


def test_ports_that_meet_are_refused_with_both_names() -> None:
    config = BrokerConfig(service_port=6650, service_port_tls=6651)
    with pytest.raises(
        ConfigurationError, match=r"brokerServicePortTls of process 0 and brokerServicePort of process 1 .* 6651"
    ):
        broker_shares(config, 2)


def test_the_port_of_the_service_is_none_of_a_process() -> None:
    with pytest.raises(ConfigurationError, match=r"webServicePort of the service and brokerServicePort of process 1"):
        broker_shares(BrokerConfig(service_port=8079, web_port=8080), 2)


def test_a_port_above_the_last_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="65536, which is above 65535"):
        broker_shares(BrokerConfig(service_port=65_535), 2)


@pytest.mark.parametrize("url", ["rocksdb:data/metadata", "memory:one"])
def test_a_metadata_store_of_one_process_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"needs? ZooKeeper"):
        broker_shares(BrokerConfig(metadata_store_url=url), 2)
    with pytest.raises(ConfigurationError, match=r"needs? ZooKeeper"):
        bookie_shares(BookieConfig(metadata_service_uri=f"metadata-store:{url}/ledgers"), 2)


def test_the_first_bookie_has_what_a_single_one_has() -> None:
    first, _ = bookie_shares(_bookie(bookie_id="b", auto_recovery=True), 2)
    assert first == {"bookiePort": "3181", "magnetarProcesses": "1"}


def test_further_bookies_have_ports_directories_and_ids_of_their_own() -> None:
    config = _bookie(bookie_id="b", journal_directories=("/j1", "/j2"), http_enabled=True, auto_recovery=True)
    shares = bookie_shares(config, 3)
    assert shares[2] == {
        "bookiePort": "3183",
        "httpServerPort": "8003",
        "journalDirectories": "/j1/process-2,/j2/process-2",
        "ledgerDirectories": "data/bookkeeper/ledgers/process-2",
        "bookieId": "b-2",
        "autoRecoveryDaemonEnabled": "false",
        "magnetarProcesses": "1",
    }


def test_the_metrics_alone_have_a_port_of_the_service_too() -> None:
    config = _bookie(stats_provider="org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider")
    assert [share["prometheusStatsHttpPort"] for share in bookie_shares(config, 2)] == ["8001", "8002"]


def test_a_share_wins_over_the_older_name_of_a_setting() -> None:
    share = bookie_shares(_bookie(), 2)[1]
    environ = {f"PULSAR_PREFIX_{name}": text for name, text in share.items()}
    values = {"journalDirectory": "/mine", "magnetarProcesses": "2"}
    made = load(BookieConfig, values, environ)
    assert made.journal_directories == ("data/bookkeeper/journal/process-1",)
    assert made.processes == 1


@pytest.mark.parametrize("text", ["many", "1.5", ""])
def test_a_number_of_processes_is_a_number_or_auto(text: str) -> None:
    assert parse_processes("auto") == parse_processes("0") == AUTO
    assert parse_processes("3") == 3
    with pytest.raises(ValueError, match="a number, 1 or more, or auto"):
        parse_processes(text)


def test_too_many_processes_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"magnetarProcesses \(65\) must be 0 to 64"):
        load(BookieConfig, {"magnetarProcesses": "65"})


def test_certificates_of_clients_that_the_one_address_cannot_pass_on_are_refused() -> None:
    config = BrokerConfig(web_port_tls=8443, tls_client_required=True)
    with pytest.raises(ConfigurationError, match="tlsRequireTrustedClientCertOnConnect"):
        broker_shares(config, 2)
