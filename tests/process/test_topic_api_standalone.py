"""The blocking client and a real standalone, which is killed and started again."""

import json
import re
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pulsar
import pytest

import magnetar
from tests.unit.broker.test_official_client import EARLIEST
from tests.unit.broker.test_official_client import client as official

pytestmark = pytest.mark.process


@contextmanager
def standalone(data: Path, config: Path | None = None, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A standalone on free ports, and the line that it printed when it was ready."""
    ports = ["--port", "0", "--web-port", "0", "--bookie-port", "0"]
    command = [sys.executable, "-m", "magnetar", "standalone", "--data", str(data), *ports, *options]
    if config is not None:
        command += ["--config", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def part(said: str, pattern: str) -> str:
    found = re.search(pattern, said)
    assert found is not None, said
    return found[1]


def test_what_was_acknowledged_is_there_after_kill_9_and_on_both_doors(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with standalone(data) as (process, said), magnetar.Client(part(said, r"gRPC (\S+),")) as client:
        with client.consumer("t", "s", type="shared") as consumer:
            ids = client.producer("t").send_many([b"m%d" % n for n in range(3000)])
            first = [consumer.receive(10) for _ in range(1000)]
            consumer.ack(first)
            consumer.flush()
            stats = client.topics.stats("t")
            assert stats["msgInCounter"] == 3000
            assert stats["subscriptions"]["s"]["consumers"][0]["clientVersion"] == "magnetar topics.v1"
            with urllib.request.urlopen(
                part(said, r"HTTP (\S+),") + "/admin/v2/persistent/public/default/t/stats"
            ) as answer:
                assert json.load(answer)["msgInCounter"] == 3000
        process.kill()
        process.wait()
    with standalone(data) as (_, said):
        with magnetar.Client(part(said, r"gRPC (\S+),")) as client, client.reader("t") as reader:
            found = []
            while reader.has_more():
                found += reader.receive_batch(1000, 10)
            assert [one.id for one in found] == ids
            assert [one.payload for one in found] == [b"m%d" % n for n in range(3000)]
        with official(part(said, r"(pulsar://[^,]+),")) as c:
            consumer_ = c.subscribe("t", "other", initial_position=EARLIEST)
            assert [consumer_.receive(5000).data() for _ in range(3000)] == [b"m%d" % n for n in range(3000)]
            with pytest.raises(pulsar.Timeout):
                consumer_.receive(100)


def test_the_port_can_be_chosen(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with standalone(tmp_path / "data", None, "--grpc-port", str(port)) as (_, said):
        assert part(said, r"gRPC (\S+),").endswith(f":{port}")
        with magnetar.Client(f"localhost:{port}") as client:
            assert client.topics.list() == []


def test_the_port_can_be_switched_off(tmp_path: Path) -> None:
    config = tmp_path / "standalone.conf"
    config.write_text("grpcServicePort=\n")
    with standalone(tmp_path / "data", config) as (_, said):
        assert "gRPC off" in said
