"""One file for the broker and the bookies of a standalone."""

from pathlib import Path
from typing import Any

import pytest

from broker.settings.groups.authentication import PROVIDERS
from magnetar.processes.standalone_settings import StandaloneSettings, read_standalone_settings
from magnetar_core.runtime.types import ConfigurationError


def read(
    tmp_path: Path, text: str, environ: dict[str, str] | None = None, bookies: int = 1, **ports: Any
) -> StandaloneSettings:
    path = tmp_path / "standalone.conf"
    path.write_text(text)
    return read_standalone_settings(tmp_path / "data", path, environ or {}, bookies=bookies, **ports)


def problems(tmp_path: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        read(tmp_path, text, environ)
    return str(refused.value).splitlines()


def test_settings_of_broker_and_bookie_stand_in_one_file(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "clusterName=mine\nbookiePort=4181\njournalMaxSizeMB=64\nadvertisedAddress=outside\n"
        "numAddWorkerThreads=4\nnumIOThreads=8\n",
        {"PULSAR_PREFIX_flushInterval": "1000", "PULSAR_PREFIX_maxProducersPerTopic": "5"},
        bookies=2,
    )
    assert (found.broker.cluster_name, found.broker.max_producers_per_topic) == ("mine", 5)
    assert found.broker.advertised_address == "outside"
    assert found.broker.metadata_store_url == f"rocksdb:{tmp_path / 'data' / 'metadata'}"
    assert [one.port for one in found.bookies] == [4181, 4182]
    assert [one.bookie_id for one in found.bookies] == ["bookie-1", "bookie-2"]
    for number, one in enumerate(found.bookies, 1):
        assert (one.journal_file_mib_max, one.flush_interval_ms) == (64, 1000)
        assert one.advertised_address == one.listen_address == "127.0.0.1"
        assert one.journal_directories == (str(tmp_path / "data" / f"bookie-{number}" / "journal"),)


@pytest.mark.parametrize(("line", "threshold"), [("", 0.99), ("diskUsageThreshold=0.995\n", 0.995)])
def test_a_standalone_writes_to_a_disk_that_others_have_filled_as_apaches_does(
    tmp_path: Path, line: str, threshold: float
) -> None:
    bookie = read(tmp_path, line, {}, bookies=1).bookies[0]
    assert (bookie.disk_usage_full, bookie.disk_usage_warn) == (threshold, 0.99)


def test_the_options_for_ports_win_over_the_file(tmp_path: Path) -> None:
    found = read(tmp_path, "bookiePort=4181\nwebServicePort=1\n", first_bookie_port=0, service_port=0, bookies=2)
    assert [one.port for one in found.bookies] == [0, 0]
    assert (found.broker.service_port, found.broker.grpc_port, found.broker.web_port) == (0, 0, 1)
    assert [one.port for one in read(tmp_path, "", bookies=3).bookies] == [3181, 3182, 3183]


def test_the_port_of_the_topic_api_is_the_one_that_is_asked_for_or_one_that_is_free(tmp_path: Path) -> None:
    found = read(tmp_path, "")
    assert (found.broker.grpc_port, found.preferred_grpc_port) == (6648, 6648)
    found = read(tmp_path, "grpcServicePort=\n", grpc_port=6648, service_port=0)
    assert (found.broker.grpc_port, found.preferred_grpc_port) == (6648, None)
    secure = {"tlsCertificateFilePath": "/k/tls.crt", "tlsKeyFilePath": "/k/tls.key"}
    found = read(tmp_path, "", secure=secure, service_port=0, grpc_port=7000)
    assert (found.broker.grpc_port, found.broker.grpc_port_tls) == (None, 7000)


def test_the_http_of_bookies_is_on_the_loopback_address_and_off_where_everybody_is_asked(tmp_path: Path) -> None:
    secure = {"tlsCertificateFilePath": "/k/tls.crt", "tlsKeyFilePath": "/k/tls.key", "tlsDirectory": "/k/bookies"}
    local = "127.0.0.1"
    assert [one.http_address for one in read(tmp_path, "", bookies=2).bookies] == [(local, 8000), (local, 8001)]
    on = "httpServerEnabled=true\nhttpServerPort=9000\n"
    assert [one.http_address for one in read(tmp_path, on, bookies=2).bookies] == [(local, 9000), (local, 9001)]
    assert read(tmp_path, "", first_bookie_port=0).bookies[0].http_address == (local, 0)
    assert read(tmp_path, "httpServerEnabled=false\n").bookies[0].http_address is None
    assert read(tmp_path, "", secure=secure).bookies[0].http_address is None
    assert read(tmp_path, on, secure=secure).bookies[0].http_address == (local, 9000)


def test_a_bookie_that_listens_elsewhere_is_reached_there(tmp_path: Path) -> None:
    (one,) = read(tmp_path, "bookieListenAddress=127.0.0.7\n").bookies
    assert (one.listen_address, one.advertised_address) == ("127.0.0.7", "127.0.0.7")
    (one,) = read(tmp_path, "bookieListenAddress=0.0.0.0\n").bookies
    assert (one.listen_address, one.advertised_address) == ("0.0.0.0", "127.0.0.1")


def test_what_neither_knows_is_refused_with_the_nearest_name_of_both(tmp_path: Path) -> None:
    path = tmp_path / "standalone.conf"
    assert problems(tmp_path, "bookiPort=1\nclusterNme=x\n") == [
        f"{path}: unknown setting bookiPort; did you mean bookiePort?",
        f"{path}: unknown setting clusterNme; did you mean clusterName?",
    ]


def test_every_problem_is_told_with_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "standalone.conf"
    found = problems(
        tmp_path,
        "flushInterval=soon\nbrokerServicePort=many\nmaxProducerPerTopic=1\n",
        {"PULSAR_PREFIX_gcWaitTime": "never", "PULSAR_PREFIX_transactionCoordinatorEnabled": "true"},
    )
    begins = sorted(one.rpartition(": ")[0] if "did you mean" not in one else one for one in found)
    assert begins == sorted(
        [
            f"{path}: flushInterval=soon",
            f"{path}: brokerServicePort=many",
            f"{path}: unknown setting maxProducerPerTopic; did you mean maxProducersPerTopic?",
            "PULSAR_PREFIX_gcWaitTime in the environment: gcWaitTime=never",
            "PULSAR_PREFIX_transactionCoordinatorEnabled in the environment: transactionCoordinatorEnabled=true",
        ]
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("journalDirectory=/a", "below its --data"),
        ("ledgerDirectories=/a", "below its --data"),
        ("metadataServiceUri=zk://h:1/ledgers", "below its --data"),
        ("bookieId=me", "called bookie-1"),
        ("statsProviderClass=x.PrometheusMetricsProvider\nhttpServerEnabled=false", "at its broker's /metrics"),
        ("tlsDirectory=/a", "no TLS"),
        ("bookkeeperTLSDirectory=/a", "without TLS"),
        ("journalSyncData=false", "always means that the entry is on disk"),
    ],
)
def test_what_a_standalone_decides_is_refused_with_the_way_out(tmp_path: Path, line: str, words: str) -> None:
    (problem,) = problems(tmp_path, f"{line}\n")
    assert words in problem
    assert problem.startswith(f"{tmp_path / 'standalone.conf'}: ")


def test_an_empty_text_decides_nothing(tmp_path: Path) -> None:
    """As in Apache's file, where `bookieId=` stands."""
    assert read(tmp_path, "bookieId=\nmetadataServiceUri=\n").bookies[0].bookie_id == "bookie-1"


def test_a_secured_standalone_speaks_tls_alone_and_decides_its_files(tmp_path: Path) -> None:
    secure = {"tlsCertificateFilePath": "/k/tls.crt", "tlsKeyFilePath": "/k/tls.key"}
    broker = read(tmp_path, "", secure=secure).broker
    assert (broker.service_port, broker.web_port, broker.grpc_port) == (None, None, None)
    assert (broker.service_port_tls, broker.web_port_tls, broker.grpc_port_tls) == (6651, 8443, 6648)
    broker = read(tmp_path, "brokerServicePort=6650\n", secure=secure, service_port=0, web_port=1).broker
    assert (broker.service_port, broker.service_port_tls, broker.web_port_tls, broker.grpc_port_tls) == (6650, 0, 1, 0)
    with pytest.raises(ConfigurationError, match="tlsKeyFilePath: --secure decides this"):
        read(tmp_path, "tlsKeyFilePath=/other\n", secure=secure)


def test_the_bookies_of_a_secured_standalone_demand_what_its_broker_shows(tmp_path: Path) -> None:
    secure = {"tlsCertificateFilePath": "/k/tls.crt", "tlsKeyFilePath": "/k/tls.key",
              "tlsDirectory": "/k/bookies", "bookkeeperTLSDirectory": "/k/bookies"}  # fmt: skip
    made = read(tmp_path, "", bookies=2, secure=secure)
    assert [one.access_rules.demand_tls for one in made.bookies] == [True, True]
    assert made.broker.bookie_tls is not None
    with pytest.raises(ConfigurationError, match="tlsDirectory: --secure decides this"):
        read(tmp_path, "tlsDirectory=/other\n", secure=secure)


def test_metrics_of_a_secured_standalone_ask_who_it_is_unless_it_is_said(tmp_path: Path) -> None:
    secure = {"tlsCertificateFilePath": "/k/tls.crt", "tlsKeyFilePath": "/k/tls.key", "authenticationEnabled": "true",
              "authenticationProviders": next(iter(PROVIDERS)), "tokenSecretKey": "/k/token.key"}  # fmt: skip
    assert read(tmp_path, "", secure=secure).broker.authenticate_metrics
    assert not read(tmp_path, "authenticateMetricsEndpoint=false\n", secure=secure).broker.authenticate_metrics
    assert not read(tmp_path, "").broker.authenticate_metrics


@pytest.mark.parametrize("number", ["2", "auto"])
def test_a_standalone_of_several_processes_is_refused(tmp_path: Path, number: str) -> None:
    (problem,) = problems(tmp_path, f"magnetarProcesses={number}\n")
    assert "a standalone is one process" in problem
    read(tmp_path, "magnetarProcesses=1\n")
