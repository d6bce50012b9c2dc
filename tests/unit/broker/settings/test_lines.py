"""The lines of Apache's brokers and bookies: every setting that one of them has, with the value that it ships.

`tests/vectors/lines/settings-broker-*.tsv`: name, type, default, …; `settings-bookie-*.tsv`: name, constant, default, …
(a default of `?` is not known).
"""

import csv
import dataclasses
import re
from pathlib import Path

import pytest

from broker.settings.apache import names
from broker.settings.config import BrokerConfig, load_broker_config
from broker.settings.groups.cluster import APACHE_LINES
from magnetar.processes.bookies.settings import read_auto_recovery_settings, read_bookie_settings
from magnetar_core.runtime.types import ConfigurationError

VECTORS = Path(__file__).parents[3] / "vectors/lines"
BROKERS = {"4.0": "4.0.8", "4.2": "4.2.4", "5.0": "5.0.1"}
BOOKIES = ("4.17.2", "4.17.3", "4.18.2")

# Their defaults depend on the machine, or name the cluster.
_OF_THE_MACHINE = {"managedLedgerCacheSizeMB", "maxMessagePublishBufferSizeInMB", "clusterName", "metadataStoreUrl"}


def shipped(kind: str, release: str) -> dict[str, str]:
    """The settings of a release. Java writes an optional number as `Optional[6650]`, none as `Optional.empty`, and an
    empty array as `[[]]`."""
    with (VECTORS / f"settings-{kind}-{release}.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    values = {row["name"]: row["default"] or "" for row in rows if row["default"] != "?"}
    return {name: re.sub(r"Optional\.empty|\[\[\]\]|Optional\[(.*)\]", r"\1", value) for name, value in values.items()}


def test_the_lines_are_those_that_a_configuration_may_name() -> None:
    assert tuple(BROKERS) == APACHE_LINES == tuple(names.DEFAULTS_OF_LINES)


@pytest.mark.parametrize("line", BROKERS)
def test_a_broker_starts_with_every_setting_of_a_line_as_it_is_shipped(line: str) -> None:
    values = shipped("broker", BROKERS[line])
    assert len(values) > 440
    assert load_broker_config(values)


@pytest.mark.parametrize("line", BROKERS)
def test_the_name_of_a_line_gives_its_defaults_whole(line: str) -> None:
    values = shipped("broker", BROKERS[line])
    whole, named = load_broker_config(values), load_broker_config({"apacheLine": line})
    differing = {
        field.metadata["name"]: (getattr(named, field.name), getattr(whole, field.name))
        for field in dataclasses.fields(BrokerConfig)
        if field.metadata["name"] in values.keys() - _OF_THE_MACHINE
        and _comparable(getattr(named, field.name)) != _comparable(getattr(whole, field.name))
    }
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationDisabled"
    assert differing == {"brokerClientAuthenticationPlugin": ("", plugin)}, "which means the same"
    for name in names.DEFAULTS_OF_LINES[line]:
        assert name in values, "the line has the setting"


def _comparable(value: object) -> object:
    return frozenset(value) if isinstance(value, tuple) else value


def test_a_setting_in_the_file_wins_over_the_line() -> None:
    config = load_broker_config({"apacheLine": "4.0", "defaultNumberOfNamespaceBundles": "7"})
    assert (config.default_bundles, config.max_unacked_ranges) == (7, 10_000)
    assert load_broker_config({}).default_bundles == 32


def test_a_line_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match=r"apacheLine=3.0: expected one of .*4.0, 4.2, 5.0"):
        load_broker_config({"apacheLine": "3.0"})


@pytest.mark.parametrize("release", BOOKIES)
def test_a_bookie_and_its_auto_recovery_start_with_every_setting_as_it_is_shipped(release: str, tmp_path: Path) -> None:
    file = tmp_path / "bookkeeper.conf"
    file.write_text("".join(f"{name}={value}\n" for name, value in shipped("bookie", release).items()))
    assert read_bookie_settings(file).port == 3181
    assert read_auto_recovery_settings(file)
