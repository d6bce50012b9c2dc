"""What a server says when it can be used: a sentence for people, an object for the service that it is a part of."""

import json

import pytest

from magnetar.processes.announced import Ready, say_ready
from magnetar_core.runtime.process.daemon import PART_OF_SERVICE

READY = Ready(
    "magnetar broker",
    "pulsar://a:6650",
    http="http://a:8080",
    https="https://a:8443",
    grpc="a:6651",
    rest="metadata zk:z",
)


def test_people_read_a_sentence(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PART_OF_SERVICE, raising=False)
    say_ready(READY)
    say_ready(Ready("magnetar bookie b", "b:3181"))
    say_ready("another sentence")
    assert capsys.readouterr().out.splitlines() == [
        "magnetar broker is ready at pulsar://a:6650, HTTP http://a:8080, HTTPS https://a:8443, gRPC a:6651, "
        "metadata zk:z",
        "magnetar bookie b is ready at b:3181",
        "another sentence",
    ]


def test_a_service_reads_an_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PART_OF_SERVICE, "0")
    say_ready(READY)
    said = capsys.readouterr().out
    assert json.loads(said)["ready"]["address"] == "pulsar://a:6650"
    assert Ready.read(said.encode()) == READY


@pytest.mark.parametrize(
    "line", [b"magnetar broker is ready at x\n", b"{}", b"[]", b'{"ready": {"who": 1}}', b"\xff", b""]
)
def test_anything_else_is_not_that(line: bytes) -> None:
    assert Ready.read(line) is None
