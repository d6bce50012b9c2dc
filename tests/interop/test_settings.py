"""The configuration files that Apache ships, as settings of our broker."""

import re
import shutil
from pathlib import Path

import pytest

from broker.settings.config import load_broker_config
from deploy.fetch_apache import DISTRIBUTION
from magnetar.processes.bookies.settings import read_auto_recovery_settings, read_bookie_settings
from magnetar_core.runtime.process.daemon import read_properties
from magnetar_core.runtime.types import ConfigurationError
from tests.support.processes import change_settings


def test_a_broker_starts_with_the_file_that_apache_ships() -> None:
    values = read_properties(DISTRIBUTION / "conf" / "broker.conf")
    assert len(values) > 400
    config = load_broker_config(values, overrides={"metadataStoreUrl": "zk:127.0.0.1:2181", "clusterName": "lab"})
    assert config.cluster_name == "lab"


def test_of_the_file_for_a_standalone_only_the_websocket_and_its_bookie_are_not_for_a_broker() -> None:
    values = read_properties(DISTRIBUTION / "conf" / "standalone.conf")
    with pytest.raises(ConfigurationError) as told:
        load_broker_config(values)
    problems = str(told.value).splitlines()
    assert problems[0] == "webSocketServiceEnabled=true: the WebSocket API is not there"
    of_bookie = re.compile(
        "unknown setting (dbStorage_|journal|diskUsage|ledgerStorage|netty|flushInterval|allowLoopback|gcWaitTime).*"
    )
    assert [one for one in problems[1:] if not of_bookie.fullmatch(one)] == []


def test_a_bookie_and_its_auto_recovery_start_with_the_file_that_apache_ships(tmp_path: Path) -> None:
    shipped = DISTRIBUTION / "conf" / "bookkeeper.conf"
    assert read_bookie_settings(shipped).port == 3181
    assert read_auto_recovery_settings(shipped)
    other = tmp_path / "bookkeeper.conf"
    shutil.copy(shipped, other)
    change_settings(other, "useHostNameAsBookieID=true\n")
    with pytest.raises(ConfigurationError, match="write the host's name into advertisedAddress or bookieId"):
        read_bookie_settings(other)
