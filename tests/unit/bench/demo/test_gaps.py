"""How long topics go without an acknowledgement, with a client that acknowledges when it is told to."""

import threading
from collections.abc import Callable
from typing import Any

import pulsar
import pytest

from bench.demo.gaps import Load, TopicSilence
from magnetar_core.runtime.process.daemon import new_clock
from tests.support.manual_clock import ManualClock

Done = Callable[[Any, Any], None]


def test_the_longest_silence_is_told_with_its_ends() -> None:
    topic = TopicSilence()
    topic.mark(10.0)
    for at in (10.5, 11.0, 14.0, 14.5):
        topic.acknowledged(at)
    assert topic.longest(15.0) == (3.0, 11.0, 14.0)


def test_a_silence_that_lasts_has_no_end() -> None:
    topic = TopicSilence()
    topic.mark(10.0)
    topic.acknowledged(10.5)
    assert topic.longest(20.0) == (9.5, 10.5, None)


def test_a_mark_forgets_what_was_before() -> None:
    topic = TopicSilence()
    topic.mark(0.0)
    topic.acknowledged(9.0)
    topic.mark(10.0)
    topic.acknowledged(10.5)
    assert topic.longest(10.6) == (0.5, 10.0, 10.5)


class Producer:
    """Keeps what was sent until it is answered."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, Done]] = []
        self.first, self.many = threading.Event(), threading.Event()

    def send_async(self, data: bytes, done: Done) -> None:
        self.sent.append((data, done))
        self.first.set()
        if len(self.sent) > 1:
            self.many.set()

    def flush(self) -> None: ...


class Client:
    def __init__(self) -> None:
        self.producers: dict[str, Producer] = {}
        self.is_closed = False

    def create_producer(self, topic: str, **_: Any) -> Producer:
        self.producers[topic] = Producer()
        return self.producers[topic]

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def client() -> Client:
    return Client()


def test_messages_of_a_topic_are_numbered_and_their_answers_counted(client: Client) -> None:
    load = Load(client, ["a", "b"], new_clock(), period_s=0.1)
    assert client.producers["b"].many.wait(20)
    load.finish()
    answers = [pulsar.Result.Ok, pulsar.Result.Timeout]
    for (data, done), answer in zip(client.producers["b"].sent, answers, strict=False):
        number = int(data.split(b" ")[0])
        done(answer, None)
        assert (number in load.acknowledged["b"]) == (answer is pulsar.Result.Ok)
    assert load.acknowledged == {"a": set(), "b": {0}}
    assert load.failures == {str(pulsar.Result.Timeout): 1}
    load.end()
    assert client.is_closed


def test_silences_are_those_of_each_topic(client: Client) -> None:
    clock = ManualClock()
    load = Load(client, ["a", "b"], clock)
    assert client.producers["a"].first.wait(20)
    load.finish()
    load.mark()
    clock.advance(2.0)
    sent = client.producers["a"].sent
    sent[0][1](pulsar.Result.Ok, None)
    clock.advance(0.5)
    found = load.silences()
    assert found["a"].seconds == pytest.approx(2.0)
    assert found["a"].ended_s is not None
    assert found["b"].seconds == pytest.approx(2.5)
    assert found["b"].ended_s is None
    assert load.p99_ms() == pytest.approx(2000.0)
    assert load.waits() == pytest.approx([0.0, 2.0])
    load.mark()
    assert load.waits() == [0.0, 0.0]
