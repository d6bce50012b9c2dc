"""What a callback is, which events it wants, how a delivery is signed, and when it is tried again. No IO.

A callback is an address to which changes in the life of bookies are sent (`lifecycle_events`):

    POST <url>
    Magnetar-Event-Id:   0000000017-5f2a90c1        the same each time one event is sent
    Magnetar-Timestamp:  1700000000                 seconds since 1970, of this attempt
    Magnetar-Signature:  sha256=<hex>               HMAC-SHA256 of "<timestamp>.<body>", with the callback's secret
    {"id": …, "kind": "moved", "bookie": …, "from": "active", "to": "draining", "by": …, "why": …, "wall_ms": …}

Rules:

1. An event counts as delivered when the receiver answers with a status from 200 to 299, and not before. A redirect is
   not followed: the body would be sent to an address that nobody has registered.
2. What is not delivered is sent again: after a second, then after twice the time as before up to ten minutes, each time
   shortened by chance so that many events do not come at once; for seven days.
3. The events of one bookie come to one callback in their order: the next one waits until the one before was delivered
   or given up. Events of other bookies do not wait for it.
4. The event of a test is sent once: the operator who asks for it looks at the log right after.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from magnetar_core.bookkeeper.metadata.bookies.bookie_info import bookie_id_problem
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import State
from magnetar_core.bookkeeper.metadata.bookies.lifecycle_events import REMOVED, Event, EventKind
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.pauses import pause_after_s
from magnetar_core.runtime.types import Corruption

EVENT_ID: Final = "Magnetar-Event-Id"
TIMESTAMP: Final = "Magnetar-Timestamp"
SIGNATURE: Final = "Magnetar-Signature"

STATES: Final = (*(str(state) for state in State), REMOVED)
"""The states that a callback may ask for."""

# Each event is written once for each callback that wants it, in one step of the metadata store.
CALLBACKS_MAX: Final = 100

# Events that wait for one callback. A cluster of 300 bookies that is drained as a whole makes 900 of them.
PENDING_MAX: Final = 1_000

# Events that nobody has handed to the callbacks yet. They gather while no node audits; each is a few hundred bytes, and
# their names must go into one answer of ZooKeeper, which is 1 MB at most.
EVENTS_MAX: Final = 10_000

# Deliveries that the log of a callback has. It is one value, of some 30 KB.
LOG_MAX: Final = 100

# Some proxies refuse longer ones.
URL_CHARS_MAX: Final = 2_000

# A secret that is given: shorter ones can be guessed, and nobody needs longer ones.
SECRET_CHARS_MIN: Final = 16
SECRET_CHARS_MAX: Final = 200

# Bookies that a callback may name; for more of them it names none, and gets the events of all.
BOOKIES_MAX: Final = 1_000

# How many characters of an answer, or of an error, a log line keeps.
ANSWER_CHARS_MAX: Final = 200

# Rule 2.
FIRST_S: Final = 1.0
LONGEST_S: Final = 600.0
AGE_MS_MAX: Final = 7 * 24 * 3600 * 1000


class BadCallback(ValueError):
    """What was asked for is not a valid callback; the text says why."""


class Callback(NamedTuple):
    """A callback as it was registered."""

    id: str
    url: str
    secret: str
    states: tuple[str, ...]
    """Only events that end in one of these; empty: all."""
    bookies: tuple[str, ...]
    """Only events of these bookies; empty: all."""
    by: str
    created_ms: int


class Outcome(StrEnum):
    """What became of one event at one callback."""

    DELIVERED = "delivered"
    WAITS = "waits"
    """The last attempt failed, and there will be another one."""
    GIVEN_UP = "given-up"


class Line(NamedTuple):
    """One delivery in the log of a callback."""

    event: str
    bookie: str
    after: str
    outcome: Outcome
    attempts: int
    """Since the deliverer was started; another auditor begins at 1 again."""
    last_ms: int
    answer: str
    """The status, or why there was none."""


def make(
    callback_id: str,
    url: str,
    secret: str,
    states: Sequence[str],
    bookies: Sequence[str],
    by: str,
    wall_ms: int,
) -> Callback:
    """Raises BadCallback."""
    problem = url_problem(url)
    if problem is None and not SECRET_CHARS_MIN <= len(secret) <= SECRET_CHARS_MAX:
        problem = f"a secret has {SECRET_CHARS_MIN} to {SECRET_CHARS_MAX} characters; leave it out to get one"
    if problem is None and not set(states) <= set(STATES):
        unknown = ", ".join(sorted(set(states) - set(STATES)))
        problem = f"there is no state {unknown}; states are {', '.join(STATES)}"
    if problem is None and len(bookies) > BOOKIES_MAX:
        problem = f"a callback names at most {BOOKIES_MAX} bookies; leave them out for all"
    if problem is None:
        problem = next(filter(None, map(bookie_id_problem, bookies)), None)
    if problem is not None:
        raise BadCallback(problem)
    return Callback(callback_id, url, secret, tuple(states), tuple(bookies), by, wall_ms)


def url_problem(url: str) -> str | None:
    """Why nothing can be sent to *url*; None if it looks right. Addresses of private networks are what clusters have,
    so they are allowed."""
    if len(url) > URL_CHARS_MAX:
        return f"the url has {len(url)} characters; the limit is {URL_CHARS_MAX}"
    if not url.isascii() or not url.isprintable() or " " in url:
        return "the url may only have printable ASCII characters and no spaces; write others as %XX"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        return f"the url cannot be read: {error}"
    if parts.scheme not in ("http", "https"):
        return "the url must begin with http:// or https://"
    if not host or port == 0:
        return "the url must name a host, for example http://10.0.0.9:8080/bookies"
    if parts.username is not None or parts.password is not None:
        return "the url must not have a name or password in it, since lists show it; the signature proves who sends"
    if parts.fragment:
        return "the url must not have a fragment (#…): it would not be sent"
    return None


def encode(callback: Callback) -> bytes:
    return json.dumps(callback._asdict()).encode()


def decode(value: bytes) -> Callback:
    """Raises Corruption, without the secret in its text."""
    try:
        facts: dict[str, Any] = parse_json(value)
        return make(
            str(facts["id"]),
            str(facts["url"]),
            str(facts["secret"]),
            [str(state) for state in facts["states"]],
            [str(bookie) for bookie in facts["bookies"]],
            str(facts["by"]),
            int(facts["created_ms"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Corruption(f"the record of a callback: {error}") from error


def wants(callback: Callback, event: Event) -> bool:
    """Whether *callback* is to get *event*."""
    if callback.states and event.after not in callback.states:
        return False
    return not callback.bookies or event.bookie in callback.bookies


def lane_of(event: Event) -> str:
    """Events of one lane are delivered one after the other (rule 3); a test waits for nothing."""
    return event.id if event.kind is EventKind.TEST else event.bookie


# ----------------------------------------------------------------------------------------- attempts


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """The value of the header that proves who sent *body*, and when."""
    return "sha256=" + hmac.new(secret.encode(), f"{timestamp}.".encode() + body, hashlib.sha256).hexdigest()


def headers_of(callback: Callback, event_id: str, body: bytes, wall_ms: int) -> Mapping[str, str]:
    """The headers of one attempt."""
    timestamp = str(wall_ms // 1000)
    return {
        "Content-Type": "application/json",
        EVENT_ID: event_id,
        TIMESTAMP: timestamp,
        SIGNATURE: signature(callback.secret, timestamp, body),
    }


def is_delivered(status: int) -> bool:
    """Rule 1."""
    return 200 <= status < 300


def retry_after_s(failures: int, draw: float) -> float:
    """Seconds until the next attempt after *failures* in a row (rule 2); *draw* is from 0 to 1."""
    assert 0 <= draw <= 1
    return pause_after_s(failures, FIRST_S, LONGEST_S) * (1 - draw / 2)


def is_too_old(created_ms: int, wall_ms: int) -> bool:
    """Whether to give an event up that waits since *created_ms* (rule 2)."""
    return wall_ms - created_ms >= AGE_MS_MAX


def in_excess(ids: Sequence[str], most: int) -> Sequence[str]:
    """The oldest of *ids*, which are in order, as far as there are more than *most*."""
    return ids[: max(len(ids) - most, 0)]


# --------------------------------------------------------------------------------------------- log


def noted(log: Sequence[Line], line: Line) -> tuple[Line, ...]:
    """*log*, newest last, after one more attempt. An event has one line, so that one that fails often pushes no other
    out of the log."""
    return (*(logged for logged in log if logged.event != line.event), line)[-LOG_MAX:]


def encode_log(log: Sequence[Line]) -> bytes:
    return json.dumps([line._asdict() for line in log]).encode()


def decode_log(value: bytes) -> tuple[Line, ...]:
    """Raises Corruption."""
    try:
        return tuple(
            Line(
                str(line["event"]),
                str(line["bookie"]),
                str(line["after"]),
                Outcome(line["outcome"]),
                int(line["attempts"]),
                int(line["last_ms"]),
                str(line["answer"]),
            )
            for line in parse_json(value)
        )
    except (ValueError, TypeError, KeyError) as error:
        raise Corruption(f"the log of a callback, {value[:80]!r}: {error!r}") from error
