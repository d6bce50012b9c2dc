"""Seconds of the soak of the topic API, and its checks, which find what a round leaves behind."""

import os
import random
import threading
from pathlib import Path

import pytest

import magnetar
from magnetar.testing import TopicPlace
from tests.soak.topics import program
from tests.soak.topics.__main__ import soak
from tests.soak.topics.program import WARM_ROUNDS, Remains, drain
from tests.soak.topics.rounds import SUBSCRIPTION, Round, RoundFailed

pytestmark = pytest.mark.process


@pytest.mark.long("half a minute of threads, tasks and forks")
def test_nothing_is_left_behind(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seed = os.environ.get("MAGNETAR_SOAK_SEED", "1")
    assert soak(tmp_path, minutes=0.5, seed=seed) == 0, "".join(capfd.readouterr())


@pytest.fixture
def made(volatile_pulsar_server: TopicPlace, monkeypatch: pytest.MonkeyPatch) -> Round:
    """A round in which nothing has happened; nobody waits long for what is left."""
    monkeypatch.setattr(program, "PATIENCE_S", 1.0)
    place = volatile_pulsar_server
    made = Round(place.grpc_url, place.topic("t"), random.Random(1))
    with magnetar.Client(made.address) as client:
        client.consumer(made.topic, SUBSCRIPTION, from_earliest=True).close()
        client.producer(made.topic).send(made.books.new())
    return made


def test_a_message_that_was_not_received_is_taken_in_the_end(made: Round) -> None:
    made.books.confirmed.update(made.books.sent)
    drain(made)
    assert len(made.books.received) == 1


def test_a_message_that_is_lost_is_found(made: Round) -> None:
    made.books.confirmed.add(b"1-1")
    with pytest.raises(RoundFailed, match="1 confirmed messages are lost"):
        drain(made)


def test_a_message_that_nobody_sent_is_found(made: Round) -> None:
    made.books.sent.clear()
    with pytest.raises(RoundFailed, match="1 messages were never sent"):
        drain(made)


def test_a_producer_that_stays_at_the_server_is_found(made: Round) -> None:
    with magnetar.Client(made.address) as client:
        client.producer(made.topic).open()
        with pytest.raises(RoundFailed, match="the server still has"):
            drain(made)


def test_threads_and_descriptors_that_stay_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "PATIENCE_S", 0.2)
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])  # xdist has some of its own
    remains = Remains()
    for _ in range(WARM_ROUNDS):
        remains.check()
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(program.DESCRIPTORS_MORE + 8)]
    with pytest.raises(RoundFailed, match="descriptors, of"):
        remains.check()
    for number in opened:
        os.close(number)
    remains.check()
    left = threading.Thread(name="left")
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread(), left])
    with pytest.raises(RoundFailed, match=r"threads left: \['left'\]"):
        remains.check()
