"""Commands about single entries and what a backlog holds: parts of `magnetar topics` and `magnetar subscriptions`.

They ask a broker over HTTP, so they need no client and consume nothing. Messages of a batch are shown one by one; what
is encrypted, or a part of a message, is shown as it is stored.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

import click

from magnetar.cli.common import output as show
from magnetar.cli.common.options import (
    confirm,
    done,
    json_option,
    print_json,
    say,
    topic_argument,
    with_admin,
    yes_option,
)
from magnetar.cli.messages.commands import properties_of
from magnetar.cli.messages.places import PlaceError, json_of, must_be_one, subscription_path
from magnetar.inspect.broker_admin import AdminClient, AdminError
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.message_id import MessageId
from managed_ledger.messages import iterate_batch

_PREFIX: Final = "x-pulsar-"


@click.command("peek")
@topic_argument
@click.argument("name")
@click.option("-n", "count", type=click.IntRange(min=1), default=1, show_default=True, help="How many entries.")
@json_option
@with_admin
def peek(admin: AdminClient, topic: str, name: str, count: int, as_json: bool) -> None:
    """Show the next entries that the subscription NAME of TOPIC (one partition) has before it; none is acknowledged.

    Example:  magnetar topics peek orders billing -n 3
    """
    must_be_one(admin, topic)
    entries = []
    for number in range(1, count + 1):
        try:
            entries.append(_entry(admin, f"{subscription_path(admin, topic, name)}/position/{number}"))
        except AdminError as error:
            if error.status != 404 or number == 1:
                raise
            break
    _show(entries, as_json)


@click.command("get-message")
@topic_argument
@click.argument("message_id", metavar="ID")
@json_option
@with_admin
def get_message(admin: AdminClient, topic: str, message_id: str, as_json: bool) -> None:
    """Show the entry of TOPIC (one partition) that has the ID, as the commands show ids: 12:1.

    Example:  magnetar topics get-message orders 12:1
    """
    must_be_one(admin, topic)
    id_ = _id(message_id)
    _show([_entry(admin, f"/admin/v2/{admin.path_of(topic)}/ledger/{id_.ledger_id}/entry/{id_.entry_id}")], as_json)


@click.command("examine")
@topic_argument
@click.option("--from", "start", type=click.Choice(["latest", "earliest"]), default="latest", show_default=True,
              help="From which end of the topic entries are counted.")  # fmt: skip
@click.option("-n", "number", type=click.IntRange(min=1), default=1, show_default=True, help="Which entry, from 1.")
@json_option
@with_admin
def examine(admin: AdminClient, topic: str, start: str, number: int, as_json: bool) -> None:
    """Show one entry of TOPIC (one partition) by its place, whatever subscriptions have consumed.

    Example:  magnetar topics examine orders --from earliest
    """
    must_be_one(admin, topic)
    path = f"/admin/v2/{admin.path_of(topic)}/examinemessage?initialPosition={start}&messagePosition={number}"
    _show([_entry(admin, path)], as_json)


@click.command("truncate")
@topic_argument
@yes_option
@json_option
@with_admin
def truncate(admin: AdminClient, topic: str, yes: bool, as_json: bool) -> None:
    """Remove the messages of TOPIC: all subscriptions go to the end, and all ledgers but the present one are deleted.

    Asks first, unless --yes is given.

    Example:  magnetar topics truncate orders --yes
    """
    confirm(f"Remove the messages of {topic}, also for subscriptions that have not consumed them?", yes)
    admin.call("DELETE", f"/admin/v2/{admin.path_of(topic)}/truncate")
    done("truncated", as_json, topic=topic)


@click.command("analyze-backlog")
@topic_argument
@click.argument("name")
@click.option("--from", "start", metavar="ID", help="Begin at this entry, not at the first that is not acknowledged.")
@json_option
@with_admin
def analyze_backlog(admin: AdminClient, topic: str, name: str, start: str | None, as_json: bool) -> None:
    """Count what the subscription NAME of TOPIC has not acknowledged, by reading it; each partition on its own.

    Example:  magnetar topics analyze-backlog orders billing
    """
    if start is not None:
        must_be_one(admin, topic)
    body = None if start is None else json_of(_id(start))
    backlogs = {
        partition: admin.call("POST", f"{subscription_path(admin, partition, name)}/analyzeBacklog", body)
        for partition in admin.partition_names(topic)
    }
    if as_json:
        print_json(backlogs)
        return
    rows = [
        (
            partition,
            str(backlog["entries"]),
            str(backlog["messages"]),
            backlog.get("firstMessageId", "-"),
            backlog.get("lastMessageId", "-"),
            "no: a limit was reached" if backlog["aborted"] else "yes",
        )
        for partition, backlog in backlogs.items()
    ]
    show.table(("topic", "entries", "messages", "first", "last", "complete"), rows)


@click.command("properties")
@topic_argument
@click.argument("name")
@click.option("--set", "given", metavar="KEY=VALUE", multiple=True, help="Set one; can be repeated. Others stay.")
@click.option("--remove", "going", metavar="KEY", multiple=True, help="Remove one; can be repeated.")
@json_option
@with_admin
def properties(
    admin: AdminClient, topic: str, name: str, given: tuple[str, ...], going: tuple[str, ...], as_json: bool
) -> None:
    """Show the properties of the subscription NAME of TOPIC, after changing some.

    Example:  magnetar subscriptions properties orders billing --set team=money
    """
    path = f"{subscription_path(admin, topic, name)}/properties"
    values: dict[str, str] = admin.call("GET", path)
    if given or going:
        values = {key: value for key, value in {**values, **properties_of(given)}.items() if key not in going}
        admin.call("PUT", path, values)
    say(values, as_json, show.settings)


# ------------------------------------------------------------------------------------ entries


def _id(text: str) -> MessageId:
    """Raises PlaceError."""
    try:
        return MessageId.parse(text)
    except ValueError:
        raise PlaceError(f"{text!r} is not the id of a message: write ledger:entry, 12:1") from None


def _entry(admin: AdminClient, path: str) -> dict[str, Any]:
    """An entry as it is shown. Raises AdminError."""
    answer = admin.answer("GET", path)
    return entry_of({name.lower(): value for name, value in answer.headers.items()}, answer.body)


def entry_of(headers: Mapping[str, str], body: bytes) -> dict[str, Any]:
    """The entry in an answer, from its *headers*, whose names are in lower case, and its *body*."""

    def header(name: str) -> str | None:
        return headers.get(_PREFIX + name)

    properties = json.loads(header("property") or "{}")
    entry: dict[str, Any] = {
        "messageId": header("message-id"),
        "publishTime": header("publish-time"),
        "eventTime": header("event-time"),
        "deliverAtTime": header("deliver-at-time"),
        "producer": header("producer-name"),
        "sequenceId": int(header("sequence-id") or -1),
    }
    entry = {name: value for name, value in entry.items() if value is not None}
    count = header("num-batch-message")
    if count is None or header("is-encrypted") == "true":
        return {**entry, "messages": [_message(header("partition-key"), properties, body)]}
    return {**entry, "messages": _batch(body, int(count))}


def _batch(body: bytes, count: int) -> list[dict[str, Any]]:
    """The messages of a batch; one, as it is stored, if they cannot be separated."""
    messages = []
    try:
        for message in iterate_batch(body, count):
            single = message.single
            assert single is not None, "a message of a batch has metadata of its own"
            properties = {item.key: item.value for item in single.properties}
            key = single.partition_key if single.HasField("partition_key") else None
            messages.append(_message(key, properties, bytes(message.payload)))
    except Corruption:
        return [_message(None, {}, body)]
    return messages


def _message(key: str | None, properties: Mapping[str, str], value: bytes) -> dict[str, Any]:
    message: dict[str, Any] = {} if key is None else {"key": key}
    if properties:
        message["properties"] = dict(properties)
    try:
        message["value"] = value.decode()
    except UnicodeDecodeError:
        message["value_base64"] = base64.b64encode(value).decode()
    return message


def _show(entries: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(entries)
        return
    for entry in entries:
        facts = ", ".join(
            f"{what} {entry[name]}"
            for name, what in (("publishTime", "published"), ("producer", "by"), ("deliverAtTime", "for"))
            if name in entry
        )
        click.echo(f"{entry['messageId']}  {facts}")
        for message in entry["messages"]:
            key = f"{message['key']}: " if "key" in message else ""
            properties = "  " + str(message["properties"]) if "properties" in message else ""
            click.echo(f"  {key}{message.get('value', message.get('value_base64'))}{properties}")
