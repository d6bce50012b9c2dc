"""The settings of deploy/compose.yaml, on processes of this machine instead of containers.

The containers share one network, and its ports are published on the host: an address that a server tells must mean the
same server everywhere. Here the ports are others, so that the usual ones need not be free.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import reserved_ports
from tests.support.processes import client_of, until
from tests.support.zookeeper import ZooKeeperServer, why_not

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose.yaml"
PREFIX = "PULSAR_PREFIX_"


def environments() -> dict[str, dict[str, str]]:
    """Service of ours → the settings that it is given, those of its anchor included."""
    anchors: dict[str, dict[str, str]] = {}
    found: dict[str, dict[str, str]] = {}
    into: dict[str, str] | None = None
    service = ""
    for line in COMPOSE.read_text().splitlines():
        if anchor := re.fullmatch(r"x-\S+: &(\S+)", line):
            into = anchors.setdefault(anchor[1], {})
        elif named := re.fullmatch(r"  (\S+):", line):
            service, into = named[1], None
        elif re.fullmatch(r"    environment:", line):
            into = found.setdefault(service, {})
        elif (merged := re.fullmatch(r"      <<: \*(\S+)", line)) and into is not None:
            into.update(anchors[merged[1]])
        elif (setting := re.fullmatch(rf"\s+{PREFIX}(\w+): \"?([^\"]*)\"?", line)) and into is not None:
            into[setting[1]] = setting[2]
    return {service: given for service, given in found.items() if given}


def published() -> set[int]:
    """Ports of the host; each is the same inside, and on the loopback address only."""
    ports: set[int] = set()
    text = COMPOSE.read_text()
    for host, first, last, inside in re.findall(r"- ([\d.]+):(\d+)(?:-(\d+))?:(\S+)", text):
        assert host == "127.0.0.1"
        assert inside == (f"{first}-{last}" if last else first)
        ports |= set(range(int(first), int(last or first) + 1))
    return ports


def test_every_port_of_a_server_is_published_and_its_own() -> None:
    names = ("bookiePort", "httpServerPort", "brokerServicePort", "webServicePort", "grpcServicePort")
    ports = [int(given[name]) for given in environments().values() for name in names if name in given]
    assert len(ports) == 3 * 2 + 2 * 3
    assert len(set(ports)) == len(ports)
    assert published() == {2181, *ports}
    assert {given["advertisedAddress"] for given in environments().values()} == {"127.0.0.1"}


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[dict[str, dict[str, str]]]:
    """All of them, running; service → its settings here."""
    with contextlib.ExitStack() as stack:
        zookeeper = ZooKeeperServer(tmp_path / "zookeeper")
        stack.callback(zookeeper.stop)
        zookeeper.start()
        ports = stack.enter_context(contextlib.closing(reserved_ports()))
        others = {str(port): str(next(ports)) for port in published()} | {"2181": str(zookeeper.port)}
        made: dict[str, dict[str, str]] = {}
        for service, given in environments().items():
            here = {}
            for name, value in given.items():
                text = re.sub(r"\b\d{4}\b", lambda found: others.get(found[0], found[0]), value)
                text = text.replace("/var/lib/magnetar", str(tmp_path / service)).replace("0.0.0.0", "127.0.0.1")
                here[name] = text
            made[service] = here
            environ = {**os.environ, **{PREFIX + name: value for name, value in here.items()}}
            if service.startswith("broker"):
                environ[f"{PREFIX}bindAddress"] = "127.0.0.1"  # of the test machine
            log = tmp_path / f"{service}.log"
            with log.open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "magnetar", service.partition("-")[0]],
                    env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                )  # fmt: skip
            stack.callback(process.wait)
            stack.callback(process.kill)
            until(
                lambda log=log, process=process: " is ready" in log.read_text() or process.poll() is not None,  # type: ignore[misc]
                f"{service} is ready",
            )
            assert process.poll() is None, log.read_text()
        yield made


@pytest.mark.process
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_the_servers_are_reached_at_the_addresses_that_they_tell(servers: dict[str, dict[str, str]]) -> None:
    assert sorted(servers) == ["bookie-1", "bookie-2", "bookie-3", "broker-1", "broker-2"]
    brokers = [given for name, given in servers.items() if name.startswith("broker")]
    known = {f"pulsar://127.0.0.1:{given['brokerServicePort']}" for given in brokers}
    admin = AdminClient(f"http://127.0.0.1:{brokers[0]['webServicePort']}")
    admin.create_topic("parts", 16)
    names = admin.partition_names("parts")
    assert {admin.owner_url(name) for name in names} == known, "both serve some, and tell addresses of the host"
    assert admin.stats("parts")["msgInCounter"] == 0, "also those of the other broker, to which HTTP leads on"
    with client_of(f"pulsar://127.0.0.1:{brokers[0]['brokerServicePort']}") as client:
        for name in names:
            producer = client.create_producer(name)
            producer.send(b"x")
            producer.close()
    for name, given in servers.items():
        if name.startswith("bookie"):
            url = f"http://127.0.0.1:{given['httpServerPort']}/api/v1/bookie/list_bookies?type=rw"
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert sorted(json.load(answer)) == ["bookie-1", "bookie-2", "bookie-3"]
