"""What a callback may be, what it wants, how it is signed, when it is tried again."""

import pytest

from autorecovery.callbacks import rules
from autorecovery.callbacks.rules import BadCallback, Callback, Line, Outcome
from magnetar_core.bookkeeper.metadata.bookies.lifecycle_events import Event, EventKind
from magnetar_core.runtime.types import Corruption

SECRET = "0123456789abcdef"


def callback(url: str = "http://10.0.0.9:8080/x", **changed: object) -> Callback:
    facts: dict[str, object] = {"secret": SECRET, "states": (), "bookies": (), "by": "me", "wall_ms": 1, **changed}
    return rules.make("c1", url, **facts)  # type: ignore[arg-type]


def event(bookie: str = "b-1", after: str = "draining") -> Event:
    return Event("0000000001-aa", EventKind.MOVED, bookie, "active", after, "me", "", 1)


@pytest.mark.parametrize(
    "url", ["http://10.0.0.9:8080/x", "https://example.org", "http://localhost/a?b=c", "http://[::1]:80/", "http://h"]
)
def test_addresses_that_can_be_called_back(url: str) -> None:
    assert callback(url).url == url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://host/", "http:// or https://"),
        ("//host/", "http:// or https://"),
        ("http:///path", "name a host"),
        ("http://host:0/", "name a host"),
        ("http://host:99999/", "cannot be read"),
        ("http://[::1/", "cannot be read"),
        ("http://user:word@host/", "name or password"),
        ("http://host/#part", "fragment"),
        ("http://host/a b", "no spaces"),
        ("http://host/\r\nX: y", "printable"),
        ("http://hö/", "ASCII"),
        ("http://host/" + "a" * rules.URL_CHARS_MAX, "the limit is 2000"),
    ],
)
def test_addresses_that_are_refused(url: str, why: str) -> None:
    with pytest.raises(BadCallback, match=why):
        callback(url)


def test_states_bookies_and_secrets_are_checked() -> None:
    with pytest.raises(BadCallback, match="there is no state gone; states are active, draining"):
        callback(states=("drained", "gone"))
    with pytest.raises(BadCallback, match="may only have"):
        callback(bookies=("b/1",))
    with pytest.raises(BadCallback, match="16 to 200 characters"):
        callback(secret="short")
    with pytest.raises(BadCallback, match="16 to 200 characters"):
        callback(secret="x" * (rules.SECRET_CHARS_MAX + 1))


def test_a_callback_names_so_many_bookies() -> None:
    names = [f"b-{number}" for number in range(rules.BOOKIES_MAX + 1)]
    assert len(callback(bookies=names[:-1]).bookies) == rules.BOOKIES_MAX
    with pytest.raises(BadCallback, match="at most 1000 bookies"):
        callback(bookies=names)


def test_a_record_comes_back_as_it_was_written_and_a_damaged_one_hides_its_secret() -> None:
    found = callback(states=("drained",), bookies=("b-1",))
    assert rules.decode(rules.encode(found)) == found
    with pytest.raises(Corruption) as refused:
        rules.decode(b'{"id": "c1", "secret": "0123456789abcdef", "url": 5}')
    assert SECRET not in str(refused.value)


def test_an_event_is_wanted_by_state_and_by_bookie() -> None:
    assert rules.wants(callback(), event())
    assert rules.wants(callback(states=("draining",)), event())
    assert not rules.wants(callback(states=("drained", "removed")), event())
    assert not rules.wants(callback(bookies=("b-2",)), event())
    assert rules.wants(callback(bookies=("b-1", "b-2"), states=("removed",)), event(after="removed"))


def test_the_signature_is_the_one_that_others_compute() -> None:
    # printf '1700000000.{"a": 1}' | openssl dgst -sha256 -hmac 0123456789abcdef
    found = rules.signature(SECRET, "1700000000", b'{"a": 1}')
    assert found == "sha256=09f4bb04e8cba11aeb0d90ffdd73e38a83be1c59cd0408c683d80645ea8dd3d1"
    headers = rules.headers_of(callback(), "e1", b'{"a": 1}', 1_700_000_000_999)
    assert headers[rules.TIMESTAMP] == "1700000000"
    assert headers[rules.SIGNATURE] == found


def test_waiting_doubles_up_to_ten_minutes_and_is_shortened_by_chance() -> None:
    assert [rules.retry_after_s(failures, 0.0) for failures in (1, 2, 3, 9, 10, 11, 1_000_000)] == [
        1, 2, 4, 256, 512, 600, 600,
    ]  # fmt: skip
    assert rules.retry_after_s(3, 1.0) == 2


def test_only_two_hundred_and_something_confirms() -> None:
    assert [status for status in range(100, 600) if rules.is_delivered(status)] == list(range(200, 300))


def line(number: int, outcome: Outcome = Outcome.DELIVERED) -> Line:
    return Line(f"e{number}", "b-1", "draining", outcome, 1, number, "200")


def test_the_log_has_one_line_an_event_and_so_many_lines() -> None:
    log: tuple[Line, ...] = ()
    for number in range(rules.LOG_MAX + 5):
        log = rules.noted(log, line(number, Outcome.WAITS))
        log = rules.noted(log, line(number))
    assert [one.event for one in log] == [f"e{number}" for number in range(5, rules.LOG_MAX + 5)]
    assert rules.decode_log(rules.encode_log(log)) == log


def test_the_oldest_are_in_excess() -> None:
    assert rules.in_excess(["a", "b", "c"], 2) == ["a"]
    assert rules.in_excess(["a", "b"], 2) == []
