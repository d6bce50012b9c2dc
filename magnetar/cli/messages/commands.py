"""`magnetar produce`, `consume`, `read` and `tail`: messages, for people and for scripts."""

import base64
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import IO, Any, Final

import click

from magnetar.cli.common import output as show
from magnetar.cli.common.options import F, admin_of, admin_option, now_ms, service_option, topic_argument, with_admin
from magnetar.cli.messages import client as message_client
from magnetar.cli.messages import where
from magnetar.cli.messages.client import ClientError, TopicSchema
from magnetar.cli.messages.places import PLACE_HELP, create_at, place_of, shown_id
from magnetar.inspect.broker_admin import AdminClient, AdminError
from magnetar.inspect.findings import counted
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.topics.message_id import EARLIEST, LATEST, MessageId

COUNT: Final = click.IntRange(min=0)

# Lines of a file between two updates of the progress bar.
_LINES_PER_LOOK: Final = 1_000

_GIVE: Final = "give messages with -m, a file with -f, or pipe lines in"

# Values up to this long are shown in one line.
_ONE_LINE_CHARS: Final = 100
_PREVIEW_BYTES: Final = 32


def value_options(command: F) -> F:
    """How messages are shown."""
    command = click.option("--raw", is_flag=True, help="Do not decode values with the topic's schema.")(command)
    return click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")(command)


def where_option(command: F) -> F:
    return click.option("--where", "conditions", multiple=True, callback=_conditions, help=where.HELP)(command)


def _conditions(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> where.Fits | None:
    """Raises BadParameter."""
    try:
        return where.fits_all(texts) if texts else None
    except where.BadCondition as error:
        raise click.BadParameter(str(error)) from None


def _those_that_fit(messages: Iterable[Any], fits: where.Fits | None, schema: TopicSchema | None) -> Iterator[Any]:
    if fits is None:
        yield from messages
        return
    for message in messages:
        text = message.data().decode(errors="replace")
        value = None if schema is None else schema.decode(message)
        if fits(where.Facts(message.partition_key(), text, message.properties(), value)):
            yield message


def _schema_of(admin_url: str, topic: str) -> TopicSchema:
    return TopicSchema(admin_of(admin_url), topic)


def _check_exists(admin: AdminClient, topic: str) -> None:
    """A reader would make a topic that is not there, where topics are made by their first client.

    Raises AdminError, but not if the admin API is away or not for this user: then the reader may make it.
    """
    try:
        admin.stats(topic)
    except AdminError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            raise


# --------------------------------------------------------------------------------------- produce


@click.command()
@topic_argument
@click.option("-m", "--message", "messages", multiple=True, help="A message; may be given more than once.")
@click.option("-f", "--file", type=click.File("rb"), help="A file (or - for standard input): each line is a message.")
@click.option("-k", "--key", help="Key of every message.")
@click.option("-K", "--key-separator", "separator",
              help="Text between key and value of each message. A message without this text has no key.")  # fmt: skip
@click.option("-p", "--property", "properties", multiple=True, help="NAME=VALUE, on every message.")
@click.option("--schema", "with_schema", is_flag=True,
              help="Messages are JSON, written with the topic's schema (AVRO or JSON).")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print what was sent as JSON.")
@admin_option
@service_option
def produce(
    topic: str,
    messages: tuple[str, ...],
    file: IO[bytes] | None,
    key: str | None,
    separator: str | None,
    properties: tuple[str, ...],
    with_schema: bool,
    as_json: bool,
    admin_url: str,
    service_url: str,
) -> None:
    """Publish messages to TOPIC; returns when all are on disk. Without -m and -f, each line of standard input is one.

    Example:  magnetar produce my-topic -m hello -m world
    """
    if separator is not None and (not separator or key is not None):
        raise click.UsageError("--key-separator must not be empty, and cannot be used with --key")
    first: list[bytes] = []
    if not messages and file is None:
        file, first = _standard_input()
    property_values = properties_of(properties)
    schema: Any = None
    encode: Callable[[bytes], bytes] = bytes
    if with_schema:
        schema, encode = _schema_of(admin_url, topic).writer()
    took = _stopwatch()
    with message_client.client_of(service_url) as client, show.bar(f"to {topic}", _size_of(file)) as progress_bar:
        lines = itertools.chain((message.encode() for message in messages), _lines(first, file, progress_bar))
        keyed = (_split_key(line, separator, key) for line in lines)
        published = message_client.publish(
            client, topic, ((message_key, encode(payload)) for message_key, payload in keyed), property_values, schema
        )
    if as_json:
        _print_line(
            {
                "topic": topic,
                "messages": published.acknowledged,
                "failed": published.sent - published.acknowledged,
                "bytes": published.payload_bytes,
                "seconds": took(),
                "last_id": published.last_id,
            }
        )
    failed = published.sent - published.acknowledged
    if failed:
        raise ClientError(f"{failed} of {published.sent} messages were not acknowledged: {published.first_failure}")
    if not as_json:
        click.echo(f"{counted(published.acknowledged, 'message', 'messages')} acknowledged")


def _standard_input() -> tuple[IO[bytes], list[bytes]]:
    """Standard input and its first line. Raises UsageError if nothing is piped in."""
    if sys.stdin is None or sys.stdin.isatty():
        raise click.UsageError(_GIVE)
    first = sys.stdin.buffer.readline()
    if not first:
        raise click.UsageError(f"standard input is empty: {_GIVE}")
    return sys.stdin.buffer, [first]


def _split_key(line: bytes, separator: str | None, key: str | None) -> tuple[str | None, bytes]:
    """(key, payload) of a message. Raises ClientError for a key that is not UTF-8."""
    if separator is None:
        return key, line
    before, middle, behind = line.partition(separator.encode())
    if not middle:
        return None, line
    try:
        return before.decode(), behind
    except UnicodeDecodeError:
        raise ClientError(f"the key {before[:80]!r} is not UTF-8 text") from None


def properties_of(texts: Iterable[str]) -> dict[str, str]:
    """NAME=VALUE, split at the first equals sign."""
    properties = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise click.UsageError(f"-p {text}: expected NAME=VALUE")
        properties[name] = value
    return properties


def _size_of(file: IO[bytes] | None) -> float | None:
    """The size of a file in bytes; None for a stream without a size, like a pipe."""
    if file is None:
        return None
    try:
        return os.fstat(file.fileno()).st_size or None
    except OSError:
        return None


def _lines(first: list[bytes], file: IO[bytes] | None, progress_bar: show.Bar) -> Iterator[bytes]:
    done_bytes = 0
    for number, line in enumerate(itertools.chain(first, file or ())):
        done_bytes += len(line)
        if number % _LINES_PER_LOOK == 0:
            progress_bar.update(done_bytes)
        yield line.rstrip(b"\r\n")


# --------------------------------------------------------------------------------------- reading


@click.command()
@topic_argument
@click.option("-s", "--subscription", default="magnetar-cli", show_default=True, help="Subscription to consume from.")
@click.option("-t", "--type", "kind", type=click.Choice(["exclusive", "shared", "failover", "key-shared"]),
              default="exclusive", show_default=True, help="Type of the subscription.")  # fmt: skip
@click.option("-n", "--count", type=COUNT, default=0, show_default=True,
              help="Stop after this many messages; 0: never stop.")  # fmt: skip
@click.option("--from", "position", default="earliest", show_default=True,
              help=f"Where a new subscription begins: {PLACE_HELP}")  # fmt: skip
@click.option("-q", "--quiet", is_flag=True, help="Show only the totals, not each message.")
@value_options
@admin_option
@service_option
def consume(
    topic: str,
    subscription: str,
    kind: str,
    count: int,
    position: str,
    quiet: bool,
    as_json: bool,
    raw: bool,
    admin_url: str,
    service_url: str,
) -> None:
    """Receive messages from TOPIC and acknowledge them. With --json the last line has the totals.

    Example:  magnetar consume my-topic -s my-subscription -n 10
    """
    place = place_of(position, now_ms())
    if place not in (EARLIEST, LATEST):
        _make_subscription(admin_url, topic, subscription, place)
    schema = None if raw else _schema_of(admin_url, topic)
    received, payload_bytes, last = 0, 0, None
    took = _stopwatch()
    with (
        message_client.client_of(service_url) as client,
        contextlib.suppress(KeyboardInterrupt),
        contextlib.closing(
            message_client.consumed(client, topic, subscription, kind, place == LATEST, count)
        ) as messages,
    ):
        for message in messages:
            if not quiet:
                _show(message, as_json, schema)
            received, payload_bytes, last = received + 1, payload_bytes + len(message.data()), message.message_id()
    if as_json:
        last_id = None if last is None else shown_id(last)
        summary = {"topic": topic, "subscription": subscription, "messages": received, "bytes": payload_bytes,
                   "seconds": took(), "last_id": last_id}  # fmt: skip
        _print_line({"summary": summary})
    elif quiet:
        click.echo(
            f"{counted(received, 'message', 'messages')}, {show.size(payload_bytes)}, in {show.duration(took())}"
        )


def _make_subscription(admin_url: str, topic: str, subscription: str, place: MessageId | int) -> None:
    """Create the subscription, unless it exists: then it continues at its position."""
    try:
        create_at(admin_of(admin_url), topic, subscription, place)
    except AdminError as error:
        if error.status != 409:
            raise


@click.command()
@topic_argument
@click.option("-n", "--count", type=COUNT, default=0, show_default=True,
              help="Stop after this many messages; 0: read all messages.")  # fmt: skip
@click.option("--from", "start", default="earliest", show_default=True, help=PLACE_HELP)
@click.option("--follow", is_flag=True, help="At the end, wait for new messages.")
@click.option("--compacted", is_flag=True, help="Of what was compacted, only the last message of each key.")
@where_option
@value_options
@admin_option
@service_option
def read(
    topic: str,
    count: int,
    start: str,
    follow: bool,
    compacted: bool,
    conditions: where.Fits | None,
    as_json: bool,
    raw: bool,
    admin_url: str,
    service_url: str,
) -> None:
    """Print the messages of TOPIC without acknowledging them. Partitions are printed one after the other.

    Example:  magnetar read my-topic
    """
    place = place_of(start, now_ms())
    schema = None if raw else _schema_of(admin_url, topic)
    with message_client.client_of(service_url) as client, contextlib.suppress(KeyboardInterrupt):
        _check_exists(admin_of(admin_url), topic)
        messages = message_client.read(client, topic, place, follow, compacted=compacted)
        for message in itertools.islice(_those_that_fit(messages, conditions, schema), count or None):
            _show(message, as_json, schema)


@click.command()
@topic_argument
@click.option("-n", "--count", type=COUNT, default=10, show_default=True, help="Number of last messages to print.")
@click.option("-f", "--follow", is_flag=True, help="Then wait for new messages.")
@where_option
@value_options
@with_admin
@service_option
def tail(
    admin: AdminClient,
    topic: str,
    count: int,
    follow: bool,
    conditions: where.Fits | None,
    as_json: bool,
    raw: bool,
    service_url: str,
) -> None:
    """Print the last messages of TOPIC (of each partition) without acknowledging them.

    With --where, those among them that fit.

    Example:  magnetar tail my-topic -n 100 -f --where key=order-7
    """
    schema = None if raw else TopicSchema(admin, topic)
    with message_client.client_of(service_url) as client, contextlib.suppress(KeyboardInterrupt):
        messages = message_client.last_messages(client, admin, topic, count, follow)
        for message in _those_that_fit(messages, conditions, schema):
            _show(message, as_json, schema)


# ---------------------------------------------------------------------------------------- showing


def _stopwatch() -> Callable[[], float]:
    """Seconds since now, to the millisecond."""
    clock = LoopClock()
    began_s = clock.monotonic()
    return lambda: round(clock.monotonic() - began_s, 3)


def _print_line(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


def _show(message: Any, as_json: bool, schema: TopicSchema | None = None) -> None:
    data, key = message.data(), message.partition_key()
    value = None if schema is None else schema.decode(message)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    if as_json:
        facts = {
            "id": shown_id(message.message_id()),
            "topic": message.topic_name(),
            "key": key or None,
            "publish_time_ms": message.publish_timestamp(),
            "event_time_ms": message.event_timestamp() or None,
            "properties": message.properties(),
        }
        if value is not None:
            facts["value"] = value
        elif text is not None:
            facts["value"] = text
        else:
            facts["value_base64"] = base64.b64encode(data).decode()
        _print_line(facts)
        return
    if value is not None:
        is_short = not isinstance(value, dict | list) or len(str(value)) <= _ONE_LINE_CHARS
        shown = json.dumps(value, ensure_ascii=False, default=str, indent=None if is_short else 2)
    elif text is not None:
        shown = text
    else:
        shown = f"{len(data)} bytes {data[:_PREVIEW_BYTES].hex()}…"
    click.echo(f"{shown_id(message.message_id())}  {key + '  ' if key else ''}{shown}")
